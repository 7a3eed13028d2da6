"""A slice of three sources, one of them with a long output, and what is right after its night."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.storage import Ledger, LedgerEntry, RowOutcome, S3Location, read_manifest
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.lease_file import LeaseRecord
from tests.binding.small_night import long_content
from tests.services import Bucket

NAMES = {"a": 1, "b": 3, "long": 2}


def wanted() -> dict[str, bytes]:
    """The right outputs by the end of their keys."""
    texts = {
        f"{name}.json.txt": ",".join(f"{name}/{i}" for i in range(n)).encode()
        for name, n in NAMES.items()
    }
    return {**texts, "long.json.bin": long_content("long")}


class Slice:
    """One destination in the bucket, and what lies there."""

    def __init__(self, bucket: Bucket, name: str, program: str, fingerprint: str) -> None:
        self.bucket = bucket
        self.destination = f"s3://{bucket.name}/{name}/"
        self._program = program
        self._prefix = f"{name}/"
        self._fingerprint = fingerprint

    def whole(self) -> set[str]:
        """The sources whose outputs are all there."""
        keys = set(self.bucket.keys(f"{self._prefix}in/"))
        ends = {"long": (".json.txt", ".json.bin")}
        return {
            name
            for name in NAMES
            if all(f"{self._prefix}in/{name}{end}" in keys for end in ends.get(name, [".json.txt"]))
        }

    def check(self, manifest: str, run_id: str) -> None:
        """Everything is right after a whole run with this id."""
        assert self.check_outputs() == wanted().keys()
        self._check_ledger()
        rows = read_manifest(manifest).to_pylist()
        assert sorted(row["uri"].rsplit("/")[-1] for row in rows) == [f"{n}.json" for n in NAMES]
        assert {row["row_outcome"] for row in rows} <= {"published", "skipped"}
        assert self.open_uploads() == []
        record = self.lease()
        assert (record.owner.run_id, record.released) == (run_id, True)

    def check_outputs(self) -> set[str]:
        """The ends of the keys that are there; all hold what they should."""
        right = wanted()
        ends = {
            key.removeprefix(f"{self._prefix}in/"): key
            for key in self.bucket.keys(self._prefix)
            if not key.startswith(f"{self._prefix}_rayorch/")
        }
        for end, key in ends.items():
            assert self.bucket.get(key) == right.get(end), f"{key} holds something else"
        return set(ends)

    def _check_ledger(self) -> None:
        location = S3Location.parse(self.destination)
        entries = list(Ledger(location, self._program, self._fingerprint).load().values())
        assert sorted(entry.uri.rsplit("/")[-1] for entry in entries) == [
            f"{n}.json" for n in NAMES
        ]
        for entry in entries:
            self._check_entry(entry)

    def _check_entry(self, entry: LedgerEntry) -> None:
        assert entry.outcome is RowOutcome.PUBLISHED
        assert entry.artifacts
        for artifact in entry.artifacts:
            head = s3_client().head_object(Bucket=self.bucket.name, Key=artifact.key)
            found = (head["ContentLength"], head["ETag"].strip('"'))
            assert found == (artifact.size, artifact.etag)

    def open_uploads(self) -> list[Any]:
        answer = s3_client().list_multipart_uploads(Bucket=self.bucket.name)
        return list(answer.get("Uploads", []))

    def lease(self) -> LeaseRecord:
        return LeaseRecord.from_json(
            self.bucket.get(f"{self._prefix}_rayorch/{self._program}/lease.json")
        )
