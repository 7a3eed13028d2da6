"""How a night ended, and what one would do, as plain data for `--json`."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.selection import Selection, Standing
from rayorch_prefect.replay.redaction import redaction


def end_data(state: State[Any], status: int) -> dict[str, Any]:
    """How the flow run ended, and the exit status of the command."""
    return {
        "state": state.name or state.type.value,
        "message": redaction()(state.message or ""),
        "exit_status": status,
    }


def night_data(night: Night, page: str, recorded: bool) -> dict[str, Any]:
    """Row outcomes, failures, what to run next and where all is.

    `page` is the flow run's in Prefect's UI; `recorded` says that a manifest was to be written.
    """
    counts, summary = night.tally(), night.summary()
    advice, command = night.next_step(counts)
    redact = redaction()
    return {
        "night": night.id,
        "sources": len(night.sources),
        "published": counts.published,
        "failed": counts.failed,
        "dropped": counts.dropped,
        "skipped": counts.skipped,
        "not_processed": counts.not_processed,
        "with_gaps": counts.with_gaps,
        "failed_by_kind": dict(sorted(summary.failed_by_kind.items())),
        "failed_by_type": dict(sorted(counts.by_type.items())),
        "first_causes": [redact(cause) for cause in counts.causes],
        "not_processed_because": [redact(reason) for reason in counts.reasons],
        "next": {"advice": advice, "command": command} if command else None,
        "first_upload_s": summary.first_upload_s,
        "wall_s": summary.wall_s,
        "outputs": str(night.order.destination),
        "manifest": night.manifest if recorded else None,
        "report": night.report or None,
        "left": night.left or None,
        "task_runs_missing": summary.task_runs_missing,
        "prefect_ui": page,
    }


def selection_data(selection: Selection) -> dict[str, Any]:
    """What a night would do with each source; the exit status is that of a dry run."""
    counts = selection.counts()
    standings = {standing.value: counts.pop(standing.value) for standing in Standing}
    return {
        "state": "DryRun",
        "message": f"nothing was started. {selection.describe()}",
        "exit_status": 0,
        **{name.replace(" ", "_"): count for name, count in counts.items()},
        "standings": standings,
        "chosen": [
            {
                "key": each.source.key,
                "uri": each.source.uri,
                "intent": each.intent,
                "standing": each.standing,
            }
            for each in selection.chosen
        ],
    }
