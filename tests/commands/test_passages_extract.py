"""``passages extract`` through the command line."""

from __future__ import annotations

import csv
import io
import json
import re
import resource
import tempfile
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.passages.index import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RUN = " ".join(f"p{number}" for number in range(20))
NAMES = ('a file, with "quotes".txt', "https://example.com/ä b")


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "index"
    with PassageIndex(path) as index:
        index.add(NAMES[0], f"before {RUN}, behind")
        index.add(NAMES[1], f"something else\n{RUN}\nand more")
    return str(path)


def test_text_shows_the_passage_and_where_it_stands(root: str, call: Callable) -> None:
    called = call("passages", "extract", "--root", root)
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines() == [
        f"1. 20 tokens in 2 documents, score 20: {RUN}",
        f"     {NAMES[0]}: tokens 1-21, characters 7-{7 + len(RUN)}",
        f"     {NAMES[1]}: tokens 2-22, characters 15-{15 + len(RUN)}",
    ]


def test_json_lines_have_every_place(root: str, call: Callable) -> None:
    (line,) = call("passages", "extract", "--root", root, "--format", "jsonl").out.splitlines()
    row = json.loads(line)
    assert (row["rank"], row["tokens"], row["documents"], row["score"], row["text"]) == (1, 20, 2, 20, RUN)
    assert [place["doc_id"] for place in row["places"]] == list(NAMES)
    assert row["places"][1] == {
        "doc_id": NAMES[1], "token_start": 2, "token_end": 22, "char_start": 15, "char_end": 15 + len(RUN),
    }  # fmt: skip


def test_csv_has_a_line_for_each_place(root: str, call: Callable, tmp_path: Path) -> None:
    output = tmp_path / "passages.csv"
    called = call("passages", "extract", "--root", root, "--format", "csv", "-o", str(output))
    assert called.out == f"1 passage at 2 places: {output}\n"
    rows = list(csv.DictReader(io.StringIO(output.read_bytes().decode(), newline="")))
    assert [(row["rank"], row["doc_id"], row["token_start"], row["text"]) for row in rows] == [
        ("1", NAMES[0], "1", RUN),
        ("1", NAMES[1], "2", RUN),
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", r"No documents .*\n"),
        ("jsonl", ""),
        ("csv", r"rank,score,tokens,documents,doc_id,[a-z_,]*,text\r?\n"),
    ],
)
def test_no_passage_is_told_to_readers_alone(root: str, call: Callable, form: str, expected: str) -> None:
    called = call("passages", "extract", "--root", root, "--min-docs", "3", "--format", form)
    assert (called.code, called.err) == (0, "")
    assert re.fullmatch(expected, called.out)


def test_a_file_that_is_there_is_replaced_by_force_alone(root: str, call: Callable, tmp_path: Path) -> None:
    output = tmp_path / "passages.txt"
    output.write_text("mine")
    called = call("passages", "extract", "--root", root, "-o", str(output))
    assert called.code == 3
    assert "--force" in called.err
    assert output.read_text() == "mine"
    called = call("passages", "extract", "--root", root, "-o", str(output), "--force", "--json")
    assert called.json == {"root": root, "output": str(output), "format": "text", "passages": 1, "places": 2}
    assert output.read_text().startswith("1. 20 tokens")


def test_a_file_is_written_whole_or_not_at_all(root: str, call: Callable, tmp_path: Path) -> None:
    output = tmp_path / "passages.txt"
    assert call("passages", "extract", "--root", root, "-o", str(output), "--min-docs", "1").code == 2
    assert not output.exists()
    assert not output.with_name("passages.txt.new").exists()


def test_options_reach_the_search(root: str, call: Callable, tmp_path: Path) -> None:
    taboo = tmp_path / "taboo.txt"
    taboo.write_text(RUN)
    nothing = f"No documents of {root} share a passage that matches the options.\n"
    for words in (["--min-tokens", "21"], ["--min-docs", "3"], ["--taboo", str(taboo)]):
        assert call("passages", "extract", "--root", root, *words).out == nothing
    refused = call("passages", "extract", "--root", root, "--top", "0")
    assert (refused.code, refused.out) == (2, "")
    assert "top is 0. Give 1 or more." in refused.err


def test_json_beside_the_passages_is_refused(root: str, call: Callable) -> None:
    called = call("passages", "extract", "--root", root, "--json")
    assert called.code == 2
    assert "--json needs a file" in called.err


def test_an_index_that_is_not_there_is_named(call: Callable, tmp_path: Path) -> None:
    called = call("passages", "extract", "--root", str(tmp_path / "nowhere"))
    assert called.code == 3
    assert "nowhere" in called.err


def test_what_is_found_is_kept_where_it_is_said(
    root: str, call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *words: made.append(str(words[2])) or real(*words))
    (tmp_path / "work").mkdir()
    assert call("passages", "extract", "--root", root, "--work", str(tmp_path / "work")).code == 0
    assert made == [str(tmp_path / "work")]
    assert list((tmp_path / "work").iterdir()) == []


def test_a_full_or_absent_folder_for_it_is_told_in_a_sentence(
    root: str, call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "nowhere")
    called = call("passages", "extract", "--root", root, "--work", absent)
    assert (called.code, called.err.count("\n")) == (3, 1)
    assert absent in called.err
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        called = call("passages", "extract", "--root", root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (called.code, called.err.count("\n")) == (3, 1)
    assert tempfile.gettempdir() in called.err
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [absent])
    called = call("passages", "extract", "--root", root)
    assert (called.code, called.err.count("\n")) == (3, 1)
    assert "--work" in called.err
