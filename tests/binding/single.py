"""A module that holds just one Program."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.program import program, stage


def length(source: Any) -> str:
    return str(len(source.read()))


@program
def single(source: Any) -> Any:
    return stage(length)()(source)
