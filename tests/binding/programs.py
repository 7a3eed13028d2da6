"""The toy programs of these tests: `{"n": k}` expands to children that join in order."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from rayorch_prefect.model.failures import GroupFailure, RecordFailure
from rayorch_prefect.program import F, Program, program, stage
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.objects import get_object

NOT_A_PROGRAM = "only a text"


class Split:
    """A Source in, its children out; the object says what is to go wrong."""

    def __call__(self, source: Any) -> list[dict[str, Any]]:
        asked = json.loads(source.read())
        if asked.get("fail"):
            raise RecordFailure(asked["fail"], "asked for")
        return [{"i": i, "n": asked["n"], **asked} for i in range(asked["n"])]


class Work:
    """One text a child."""

    def __call__(self, child: dict[str, Any]) -> str:
        if "log" in child:
            with Path(child["log"]).open("a") as log:
                log.write(f"{child['name']}/{child['i']}\n")
        time.sleep(child.get("sleep", 0))
        if child.get("warn") == child["i"]:
            said = child.get("saying", "")
            logging.getLogger("ocr").warning("child %d spoils all%s, or nearly", child["i"], said)
        if "wait_for" in child:
            wait_for(child["wait_for"])
        if child.get("spoilt") == child["i"]:
            raise GroupFailure("Spoilt", f"child {child['i']} spoils all{child.get('saying', '')}")
        if child.get("gap") == child["i"]:
            raise RecordFailure("Unreadable", f"child {child['i']} is left out")
        return str(child["i"])


def wait_for(uri: str) -> None:
    """Poll the store for the object; raises TimeoutError after 20 s."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    end = time.monotonic() + 20
    while get_object(S3Location(bucket), key) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{uri} was not published in time")
        time.sleep(0.1)


def unreachable(child: dict[str, Any]) -> str:
    raise ConnectionRefusedError("port 8000")


def tells(source: Any) -> str:
    """Fails with the text that the object holds."""
    raise OSError(json.loads(source.read())["text"])


class Join:
    def __call__(self, texts: Any) -> dict[str, Any]:
        return {".txt": ",".join(texts), ".json": {"missing": list(texts.missing)}}


class Odd:
    """A value that no store takes."""

    def __call__(self, texts: Any) -> Any:
        return {1, 2}


class Stillborn:
    """A stage that cannot be built."""

    def __init__(self) -> None:
        raise FileNotFoundError("the model file is missing")

    def __call__(self, source: Any) -> str:
        return "never"


class Generating:
    """Returns a generator of its rows instead of their list."""

    def __call__(self, children: list[dict[str, Any]]) -> Any:
        return (str(child["i"]) for child in children)


class Mortal:
    """Works until it meets a source named `fatal`; then no worker of it starts any more."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)
        if self.marker.exists():
            os._exit(1)

    def __call__(self, source: Any) -> str:
        asked = json.loads(source.read())
        if asked["name"] == "fatal":
            self.marker.touch()
            os._exit(1)
        return str(asked["n"])


SPLIT = stage(Split, rowwise=True)
WORK = stage(Work, rowwise=True, batch_size=4)


@program
def joined(source: Any) -> Any:
    children = F.expand(SPLIT()(source), domain="child")
    return stage(Join, rowwise=True)()(F.reduce(WORK()(children), on_failure="skip"))


@program
def unpublishable(source: Any) -> Any:
    children = F.expand(SPLIT()(source), domain="child")
    return stage(Odd, rowwise=True)()(F.reduce(WORK()(children)))


@program
def below_the_root(source: Any) -> Any:
    return WORK()(F.expand(SPLIT()(source), domain="child"))


@program
def greedy(source: Any) -> Any:
    children = F.expand(SPLIT()(source), domain="child")
    work = stage(Work, rowwise=True, num_cpus=512)()(children)
    return stage(Join, rowwise=True)()(F.reduce(work))


@program
def telling(source: Any) -> Any:
    return stage(tells, retry_budget=1)(source)


@program
def stillborn(source: Any) -> Any:
    return stage(Stillborn, rowwise=True)()(source)


@program
def generating(source: Any) -> Any:
    children = F.expand(SPLIT()(source), domain="child")
    return stage(Join, rowwise=True)()(F.reduce(stage(Generating, batch_size=8)()(children)))


def mortal_program(marker: Path) -> Program:
    """A Program whose run breaks off at the source named `fatal`."""

    @program
    def mortal(source: Any) -> Any:
        return stage(Mortal, rowwise=True, batch_size=1)(str(marker))(source)

    return mortal


@program(version="1")
def asking(source):  # type: ignore[no-untyped-def]
    """Every child asks a service that is down; sources without children are whole."""
    children = F.expand(stage(Split, rowwise=True)()(source), domain="child")
    asked = stage(unreachable, backend_patience_s=1)(children)
    return stage(Join, rowwise=True)()(F.reduce(asked))
