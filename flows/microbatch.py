"""The child flow: one microbatch of sources, from the Engine to published outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.control_room import tell_microbatch, watched
from rayorch_prefect.binding.futures import flow_state, one_client, task_state, threads
from rayorch_prefect.binding.microbatch import Microbatch
from rayorch_prefect.binding.near_uploads import NearUploads, near_data
from rayorch_prefect.binding.own_uploads import OwnUploads
from rayorch_prefect.binding.registry import find_night
from rayorch_prefect.tasks.failed import failed
from rayorch_prefect.tasks.manifest import write_part
from rayorch_prefect.tasks.upload import upload, upload_near


@flow(
    name="microbatch",
    flow_run_name="microbatch {index}: {count} sources",
    persist_result=False,
    task_runner=threads(4),
)
async def microbatch(night: str, index: int, count: int, first: str, last: str) -> State[Any]:
    """Run slice `index` of the night that runs in this process under the id `night`.

    `count`, `first` and `last` (source keys) are for people who look at the run. One upload task
    run starts for each parent, or group of them, the moment it is whole, and all are waited for.
    """
    batch = find_night(night).microbatches[index]
    async with watched(batch, partial(task_state, failed)):
        with one_client():
            await _run(batch)
    if not batch.night.stop.reason:  # else the night's own part has these rows too
        await write_part(night, index)
    await batch.publish_table()
    state = batch.state()
    await tell_microbatch(batch, state)
    return state


async def _run(batch: Microbatch) -> None:
    night, own = batch.night, batch.night.upload_task
    if own is not None:
        async with OwnUploads(batch, own) as own_uploads:
            await batch.run(own_uploads.start)
    elif night.order.upload_runner == "ray":
        async with NearUploads(batch, upload_near) as uploads:
            await batch.run(uploads.start)
    else:
        await batch.run(lambda ordinals, keys: upload.submit(night.id, batch.index, ordinals, keys))


async def run_microbatch(batch: Microbatch) -> State[Any]:
    """Start the child flow of `batch` and wait for its state."""
    sources, order = batch.sources, batch.night.order
    runner = near_data() if order.upload_runner == "ray" else threads(order.upload_workers)
    bounded = microbatch.with_options(task_runner=runner)
    return await flow_state(
        bounded,
        batch.night.id,
        batch.index,
        len(sources),
        sources[0].key,
        sources[-1].key,
    )
