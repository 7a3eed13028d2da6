"""Real services for tests, each started at most once a session, on 127.0.0.1 and a free port.

A conftest that needs them imports the fixtures:
`from tests.services import prefect_server, ray_cluster, s3_server`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from rayorch_prefect.binding.prefect_server import PrefectServer

from tests.fault_proxy import Answer, FaultProxy, Rule
from tests.stores import STORES, running_store

T = TypeVar("T")

_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_OF_THE_USER = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_REGION")
_RAY_MEMORY = 300 * 1024**2

_services = pytest.StashKey[dict[str, object]]()


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """An S3 server; AWS_* of this process and of the Ray that it starts point to it."""
    return _once(request.config, "s3", _start_s3)


@pytest.fixture(scope="session")
def prefect_server(request: pytest.FixtureRequest) -> PrefectServer:
    """A Prefect server on SQLite that the flows of this process report to."""
    return _once(request.config, "prefect", _start_prefect)


@pytest.fixture(scope="session")
def ray_cluster(request: pytest.FixtureRequest, s3_server: S3Server) -> str:
    """A local Ray with 4 logical CPUs and no dashboard; its address."""
    return _once(request.config, "ray", _start_ray)


class S3Server:
    """Two stores behind one address, a fault proxy.

    Buckets whose names begin with `rclone-` are in `rclone`, all others in moto: so the Ray that
    was started with this address reaches both. Tests that add rules to `proxy` remove them.
    """

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.endpoint = proxy.endpoint

    @contextmanager
    def refusing(
        self, method: str, key_part: str, answer: Answer = (500, "InternalError")
    ) -> Iterator[Rule]:
        """Answer so to every request of this method whose target contains `key_part`."""
        rule = self.proxy.on(method, re.escape(key_part), answer=answer)
        try:
            yield rule
        finally:
            self.proxy.remove(rule)

    def before(self, method: str, key_part: str, act: Callable[[], object]) -> None:
        """Do something just before the next request of this method for such a key is answered."""
        self.proxy.on(method, re.escape(key_part), times=1, before=lambda seen: act())


@dataclass(frozen=True, slots=True)
class Bucket:
    """A fresh bucket with the prefixes `in/` for sources and `out/` for outputs."""

    name: str

    @property
    def source(self) -> str:
        return f"s3://{self.name}/in/"

    @property
    def destination(self) -> str:
        return f"s3://{self.name}/out/"

    def put(self, key: str, content: bytes) -> None:
        from rayorch_prefect.storage.client import s3_client

        s3_client().put_object(Bucket=self.name, Key=key, Body=content)

    def put_sources(self, **asked: dict[str, Any]) -> None:
        """One source object `in/<name>.json` each."""
        for name, value in asked.items():
            self.put(f"in/{name}.json", json.dumps({"name": name, **value}).encode())

    def get(self, key: str) -> bytes:
        from rayorch_prefect.storage.client import s3_client

        return s3_client().get_object(Bucket=self.name, Key=key)["Body"].read()

    def keys(self, prefix: str = "") -> list[str]:
        from rayorch_prefect.storage import S3Location
        from rayorch_prefect.storage.listing import list_keys

        return list(list_keys(S3Location(self.name, prefix)))


# The second store is for `make test-all` and `make handed`: `make test` is to stay quick.
ON_EACH_STORE = [*STORES[:1], *(pytest.param(name, marks=pytest.mark.slow) for name in STORES[1:])]


@pytest.fixture(params=STORES[:1])
def bucket(s3_server: S3Server, request: pytest.FixtureRequest) -> Bucket:
    """A bucket of the test's own, on the first store unless the test says otherwise."""
    return new_bucket(request.param)


# For tests whose point lies in the store, or in what differs between stores: how a run owns its
# place, what is written when, and what is left after a kill.
on_stores = pytest.mark.parametrize("bucket", ON_EACH_STORE, indirect=True)
on_moto = pytest.mark.parametrize("bucket", ["moto"], indirect=True)


def new_bucket(store: str) -> Bucket:
    """An empty bucket on the store of this name, of STORES; `s3_server` must be up."""
    from rayorch_prefect.storage.client import s3_client

    name = f"{store}-{uuid.uuid4().hex[:12]}"
    s3_client().create_bucket(Bucket=name)
    return Bucket(name)


def _once(config: pytest.Config, name: str, start: Callable[[ExitStack], T]) -> T:
    # Fixtures imported by several conftests are several fixtures; the service stays one.
    services = config.stash.setdefault(_services, {})
    if name not in services:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        services[name] = start(stack)
    return services[name]  # type: ignore[return-value]


def _start_s3(stack: ExitStack) -> S3Server:
    moto, rclone = (stack.enter_context(running_store(name)).endpoint for name in STORES)
    proxy = FaultProxy(lambda path: rclone if path.startswith("/rclone-") else moto)
    server = S3Server(stack.enter_context(proxy))
    changes = pytest.MonkeyPatch()
    stack.callback(changes.undo)
    for name, value in {**_CREDENTIALS, "AWS_ENDPOINT_URL": server.endpoint}.items():
        changes.setenv(name, value)
    for name in _OF_THE_USER:
        changes.delenv(name, raising=False)
    return server


def _start_prefect(stack: ExitStack) -> PrefectServer:
    from rayorch_prefect.binding.prefect_server import PrefectServer, using_api

    home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    with pytest.MonkeyPatch.context() as changes:
        # Tests have few task runs and wait for each to be recorded: not for a batch of them.
        changes.setenv("PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE", "1")
        server = stack.enter_context(PrefectServer(Path(home)))
    stack.enter_context(using_api(server.api_url))
    return server


def _start_ray(stack: ExitStack) -> str:
    import ray

    # A leftover address would make this a driver on someone else's cluster.
    os.environ.pop("RAY_ADDRESS", None)
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=_RAY_MEMORY,
        log_to_driver=False,
    )
    stack.callback(ray.shutdown)
    return str(ray.get_runtime_context().gcs_address)
