from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from listed_archives import ListedFile
from near.made_crawls import HTML, html

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

LONG = [f"word{number}" for number in range(100)]


@pytest.fixture
def files(call: Callable[..., Called]) -> None:
    """Two files below ``in``, in the folder of the call: a page, a near copy of it, an exact copy, and an image."""
    Path("in/deep").mkdir(parents=True)
    one, other = ListedFile(Path("in/a.warc.gz"), ""), ListedFile(Path("in/deep/b.warc.gz"), "")
    one.add(html("T", LONG), "http://a.example/t", headers=HTML)
    one.add(b"\x89PNG", headers=("Content-Type: image/png",))
    other.add(html("T", [*LONG[1:], "new"]), "http://b.example/t", "2024-01-01T00:00:00Z", headers=HTML)
    other.add(html("T", LONG), "http://b.example/t", "2024-01-02T00:00:00Z", headers=HTML)


@pytest.mark.usefixtures("files")
def test_documents_are_grouped_across_files(call: Callable[..., Called]) -> None:
    called = call("near", "-r", "in", "-o", "groups.csv")
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0].startswith("groups.csv: 3 documents in 2 files (")
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["1", "unique"],
        ["0", "unchanged:"],
        ["1", "exact"],
        ["1", "near"],
    ]
    assert lines[5] == "1 group of several documents; the largest has 3 documents."
    assert lines[7].split(maxsplit=1) == ["1", "responses that are not text, or not of the wanted types"]
    with Path("groups.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["file"], row["verdict"], row["kept"]) for row in rows] == [
        ("in/a.warc.gz", "unique", "0"),
        ("in/deep/b.warc.gz", "near", "0"),
        ("in/deep/b.warc.gz", "exact", "0"),
    ]
    assert sorted(path.name for path in Path().iterdir()) == ["groups.csv", "in"]


@pytest.mark.usefixtures("files")
def test_the_name_of_the_result_selects_its_format(call: Callable[..., Called]) -> None:
    for name, start in (("groups", b"PAR1"), ("groups.jsonl", b'{"document":0,')):
        assert call("near", "in", "-o", name).code == 0
        assert Path(name).read_bytes().startswith(start)
    assert "1 WARC or ARC file in subfolders left out; -r includes them." in call("near", "in", "-o", "g").out
    assert call("near", "in", "-o", "other", "--format", "csv").code == 0
    assert Path("other").read_bytes().startswith(b"document,file,")


@pytest.mark.usefixtures("files")
def test_an_existing_result_is_replaced_only_with_force(call: Callable[..., Called]) -> None:
    Path("groups.csv").write_text("mine")
    called = call("near", "in", "-o", "groups.csv")
    assert (called.code, called.out) == (3, "")
    assert called.err == (
        "scrapy-dedupe near: groups.csv already exists. Name another output, or replace it with --force.\n"
    )
    assert Path("groups.csv").read_text() == "mine"
    assert call("near", "in", "-o", "groups.csv", "--force").code == 0


@pytest.mark.usefixtures("files")
def test_pages_that_cannot_be_read_are_named(call: Callable[..., Called]) -> None:
    file = ListedFile(Path("in/a.warc.gz"), "")
    line = file.add(html("T", LONG), headers=("Content-Type: text/html", "Content-Encoding: compress"))
    called = call("near", "in", "-o", "groups")
    assert called.code == 4
    where = f"in/a.warc.gz, offset {line.offset} (http://example.org/)"
    assert f"{where}: its content coding cannot be decoded" in called.out
    assert called.err == "scrapy-dedupe near: 1 page left out.\n"


@pytest.mark.usefixtures("files")
def test_damage_is_named(call: Callable[..., Called]) -> None:
    path = Path("in/a.warc.gz")
    path.write_bytes(path.read_bytes()[:-10])
    called = call("near", "in", "-o", "groups")
    assert called.code == 4
    assert called.err.startswith("scrapy-dedupe near: in/a.warc.gz, offset ")
    assert "--keep-going skips it" in called.err
    assert not Path("groups").exists()
    called = call("near", "in", "-o", "groups", "--keep-going")
    assert (called.code, called.err) == (4, "scrapy-dedupe near: 1 fault in the input skipped.\n")
    assert Path("groups").exists()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("in", "-o", "-"),
            "near keeps its state in a folder next to the result. Name a file for the result.",
        ),
        (("in", "-o", "g", "--type", "image/png"), "--type image/png is not a text type."),
        (("nothing", "-o", "g"), "'nothing' matches no file."),
    ],
)
def test_wrong_use_is_refused(call: Callable[..., Called], words: tuple[str, ...], sentence: str) -> None:
    called = call("near", *words)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"scrapy-dedupe near: {sentence}")


@pytest.mark.usefixtures("files")
def test_without_duckdb_the_extra_is_named(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    called = call("near", "in", "-o", "groups")
    assert called.code == 2
    assert called.err == (
        "scrapy-dedupe near: Finding near copies across archives needs DuckDB, which is not installed: pip install"
        ' "scrapy-dedupe[archive]".\n'
    )
    assert [path.name for path in Path().iterdir()] == ["in"]
