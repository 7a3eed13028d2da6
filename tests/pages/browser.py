"""A headless Chromium as a process: what a page says, and how it looks."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from html import unescape
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1400, 1150

_PAGE_SECONDS = 120.0
_TRIES = 5
# How far the page's own clock runs ahead until it is taken as loaded.
_BUDGET_MS = 20_000
_FLAGS = (
    "--headless",
    # Its sandbox needs rights that containers do not give; it sees nothing but our own server.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{HEIGHT}",
    f"--virtual-time-budget={_BUDGET_MS}",
)


def installed() -> str | None:
    """The browser's path, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def text_of(url: str) -> str:
    """The words on the page once its scripts have run, each run of blanks as one."""
    page = _opened(url, "--dump-dom")
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def text_with(url: str, expected: Iterable[str]) -> str:
    """The page's words; loaded again, a few times, while some of `expected` are not there."""
    wanted = list(expected)
    text = text_of(url)
    for pause in range(1, _TRIES):
        if all(each in text for each in wanted):
            break
        time.sleep(pause)
        text = text_of(url)
    return text


def screenshot(url: str, path: Path) -> None:
    """Write the page as it looks to `path`, a PNG of WIDTH x HEIGHT pixels."""
    _opened(url, f"--screenshot={path}")


def _opened(url: str, *arguments: str) -> str:
    browser = installed()
    assert browser is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ended = subprocess.run(
            [browser, *_FLAGS, f"--user-data-dir={profile}", *arguments, url],
            capture_output=True,
            text=True,
            timeout=_PAGE_SECONDS,
        )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
