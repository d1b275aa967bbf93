from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def root(tmp_path: Path) -> str:
    with PassageIndex(tmp_path / "index") as index:
        for name in ("http://a/", "http://b/", "c d"):
            index.add(name, f"{WORDS} {name}")
    return str(tmp_path / "index")


def documents(root: str) -> list[str]:
    with PassageIndex(root, create=False) as index:
        return [document.doc_id for document in index.documents]


def test_documents_are_deleted_by_their_ids(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "delete", "http://a/", "c d", "http://a/", "--root", root, "--json")
    assert called.code == 0
    assert called.json == {"root": root, "documents": 2, "missing": [], "not_merged": None}
    assert documents(root) == ["http://b/"]


def test_what_is_not_there_is_told_and_the_rest_is_deleted(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "delete", "http://z/", "http://b/", "--root", root)
    assert called.code == 4
    assert "http://z/ is not in the index." in called.out
    assert "1 document was deleted" in called.out
    assert "1 document was not in the index." in called.err
    assert documents(root) == ["http://a/", "c d"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ids_come_from_a_file_or_standard_input(
    call: Callable[..., Called], root: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    Path("list").write_bytes(f"\ufeffhttp://a/{end}{end}c d".encode())
    assert call("passages", "delete", "--from", "list", "--root", root).code == 0
    assert documents(root) == ["http://b/"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"http://b/{end}".encode())))
    assert call("passages", "delete", "--from", "-", "--root", root).code == 0
    assert documents(root) == []


def test_an_empty_list_deletes_nothing(call: Callable[..., Called], root: str) -> None:
    Path("list").write_bytes(b"")
    assert call("passages", "delete", "--from", "list", "--root", root).code == 0
    assert len(documents(root)) == 3


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "No documents were given"),
        (("--from", "nothing"), 3, "nothing cannot be read: No such file"),
        (("--from", "latin"), 2, "latin is not UTF-8 at byte 3"),
        (("a", "--root", "nowhere"), 3, "There is no passage index in nowhere"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    call: Callable[..., Called], root: str, words: tuple[str, ...], code: int, sentence: str
) -> None:
    Path("latin").write_bytes(b"caf\xe9")
    called = call("passages", "delete", "--root", root, *words)
    assert (called.code, called.err.count("\n")) == (code, 1)
    assert sentence in called.err
    assert not Path("nowhere").exists()
    assert len(documents(root)) == 3


def test_a_name_that_is_no_utf_8_is_typed_as_it_is(call: Callable[..., Called], tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text(WORDS)
    root = str(tmp_path / "index")
    assert call("passages", "index", str(tmp_path / name), "--root", root).code == 0
    assert documents(root) == [f"{tmp_path}/caf\\xe9.txt"]
    called = call(
        "passages", "delete", os.fsdecode(b"th\xe9"), str(tmp_path / name), "--root", root, "--json"
    )
    assert called.code == 4
    assert called.json == {"root": root, "documents": 1, "missing": ["th\\xe9"], "not_merged": None}
    assert documents(root) == []


def test_what_moves_the_cursor_does_not_reach_the_terminal(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "delete", "a\nb\x1b[2J", "--root", root)
    assert called.out.splitlines()[0] == "a\ufffdb\ufffd[2J is not in the index."
