"""Wrong arguments give one line and exit status 2; `plan` and `--version` start nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rayorch_prefect.cli.main import main
from rayorch_prefect.program import program, stage

GOOD = {
    "--program": "tests.binding.programs:joined",
    "--source": "s3://lake/in/",
    "--destination": "s3://lake/out/",
}


class Guarded:
    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, sources: list[object]) -> list[object]:
        return sources


def run_with(**changes: str | None) -> list[str]:
    """`run` with good arguments, some replaced, or left out where None."""
    merged = {**GOOD, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    return ["run", *(word for name, value in merged.items() if value for word in (name, value))]


def status_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else -1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: run|retry-failed|status|report|doctor|plan|simulate|replay"),
        (["dance"], "invalid choice: 'dance'"),
        (run_with(source=None), "required: --source"),
        (run_with(source="/tmp/in"), "'/tmp/in' is not an S3 location; expected s3://"),
        (run_with(destination="s3://"), "'s3://' names no bucket"),
        (run_with(source="s3:///in/"), "'s3:///in/' names no bucket"),
        (run_with(source="https://lake/in/"), "'https://lake/in/' is not an S3 location"),
        (run_with(source="s3://-lake/in/"), "'-lake' is not a bucket name"),
        (run_with(source="s3://la ke/in/"), "'la ke' is not a bucket name"),
        (run_with(destination="s3://lake?x=1"), "'lake?x=1' is not a bucket name"),
        (run_with(upload_task="tests.binding.uploading:nothing"), "has no attribute nothing"),
        (run_with(destination="s3://lake/in/out/"), "outside the source prefix"),
        (run_with(microbatch_size="0"), "'0' is not a whole number from 1 up"),
        (run_with(limit="0"), "'0' is not a whole number from 1 up"),
        (run_with(upload_group="0"), "'0' is not a whole number from 1 up"),
        (run_with(upload_runner="fast"), "invalid choice: 'fast'"),
        (run_with(working_dir="/no/such"), "working_dir '/no/such' is not a folder"),
        (run_with(runtime_env="no.json"), "'no.json' is neither a JSON object nor a file to read"),
        (run_with(runtime_env='{"pip": [}'), "it is not JSON: Expecting value"),
        (run_with(runtime_env="pyproject.toml"), "pyproject.toml is not JSON"),
        (run_with(record="pyproject.toml/x"), "expected a folder that can be written to, and"),
        (run_with(failure_policy="some"), "failure_policy is 'some'; expected a number"),
        (run_with(hook="on_night=x:y"), "hook 'on_night': expected one of"),
        (run_with(hook="on_night"), "'on_night' is not NAME=MODULE:ATTRIBUTE"),
        (run_with(program="no_such_module:x"), "module no_such_module does not import"),
        (run_with(program="tests.binding.programs:nope"), "has no attribute nope"),
        (
            run_with(program="tests.binding.programs:NOT_A_PROGRAM"),
            "not a Program made with @program",
        ),
        (run_with(program="tests.binding.programs"), "has several Programs"),
        (run_with(program="json"), "has no Programs"),
        (run_with(program="tests.binding.programs:"), "expected module:attribute"),
        (run_with(program="tests.binding.programs:below_the_root"), "one output on the root"),
        (["plan", "--program", "nowhere:x"], "module nowhere does not import"),
        (["plan", "--json", "--program", "nowhere:x"], "prefect plan: program 'nowhere:x'"),
        ([*run_with(source="/tmp/in"), "--json"], "prefect run: '/tmp/in' is not an S3"),
        (
            ["status", "--program", "nowhere:x", "--destination", "s3://lake/out/"],
            "nowhere does not",
        ),
        (["status", "--program", GOOD["--program"], "--destination", "out"], "not an S3 location"),
        (["doctor", "--destination", "out"], "not an S3 location"),
    ],
)
def test_wrong_arguments_give_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        run_with(),
        ["retry-failed", *run_with()[1:]],
        ["status", "--program", "x:y", "--destination", "s3://lake/out/"],
        ["report", "--program", "x:y", "--destination", "s3://lake/out/"],
        ["doctor"],
        ["plan", "--program", "x:y"],
        ["simulate", "--children", "a.csv"],
        ["replay", "a.file"],
    ],
)
def test_an_argument_that_there_is_not_names_the_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"rayorch-prefect {arguments[0]}"
    assert status_of([*arguments, "--x", "y"]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"{command}: unrecognized arguments: --x y; see {command} --help\n"
    assert shown.out == ""


def test_a_module_that_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raising_job.py").write_text("raise ValueError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert status_of(["plan", "--program", "raising_job:x"]) == 2
    shown = capsys.readouterr().err
    assert "raising_job does not import (ValueError: first line second line)" in shown
    assert shown.count("\n") == 1


def test_plan_prints_the_compiled_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--program", "tests.binding.programs:joined"]) == 0
    shown = capsys.readouterr().out
    for word in ("joined", "child", "Split", "Work", "Join"):
        assert word in shown


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "--program", "tests.binding.programs:joined"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["parent"]) for each in plan["domains"]] == [
        ("source", None),
        ("child", "source"),
    ]
    calls = plan["calls"]
    assert [(each["stage"], each["domain"]) for each in calls] == [
        ("Split", "source"),
        ("Work", "child"),
        ("Join", "source"),
    ]
    ports = {each["id"]: each for each in plan["ports"]}
    (read,) = calls[1]["inputs"]
    expand = ports[read]["op"]
    assert (expand["kind"], [expand["source"]]) == ("expand", calls[0]["outputs"])
    assert [plan["pools"][each["pool"]]["stage"] for each in calls] == ["Split", "Work", "Join"]
    assert [each["child_domain"] for each in plan["reduces"]] == ["child"]
    assert plan["outputs"] == calls[2]["outputs"]


def test_what_a_program_prints_as_it_is_loaded_is_not_in_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talking_job.py").write_text(
        "print('loading')\nfrom tests.binding.programs import joined\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["plan", "--json", "--program", "talking_job:joined"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["program"] == "joined"
    assert shown.err == "loading\n"


def test_what_may_be_a_secret_is_not_in_the_plans_data() -> None:
    @program
    def guarded(source: object) -> object:
        env = {"env_vars": {"TOKEN": "hidden"}}
        return stage(Guarded, runtime_env=env)("hidden")(source)

    shown = json.dumps(guarded.plan.as_data())
    assert "hidden" not in shown
    assert '"runtime_env": ["env_vars"]' in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out == f"rayorch-prefect {version('rayorch-prefect')}\n"


def test_a_program_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_job.py").write_text(
        "from rayorch_prefect.program import program, stage\n"
        "def double(source):\n    return source\n"
        "@program\ndef doubled(source):\n    return stage(double)()(source)\n"
    )
    command = [sys.executable, "-m", "rayorch_prefect.cli.main", "plan", "--program", "my_job"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "doubled" in ended.stdout


def test_a_reader_that_has_had_enough_is_no_traceback() -> None:
    command = [sys.executable, "-m", "rayorch_prefect.cli.main", "plan", "--program"]
    ended = subprocess.Popen(
        [*command, GOOD["--program"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ended:
        assert ended.stdout is not None
        assert ended.stderr is not None
        ended.stdout.close()
        assert ended.stderr.read() == ""
    assert ended.returncode == 1
