"""The samples are what they claim to be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rayorch_prefect import RecordFailure
from rayorch_prefect.workloads.documents import ListPages, ReadPage
from rayorch_prefect.workloads.samples import Sample, SampleSet, make_samples
from tests.workloads.local_source import LocalSource


@pytest.fixture(scope="module")
def samples() -> SampleSet:
    return make_samples()


def ended(sample: Sample) -> tuple[int, str | None]:
    try:
        return len(ListPages()(LocalSource(sample.name, sample.data))), None
    except RecordFailure as failure:
        return 0, failure.type


def test_every_sample_ends_as_it_says(samples: SampleSet) -> None:
    for sample in samples:
        assert ended(sample) == (sample.pages, sample.failure), sample.name


def test_the_set_as_a_whole(samples: SampleSet) -> None:
    assert len(samples) == 42
    assert samples.published == 39
    assert Counter(samples.failures.values()) == {"Encrypted": 1, "Truncated": 1, "NotAPdf": 1}
    counts = sorted(sample.pages for sample in samples if sample.failure is None)
    assert (counts[0], counts[-1], sum(counts)) == (1, 120, samples.pages)
    assert counts[len(counts) // 2] <= 5, "the tail is long, so most are short"
    assert len({sample.name for sample in samples}) == 42


def test_pages_say_their_number(samples: SampleSet) -> None:
    longest = max(samples, key=lambda sample: sample.pages)
    source, read = LocalSource(longest.name, longest.data), ReadPage()
    for ordinal in (0, 59, 119):
        assert f"Page {ordinal + 1} of 120\n" in read(source, ordinal)[0]["text"]
    read.close()


def test_two_scans_have_images_and_no_text(samples: SampleSet) -> None:
    scans = [sample for sample in samples if sample.name.startswith("scan-")]
    assert [scan.pages for scan in scans] == [1, 2]
    for scan in scans:
        source, read = LocalSource(scan.name, scan.data), ReadPage()
        for ordinal in range(scan.pages):
            page, has_text, has_none = read(source, ordinal)
            assert (page["text"], has_text, has_none) == ("", False, True)
            assert page["height"] == pytest.approx(841.89, abs=0.01)
        read.close()


def test_the_same_seed_gives_the_same_bytes(samples: SampleSet) -> None:
    assert make_samples() == samples
    assert make_samples(count=7, seed=8) != make_samples(count=7, seed=9)


def test_write(samples: SampleSet, tmp_path: Path) -> None:
    samples.write(tmp_path / "in")
    assert {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()} == {
        sample.name: sample.data for sample in samples
    }
