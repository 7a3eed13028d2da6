"""Workers and uploaders of the documents program that are killed in mid-batch, one or two at once.

Each test sees the process at work before it ends it; then every document is published once with
the bytes of a run that nobody disturbed, and little was done twice.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.schemas.objects import State

from rayorch_prefect import Program, run_local
from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.binding.summaries import NightSummary
from rayorch_prefect.flows.nightly import run_night
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.encoding import encode
from rayorch_prefect.storage.terms import PART_BYTES_SETTING
from rayorch_prefect.workloads.samples import pdf_bytes, scanned_pdf
from tests.fault_proxy import Rule
from tests.handed.conftest import Told
from tests.kills.watched import BATCH, Watch, watched
from tests.services import Bucket, S3Server, on_moto

pytestmark = pytest.mark.slow

PAGES = {"a": 4, "b": 6, "c": 5, "d": 4}
# Rows of the batch that runs and of the one that waits: all sent again, half computed again.
AT_WORKER = 2 * BATCH
PART = 5 * 1024**2
# A busy machine takes its time to start workers.
START_SECONDS = 120.0


@dataclass
class Killed:
    """A night that went on although processes of it were killed."""

    bucket: Bucket
    watch: Watch
    told: Told
    night: Night
    summary: NightSummary

    def assert_whole(self, undisturbed: Program) -> None:
        """Each source published once: the bytes, the ledger, the manifest, the task runs."""
        keys = sorted(source.key for source in self.night.sources)
        assert self.told.state == ("COMPLETED", "Completed")
        assert self._found() == self._expected(undisturbed)
        assert sorted(row["uri"] for row in self.told.rows) == sorted(
            source.uri for source in self.night.sources
        )
        assert {row["row_outcome"] for row in self.told.rows} == {"published"}
        assert {entry.outcome.value for entry in self.night.shelf.entries().values()} == {
            "published"
        }
        assert self.told.uploads == [(key, "Completed") for key in keys]

    def _found(self) -> dict[str, bytes]:
        return {key: self.bucket.get(key) for key in self.bucket.keys("out/in/")}

    def _expected(self, undisturbed: Program) -> dict[str, bytes]:
        return {
            f"out/{parent.row.key}{suffix}": content
            for parent in run_local(undisturbed, self.night.sources)
            for suffix, content, _ in encode(parent.value())
        }


@dataclass
class Nights:
    """Runs a night beside a function that kills."""

    bucket: Bucket
    server: PrefectServer
    watch: Watch

    async def run(self, watch: Watch, kill: Any, padding: int = 0) -> Killed:
        numbers: list[NightSummary] = []

        @flow(name="killed")
        async def killed() -> State[Any]:
            state, summary = await run_night(
                watched(watch, padding), self.bucket.source, self.bucket.destination
            )
            numbers.append(summary)
            return state

        with watching() as nights:
            await asyncio.gather(flow_state(killed), asyncio.to_thread(kill))
        (night,) = nights
        assert wait_until_recorded(self.server, night)
        told = Told(self.server, night.id, night.manifest)
        found = Killed(self.bucket, watch, told, night, numbers[0])
        found.assert_whole(watched(Watch(watch.path.with_suffix(".local")), padding))
        return found


@pytest.fixture
def nights(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, tmp_path: Path
) -> Nights:
    for name, pages in PAGES.items():
        # Those of d have no text: they are rendered, and are blank.
        texts = [f"Page {n} of {name}" if name != "d" else "" for n in range(1, pages + 1)]
        bucket.put(f"in/{name}.pdf", pdf_bytes(texts))
    return Nights(bucket, prefect_server, Watch(tmp_path / "log"))


def holding(server: S3Server, bucket: Bucket, key: str) -> Rule:
    """Holds back the first write of this object."""
    target = re.escape(f"/{bucket.name}/{key}")
    return server.proxy.on("PUT", f"^{target}([?]|$)", times=1, hold="request")


@on_moto
async def test_a_reader_and_an_uploader_at_once(nights: Nights, s3_server: S3Server) -> None:
    rule = holding(s3_server, nights.bucket, "out/in/a.pdf.json")
    watch = nights.watch.holding("read in/b.pdf/3")

    def kill() -> None:
        rule.wait(seconds=START_SECONDS)
        watch.kill("read in/b.pdf/3", "upload in/a.pdf")
        s3_server.proxy.remove(rule)

    night = await nights.run(watch, kill)

    assert watch.begun["read in/b.pdf/3"] == 2
    assert watch.begun["upload in/a.pdf"] == 2
    assert 1 <= watch.again("read") <= BATCH
    assert watch.again("upload") == 1
    assert watch.again("scan") == 0
    assert night.summary.workers_lost == 2
    assert watch.again("read") <= night.summary.rows_again <= AT_WORKER
    assert night.summary.uploads_again == 1


@on_moto
async def test_a_renderer(nights: Nights) -> None:
    held = "scan in/d.pdf/2"
    watch = nights.watch.holding(held)
    night = await nights.run(watch, lambda: watch.kill(held))
    assert watch.begun[held] == 2
    assert 1 <= watch.again("scan") <= BATCH
    assert watch.again("scan") <= night.summary.rows_again <= AT_WORKER
    assert watch.again("read") == watch.again("upload") == 0
    assert (night.summary.workers_lost, night.summary.uploads_again) == (1, 0)


@on_moto
async def test_an_uploader_between_two_artifacts(nights: Nights, s3_server: S3Server) -> None:
    rule = holding(s3_server, nights.bucket, "out/in/c.pdf.json")

    def kill() -> None:
        rule.wait(seconds=START_SECONDS)
        nights.watch.kill("upload in/c.pdf")
        s3_server.proxy.remove(rule)

    night = await nights.run(nights.watch, kill)
    assert Counter(nights.watch.begun[f"upload in/{name}.pdf"] for name in PAGES) == {1: 3, 2: 1}
    assert (night.summary.rows_again, night.summary.uploads_again) == (0, 1)
    assert night.summary.workers_lost == 1


@on_moto
async def test_two_workers_of_one_stage_at_once(nights: Nights) -> None:
    held = ("read in/b.pdf/1", "read in/c.pdf/3")
    watch = nights.watch.holding(*held)
    night = await nights.run(watch, lambda: watch.kill(*held))
    assert [watch.begun[each] for each in held] == [2, 2]
    assert 2 <= watch.again("read") <= 2 * BATCH
    assert watch.again("read") <= night.summary.rows_again <= 2 * AT_WORKER
    assert night.summary.workers_lost == 2


@on_moto
async def test_a_worker_that_reads_a_scan(nights: Nights) -> None:
    nights.bucket.put("in/scan.pdf", scanned_pdf(["Shelf 14 holds 230 brass fittings."]))
    # Not held: it loads its models for a second or more, and is killed while it does.
    night = await nights.run(nights.watch, lambda: nights.watch.kill("scan in/scan.pdf/0"))
    assert nights.watch.begun["scan in/scan.pdf/0"] == 2
    assert 1 <= nights.watch.again("scan") <= BATCH
    assert nights.watch.again("scan") <= night.summary.rows_again <= AT_WORKER
    assert night.summary.workers_lost == 1
    assert b"brass fittings" in nights.bucket.get("out/in/scan.pdf.md")


@on_moto
async def test_an_uploader_in_the_second_part(
    nights: Nights, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PART_BYTES_SETTING, str(PART))
    key = "out/in/c.pdf.bin"
    rule = s3_server.proxy.on(
        "PUT", f"/{nights.bucket.name}/{key}.*partNumber=2", times=1, hold="request"
    )

    def kill() -> None:
        rule.wait(seconds=START_SECONDS)
        assert key in open_uploads(nights.bucket)  # others may be under way
        nights.watch.kill("upload in/c.pdf")
        s3_server.proxy.remove(rule)

    night = await nights.run(nights.watch, kill, padding=PART // 4)
    assert nights.watch.begun["upload in/c.pdf"] == 2
    assert night.summary.uploads_again == 1
    assert open_uploads(nights.bucket) == []
    assert nights.bucket.keys(night.night.shelf.open_uploads.prefix) == []


def open_uploads(bucket: Bucket) -> list[str]:
    answer = s3_client().list_multipart_uploads(Bucket=bucket.name)
    return [each.get("Key", "") for each in answer.get("Uploads", [])]
