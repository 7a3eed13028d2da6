"""Prefect events of a night, for automations: parents published and failed, microbatches ended.

The program, the destination and the source are in the labels of each event's resource, and are
related resources, so that an automation can match any of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from prefect.events import emit_event
from prefect.logging import get_run_logger

from rayorch_prefect.binding.listeners import End, MicrobatchEnd, ParentEnd
from rayorch_prefect.binding.texts import traceback_text

PARENT_EVENTS = 1000
"""The events of published parents a night by default, and of failed ones."""

PUBLISHED = "rayorch.parent.published"
FAILED = "rayorch.parent.failed"
MICROBATCH = "rayorch.microbatch.completed"

_MAX_TEXT = 500
_MAX_OUTPUTS = 20


class Events:
    """Emits the event of each end; of parents at most `most` of each sort, the others it counts.

    What goes wrong is logged once and changes nothing.
    """

    def __init__(self, most: int) -> None:
        self.left_out = 0
        self._most = most
        self._emitted: Counter[str] = Counter()
        self._refused = False

    def tell(self, end: End) -> None:
        """Hand the event to Prefect, which sends it when it can."""
        try:
            if isinstance(end, MicrobatchEnd):
                _emit(MICROBATCH, *self._of_microbatch(end), end)
            else:
                self._tell_parent(end)
        except Exception:
            if not self._refused:
                text = "Prefect takes no events of this night:\n%s"
                get_run_logger().warning(text, traceback_text())
            self._refused = True

    def _tell_parent(self, end: ParentEnd) -> None:
        name = FAILED if end.kind else PUBLISHED
        if self._emitted[name] >= self._most:
            self.left_out += 1
            return
        self._emitted[name] += 1
        _emit(name, *_of_parent(end), end)

    def _of_microbatch(self, end: MicrobatchEnd) -> tuple[dict[str, str], dict[str, Any]]:
        resource = {
            "prefect.resource.id": f"rayorch.microbatch.{end.flow_run_id}",
            "prefect.resource.name": f"{end.program}, microbatch {end.index}",
            "rayorch.state": end.state,
        }
        payload = {
            "index": end.index,
            "message": end.message[: 4 * _MAX_TEXT],
            "sources": dict(end.counts),
            "parent_events_left_out": self.left_out,
        }
        return resource, payload


def _of_parent(end: ParentEnd) -> tuple[dict[str, str], dict[str, Any]]:
    resource = {
        "prefect.resource.id": f"rayorch.source.{end.uri}",
        "prefect.resource.name": end.key,
        "rayorch.source-key": end.key,
    }
    if not end.kind:
        outputs = list(end.outputs[:_MAX_OUTPUTS])
        return resource, {"outputs": outputs, "missing": list(end.missing[:_MAX_OUTPUTS])}
    resource |= {"rayorch.kind": end.kind, "rayorch.type": end.type}
    payload = {
        "stage": end.stage,
        "child": end.child,
        "cause": end.cause[:_MAX_TEXT],
        "attempts": end.attempts,
    }
    return resource, payload


def _emit(name: str, resource: dict[str, str], payload: dict[str, Any], end: End) -> None:
    where = {"rayorch.program": end.program, "rayorch.destination": end.destination}
    related = [
        {"prefect.resource.id": f"{label}.{value}", "prefect.resource.role": label}
        for label, value in where.items()
    ]
    emit_event(name, resource | where, related=related, payload=payload)
