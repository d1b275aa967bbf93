"""``check``: what it says of a sound and of a damaged archive, in text and JSON, and with which exit code."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from recorded_crawls import OpenGuard

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.stores.base import Source
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGES = 30


def record(url: str, folder: Path, crawl: str, numbers: range) -> Path:
    """Crawl, and commit the crawl; its file."""
    with open_index(url) as index:
        index.start(crawl)
        writer = WarcWriter(
            folder,
            crawl,
            info={"isPartOf": crawl},
            on_new_file=lambda name: index.add_file(crawl, str(folder / name)),
        )
        recorder = Recorder(writer, index, crawl, OpenGuard())
        for number in numbers:
            capture = Capture(
                url=f"http://example.org/{number}",
                method="GET",
                status=200,
                date=datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=number),
                request_headers=(),
                request_body=b"",
                response_headers=((b"Content-Type", b"text/html"),),
                body=b"%d " % number * 2_000,
            )
            recorder.record(capture)
        (path,) = recorder.finish()
        index.commit(crawl)
    return path


@pytest.fixture
def url(each_store_url: str) -> str:
    return each_store_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "warcs"


@pytest.fixture
def check(call: Callable[..., Any], url: str, folder: Path) -> Callable[..., Any]:
    """Calls the verb on an archive of one crawl."""
    record(url, folder, "one", range(PAGES))

    def check(*words: str) -> Any:
        return call("check", *words, "--store", url, "--warc-dir", str(folder))

    return check


def test_a_sound_archive_gives_exit_code_0(check: Callable[..., Any]) -> None:
    called = check()
    assert (called.code, called.err) == (0, "")
    assert called.out.startswith(f"Checked {PAGES} pages of 1 crawl in 1 file, ")
    assert called.out.endswith("/s: nothing is wrong.\n")
    assert check("one", "--payloads").code == 0


def test_a_file_that_is_gone_gives_exit_code_4_and_is_named(
    check: Callable[..., Any], url: str, folder: Path
) -> None:
    second = record(url, folder, "two", range(PAGES, PAGES + 25))
    second.unlink()
    called = check()
    assert called.code == 4
    assert f"{second} is gone; 25 entries of the crawl two name it." in called.out
    assert called.err == (
        "scrapy-dedupe check: 1 difference between the index and the files. --repair rebuilds the entries from the files.\n"
    )
    kept = check("--repair")
    assert (kept.code, kept.err) == (4, "scrapy-dedupe check: 1 finding is left after the repair.\n")
    assert "none of its files exists" in kept.out
    assert check("--repair", "--forget-missing").code == 0
    with open_index(url) as index:
        assert list(index.records("two")) == []
    assert check().code == 0


def test_of_many_findings_the_first_are_shown_and_all_are_in_json(
    check: Callable[..., Any], folder: Path
) -> None:
    (path,) = folder.glob("*.warc.gz")
    path.write_bytes(b"\x1f\x8b\x08\0" + path.read_bytes())
    called = check()
    assert called.code == 4
    assert f"Entries that name no such record: {PAGES}" in called.out
    assert called.out.count("where no response record begins") == 20
    assert f"  ... and {PAGES - 20} more; see --json." in called.out
    found = check("--json").json["findings"]
    entries = [finding for finding in found if finding["kind"] == "entry"]
    assert len(entries) == PAGES
    assert {"kind", "crawl", "sentence", "file", "offset"} == set(entries[0])
    assert {finding["file"] for finding in entries} == {str(path)}


def test_a_repair_makes_entries_anew_and_says_so(
    check: Callable[..., Any], folder: Path, url: str, tmp_path: Path
) -> None:
    (path,) = folder.glob("*.warc.gz")
    # Whole members before the first record: all offsets change, and nothing is damaged.
    path.write_bytes(record_before(tmp_path) + path.read_bytes())
    result = check("--repair", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["findings"] == []
    assert [done["sentence"] for done in result.json["repairs"]] == [
        "The entries of the crawl one were read again from its files."
    ]
    assert check().code == 0
    with open_index(url) as index:
        assert min(original.offset or 0 for original in index.records("one")) > 0


def record_before(tmp_path: Path) -> bytes:
    path = record(f"sqlite:///{tmp_path / 'other.sqlite'}", tmp_path / "other", "one", range(1))
    data = path.read_bytes()
    second = data.index(b"\x1f\x8b\x08", 10)
    return data[:second]


def test_a_sample_can_be_drawn_again(check: Callable[..., Any]) -> None:
    first = check("--sample", "5", "--json").json
    assert (first["records"], first["sample"], first["findings"]) == (5, 5, [])
    again = check("--sample", "5", "--seed", str(first["seed"]))
    assert f"Checked 5 entries of 1 crawl, chosen with --seed {first['seed']}" in again.out


@pytest.mark.parametrize(
    "words",
    [
        ["--sample", "0"],
        ["--sample", "3", "--repair"],
        ["--seed", "3"],
        ["--forget-missing"],
    ],
)
def test_words_that_do_not_go_together_are_refused(check: Callable[..., Any], words: list[str]) -> None:
    called = check(*words)
    assert (called.code, called.out) == (2, "")
    assert len(called.err.splitlines()) == 1


def test_what_stands_in_the_way_gives_exit_code_3(
    call: Callable[..., Any], check: Callable[..., Any], tmp_path: Path, url: str
) -> None:
    assert check("three").code == 3
    nowhere = call("check", "--store", url, "--warc-dir", str(tmp_path / "nowhere"))
    assert (nowhere.code, nowhere.out) == (3, "")
    lost = call("check", "--store", f"sqlite:///{tmp_path / 'lost.sqlite'}", "--warc-dir", str(tmp_path))
    assert (lost.code, lost.out) == (3, "")
    assert not (tmp_path / "lost.sqlite").exists()


def test_a_store_that_was_deleted_is_filled_by_a_repair(
    call: Callable[..., Any], check: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    new = f"sqlite:///{tmp_path / 'new.sqlite'}"
    called = call("check", "--repair", "--store", new, "--warc-dir", str(folder))
    assert (called.code, called.err) == (0, "")
    assert "The crawl one was added from its files. `commit one` lets others refer to it" in called.out
    with open_index(new) as index:
        (info,) = index.crawls()
        assert (info.state, info.incomplete, info.counts.total_urls) == ("uncommitted", False, PAGES)


def test_an_import_that_was_cut_off_is_told(check: Callable[..., Any], url: str, tmp_path: Path) -> None:
    with open_index(url) as index:
        source = Source(str(tmp_path / "a.warc.gz"), "other", str(tmp_path / "a.warc.gz"))
        index.queue_sources([source])
        claimed = index.claim_source()
        assert claimed is not None
        index.begin_source(claimed, "stored")
    called = check()
    assert called.code == 4
    assert "Import it again to complete it." in called.out


def test_entries_that_another_program_left_unreadable_do_not_stop_the_check(
    call: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.sqlite"
    url = f"sqlite:///{path}"
    record(url, folder, "one", range(3))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE original SET date = 7 WHERE url = 'http://example.org/2'")
    called = call("check", "--store", url, "--warc-dir", str(folder))
    assert called.code == 4
    assert "Records that are missing from the index: 1" in called.out
    assert call("check", "--repair", "--store", url, "--warc-dir", str(folder)).code == 0
