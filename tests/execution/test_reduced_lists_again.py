"""Lists that reduces made are taken apart again, level by level."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect import F, Program, program, run_local, stage


def pages(count: int) -> list[int]:
    return list(range(1, count + 1))


def regions(page: int) -> list[str]:
    return [f"{page}/{region}" for region in range(page)]


def is_odd(region: str) -> bool:
    return int(region.split("/")[1]) % 2 == 1


def shout(region: str) -> str:
    return region + "!"


def twice_over(*, masked: bool) -> Program:
    """source -> page -> region, back up as a list of lists, and down the same way again."""

    @program(version="1")
    def again(source: Any) -> Any:
        page = F.expand(stage(pages)(source), domain="page")
        region = F.expand(stage(regions)(page), domain="region")
        lists = F.expand(F.reduce(F.reduce(region)), domain="list")
        one = F.expand(lists, domain="one")
        kept = F.filter(one, stage(is_odd)(one)) if masked else one
        return F.reduce(F.reduce(stage(shout)(kept)))

    return again


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_lists_of_reduced_lists_are_taken_apart(seed: int | None) -> None:
    found = {
        parent.row: parent.value()
        for parent in run_local(twice_over(masked=False), [0, 1, 3], seed=seed)
    }
    assert found == {
        0: [],
        1: [["1/0!"]],
        3: [["1/0!"], ["2/0!", "2/1!"], ["3/0!", "3/1!", "3/2!"]],
    }


def test_and_filtered_on_the_way() -> None:
    (parent,) = run_local(twice_over(masked=True), [3])
    assert parent.value() == [[], ["2/1!"], ["3/1!"]]
