"""``restore``: what it says and writes, and with which exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from archives import check
from deduped_files import Archive, Page, dedupe, response, uncompressed, write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BODY = b"<p>a lake</p>" * 200


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return Archive({"a.warc.gz": [Page(1, BODY)], "b.warc.gz": [Page(2, BODY), Page(3, b"x")]}).write(
        tmp_path / "first"
    )


@pytest.fixture
def deduped(first: Path, tmp_path: Path) -> Path:
    return dedupe(first, tmp_path / "deduped")


def test_a_folder_is_restored(call: Callable[..., Any], first: Path, deduped: Path, tmp_path: Path) -> None:
    done = call("restore", str(deduped), "-o", str(tmp_path / "out"))
    assert (done.code, done.err) == (0, "")
    assert "1 revisit restored, references of 1 other record reverted, in 1 of 2 files" in done.out
    for name in ("a.warc.gz", "b.warc.gz"):
        assert uncompressed(tmp_path / "out" / name) == uncompressed(first / name)
    check(tmp_path / "out")


def test_the_result_as_json(call: Callable[..., Any], deduped: Path, tmp_path: Path) -> None:
    done = call("restore", "--json", str(deduped), "-o", str(tmp_path / "out"))
    assert done.json["restored"] == 1
    assert done.json["faults"] == []


@pytest.mark.parametrize("words", [[], ["-o", "out", "--in-place"], ["-o", "out", "--jobs", "-1"]])
def test_wrong_words_are_one_sentence_and_code_2(
    call: Callable[..., Any], deduped: Path, words: list[str]
) -> None:
    done = call("restore", str(deduped), *words)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_an_output_that_is_there_is_code_3(call: Callable[..., Any], deduped: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "out" / "a.warc.gz", [b"precious"])
    done = call("restore", str(deduped), "-o", str(tmp_path / "out"))
    assert done.code == 3
    assert "--force" in done.err
    assert call("restore", str(deduped), "-o", str(tmp_path / "out"), "--force").code == 0


def test_a_missing_original_is_code_4(call: Callable[..., Any], deduped: Path, tmp_path: Path) -> None:
    part = str(deduped / "b.warc.gz")
    done = call("restore", part, "-o", str(tmp_path / "out"))
    assert done.code == 4
    assert "--originals" in done.err
    assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").rglob("*.warc*")]
    done = call("restore", part, "-o", str(tmp_path / "out"), "--keep-going")
    assert done.code == 4
    assert "1 fault" in done.err
    assert "its original" in done.out
    assert "Nothing was restored in 1 file (" in done.out
    done = call("restore", part, "-o", str(tmp_path / "whole"), "--originals", str(deduped / "a.warc.gz"))
    assert done.code == 0


def test_former_fields_of_other_programs_are_counted_and_no_fault(
    call: Callable[..., Any], deduped: Path, tmp_path: Path
) -> None:
    other = response(Page(9, b"y", fields=[(b"Former-WARC-Record-ID", b"<urn:uuid:1>")]))
    write_file(deduped / "c.warc.gz", [other])
    done = call("restore", str(deduped), "-o", str(tmp_path / "out"))
    assert (done.code, done.err) == (0, "")
    assert "Not restored: 1 record with Former- fields that warcrefs or dedupe did not write." in done.out
    assert uncompressed(tmp_path / "out" / "c.warc.gz") == other
