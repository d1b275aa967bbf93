"""``passages like`` through the command line."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.passages.catalogue import read_manifest, replace_manifest
from scrapy_dedupe.passages.index import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands.conftest import Called

SHARED = " ".join(f"word{number}" for number in range(40))
OWN = " ".join(f"own{number}" for number in range(40))


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "index"
    with PassageIndex(path) as index:
        index.add("https://a.example/", f"{SHARED} and something else")
        index.add("https://b.example/", f"First. {SHARED.upper()} And last.")
        index.add("notes/c.txt", "nothing of it")
    return str(path)


def test_the_passages_of_a_file_are_shown(call: Callable[..., Called], root: str) -> None:
    Path("page.txt").write_text(f"{OWN}\n\n{SHARED}", encoding="utf-8")
    called = call("passages", "like", "page.txt", "--root", root)
    start = len(OWN) + 2
    end = start + len(SHARED)
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == "  50%  https://a.example/"
    assert lines[1].startswith("       40 tokens: word0 word1 word2")
    assert lines[1].endswith("word39")
    assert " … " in lines[1]
    assert lines[2] == f"         here   tokens 40-80, characters {start}-{end}"
    assert lines[3] == f"         there  tokens 0-40, characters 0-{len(SHARED)}"
    assert lines[4] == "  50%  https://b.example/"
    assert lines[5].startswith("       40 tokens: WORD0")


def test_an_indexed_document_is_no_hit_itself(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "like", "https://a.example/", "--root", root, "--json")
    assert called.code == 0
    (hit,) = called.json["hits"]
    assert hit["doc_id"] == "https://b.example/"
    assert hit["passages"][0]["places"][0]["token_start"] == 1
    assert hit["passages"][0]["asked"]["doc_id"] == ""
    assert call("passages", "like", "notes/c.txt", "--root", root).out.startswith("No document in")


def test_the_menu_of_the_host_of_the_asked_document_is_no_passage(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    root = str(tmp_path / "menus")
    with PassageIndex(root) as index:
        for page in range(20):
            index.add(f"https://a.example/{page}", f"{SHARED}\nand {OWN.replace('own', f'own{page}x')}")
        index.add("https://c.example/", f"before {SHARED} behind")
    for asked in ("https://a.example/5", "https://c.example/"):
        called = call("passages", "like", asked, "--root", root)
        assert (
            called.out == f"No document in {root} shares a passage that matches the options with {asked}.\n"
        )
    kept = call("passages", "like", "https://c.example/", "--root", root, "--keep-boilerplate", "--json")
    assert len(kept.json["hits"]) == 10
    with PassageIndex(root) as index:
        hits = index.like(SHARED)
        assert [hit.doc_id for hit in hits] == ["https://c.example/"]
        assert index.like(SHARED, host="a.example") == []
        assert index.like(SHARED, host="elsewhere.example") == hits


def test_the_help_shows_the_text_before_the_files_of_taboo(
    capsys: pytest.CaptureFixture[str], call: Callable[..., Called], root: str
) -> None:
    with pytest.raises(SystemExit):
        main(["passages", "like", "--help"])
    usage = " ".join(capsys.readouterr().out.split())
    assert usage.index("FILE|URL|-") < usage.index("--taboo FILE [FILE ...]")
    Path("a.txt").write_text(SHARED, encoding="utf-8")
    Path("b.txt").write_text(OWN, encoding="utf-8")
    assert (
        call("passages", "like", "a.txt", "--root", root, "--taboo", "b.txt", "a.txt", "--json").json["hits"]
        == []
    )


def test_a_name_of_nothing_is_told_to_be_neither(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "like", "letter", "--root", root)
    assert called.code == 3
    assert f"letter is neither a file nor a document of the index {root}." in called.err


def test_a_url_that_is_not_indexed_is_refused_with_what_to_do(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "like", "https://c.example/", "--root", root)
    assert called.code == 2
    assert "has no document https://c.example/." in called.err
    assert "pipe it in" in called.err


def test_standard_input_is_asked_about(
    call: Callable[..., Called], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"<html><title>T</title><script>no()</script><p>{SHARED.replace(' ', ' <b>', 1)}</b>"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(page.encode())))
    called = call("passages", "like", "-", "--root", root, "--json", "--top", "1")
    (hit,) = called.json["hits"]
    assert hit["score"] == 40 / 41


def test_min_tokens_and_taboo_leave_out_what_they_say(call: Callable[..., Called], root: str) -> None:
    Path("page.txt").write_text(SHARED, encoding="utf-8")
    assert (
        call("passages", "like", "page.txt", "--root", root, "--min-tokens", "41", "--json").json["hits"]
        == []
    )
    assert (
        call("passages", "like", "page.txt", "--root", root, "--taboo", "page.txt", "--json").json["hits"]
        == []
    )


def test_boilerplate_can_be_kept(call: Callable[..., Called], root: str) -> None:
    with PassageIndex(root) as index:
        for number in range(12):
            index.add(f"https://menu.example/{number}", f"{OWN} page{number}")
    Path("page.txt").write_text(OWN, encoding="utf-8")
    asked = ("passages", "like", "page.txt", "--root", root, "--json")
    assert call(*asked).json["hits"] == []
    assert len(call(*asked, "--keep-boilerplate").json["hits"]) == 10
    assert len(call(*asked, "--boilerplate-share", "1", "--top", "20").json["hits"]) == 12
    assert call(*asked, "--boilerplate-share", "7").code == 2


@pytest.mark.parametrize("name", ["absent.txt", "picture.png", "many.jsonl", "archive.warc"])
def test_what_is_no_single_text_is_refused_in_one_sentence(
    call: Callable[..., Called], root: str, name: str
) -> None:
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    Path("many.jsonl").write_text('{"url": "a", "text": "b"}\n', encoding="utf-8")
    Path("archive.warc").write_bytes(b"WARC/1.0\r\n\r\n")
    called = call("passages", "like", name, "--root", root)
    assert called.code == (3 if name == "absent.txt" else 2)
    assert name in called.err
    assert called.err.count("\n") == 1


def test_an_index_that_is_not_there_is_refused(call: Callable[..., Called]) -> None:
    Path("page.txt").write_text(SHARED, encoding="utf-8")
    called = call("passages", "like", "page.txt", "--root", "nowhere")
    assert called.code == 3
    assert "nowhere" in called.err
    assert not Path("nowhere").exists()


def test_what_moves_the_cursor_does_not_reach_the_terminal(call: Callable[..., Called], root: str) -> None:
    with PassageIndex(root) as index:
        index.add("evil", OWN.replace(" ", " \x1b[2J\u202e", 3))
    Path("page.txt").write_text(OWN, encoding="utf-8")
    called = call("passages", "like", "page.txt", "--root", root, "--min-tokens", "8")
    assert "evil" in called.out
    assert "\x1b" not in called.out
    assert "\u202e" not in called.out


def test_a_name_that_is_no_utf_8_is_typed_as_it_is(call: Callable[..., Called], root: str) -> None:
    with PassageIndex(root) as index:
        index.add("caf\\xe9.txt", SHARED)
    called = call("passages", "like", os.fsdecode(b"caf\xe9.txt"), "--root", root, "--json")
    assert [hit["doc_id"] for hit in called.json["hits"]] == ["https://a.example/", "https://b.example/"]


def test_an_id_that_is_longer_than_any_path_is_found(call: Callable[..., Called], root: str) -> None:
    with PassageIndex(root) as index:
        index.add("a" * 8_000, "nothing of it")
    assert call("passages", "like", "a" * 8_000, "--root", root).out.startswith("No document in")
    assert call("passages", "like", "b" * 8_000, "--root", root).code == 3


def test_ids_are_shown_in_one_line(call: Callable[..., Called], root: str) -> None:
    with PassageIndex(root) as index:
        index.add("a\nb\x1b[31m", SHARED)
    Path("page.txt").write_text(SHARED, encoding="utf-8")
    shown = "a\ufffdb\ufffd[31m"
    assert f"%  {shown}\n" in call("passages", "like", "page.txt", "--root", root).out
    assert f"characters  {shown}\n" in call("passages", "inspect", "--root", root, "--documents").out
    blot = call("passages", "blot", "page.txt", "--root", root).out.splitlines()[1]
    assert f"  {shown}\n" in call("passages", "unblot", blot, "--root", root).out
    assert f"     {shown}: tokens" in call("passages", "extract", "--root", root).out


@pytest.mark.parametrize(
    "verb", ["index", "like", "extract", "blot", "unblot", "inspect", "compact", "delete"]
)
def test_what_another_version_wrote_is_refused(
    call: Callable[..., Called], root: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("page.txt").write_text(SHARED, encoding="utf-8")
    words = {"index": ["page.txt", "--append"], "unblot": ["ab"], "like": ["page.txt"], "blot": ["page.txt"]}
    words["delete"] = ["a"]
    manifest = read_manifest(Path(root))
    assert manifest is not None
    replace_manifest(
        Path(root), replace(manifest, parameters=replace(manifest.parameters, tokeniser="syllables/1"))
    )
    called = call("passages", verb, *words.get(verb, []), "--root", root)
    assert (called.code, called.err.count("\n")) == (3, 1)
    assert "syllables/1" in called.err


def test_a_store_is_no_place_of_an_index(call: Callable[..., Called], root: str) -> None:
    called = call("passages", "inspect", "--root", root, "--store", "sqlite:///dedupe.sqlite")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "--root DIR" in called.err
    assert "--store" not in call("passages", "inspect", "--help").out
    assert "--store" in call("urls", "stats", "--help").out
