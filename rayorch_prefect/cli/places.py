"""Places as the command line names them: by URL, or by a block that Prefect is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from prefect.settings import PREFECT_API_URL

from rayorch_prefect.binding.block_references import located, names_block
from rayorch_prefect.binding.prefect_server import PrefectServer, require_answer, using_api
from rayorch_prefect.storage import S3Location


@contextmanager
def prefect_api() -> Iterator[PrefectServer | None]:
    """The Prefect API that the user set, else a server of our own for as long as we run."""
    if PREFECT_API_URL.value():
        require_answer()
        yield None
        return
    with PrefectServer() as server, using_api(server.api_url):
        yield server


def places(**asked: str | None) -> list[S3Location | None]:
    """The places by the names of their arguments, in order; None where none is asked for.

    Prefect is asked only for blocks. Raises UsageError, ServerNotReached.
    """
    needed = any(names_block(each) for each in asked.values())
    with prefect_api() if needed else nullcontext():
        return [located(each, name, keeper="") if each else None for name, each in asked.items()]
