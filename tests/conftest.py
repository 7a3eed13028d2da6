"""Environment of every test, and the `--handed` option.

No test reaches the services that its user's environment or Prefect profile names: those settings
are taken out, and Prefect gets an empty home.

`--handed` runs only the tests marked `@pytest.mark.handed("H6")` and prints one line an id:
`H6 passed` if every test of that id passed, else `H6 failed`. A skipped test proves nothing, so
it counts as failed, and then the run's exit status says so too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator

import pytest

# Set here as well as in the Makefile, for people who call pytest themselves; before any test
# module imports prefect or ray, which read these at import.
for _name, _value in {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_TMPDIR": "/tmp",
}.items():
    os.environ.setdefault(_name, _value)

for _name in (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "PREFECT_API_KEY",
    "PREFECT_API_URL",
    "PREFECT_PROFILE",
    "RAY_ADDRESS",
):
    os.environ.pop(_name, None)

_prefect_home = os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="prefect-home-")

_HANDED = "handed"
_ENDS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--handed",
        action="store_true",
        help="run only the handed-over cases and print one line an id",
    )


def pytest_unconfigure() -> None:
    shutil.rmtree(_prefect_home, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tag each handed-over test with its id; with `--handed` deselect all others.

    Raises:
        pytest.UsageError: a mark that does not name exactly one id.
    """
    kept = [item for item in items if _tag(item)]
    if config.getoption(_HANDED):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _tag(item: pytest.Item) -> bool:
    marks = list(item.iter_markers(_HANDED))
    for mark in marks:
        if len(mark.args) != 1 or not isinstance(mark.args[0], str) or mark.kwargs:
            raise pytest.UsageError(f'{item.nodeid}: write the mark as handed("H6"), one id')
        # User properties travel with the report, also from another process.
        item.user_properties.append((_HANDED, mark.args[0]))
    return bool(marks)


def _ended(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Each (id, end) of the reports that the terminal has counted."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    for end in _ENDS:
        for report in terminal.stats.get(end, []) if terminal else []:
            for name, value in getattr(report, "user_properties", []):
                if name == _HANDED:
                    yield value, end


def _verdicts(config: pytest.Config) -> dict[str, str]:
    """`passed` or `failed` for each id, in the order of the ids' numbers."""
    ends: defaultdict[str, set[str]] = defaultdict(set)
    for case, end in _ended(config):
        ends[case].add(end)
    ordered = sorted(ends, key=lambda case: (len(case), case))
    return {case: "passed" if ends[case] == {"passed"} else "failed" for case in ordered}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if not config.getoption(_HANDED) or session.exitstatus != pytest.ExitCode.OK:
        return
    if "failed" in _verdicts(config).values():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption(_HANDED):
        terminalreporter.section("handed-over cases")
        for case, verdict in _verdicts(config).items():
            terminalreporter.line(f"{case} {verdict}")
