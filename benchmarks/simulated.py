"""What the simulator says of a benchmark's workload, for our own system with its defaults."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.workloads import Workload
from rayorch_prefect.simulation.chain import Chain, Level, Stage
from rayorch_prefect.simulation.conditions import ON_RAY, Conditions
from rayorch_prefect.simulation.figures import Figures
from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.simulate import simulate


def chain_of(work: Workload) -> Chain:
    """The Program that `systems/ours.py` declares: pages rendered in ranges of one batch where that
    takes time, by the document where it takes none."""
    read = Stage(
        "read", Level.PAGE, work.batch, work.read_workers, work.read_call_s, work.read_row_s
    )
    if work.render_page_s:
        before = [
            Stage("listed", Level.DOCUMENT, batch=16),
            Stage("render", Level.RANGE, 1, work.render_workers, child_s=work.render_page_s),
        ]
    else:
        before = [Stage("render", Level.DOCUMENT, work.documents_a_call, work.render_workers)]
    after = [
        Stage(
            "assemble",
            Level.DOCUMENT,
            work.documents_a_call,
            work.assemble_workers,
            row_s=work.assemble_s,
        )
    ]
    if work.upload_workers:
        upload = Stage("upload", Level.DOCUMENT, 1, work.upload_workers, row_s=work.upload_s)
        after.append(upload)
    return Chain.of([*before, read, *after], step=work.batch)


def load_of(work: Workload) -> Load:
    """Its documents, and the pages of them that are a GroupFailure."""
    counts = tuple(document.pages for document in work.documents)
    return Load(counts, poison=dict(getattr(work, "poison", {})))


def predicted(work: Workload, conditions: Conditions = ON_RAY, policy: str = "fifo") -> Figures:
    """The figures of one run."""
    under = replace(conditions, policy=policy)
    return simulate(chain_of(work), load_of(work), conditions=under).figures
