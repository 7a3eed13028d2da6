"""The blocks: as Prefect wants them, and what becomes of one that is named."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites.blocks import BlockStandardTestSuite
from pydantic import SecretStr

from rayorch_prefect.binding.block_access import BlockAccess
from rayorch_prefect.binding.opening import order_of
from rayorch_prefect.binding.orders import Order, what_next
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.settings import PREFIX
from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.blocks import RayCluster, S3Location
from rayorch_prefect.errors import StoreUnavailable, UsageError
from rayorch_prefect.replay.redaction import without_secrets
from rayorch_prefect.storage import ClientSettings

SECRET = "of-the-block-alone"
PLACE = S3Location(
    url="s3://lake/in",
    endpoint_url="http://store:9000",
    access_key_id="key",
    secret_access_key=SecretStr(SECRET),
)
CLUSTER = RayCluster(address="head:6379", runtime_env={"pip": ["emoji"]})


class OfOurs(BlockStandardTestSuite):
    def test_has_a_valid_image(self, block: type[Block]) -> None:
        """Without asking for it: tests reach no servers but their own."""
        assert urlsplit(str(block._logo_url)).scheme == "https"


class TestS3Location(OfOurs):
    @pytest.fixture
    def block(self) -> type[Block]:
        return S3Location


class TestRayCluster(OfOurs):
    @pytest.fixture
    def block(self) -> type[Block]:
        return RayCluster


def order(source: Any = "s3://lake/in/", **asked: Any) -> Order:
    return order_of("jobs:pdfs", source, "s3://lake/out/", **asked)


@pytest.mark.parametrize("block", [S3Location, RayCluster])
def test_prefect_finds_the_class_by_its_slug(block: type[Block]) -> None:
    assert Block.get_block_class_from_key(block.get_block_type_slug()) is block


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"url": "lake/in"}, "expected s3://bucket/prefix/"),
        ({"url": "s3://lake", "secret_access_key": SECRET}, "go together"),
        ({"url": "s3://lake", "session_token": SECRET}, "session_token needs"),
        ({"url": "s3://lake", "endpoint_url": f"http://me:{SECRET}@store"}, "without user"),
        ({"url": "s3://lake", "endpoint_url": "store:9000"}, "http://host:port"),
    ],
)
def test_what_makes_no_place_is_refused_without_being_shown(
    said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected) as refused:
        S3Location(**said)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("address", ["", "ray://head:10001"])
def test_what_is_no_cluster_for_a_night_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:6379"):
        RayCluster(address=address)


def test_a_block_itself_is_taken_and_its_secret_is_nowhere_in_the_order() -> None:
    found = order(PLACE, ray_address=CLUSTER)
    assert str(found.source) == "s3://lake/in/"
    assert (found.ray_address, found.worker_environment()) == ("head:6379", {"pip": ["emoji"]})
    access = found.source.access
    assert isinstance(access, BlockAccess)
    assert access.settings() == ClientSettings(
        "http://store:9000", access_key_id="key", secret_access_key=SECRET
    )
    assert SECRET not in repr(found) + repr(access) + repr(access.settings()) + repr(PLACE)
    assert without_secrets(f"no {SECRET}") == "no ***"
    client = PLACE.get_client()
    assert client.meta.endpoint_url == "http://store:9000"


def test_an_argument_beats_what_the_cluster_s_block_says() -> None:
    assert order(ray_address=CLUSTER, runtime_env={"env_vars": {}}).runtime_env == {"env_vars": {}}


def test_a_place_without_credentials_is_left_to_boto3(prefect_server: PrefectServer) -> None:
    assert order(S3Location(url="s3://lake/in/")) == order("s3://lake/in/")


def test_saved_blocks_are_found_by_name_and_named_again(
    prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLACE.save("lake-in", overwrite=True)
    CLUSTER.save("nights", overwrite=True)
    monkeypatch.setenv(f"{PREFIX}RAY_ADDRESS", "ray-cluster/nights")
    found = order("s3-location/lake-in")
    assert found.source.access is not None
    assert found.source.access.settings().secret_access_key == SECRET
    assert found.ray_address == "head:6379"
    again = what_next(found, Tally(failed=1)).command
    assert "--source s3-location/lake-in --destination s3://lake/out/" in again
    assert "--ray-address ray-cluster/nights" in again


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"source": "s3-location/nowhere"}, "source is 's3-location/nowhere', and there is no"),
        ({"ray_address": "ray-cluster/nowhere"}, "ray_address is 'ray-cluster/nowhere'"),
        ({"source": "ray-cluster/nights"}, "expected s3-location/NAME"),
    ],
)
def test_a_name_without_a_block_is_refused(
    asked: dict[str, Any], expected: str, prefect_server: PrefectServer
) -> None:
    with pytest.raises(UsageError, match=expected):
        order(**asked)


def test_credentials_that_nobody_keeps_are_a_store_that_is_unavailable(ray_cluster: str) -> None:
    with pytest.raises(StoreUnavailable, match="credentials of block s3-location/lost"):
        BlockAccess("s3-location/lost", "no-such-keeper").settings()
