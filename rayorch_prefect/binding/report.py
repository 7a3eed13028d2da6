"""The report of a night: one HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rayorch_prefect.binding.summary_page import (
    STAGE_HEAD,
    Summary,
    command_lines,
    duration,
    failure_text,
    outcome_table,
    stage_lines,
    stage_note,
)
from rayorch_prefect.binding.tallies import first_reasons
from rayorch_prefect.binding.texts import shown_texts
from rayorch_prefect.simulation.picture import Picture, svg

_STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; margin: 2em auto; max-width: 1000px;
  padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: left; padding: .2em .8em; border-bottom: 1px solid #ddd; vertical-align: top }
td, li, p, h1 { overflow-wrap: anywhere }
.failed td:nth-child(-n+3), .failed td:nth-child(6) { min-width: 9em }
pre { background: #f3f3f3; padding: .8em; white-space: pre-wrap; overflow-wrap: anywhere }
svg { max-width: 100%; height: auto }
"""
# Nothing is fetched or run, whatever a text in it says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report_html(
    summary: Summary,
    message: str,
    failed: Sequence[dict[str, Any]],
    picture: Picture,
    settings: Iterable[tuple[str, object]] = (),
    failed_in_all: int = 0,
) -> str:
    """The page; `failed` are the lines of the table of failed parents, `settings` the night's.

    `failed_in_all` counts the failed parents, those left out of the table too.
    """
    shown = shown_texts()
    title = f"{summary.title}: {summary.state}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{summary.counts.total} sources in {duration(summary.seconds)}</p>",
        _table(*outcome_table(summary.counts)),
        f"<p>{escape(failure_text(summary.counts))}</p>",
        *_listed("First causes", map(shown, summary.counts.causes), summary.counts.failed),
        *_listed("Not processed because", map(shown, first_reasons(summary.counts.reasons))),
        *_next(summary, shown),
        "<h2>Timeline</h2>",
        svg(picture),
        *_stages(summary),
        *_failed(failed, failed_in_all),
        "<h2>Where it is</h2>",
        _table(("what", "where"), (summary.places or {}).items()),
        "<h2>Settings</h2>",
        _table(("setting", "value"), ((name, shown(str(value))) for name, value in settings)),
        "<h2>The state's message</h2>",
        f"<p>{escape(shown_texts(4000)(message))}</p>",
    ]
    return _page(title, "\n".join(part for part in parts if part))


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _listed(title: str, texts: Iterable[str], in_all: int = 0) -> list[str]:
    listed = list(texts)
    if 0 < len(listed) < in_all:
        listed.append(f"and {in_all - len(listed)} more")
    items = "\n".join(f"<li>{escape(text)}</li>" for text in listed)
    return [f"<h2>{title}</h2>\n<ul>\n{items}\n</ul>"] if items else []


def _next(summary: Summary, shown: Any) -> list[str]:
    if not summary.command:
        return []
    advice = f"<p>{escape(shown(summary.advice))}</p>"
    return ["<h2>Next</h2>", advice, f"<pre>{escape(command_lines(summary.command))}</pre>"]


def _stages(summary: Summary) -> list[str]:
    if not summary.stages:
        return []
    note = f"<p>{escape(stage_note(summary.stages))}</p>"
    return ["<h2>Stages</h2>", _table(STAGE_HEAD, stage_lines(summary.stages)), note]


def _failed(lines: Sequence[dict[str, Any]], in_all: int) -> list[str]:
    if not lines:
        return []
    left_out = in_all - len(lines)
    more = f"<p>and {left_out} more, in the manifest</p>" if left_out > 0 else ""
    cells = (["" if cell is None else cell for cell in line.values()] for line in lines)
    return ["<h2>Failed sources</h2>", _table(list(lines[0]), cells, "failed"), more]


def _table(head: Sequence[str], lines: Iterable[Sequence[object]], name: str = "plain") -> str:
    rows = [f"<tr>{_cells(line)}</tr>" for line in lines]
    if not rows:
        return ""
    heads = "".join(f"<th>{escape(each)}</th>" for each in head)
    return f"<table class='{name}'>\n<tr>{heads}</tr>\n" + "\n".join(rows) + "\n</table>"


def _cells(line: Sequence[object]) -> str:
    return "".join(f"<td>{escape(str(cell))}</td>" for cell in line)
