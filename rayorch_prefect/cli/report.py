"""`rayorch-prefect report`: where a night's manifest and report are, and its counts."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.cli.places import places
from rayorch_prefect.cli.streams import printed_on_stderr
from rayorch_prefect.cli.table import aligned
from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage import (
    Access,
    NightFiles,
    RowOutcome,
    S3Location,
    night_files,
    read_manifest,
)


def report(asked: argparse.Namespace) -> int:
    """Print the night's places and counts; 0.

    Raises UsageError if there is no such night, StoreError if the store refuses.
    """
    (destination,) = places(destination=asked.destination)
    assert destination is not None
    with printed_on_stderr(asked.json):
        program = load_program(asked.program, asked.working_dir).plan.name
    found = night_files(destination, program, asked.night)
    if found is None:
        raise UsageError(_nothing(destination, program, asked.night))
    told = _told(found, destination.access)
    print(json.dumps(told, indent=1) if asked.json else "\n".join(_lines(told)))
    return 0


def _nothing(destination: S3Location, program: str, night: str | None) -> str:
    last = night_files(destination, program) if night else None
    what = f"night {night}" if night else "night"
    said = f"no {what} of {program} has left a manifest in {destination}"
    if last is not None:
        return f"{said}; expected the id of a nightly flow run, the last is {last.run_id}"
    return f"{said}; check the destination, or run one"


def _told(found: NightFiles, access: Access | None) -> dict[str, Any]:
    rows = read_manifest(found.manifest, access)
    outcomes, kinds, types = (
        Counter(value for value in rows.column(name).to_pylist() if value)
        for name in ("row_outcome", "kind", "type")
    )
    return {
        "night": found.run_id,
        "written": found.written.isoformat(timespec="seconds"),
        "manifest": found.manifest,
        "report": found.report or None,
        "sources": rows.num_rows,
        **{outcome.value: outcomes[outcome.value] for outcome in RowOutcome},
        "with_gaps": sum(bool(missing) for missing in rows.column("missing").to_pylist()),
        "failed_by_kind": dict(sorted(kinds.items())),
        "failed_by_type": dict(sorted(types.items())),
    }


def _lines(told: dict[str, Any]) -> list[str]:
    by_kind, by_type = told["failed_by_kind"], told["failed_by_type"]
    return aligned(
        [
            *((name, told[name]) for name in ("night", "written", "sources", "published")),
            ("  with gaps", told["with_gaps"]),
            ("failed", told["failed"]),
            *((f"  {kind}", count) for kind, count in by_kind.items()),
            *((f"  type {name}", count) for name, count in by_type.items()),
            ("dropped", told["dropped"]),
            ("skipped", told["skipped"]),
            ("not processed", told["not_processed"]),
            ("manifest", told["manifest"]),
            ("report", told["report"] or "none was written"),
        ]
    )
