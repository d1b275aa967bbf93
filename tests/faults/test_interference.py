"""Somebody does something to the store or the disk while a crawl runs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from archives import check, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from faults_site import chain
from programs import run_program

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer


@pytest.mark.parametrize("rotated", [False, True])
@crawl_test
async def test_a_running_crawl_is_neither_committed_nor_canceled_from_anywhere(
    rotated: bool, web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def decide() -> None:
        codes.extend(
            main([verb, "runs", "--store", settings["DEDUPE_STORE_URL"]]) for verb in ("commit", "cancel")
        )

    chain(web, 12, {9: decide})
    settings |= {"DEDUPE_CRAWL_ID": "runs", "DEDUPE_WARC_FILE_SIZE": 1_000 if rotated else 1_000_000}
    await crawl(LinkSpider, settings, urls=web.url("/0"))
    assert codes == [3, 3]
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
    assert (info.state, info.counts.total_urls) == ("committed", 13)


@crawl_test
async def test_an_index_that_is_emptied_is_filled_again_from_the_files(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, redis_url: str
) -> None:
    def flush() -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()

    chain(web, 12, {6: flush})
    spider, items = collecting()
    settings |= {"DEDUPE_STORE_URL": redis_url, "DEDUPE_URL_STORE_URL": "local", "DEDUPE_CRAWL_ID": "emptied"}
    await crawl(spider, settings, urls=web.url("/0"))
    assert {item["kind"] for item in items} == {"unique"}, "the texts do not suffer from the index"
    with open_index(redis_url) as index:
        (info,) = index.crawls()
    assert (info.state, info.counts.total_urls) == ("committed", 13)
    check(tmp_path / "warcs")


@crawl_test
async def test_a_crawl_that_the_index_lost_after_its_end_is_found_again_by_commit(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, redis_url: str
) -> None:
    chain(web, 5, {})
    await crawl(
        LinkSpider, {**settings, "DEDUPE_STORE_URL": redis_url, "DEDUPE_CRAWL_ID": "lost"}, urls=web.url("/0")
    )
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    assert main(["commit", "lost", "--store", redis_url, "--warc-dir", str(tmp_path / "warcs")]) == 0
    with open_index(redis_url) as index:
        (info,) = index.crawls()
    assert (info.state, info.counts.total_urls) == ("committed", 6)
    assert main(["commit", "never", "--store", redis_url, "--warc-dir", str(tmp_path / "warcs")]) == 3


@crawl_test
async def test_a_store_file_that_is_deleted_is_no_committed_crawl(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def delete() -> None:
        for path in tmp_path.glob("dedupe.sqlite*"):
            path.unlink()

    chain(web, 8, {5: delete})
    await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": "gone"}, urls=web.url("/0"))
    assert "was removed or replaced" in caplog.text
    assert "crawl gone not committed" in caplog.text
    check(tmp_path / "warcs")


@crawl_test
async def test_the_stats_that_scrapy_shows_are_those_of_the_whole_crawl(
    web: WebServer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        web.page(f"/{number}", f"<p>{number}" * 1_000)
    shown: dict[str, Any] = {}

    class Collector(scrapy.statscollectors.MemoryStatsCollector):
        def _persist_stats(self, stats: Any, spider: Any = None) -> None:
            shown.update(stats)

    write = WarcWriter.write

    def slow(self: WarcWriter, records: Any) -> Any:
        threading.Event().wait(0.05)
        return write(self, records)

    monkeypatch.setattr(WarcWriter, "write", slow)
    settings |= {"STATS_CLASS": Collector, "DEDUPE_CONTENT_ENABLED": False}
    await crawl(LinkSpider, settings, urls=" ".join(web.url(f"/{number}") for number in range(10)))
    assert shown["dedupe/warc/response"] == 10


@crawl_test
async def test_a_page_of_the_part_that_was_cut_is_not_dropped_as_unchanged(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    chain(web, 6, {})
    settings |= {"JOBDIR": str(tmp_path / "job"), "DEDUPE_ACTION_UNCHANGED": "drop", "CONCURRENT_REQUESTS": 1}
    spider, items = collecting()
    await crawl(
        spider,
        {**settings, "CLOSESPIDER_PAGECOUNT": 2, "DEDUPE_COMMIT_REASONS": "finished"},
        urls=web.url("/0"),
    )
    await crawl(spider, settings, urls=web.url("/0"))
    assert {item["url"] for item in items} == {web.url(f"/{number}") for number in range(7)}
    kinds = [item["kind"] for item in items if item["url"] == web.url("/0")]
    assert kinds == ["unique", "unchanged"]


@crawl_test
async def test_a_full_disk_ends_the_crawl_and_the_next_run_archives_what_is_missing(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = "".join(f'<a href="/{number}">x</a>' for number in range(30))
    web.page("/", links + "<p>Home" * 300)
    for number in range(30):
        web.page(f"/{number}", f"<p>Page {number} of the book." * 200)
    write, written = WarcWriter.write, []

    def fill(self: WarcWriter, records: Any) -> Any:
        if len(written) >= 10:
            raise ArchiveError("The disk is full.")
        written.append(records)
        return write(self, records)

    settings |= {"JOBDIR": str(tmp_path / "job"), "DEDUPE_URL_FLUSH_SECONDS": 0.05}
    with monkeypatch.context() as patch:
        patch.setattr(WarcWriter, "write", fill)
        crawler = await crawl(LinkSpider, settings, urls=web.url())
    assert crawler.stats.get_value("finish_reason") == "dedupe_archive_error"
    await crawl(LinkSpider, settings, urls=web.url())
    archived = {record.uri for record in records_of(tmp_path / "warcs") if record.type == "response"}
    assert archived == {web.url(), *(web.url(f"/{number}") for number in range(30))}
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["committed"]


def test_a_reader_that_has_seen_enough_is_no_fault(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dedupe.sqlite'}"
    with open_index(url) as index:
        for number in range(3_000):
            index.start(f"crawl-{number}")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = run_program("scrapy-dedupe", "crawls", "--store", url, stdout=pipe.fileno())
    assert (done.returncode, done.stderr) == (0, "")


@crawl_test
async def test_a_file_that_cannot_be_finished_is_told_of_at_the_end(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "warcs"

    def block() -> None:
        while not (found := list(folder.glob("*.open"))):
            threading.Event().wait(0.01)
        (opened,) = found
        # A folder of this name stands in its way.
        (folder / opened.name.removesuffix(".open") / "x").mkdir(parents=True)

    chain(web, 3, {1: block})
    settings |= {"DEDUPE_CRAWL_ID": "c1", "DEDUPE_WARC_FILE_SIZE": 1_000}
    crawler = await crawl(LinkSpider, settings, urls=web.url("/0"))
    assert crawler.stats.get_value("finish_reason") == "dedupe_archive_error"
    assert "nothing was recorded" not in caplog.text
    assert (
        f"WARC      a file in {folder} is incomplete; repair it with `scrapy dedupe warc salvage`"
        in caplog.text
    )
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["uncommitted"]
