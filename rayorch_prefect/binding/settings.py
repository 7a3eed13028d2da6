"""What nights do unless they are told otherwise, through Prefect's own settings.

Environment variables named PREFECT_INTEGRATIONS_RAYORCH_*, `.env`, `prefect.toml`, `pyproject.toml`
and the active Prefect profile, the first that says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from prefect.settings.base import PrefectBaseSettings, build_settings_config
from pydantic import Field, ValidationError, field_validator

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage.redaction import without_secrets

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TABLE = ("integrations", "rayorch")
UNBOUNDED = "none"
PREFIX = "PREFECT_INTEGRATIONS_RAYORCH_"


class RayorchSettings(PrefectBaseSettings):
    """Each setting stands for the argument of `run_night` of its name; None is not set."""

    model_config = build_settings_config(TABLE)

    microbatch_size: int | None = Field(
        default=None, description="Sources per child flow run (64)."
    )
    max_active_microbatches: int | None = Field(
        default=None, description="Child flow runs at a time (2)."
    )
    failure_policy: int | str | None = Field(
        default=None, description="Failed sources that are tolerated: `3`, `5%`, `fail-fast` (0)."
    )
    upload_workers: int | None = Field(
        default=None, description="Uploads in flight per microbatch (4)."
    )
    upload_group: int | None = Field(
        default=None,
        description="Parents per upload task run (1); always 1 for an upload task of one's own.",
    )
    upload_runner: str | None = Field(
        default=None, description="Where upload task runs go: `threads` or `ray` (`threads`)."
    )
    upload_tries: int | None = Field(
        default=None, description="Tries of an upload while the store is unavailable (4)."
    )
    lease_seconds: float | None = Field(
        default=None, description="Silence in seconds after which another run may take over (60)."
    )
    policy: str | None = Field(
        default=None, description="Which ready rows go first, such as `canary` (`fifo`)."
    )
    max_pending: int | None = Field(
        default=None, description="Values that wait for their last reader at once (no bound)."
    )
    max_pending_mb: float | Literal["auto", "none"] | None = Field(
        default=None,
        description="MiB of values that wait for their last reader at once; `auto` is 60 % of "
        "Ray's object store, `none` no bound (`auto`).",
    )
    parent_events: int | None = Field(
        default=None,
        description="Prefect events of published sources, and of failed ones, a night (1000).",
    )
    stage_log_level: str | None = Field(
        default=None,
        description="From which level on what stages log is in the runs' logs; `OFF` for nothing "
        "(`WARNING`).",
    )
    ray_address: str | None = Field(
        default=None,
        description="The cluster, `host:6379` or `ray-cluster/NAME` (RAY_ADDRESS, else a local "
        "Ray).",
    )
    working_dir: str | None = Field(
        default=None, description="Folder of the program's modules, brought to Ray's workers."
    )
    record: str | None = Field(
        default=None, description="Folder for recordings of the runs' events (none)."
    )
    s3_read_timeout: float | None = Field(
        default=None, description="Seconds that an answer of the store may take (60)."
    )
    s3_part_bytes: int | None = Field(
        default=None,
        description="Longer artifacts are uploaded in parts of so many bytes (64 MiB).",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: object) -> object:
        # A file's `true` would pass for the number 1.
        if isinstance(value, bool):
            raise ValueError("it is a number or a text, not true or false")
        return value


def settings_set() -> dict[str, Any]:
    """The settings that are set, by name. Raises UsageError, naming one that cannot be read."""
    try:
        found = RayorchSettings().model_dump()
    except ValidationError as error:
        raise UsageError(_refused(error.errors(include_url=False))) from None
    except ValueError as error:  # a file that is no TOML
        raise UsageError(f"Prefect's settings cannot be read: {error}") from error
    return {name: value for name, value in found.items() if value not in (None, "")}


def setting(name: str) -> str:
    """A setting as people find it: its variable, and its key in the files."""
    table = ".".join(TABLE)
    return (
        f"the setting {PREFIX}{name.upper()} (in the environment, .env or the Prefect profile; "
        f"{name} under [{table}] in prefect.toml, [tool.prefect.{table}] in pyproject.toml)"
    )


def _refused(errors: Sequence[ErrorDetails]) -> str:
    """What is wrong with the first setting that is; pydantic says one line a type it may have."""
    first = errors[0]
    wanted = [error["msg"] for error in errors if error["loc"][0] == first["loc"][0]]
    value = without_secrets(repr(first["input"]))
    return f"{setting(str(first['loc'][0]))} is {value}: {' or: '.join(wanted)}"
