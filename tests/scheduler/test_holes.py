"""Where the contract does not keep its own promise: two legal schedules, two outcomes.

A GroupFailure suppresses the siblings that have not committed yet, so which of them are PRESENT
depends on the schedule. In these places that shows above the group, and so the reference calls
the parent's verdict open. If the contract closes a hole, its test here has to change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.program import F, program
from tests.scheduler.evaluator import Deed, Evaluator, Path
from tests.scheduler.scenes import SPOILED, Scene, named


class Scripted:
    """Two children everywhere; the Grains that end with a GroupFailure are given."""

    def __init__(self, spoiled: set[tuple[int, Path]]) -> None:
        self._spoiled = spoiled

    def deed(self, call: int, path: Path) -> Deed:
        return Deed(Kind.GROUP_FAILURE if (call, path[2:]) in self._spoiled else None)

    def children(self, maker: int, path: Path, place: Path) -> int:
        return 2

    def truth(self, port: int, path: Path, place: Path) -> bool:
        return True


def verdict(declared: Callable[[Any], object], spoiled: set[tuple[int, Path]]) -> str | None:
    return Evaluator(program(declared).plan, Scripted(spoiled)).parent((0, 0)).outcome


def fallback(source: Any) -> Any:
    """Page 1 spoils its document's pages; each page has a value to fall back to."""
    page = F.expand(source, domain="page")
    return F.reduce(F.coalesce(named("Read", batch_size=1, replicas=2)(page), page))


def test_a_coalesce_below_the_scope_of_a_group_failure() -> None:
    assert verdict(fallback, {(0, (1,))}) is None
    outputs = []
    for committed in (True, False):
        scene = Scene(fallback)
        scene.admit(1, [2])
        if not committed:
            scene.sent.reverse()
        for _ in range(2):
            spoiled = scene.sent[0].ranges == ((0, 1, 2),)
            scene.give(failures={0: SPOILED} if spoiled else None)
        outputs.append(scene.output()[1])
    assert outputs == [(("R", 2, 1), ("R", 1, 1)), (("R", 0, 2),)]


def two_scopes(source: Any) -> Any:
    """Score spoils all pages (scope: the document), Read the regions of a page (scope: the page);
    Join needs both."""
    page = F.expand(source, domain="page")
    region = F.expand(page, domain="region")
    score = named("Score", batch_size=1, replicas=2)(page)
    read = named("Read", batch_size=1, replicas=4)(region)
    joined = named("Join")(read, F.broadcast(score, like=region))
    return F.reduce(F.reduce(joined), on_failure="skip")


def test_an_item_with_failed_inputs_of_different_scopes() -> None:
    """The scope of the first failed input in declared order may be the lower one, although the
    other failure spoils the whole document."""
    assert verdict(two_scopes, {(0, (0,)), (1, (0, 1))}) is None
    ends = []
    for committed in (True, False):
        scene = Scene(two_scopes)
        scene.admit(1, [(2, 2)])
        scene.sent.sort(key=lambda order: (order.call, order.ranges))
        score0, score1, read00, read01, *rest = scene.sent
        order = [score1, read00, read01] if committed else [score1, read01, read00]
        scene.sent = [*order, *rest, score0]
        while scene.sent:
            spoiled = scene.sent[0] in (score0, read01)
            scene.give(failures={0: SPOILED} if spoiled else None)
        ends.append(scene.outcome())
    assert ends == ["FAILED", "COMPLETED"]


def kept(source: Any) -> Any:
    """Regions 0/0 and 0/1 both spoil page 0, which the document keeps as a failure."""
    page = F.expand(source, domain="page")
    region = F.expand(page, domain="region")
    read = named("Read", batch_size=1, replicas=4)(region)
    return F.reduce(F.reduce(read), on_failure="keep")


def test_the_path_of_a_kept_failure() -> None:
    """Not open in the reference, which takes any of the paths."""
    paths = []
    for first in (0, 1):
        scene = Scene(kept)
        scene.admit(1, [(2, 2)])
        scene.sent.insert(0, scene.sent.pop(first))
        while scene.sent:
            spoiled = scene.sent[0].ranges[0][1] < 2
            scene.give(failures={0: SPOILED} if spoiled else None)
        ((_, shown),) = [part for part in scene.output()[1] if part[0] == "F"]
        paths.append(shown.path)
    assert paths == [(0, 0), (0, 1)]
