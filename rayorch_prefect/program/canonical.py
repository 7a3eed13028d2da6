"""A form of constructor arguments that is the same in every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from rayorch_prefect.program.targets import TargetHolder, identity, is_importable, module_identity


class NoStableForm(Exception):
    """A value has no form that is the same in every process; the message says why."""


def canonical(value: object) -> str:
    """JSON text that equal values share whatever the process, its hash seed or dict orders.

    Values are told apart by type (1, 1.0 and True differ). Objects are taken apart as pickle
    would, functions without an importable name by their code. Raises NoStableForm.
    """
    try:
        return _text(_form(value, ()))
    except RecursionError:
        raise NoStableForm("it is nested too deeply") from None


def code_form(code: CodeType) -> str:
    """Text of a code object: its instructions, names and constants."""
    return _text(_code(code, ()))


def _text(form: object) -> str:
    return json.dumps(form, separators=(",", ":"))


def _form(value: Any, inside: tuple[int, ...]) -> object:
    for kinds, write in _PLAIN:
        if type(value) in kinds:
            return [type(value).__name__, write(value)]
    if id(value) in inside:
        raise NoStableForm("it contains itself")
    inside = (*inside, id(value))
    if type(value) in _NESTED:
        return [type(value).__name__, _NESTED[type(value)](value, inside)]
    for kind, write_as in _KINDS:
        if isinstance(value, kind):
            return write_as(value, inside)
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return ["dataclass", identity(type(value)), _mapping(parts, inside)]
    return _reduced(value, inside)


def _sequence(values: Any, inside: tuple[int, ...]) -> object:
    return [_form(value, inside) for value in values]


def _unordered(values: Any, inside: tuple[int, ...]) -> object:
    return sorted(_text(_form(value, inside)) for value in values)


def _mapping(values: Mapping[Any, Any], inside: tuple[int, ...]) -> object:
    pairs = [(_text(_form(key, inside)), _form(value, inside)) for key, value in values.items()]
    return sorted(pairs, key=lambda pair: pair[0])


def _enum(value: Enum, inside: tuple[int, ...]) -> object:
    return ["enum", identity(type(value)), value.name]


def _class(value: type, inside: tuple[int, ...]) -> object:
    return ["class", identity(value)]


def _module(value: ModuleType, inside: tuple[int, ...]) -> object:
    return ["module", module_identity(value.__name__)]


def _path(value: PurePath, inside: tuple[int, ...]) -> object:
    return ["path", str(value)]


def _holder(value: TargetHolder, inside: tuple[int, ...]) -> object:
    return ["stage", _form(value.target, inside)]


def _function(value: FunctionType, inside: tuple[int, ...]) -> object:
    if is_importable(value):
        return ["function", identity(value)]
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    parts = [value.__defaults__, value.__kwdefaults__, cells]
    return ["function", identity(value), _code(value.__code__, inside), _sequence(parts, inside)]


def _code(code: CodeType, inside: tuple[int, ...]) -> object:
    return [code.co_code.hex(), list(code.co_names), _sequence(code.co_consts, inside)]


def _reduced(value: Any, inside: tuple[int, ...]) -> object:
    try:
        taken = value.__reduce_ex__(4)
    except Exception as error:
        raise NoStableForm(f"{type(value).__name__} cannot be taken apart ({error})") from error
    if isinstance(taken, str):
        return ["global", identity(value), taken]
    maker, args, state, items, pairs = (*taken, None, None, None)[:5]
    return [
        "object",
        _form(cast(Callable[..., Any], maker), inside),
        _form(args, inside),
        _form(state, inside),
        _sequence(items or (), inside),
        _mapping(dict(pairs or ()), inside),
    ]


_PLAIN: tuple[tuple[tuple[type, ...], Callable[[Any], object]], ...] = (
    ((type(None),), lambda value: value),
    ((bool, str), lambda value: value),
    ((int, float, complex), repr),
    ((bytes, bytearray), lambda value: value.hex()),
)
_NESTED: dict[type, Callable[[Any, tuple[int, ...]], object]] = {
    list: _sequence,
    tuple: _sequence,
    set: _unordered,
    frozenset: _unordered,
    dict: _mapping,
}
_KINDS: tuple[tuple[type, Callable[[Any, tuple[int, ...]], object]], ...] = (
    (Enum, _enum),
    (type, _class),
    (ModuleType, _module),
    (PurePath, _path),
    (TargetHolder, _holder),
    (FunctionType, _function),
    (CodeType, _code),
)
