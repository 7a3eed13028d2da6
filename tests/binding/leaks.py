"""Where a night could leave a secret: everything that its services keep, looked through for it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from pydantic import SecretStr

from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.blocks import S3Location
from rayorch_prefect.storage.client import s3_client
from tests.fault_proxy import Seen
from tests.services import Bucket, S3Server


def leaks(secrets: Iterable[str], server: PrefectServer, bucket: Bucket) -> set[str]:
    """The files of the Prefect server and of Ray's session, tables of Ray, and objects of the
    destination, that hold one of the secrets."""
    for sender in (APILogWorker, EventsWorker):
        sender.drain_all(timeout=10, at_exit=False)
    wanted = [secret.encode() for secret in secrets]
    kept = [*_files(server.log.parent), *_files(ray_logs()), *_ray_tables(), *_objects(bucket)]
    return {name for name, content in kept if any(secret in content for secret in wanted)}


def ray_logs() -> Path:
    worker: Any = import_module("ray._private.worker")
    node = worker._global_node
    return Path(node.get_session_dir_path())


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All of them: the database with its log, logs, settings, what was spilled."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_bytes()


def _ray_tables() -> Iterator[tuple[str, bytes]]:
    """What the state API and the dashboard tell from: actors with their environments, jobs."""
    state: Any = import_module("ray._private.state")
    yield "ray actors", repr(state.actors()).encode()
    yield "ray jobs", repr(state.jobs()).encode()


def _objects(bucket: Bucket) -> Iterator[tuple[str, bytes]]:
    for key in bucket.keys("out/"):
        answer = s3_client().get_object(Bucket=bucket.name, Key=key)
        content = answer["Body"].read()
        if content.startswith(b"PAR1"):
            content = repr(pq.read_table(io.BytesIO(content)).to_pylist()).encode()
        yield key, content + repr(answer["Metadata"]).encode()


@contextmanager
def by_blocks_alone(
    bucket: Bucket, store: S3Server, key_id: str, secret: str, token: str
) -> Iterator[tuple[dict[str, str], set[str]]]:
    """Blocks for both places of the bucket, whose store is not to be found otherwise inside.

    The arguments of a night, and by which key ids the store is asked meanwhile.
    """
    asked = {}
    for name, url in (("source", bucket.source), ("destination", bucket.destination)):
        block = S3Location(
            url=url,
            endpoint_url=store.endpoint,
            access_key_id=key_id,
            secret_access_key=SecretStr(secret),
            session_token=SecretStr(token),
        )
        saved = f"{bucket.name}-{name}"
        cast(Any, block).save(saved, _sync=True)
        asked[name] = f"s3-location/{saved}"
    used: set[str] = set()
    rule = store.proxy.on(key=bucket.name, before=lambda seen: used.add(_key_id(seen)))
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        try:
            yield asked, used
        finally:
            store.proxy.remove(rule)


def _key_id(seen: Seen) -> str:
    return seen.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
