"""The toy program of the handed-over cases, in several shapes.

A source holds `{"n": k}` and expands to children 0..k-1; a child stage notes each call in a file;
the children's texts join in order and are published. What is to go wrong stands in the source
too: `spoil` (ordinal, the child that reports GroupFailure), `die` (ordinal, `os._exit` or a
signal's number, marker file), `hang` (ordinal, `sleep` or `lock`: the interpreter's lock is held),
`wait_for` (an object the last child waits for). `sleep` is how long each child takes, in seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayorch_prefect import F, GroupFailure, Program, program, stage
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.objects import get_object

WAIT_SECONDS = 20.0
HANG_SECONDS = 600


class Split:
    """A Source in, its children out."""

    def __call__(self, source: Any) -> list[dict[str, Any]]:
        asked = json.loads(source.read())
        name = source.key.rsplit("/", 1)[-1].removesuffix(".json")
        return [{**asked, "name": name, "i": i} for i in range(asked["n"])]


class Child:
    """One child in, the text `name/ordinal` out."""

    def __call__(self, child: dict[str, Any]) -> Any:
        name, i = child["name"], child["i"]
        note(child, f"start {name}/{i}")
        die(child)
        hang(child)
        time.sleep(child.get("pause", 0) * (child["n"] - i) + child.get("sleep", 0))
        if "wait_for" in child and i == child["n"] - 1:
            wait_for(child["wait_for"])
        if child.get("spoil") == i:
            note(child, f"spoil {name}/{i}")
            failure = GroupFailure("Spoilt", f"child {i} of {name} spoils all")
            if child.get("raised"):
                raise failure
            return failure
        note(child, f"end {name}/{i}")
        return f"{name}/{i}"


class Whole:
    """The same for a whole batch; a batch of `of` rows is answered with `results`."""

    def __init__(self, of: int = 0, results: int = 0) -> None:
        self.of = of
        self.results = results
        self.child = Child()

    def __call__(self, children: list[dict[str, Any]]) -> list[Any]:
        names = [f"{child['name']}/{child['i']}" for child in children]
        note(children[0], f"batch {' '.join(names)}")
        texts = [self.child(child) for child in children]
        if len(children) != self.of:
            return texts
        return (texts * 2)[: self.results]


class Join:
    """The ordered texts, one a line."""

    def __call__(self, texts: Any) -> dict[str, Any]:
        return {".txt": "".join(f"{text}\n" for text in texts)}


def note(child: dict[str, Any], line: str) -> None:
    """One append of one line, so that lines of several processes stay whole."""
    if "log" in child:
        descriptor = os.open(child["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()} {line}\n".encode())
        os.close(descriptor)


def die(child: dict[str, Any]) -> None:
    """End this process hard the first time the child is seen, as its marker file says."""
    ordinal, how, marker = child.get("die", (None, 0, ""))
    if ordinal != child["i"] or Path(marker).exists():
        return
    Path(marker).touch()
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), how)
    signal.pause()


def hang(child: dict[str, Any]) -> None:
    """Sleep for ten minutes, at every try."""
    ordinal, how = child.get("hang", (None, ""))
    if ordinal == child["i"]:
        (time.sleep if how == "sleep" else ctypes.PyDLL(None).sleep)(HANG_SECONDS)


def wait_for(uri: str) -> None:
    """Poll the store for the object; raises TimeoutError after 20 s."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    end = time.monotonic() + WAIT_SECONDS
    while get_object(S3Location(bucket), key) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{uri} was not published within {WAIT_SECONDS:.0f} s")
        time.sleep(0.1)


def joined(child: Any, expected_sources: int = 6) -> Program:
    """The toy program around a child stage.

    Up to `expected_sources` sources are split in one batch, so that their children become ready
    together and in source order: the child stage's batches are then known beforehand.
    """
    split = stage(Split, rowwise=True, batch_size=expected_sources)

    @program
    def toy(source: Any) -> Any:
        children = F.expand(split()(source), domain="child")
        return stage(Join, rowwise=True)()(F.reduce(child(children)))

    return toy


def _rowwise(batch_size: int, replicas: int) -> Program:
    return joined(stage(Child, rowwise=True, batch_size=batch_size, replicas=replicas)())


def _batchwise(batch_size: int, replicas: int) -> Program:
    return joined(stage(Whole, batch_size=batch_size, replicas=replicas)())


def _limited(batch_size: int) -> Program:
    child = stage(Child, rowwise=True, batch_size=batch_size, row_limit_s=3, retry_budget=2)
    return joined(child())


def _answering(batch_size: int, of: int, results: int) -> Program:
    return joined(stage(Whole, batch_size=batch_size)(of, results))


_SHAPES = ((1, 1), (1, 2), (2, 1), (3, 1), (4, 1), (5, 2), (7, 1), (16, 2))

# Found by name, like `tests.handed.toy:rowwise.b5r2`: batch size 5, 2 replicas.
rowwise = SimpleNamespace(**{f"b{b}r{r}": _rowwise(b, r) for b, r in _SHAPES})
batchwise = SimpleNamespace(**{f"b{b}r{r}": _batchwise(b, r) for b, r in _SHAPES})
# `limited.b9`: batch size 9, a row limit of 3 s, one retry.
limited = SimpleNamespace(b1=_limited(1), b9=_limited(9))
# `answering.b6of6as5`: batch size 6; a batch of 6 rows is answered with 5 results.
answering = SimpleNamespace(
    **{f"b{b}of{of}as{n}": _answering(b, of, n) for b, of, n in ((6, 6, 5), (6, 6, 7), (3, 1, 0))}
)
