"""Values that died with their node are made again by the batches that made them.

A Recipe keeps how a batch's values were made for as long as any of them, or a value made from
them, may still be read: blocks hold their recipe, recipes hold the blocks they read. A released
block loses its data and keeps its recipe, so that loss is mended transitively, down to the
source rows. Making again stands outside the commit rule: bytes are replaced, never an outcome.
The method is lineage reconstruction, as Ray does it for tasks (Moritz et al., OSDI 2018).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayorch_prefect.errors import ObjectStoreFull
from rayorch_prefect.execution.blocks import Block, Blocks, Recipe
from rayorch_prefect.execution.codec import EncodedChunk
from rayorch_prefect.execution.messages import (
    BatchMessage,
    InputsLost,
    Reply,
    ReturnedChunk,
    RowsReply,
)
from rayorch_prefect.execution.rows import SourceRows
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach
from rayorch_prefect.program.plan import Plan

TRIES = 3

# Called with None when all blocks have data again, else with why one of them cannot.
Then = Callable[[str | None], None]


class Outside(Protocol):
    """What a Remaker asks of its driver."""

    def workers_of(self, pool: int) -> Sequence[int]:
        """Workers of a pool that are there, least held first."""
        ...

    def send_again(self, worker: int, batch: int, message: BatchMessage) -> None:
        """Send a batch of the Remaker's; its reply comes to `replied`."""
        ...

    def chunk_data(self, chunk: ReturnedChunk, large: Sequence[Any]) -> Any:
        """A returned chunk as a block's data."""
        ...

    def source_data(self, chunk: EncodedChunk) -> Any:
        """A source row's value as a block's data."""
        ...


@dataclass(slots=True, eq=False)
class _Want:
    """Blocks that someone is to read."""

    blocks: tuple[Block, ...]
    then: Then

    def missing(self) -> list[Block]:
        return [block for block in self.blocks if block.data is None]


@dataclass(slots=True, eq=False)
class _Making:
    """A recipe that runs again for some of its blocks."""

    recipe: Recipe
    targets: list[Block] = field(default_factory=list[Block])
    tries: int = 0


class Remaker:
    """Owner of what is made again. Its batches have negative numbers. `rows` counts those run."""

    def __init__(self, plan: Plan, blocks: Blocks, outside: Outside) -> None:
        self.rows = 0
        self.lost = 0
        self._plan = plan
        self._blocks = blocks
        self._outside = outside
        self._next = -1
        self._wants: list[_Want] = []
        self._making: dict[int, _Making] = {}
        self._running: dict[int, tuple[int, _Making]] = {}
        self._unplaced: deque[_Making] = deque()

    # -- what is wanted ------------------------------------------------------------------------

    def forget_data(self, blocks: Iterable[Block]) -> None:
        """The data of these blocks is gone."""
        for block in blocks:
            if block.data is not None:
                block.data = None
                self.lost += 1

    def need(self, blocks: Sequence[Block], then: Then) -> None:
        """Have all of `blocks` made again that are lost; `then` may be called at once."""
        try:
            self._fill_sources(blocks)
        except ObjectStoreFull as error:
            then(f"a source row that is needed again could not be stored: {error}")
            return
        want = _Want(tuple(blocks), then)
        missing = want.missing()
        if missing:
            self._wants.append(want)
            for block in missing:
                self._make(block)
        else:
            then(None)

    def _fill_sources(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.data is None and isinstance(block.recipe, SourceRows):
                block.data = self._outside.source_data(block.recipe.chunk(block.place[1]))

    def _make(self, block: Block) -> None:
        recipe = block.recipe
        if not isinstance(recipe, Recipe):
            self._unmakable(lambda each: each is block, "it is not known how it was made")
            return
        making = self._making.get(id(recipe))
        if making is not None:
            making.targets.append(block)
            return
        making = self._making[id(recipe)] = _Making(recipe, [block])
        self._begin(making)

    def _begin(self, making: _Making) -> None:
        self.need(making.recipe.blocks, lambda problem: self._place(making, problem))

    # -- running -------------------------------------------------------------------------------

    def _place(self, making: _Making, problem: str | None) -> None:
        recipe = making.recipe
        if problem is not None:
            self._give_up(making, problem)
            return
        workers = self._outside.workers_of(self._plan.calls[recipe.call].pool)
        if not workers:
            self._unplaced.append(making)
            return
        batch, self._next = self._next, self._next - 1
        self._running[batch] = (workers[0], making)
        self.rows += recipe.rows
        self._outside.send_again(workers[0], batch, recipe.message(batch))

    def runs_at(self, worker: int) -> bool:
        """Whether the worker has something to make again."""
        return any(where == worker for where, _ in self._running.values())

    def worker_ready(self) -> None:
        """A worker is there for what found none."""
        waiting, self._unplaced = self._unplaced, deque()
        for making in waiting:
            self._begin(making)

    def worker_lost(self, worker: int) -> None:
        """What it was making is made elsewhere."""
        taken = [batch for batch, (where, _) in self._running.items() if where == worker]
        for batch in taken:
            _, making = self._running.pop(batch)
            self._again(making, "the workers that made it again died")

    def replied(self, batch: int, reply: Reply, large: Sequence[Any]) -> None:
        """A batch of the Remaker's came back."""
        found = self._running.pop(batch, None)
        if found is None:
            return  # its worker was given up before
        making = found[1]
        match reply:
            case RowsReply():
                self._made(making, reply, large)
            case InputsLost():
                self.forget_data(making.recipe.blocks[index] for index in reply.chunks)
                self._again(making, "what it is made from was lost again and again")
            case AttemptFailed():
                self._again(making, f"{reply.type}: {reply.message}")
            case ContractBreach():
                self._give_up(making, f"it came back as {reply.received}")

    def _again(self, making: _Making, problem: str) -> None:
        making.tries += 1
        if making.tries < TRIES:
            self._begin(making)
        else:
            self._give_up(making, problem)

    # -- ends ----------------------------------------------------------------------------------

    def _made(self, making: _Making, reply: RowsReply, large: Sequence[Any]) -> None:
        recipe = making.recipe
        problem = recipe.misfit(reply)
        if problem is not None:
            self._give_up(making, problem)
            return
        del self._making[id(recipe)]
        alive = (block for block in self._blocks if block.recipe is recipe)
        for block in {id(each): each for each in (*making.targets, *alive)}.values():
            output, place = block.place
            if place >= len(reply.outputs[output].chunks):
                continue  # it has come while the ones before it were made again
            block.data = self._outside.chunk_data(reply.outputs[output].chunks[place], large)
        wants, self._wants = self._wants, []
        for want in wants:
            # What was there when it was asked for may have been lost or released since.
            self.need(want.blocks, want.then)
        self._drop(making.targets)
        for want in wants:
            self._drop(want.blocks)

    def _drop(self, blocks: Iterable[Block]) -> None:
        """Data of released blocks that nothing waits for goes again."""
        wanted = {id(block) for want in self._wants for block in want.blocks}
        for block in blocks:
            if not block.live and id(block) not in wanted:
                block.data = None

    def _give_up(self, making: _Making, problem: str) -> None:
        del self._making[id(making.recipe)]
        recipe = making.recipe
        stage = self._plan.calls[recipe.call].stage
        self._unmakable(lambda block: block.recipe is recipe, f"stage {stage}: {problem}")

    def _unmakable(self, which: Callable[[Block], bool], problem: str) -> None:
        ended = [want for want in self._wants if any(map(which, want.missing()))]
        self._wants = [want for want in self._wants if want not in ended]
        for want in ended:
            want.then(f"a value that was lost with its node could not be made again: {problem}")
