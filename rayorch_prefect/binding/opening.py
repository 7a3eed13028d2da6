"""From a flow's arguments to a Night."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from rayorch_prefect.binding.block_references import Place, cluster, located, reference
from rayorch_prefect.binding.hooks import Hook, loaded_hooks
from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.settings import UNBOUNDED, setting, settings_set
from rayorch_prefect.binding.unknown_settings import unknown_settings
from rayorch_prefect.binding.upload_tasks import UploadTask, loaded_task, name_of
from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution.cluster import refuse_client
from rayorch_prefect.program import Program
from rayorch_prefect.program.declare import require_program
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.client import use_read_timeout


def open_night(program: str | Program, source: Place, destination: Place, **settings: Any) -> Night:
    """The Night of the current flow run; `settings` are as `order_of` takes them.

    Raises UsageError for a wrong argument or outside a flow run, ProgramError for a Program that
    cannot be published.
    """
    order = order_of(program, source, destination, **settings)
    run = _flow_run()
    for line in unknown_settings():
        get_run_logger().warning("%s", line)
    use_read_timeout(order.s3_read_timeout)
    task = loaded_task(settings.get("upload_task"), order.working_dir)
    hooks = loaded_hooks(order.hooks, order.working_dir)
    return Night(str(run.id), loaded(program, order.working_dir), order, task, hooks)


def order_of(
    program: str | Program,
    source: Place,
    destination: Place,
    only: Iterable[str] | None = None,
    hooks: Mapping[str, str | Hook] | None = None,
    upload_task: str | UploadTask | None = None,
    **settings: Any,
) -> Order:
    """The checked order; `settings` are the other fields of `Order`.

    For those that are None or left out Prefect's settings are asked, then stands the default of
    `Order`; `max_pending_mb` "none" is no bound. Blocks that are named are read now. Raises
    UsageError, ServerNotReached, ProgramError for what is no Program.
    """
    asked = {name: value for name, value in settings.items() if value is not None}
    asked = _bounded({**checked_settings(asked, own_upload=upload_task is not None), **asked})
    asked_as = {
        "source": source,
        "destination": destination,
        "ray_address": asked.get("ray_address"),
    }
    asked = _with_cluster(asked)
    refuse_client(asked.get("ray_address") or os.environ.get("RAY_ADDRESS"))
    keeper = f"rayorch-keeper-{uuid4().hex}"
    return Order(
        program=program if isinstance(program, str) else _name(require_program(program)),
        source=located(source, "source", keeper),
        destination=located(destination, "destination", keeper),
        only=tuple(only or ()),
        hooks=dict(hooks or {}),
        upload_task=name_of(upload_task),
        asked_as={name: found for name, each in asked_as.items() if (found := reference(each))},
        **asked,
    )


def _with_cluster(asked: dict[str, Any]) -> dict[str, Any]:
    """The same with what a block says of its cluster, where no runtime_env is asked for."""
    if "ray_address" not in asked:
        return asked
    address, runtime_env = cluster(asked["ray_address"])
    return {"runtime_env": runtime_env or None, **asked, "ray_address": address}


def _bounded(asked: dict[str, Any]) -> dict[str, Any]:
    unbounded = asked.get("max_pending_mb") == UNBOUNDED
    return {**asked, "max_pending_mb": None} if unbounded else asked


def checked_settings(asked: Mapping[str, Any], own_upload: bool) -> dict[str, Any]:
    """What Prefect's settings say of what is not asked; each is looked at by itself.

    Raises UsageError with the setting's name for one that will not do.
    """
    found = {name: value for name, value in settings_set().items() if name not in asked}
    if own_upload:
        found.pop("upload_group", None)  # a task of one's own gets one parent at a time
    for name, value in found.items():
        try:
            Order("", S3Location("source"), S3Location("destination"), **_bounded({name: value}))
        except UsageError as error:
            raise UsageError(f"{setting(name)} will not do: {error}") from None
    return found


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
