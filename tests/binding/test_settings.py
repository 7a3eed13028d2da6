"""Prefect's settings: read where Prefect reads its own, below arguments, above the defaults."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect.binding.opening import order_of
from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.settings import PREFIX, RayorchSettings
from rayorch_prefect.binding.unknown_settings import unknown_settings
from rayorch_prefect.cli.checks import settings
from rayorch_prefect.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without a setting in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def order(**asked: Any) -> Order:
    return order_of("jobs:pdfs", "s3://lake/in/", "s3://lake/out/", **asked)


def test_each_source_beats_the_next_and_an_argument_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = folder / "profiles.toml"
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    found = [order().microbatch_size]
    profiles.write_text(f'active = "x"\n[profiles.x]\n{PREFIX}MICROBATCH_SIZE = "2"\n')
    found.append(order().microbatch_size)
    (folder / "pyproject.toml").write_text(
        "[tool.prefect.integrations.rayorch]\nmicrobatch_size = 3\n"
    )
    found.append(order().microbatch_size)
    (folder / "prefect.toml").write_text("[integrations.rayorch]\nmicrobatch_size = 4\n")
    found.append(order().microbatch_size)
    (folder / ".env").write_text(f"{PREFIX}MICROBATCH_SIZE=5\n")
    found.append(order().microbatch_size)
    monkeypatch.setenv(f"{PREFIX}MICROBATCH_SIZE", "6")
    found.append(order(microbatch_size=None).microbatch_size)
    found.append(order(microbatch_size=7).microbatch_size)
    assert found == [64, 2, 3, 4, 5, 6, 7]


def test_every_kind_of_value(folder: Path) -> None:
    (folder / "prefect.toml").write_text(
        "[integrations.rayorch]\n"
        'failure_policy = "5%, stop=UploadFailed"\nmax_pending_mb = 512\nlease_seconds = 30\n'
        'upload_runner = "ray"\nray_address = "head:6379"\ns3_read_timeout = 9.5\n'
        's3_part_bytes = 5242880\nworking_dir = ""\n'
    )
    found = order()
    assert (found.failure_policy, found.max_pending_mb) == ("5%, stop=UploadFailed", 512)
    assert (found.lease_seconds, found.upload_runner, found.ray_address) == (30, "ray", "head:6379")
    assert found.working_dir is None
    # Ray's workers wait as long for the store as this process does.
    assert found.worker_environment() == {"env_vars": {"RAYORCH_PREFECT_READ_TIMEOUT": "9.5"}}
    assert found.s3_part_bytes == 5242880


def test_no_bound_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order().max_pending_mb == "auto"
    assert order(max_pending_mb="none").max_pending_mb is None
    monkeypatch.setenv(f"{PREFIX}MAX_PENDING_MB", "none")
    assert order().max_pending_mb is None
    assert order(max_pending_mb="auto").max_pending_mb == "auto"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("microbatch_size", "many", "valid integer"),
        ("microbatch_size", "0", "expected at least 1"),
        ("upload_runner", "dask", "expected one of threads, ray"),
        ("failure_policy", "some", "failure_policy"),
        ("max_pending_mb", "much", "valid number"),
        ("max_pending_mb", "-1", "more than 0 MiB"),
        ("lease_seconds", "1", "at least 4"),
        ("lease_seconds", "nan", "at least 4"),
        ("lease_seconds", "inf", "at least 4"),
        ("policy", "lifo", "expected one of fifo"),
        ("working_dir", "nowhere", "is not a folder"),
        ("s3_read_timeout", "0", "expected seconds"),
        ("s3_part_bytes", "17", "expected bytes"),
    ],
)
def test_a_wrong_value_is_refused_by_the_settings_name(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}{name.upper()}", value)
    with pytest.raises(UsageError, match=expected) as refused:
        order()
    assert f"{PREFIX}{name.upper()}" in str(refused.value)
    assert f"{name} under [integrations.rayorch] in prefect.toml" in str(refused.value)


def test_a_file_that_is_no_toml_is_refused_by_its_name(folder: Path) -> None:
    (folder / "prefect.toml").write_text("[integrations.rayorch\n")
    with pytest.raises(UsageError, match=r"prefect\.toml: invalid TOML"):
        order()


def test_a_setting_for_groups_leaves_an_upload_task_of_ones_own_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"{PREFIX}UPLOAD_GROUP", "8")
    assert order().upload_group == 8
    assert order(upload_task="jobs:upload").upload_group == 1


def test_each_setting_is_a_night_s_and_documented() -> None:
    names = set(RayorchSettings.model_fields)
    assert names <= {each.name for each in fields(Order)}
    lines = DOCS.read_text("utf-8").splitlines()
    for name, field in RayorchSettings.model_fields.items():
        assert f"| `{name}` | {field.description} |" in lines


def test_names_that_are_no_settings_are_told_with_where_they_stand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "prefect.toml").write_text(
        "[integrations.rayorch]\nmicrobach_size = 5\nupload_tries = 2\n"
    )
    (folder / "pyproject.toml").write_text("[tool.prefect.integrations.rayorch]\nzzz = 1\n")
    (folder / ".env").write_text(f"# none\nexport {PREFIX}LEASE_SECS=secret-one\n")
    monkeypatch.setenv(f"{PREFIX}UPLOADWORKERS", "3")
    monkeypatch.setenv(f"{PREFIX}POLICY", "canary")
    assert unknown_settings() == [
        "there is no setting UPLOADWORKERS, in the environment: it is ignored;"
        " upload_workers is one",
        "there is no setting LEASE_SECS, in .env: it is ignored; lease_seconds is one",
        "there is no setting microbach_size, in prefect.toml under [integrations.rayorch]:"
        " it is ignored; microbatch_size is one",
        "there is no setting zzz, in pyproject.toml under [tool.prefect.integrations.rayorch]:"
        " it is ignored",
    ]
    found = settings()
    assert (found.mark, found.said.count("it is ignored")) == ("warning", 4)


def test_without_any_there_is_nothing_to_tell() -> None:
    assert (unknown_settings(), settings().said) == ([], "none is set")


@pytest.mark.parametrize("name", ["failure_policy", "microbatch_size", "lease_seconds", "record"])
def test_a_truth_value_is_no_number(folder: Path, name: str) -> None:
    (folder / "prefect.toml").write_text(f"[integrations.rayorch]\n{name} = true\n")
    with pytest.raises(UsageError, match=f"{name.upper()}.* is True: .*not true or false"):
        order()
