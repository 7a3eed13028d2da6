"""`simulate`: one chain, one load, under a policy and in a shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.chain import Chain
from rayorch_prefect.simulation.conditions import IDEAL, Conditions
from rayorch_prefect.simulation.figures import Figures, figures_of
from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.record import Record
from rayorch_prefect.simulation.virtual import VirtualRun


class Shape(Enum):
    """How documents and pages meet.

    LINEAGE: pages of any documents share batches, and a document goes on once its own pages are
    there. WHOLE_DOCUMENT: one Grain a document; batches do not mix. GLOBAL_REGROUP: pages share
    batches, but no document goes on before the pages of all are there; as nothing knows whose a
    page is until then, no page is suppressed.
    """

    LINEAGE = "lineage"
    WHOLE_DOCUMENT = "whole-document"
    GLOBAL_REGROUP = "global-regroup"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run's figures and all that happened."""

    figures: Figures
    record: Record


def simulate(
    chain: Chain,
    load: Load,
    shape: Shape = Shape.LINEAGE,
    conditions: Conditions = IDEAL,
    seed: int = 0,
    regroup_s: float = 0.0,
) -> Simulated:
    """Run it. `regroup_s` is what the global regroup itself takes; `seed` is of the rows' costs.

    Raises UsageError if the load's pages fail at no stage on pages.
    """
    if load.poisons not in ("", *(stage.name for stage in chain.pages)):
        raise UsageError(f"pages cannot fail at {load.poisons}: it is no stage on pages")
    spoiled = load.poisons or chain.pages[0].name
    last = chain.last_on_pages
    if shape is Shape.GLOBAL_REGROUP:
        record = _regrouped(chain, load, conditions, seed, regroup_s)
    else:
        shaped = chain.whole_documents() if shape is Shape.WHOLE_DOCUMENT else chain
        record = VirtualRun(shaped, load, conditions, seed).run()
    figures = figures_of(record, load, last, spoiled, shape.value, conditions.policy)
    return Simulated(figures, record)


def _regrouped(
    chain: Chain, load: Load, conditions: Conditions, seed: int, regroup_s: float
) -> Record:
    """Everything up to the last page, and then what is left of it for documents that did not fail.
    The slice is all that there is to do."""
    pages = Load(load.counts)
    record = VirtualRun(chain.until_regroup(), pages, conditions, seed).run()
    record.lost[len(chain.before) + len(chain.ranges)] = sum(load.counts[i] for i in load.poison)
    left = [i for i in range(len(load.counts)) if i not in load.poison]
    record.completed = set(left)
    regrouped = max(record.ended.values()) + regroup_s
    if not left:
        return record
    if not chain.after:
        record.ended.update(dict.fromkeys(left, regrouped))
        return record
    rest = Load(tuple(load.counts[i] for i in left))
    later = VirtualRun(chain.after_regroup(), rest, conditions, seed, regrouped).run()
    return record.joined(later, left)
