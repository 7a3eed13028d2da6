"""`rayorch-prefect doctor`: what is there, what is not, and no secret."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from rayorch_prefect.binding.prefect_server import using_api
from rayorch_prefect.cli.checks import (
    Finding,
    Mark,
    clock,
    looked,
    memory,
    shared_memory,
    store,
    versions,
)
from rayorch_prefect.cli.main import main
from rayorch_prefect.execution.cluster_look import look_at_cluster
from rayorch_prefect.execution.machine import Machine
from rayorch_prefect.storage import S3Location, StoreFeatures
from rayorch_prefect.storage.clock_skew import clock_skew
from tests.services import Bucket, S3Server

GIB = 1024**3


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a cluster nor a Prefect API is named."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("rayorch_prefect.cli.checks.prefect_api", lambda: Finding("p", Mark.OK, ""))


def marks(out: str) -> dict[str, str]:
    return {each["check"]: each["mark"] for each in json.loads(out)["checks"]}


@pytest.mark.usefixtures("nowhere")
def test_all_is_well(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--destination", bucket.destination]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[3:]] == ["ray", "p", "settings", "store", "clock"]
    assert "RAY_ADDRESS is not set" in lines[3]
    assert "may list, read and write; store http://127.0.0.1" in lines[6]
    assert lines[7].startswith("ok       clock")
    assert bucket.keys() == []


@pytest.mark.usefixtures("nowhere")
def test_without_a_destination_no_store_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = marks(capsys.readouterr().out)
    assert list(found) == ["versions", "memory", "/dev/shm", "ray", "p", "settings", "store"]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("upload_workers", "many", "settings"),
        ("failure_policy", "5pct", "settings"),
        ("ray_address", "127.0.0.1:1", "ray"),
    ],
)
def test_a_setting_that_a_night_would_refuse_is_a_problem(
    name: str,
    value: str,
    check: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"PREFECT_INTEGRATIONS_RAYORCH_{name.upper()}", value)
    monkeypatch.setenv("PREFECT_INTEGRATIONS_RAYORCH_NO_SUCH_NAME", "1")
    assert main(["doctor", "--json"]) == 1
    found = marks(capsys.readouterr().out)
    assert [each for each, mark in found.items() if mark == "problem"] == [check]


def test_what_does_not_answer_is_a_problem(
    bucket: Bucket,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refused = s3_server.refusing("PUT", f"/{bucket.name}", (403, "AccessDenied"))
    with using_api("http://user:hidden@127.0.0.1:1/api"), refused:
        assert main(["doctor", "--json", "--destination", bucket.destination]) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    found = {each["check"]: each["said"] for each in told["checks"] if each["mark"] == "problem"}
    assert list(found) == ["ray", "prefect", "store"]
    assert not told["ok"]
    assert "no Ray cluster answers at 127.0.0.1:1" in found["ray"]
    assert "no Prefect API answers at http://***@" in found["prefect"]
    assert "ask for s3:ListBucket" in found["store"]
    assert "hidden" not in shown.out + shown.err


def test_a_ray_client_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert main(["doctor"]) == 1
    assert "problem  ray       ray://head:10001 is a Ray client address" in capsys.readouterr().out


@pytest.mark.slow
def test_a_cluster_is_looked_at(ray_cluster: str) -> None:
    found = look_at_cluster(ray_cluster)
    assert (found.nodes, found.cpus, found.gpus) == (1, 4, 0)
    assert found.object_store > 0


def test_a_package_that_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions().mark is Mark.OK
    missing = versions(["prefect", "no-such-package"])
    assert (missing.mark, "no-such-package missing" in missing.said) == (Mark.PROBLEM, True)
    monkeypatch.setattr(
        "rayorch_prefect.cli.checks.requires", lambda _: ["prefect>=3.9", "ray>=999.1"]
    )
    assert versions(["prefect"]).mark is Mark.OK
    assert versions(["prefect", "ray"]).mark is Mark.PROBLEM


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(10 * GIB, 8 * GIB, 5 * GIB, 4 * GIB), (Mark.OK, Mark.OK)),
        (Machine(10 * GIB, 1 * GIB, 5 * GIB, 4 * GIB), (Mark.WARNING, Mark.OK)),
        (Machine(10 * GIB, 8 * GIB, 5 * GIB, 2 * GIB), (Mark.OK, Mark.WARNING)),
    ],
)
def test_memory(machine: Machine, expected: tuple[Mark, Mark]) -> None:
    assert (memory(machine).mark, shared_memory(machine).mark) == expected


def test_this_machine_has_memory() -> None:
    found = Machine.this()
    assert 0 < found.memory_free <= found.memory
    assert 0 < found.shared_free <= found.shared


@pytest.mark.parametrize(
    ("skew", "mark"),
    [
        (0.4, Mark.OK),
        (-40.0, Mark.WARNING),
        (1000.0, Mark.PROBLEM),
        (None, Mark.WARNING),
    ],
)
def test_clocks(skew: float | None, mark: Mark) -> None:
    assert clock(skew).mark is mark


def test_the_stores_clock_is_told_by_refusals_too(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of that module alone: the store's own clock is in this process, too.
    ahead = SimpleNamespace(time=lambda: time.time() + 500)
    monkeypatch.setattr("rayorch_prefect.storage.clock_skew.time", ahead)
    for name in (bucket.name, f"no-{bucket.name}"):
        skew = clock_skew(S3Location(name))
        assert skew is not None
        assert skew == pytest.approx(500, abs=30)


@pytest.mark.parametrize(
    ("conditional", "left", "to_do"),
    [(True, "", ""), (False, "", "one Prefect server"), (True, "5 stay", "s3:DeleteObject")],
)
def test_stores(conditional: bool, left: str, to_do: str) -> None:
    features = StoreFeatures("http://s", conditional, True, True, True, True, True, left)
    found = store(features)
    assert found.mark is (Mark.WARNING if to_do else Mark.OK)
    assert to_do in found.to_do


def test_no_check_ends_the_others() -> None:
    def broken() -> Finding:
        raise ValueError("so it is")

    assert looked("x", broken) == Finding("x", Mark.PROBLEM, "ValueError: so it is")
