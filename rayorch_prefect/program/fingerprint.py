"""The Plan's fingerprint: what makes published work still valid, and nothing physical."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from types import CodeType, FunctionType
from typing import Any, cast

from rayorch_prefect.program.canonical import NoStableForm, canonical, code_form
from rayorch_prefect.program.plan import Call, Plan, Port, Reduce
from rayorch_prefect.program.refusal import refuse
from rayorch_prefect.program.targets import Target, identity


def fingerprint(plan: Plan) -> str:
    """SHA-256 (hex) over name, version, structure, stage names and constructor arguments.

    Batch sizes, replicas, resources, retry budgets, shared pools and line numbers are not part of
    it, nor is code: of a lambda or local function only its name counts, so values that it captures
    belong into constructor arguments.

    Raises ProgramError for a constructor argument without a stable form.
    """
    parts = (
        plan.name,
        plan.version,
        [(domain.name, domain.parent, domain.expands) for domain in plan.domains],
        [_port(port) for port in plan.ports],
        [_reduce(reduce) for reduce in plan.reduces],
        [_call(plan, call) for call in plan.calls],
        plan.output_ports,
        plan.single_output,
    )
    return _sha256(canonical(parts))


def source_hash(plan: Plan) -> str:
    """SHA-256 (hex) of the stages' source text, or of their bytecode where there is none.

    "" if not even that is known of any stage (a C function).
    """
    targets = [pool.target.resolve() for pool in plan.pools]
    texts = sorted({(identity(target), _source(target)) for target in targets})
    return _sha256(canonical(texts)) if any(text for _, text in texts) else ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _port(port: Port) -> tuple[object, ...]:
    op = port.op
    return port.domain, type(op).__name__, [getattr(op, field.name) for field in fields(op)]


def _reduce(reduce: Reduce) -> tuple[object, ...]:
    way, limit = reduce.on_failure.value, reduce.max_missing
    return reduce.sources, reduce.results, way, limit


def _call(plan: Plan, call: Call) -> tuple[object, ...]:
    pool = plan.pools[call.pool]
    target = pool.target.resolve()
    arguments = [
        (name, _argument(call, name, value))
        for name, value in (*enumerate(pool.args), *sorted(pool.kwargs.items()))
    ]
    return _stage(target), call.domain, call.inputs, pool.rowwise, pool.outputs, arguments


def _stage(target: Target) -> str:
    named = isinstance(target, (type, FunctionType))
    return identity(target) if named else canonical(target)


def _argument(call: Call, name: object, value: object) -> str:
    try:
        return canonical(value)
    except NoStableForm as error:
        refuse(
            f"stage {call.stage}: its constructor argument {name!r} ({type(value).__name__}) has "
            f"no form that is the same in every process: {error}. The fingerprint of the Program "
            "needs one: pass plain data, and build the rest in the constructor.",
            call.where,
        )


def _source(target: Target) -> str:
    # Reading a class's source parses its file; a class made anew by the same lines has the same.
    key = (identity(target), *_codes(target))
    if key not in _sources:
        _sources[key] = _read_source(target)
    return _sources[key]


_sources: dict[tuple[object, ...], str] = {}
_TRIES = 5


def _read_source(target: Target) -> str:
    for _ in range(_TRIES):
        try:
            return inspect.getsource(cast(Any, target))
        except SystemError:
            continue  # another thread parsed at the same moment (python/cpython#106905)
        except (OSError, TypeError):
            break
    return "\n".join(code_form(code) for code in _codes(target))


def _codes(target: Any) -> Iterator[CodeType]:
    if isinstance(target, FunctionType):
        yield target.__code__
    elif isinstance(target, type):
        for _, member in sorted(vars(target).items()):
            if isinstance(member, FunctionType):
                yield member.__code__
