"""Whole nights whose process is killed again and again until one comes to its end.

`python -m tests.soak --nights --minutes 30`: the command line's night of a small bucket, against
a Prefect server, a Ray and a store that goes wrong, is ended by SIGKILL at random times and
started again. Then everything must be there once: each output has one version in the store, the
ledger, the manifest and the lease are right, and no part of an upload is left.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.program import F, program, stage
from rayorch_prefect.storage import Ledger, RowOutcome, S3Location, read_manifest
from rayorch_prefect.storage.lease_file import LeaseRecord
from tests.binding.small_night import PART_BYTES, Child, Join, Split, long_content
from tests.soak.cycles import BUCKET, store_at
from tests.soak.services import ROOT, running_nodes, running_store

SOURCES = 24
# A night of its own time may be killed at any moment of it; more kills than these end no sooner.
FIRST_S = 20.0
MOST_KILLS = 6
END_S = 600.0
LONG = "long"


@program(version="1")
def killed(source: Any) -> Any:
    common: Any = {"rowwise": True, "num_cpus": 0.1}
    children = F.expand(stage(Split, **common)()(source), domain="child")
    texts = stage(Child, **common, batch_size=4)()(children)
    return stage(Join, **common)()(F.reduce(texts))


def names() -> dict[str, int]:
    """Each source's number of children."""
    return {LONG: 2, **{f"s{i}": i % 4 + 1 for i in range(SOURCES - 1)}}


def wanted() -> dict[str, bytes]:
    """The right outputs by the end of their keys."""
    texts = {
        f"{name}.json.txt": ",".join(f"{name}/{i}" for i in range(n)).encode()
        for name, n in names().items()
    }
    return {**texts, f"{LONG}.json.bin": long_content(LONG)}


@dataclass
class Nights:
    """One night after another, each with a prefix of its own; `faults` is what was wrong."""

    store: Any
    settings: dict[str, str]
    log: Path
    choose: random.Random
    took: float = FIRST_S
    killed: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])

    def run(self, seconds: float) -> list[str]:
        """Nights for so long, until a fault is found."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.faults:
            place = f"night{self.killed['nights']}/"
            self._put_sources(place)
            self._until_ended(place)
            if not self.faults:
                self.faults += Ended(self.store, place).faults()
            self.killed["nights"] += 1
            told = ", ".join(f"{count} {what}" for what, count in sorted(self.killed.items()))
            print(f"{told}; the last took {self.took:.0f} s", flush=True)
        return [f"{each} (log: {self.log.read_text()[-2000:]})" for each in self.faults]

    def _put_sources(self, place: str) -> None:
        for name, n in names().items():
            body = json.dumps({"name": name, "n": n}).encode()
            self.store.put_object(Bucket=BUCKET, Key=f"{place}in/{name}.json", Body=body)

    def _until_ended(self, place: str) -> None:
        for _ in range(self.choose.randint(1, MOST_KILLS)):
            if self._run(place, self.choose.uniform(0.1, 1.1) * self.took):
                return
            self.killed["kills"] += 1
        if not self.faults and not self._run(place, END_S):
            self.faults.append(f"{place}: it did not end within {END_S:.0f} s")

    def _run(self, place: str, most_s: float) -> bool:
        """Whether the night ended before it was killed."""
        begun = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command(place), cwd=ROOT, env=self.settings, stdout=log, stderr=log
            )
            try:
                status = process.wait(most_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return False
        self.took = time.monotonic() - begun
        if status:
            self.faults.append(f"{place}: exit status {status}")
        return True


def command(place: str) -> list[str]:
    run = [sys.executable, "-m", "rayorch_prefect.cli.main", "run"]
    run += ["--program", "tests.soak.nights:killed", "--source", f"s3://{BUCKET}/{place}in/"]
    return [*run, "--destination", f"s3://{BUCKET}/{place}out/", "--upload-tries", "8"]


@dataclass(frozen=True)
class Ended:
    """What lies in the store after a night."""

    store: Any
    place: str

    def faults(self) -> list[str]:
        """Everything that is not as it must be."""
        found = [*self._outputs(), *self._ledger(), *self._manifest(), *self._left_open()]
        return [f"{self.place}: {each}" for each in found]

    @property
    def _destination(self) -> S3Location:
        return S3Location(BUCKET, f"{self.place}out/")

    def _outputs(self) -> Iterator[str]:
        below = f"{self.place}out/{self.place}in/"  # the source's whole key
        versions: Counter[str] = Counter()
        pages = self.store.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=BUCKET, Prefix=below):
            versions.update(each["Key"].removeprefix(below) for each in page.get("Versions", []))
        twice = {key: count for key, count in versions.items() if count > 1}
        if twice:
            yield f"written more than once: {twice}"
        found = {key: self._get(f"{below}{key}") for key in versions}
        if found != wanted():
            odd = sorted(k for k in found.keys() | wanted() if found.get(k) != wanted().get(k))
            yield f"{len(odd)} outputs are not as they should be: {odd[:5]}"

    def _get(self, key: str) -> bytes:
        content: bytes = self.store.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def _ledger(self) -> Iterator[str]:
        entries = Ledger(self._destination, "killed", killed.plan.fingerprint).load().values()
        counted = Counter(entry.uri.rsplit("/")[-1] for entry in entries)
        if counted != Counter(f"{name}.json" for name in names()):
            yield f"the ledger has {counted}"
        if any(entry.outcome is not RowOutcome.PUBLISHED for entry in entries):
            yield f"the ledger has outcomes {Counter(entry.outcome for entry in entries)}"

    def _manifest(self) -> Iterator[str]:
        state = f"{self.place}out/_rayorch/killed/"
        lease = LeaseRecord.from_json(self._get(f"{state}lease.json"))
        if not lease.released:
            yield f"the lease of {lease.owner.run_id} was not released"
        rows = read_manifest(
            f"s3://{BUCKET}/{state}manifests/{lease.owner.run_id}/",
        ).to_pylist()
        counted = Counter(row["uri"].rsplit("/")[-1] for row in rows)
        if counted != Counter(f"{name}.json" for name in names()):
            yield f"the manifest has {counted}"
        if not {row["row_outcome"] for row in rows} <= {"published", "skipped"}:
            yield f"the manifest has outcomes {Counter(row['row_outcome'] for row in rows)}"

    def _left_open(self) -> Iterator[str]:
        answer = self.store.list_multipart_uploads(Bucket=BUCKET, Prefix=self.place)
        for each in answer.get("Uploads", []):
            yield f"an open upload: {each['Key']}"


def soak_nights(seconds: float, seed: int) -> list[str]:
    """Nights that are killed, for so long; everything that was not as it must be."""
    print(f"nights for {seconds:.0f} s, seed {seed}", flush=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sn")))
        endpoints = stack.enter_context(running_store(seed))
        _, address = stack.enter_context(running_nodes(place))
        server = stack.enter_context(PrefectServer(place / "prefect"))
        store = store_at(endpoints["store"])
        versions = {"Status": "Enabled"}
        store.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versions)
        settings = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PREFECT_API_URL": server.api_url,
            "RAY_ADDRESS": address,
            "RAYORCH_PREFECT_PART_BYTES": str(PART_BYTES),
        }
        return Nights(store, settings, place / "log", random.Random(seed)).run(seconds)
