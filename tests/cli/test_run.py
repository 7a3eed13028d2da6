"""`rayorch-prefect run` as a user starts it: a process of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from rayorch_prefect.binding.listeners import ParentEnd
from rayorch_prefect.binding.prefect_server import PrefectServer
from tests.services import Bucket, S3Server, on_moto

ROOT = Path(__file__).parents[2]


def started(
    bucket: Bucket,
    environment: dict[str, str],
    *more: str,
    stdout: int = subprocess.PIPE,
    module: str = "rayorch_prefect.cli.main",
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, "run"]
    command += ["--program", "tests.binding.programs:joined"]
    command += ["--source", bucket.source, "--destination", bucket.destination, *more]
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**kept, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_with_a_server_of_its_own(bucket: Bucket, ray_cluster: str, tmp_path: Path) -> None:
    bucket.put_sources(a={"n": 3}, b={"n": 3}, c={"n": 3})
    home = {"PREFECT_HOME": str(tmp_path), "RAY_ADDRESS": ray_cluster}

    running = started(bucket, home, "--microbatch-size", "2")
    out, errors = running.communicate(timeout=200)

    assert running.returncode == 0, errors
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) == 2)
    assert (lines["sources"], lines["published"], lines["failed"]) == ("3", "3", "0")
    assert lines["manifest"].startswith(f"{bucket.destination}_rayorch/joined/manifests/")
    assert lines["report"] == lines["manifest"] + "report.html"
    assert lines["outputs"] == bucket.destination
    assert "not all task runs" not in out
    assert out.splitlines()[-1].startswith("Completed: 3 sources: 3 published")
    # The server is gone, and its record holds the ends of all task runs.
    pages = [line.split() for line in out.splitlines() if line.startswith("Prefect UI")]
    assert not _listens(pages[0][2])
    again = "http://127.0.0.1:4200/runs/flow-run/"
    assert "the local server ends now; to look again: prefect server start, then" in out
    night = pages[1][-1].removeprefix(again)
    with PrefectServer(tmp_path) as server:
        body = {"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        runs = httpx.post(f"{server.api_url}/task_runs/filter", json=body, trust_env=False).json()
        seen = httpx.get(f"{server.api_url}/flow_runs/{night}", trust_env=False)
    assert sum(run["name"].startswith("upload in/") for run in runs) == 3
    assert seen.json()["state_name"] == "Completed"


JOB = """
    import os
    from rayorch_prefect import program, stage

    class Where:
        def __call__(self, sources):
            said = os.environ.get("RAYORCH_TEST_SAID", "nothing")
            return [f"{said} in {__file__}".encode() for _ in sources]

    @program
    def where(source):
        return stage(Where)()(source)
"""


def test_a_users_own_module_reaches_the_workers(
    bucket: Bucket, ray_cluster: str, prefect_server: PrefectServer, tmp_path: Path
) -> None:
    bucket.put_sources(a={"n": 1})
    (tmp_path / "job_of_mine.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "env.json").write_text('{"env_vars": {"RAYORCH_TEST_SAID": "hello"}}')
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}

    mine = ["--program", "job_of_mine:where", "--working-dir", str(tmp_path)]
    running = started(bucket, api, *mine, "--runtime-env", str(tmp_path / "env.json"))
    out, errors = running.communicate(timeout=200)

    assert running.returncode == 0, out + errors
    (key,) = [key for key in bucket.keys("out/") if "_rayorch" not in key]
    said = bucket.get(key).decode()
    # The copy that Ray brought, not the folder itself.
    assert re.fullmatch(r"hello in .*/working_dir_files/.*/job_of_mine\.py", said), said


def test_a_failed_run_has_status_1_and_says_what_to_do(
    bucket: Bucket, ray_cluster: str, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(a={"n": 2}, b={"n": 2, "spoilt": 1})
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    hook = ("--hook", f"on_parent_failed={__name__}:says")

    running = started(bucket, api, "--json", *hook)
    out, errors = running.communicate(timeout=200)

    assert running.returncode == 1, errors
    last = errors.splitlines()[-1]
    assert last.startswith("GroupFailure: 2 sources: 1 published, 1 failed")
    assert last.endswith("--retry-failed")
    assert errors.count("said by the hook: in/b.json") == 2
    # Standard output has the one object alone.
    told = json.loads(out)
    assert f"{told['state']}: {told['message']}" == last
    names = ("exit_status", "sources", "published", "failed", "dropped", "not_processed")
    assert [told[name] for name in names] == [1, 2, 1, 1, 0, 0]
    assert told["failed_by_kind"] == {"GroupFailure": 1}
    assert told["failed_by_type"] == {"Spoilt": 1}
    assert "in/b.json: GroupFailure[Spoilt]" in told["first_causes"][0]
    assert told["next"]["command"].endswith(f" {' '.join(hook)} --retry-failed")
    assert told["report"] == told["manifest"] + "report.html"
    assert told["prefect_ui"].endswith(f"/runs/flow-run/{told['night']}")


def says(end: ParentEnd) -> None:
    """A hook that writes to standard output, in Python and past it."""
    print(f"said by the hook: {end.key}", flush=True)
    os.write(1, f"said by the hook: {end.key}\n".encode())


def test_what_ends_a_run_early_is_one_line(
    bucket: Bucket, ray_cluster: str, s3_server: S3Server, prefect_server: PrefectServer
) -> None:
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    nothing = f"s3://{bucket.name}/nothing/"
    bucket.put_sources(a={"n": 1})

    def to(place: str) -> list[str]:
        return ["--destination", f"s3://{bucket.name}/{place}/"]

    # All at once, each with a place of its own: most of their time is Python's start.
    with s3_server.refusing("PUT", f"/{bucket.name}/unwritten/_rayorch/joined/manifests/"):
        empty = started(bucket, api, *to("empty"), "--source", nothing, "--json")
        unknown = started(bucket, api, *to("unknown"), "--only", "a.json")
        lost = started(bucket, {**api, "RAY_ADDRESS": "127.0.0.1:1"}, *to("lost"))
        unwritten = started(bucket, api, *to("unwritten"))
        told_of_empty, of_empty = empty.communicate(timeout=200)
        _, of_unknown = unknown.communicate(timeout=200)
        out, _ = lost.communicate(timeout=200)
        counted, of_unwritten = unwritten.communicate(timeout=200)

    assert unwritten.returncode == 1
    # Ray has a line of its own before.
    assert of_unwritten.splitlines()[-1].startswith("rayorch-prefect run: could not write")
    assert "Traceback" not in of_unwritten
    assert re.search(r"^published +1$", counted, re.MULTILINE)
    assert (empty.returncode, unknown.returncode, lost.returncode) == (2, 2, 1)
    assert of_empty.startswith(f"rayorch-prefect run: no object under {nothing}")
    assert of_unknown.startswith("rayorch-prefect run: only: no source 'a.json'")
    assert (of_empty.count("\n"), of_unknown.count("\n")) == (1, 1)
    ended = json.loads(told_of_empty)
    assert [ended[name] for name in ("state", "exit_status", "sources")] == ["NoSources", 2, 0]
    assert (ended["manifest"], ended["next"]) == (None, None)
    assert "ClusterError: no Ray cluster answers at 127.0.0.1:1" in out.splitlines()[-1]
    assert "1 not processed" in out.splitlines()[-1]


@pytest.mark.slow
def test_a_terminal_gets_a_live_display(
    bucket: Bucket, ray_cluster: str, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 4, "sleep": 0.5} for i in range(6)}, t={"fail": "Torn"})
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 160))

    running = started(bucket, {**api, "TERM": "xterm"}, "--failure-policy", "1", stdout=theirs)
    os.close(theirs)
    shown = _all_of(ours)
    _, errors = running.communicate(timeout=60)

    assert running.returncode == 0, errors
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for word in (r"Work \(child\) +\d+ +\d+", r"\d of 7 sources", r"[1-6] published", "1 failed"):
        assert re.search(word, frames), word
    assert re.search(r"\d\.\d uploads/s", frames)
    assert re.search(r"time left \d:\d\d:\d\d", frames)
    assert "PartiallyCompleted: 7 sources: 6 published, 1 failed" in frames


def _all_of(terminal: int) -> str:
    """What is written to the terminal until its last writer has ended."""
    found = b""
    with suppress(OSError), closing(os.fdopen(terminal, "rb", buffering=0)) as stream:
        while part := stream.read(65536):
            found += part
    return found.decode()


def well_begun(bucket: Bucket, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """A run that has published its first source, and is not done for seconds."""
    bucket.put_sources(**{f"s{index}": {"n": 4, "sleep": 0.5} for index in range(12)})
    running = started(bucket, environment, "--microbatch-size", "2", *more)
    while not bucket.keys("out/in/"):
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    return running


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [
        (signal.SIGTERM, 143, "by SIGTERM"),
        pytest.param(signal.SIGINT, 130, "by Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_run_as_cancelled(
    bucket: Bucket,
    ray_cluster: str,
    prefect_server: PrefectServer,
    number: signal.Signals,
    status: int,
    reason: str,
) -> None:
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    running = well_begun(bucket, api)

    running.send_signal(number)
    asked = time.monotonic()
    out, errors = running.communicate(timeout=60)

    assert running.returncode == status, out + errors
    assert time.monotonic() - asked < 25  # the process is gone too, with what it had to send
    assert out.splitlines()[-1].startswith(f"Cancelled: {reason}. 12 sources: "), out + errors
    page = next(word for word in out.split() if "/flow-run" in word)
    run = httpx.get(
        f"{prefect_server.api_url}/flow_runs/{page.rsplit('/', 1)[-1]}", trust_env=False
    )
    assert run.json()["state_name"] == "Cancelled"
    left = bucket.keys("out/")
    time.sleep(3)
    assert bucket.keys("out/") == left


@pytest.mark.slow
@on_moto
def test_a_terminated_run_is_one_object_too(
    bucket: Bucket, ray_cluster: str, prefect_server: PrefectServer
) -> None:
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    running = well_begun(bucket, api, "--json")

    running.terminate()
    out, errors = running.communicate(timeout=60)

    assert running.returncode == 143, out + errors
    told = json.loads(out)
    assert (told["state"], told["exit_status"]) == ("Cancelled", 143)
    assert told["message"].startswith("by SIGTERM. 12 sources: ")
    assert errors.splitlines()[-1] == f"Cancelled: {told['message']}"
    assert told["published"] >= 1
    assert told["published"] + told["not_processed"] == told["sources"] == 12
    reasons = told["not_processed_because"]
    assert all(reason.startswith("cancelled: by SIGTERM") for reason in reasons)
    assert told["next"]["command"].startswith("rayorch-prefect run ")


@on_moto
def test_nothing_that_a_late_hook_prints_comes_beside_the_object(
    bucket: Bucket, ray_cluster: str, prefect_server: PrefectServer
) -> None:
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    hook = "on_parent_published=tests.cli.chatting:tell_slowly"
    running = well_begun(bucket, api, "--json", "--hook", hook)

    running.terminate()
    out, errors = running.communicate(timeout=60)

    assert json.loads(out)["state"] == "Cancelled"
    assert "told" in errors


@pytest.mark.slow
@on_moto
def test_sigterm_at_the_moment_that_ray_takes_it(
    bucket: Bucket, s3_server: S3Server, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(**{f"s{index}": {"n": 4, "sleep": 0.5} for index in range(4)})
    api = {"PREFECT_API_URL": prefect_server.api_url}  # a Ray of its own

    running = started(bucket, api, module="tests.cli.stolen")
    out, errors = running.communicate(timeout=120)

    assert "sent" in errors
    assert running.returncode == 143, out + errors
    assert out.splitlines()[-1].startswith("Cancelled: by SIGTERM. 4 sources: "), out


def _listens(address: str) -> bool:
    try:
        httpx.get(address, trust_env=False, timeout=2)
    except httpx.HTTPError:
        return False
    return True


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_of_its_own(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_sources(**{f"s{index}": {"n": 4, "sleep": 1.0} for index in range(4)})
    alone = {"PREFECT_HOME": str(tmp_path)}
    running = started(bucket, alone)
    try:
        while not bucket.keys("out/in/"):
            assert running.poll() is None, running.communicate()
            time.sleep(0.2)
        begun = psutil.Process(running.pid).children(recursive=True)
    finally:
        running.kill()
        running.communicate()

    assert len(begun) > 5  # the Prefect server, Ray's own processes and its workers
    end = time.monotonic() + 40
    while left := [each for each in begun if lives(each)]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


# Once their node has died, these try for a minute to tell a server that died with it.
RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def lives(process: psutil.Process) -> bool:
    try:
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not ended and not process.name().startswith(RAYS_AGENTS)
    except psutil.NoSuchProcess:
        return False
