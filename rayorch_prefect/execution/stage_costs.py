"""What a stage's batches took, as a cost a call and a cost a row: one short sum a batch."""

from __future__ import annotations

from rayorch_prefect.execution.messages import RowsReply
from rayorch_prefect.program.plan import Call

# Below this spread of rows a batch, what is a call's and what is a row's share cannot be told.
_LEAST_SPREAD = 1e-9


class StageCosts:
    """Least squares over batches: seconds = call_s + each_s * n, where n counts rows or, of a stage
    whose output is expanded, the children that it made."""

    __slots__ = ("_n", "_nn", "_ns", "batches", "busy_s", "by_child")

    def __init__(self, by_child: bool = False) -> None:
        self.by_child = by_child
        self.batches = 0
        self.busy_s = 0.0
        self._n = 0
        self._nn = 0
        self._ns = 0.0

    @classmethod
    def of(cls, call: Call) -> StageCosts:
        """None yet; children that come in chunks are not counted."""
        return cls(bool(call.list_depths[0]) and not call.chunked)

    def ran(self, reply: RowsReply) -> None:
        """A batch came back."""
        if self.by_child:
            self.add(sum(chunk.n for chunk in reply.outputs[0].chunks), reply.busy_s)
        else:
            self.add(reply.rows - len(reply.skipped), reply.busy_s)

    def add(self, n: int, seconds: float) -> None:
        """One batch more."""
        self.batches += 1
        self.busy_s += seconds
        self._n += n
        self._nn += n * n
        self._ns += n * seconds

    def fitted(self) -> tuple[float, float]:
        """(call_s, each_s), neither below 0; all of it each's where no difference was seen."""
        if not self.batches:
            return 0.0, 0.0
        if not self._n:
            return self.busy_s / self.batches, 0.0
        spread = self._nn - self._n * self._n / self.batches
        if spread > _LEAST_SPREAD * self._nn:
            each = (self._ns - self._n * self.busy_s / self.batches) / spread
            call = (self.busy_s - each * self._n) / self.batches
            if each < 0:
                return self.busy_s / self.batches, 0.0
            if call >= 0:
                return call, each
        return 0.0, self.busy_s / self._n
