"""Upload tasks as users write them: into a folder that the value names."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any, cast

from prefect import task

from rayorch_prefect import Artifact, WholeParent
from rayorch_prefect.program import program, stage


def asked_for(source: Any) -> Any:
    """What the source's JSON says."""
    return json.loads(source.read())


@program
def passed_on(source: Any) -> Any:
    return stage(asked_for)(source)


def stored(parent: WholeParent) -> Artifact:
    asked = parent.value()
    folder, content = Path(asked["folder"]), asked["name"].encode()
    (folder / asked["name"]).write_bytes(content)
    with (folder / "log").open("a") as log:
        log.write(f"{parent} {parent.index} {os.getpid()}\n")
    return Artifact(asked["name"], "file", len(content), sha256(content).hexdigest())


@task(name="deliver", task_run_name="deliver {parent}", retries=1, retry_delay_seconds=0)
def deliver(parent: WholeParent) -> Any:
    artifact = stored(parent)
    if artifact.key == "refused":
        raise ConnectionRefusedError("the other side is closed")
    odd = {"mute": None, "number": replace(artifact, key=cast(str, 5))}
    return odd.get(artifact.key, [artifact])


@task(name="deliver", task_run_name="deliver {parent}")
async def deliver_or_die(parent: WholeParent) -> Artifact:
    asked = parent.value()
    second = (Path(asked["folder"]) / asked["name"]).exists()
    artifact = stored(parent)
    if asked.get("dies") == "always" or (asked.get("dies") == "once" and not second):
        os._exit(1)
    return artifact


HELD = Event()


@task(name="hang")
def hang(parent: WholeParent) -> Artifact:
    if parent.value()["name"] == "hangs":
        HELD.wait(60)
    return stored(parent)


@task
def without_arguments() -> None:
    """Not what an upload task looks like."""
