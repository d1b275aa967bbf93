"""``near`` on Spark writes the bytes that it writes on one machine."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from listed_archives import ListedFile
from near.made_crawls import HTML, html, words, write_crawls
from offline.calling import call, done
from spark.odd_tasks import full_disk_of

from scrapy_dedupe import near, spark
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.near import NearJobOptions, PageOptions
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.tasks.progress import Progress

ENGINE = ("--engine", "spark")
OPTIONS = NearJobOptions(PageOptions(decoded_page))


@pytest.fixture
def folder(session: Any, tmp_path: Path) -> Path:
    """A folder with an archive in ``in``. The verbs use the session of the tests."""
    (tmp_path / "in").mkdir()
    write_archive(tmp_path / "in")
    return tmp_path


@pytest.fixture
def in_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark join also a few rows."""
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)


def write_archive(folder: Path) -> None:
    """Sites with templates, versions and mirrors; assumptions that are wrong; revisits, and a page without a date."""
    write_crawls(folder, 1, crawls=2, pages=6)
    for crawl in range(3):
        file = ListedFile(folder / f"mirrored {crawl}.warc", "")
        for number in range(12):
            text = [f"w{number}", *words(random.Random(number), 150)]
            for host in ("a.example", "b.example"):
                date = f"2023-01-0{crawl + 1}T00:00:{number:02}Z"
                body = html(f"Page w{number}", [f"{host}{crawl}", *text[1:]])
                file.add(body, f"http://{host}/w{number}", date, headers=HTML)
        refers_to = (
            "WARC-Refers-To-Target-URI: http://a.example/w0",
            "WARC-Refers-To-Date: 2023-01-01T00:00:00Z",
        )
        revisit = {"kind": "revisit", "headers": HTML, "fields": refers_to}
        for uri in ("http://a.example/w0", f"http://c.example/{crawl}"):
            file.add(b"", uri, f"2022-0{crawl + 1}-01T00:00:00Z", **revisit)
        file.add(html("A", ["no", "date"]), f"http://a.example/{crawl}", "yesterday", headers=HTML)


def test_the_rows_are_the_same(folder: Path) -> None:
    here = done(folder, "near", "in", "-o", "near.jsonl")
    there = done(folder, "near", "in", "-o", "far.jsonl", *ENGINE)
    assert (folder / "far.jsonl").read_bytes() == (folder / "near.jsonl").read_bytes()
    assert there.out == here.out.replace("near.jsonl", "far.jsonl")
    assert sorted(path.name for path in folder.iterdir()) == ["far.jsonl", "in", "near.jsonl"]


@pytest.mark.usefixtures("in_sql")
def test_joins_in_spark_sql_give_the_same_rows(folder: Path) -> None:
    here = done(folder, "near", "in", "-o", "near.parquet")
    out = "far [1]/a {b} 100%.parquet"
    (folder / out).parent.mkdir()
    there = done(folder, "near", "in", "-o", out, *ENGINE)
    assert (folder / out).read_bytes() == (folder / "near.parquet").read_bytes()
    assert there.out == here.out.replace("near.parquet", out)
    assert [path.name for path in (folder / out).parent.iterdir()] == ["a {b} 100%.parquet"]


@pytest.mark.usefixtures("in_sql")
def test_pages_without_a_text_that_is_compared(folder: Path) -> None:
    shutil.rmtree(folder / "in")
    (folder / "in").mkdir()
    file = ListedFile(folder / "in/a.warc", "")
    for body, headers in ((b"\x89PNG", ("Content-Type: image/png",)), (b"<p>short", HTML)):
        file.add(body, headers=headers)
        done(folder, "near", "in", "-o", "near.csv", "--force")
        done(folder, "near", "in", "-o", "far.csv", "--force", *ENGINE)
        assert (folder / "far.csv").read_bytes() == (folder / "near.csv").read_bytes()


class StopAt:
    """Progress that stops the run when a part of this name begins for the second time."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._left = 2

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        self._left -= title == self._title
        if not self._left:
            raise KeyboardInterrupt

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


def find(folder: Path, output: str, jobs: Any, watch: Progress | None = None) -> near.NearCopies:
    inputs = find_inputs([str(folder / "in")], faults=Faults())
    more = {} if watch is None else {"watch": watch}
    options = replace(OPTIONS, jobs=jobs, keep_going=True)
    return near.find_near_copies(inputs, folder / output, options, **more)


@pytest.mark.usefixtures("in_sql")
@pytest.mark.parametrize("is_local", [(False, True), (True, False)], ids=["here", "on Spark"])
def test_another_engine_finishes_a_stopped_run(folder: Path, session: Any, is_local: Sequence[bool]) -> None:
    assert find(folder, "near.parquet", 1).rounds > 1
    first, second = (1 if here else spark.SparkWorkers(session) for here in is_local)
    with pytest.raises(KeyboardInterrupt):
        find(folder, "far.parquet", first, StopAt("comparing"))
    find(folder, "far.parquet", second)
    assert (folder / "far.parquet").read_bytes() == (folder / "near.parquet").read_bytes()


@pytest.mark.usefixtures("in_sql")
def test_a_full_disk_is_named_and_the_same_command_continues(folder: Path, session: Any) -> None:
    with full_disk_of(session):
        called = call(folder, "near", "in", "-o", "far.parquet", *ENGINE)
    assert called.code == 3
    assert "File too large. Check the free space, also in Spark's temporary folders" in called.sentences
    assert called.err.count("\n") == 1
    # Tasks that Spark ends may leave temporary files until the work is finished.
    assert sorted(path.name for path in folder.iterdir()) == ["far.parquet.parts", "in"]
    done(folder, "near", "in", "-o", "far.parquet", *ENGINE)
    assert sorted(path.name for path in folder.iterdir()) == ["far.parquet", "in"]
    done(folder, "near", "in", "-o", "near.parquet")
    assert (folder / "far.parquet").read_bytes() == (folder / "near.parquet").read_bytes()


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "in/crawl1.warc.gz"
    path.write_bytes(path.read_bytes()[:-9])
    called = call(folder, "near", "in", "-o", "far.parquet", *ENGINE)
    assert called.code == 4
    assert "in/crawl1.warc.gz, offset" in called.sentences
    assert called.err.count("\n") == 1
    assert not (folder / "far.parquet").exists()


class Appends(StopAt):
    """Progress that appends to a file when the first part begins."""

    def __init__(self, path: Path) -> None:
        super().__init__("")
        self._path = path

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        with self._path.open("ab") as file:
            file.write(b"\n")


@pytest.mark.usefixtures("in_sql")
def test_a_file_that_changes_while_it_is_read_is_named(folder: Path, session: Any) -> None:
    path = min((folder / "in").iterdir())
    with pytest.raises(ArchiveError, match=rf"{path.name} has changed since this work began"):
        find(folder, "far.parquet", spark.SparkWorkers(session), Appends(path))
    assert not (folder / "far.parquet").exists()
