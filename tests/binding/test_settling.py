"""A row is settled once, whoever comes first."""

from __future__ import annotations

import threading
import time
from typing import Any

from rayorch_prefect.binding.microbatch import Microbatch
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import RowOutcome
from rayorch_prefect.storage.row_outcomes import RowStage
from tests.binding.programs import joined
from tests.binding.test_states import failed, order, source


class Slow(list[Row | None]):
    """Lets other threads run after each look."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        time.sleep(0.1)
        return found


async def test_an_upload_that_ends_as_its_microbatch_gives_it_up() -> None:
    night = Night("night", joined, order())
    night.sources, night.rows = [source("a")], Slow([None])
    batch = Microbatch(night, 0, [0])
    row = failed("a", Kind.UPLOAD_FAILED)
    upload = threading.Thread(target=night.settle, args=(0, row, RowStage.WHOLE))
    upload.start()
    time.sleep(0.03)
    batch.leave_unprocessed("it is over")
    upload.join()
    assert [row.outcome for row in batch.rows] == [RowOutcome.FAILED]
    assert (night.totals().failed, night.control.ended) == (1, {"failed": 1})
