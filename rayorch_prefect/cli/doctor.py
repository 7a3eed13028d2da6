"""`rayorch-prefect doctor`: one line a check, as they are done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace

from rayorch_prefect.binding.texts import shown_texts
from rayorch_prefect.cli.checks import Finding, Mark, findings
from rayorch_prefect.cli.places import places
from rayorch_prefect.storage import S3Location

EXIT_PROBLEM = 1
_MAX_TEXT = 2000


def doctor(asked: argparse.Namespace) -> int:
    """Print what each check has found; 1 if one is a problem. Raises UsageError."""
    (destination,) = places(destination=asked.destination)
    found: list[Finding] = []
    for each in _shown(destination, asked.start_ray):
        found.append(each)
        if not asked.json:
            print(_line(each), flush=True)
    good = all(each.mark is not Mark.PROBLEM for each in found)
    if asked.json:
        print(json.dumps({"ok": good, "checks": [asdict(each) for each in found]}, indent=1))
    return 0 if good else EXIT_PROBLEM


def _shown(destination: S3Location | None, start_ray: bool) -> Iterator[Finding]:
    """The findings, without secrets."""
    shown = shown_texts(_MAX_TEXT)
    for each in findings(destination, start_ray):
        yield replace(each, said=shown(each.said), to_do=shown(each.to_do))


def _line(found: Finding) -> str:
    advice = f"; {found.to_do}" if found.to_do else ""
    return f"{found.mark:<8} {found.check:<9} {found.said}{advice}"
