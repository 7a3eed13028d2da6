"""From a flow's arguments to a Night."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from rayorch_prefect.binding.hooks import Hook, loaded_hooks
from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.upload_tasks import UploadTask, loaded_task, name_of
from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution.cluster import refuse_client
from rayorch_prefect.program import Program
from rayorch_prefect.program.declare import require_program
from rayorch_prefect.storage import S3Location


def open_night(program: str | Program, source: str, destination: str, **settings: Any) -> Night:
    """The Night of the current flow run; `settings` are the fields of `Order`.

    Raises UsageError for a wrong argument or outside a flow run, ProgramError for a Program that
    cannot be published.
    """
    order = order_of(program, source, destination, **settings)
    task = loaded_task(settings.get("upload_task"), order.working_dir)
    hooks = loaded_hooks(order.hooks, order.working_dir)
    return Night(str(_flow_run().id), loaded(program, order.working_dir), order, task, hooks)


def order_of(
    program: str | Program,
    source: str,
    destination: str,
    only: Iterable[str] | None = None,
    hooks: Mapping[str, str | Hook] | None = None,
    upload_task: str | UploadTask | None = None,
    **settings: Any,
) -> Order:
    """The checked order; `settings` are the other fields of `Order`.

    Raises UsageError, ProgramError for what is no Program.
    """
    refuse_client(settings.get("ray_address") or os.environ.get("RAY_ADDRESS"))
    return Order(
        program=program if isinstance(program, str) else _name(require_program(program)),
        source=S3Location.parse(source),
        destination=S3Location.parse(destination),
        only=tuple(only or ()),
        hooks=dict(hooks or {}),
        upload_task=name_of(upload_task),
        **settings,
    )


def loaded(program: str | Program, folder: str | None = None) -> Program:
    """The Program itself, imported (from `folder` too) if it is given by name."""
    return load_program(program, folder) if isinstance(program, str) else require_program(program)


def _name(program: Program) -> str:
    """The name that the command line finds it by, empty if there is none."""
    path = program.module_path
    return "" if "<" in path or path.startswith("__main__") else path


def flow_run_name() -> str:
    """The name of the current flow run. Raises UsageError outside of one."""
    return _flow_run().name


def _flow_run() -> FlowRun:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise UsageError(
            "a night runs inside a Prefect flow: await run_night(...) in an async @flow"
        )
    return context.flow_run
