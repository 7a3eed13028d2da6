"""Stages: user classes and functions with their options, and their use in a Program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from rayorch_prefect.program.chunking import yields
from rayorch_prefect.program.options import Settings, StageOptions
from rayorch_prefect.program.plan import CallOutputOp
from rayorch_prefect.program.ports import Port
from rayorch_prefect.program.refusal import refuse, shown, user_where
from rayorch_prefect.program.targets import Target, TargetHolder
from rayorch_prefect.program.tracing import Graph, TracedCall, current, is_tracing

_S = TypeVar("_S", bound="Stage")


class Stage(TargetHolder):
    """A user class or function with its options, before it is used in a Program.

    `target` is the bare class or function. Plain attributes of it can be read here too.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.name = _name_of(target)
        self.settings = settings

    @property
    def is_class(self) -> bool:
        """Whether workers build it once, with constructor arguments."""
        return isinstance(self.target, type)

    @property
    def rowwise(self) -> bool:
        """Whether one call gets one row."""
        chosen = self.settings.rowwise
        return (not self.is_class or self.is_async) if chosen is None else chosen

    @property
    def is_async(self) -> bool:
        """Whether it is an async function, or a class whose call is one."""
        called = (self.target, cast(Any, self.target).__call__)
        return any(map(inspect.iscoroutinefunction, called))

    @property
    def yields(self) -> bool:
        """Whether its call is a generator: a row's children come one by one."""
        return self.rowwise and yields(self.target)

    def options(self: _S, **options: Unpack[StageOptions]) -> _S:
        """A copy with other options. It shares no pool with this one."""
        return _checked(type(self)(self.target, self.settings.changed(self.name, options)))

    def __getattr__(self, name: str) -> Any:
        # Methods of a decorated class that say `Render.SIZE` find this object under that name.
        if name.startswith("_") or name in ("target", "name", "settings"):
            raise AttributeError(name)
        return getattr(self.target, name)

    def __repr__(self) -> str:
        return f"<stage {self.name}>"


class ClassStage(Stage):
    """A class stage. Call it with the constructor arguments, then with Ports."""

    def __call__(self, *args: Any, **kwargs: Any) -> ConfiguredStage:
        """The stage object for these constructor arguments; its uses share one pool."""
        if any(isinstance(value, Port) for value in (*args, *kwargs.values())):
            refuse(
                f"stage {self.name} gets a Port where its constructor arguments belong. "
                f"Build it first: `{self.name}()(port)`."
            )
        problem = _misfit(self.target, args, kwargs)
        if problem:
            refuse(f"stage {self.name}: its constructor does not take these arguments: {problem}.")
        return ConfiguredStage(self, args, kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        # Lets a class derive from a decorated one.
        return (self.target,)


class FunctionStage(Stage):
    """A function stage. Call it with Ports in a Program; elsewhere it is the plain function."""

    def __init__(self, target: Target, settings: Settings) -> None:
        super().__init__(target, settings)
        self._configured = ConfiguredStage(self, (), {})

    def __call__(self, *values: Any, **kwargs: Any) -> Any:
        """A Call on Ports; without arguments, itself; outside a Program, the plain function."""
        if not values and not kwargs:
            return self
        if is_tracing() or any(isinstance(value, Port) for value in values):
            return self._configured(*values, **kwargs)
        return self.target(*values, **kwargs)


class ConfiguredStage:
    """One stage object: a stage with its constructor arguments. Its uses share one pool."""

    def __init__(self, stage: Stage, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.stage = stage
        self.args = args
        self.kwargs = kwargs

    def __call__(self, *ports: Any, **named: Any) -> Any:
        """A Call on Ports of one Domain: its output Port, or a tuple of them for `outputs=k`."""
        name = self.stage.name
        if not is_tracing() and not any(isinstance(port, Port) for port in ports):
            hint = f" For the plain class, as in a test: `{name}.target(...)(...)`."
            refuse(f"stage {name} is used outside a Program.{hint if self.stage.is_class else ''}")
        graph = current(f"stage {name}")
        if named:
            refuse(f"stage {name}: inputs are Ports by position, not by name ({', '.join(named)}).")
        if not ports:
            refuse(
                f"stage {name} is called without a Port: no path from the root Domain "
                f"{graph.domains[0].name!r} would reach its output."
            )
        inputs = [
            graph.admit(port, f"stage {name}: input {position}")
            for position, port in enumerate(ports, 1)
        ]
        domain = graph.same_domain(f"Call {name}", inputs)
        self._check_inputs(inputs)
        return _add_call(graph, self, domain, tuple(port.id for port in inputs))

    def _check_inputs(self, inputs: list[Port]) -> None:
        target = self.stage.target
        called = cast(Any, target).__call__ if self.stage.is_class else target
        # A method is looked up on the class, so its self is given too.
        values = (None, *inputs) if self.stage.is_class else tuple(inputs)
        problem = _misfit(called, values, {})
        if problem:
            refuse(f"stage {self.stage.name} does not take {len(inputs)} inputs: {problem}.")

    def __repr__(self) -> str:
        return f"<stage object {self.stage.name}>"


def _add_call(graph: Graph, used: ConfiguredStage, domain: int, inputs: tuple[int, ...]) -> Any:
    name, count = used.stage.name, used.stage.settings.outputs
    where, call = user_where(), len(graph.calls)
    outputs = tuple(
        graph.add_port(
            domain, CallOutputOp(call, index), name if count == 1 else f"{name}[{index}]", where
        )
        for index in range(count)
    )
    ids = tuple(port.id for port in outputs)
    graph.calls.append(TracedCall(call, used, domain, inputs, ids, where))
    return outputs[0] if count == 1 else outputs


class StageDecorator(Protocol):
    """What `stage(**options)` returns."""

    # A class is a callable too: the first overload that fits decides.
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, target: type[Any], /
    ) -> ClassStage: ...
    @overload
    def __call__(self, target: Callable[..., Any], /) -> FunctionStage: ...


@overload
def stage(  # pyright: ignore[reportOverlappingOverload]
    target: type[Any], /, **options: Unpack[StageOptions]
) -> ClassStage: ...
@overload
def stage(target: Callable[..., Any], /, **options: Unpack[StageOptions]) -> FunctionStage: ...
@overload
def stage(**options: Unpack[StageOptions]) -> StageDecorator: ...
def stage(target: Any = None, /, **options: Any) -> Any:
    """Declare a class or function as a stage: `@stage`, `@stage(batch_size=16)`, `stage(C)`.

    A class is built once per worker and its call gets one list per input and returns one list of
    the same length. A function gets one row and returns one value, and so does a class whose call
    is async. See StageOptions for the options. Raises ProgramError for anything that is not right
    about them.
    """
    return partial(_declare, options) if target is None else _declare(options, target)


def _declare(options: Mapping[str, Any], target: Any) -> Stage:
    name = _name_of(target)
    _check_target(target, name)
    settings = Settings().changed(name, options)
    return _checked((ClassStage if isinstance(target, type) else FunctionStage)(target, settings))


def _checked(stage: _S) -> _S:
    """The stage, if its options fit each other."""
    settings = stage.settings
    if stage.is_async and not stage.rowwise:
        refuse(f"stage {stage.name}: an async stage is row-wise; rowwise=False does not fit it.")
    if settings.concurrency > 1 and not stage.is_async:
        refuse(
            f"stage {stage.name}: concurrency={settings.concurrency} is for async stages (an async "
            "function, or a class with `async def __call__`). This one is not: use replicas."
        )
    if settings.concurrency > 1 and settings.batch_size > 1:
        refuse(
            f"stage {stage.name}: with concurrency={settings.concurrency} each row is a batch of "
            f"its own; batch_size={settings.batch_size} does not go with it."
        )
    if settings.row_limit_s is not None and not stage.rowwise:
        refuse(
            f"stage {stage.name}: row_limit_s is for row-wise stages, which start rows one by one. "
            "Give this one batch_limit_s, or rowwise=True if its call takes one row."
        )
    if not stage.rowwise and yields(stage.target):
        refuse(
            f"stage {stage.name} yields, but gets its rows by the batch: nobody could tell which "
            "row a child is of. Give it rowwise=True and yield the children of its one row, or "
            "return a list."
        )
    return stage


def _name_of(target: Any) -> str:
    inner = getattr(target, "func", target)  # functools.partial
    return str(getattr(inner, "__name__", type(target).__name__))


def _check_target(target: Any, name: str) -> None:
    if isinstance(target, (Stage, ConfiguredStage)):
        refuse(f"{target!r} is a stage already; .options(...) gives a copy with other options.")
    if not callable(target):
        refuse(f"a stage is a class or a function, not {shown(target)}.")
    if isinstance(target, type):
        if not any("__call__" in vars(base) for base in target.__mro__):
            refuse(f"stage {name}: the class has no __call__, which gets the rows.")
        if inspect.isasyncgenfunction(cast(Any, target).__call__):
            refuse(f"stage {name}: __call__ of a class must not be an async generator.")


def _misfit(called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Why `called` does not take these arguments; empty if it does or nobody can tell."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
