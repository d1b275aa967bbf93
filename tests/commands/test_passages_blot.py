"""``passages blot`` and ``passages unblot`` through the command line."""

from __future__ import annotations

import gzip
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.passages.index import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands.conftest import Called

SHARED = " ".join(f"word{number}" for number in range(40))
ROW = re.compile(r"([0-9a-f]{16})  tokens (\d+)-(\d+)  characters (\d+)-(\d+)  (word.*)")


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "index"
    with PassageIndex(path) as index:
        index.add("one", f"{SHARED} one")
        index.add("two words", f"two {SHARED.upper()}")
        index.add("alone", " ".join(f"alone{number}" for number in range(20)))
    Path("shared.txt").write_text(SHARED, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def elsewhere(call: Callable[..., Called]) -> None:
    """In the folder where the command line is called."""


def test_without_an_index_the_blots_are_those_of_a_new_one(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "blot", "shared.txt")
    assert called.code == 0
    assert called.out == call("passages", "blot", "shared.txt", "--root", root).out
    assert not Path(".scrapy/dedupe/passages").exists()
    absent = call("passages", "blot", "shared.txt", "--root", "absent")
    assert absent.code == 3
    assert "no passage index in absent" in absent.err


def test_blots_are_shown_one_a_line(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "blot", "shared.txt", "--root", root)
    assert called.code == 0
    blots = called.out.split()
    assert len(blots) >= 4
    assert all(re.fullmatch("[0-9a-f]{16}", blot) for blot in blots)
    assert called.out == "\n".join(blots) + "\n"


def test_offsets_tell_what_each_blot_is_made_of(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "blot", "shared.txt", "--root", root, "--offsets", "--all")
    rows = [ROW.fullmatch(line) for line in called.out.splitlines()]
    assert len(rows) == 40 - 8 + 1
    for number, row in enumerate(rows):
        assert row is not None
        assert (int(row[2]), int(row[3])) == (number, number + 8)
        assert SHARED[int(row[4]) : int(row[5])] == row[6]


def test_blots_of_several_files_are_told_apart(call: Callable[..., Called], root: str) -> None:
    Path("short.txt").write_text("too short", encoding="utf-8")
    called = call("passages", "blot", "shared.txt", "short.txt", "--root", root, "--json")
    assert [(file["file"], bool(file["blots"])) for file in called.json["files"]] == [
        ("shared.txt", True),
        ("short.txt", False),
    ]


def test_all_members_of_a_compressed_file_are_read(call: Callable[..., Called], root: str) -> None:
    half = len(SHARED) // 2
    members = (SHARED[:half].encode(), SHARED[half:].encode())
    Path("members.txt.gz").write_bytes(b"".join(map(gzip.compress, members)))
    whole = call("passages", "blot", "shared.txt", "--root", root, "--all")
    assert len(whole.out.splitlines()) == 33
    assert call("passages", "blot", "members.txt.gz", "--root", root, "--all").out == whole.out


@pytest.mark.parametrize("cut", [1, 20])
def test_a_compressed_file_that_is_cut_is_damaged_input(
    call: Callable[..., Called], root: str, cut: int
) -> None:
    Path("cut.txt.gz").write_bytes(gzip.compress(SHARED.encode())[:-cut])
    called = call("passages", "blot", "cut.txt.gz", "--root", root)
    assert (called.code, called.out) == (4, "")
    assert "cut.txt.gz cannot be decompressed" in called.err
    assert call("passages", "like", "shared.txt", "--root", root, "--taboo", "cut.txt.gz").code == 4


def test_unblot_shows_where_shared_blots_stand(call: Callable[..., Called], root: str) -> None:
    row = call("passages", "blot", "shared.txt", "--root", root, "--json").json["files"][0]["blots"][0]
    called = call("passages", "unblot", row["blot"], "--root", root)
    start, end = row["token_start"], row["token_end"]
    first, last = row["char_start"], row["char_end"]
    assert called.out.splitlines() == [
        f"{row['blot']}  2 documents: {row['text']}",
        f"    tokens {start}-{end}, characters {first}-{last}  one",
        f"    tokens {start + 1}-{end + 1}, characters {first + 4}-{last + 4}  two words",
    ]


def test_what_stands_in_one_document_is_shown_if_all_are_asked_for(
    call: Callable[..., Called], root: str
) -> None:
    Path("alone.txt").write_text(" ".join(f"alone{number}" for number in range(20)), encoding="utf-8")
    blot = call("passages", "blot", "alone.txt", "--root", root).out.split()[0]
    called = call("passages", "unblot", blot, "1234", "--root", root)
    assert called.code == 0
    assert called.out == "1 blot is in a single document; use --all to show it.\n1234 was not found.\n"
    called = call("passages", "unblot", blot, "--root", root, "--all", "--json")
    assert [(item["documents"], item["places"][0]["doc_id"]) for item in called.json["blots"]] == [
        (1, "alone")
    ]


def test_what_blot_shows_can_be_piped_into_unblot(
    call: Callable[..., Called], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = call("passages", "blot", "shared.txt", "--root", root, "--offsets").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(shown.encode())))
    called = call("passages", "unblot", "-", "--root", root, "--json")
    # The blots at the ends of a file depend on what is around the passage elsewhere.
    assert len(called.json["blots"]) + len(called.json["unknown"]) == len(shown.splitlines())
    assert len(called.json["blots"]) >= 3


@pytest.mark.parametrize("word", ["hello", "", "1" * 17])
def test_what_is_no_blot_is_refused(call: Callable[..., Called], root: str, word: str) -> None:
    called = call("passages", "unblot", word, "--root", root)
    assert called.code == 2
    assert "not a blot" in called.err


def test_bytes_that_are_no_text_on_standard_input_are_no_blot(
    call: Callable[..., Called], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xe9\xff\n")))
    called = call("passages", "unblot", "-", "--root", root)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "not a blot" in called.err
