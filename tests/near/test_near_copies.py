from __future__ import annotations

import csv
import itertools
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from listed_archives import ListedFile
from near.made_crawls import HTML, html, verdicts, words, write_crawls

from scrapy_dedupe.content import JudgeOptions, NearOptions
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.near import GROUPS, NearJobOptions, PageOptions, find_near_copies
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.near import NearCopies
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.codings import DecodedPage

OPTIONS = NearJobOptions(PageOptions(decoded_page))


def find(
    files: Sequence[Path], output: Path, options: NearJobOptions = OPTIONS, watch: Progress | None = None
) -> NearCopies:
    faults = Faults(keep_going=options.keep_going)
    inputs = find_inputs([str(file) for file in files], faults=faults)
    more = {} if watch is None else {"watch": watch}
    return find_near_copies(inputs, output, options, faults=faults, **more)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file."""
    with duckdb.connect() as engine:
        cursor = engine.execute("SELECT * FROM read_parquet(?)", [str(path)])
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def compare_with_a_crawl(
    folder: Path, files: Sequence[Path], options: NearJobOptions = OPTIONS, **judge: Any
) -> None:
    """The verdicts are those of a crawl that reads the documents in the same order."""
    find(files, folder / "groups.parquet", options)
    rows = rows_of(folder / "groups.parquet")
    expected = verdicts(files, **judge)
    assert [(row["file"], row["offset"]) for row in rows] == [it[:2] for it in expected]
    for row, (_, _, verdict) in zip(rows, expected, strict=True):
        assert row["verdict"] == verdict.kind, (row, verdict)
        if verdict.kind == "near":
            assert row["similarity"] == verdict.similarity
            assert row["kept_uri"] == verdict.original_url
        elif verdict.kind != "unique":
            assert rows[row["exact_group"]]["uri"] == verdict.original_url
    assert {row["verdict"] for row in rows} == {"unique", "unchanged", "exact", "near"}


def test_the_verdicts_are_those_of_a_crawl(tmp_path: Path) -> None:
    compare_with_a_crawl(tmp_path, write_crawls(tmp_path, 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 42))
def test_the_verdicts_are_those_of_a_crawl_for_random_sites(tmp_path: Path, seed: int) -> None:
    sites = 1 + seed % 5
    compare_with_a_crawl(
        tmp_path, write_crawls(tmp_path, seed, crawls=2 + seed % 4, sites=sites, pages=60 // sites)
    )


@pytest.mark.parametrize(
    ("judge", "values"),
    [
        (JudgeOptions(near_identity=False), {"near_identity": False}),
        (JudgeOptions(template_guard=False), {"template_guard": False}),
        (
            JudgeOptions(
                near={"*": NearOptions(threshold=0.7, num_perm=64), "text/plain": NearOptions(threshold=1)}
            ),
            {"near_threshold": {"*": 0.7, "text/plain": 1}, "near_num_perm": 64},
        ),
    ],
    ids=["texts only", "no templates", "other parameters"],
)
def test_the_verdicts_are_those_of_a_crawl_with_the_same_options(
    tmp_path: Path, judge: JudgeOptions, values: dict[str, Any]
) -> None:
    files = write_crawls(tmp_path, 7)
    compare_with_a_crawl(
        tmp_path, files, replace(OPTIONS, pages=replace(OPTIONS.pages, judge=judge)), **values
    )


def test_a_wrong_assumption_about_an_earlier_version_is_corrected(tmp_path: Path) -> None:
    # The pages of the mirror are near to those of the site, so that they are not kept, and later versions of the mirror's
    # pages are near to pages that their own URLs never had.
    files = []
    for crawl in range(3):
        file = ListedFile(tmp_path / f"{crawl}.warc", "")
        for number in range(12):
            text = words_of(number)
            for host in ("a.example", "b.example"):
                changed = [f"{host}{crawl}", *text[1:]]
                date = f"2024-01-0{crawl + 1}T00:00:{number:02}Z"
                file.add(html(f"Page w{number}", changed), f"http://{host}/w{number}", date, headers=HTML)
        files.append(file.path)
    found = find(files, tmp_path / "first.parquet")
    assert found.rounds > 1
    expected = [verdict.kind for _, _, verdict in verdicts(files)]
    assert [row["verdict"] for row in rows_of(tmp_path / "first.parquet")] == expected


def words_of(number: int) -> list[str]:
    return [f"w{number}", *words(random.Random(number), 150)]


def test_neither_order_nor_jobs_change_the_result(tmp_path: Path) -> None:
    files = write_crawls(tmp_path, 3, pages=6)
    first = find(files, tmp_path / "one.parquet")
    second = find([*reversed(files)], tmp_path / "two.parquet", replace(OPTIONS, jobs=2))
    assert rows_of(tmp_path / "one.parquet") == rows_of(tmp_path / "two.parquet")
    assert replace(first, output="") == replace(second, output="")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".parts")]


class StopAt:
    """Progress that stops the run when a part of this name begins."""

    def __init__(self, title: str) -> None:
        self.title = title

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        if title == self.title:
            raise KeyboardInterrupt

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.parametrize("step", ["joining", "signing", "comparing"])
def test_a_stopped_run_continues_after_the_last_complete_step(tmp_path: Path, step: str) -> None:
    files = write_crawls(tmp_path, 4, pages=6)
    find(files, tmp_path / "whole.parquet")
    with pytest.raises(KeyboardInterrupt):
        find(files, tmp_path / "groups.parquet", watch=StopAt(step))
    assert not (tmp_path / "groups.parquet").exists()
    parts = sorted((tmp_path / "groups.parquet.parts").rglob("*.parquet"))
    made = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts}
    assert parts
    with pytest.raises(KeyboardInterrupt):
        find(files, tmp_path / "groups.parquet", watch=StopAt(step))
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts} == made
    find(files, tmp_path / "groups.parquet")
    assert (tmp_path / "groups.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.exhaustive
def test_a_run_that_is_killed_at_any_rename_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_crawls(tmp_path, 4, pages=6)
    find(files, tmp_path / "whole.parquet")
    rename, left = whole_file._rename, 0

    def killed(temporary: Path, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        rename(temporary, path)

    monkeypatch.setattr(whole_file, "_rename", killed)
    for number in itertools.count(1):
        left = number
        try:
            find(files, tmp_path / "groups.parquet")
        except KeyboardInterrupt:
            left = 0
            find(files, tmp_path / "groups.parquet")
        assert (tmp_path / "groups.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        (tmp_path / "groups.parquet").unlink()
        if left > 0:
            break
    assert number > 10


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    files = write_crawls(tmp_path, 5, crawls=2, pages=4)
    with pytest.raises(KeyboardInterrupt):
        find(files, tmp_path / "groups.parquet", watch=StopAt("comparing"))
    ListedFile(files[1], "").add(html("New", ["new", "text"]), "http://new.example/", headers=HTML)
    find(files, tmp_path / "groups.parquet")
    assert "http://new.example/" in [row["uri"] for row in rows_of(tmp_path / "groups.parquet")]


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    (path,) = write_crawls(tmp_path, 6, crawls=1, sites=1, pages=2)

    def growing(url: str, headers: Headers, body: bytes) -> DecodedPage | str:
        with path.open("ab") as file:
            file.write(b"\n")
        return decoded_page(url, headers, body)

    with pytest.raises(
        ArchiveError, match=r"crawl0\.warc\.gz has changed since this work began\. Run the command again"
    ):
        find([path], tmp_path / "groups.parquet", NearJobOptions(PageOptions(growing), keep_going=True))
    assert not (tmp_path / "groups.parquet").exists()


def test_the_formats_have_the_same_rows(tmp_path: Path) -> None:
    files = write_crawls(tmp_path, 6, crawls=2, pages=4)
    for name in ("parquet", "csv", "jsonl"):
        find(files, tmp_path / f"groups.{name}", replace(OPTIONS, format=name))
    rows = rows_of(tmp_path / "groups.parquet")
    assert [*rows[0]] == [*GROUPS]
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "groups.csv").open(newline="") as file:
        assert [*csv.DictReader(file)] == [{name: str(value) for name, value in row.items()} for row in rows]


def test_a_revisit_has_the_text_of_its_original(tmp_path: Path) -> None:
    first, second = (ListedFile(tmp_path / f"{name}.warc", "") for name in ("a", "b"))
    text = words_of(1)
    first.add(html("A", text), "http://a.example/", "2024-01-01T00:00:00Z", headers=HTML)
    revisit = {"kind": "revisit", "headers": HTML}
    refers_to = ("WARC-Refers-To-Target-URI: http://a.example/", "WARC-Refers-To-Date: 2024-01-01T00:00:00Z")
    second.add(b"", "http://a.example/", "2024-02-01T00:00:00Z", fields=refers_to, **revisit)
    second.add(b"", "http://b.example/", "2023-01-01T00:00:00Z", fields=refers_to, **revisit)
    lost = ("WARC-Refers-To-Target-URI: http://no.example/", "WARC-Refers-To-Date: 2024-01-01T00:00:00Z")
    second.add(b"", "http://no.example/", "2024-02-01T00:00:00Z", fields=lost, **revisit)
    found = find([first.path, second.path], tmp_path / "groups.parquet")
    rows = rows_of(tmp_path / "groups.parquet")
    assert [(row["uri"], row["verdict"]) for row in rows] == [
        ("http://b.example/", "unique"),
        ("http://a.example/", "exact"),
        ("http://a.example/", "unchanged"),
    ]
    assert (found.documents, found.revisits, found.skipped) == (3, 2, {"revisit": 1})


def test_files_without_a_text_that_is_compared(tmp_path: Path) -> None:
    file = ListedFile(tmp_path / "a.warc", "")
    file.add(b"\x89PNG", headers=("Content-Type: image/png",))
    assert find([file.path], tmp_path / "none.parquet").documents == 0
    assert rows_of(tmp_path / "none.parquet") == []
    for number in range(2):
        file.add(b"<p>short", f"http://a.example/{number}", headers=HTML)
    find([file.path], tmp_path / "groups.parquet")
    assert [(row["verdict"], row["kept"]) for row in rows_of(tmp_path / "groups.parquet")] == [
        ("unique", 0),
        ("exact", 0),
    ]


def test_a_page_without_a_date_comes_last(tmp_path: Path) -> None:
    file = ListedFile(tmp_path / "a.warc", "")
    file.add(html("A", words_of(1)), "http://a.example/1", "yesterday", headers=HTML)
    file.add(html("A", words_of(1)), "http://a.example/2", headers=HTML)
    find([file.path], tmp_path / "groups.parquet")
    rows = rows_of(tmp_path / "groups.parquet")
    assert [(row["uri"][-1], row["verdict"]) for row in rows] == [("2", "unique"), ("1", "exact")]
