"""Random Programs and random behaviour of their stages.

A Recipe is a list of small whole numbers; any such list is a Program, so that hypothesis can
shrink it: operands are picked modulo what is there.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.program import F, Plan, program, stage
from rayorch_prefect.scheduler.policies import FIFO
from tests.scheduler.evaluator import Deed, Path
from tests.scheduler.policies import DRAWN

DEEPEST = 3


@dataclass(frozen=True)
class Step:
    """One declaration: what, and picks of operands and options."""

    what: int
    a: int = 0
    b: int = 0
    c: int = 0


@dataclass(frozen=True)
class Weights:
    """How often, of 100 Grains, one does not simply give a value."""

    record: int = 0
    group: int = 0
    flaky: int = 0
    exhausted: int = 0
    most_children: int = 3

    def any_failure(self) -> bool:
        return bool(self.record or self.group or self.flaky or self.exhausted)


@dataclass(frozen=True)
class Recipe:
    """A Program, how its stages behave, and the seed of its schedule."""

    steps: tuple[Step, ...]
    ends: tuple[int, ...]
    weights: Weights
    seed: int
    chaos: int
    microbatches: tuple[int, ...] = (2, 1)
    policy: str = FIFO


class SeededBehaviour:
    """A pure function of (seed, Call, path)."""

    def __init__(self, plan: Plan, seed: int, weights: Weights) -> None:
        self._plan = plan
        self._seed = seed
        self._weights = weights

    def _roll(self, *what: object) -> int:
        return zlib.crc32(f"{self._seed}{what}".encode())

    def deed(self, call: int, path: Path) -> Deed:
        weights = self._weights
        if not weights.any_failure():
            return Deed()
        roll = self._roll("deed", call, path)
        budget = self._plan.pools[self._plan.calls[call].pool].retry_budget
        at = roll % 100
        for kind, weight in (
            (Kind.RECORD_FAILURE, weights.record),
            (Kind.GROUP_FAILURE, weights.group),
        ):
            if at < weight:
                # Some typed failures come only after an attempt that failed.
                return Deed(kind, min(budget - 1, roll // 1000 % 5 == 0))
            at -= weight
        if at < weights.flaky:
            return Deed(None, roll // 100 % budget)
        if at - weights.flaky < weights.exhausted:
            return Deed(None, budget)
        return Deed()

    def children(self, maker: int, path: Path, place: Path) -> int:
        most = self._weights.most_children if len(path) + len(place) < 4 else 2
        return self._roll("children", maker, path, place) % (most + 1)

    def truth(self, port: int, path: Path, place: Path) -> bool:
        return self._roll("truth", port, path, place) % 3 > 0


@dataclass
class _Known:
    """A Port of the Program being built and what may be done with it."""

    port: Any
    depth: int
    mask: bool = False
    listed: bool = False
    keeps: bool = False
    used: bool = False


class _Builder:
    """Follows a Recipe's steps under the trace."""

    def __init__(self, source: Any) -> None:
        self.known = [_Known(source, 0)]
        self.stages: dict[int, list[Any]] = {}
        self.domains = 0

    def follow(self, step: Step) -> None:
        _STEPS[step.what % len(_STEPS)](self, step)

    # -- operands -----------------------------------------------------------------------------

    def _pick(self, pick: int, fits: list[_Known]) -> _Known | None:
        # The latest first: small numbers build chains, which reach deep Domains.
        return fits[-1 - pick % len(fits)] if fits else None

    def _beside(self, one: _Known) -> list[_Known]:
        return [other for other in self.known if other.port.domain == one.port.domain]

    def _use(self, *used: _Known) -> list[Any]:
        for one in used:
            one.used = True
        return [one.port for one in used]

    def _add(self, port: Any, depth: int, *sources: _Known, **facts: bool) -> None:
        facts.setdefault("mask", all(source.mask for source in sources) and bool(sources))
        facts.setdefault("keeps", any(source.keeps for source in sources))
        facts.setdefault("listed", any(source.listed for source in sources))
        self.known.append(_Known(port, depth, **facts))

    # -- stages -------------------------------------------------------------------------------

    def _stage(self, step: Step, outputs: int) -> Any:
        shared = self.stages.setdefault(outputs, [])
        if shared and step.c % 4 == 3:
            return shared[-1]
        batch, replicas, budget = 1 + step.c % 4, 1 + step.c // 4 % 2, 1 + step.c // 8 % 3
        rowwise = bool(step.c // 24 % 2)
        concurrency = (1, 2, 1, 5)[(step.a + step.b) % 4] if rowwise else 1
        target = _any_generator if rowwise and step.c % 2 else _any_stage
        target = target if concurrency == 1 else _any_async_stage
        used = stage(
            target,
            batch_size=batch if concurrency == 1 else 1,
            concurrency=concurrency,
            linger_s=1.0 if (step.a + step.c) % 4 == 1 else None,
            replicas=replicas,
            retry_budget=budget,
            outputs=outputs,
            rowwise=rowwise,
            batch_limit_s=None if step.c % 3 == 0 else 5.0,
            row_limit_s=1.0 if rowwise else None,
            recycle_after_batches={1: 1, 2: 3}.get(step.c % 5),
            max_pending={3: 1, 5: 4}.get(step.c % 7),
            max_pending_mb=200 / 2**20 if step.c % 6 == 4 else None,
        )
        shared.append(used)
        return used

    def call(self, step: Step, outputs: int = 1, mask: bool = False) -> tuple[Any, ...]:
        one = self._pick(step.a, self.known)
        assert one is not None
        beside = self._beside(one)
        others = [beside[(step.b + i) % len(beside)] for i in range(step.b % 3)]
        made = self._stage(step, outputs)(*self._use(one, *others))
        made = made if outputs > 1 else (made,)
        for port in made:
            self._add(port, one.depth, mask=mask, listed=False, keeps=False)
        return tuple(made)

    def call_two(self, step: Step) -> None:
        self.call(step, outputs=2)

    def call_mask(self, step: Step) -> None:
        self.call(step, mask=True)

    # -- structure ----------------------------------------------------------------------------

    def _name(self) -> str:
        self.domains += 1
        return f"d{self.domains}"

    def expand(self, step: Step) -> None:
        fits = [one for one in self.known if one.depth < DEEPEST and not one.mask and not one.keeps]
        one = self._pick(step.a, fits)
        if one is not None:
            child = F.expand(*self._use(one), domain=self._name())
            self._add(child, one.depth + 1, listed=False, keeps=False)

    def expand_masks(self, step: Step) -> None:
        one = self._pick(step.a, [one for one in self.known if one.depth < DEEPEST])
        if one is not None:
            (made,) = self.call(step)
            self.known.pop()
            self._add(F.expand(made, domain=self._name()), one.depth + 1, mask=True)

    def expand_aligned(self, step: Step) -> None:
        one = self._pick(step.a, self.known)
        if one is not None and one.depth < DEEPEST:
            made = self.call(step, outputs=2)
            del self.known[-2:]
            for port in F.expand_aligned(*made, domain=self._name()):
                self._add(port, one.depth + 1)

    def reduce(self, step: Step) -> None:
        one = self._pick(step.a, [one for one in self.known if one.depth])
        if one is not None:
            port = F.reduce(*self._use(one), **_policy(step.b))
            keeps = one.keeps or _policy(step.b) is _KEEP
            self._add(port, one.depth - 1, mask=False, listed=True, keeps=keeps or one.mask)

    def reduce_aligned(self, step: Step) -> None:
        one = self._pick(step.a, [one for one in self.known if one.depth])
        if one is None:
            return
        beside = self._beside(one)
        other = beside[step.c % len(beside)]
        keeps = _policy(step.b) is _KEEP
        ports = F.reduce_aligned(*self._use(one, other), **_policy(step.b))
        for source, port in zip((one, other), ports, strict=True):
            tainted = keeps or source.keeps or source.mask
            self._add(port, one.depth - 1, mask=False, listed=True, keeps=tainted)

    def filter(self, step: Step) -> None:
        mask = self._pick(step.a, [one for one in self.known if one.mask])
        if mask is not None:
            beside = self._beside(mask)
            one = beside[-1 - step.b % len(beside)]
            self._add(F.filter(*self._use(one, mask)), one.depth, one)

    def coalesce(self, step: Step) -> None:
        one = self._pick(step.a, self.known)
        assert one is not None
        beside = self._beside(one)
        other = beside[step.b % len(beside)]
        self._add(F.coalesce(*self._use(one, other)), one.depth, one, other)

    def broadcast(self, step: Step) -> None:
        like = self._pick(step.a, [one for one in self.known if one.depth])
        if like is not None:
            line = like.port.graph.ancestors(like.port.domain)
            fits = [one for one in self.known if one.port.domain in line[1:]]
            one = self._pick(step.b, fits)
            assert one is not None
            port = F.broadcast(*self._use(one), like=like.port)
            self._add(port, like.depth, one)

    # -- idioms, which single steps seldom come to ---------------------------------------------

    def compare(self, step: Step) -> None:
        """Each member reads the list of all its siblings."""
        one = self._pick(step.a, [one for one in self.known if one.depth])
        if one is None:
            return
        read = self._stage(step, 1)(*self._use(one))
        every = F.broadcast(F.reduce(read, **_policy(step.b)), like=one.port)
        self._add(self._stage(step, 1)(one.port, every), one.depth)

    def masked(self, step: Step) -> None:
        """Elements of one list are masks of what is made of the elements of another."""
        one = self._pick(step.a, [one for one in self.known if one.depth < DEEPEST])
        if one is None:
            return
        made = self._stage(step, 2)(*self._use(one))
        page, mask = F.expand_aligned(*made, domain=self._name())
        read = self._stage(step, 1)(page)
        self._add(F.filter(read, mask), one.depth + 1)

    def in_chunks(self, step: Step) -> None:
        """What is expanded comes in chunks: of one output, or of two aligned ones."""
        one = self._pick(step.a, [one for one in self.known if one.depth < DEEPEST])
        if one is None:
            return
        step = replace(step, c=step.c // 2 % 24 * 2 + 25 if step.c % 4 != 3 else 25)
        self.stages.pop(1 + step.b % 2, None)
        made = self._stage(step, 1 + step.b % 2)(*self._use(one))
        made = made if step.b % 2 else (made,)
        for port in F.expand_aligned(*made, domain=self._name()):
            self._add(port, one.depth + 1)

    # -- the end ------------------------------------------------------------------------------

    def outputs(self, ends: tuple[int, ...]) -> tuple[Any, ...]:
        """Every Port that nobody has used becomes an output, some raised by reduces first."""
        found: list[Any] = []
        for number, one in enumerate([one for one in self.known if not one.used]):
            pick = ends[number % len(ends)]
            port = one.port
            for level in range(min(one.depth, (0, 1, 2, 3, 3)[pick % 5])):
                port = F.reduce(port, **_policy(pick // 5 + level * (pick % 2)))
            found.append(port)
        if ends[0] % 11 == 0:  # a Port may be returned twice, and one that is used, too
            found += [self.known[ends[0] % len(self.known)].port, *found[:1]]
        return tuple(found) or (self.known[-1].port,)


def _policy(pick: int) -> dict[str, Any]:
    return _POLICIES[pick % len(_POLICIES)]


def _any_stage(*rows: object) -> object:
    raise AssertionError(f"stages are only simulated, {rows}")


def _any_generator(*rows: object) -> Iterator[object]:
    yield _any_stage(*rows)


async def _any_async_stage(*rows: object) -> object:
    raise AssertionError(f"stages are only simulated, {rows}")


_KEEP = {"on_failure": "keep"}
_POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"on_failure": "skip"},
    _KEEP,
    {"on_failure": "skip", "max_missing": 1},
    {"on_failure": "skip"},
    {"on_failure": "skip", "max_missing": 0.5},
)
_STEPS = (
    lambda builder, step: builder.call(step),
    _Builder.expand,
    _Builder.expand,
    _Builder.call_two,
    _Builder.reduce,
    _Builder.call_mask,
    _Builder.filter,
    _Builder.broadcast,
    _Builder.coalesce,
    _Builder.expand_aligned,
    _Builder.reduce_aligned,
    _Builder.expand_masks,
    _Builder.reduce,
    _Builder.broadcast,
    lambda builder, step: builder.call(step),
    _Builder.compare,
    _Builder.masked,
    _Builder.in_chunks,
)


def build(recipe: Recipe) -> Plan | None:
    """The Plan of a Recipe; None if the compiler refuses it."""

    def random_program(source: Any) -> tuple[Any, ...]:
        builder = _Builder(source)
        for step in recipe.steps:
            builder.follow(step)
        return builder.outputs(recipe.ends)

    try:
        return program(random_program).plan
    except ProgramError:
        return None


# -- strategies ---------------------------------------------------------------------------------

_STEP = st.builds(
    Step,
    what=st.integers(0, len(_STEPS) - 1),
    a=st.integers(0, 5),
    b=st.integers(0, 15),
    c=st.integers(0, 47),
)
# Half of the Programs reduce all that they have, forgiving.
_END = st.one_of(st.integers(0, 59), st.sampled_from((8, 9, 23, 24, 28, 29)))
_SOME = st.sampled_from((0, 0, 3, 8, 25))
_WEIGHTS = st.builds(
    Weights,
    record=_SOME,
    group=_SOME,
    flaky=_SOME,
    exhausted=st.sampled_from((0, 0, 0, 5, 15)),
    most_children=st.integers(1, 3),
)


def recipes(weights: st.SearchStrategy[Weights] = _WEIGHTS) -> st.SearchStrategy[Recipe]:
    """Small Programs of all kinds, seldom refused by the compiler."""
    return st.builds(
        Recipe,
        steps=st.lists(_STEP, min_size=3, max_size=10).map(tuple),
        ends=st.lists(_END, min_size=1, max_size=2).map(tuple),
        weights=weights,
        seed=st.integers(0, 1 << 20),
        chaos=st.integers(0, 3),
        microbatches=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
        policy=st.sampled_from((*[FIFO] * 5, *DRAWN)),
    )


def numbered_recipe(number: int) -> Recipe:
    """A Recipe that is always the same for a number, larger and wilder than hypothesis begins."""
    pick = random.Random(number)
    steps = (
        Step(pick.randrange(len(_STEPS)), pick.randrange(6), pick.randrange(16), pick.randrange(48))
        for _ in range(pick.randint(3, 11))
    )
    some = (0, 0, 5, 15, 30)
    return Recipe(
        steps=tuple(steps),
        ends=tuple(pick.randrange(60) for _ in range(pick.randint(1, 2))),
        weights=Weights(
            pick.choice(some), pick.choice(some), pick.choice(some), pick.choice((0, 0, 0, 5, 15))
        ),
        seed=number,
        chaos=pick.randrange(4),
        microbatches=tuple(pick.randint(1, 3) for _ in range(pick.randint(1, 3))),
        policy=pick.choice((*[FIFO] * 5, *DRAWN)),
    )
