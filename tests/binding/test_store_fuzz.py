"""A few seeds of nights beside a store that goes wrong at random; see `stumbling`."""

from __future__ import annotations

import pytest

from tests.binding.stumbling import empty, two_nights
from tests.services import Bucket, S3Server, on_moto

# Each had found a defect.
QUICK_SEEDS = (112, 219)
MORE_SEEDS = range(200, 210)


@on_moto
@pytest.mark.parametrize(
    "seed", [*QUICK_SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE_SEEDS)]
)
def test_a_store_that_goes_wrong_at_random(bucket: Bucket, s3_server: S3Server, seed: int) -> None:
    try:
        two_nights(bucket, s3_server.proxy, seed)
    finally:
        s3_server.proxy.remove()
        empty(bucket)
