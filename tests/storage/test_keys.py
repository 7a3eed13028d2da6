from __future__ import annotations

import re
import string
import unicodedata
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayorch_prefect.errors import ProgramError, UsageError
from rayorch_prefect.storage.keys import MAX_KEY_BYTES, escape_key, output_key

DESTINATION = "out/"

AWKWARD = [
    "in/a b+c%20d.json",
    "in/café.json",
    "in/cafe\u0301.json",
    "in//lead.json",
    "in/x//y.json",
    "in/doc-📄.json",
    "in/\uac00",
    "in/\u1100\u1161",
    "in/\u212b",
    "in/\u00c5",
    "in/../x",
    "in/./x",
    "in/x/",
    "in/x//",
    "/",
    "//",
    ".",
    "..",
    "~",
    "in/\x00\n\x7f\x85",
    "_rayorch/p/ledger/x.json",
    "_rayorch",
    "a" * 1000,
    "+" * 1000,
    "é" * 500,
    "📄/" * 200,
    " ",
]

# Built to collide: what escapes are made of, and what they stand for.
tricky = st.text(st.sampled_from("a.~/+_2BbE \u0301é📄%\\"), min_size=1, max_size=12)
anything = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300).filter(
    lambda key: len(key.encode()) <= 1024
)
long_keys = st.builds(
    lambda head, char, count, tail: head + char * count + tail,
    tricky,
    st.sampled_from("a+é/. ~"),
    st.integers(60, 490),
    tricky,
)
keys = st.one_of(tricky, anything, long_keys)
suffixes = st.lists(
    st.text(st.sampled_from(string.ascii_letters + "0_-"), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
).map(lambda words: "".join(f".{word}" for word in words))


def read_back(produced: str) -> tuple[str, str]:
    """The layout's inverse for keys that are not cut: source key and suffix."""
    name = produced.removeprefix(DESTINATION)
    if "~." in name:
        name, _, rest = name.partition("~.")
        suffix = f".{rest}"
    else:
        name, _, rest = name.rpartition(".")
        suffix = f".{rest}"
    raw = b"".join(
        b"" if token == "~_" else bytes.fromhex(token[1:]) if token[0] == "~" else token.encode()
        for token in re.findall(r"~_|~[0-9A-F]{2}|[^~]", name, re.DOTALL)
    )
    return raw.decode(), suffix


@given(keys, suffixes)
@example("in/a.b", ".json")
@example("in/a", ".b.json")
@settings(max_examples=1000, deadline=None)
def test_a_key_is_read_back_from_its_output(key: str, suffix: str) -> None:
    produced = output_key(DESTINATION, key, suffix)
    if "~~" in produced:
        assert f"~~{sha256(key.encode()).hexdigest()}" in produced
        assert len(escape_key(key).encode()) > 150
    else:
        assert read_back(produced) == (key, suffix)


@given(
    st.lists(st.tuples(st.one_of(tricky, long_keys), suffixes), min_size=2, max_size=8, unique=True)
)
@settings(max_examples=500, deadline=None)
def test_different_parents_and_suffixes_never_meet(pairs: list[tuple[str, str]]) -> None:
    produced = {output_key(DESTINATION, key, suffix) for key, suffix in pairs}
    # A disk that normalises names must not fold them together either.
    assert len({unicodedata.normalize("NFC", each) for each in produced}) == len(pairs)


@given(keys, suffixes, suffixes)
@settings(max_examples=500, deadline=None)
def test_a_key_and_the_output_made_of_it_never_meet(key: str, first: str, second: str) -> None:
    forged = output_key("", key, first)
    forged_key = escape_key(key)
    produced = [output_key(DESTINATION, each, second) for each in {key, forged, forged_key}]
    assert len(set(produced)) == len(produced)


@given(keys, suffixes)
@settings(max_examples=500, deadline=None)
def test_every_output_is_a_safe_key(key: str, suffix: str) -> None:
    assert_safe(output_key(DESTINATION, key, suffix))


@pytest.mark.parametrize("key", AWKWARD)
def test_awkward_keys_are_safe(key: str) -> None:
    assert_safe(output_key(DESTINATION, key, ".json"))


def test_awkward_keys_are_different() -> None:
    produced = [output_key(DESTINATION, key, ".json") for key in AWKWARD]
    assert len({unicodedata.normalize("NFKC", each) for each in produced}) == len(AWKWARD)


def assert_safe(produced: str) -> None:
    assert produced.startswith(DESTINATION)
    segments = produced.removeprefix(DESTINATION).split("/")
    assert not {"", ".", ".."} & set(segments)
    assert segments[0] != "_rayorch"
    assert len(produced.encode()) <= MAX_KEY_BYTES
    assert all(len(segment.encode()) <= 255 for segment in segments)
    assert not any(unicodedata.category(char)[0] in "CM" for char in produced)


@pytest.mark.parametrize(
    ("key", "suffix", "expected"),
    [
        ("in/report.pdf", ".md", "out/in/report.pdf.md"),
        ("in/Annual Report (2024).pdf", ".json", "out/in/Annual Report (2024).pdf.json"),
        ("dt=2024-01-01/汉字.pdf", ".md", "out/dt=2024-01-01/汉字.pdf.md"),
        ("in/a b+c%20d.json", ".txt", "out/in/a b~2Bc~2520d.json.txt"),
        ("in//lead.json", ".json", "out/in/~_/lead.json.json"),
        ("in/cafe\u0301", ".json", "out/in/cafe~CC~81.json"),
        ("in/../x", ".json", "out/in/~2E~2E/x.json"),
        ("in/a", ".pages.json", "out/in/a~.pages.json"),
        ("_rayorch/x", ".json", "out/~5Frayorch/x.json"),
    ],
)
def test_the_layout_is_pleasant_to_read(key: str, suffix: str, expected: str) -> None:
    assert output_key(DESTINATION, key, suffix) == expected


def test_a_cut_key_begins_readably_and_ends_with_the_hash() -> None:
    key = "in/" + "long name " * 99
    produced = output_key(DESTINATION, key, ".md")
    assert produced.startswith("out/in/long name long name")
    assert produced.endswith(f"~~{sha256(key.encode()).hexdigest()}.md")


def test_all_artifacts_of_a_parent_are_cut_or_none() -> None:
    long_suffix = ".x" + "y" * 62
    for length in range(170, 260):
        cut = {"~~" in output_key(DESTINATION, "k" * length, s) for s in (".a", long_suffix)}
        assert len(cut) == 1


@pytest.mark.parametrize("suffix", ["", ".", "json", ".a/b", "..", ".a.", ".é", "." + "x" * 64])
def test_a_suffix_that_is_not_allowed_is_named(suffix: str) -> None:
    with pytest.raises(ProgramError, match="suffix"):
        output_key(DESTINATION, "in/a", suffix)


def test_a_destination_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(UsageError, match="leave room"):
        output_key("d" * 900 + "/", "in/a", ".json")
    assert_long = output_key("d" * 760 + "/", "+" * 1000, ".x" + "y" * 62)
    assert len(assert_long.encode()) <= MAX_KEY_BYTES
