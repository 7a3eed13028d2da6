"""`rayorch-prefect status`: what a destination's ledger says, as lines or as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rayorch_prefect.binding.block_references import names_block
from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.orders import Order, command_again
from rayorch_prefect.binding.selection import Entries, Selection, Standing, looked_up
from rayorch_prefect.binding.standings import DestinationStanding, standing_of
from rayorch_prefect.binding.texts import shown_texts
from rayorch_prefect.cli.places import places
from rayorch_prefect.cli.streams import printed_on_stderr
from rayorch_prefect.cli.table import aligned
from rayorch_prefect.storage import Ledger, LedgerEntry, RowOutcome, S3Location

SHOWN = 20
"""How many failed sources, and sources that are left, are named."""

EXIT_OPEN = 1

NOT_LOOKED_AT = (
    "left    not looked at: what failed as AttemptsExhausted, UploadFailed or ContractError, or "
    "was not processed, has no entry and runs again; give --source to see it"
)


def status(asked: argparse.Namespace) -> int:
    """Print how the destination stands; 0 if nothing has failed or is left.

    Raises UsageError, ProgramError, and StoreError if the store refuses.
    """
    destination, source = places(destination=asked.destination, source=asked.source)
    assert destination is not None
    with printed_on_stderr(asked.json):
        program = load_program(asked.program, asked.working_dir)
    program.require_publishable()
    plan = program.plan
    order = _order(asked, source, destination) if source else None
    ledger = Ledger(destination, plan.name, plan.fingerprint)
    held = ledger.load()
    found = standing_of(held, _selection(order, held))
    command = _next(found, order)
    tell = _as_json if asked.json else _as_text
    print(tell(found, ledger, command))
    return 0 if found.is_good else EXIT_OPEN


def _order(asked: argparse.Namespace, source: S3Location, destination: S3Location) -> Order:
    named = {"source": asked.source, "destination": asked.destination}
    return Order(
        asked.program,
        source,
        destination,
        working_dir=asked.working_dir,
        asked_as={name: each for name, each in named.items() if names_block(each)},
    )


def _next(found: DestinationStanding, order: Order | None) -> str:
    """The command that sees to what has failed or is left; empty if nothing is, or is not known."""
    if order is None or found.is_good:
        return ""
    return command_again(order, retry_failed=bool(found.failed))


def _selection(order: Order | None, held: Entries) -> Selection | None:
    return looked_up(order, held) if order else None


def _as_text(found: DestinationStanding, ledger: Ledger, command: str) -> str:
    cells: list[tuple[str, object]] = [
        ("published", found.count(RowOutcome.PUBLISHED)),
        ("  with gaps", found.with_gaps),
        ("dropped", found.count(RowOutcome.DROPPED)),
        ("failed", len(found.failed)),
        *((f"  {name}", count) for name, count in found.failed_by_kind().items()),
        *((f"  type {name}", count) for name, count in found.failed_by_type().items()),
        *_source_cells(found),
        ("ledger", ledger.location if found.last else f"{ledger.location} (nothing recorded)"),
    ]
    then = [f"next    {command}"] if command else []
    return "\n".join([*aligned(cells), *_failed_lines(found), *_left_lines(found), *then])


def _source_cells(found: DestinationStanding) -> list[tuple[str, object]]:
    if found.selection is None:
        return []
    return [
        ("sources", len(found.selection.chosen)),
        ("  left", len(found.left)),
        ("  changed since", _changed(found)),
        ("not there", found.not_there),
    ]


def _changed(found: DestinationStanding) -> int:
    chosen = found.selection.chosen if found.selection else ()
    return sum(each.standing is Standing.CHANGED for each in chosen)


def _failed_lines(found: DestinationStanding) -> list[str]:
    shown = shown_texts()
    named = found.failed[:SHOWN]
    lines = [f"failed  {_key(each)}  {_named(each)}: {shown(each.cause or '')}" for each in named]
    return lines + _more(len(found.failed) - len(named), "failed")


def _left_lines(found: DestinationStanding) -> list[str]:
    if found.selection is None:
        return [NOT_LOOKED_AT]
    lines = [f"left    {key}  {standing}" for key, standing in found.left[:SHOWN]]
    return lines + _more(len(found.left) - len(lines), "left")


def _more(count: int, what: str) -> list[str]:
    return [f"{what:<7} and {count} more"] if count > 0 else []


def _as_json(found: DestinationStanding, ledger: Ledger, command: str) -> str:
    shown = shown_texts()
    told: dict[str, Any] = {
        "ledger": str(ledger.location),
        "fingerprint": ledger.fingerprint,
        "published": found.count(RowOutcome.PUBLISHED),
        "with_gaps": found.with_gaps,
        "dropped": found.count(RowOutcome.DROPPED),
        "failed": len(found.failed),
        "failed_by_kind": found.failed_by_kind(),
        "failed_by_type": found.failed_by_type(),
        "first_failed": [
            {
                "key": _key(each),
                "uri": each.uri,
                "kind": each.kind,
                "type": each.type,
                "cause": shown(each.cause or ""),
            }
            for each in found.failed[:SHOWN]
        ],
    }
    return json.dumps({**told, **_of_sources(found), "next": command or None}, indent=1)


def _of_sources(found: DestinationStanding) -> dict[str, Any]:
    """What is known of the sources, each null if they were not looked at."""
    if found.selection is None:
        return dict.fromkeys(("sources", "left", "changed_since", "not_there"))
    return {
        "sources": len(found.selection.chosen),
        "left": [{"key": key, "standing": standing} for key, standing in found.left],
        "changed_since": _changed(found),
        "not_there": found.not_there,
    }


def _key(entry: LedgerEntry) -> str:
    """The source key: what follows the bucket in the URI."""
    return entry.uri.removeprefix("s3://").partition("/")[2]


def _named(entry: LedgerEntry) -> str:
    return f"{entry.kind} ({entry.type})" if entry.type else str(entry.kind)
