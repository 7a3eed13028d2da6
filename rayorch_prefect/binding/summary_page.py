"""The summary of a microbatch or a night as Markdown: how it ended, why, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rayorch_prefect.binding.stage_watch import StageFigures, busiest
from rayorch_prefect.binding.tallies import Tally, first_reasons
from rayorch_prefect.binding.texts import code_block, markdown, markdown_table, shown_texts

_TYPES_SHOWN = 10

STAGE_HEAD = ("stage", "level", "workers", "batches", "rows", "fill", "busy", "waiting", "failed")


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said at the end of a microbatch or a night.

    `state` is the name of its state, `seconds` how long it took, `advice` and `command` what to do
    next, both empty if nothing is. `places` are URIs by what is there.
    """

    title: str
    state: str
    counts: Tally
    seconds: float
    stages: tuple[StageFigures, ...] = ()
    advice: str = ""
    command: str = ""
    places: Mapping[str, str] | None = None


def summary_markdown(summary: Summary) -> str:
    """The page of the summary artifact."""
    shown = shown_texts()
    counts = summary.counts
    parts = [
        f"## {markdown(summary.title)}: {markdown(summary.state)}",
        f"{counts.total} sources in {duration(summary.seconds)}",
        markdown_table(*outcome_table(counts)),
        markdown(failure_text(counts)),
    ]
    parts += _listed("First causes", map(shown, counts.causes), counts.failed)
    parts += _listed("Not processed because", map(shown, first_reasons(counts.reasons)), 0)
    parts += _next(summary.advice, summary.command)
    parts += _stages(summary.stages)
    places = (summary.places or {}).items()
    parts += ["\n".join(f"- {markdown(name)}: `{shown(uri)}`" for name, uri in places)]
    return "\n\n".join(part for part in parts if part) + "\n"


def outcome_table(counts: Tally) -> tuple[list[str], list[list[int]]]:
    """The row outcomes side by side, those that add up and then what they include; one line."""
    cells = {
        "published": counts.published,
        "failed": counts.failed,
        "dropped": counts.dropped,
        "skipped": counts.skipped,
        "not processed": counts.not_processed,
    }
    more = {
        "published or skipped with gaps": counts.with_gaps,
        "failed before, not run again": counts.remembered,
        "left out by the run's limit": counts.left_out,
    }
    cells |= {name: count for name, count in more.items() if count}
    return list(cells), [list(cells.values())]


def failure_text(counts: Tally) -> str:
    """Failed by kind, the gravest first, and by type, the most frequent first; else empty."""
    if not counts.failed:
        return ""
    kinds = sorted(counts.by_kind, key=lambda kind: kind.gravity)
    types = sorted(counts.by_type, key=lambda name: (-counts.by_type[name], name))
    named = [f"{name} {counts.by_type[name]}" for name in types[:_TYPES_SHOWN]]
    named += [f"{len(types) - len(named)} more types"] if len(types) > len(named) else []
    by_kind = ", ".join(f"{kind.value} {counts.by_kind[kind]}" for kind in kinds)
    return f"Failed by kind: {by_kind}; by type: {', '.join(named)}"


def command_lines(command: str) -> str:
    """The command with each option on a line of its own, still to be copied as it is."""
    if " --" not in command:
        return command
    words = map(shlex.quote, shlex.split(command))
    return " ".join(f"\\\n  {word}" if word.startswith("--") else word for word in words)


def stage_lines(stages: Sequence[StageFigures]) -> list[tuple[str | int, ...]]:
    """One line a Call, under STAGE_HEAD."""
    return [
        (
            each.stage,
            each.domain,
            each.workers,
            each.batches,
            each.rows,
            f"{each.fill:.0%}",
            f"{each.busy_share:.0%}",
            f"{each.waiting:.0f}",
            each.failed,
        )
        for each in stages
    ]


def stage_note(stages: Sequence[StageFigures]) -> str:
    """How the table of stages is read, and which stage was the busiest."""
    note = "fill: rows a batch over its size; busy: share of the workers' time; waiting: rows ready"
    found = busiest(stages)
    return f"{note}. Busiest: {found.stage}, {found.busy_share:.0%}" if found else note


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _listed(title: str, texts: Iterable[str], of: int) -> list[str]:
    lines = [f"- {markdown(text)}" for text in texts]
    more = [f"- and {of - len(lines)} more"] if lines and of > len(lines) else []
    return [f"**{title}**", "\n".join(lines + more)] if lines else []


def _next(advice: str, command: str) -> list[str]:
    if not command:
        return []
    return [f"**Next**: {markdown(advice)}", code_block(command_lines(command))]


def _stages(stages: Sequence[StageFigures]) -> list[str]:
    if not stages:
        return []
    return [markdown_table(STAGE_HEAD, stage_lines(stages)), markdown(stage_note(stages))]
