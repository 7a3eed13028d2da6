"""The `program` decorator: a function of one parameter becomes a Program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, cast, overload

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program.lower import lower
from rayorch_prefect.program.plan import Plan, Where
from rayorch_prefect.program.ports import Port
from rayorch_prefect.program.refusal import refuse, shown
from rayorch_prefect.program.targets import module_identity
from rayorch_prefect.program.tracing import Graph, is_tracing, trace
from rayorch_prefect.program.verify import verify

_PARAMETER_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Program:
    """A declared dataflow. `plan` traces, checks and lowers it at first use.

    `name` is the function's name, `version` the user's, `module_path` the `module:name` under
    which the command line finds it.
    """

    def __init__(self, function: Callable[[Port], object], version: str) -> None:
        self.function = function
        self.name = function.__name__
        self.version = version
        self.module_path = f"{module_identity(function.__module__)}:{function.__qualname__}"
        code = function.__code__
        self.where = Where(code.co_filename, code.co_firstlineno)
        self.__doc__ = function.__doc__
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The compiled Plan. Raises ProgramError, with file and line, if it is refused."""
        # Not cached_property: on 3.11 its lock would make all Programs wait for one's trace.
        if self._plan is None:
            self._plan = self._compile()
        return self._plan

    def _compile(self) -> Plan:
        graph, returned = trace(self.name, self.function, self.where)
        outputs = _returned_ports(graph, returned)
        live = verify(graph, outputs)
        single = isinstance(returned, Port)
        return lower(graph, live, outputs, single_output=single, version=self.version)

    def require_publishable(self) -> None:
        """Raise ProgramError unless the Program has one output, on the root Domain."""
        plan = self.plan
        named = [
            f"{plan.ports[port].name!r} (Domain {plan.domains[plan.ports[port].domain].name!r})"
            for port in plan.output_ports
        ]
        rule = f"A published Program has one output on the root Domain {plan.domains[0].name!r}"
        if len(named) > 1:
            refuse(
                f"Program {self.name} has {len(named)} outputs: {', '.join(named)}. {rule}: "
                "let a last stage join them.",
                self.where,
            )
        if plan.ports[plan.output_ports[0]].domain != 0:
            refuse(f"Program {self.name} returns {named[0]}. {rule}: F.reduce it.", self.where)

    def __call__(self, *values: object, **named: object) -> NoReturn:
        """Refused: a Program is run by an Engine, and not called."""
        if is_tracing():
            refuse(
                f"Program {self.name} is called inside another Program, which is not possible. "
                "Call a plain function that takes and returns Ports instead."
            )
        refuse(f"Program {self.name} is not called: run it by Engine(...) or run_local(...).")

    def __repr__(self) -> str:
        return f"<Program {self.name}, version {self.version}>"


@overload
def program(function: Callable[[Any], object], /) -> Program: ...
@overload
def program(*, version: str = "1") -> Callable[[Callable[[Any], object]], Program]: ...
def program(function: Any = None, /, *, version: str = "1") -> Any:
    """Declare a function of one parameter, the source Port, as a Program.

    `@program` or `@program(version="2")`; a new version makes published work be done again.
    Raises ProgramError at once for a function of another kind; what the function declares is
    checked when `Program.plan` is first asked for.
    """
    if not isinstance(cast(object, version), str) or not version:
        refuse(f"program: version must be a text such as '1', not {shown(version)}.")
    return (
        _declare(function, version) if function is not None else partial(_declare, version=version)
    )


def _declare(function: Any, version: str) -> Program:
    _check_function(function)
    return Program(function, version)


def _check_function(function: Any) -> None:
    if not inspect.isfunction(function):
        refuse(f"program: expected a function of one parameter, not {shown(function)}.")
    where = Where(function.__code__.co_filename, function.__code__.co_firstlineno)
    name = function.__name__
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or (inspect.isasyncgenfunction(function))
    ):
        refuse(f"Program {name} must be a plain function, neither async nor a generator.", where)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in _PARAMETER_KINDS:
        refuse(
            f"Program {name}{signature} must take exactly one parameter, the source Port. "
            "Other values belong to the constructor arguments of its stages.",
            where,
        )


def _returned_ports(graph: Graph, returned: Any) -> tuple[int, ...]:
    if returned is None:
        refuse(f"Program {graph.program} returns nothing. Return its output Port.", graph.where)
    several = isinstance(returned, (list, tuple))
    values: tuple[object, ...] = tuple(returned) if several else (returned,)
    if not values:
        refuse(
            f"Program {graph.program} returns no Port, an empty {type(returned).__name__}.",
            graph.where,
        )
    return tuple(_output(graph, value, at) for at, value in enumerate(values, 1))


def _output(graph: Graph, value: object, at: int) -> int:
    what = f"Program {graph.program}: output {at}"
    if not isinstance(value, Port):
        refuse(
            f"{what} must be a Port, not {shown(value)}. Return one Port, or a tuple or list of "
            "Ports.",
            graph.where,
        )
    if value.graph is not graph:
        refuse(
            f"{what} is Port {value.name!r} (Domain {value.graph.name_of(value)!r}) of another "
            f"Program, of a trace of {value.graph.program!r}.",
            graph.where,
        )
    return value.id


def require_program(given: object) -> Program:
    """What was given, if it is a Program. Raises ProgramError for anything else."""
    if isinstance(given, Program):
        return given
    name = getattr(given, "__name__", None) or type(given).__name__
    raise ProgramError(f"{name} is not a Program: declare it with @program")
