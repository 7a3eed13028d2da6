from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import ClientSettings, S3Location, list_sources
from rayorch_prefect.storage.client import s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def test_a_process_has_one_client(s3: S3Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = set(pool.map(lambda _: id(s3_client()), range(64)))
    assert clients == {id(s3)}


def test_another_endpoint_gets_another_client_by_path(
    s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    assert s3_client() is not s3
    url = s3_client().generate_presigned_url("get_object", Params={"Bucket": "b-1", "Key": "k"})
    assert url.startswith("http://store.example:9000/b-1/k?")


@dataclass(frozen=True)
class Elsewhere:
    """A way to a place where nothing listens."""

    def settings(self) -> ClientSettings:
        return ClientSettings(endpoint_url="http://127.0.0.1:9")


def test_an_error_names_the_endpoint_of_its_own_location(
    s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for location, endpoint in (
        (S3Location("no-bucket", access=Elsewhere()), "http://127.0.0.1:9"),
        (S3Location("no-bucket"), s3.meta.endpoint_url),
    ):
        with pytest.raises(StoreError) as refused:
            list(list_sources(location))
        assert str(refused.value).endswith(f"(endpoint {endpoint})")


def test_the_import_is_light() -> None:
    code = (
        "import sys, rayorch_prefect.storage;"
        "print(sorted({'pyarrow', 'ray', 'prefect', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
