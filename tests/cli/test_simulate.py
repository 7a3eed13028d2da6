"""`rayorch-prefect simulate`: what it is asked in words, what it prints, draws and refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayorch_prefect import F, program, stage
from rayorch_prefect.cli.main import main
from rayorch_prefect.cli.measured_stages import stages_in
from rayorch_prefect.execution.stage_costs import StageCosts
from rayorch_prefect.simulation.chain import Level

STAGES = [
    *("--stage", "render:level=document,workers=2,child=1ms"),
    *("--stage", "ocr:batch=16,workers=4,row=4ms,call=30ms"),
    *("--stage", "upload:level=document,workers=4,row=40ms"),
]
DOCUMENTS = ("--children", "lognormal:12,1.2,80,160")


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["simulate", *STAGES, *arguments]) == 0
    return capsys.readouterr().out


def runs_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simulated(capsys, "--json", *arguments))
    return found


def test_a_table_of_policies_and_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--policy", "fifo,canary", "--compare", "whole-document,global-regroup")
    out = simulated(capsys, *DOCUMENTS, *asked, "--poison", "5%:first")
    lines = out.splitlines()
    assert lines[0].endswith("; 4 poisoned, 583 siblings")
    names = [tuple(line.split()[:2]) for line in lines[3:7]]
    assert names == [
        ("lineage", "fifo"),
        ("lineage", "canary"),
        ("whole-document", "fifo"),
        ("global-regroup", "fifo"),
    ]
    assert lines[2].split()[-2:] == ["never", "computed"]
    assert "regroup tail: " in out


def test_json_has_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = runs_of(capsys, *DOCUMENTS, "--ideal")["runs"]
    assert [one["stage"] for one in run["stages"]] == ["render", "ocr", "upload"]
    assert run["completed"] == run["documents"] == 80
    assert run["stages"][1]["rows"] == run["pages"]


def test_a_sweep_says_how_many_workers_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    found = runs_of(capsys, *DOCUMENTS, "--sweep", "workers=2,4,8")["sweep"]
    walls = [run["wall_s"] for run in found]
    assert [run["stages"][1]["workers"] for run in found] == [2, 4, 8]
    assert walls == sorted(walls, reverse=True)
    out = simulated(capsys, *DOCUMENTS, "--sweep", "upload.workers=1,4")
    assert out.splitlines()[-4:][0] == "upload:"


def test_children_come_from_a_file_or_a_manifest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain, table, parquet = (tmp_path / name for name in ("a.csv", "b.csv", "part-00000.parquet"))
    plain.write_text("3\n5\n")
    table.write_text("name,pages,size\na,3,9\nb,5,1\n")
    pq.write_table(pa.table({"uri": ["a", "x", "b"], "children": [3, 0, 5]}), parquet)
    for given in (str(plain), str(table), f"manifest:{parquet}", f"manifest:{tmp_path}"):
        (run,) = runs_of(capsys, "--children", given)["runs"]
        assert (run["documents"], run["pages"]) == (2, 8)


def test_pictures_show_every_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawn, painted = tmp_path / "runs.svg", tmp_path / "runs.png"
    files = ("--svg", str(drawn), "--png", str(painted))
    simulated(capsys, *DOCUMENTS, "--compare", "global-regroup", *files)
    root = ET.parse(drawn).getroot()
    said = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(text.startswith(("lineage, fifo", "global-regroup, fifo")) for text in said) == 2
    assert said.count("ocr x 4") == said.count("documents out") == 2
    for polygon in root.iter("{http://www.w3.org/2000/svg}polygon"):
        for point in polygon.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= float(root.attrib["width"])
            assert 0 <= y <= float(root.attrib["height"])
    with Image.open(painted) as image:
        assert image.size == (int(root.attrib["width"]), int(root.attrib["height"]))
        assert len(image.getcolors(1 << 20) or ()) > 5


@stage(batch_size=4, replicas=2)
class Lines:
    def __call__(self, rows: Any) -> Any:
        return [["a"] * row for row in rows]


@stage(batch_size=8, replicas=3)
class Read:
    def __call__(self, rows: Any) -> Any:
        return rows


@program(version="1")
def measured(source: Any) -> Any:
    return F.reduce(Read()(F.expand(Lines()(source), domain="line")))


def test_stages_come_from_what_a_run_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from rayorch_prefect.execution.driver import Driver
    from rayorch_prefect.execution.metrics import snapshot

    driver = Driver(measured.plan, None, float)  # type: ignore[arg-type]
    for n in (4, 8):
        driver.costs[0].add(n, 0.1 + 0.01 * n)
        driver.costs[1].add(n, 0.5 + 0.02 * n)
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(asdict(snapshot(driver, None))))
    stages, step = stages_in(file)
    lines, read = stages
    assert (lines.name, lines.level, lines.batch, lines.workers) == ("Lines", Level.DOCUMENT, 4, 2)
    assert (read.name, read.level, read.batch, read.workers) == ("Read", Level.PAGE, 8, 3)
    assert (lines.call_s, lines.row_s, lines.child_s) == pytest.approx((0.1, 0, 0.01))
    assert (read.call_s, read.row_s, read.child_s) == pytest.approx((0.5, 0.02, 0))
    assert step is None
    more = ("--stage", "Read:workers=5", "--children", "lognormal:9,1,20")
    assert main(["simulate", "--from-metrics", str(file), *more, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["stage"], one["workers"]) for one in run["stages"]] == [("Lines", 2), ("Read", 5)]


def test_costs_are_told_apart_where_batches_differ() -> None:
    costs = StageCosts()
    assert costs.fitted() == (0, 0)
    for n in (3, 16, 16, 9):
        costs.add(n, 0.03 + 0.004 * n)
    assert costs.fitted() == pytest.approx((0.03, 0.004))
    alike, falling, empty = StageCosts(), StageCosts(), StageCosts()
    for _ in range(3):
        alike.add(8, 0.4)
        empty.add(0, 0.2)
    for n in (1, 2):
        falling.add(n, 1.0 / n)
    assert alike.fitted() == pytest.approx((0, 0.05))
    assert falling.fitted() == pytest.approx((0.75, 0))
    assert empty.fitted() == pytest.approx((0.2, 0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "ocr:row=fast"], "'fast' is no time; expected such as 50ms"),
        (["--stage", "ocr:speed=3"], "'speed=3' is no setting; expected level, batch"),
        (["--stage", "ocr:batch=0"], "stage ocr: batch: '0' is not a whole number from 1 up"),
        (["--stage", "ocr:level=book"], "'book' is none of document, range, page"),
        (["--stage", "ocr:tail=much"], "stage ocr: tail: 'much' is not a number from 0 up"),
        (["--stage", "more"], "expected document stages, range stages, page stages"),
        (["--policy", "best"], "there is no policy 'best'"),
        (["--compare", "lineage"], "'lineage' is none of whole-document, global-regroup"),
        (["--poison", "3:middle"], "'middle' is none of first, random, last"),
        (["--poison", "3:first@upload"], "pages cannot fail at upload"),
        (["--sweep", "gpus=3"], "expected workers=8,16 or STAGE.batch=16,32"),
        (["--children", "lognormal:3"], "expected lognormal:MEDIAN,SIGMA,N"),
        (["--sweep", "zz.workers=3"], "there is no stage zz; known:"),
        (["--poison", "500%:first"], "poison 500%:first: there are "),
        (["--microbatch-size", "0"], "--microbatch-size is 0; expected at least 1"),
        (["--children", "pyproject.toml"], "has neither a whole number nor a column"),
        (["--children", "none.csv"], "children of none.csv"),
        (["--children", "manifest:none"], "none is neither an s3:// manifest nor a Parquet file"),
        (["--from-metrics", "pyproject.toml"], "metrics of pyproject.toml"),
        (["--regroup", "soon"], "'soon' is no time"),
        (["--svg", "/no/such/folder/a.svg"], "cannot be written: there is no such folder"),
    ],
)
def test_what_makes_no_simulation_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main(["simulate", *DOCUMENTS, *STAGES, *arguments])
    except SystemExit as left:
        status = left.code
    told = capsys.readouterr().err
    assert (status, told.count("\n")) == (2, 1)
    assert said in told


def test_stages_may_be_missing_altogether(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *DOCUMENTS]) == 2
    assert "give --stage, or --from-metrics" in capsys.readouterr().err


def test_a_program_that_is_no_chain_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = {"grains": 1, "batch_size": 1, "workers": 1, "call_s": 0, "row_s": 0, "depth": 1}
    side_by_side = [{**call, "stage": name, "domain": name} for name in ("clip", "audio")]
    file = tmp_path / "summary.json"
    file.write_text(json.dumps({"calls": side_by_side}))
    assert main(["simulate", *DOCUMENTS, "--from-metrics", str(file)]) == 2
    assert "its stages lie on audio, clip" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_costs_no_simulation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = str(tmp_path / "nowhere" / "picture.svg")
    status = main(
        ["simulate", "--children", "lognormal:5,1,10", "--stage", "ocr", "--svg", picture]
    )
    assert status == 2
    shown = capsys.readouterr()
    assert "there is no such folder" in shown.err
    assert not shown.out
