# Counts the words of each line of the texts under an S3 prefix; publishes each text when whole.
from collections import Counter
from typing import Any

from prefect import flow

from rayorch_prefect import F, Source, program, stage
from rayorch_prefect.flows.nightly import run_night


def lines(source: Source) -> list[str]:  # a function stage gets one row and returns one value
    return source.read().decode().splitlines()  # on the worker, exactly the version listed


@stage(batch_size=64, replicas=2)
class Count:  # built once per worker; gets a list of rows, returns a list of the same length
    def __call__(self, lines: Any) -> Any:
        return [Counter(line.split()) for line in lines]


@program(version="1")
def word_count(source: Any) -> Any:
    counts = Count()(F.expand(stage(lines)(source), domain="line"))
    return F.reduce(counts)  # in order, as soon as the last line of this text is counted


@flow
async def word_count_nightly(source: str, destination: str) -> Any:
    state, _ = await run_night(word_count, source, destination)
    return state
