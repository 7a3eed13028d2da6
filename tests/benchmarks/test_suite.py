"""The benchmarks' own arithmetic: seeded work, what counts as done, a page that is up to date."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import __main__ as command
from benchmarks import ten_million
from benchmarks.bodies import Bodies, ByteBodies, expected_digests
from benchmarks.calls import Call, CallLog, Job, calls_in
from benchmarks.measured import complete, never_read, timed
from benchmarks.one import MODULES, parsed
from benchmarks.processes import watched
from benchmarks.rounds import ROOT
from benchmarks.systems.plain_loop import packed
from benchmarks.table import PAGE, base_of, page, section
from benchmarks.workloads import MAKERS, Document, Workload, long_tailed, made, w2, w3, w6


def documents_of(workload: Workload) -> tuple[int, int, int]:
    counts = [document.pages for document in workload.documents]
    return len(counts), sum(counts), max(counts)


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text() == page(), "run `make bench ARGS=table`"


def test_the_seeded_documents_stay_the_same() -> None:
    found = {name: documents_of(made(name, {})) for name in MAKERS if name not in ("w7", "w6_big")}
    assert found == {
        "w1": (1702, 80_000, 427),
        "w2": (120, 3_000, 162),
        "w3": (188, 4_830, 427),
        "w4": (320, 10_240, 32),
        "w4_fine": (1_280, 40_960, 32),
        "w6": (40, 500, 60),
        "w8": (1_200, 30_000, 162),
        "ablation": (120, 3_000, 162),
    }
    assert long_tailed(1, 50, 900, 100) == long_tailed(1, 50, 900, 100)


def test_the_bound_is_that_of_the_busiest_stage() -> None:
    assert w2().bound_s() == pytest.approx(4.41)
    assert replace(w2(), upload_s=0.4).bound_s() == pytest.approx(0.4 * 120 / 4)


def test_a_setting_is_the_maker_s_or_a_field_or_refused() -> None:
    assert documents_of(made("w1", {"pages": 940, "batch": 8}))[:2] == (20, 940)
    assert made("w1", {"batch": 8}).batch == 8
    with pytest.raises(ValueError, match="w1 has no setting bach"):
        made("w1", {"bach": 8})
    with pytest.raises(ValueError, match="wants real PDFs"):
        made("w7", {})


def test_a_page_spoils_each_large_document() -> None:
    pages = {document.number: document.pages for document in w3().documents}
    assert len(w3().poison) == 10
    assert all(pages[number] > 23 and page == 0 for number, page in w3().poison)
    assert all(pages[number] == page + 1 for number, page in w3(page="last").poison)
    assert not w3(page="none").poison
    with pytest.raises(ValueError, match="expected one of first, random, last, none"):
        w3(page="second")


def test_what_was_never_read_is_a_share_of_the_siblings() -> None:
    work = Workload("w3", (Document(0, 11), Document(1, 5)), poison=((0, 3),))
    assert never_read(work, 16) == 0.0
    assert never_read(work, 8) == 0.8
    digests = expected_digests(work)
    assert digests is not None
    output = {"document": 1, "pages": 5, "ordered": True, "digest": digests[1]}
    assert complete(work, [output]), "nothing comes of the other"


def test_a_system_is_named_with_options_and_settings() -> None:
    named = parsed("rayorch:window=8:active=2@poison=false")
    assert named.options == {"window": 8, "active": 2}
    assert named.settings == {"poison": False}
    with pytest.raises(ValueError, match="no system rayorc;"):
        parsed("rayorc")


def test_every_default_system_exists() -> None:
    named = {
        parsed(each).name for systems in command.SYSTEMS.values() for each in systems.split(",")
    }
    assert named == MODULES.keys()
    assert command.SYSTEMS.keys() == MAKERS.keys()


def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["w1", "--systems", "nobody"]) == 2
    assert "there is no system nobody" in capsys.readouterr().err


def job(tmp_path: Path, workload: Workload) -> Job:
    return Job(workload, str(tmp_path), 0)


def test_calls_are_logged_and_read_again(tmp_path: Path) -> None:
    logs = [CallLog(job(tmp_path, w2()), stage) for stage in ("render", "read")]
    for rows, log in enumerate(logs):
        log.begin()
        log.end(rows)
    assert [(call.stage, call.rows) for call in calls_in(str(tmp_path))] == [
        ("render", 0),
        ("read", 1),
    ]


def outputs_of(tmp_path: Path, workload: Workload) -> list[dict[str, Any]]:
    own = Bodies(job(tmp_path, workload), "read")
    outputs = []
    for document in workload.documents:
        texts = own.read(own.render(document.number))
        outputs.append(own.assemble(document.number, range(document.pages), texts))
    return outputs


def test_complete_means_each_document_once_in_order_and_right(tmp_path: Path) -> None:
    workload = made("w1", {"pages": 94})
    outputs = outputs_of(tmp_path, workload)
    random.Random(0).shuffle(outputs)
    assert complete(workload, outputs)
    first, *rest = outputs
    assert not complete(workload, rest)
    assert not complete(workload, [*outputs, first])
    assert not complete(workload, [{**first, "ordered": False}, *rest])
    assert not complete(workload, [{**first, "digest": "another"}, *rest])
    assert not complete(workload, [{**first, "pages": first["pages"] + 1}, *rest])


def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    own = ByteBodies(job(tmp_path, w6(pages=5, documents=1, page_mib=1)), "read")
    page = next(own.rendered(0))
    assert own.text(page).startswith("0/0 ")
    page["image"][-1] ^= 1
    with pytest.raises(ValueError, match="page 0/0 is damaged"):
        own.text(page)


def test_times_come_from_the_log() -> None:
    calls = [
        Call("render", 10.0, 11.0, 20, 0.5),
        Call("read", 11.0, 13.0, 16, 0.5),
        Call("read", 11.5, 14.0, 4, 0.5),
        Call("assemble", 14.0, 14.5, 1, 0.0),
        Call("upload", 14.5, 15.5, 1, 0.0),
    ]
    found = timed(w2(), calls, 16.0)
    assert found["wall_s"] == 6.0
    assert found["first_document_s"] == 5.5
    assert found["tail_s"] == 1.5
    assert found["fill"] == 20 / 2 / 16
    assert found["stage_cpu_s"] == 1.5


def test_the_loop_packs_full_batches_in_order() -> None:
    documents = (Document(0, 5), Document(1, 2), Document(2, 4))
    assert list(packed(documents, 4)) == [
        [(0, 0, 4)],
        [(0, 4, 5), (1, 0, 2), (2, 0, 1)],
        [(2, 1, 4)],
    ]


def figures(wall_s: float, digest: str = "a") -> dict[str, Any]:
    return {
        **timed(w2(), [Call("read", 0, 1, 16, 0), Call("upload", 1, 2, 1, 0)], 2.0),
        "wall_s": wall_s,
        "driver_mib": {"before": 100.0, "after": 110.0, "peak": 120.0},
        "complete": True,
        "digest": digest,
        "private_mib": 900.0,
        "others_cores": 0.1,
    }


def test_the_table_pairs_rounds_and_tells_failures_and_wrong_outputs() -> None:
    runs = {
        "ours": [figures(2.0), figures(9.0)],
        "loop": [figures(1.0), figures(3.0)],
        "daft": [{"error": "exit status 1: no | luck"}] * 2,
        "pool": [figures(1.0, "b"), {"error": "killed"}],
    }
    found = {
        "name": "w2",
        "settings": {},
        "workload": {
            "kind": "none",
            "read_workers": 4,
            "documents": 120,
            "pages": 3000,
            "longest": 162,
            "payload_mib": 0,
            "store_mib": 0,
            "batch": 16,
        },
        "machine": {"cores": 2, "memory_gib": 8.0, "python": "3.11", "versions": {"ray": "2"}},
        "systems": {name: {"about": f"{name}.", "bound_s": 0.5} for name in runs},
        "runs": runs,
    }
    lines = section(found).splitlines()
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| ")}
    assert rows["| ours"].startswith("| ours | 2.50 (2.00-3.00) | 11.00 (4.00-18.00) |")
    assert "failed: exit status 1: no / luck" in rows["| daft"]
    assert rows["| pool"].endswith("| WRONG, 1 failed |")
    assert rows["| loop"].endswith("| equal |")


def test_a_system_is_held_against_one_of_the_same_settings() -> None:
    runs: dict[str, Any] = dict.fromkeys(["a", "loop", "b", "loop@n=4", "b@n=4", "c@n=8", "b@n=8"])
    assert [base_of(system, runs) for system in ("a", "b", "b@n=4", "b@n=8")] == [
        "loop",
        "loop",
        "loop@n=4",
        "loop",
    ]
    ablation: dict[str, Any] = dict.fromkeys(["o:s=1", "o", "o:s=1@n=64", "o@n=64"])
    assert [base_of(system, ablation) for system in ("o", "o@n=64")] == ["o:s=1", "o:s=1@n=64"]


def test_a_process_and_what_it_left_behind_are_ended(tmp_path: Path) -> None:
    said = tmp_path / "said"
    leaves_one = (
        "import subprocess, time;"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True);"
        "time.sleep(600)"
    )
    seen = watched(["-c", leaves_one], {}, said, limit_s=3)
    assert seen["status"] == -9
    assert seen["private_mib"] > 0
    assert not psutil.pid_exists(int(said.read_text()))


def test_a_driver_that_keeps_microbatches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [*range(100, 110), *[140.0] * 90]
    monkeypatch.setattr(ten_million, "measured", lambda pages: kept)
    with pytest.raises(SystemExit, match="keeps too much"):
        ten_million.main(100)


def test_microbatches_are_let_go() -> None:
    found = ten_million.measured(20_000, microbatches=10)
    assert len(found) == 10
    assert found[-1] <= found[2] * ten_million.MOST_GROWTH


def test_results_name_no_folder_of_this_machine() -> None:
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert not re.search("/(work|tmp|home|root)/", file.read_text()), file
