"""A night without Prefect and Ray: one process, one thread, the Engine's in-process backend.

It makes the requests of a night (lease, probe, sweep, listing, ledger, sources, outputs, manifest)
in a fixed order, so that a test can end it at each of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.publishing import Shelf, publish_and_record, upload_failure
from rayorch_prefect.binding.rows import Row, manifest_row
from rayorch_prefect.binding.selection import select
from rayorch_prefect.binding.upload_groups import in_rounds, tries_of
from rayorch_prefect.execution.local import run_local
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.model.outcomes import ParentOutcome
from rayorch_prefect.program import F, program, stage
from rayorch_prefect.storage import (
    RowOutcome,
    S3Location,
    empty_other_parts,
    probe,
    sweep_uploads,
    write_part,
)
from rayorch_prefect.storage.lease import Lease, acquire, lease_file
from rayorch_prefect.storage.owner import Owner

LEASE_SECONDS = 60.0
PATIENCE_SECONDS = 2.0
PROBE_SECONDS = 10.0
PART_BYTES = 5 * 1024**2
LOG_SETTING = "SMALL_NIGHT_LOG"
"""Names a file to which each source that is computed adds its name."""

LONG = PART_BYTES + 1000
"""Bytes of an output that goes in parts."""


class Split:
    """A Source in, its children out."""

    def __call__(self, source: Any) -> list[dict[str, Any]]:
        asked = json.loads(source.read())
        if log := os.environ.get(LOG_SETTING):
            with Path(log).open("a") as lines:
                lines.write(f"{asked['name']}\n")
        return [{**asked, "i": i} for i in range(asked["n"])]


class Child:
    def __call__(self, child: dict[str, Any]) -> str:
        return f"{child['name']}/{child['i']}"


class Join:
    """The children's texts, and one long artifact if the first child's source wants it."""

    def __call__(self, texts: Any) -> dict[str, Any]:
        name = texts[0].split("/")[0]
        long = {".bin": long_content(name)} if name == "long" else {}
        return {".txt": ",".join(texts), **long}


def long_content(name: str) -> bytes:
    return name.encode() * (LONG // len(name))


@program
def small(source: Any) -> Any:
    split = stage(Split, rowwise=True, backend_patience_s=PATIENCE_SECONDS)
    children = F.expand(split()(source), domain="child")
    texts = stage(Child, rowwise=True, batch_size=2)()(children)
    return stage(Join, rowwise=True)()(F.reduce(texts))


def run_small_night(
    settings: Mapping[str, str], source: str, destination: str, run_id: str
) -> dict[str, int]:
    """Run it to its end; how many rows ended how. `settings` are AWS_* and others."""
    os.environ.update(settings)
    ends = [row.outcome.value for row in small_night(source, destination, Owner(run_id, run_id))]
    assert not {"failed", "dropped"} & set(ends), ends
    return {end: ends.count(end) for end in set(ends)}


def small_night(source: str, destination: str, owner: Owner) -> list[Row]:
    """The rows of a night of this owner. Raises RayorchError for one that cannot go on."""
    order = Order("", S3Location.parse(source), S3Location.parse(destination))
    features = probe(order.destination, PROBE_SECONDS)
    conditional = features.conditional_create and features.conditional_update
    file = lease_file(order.destination, "small", LEASE_SECONDS)
    # Nothing of a process that died is at work any more, so there is nothing to wait for.
    lease = acquire(file, owner, LEASE_SECONDS, conditional, lambda _: time.sleep(0.01))
    shelf = Shelf(order.destination, "small", small.plan.fingerprint)
    follows = lease.taken_from.owner.since if lease.taken_from else ""
    shelf = replace(shelf.by_terms_of(features), fence=lease.fence(), follows=follows)
    sweep_uploads(shelf.open_uploads)
    rows = _run(order, shelf, lease)
    empty_other_parts(order.destination, "small", owner.run_id, {0})
    write_part([manifest_row(row) for row in rows], order.destination, "small", owner.run_id)
    lease.release()
    return rows


def _run(order: Order, shelf: Shelf, lease: Lease) -> list[Row]:
    chosen = select(order, shelf).chosen
    rows = [each.row for each in chosen if each.row is not None]
    sources = [each.source for each in chosen if each.row is None]
    for parent in run_local(small, sources):
        lease.renew()
        rows.append(_published(parent, shelf))
    return rows


def _published(parent: Parent, shelf: Shelf) -> Row:
    row = Row(parent.row, RowOutcome.PUBLISHED, children=parent.children)
    if parent.outcome is not ParentOutcome.COMPLETED:
        assert parent.cause is not None
        return row.as_failed(parent.cause, time.time())
    [(_, end)] = in_rounds({0: partial(_try, parent, shelf, row)})
    if isinstance(end, Row):
        return end
    return row.as_failed(upload_failure(end, "source", tries_of(end)), time.time())


def _try(parent: Parent, shelf: Shelf, row: Row) -> Future[Row]:
    tried: Future[Row] = Future()
    tried.set_result(publish_and_record(parent.value(), shelf, row))
    return tried
