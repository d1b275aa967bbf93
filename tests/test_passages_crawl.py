"""Real crawls that fill a passage index: what is in it afterwards, and that nothing about it hurts a crawl."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import resource
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from crawling import LinkSpider, collecting, crawl, crawl_test
from programs import Program
from scrapy.settings import Settings
from w3lib.encoding import resolve_encoding
from webserver import Page

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.errors import ArchiveError, StoreRefused, StoreUnavailable
from scrapy_dedupe.extensions import PassageExtension
from scrapy_dedupe.live.observers import passages
from scrapy_dedupe.live.responses import PageReader, has_charset, kind_of_page
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.folder_files import WriterLock
from scrapy_dedupe.passages.writer import IndexWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler
    from webserver import WebServer

QUOTE = "It was the reed that bent before the storm and rose again, while the oak that had mocked it lay in the ditch"
ALONE = {"DEDUPE_CONTENT_ENABLED": False, "DEDUPE_URL_ENABLED": False, "DEDUPE_WARC_ENABLED": False}


def words(seed: object, count: int = 60) -> str:
    rng = random.Random(str(seed))
    return " ".join(f"{rng.getrandbits(40):x}" for _ in range(count))


def html(title: str, *parts: str, links: str = "") -> str:
    anchors = "".join(f'<a href="{link}">{number}</a>' for number, link in enumerate(links.split()))
    return f"<title>{title}</title>" + "".join(f"<p>{part}" for part in parts) + anchors


@pytest.fixture
def settings(settings: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {
        **settings,
        "DEDUPE_PASSAGES": True,
        "DEDUPE_PASSAGES_DIR": str(tmp_path / "passages"),
        "LOG_LEVEL": "INFO",
    }


def site(web: WebServer) -> None:
    web.page("/", html("Home", words("home"), f"{QUOTE} {words(1, 20)}", links="/one /two /copy /gone /pdf"))
    web.page("/one", html("One", words("one"), QUOTE.upper().replace(" ", ", ")))
    web.page("/two", html("Two", words("two")))
    web.page("/copy", html("Two", words("two")))
    web.page("/pdf", b"%PDF-1.4", content_type="application/pdf")
    web.page("/robots.txt", f"User-agent: *\nAllow: /\n# {QUOTE}", content_type="text/plain")


def errors_of(crawler: Crawler) -> dict[str, int]:
    return {
        key: value for key, value in crawler.stats.get_stats().items() if key.startswith("dedupe/errors/")
    }


def stats_of(crawler: Crawler) -> dict[str, int]:
    """The stats of the index, with short names."""
    found = crawler.stats.get_stats().items()
    return {
        key.removeprefix("dedupe/passages/"): value
        for key, value in found
        if key.startswith("dedupe/passages/")
    }


def indexed(tmp_path: Path) -> PassageIndex:
    return PassageIndex(tmp_path / "passages", create=False)


def names(index: PassageIndex, web: WebServer) -> list[str]:
    return sorted(document.doc_id.removeprefix(web.url("")) for document in index.documents)


def writing_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page be written by itself, and be tried again at once."""
    monkeypatch.setattr(passages, "_FLUSH_BYTES", 1)
    monkeypatch.setattr(passages, "_RETRY_S", 0.0)


@crawl_test
async def test_the_passages_of_a_crawl_are_found(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    crawler = await crawl(LinkSpider, {**settings, "ROBOTSTXT_OBEY": True}, urls=web.url())
    assert not errors_of(crawler)
    with indexed(tmp_path) as index:
        assert names(index, web) == ["/", "/copy", "/one", "/two"]  # and not robots.txt
        assert {document.host for document in index.documents} == {"127.0.0.1"}
        hits = index.like(QUOTE)
        assert {hit.doc_id for hit in hits} == {web.url("/"), web.url("/one")}
        assert all(hit.score == 1.0 for hit in hits)
        assert index.text(web.url("/two")).split()[:2] == ["Two", words("two").split()[0]]
        (shared,) = [passage for passage in index.extract() if "reed" in (passage.text or "").lower()]
        assert {place.doc_id for place in shared.places} == {web.url("/"), web.url("/one")}
        assert index.check(full=True).problems == ()
        size = sum(len(index.text(web.url(path)).encode()) for path in ("/", "/one", "/two", "/copy"))
    stats = stats_of(crawler)
    assert stats == {
        "documents": 4,
        "replaced": 0,
        "unchanged": 0,
        "texts": 3,  # duplicates are stored once
        "bytes": size,
        "skipped/internal": 1,
        "skipped/status": 1,
        "skipped/type": 1,
    }
    assert f"4 pages added to the index {tmp_path / 'passages'}, 0 unchanged;" in caplog.text


@crawl_test
async def test_the_extension_works_alone(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> None:
    site(web)
    settings["EXTENSIONS"] = {PassageExtension: 500}
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert not errors_of(crawler)
    assert len(indexed(tmp_path)) == 4
    assert not (tmp_path / "dedupe.sqlite").exists()


@crawl_test
async def test_without_the_setting_there_is_no_index(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    own = {**settings, **ALONE, "DEDUPE_PASSAGES": False, "EXTENSIONS": {PassageExtension: 500}}
    crawler = await crawl(LinkSpider, own, urls=web.url())
    assert not stats_of(crawler)
    assert not (tmp_path / "passages").exists()


@crawl_test
async def test_pages_that_cannot_be_read_are_passed_by_and_counted(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/good", html("Good", words("good")))
    web.page("/large", "x" * 50_001)
    web.page("/odd", html("Odd"), headers=[("Content-Encoding", "x-odd")])
    web.page("/deep", "<div>" * 9_000 + "deep")
    web.page("/" + "n" * 9_000, html("Long name"))
    web.page("/empty", "")

    class Spider(LinkSpider):
        async def start(self) -> Any:
            for path in ("/good", "/large", "/odd", "/deep", "/" + "n" * 9_000, "/missing", "/empty"):
                yield scrapy.Request(web.url(path))
            yield scrapy.Request(web.url("/good?head"), method="HEAD")
            yield scrapy.Request(web.url("/good?skip"), meta={"dedupe_skip": True})

    web.page("/good?skip", html("Skipped"))
    web.page("/good?head", html("Head"))
    own = {**settings, **ALONE, "DEDUPE_CONTENT_MAX_BYTES": 50_000, "URLLENGTH_LIMIT": 0}
    crawler = await crawl(Spider, own)
    assert not errors_of(crawler)
    skipped = {key: value for key, value in stats_of(crawler).items() if key.startswith("skipped/")}
    assert skipped == {
        "skipped/size": 1,
        "skipped/encoding": 1,
        "skipped/markup": 1,
        "skipped/url": 1,
        "skipped/status": 1,
        "skipped/method": 1,
        "skipped/meta": 1,
    }
    # A page that has no text any more has to lose the one that it had.
    assert names(indexed(tmp_path), web) == ["/empty", "/good"]


@crawl_test
async def test_a_second_crawl_replaces_the_pages_that_changed(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, urls=web.url())
    web.page("/one", html("One", words("one, as it is now")))
    crawler = await crawl(LinkSpider, settings, urls=web.url())
    assert not errors_of(crawler)
    stats = stats_of(crawler)
    assert (stats["documents"], stats["replaced"], stats["unchanged"], stats["texts"]) == (1, 1, 3, 1)
    with indexed(tmp_path) as index:
        assert names(index, web) == ["/", "/copy", "/one", "/two"]
        assert [hit.doc_id for hit in index.like(QUOTE)] == [web.url("/")]
        assert words("one, as it is now") in index.text(web.url("/one"))
        assert index.check(full=True).problems == ()


@crawl_test
async def test_a_job_that_goes_on_adds_to_its_index(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(12):
        web.page(f"/{number}", html(f"Page {number}", words(number), links=f"/{number + 1}"))
    job = {**settings, "JOBDIR": str(tmp_path / "job"), "CONCURRENT_REQUESTS": 1}
    await crawl(LinkSpider, {**job, "CLOSESPIDER_PAGECOUNT": 4}, urls=web.url("/0"))
    with indexed(tmp_path) as index:
        assert 4 <= len(index) < 10
    crawler = await crawl(LinkSpider, job, urls=web.url("/0"))
    assert not errors_of(crawler)
    with indexed(tmp_path) as index:
        assert names(index, web) == sorted(f"/{number}" for number in range(12))


@crawl_test
async def test_two_crawls_fill_one_index_at_the_same_time(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing_each_page(monkeypatch)
    for number in range(20):
        web.page(f"/a{number}", html(f"A {number}", words(f"a{number}"), QUOTE))
        web.page(f"/b{number}", html(f"B {number}", words(f"b{number}"), QUOTE))
    crawls = [
        crawl(LinkSpider, {**settings, **ALONE}, urls=" ".join(web.url(f"/{name}{n}") for n in range(20)))
        for name in "ab"
    ]
    for crawler in await asyncio.gather(*crawls):
        assert not errors_of(crawler)
        assert stats_of(crawler)["documents"] == 20
    with indexed(tmp_path) as index:
        assert names(index, web) == sorted(f"/{name}{number}" for name in "ab" for number in range(20))
        assert index.check(full=True).problems == ()


@crawl_test
async def test_an_index_that_another_process_writes_all_the_time_costs_no_page(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writing_each_page(monkeypatch)
    monkeypatch.setattr(passages, "_FINAL_LOCK_TIMEOUT_S", 0.1)
    site(web)
    spider, items = collecting()
    with WriterLock(tmp_path / "passages", "passages compact"):
        crawler = await crawl(spider, {**settings, **ALONE}, urls=web.url())
    assert len(items) == 5  # the PDF, too
    # Once, at the end: until then the lock might have been let go any moment.
    assert errors_of(crawler) == {"dedupe/errors/passages": 1}
    assert stats_of(crawler)["lost"] == 4
    assert stats_of(crawler)["documents"] == 0
    told = f"is being written by process {os.getpid()}"
    assert caplog.text.count(told) == 1
    assert "4 pages of this crawl were not added to the index." in caplog.text
    assert "4 pages not added because of an error" in caplog.text


@crawl_test
async def test_an_index_that_is_free_again_gets_the_pages_that_waited(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing_each_page(monkeypatch)
    site(web)
    lock = WriterLock(tmp_path / "passages", "passages compact")
    lock.__enter__()

    class Spider(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url == web.url("/two"):
                lock.__exit__(None, None, None)
            return super().parse(response)

    crawler = await crawl(Spider, {**settings, **ALONE}, urls=web.url())
    assert not errors_of(crawler)
    assert "lost" not in stats_of(crawler)
    assert names(indexed(tmp_path), web) == ["/", "/copy", "/one", "/two"]


@crawl_test
async def test_no_more_than_so_much_text_waits_for_an_index_that_cannot_be_written(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "_FLUSH_BYTES", 1)
    monkeypatch.setattr(passages, "_MAX_WAITING_BYTES", 3_000)
    monkeypatch.setattr(passages, "_FINAL_LOCK_TIMEOUT_S", 0.0)
    for number in range(10):
        web.page(f"/{number}", html(f"Page {number}", words(number, 100), links=f"/{number + 1}"))
    lock = WriterLock(tmp_path / "passages", "passages compact")
    lock.__enter__()

    class Spider(LinkSpider):
        def closed(self, reason: str) -> None:
            lock.__exit__(None, None, None)

    crawler = await crawl(Spider, {**settings, **ALONE}, urls=web.url("/0"))
    stats = stats_of(crawler)
    assert stats["documents"] + stats["lost"] == 10
    assert 3 <= stats["documents"] <= 4
    assert not errors_of(crawler)


@crawl_test
async def test_a_lock_that_is_held_for_long_is_told_once(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writing_each_page(monkeypatch)
    monkeypatch.setattr(passages, "_LOG_LOCKED_AFTER_S", 0.0)
    monkeypatch.setattr(passages, "_FINAL_LOCK_TIMEOUT_S", 0.0)
    site(web)
    with WriterLock(tmp_path / "passages", "passages compact"):
        crawler = await crawl(LinkSpider, {**settings, **ALONE}, urls=web.url())
    assert errors_of(crawler)["dedupe/errors/passages"] == 5  # each page, and the end
    assert caplog.text.count("(passages compact)") == 1
    assert "The crawl continues; the texts are kept in memory and the write is retried." in caplog.text


@contextmanager
def longest_file(size_bytes: int) -> Iterator[None]:
    """No file of this process gets longer, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@crawl_test
async def test_a_full_disk_costs_no_page(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    web.page("/", html("Home", words("home")))
    await crawl(LinkSpider, {**settings, **ALONE}, urls=web.url())
    web.page("/large", html("Large", words("large", 100_000), links="/other"))
    web.page("/other", html("Other", words("other")))
    spider, items = collecting()
    with longest_file(300_000):
        crawler = await crawl(spider, {**settings, **ALONE}, urls=web.url("/large"))
    assert [item["url"] for item in items] == [web.url("/large"), web.url("/other")]
    assert errors_of(crawler) == {"dedupe/errors/passages": 1}
    assert stats_of(crawler)["lost"] == 2
    assert "2 pages of this crawl were not added to the index." in caplog.text
    with indexed(tmp_path) as index:  # answers as before
        assert names(index, web) == ["/"]
        assert index.check(full=True).problems == ()


@crawl_test
async def test_an_index_that_lacks_a_file_costs_no_page(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PassageIndex(tmp_path / "passages") as index:
        index.add("x", words("x"))
    (gone,) = (tmp_path / "passages").glob("*.segment")
    gone.unlink()
    site(web)
    spider, items = collecting()
    crawler = await crawl(spider, {**settings, **ALONE}, urls=web.url())
    assert len(items) == 5
    assert errors_of(crawler) == {"dedupe/errors/passages": 1}
    assert stats_of(crawler)["lost"] == 4
    assert f"lacks the file {gone}" in caplog.text
    assert "4 pages of this crawl were not added to the index." in caplog.text


@crawl_test
async def test_an_index_that_is_removed_meanwhile_is_told_and_not_begun_again(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PassageIndex(tmp_path / "passages") as index:
        index.add("x", words("x"))
    index_finish = PassageExtension._finish

    def finish(self: PassageExtension) -> None:
        self._flush()
        (tmp_path / "passages").rename(tmp_path / "elsewhere")
        index_finish(self)

    monkeypatch.setattr(PassageExtension, "_finish", finish)
    site(web)
    crawler = await crawl(LinkSpider, {**settings, **ALONE}, urls=web.url())
    assert errors_of(crawler) == {"dedupe/errors/passages": 1}
    assert "lost" not in stats_of(crawler)
    assert "The pages that this crawl had written are lost with it." in caplog.text
    assert not (tmp_path / "passages").exists()


@crawl_test
async def test_a_folder_that_cannot_be_created_refuses_the_start(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Not even root can create a folder there.
    own = {**settings, **ALONE, "DEDUPE_PASSAGES_DIR": "/proc/passages"}
    with pytest.raises(ArchiveError):
        await crawl(LinkSpider, own, urls=web.url())
    assert "The crawl does not start. The passage index cannot be written to /proc/passages: " in caplog.text
    assert "Name another folder in DEDUPE_PASSAGES_DIR." in caplog.text
    assert web.paths == []


@crawl_test
async def test_a_folder_that_cannot_be_written_during_the_crawl_costs_no_page(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    spider, items = collecting()
    folder = tmp_path / "data" / "passages"

    class Spider(spider):  # type: ignore[misc, valid-type]
        async def start(self) -> Any:
            folder.parent.write_bytes(b"")
            async for request in super().start():
                yield request

    own = {**settings, **ALONE, "DEDUPE_PASSAGES_DIR": str(folder)}
    crawler = await crawl(Spider, own, urls=web.url())
    assert len(items) == 5
    assert errors_of(crawler)["dedupe/errors/passages"] == 1
    assert stats_of(crawler)["lost"] == 4
    assert f"{folder} is not a folder" in caplog.text


@crawl_test
async def test_an_index_with_other_parameters_refuses_the_start(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PassageIndex(tmp_path / "passages", tokeniser="cjk") as index:
        index.add("x", "some text")
    with pytest.raises(StoreRefused, match="cjk"):
        await crawl(LinkSpider, settings, urls=web.url())
    assert "The crawl does not start." in caplog.text
    assert web.paths == []
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_PASSAGES_TOKENISER": "cjk"}, urls=web.url())
    assert not errors_of(crawler)


@crawl_test
async def test_a_folder_of_other_things_refuses_the_start(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "passages").mkdir()
    (tmp_path / "passages" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(StoreRefused):
        await crawl(LinkSpider, settings, urls=web.url())
    assert "is not a passage index: it contains 'holiday.jpg'" in caplog.text
    assert "The crawl does not start." in caplog.text
    assert "DEDUPE_PASSAGES_DIR" in caplog.text
    assert [path.name for path in (tmp_path / "passages").iterdir()] == ["holiday.jpg"]


@crawl_test
async def test_without_texts_passages_are_told_by_where_they_stand(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_PASSAGES_TEXT": False}, urls=web.url())
    assert not errors_of(crawler)
    with indexed(tmp_path) as index:
        hits = index.like(QUOTE)
        assert {hit.doc_id for hit in hits} == {web.url("/"), web.url("/one")}
        assert {passage.text for hit in hits for passage in hit.passages} == {None}
        with pytest.raises(StoreRefused):
            index.text(web.url("/"))


KILLED = """
import json, sys
from crawling import AsyncCrawlerProcess, LinkSpider
from scrapy_dedupe.live.observers import passages as passage_indexing
passage_indexing._FLUSH_S = 0.2
process = AsyncCrawlerProcess(json.loads(sys.argv[1]))
process.crawl(LinkSpider, urls=sys.argv[2])
process.start()
"""


def test_a_crawl_that_is_killed_has_what_was_flushed(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    clock = threading.Event()

    def wait(handler: Any) -> Page:
        # It is read while the crawl writes it.
        for _ in range(5_000):
            if len(PassageIndex(tmp_path / "passages")):
                break
            clock.wait(0.05)
        os.kill(process.pid, signal.SIGKILL)
        return Page(b"")

    site(web)
    web.page("/two", html("Two", words("two"), links="/kill"))
    web.pages["/kill"] = wait
    values = {**settings, **ALONE, "ADDONS": {"scrapy_dedupe.Addon": 500}, "DEPTH_PRIORITY": 1}
    process = Program("python", "-c", KILLED, json.dumps(values), web.url())
    assert process.wait(240) == -signal.SIGKILL
    with indexed(tmp_path) as index:
        assert web.url("/") in index
        assert index.check(full=True).problems == ()


@pytest.mark.parametrize("charset", ["punycode", "idna"])
@crawl_test
async def test_a_page_in_no_charset_is_passed_by_by_every_layer(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, charset: str
) -> None:
    long = "x" * 400_000 + "-" + "a" * 400_000
    web.page("/meta", f"<meta charset={charset}>{long}", content_type="text/html")
    web.page("/http", long, content_type=f"text/html; charset={charset}")
    web.page("/good", html("Good", words("good")))

    class Spider(LinkSpider):
        async def start(self) -> Any:
            for path in ("/meta", "/http", "/good"):
                yield scrapy.Request(web.url(path))

        def parse(self, response: Any, **kwargs: Any) -> Any:
            return ()  # Scrapy itself would decode it to look for links

    # A middleware of Scrapy decodes every page, too.
    crawler = await crawl(Spider, {**settings, "METAREFRESH_ENABLED": False})
    assert not errors_of(crawler)
    assert stats_of(crawler)["skipped/encoding"] == 2
    assert crawler.stats.get_value("dedupe/content/skipped/encoding") == 2
    assert names(indexed(tmp_path), web) == ["/good"]


@crawl_test
async def test_pages_that_are_stored_are_not_lost_when_their_segments_cannot_be_merged(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: IndexWriter, *words: Any, **options: Any) -> None:
        raise StoreUnavailable("There is no space for a merge.")

    monkeypatch.setattr(IndexWriter, "tidy", fail)
    site(web)
    crawler = await crawl(LinkSpider, {**settings, **ALONE}, urls=web.url())
    stats = stats_of(crawler)
    assert (stats["documents"], stats.get("lost")) == (4, None)
    assert errors_of(crawler) == {"dedupe/errors/passages": 1}
    assert "There is no space for a merge." in caplog.text
    assert "The pages are in the index; its small segments will be merged later." in caplog.text
    assert names(indexed(tmp_path), web) == ["/", "/copy", "/one", "/two"]


@crawl_test
async def test_what_the_index_writes_of_itself_is_not_lost(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_dedupe.passages.index.BATCH_DOCUMENTS", 2)
    monkeypatch.setattr("scrapy_dedupe.passages.index.MAX_PENDING_DOCUMENTS", 2)
    monkeypatch.setattr(passages, "_FINAL_LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(passages, "_FLUSH_S", 3600.0)
    for number in range(5):
        web.page(f"/{number}", html(f"Page {number}", words(number), links=f"/{number + 1}"))
    lock = WriterLock(tmp_path / "passages", "passages compact")

    class Spider(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url == web.url("/4"):
                # The index may still be writing the two pages before.
                Session.of(self.crawler).worker.submit(int).result(60)
                lock.__enter__()
            return super().parse(response)

    crawler = await crawl(Spider, {**settings, **ALONE}, urls=web.url("/0"))
    lock.__exit__(None, None, None)
    stats = stats_of(crawler)
    assert (stats["documents"], stats["lost"]) == (4, 1)
    with indexed(tmp_path) as index:
        assert names(index, web) == ["/0", "/1", "/2", "/3"]
        assert stats["bytes"] == sum(len(index.text(web.url(f"/{number}"))) for number in range(4))


RUSSIAN = (
    "В чащах юга жил бы цитрус? Да, но фальшивый экземпляр! Съешь же ещё этих мягких французских булок. "
)
JAPANESE = "いろはにほへとちりぬるをわかよたれそつねならむうゐのおくやまけふこえてあさきゆめみしゑひもせす。"
CHINESE = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"
GERMAN = "<title>Größe</title><p>Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich für 5 €."

# Older releases of w3lib know it, and pages in it are left out as those in no charset.
IS_UTF_7_UNKNOWN = resolve_encoding("utf-7") is None

# By path: body and Content-Type, and whether a text is expected.
ENCODED: dict[str, tuple[bytes, str | None, bool]] = {
    "/utf-8": (GERMAN.encode(), "text/html", True),
    "/utf-8-bom": (GERMAN.encode("utf-8-sig"), "text/html; charset=iso-8859-1", True),
    "/utf-16-bom": (GERMAN.encode("utf-16"), "text/html", True),
    "/utf-16-be-bom": (b"\xfe\xff" + GERMAN.encode("utf-16-be"), "text/html; charset=utf-8", True),
    "/utf-16-declared": (GERMAN.encode("utf-16-le"), "text/html; charset=utf-16le", True),
    "/utf-32-bom": (GERMAN.encode("utf-32"), "text/html", True),
    "/windows-1252": (GERMAN.encode("cp1252"), "text/html", True),
    "/shift-jis-meta": (f"<meta charset=Shift_JIS><p>{JAPANESE}".encode("shift_jis"), "text/html", True),
    "/shift-jis": ((JAPANESE * 5).encode("shift_jis"), "text/html", True),
    "/euc-jp": (f"<p>{JAPANESE * 5}".encode("euc_jp"), "text/html", True),
    "/windows-1251": (f"<p>{RUSSIAN * 3}".encode("cp1251"), "text/html", True),
    "/koi8-r": (f"<p>{RUSSIAN * 3}".encode("koi8-r"), "text/plain", True),
    "/plain-1251": (RUSSIAN.encode("cp1251"), "text/plain; charset=windows-1251", True),
    "/plain-meta": (b"Write <meta charset=koi8-r> so: \xd0\xc9\xdb\xc9", "text/plain", True),
    "/gb18030": (f"<p>{CHINESE * 3}".encode("gb18030"), "text/html", True),
    "/gb2312-euro": (b"<meta charset=gb2312><p>\x80 5 \xb5\xd8", "text/html", True),
    "/wrong": (f"<p>{RUSSIAN}".encode("cp1251"), "text/html; charset=utf-8", True),
    "/conflict": (f"<meta charset=koi8-r><p>{RUSSIAN}".encode("cp1251"), "text/html; charset=cp1251", True),
    "/unknown": (f"<p>{RUSSIAN * 3}".encode("cp1251"), "text/html; charset=x-unknown", True),
    "/unknown-meta": (f"<meta charset=x-no><p>{RUSSIAN * 3}".encode("cp1251"), "text/html", True),
    "/unknown-then-meta": (b"<meta charset=koi8-r>\xcd\xc9\xd2", "text/html; charset=x-unknown", True),
    "/utf-7": ("<p>1 + 1 é".encode("utf-7"), "text/html; charset=utf-7", IS_UTF_7_UNKNOWN),
    "/no-charset": (GERMAN.encode(), "text/html; charset=punycode", False),
    "/no-charset-meta": (f"<meta charset=idna>{GERMAN}".encode(), "text/html", False),
    "/broken": (GERMAN.encode() + b"\xff\xfe\x81", "text/html", True),
    "/nul": (f"<p>one\0two {GERMAN}".encode(), "text/html; charset=utf-8", True),
    "/json": ('{"name": "Größe"}'.encode(), "application/json", True),
    "/linked-json": ('{"name": "Größe"}'.encode(), "application/ld+json", True),
    "/xml": (
        "<?xml version='1.0' encoding='koi8-r'?><a>мир</a>".encode("koi8-r"),
        "application/xml",
        True,
    ),
    "/xhtml": (f"<html><body>{GERMAN}</body></html>".encode(), "application/xhtml+xml", True),
    "/feed": (f"<?xml version='1.0'?><a>{RUSSIAN}</a>".encode("cp1251"), "application/rss+xml", True),
    "/typeless-html": (f"<!doctype html>{RUSSIAN * 3}".encode("cp1251"), None, True),
    "/typeless-xml": (b"<?xml version='1.0'?><a>one<title/>two</a>", None, True),
    "/image": (b"<p>no image", "image/png", False),
    "/bytes": (b"<p>any bytes", "application/octet-stream", False),
    "/binary": (bytes(range(256)) * 4, "text/html; charset=utf-8", False),
}


@crawl_test
async def test_the_texts_of_an_archive_are_those_of_the_crawl_that_made_it(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, (body, content_type, _) in ENCODED.items():
        web.page(path, body, content_type=content_type)
    # The last Content-Type counts, as in Scrapy.
    packed = gzip.compress(f"<p>{RUSSIAN * 3}".encode("cp1251"))
    web.page("/packed", packed, content_type="text/html", headers=[("Content-Encoding", "gzip")])
    web.page("/twice", GERMAN, content_type="image/png", headers=[("Content-Type", "text/html")])
    paths = [*ENCODED, "/packed", "/twice"]
    seen: dict[str, tuple[str, str]] = {}

    class Spider(LinkSpider):
        async def start(self) -> Any:
            for path in paths:
                yield scrapy.Request(web.url(path))

        def parse(self, response: Any, **kwargs: Any) -> Any:
            kind = kind_of_page(response)
            if kind is not None and has_charset(response):
                seen[response.url] = (kind, response.text)

    own = {**settings, "DEDUPE_WARC_DIR": str(tmp_path / "warc"), "METAREFRESH_ENABLED": False}
    crawler = await crawl(Spider, own)
    assert not errors_of(crawler)
    files = sorted(str(path) for path in (tmp_path / "warc").glob("*.warc.gz"))
    code = main(["passages", "index", *files, "--root", str(tmp_path / "archived"), "--json"])
    result = json.loads(capsys.readouterr().out)
    wanted = {web.url(path) for path in paths if path not in ENCODED or ENCODED[path][2]}
    with indexed(tmp_path) as ours, PassageIndex(tmp_path / "archived", create=False) as archived:
        texts = {document.doc_id: archived.text(document.doc_id) for document in archived.documents}
        assert {document.doc_id: ours.text(document.doc_id) for document in ours.documents} == texts
    assert texts == {url: read(*seen[url]).text for url in wanted}
    no_charset = {"/no-charset", "/no-charset-meta"} | (set() if IS_UTF_7_UNKNOWN else {"/utf-7"})
    assert (code, result["skipped"]) == (4, {"encoding": len(no_charset), "type": 3})
    named = {
        fault["place"].rpartition(web.url(""))[2].rstrip(")"): fault["reason"] for fault in result["named"]
    }
    assert {path for path, reason in named.items() if "not a known charset" in reason} == no_charset
    assert {path for path, reason in named.items() if "U+FFFD" in reason} >= {"/wrong"}
    # The content layer, the list of pages and `content explain` read them so as well.
    reader = PageReader(Settings())
    for record in read_records(Path(files[0])):
        if record.type == "response" and (url := record.target_uri or "") in wanted:
            page = reader.page(url, record.http.headers, record.payload())
            assert (page.kind, page.text) == seen[url]
