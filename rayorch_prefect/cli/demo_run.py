"""The demo itself: services up, samples in, the night, what became of it, services down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import httpx
from moto.server import ThreadedMotoServer
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer, ServerNotStarted, using_api
from rayorch_prefect.binding.progress import progress_line, repeated
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.cli.demo_check import differences, read_ends, strays
from rayorch_prefect.errors import RayorchError
from rayorch_prefect.execution.private_ray import private_ray
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import S3Location, read_manifest
from rayorch_prefect.storage.seeding import copy_to_folder, seed
from rayorch_prefect.workloads.samples import SampleSet, make_samples

PROGRAM = "rayorch_prefect.workloads.documents:documents"
SOURCE = S3Location("demo", "in/")
DESTINATION = S3Location("demo", "out/")
MICROBATCH_SIZE = 16
PROGRESS_SECONDS = 1.0
KEPT_SECONDS = 0.5
SHOWN_DIFFERENCES = 20

_SERVER_TRIES = 3
_OBJECT_STORE_BYTES = 300 * 1024**2
# The workload's pools need no more; a machine with one core gets them as logical CPUs too.
_LEAST_CPUS = 2


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo whose services are up."""

    folder: Path
    samples: SampleSet
    server: PrefectServer
    say: Callable[[str], None]


def run_demo(folder: Path, keep: bool, terminal: TextIO) -> int:
    """Run it in `folder`, with lines to `terminal`; the exit status.

    Raises RayorchError if a service does not start or the night cannot; KeyboardInterrupt once
    everything is down.
    """
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=terminal, flush=True)

    services = ExitStack()
    try:
        demo = _started(services, folder, say)
        found = _night_and_its_end(demo, keep, terminal)
        if keep:
            _wait_for_ctrl_c(demo, terminal)
    except TerminationSignal:
        # Prefect's own handler raises it while a flow runs.
        raise KeyboardInterrupt from None
    finally:
        with _undisturbed():
            services.close()
    return 1 if found else 0


def _started(services: ExitStack, folder: Path, say: Callable[[str], None]) -> Demo:
    samples = make_samples()
    say(f"made {len(samples)} sample files, {len(samples.failures)} of them bad on purpose")
    endpoint = services.enter_context(_s3_server())
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    seed(SOURCE, {sample.name: sample.data for sample in samples}, "application/pdf")
    say(f"S3 server at {endpoint}, the samples are under {SOURCE}")
    server = _prefect_server(services, folder / "prefect")
    services.enter_context(using_api(server.api_url))
    say(f"Prefect server at {server.address}")
    cpus = max(_LEAST_CPUS, os.cpu_count() or 1)
    services.enter_context(private_ray(cpus, _OBJECT_STORE_BYTES))
    say(f"local Ray with {cpus} logical CPUs")
    return Demo(folder, samples, server, say)


@contextmanager
def _s3_server() -> Iterator[str]:
    # Port 0: the system chooses, so that no other demo can take it in between.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _prefect_server(services: ExitStack, home: Path) -> PrefectServer:
    """A server; another process may take its free port first, so it is tried again."""
    for _ in range(_SERVER_TRIES - 1):
        try:
            return services.enter_context(PrefectServer(home))
        except ServerNotStarted:
            continue
    return services.enter_context(PrefectServer(home))


def _night_and_its_end(demo: Demo, keep: bool, terminal: TextIO) -> list[str]:
    """Run the night, show and store its numbers; what differs from what should have been."""
    state, night = asyncio.run(_night(demo))
    if state.is_cancelled():
        raise KeyboardInterrupt
    demo.say(f"{state.name}: the night is over, reading back what it left")
    recorded = wait_until_recorded(demo.server, night)
    out = demo.folder / "out"
    copy_to_folder(DESTINATION, out)
    rows = read_manifest(night.manifest).to_pylist()
    ends = read_ends(rows, str(SOURCE), out)
    found = [*differences(demo.samples, ends), *strays(ends, out)]
    if not state.is_completed():
        found.append(f"the night ended as {state.name}: {state.message}")
    summary = _summary(demo, night, state)
    if not recorded or summary["upload_task_runs"] != night.uploads:
        found.append(
            f"the Prefect API shows {summary['upload_task_runs']} upload task runs, "
            f"{night.uploads} were started"
        )
    (demo.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    _print_end(_table(demo.folder, summary, keep), found, terminal)
    return found


async def _night(demo: Demo) -> tuple[State[Any], Night]:
    said = ""

    def progress() -> None:
        nonlocal said
        line = progress_line(nights[-1]) if nights else ""
        if line != said:
            demo.say(line)
            said = line

    with watching() as nights:
        async with repeated(progress, PROGRESS_SECONDS):
            state = await flow_state(
                nightly,
                PROGRAM,
                str(SOURCE),
                str(DESTINATION),
                microbatch_size=MICROBATCH_SIZE,
                failure_policy=len(demo.samples.failures),
            )
    if not nights:
        raise RayorchError(f"the nightly flow ended as {state.name}: {state.message}")
    progress()
    return state, nights[-1]


def _summary(demo: Demo, night: Night, state: State[Any]) -> dict[str, Any]:
    numbers = night.summary()
    children = {"flow_runs": {"parent_flow_run_id": {"any_": [night.id]}}}
    itself = {"flow_runs": {"id": {"any_": [night.id]}}}
    uploads = {**children, "task_runs": {"name": {"like_": "upload "}}}
    return {
        "sources": numbers.sources,
        "published": numbers.published,
        "failed": numbers.failed,
        "pages": numbers.children,
        "flow_runs": _count(demo, "flow_runs", itself) + _count(demo, "flow_runs", children),
        "upload_task_runs": _count(demo, "task_runs", uploads),
        "first_upload_s": _rounded(numbers.first_upload_s),
        "wall_s": _rounded(numbers.wall_s),
        "manifest": numbers.manifest,
        "state": state.name,
        "calls": [asdict(call) for call in numbers.calls],
        "outputs": str(demo.folder / "out"),
        "flow_run": demo.server.flow_run_page(night.id),
    }


def _count(demo: Demo, what: str, body: dict[str, Any]) -> int:
    answer = httpx.post(f"{demo.server.api_url}/{what}/count", json=body, trust_env=False)
    answer.raise_for_status()
    return int(answer.json())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _print_end(table: list[str], found: list[str], terminal: TextIO) -> None:
    for line in ("", *table, ""):
        print(line, file=terminal)
    shown = found[:SHOWN_DIFFERENCES]
    for line in shown:
        print(f"not as it should be: {line}", file=terminal)
    if len(found) > len(shown):
        print(f"and {len(found) - len(shown)} more", file=terminal)
    if not found:
        print("Every source ended as it should.", file=terminal)
    terminal.flush()


def _table(folder: Path, summary: dict[str, Any], keep: bool) -> list[str]:
    first = summary["first_upload_s"]
    manifest = summary["manifest"].removeprefix(str(DESTINATION))
    cells: list[tuple[str, object]] = [
        ("sources", summary["sources"]),
        ("published", f"{summary['published']} documents, {summary['pages']} pages"),
        ("failed", sum(summary["failed"].values())),
        *((f"  {name}", count) for name, count in sorted(summary["failed"].items())),
        ("flow runs", f"{summary['flow_runs']}, upload task runs {summary['upload_task_runs']}"),
        ("first upload", "none" if first is None else f"{first:.1f} s after the start"),
        ("wall", f"{summary['wall_s']:.1f} s"),
        ("outputs", folder / "out"),
        ("manifest", folder / "out" / manifest),
        ("summary", folder / "summary.json"),
        ("log", folder / "demo.log"),
        ("Prefect UI", summary["flow_run"]),
        *([] if keep else [("", "(make demo KEEP=1 leaves the servers up to look around)")]),
    ]
    width = max(len(label) for label, _ in cells)
    return [f"{label:<{width}}  {value}" for label, value in cells]


def _wait_for_ctrl_c(demo: Demo, terminal: TextIO) -> None:
    print(
        f"\nThe servers stay up until Ctrl-C. Prefect: {demo.server.address}\nS3: "
        f"AWS_ENDPOINT_URL={os.environ['AWS_ENDPOINT_URL']} AWS_ACCESS_KEY_ID=demo "
        f"AWS_SECRET_ACCESS_KEY=demo-secret, bucket {SOURCE.bucket}",
        file=terminal,
        flush=True,
    )
    until_ctrl_c()
    demo.say("ending the servers")


def until_ctrl_c() -> None:
    """Wait for Ctrl-C in the main thread."""
    try:
        while True:
            # Not `signal.pause`: a signal that came just before it, or that another thread took,
            # would not end it.
            time.sleep(KEPT_SECONDS)
    except KeyboardInterrupt:
        return


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of the services running."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
