from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from crawling import LinkSpider, crawl, crawl_test
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from webserver import Page

from scrapy_dedupe.dupefilters import BloomDupeFilter, DoneWatch
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.snapshot import FilterFolder, LastStop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from webserver import WebServer

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


class Empty:
    def fingerprint(self, request: scrapy.Request) -> Any:
        return b""


class Nothing(Empty):
    def fingerprint(self, request: scrapy.Request) -> Any:
        return None


class NotBytes(Empty):
    def fingerprint(self, request: scrapy.Request) -> Any:
        return request.url


class TooLong(Empty):
    def fingerprint(self, request: scrapy.Request) -> Any:
        return b"x" * 65_536


class Failing(Empty):
    def fingerprint(self, request: scrapy.Request) -> Any:
        raise RuntimeError("Failing was asked")


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The dupefilter alone, without the other layers."""
    return {
        **settings,
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "COOKIES_ENABLED": False,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
    }


def links(*paths: str) -> str:
    return "".join(f'<a href="{path}">a link</a>' for path in paths)


def site(web: WebServer, pages: int) -> None:
    """A home page, and pages that link home and to one another."""
    web.page("/", links(*(f"/{n}" for n in range(pages))))
    for n in range(pages):
        web.page(f"/{n}", links("/", f"/{(n + 1) % pages}", f"/{n}#again"))


def made(settings: Mapping[str, Any] | None = None) -> BloomDupeFilter:
    crawler = get_crawler(LinkSpider, dict(settings or {}))
    crawler.spider = crawler._create_spider()
    filter_ = BloomDupeFilter.from_crawler(crawler)
    filter_.open()
    return filter_


def refusal() -> AbstractContextManager[Any]:
    """Scrapy before 2.18 passes on what open() raises."""
    return nullcontext() if scrapy.version_info >= (2, 18) else pytest.raises(StoreError)


def stat(crawler: Any, name: str) -> Any:
    return crawler.stats.get_value(name)


# One request after the other


def test_a_request_is_seen_the_second_time() -> None:
    seen = made()
    assert not seen.request_seen(scrapy.Request("http://a.example/?b=1&a=2"))
    assert seen.request_seen(scrapy.Request("http://a.example/?a=2&b=1#fragment"))
    assert not seen.request_seen(scrapy.Request("http://a.example/?a=2&b=1", method="POST"))


def test_a_redirect_back_to_its_own_chain_passes() -> None:
    seen = made()
    first, second = "http://a.example/1", "http://a.example/2"
    assert not seen.request_seen(scrapy.Request(first))
    assert not seen.request_seen(scrapy.Request(second, meta={"redirect_urls": [first]}))
    assert not seen.request_seen(scrapy.Request(first, meta={"redirect_urls": [first, second]}))
    assert seen.request_seen(scrapy.Request(first, meta={"redirect_urls": [second]}))
    assert seen._crawler.stats.get_value("dedupe/url/redirects_passed") == 1


@pytest.mark.parametrize("fingerprinter", [Empty, Nothing, NotBytes, TooLong, Failing])
def test_a_fingerprinter_that_gives_nothing_usable_lets_requests_pass(
    fingerprinter: type, caplog: pytest.LogCaptureFixture
) -> None:
    seen = made({"REQUEST_FINGERPRINTER_CLASS": fingerprinter})
    request = scrapy.Request("http://a.example/")
    assert [seen.request_seen(request) for _ in range(3)] == [False] * 3
    assert seen._crawler.stats.get_value("dedupe/errors/url") == 3
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert fingerprinter.__name__ in caplog.text


def test_the_growth_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    seen = made({"DEDUPE_URL_CAPACITY": 10})
    for n in range(200):
        assert not seen.request_seen(scrapy.Request(f"http://a.example/{n}"))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([message for message in warnings if "first capacity of 10 " in message]) == 1
    assert "DEDUPE_URL_CAPACITY" in warnings[-1]


@pytest.mark.parametrize(("debug", "told"), [(True, 2), (False, 1)])
def test_drops_are_logged_as_scrapy_does(debug: bool, told: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen = made({"DUPEFILTER_DEBUG": debug})
    for _ in range(2):
        seen.log(scrapy.Request("http://a.example/"), seen._crawler.spider)
    assert caplog.text.count("Filtered duplicate request: <GET http://a.example/>") == told
    assert ("referer: None" in caplog.text) is debug
    assert seen._crawler.stats.get_value("dupefilter/filtered") == 2


def test_closing_what_was_never_opened_does_nothing() -> None:
    crawler = get_crawler(LinkSpider, {})
    assert BloomDupeFilter.from_crawler(crawler).close("cancelled") is None


def test_a_scheduler_that_does_not_open_it_gets_a_filter() -> None:
    seen = BloomDupeFilter.from_crawler(get_crawler(LinkSpider, {}))
    request = scrapy.Request("http://a.example/")
    assert [seen.request_seen(request) for _ in range(2)] == [False, True]


def test_a_request_is_done_when_it_was_missing_twice() -> None:
    watch = DoneWatch()
    one, two = scrapy.Request("http://a.example/1"), scrapy.Request("http://a.example/2")
    watch.received(one, [b"1"])
    watch.received(two, [b"2", b"0"])
    assert watch.tick({two}) == []
    assert watch.tick({one, two}) == []
    assert watch.tick({two}) == []
    assert watch.tick(set()) == [b"1"]
    assert watch.tick(set()) == [b"2", b"0"]
    assert watch.tick(set()) == []


# Crawls


@crawl_test
async def test_each_page_is_downloaded_once_the_home_page_too(
    web: WebServer, settings: dict[str, Any]
) -> None:
    site(web, 20)
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", *(f"/{n}" for n in range(20))])
    assert stat(crawler, "dedupe/url/seen") == 21
    assert stat(crawler, "dedupe/url/capacity") == 10_000
    assert stat(crawler, "dedupe/url/layers") == 1
    assert stat(crawler, "dedupe/url/bytes") == pytest.approx(37_000, rel=0.02)
    assert 0 < stat(crawler, "dedupe/url/fill_ratio") < 0.01
    assert 0 <= stat(crawler, "dedupe/url/estimated_error") < 1e-20
    assert 0 <= stat(crawler, "dedupe/url/expected_lost") < 1e-20
    # Each page has three links, of which one was new or none.
    assert stat(crawler, "dupefilter/filtered") == 60
    assert stat(crawler, "dedupe/errors/url") is None


@crawl_test
async def test_start_requests_are_not_recorded_by_setting(web: WebServer, settings: dict[str, Any]) -> None:
    site(web, 3)
    await crawl(LinkSpider, {**settings, "DEDUPE_URL_RECORD_START": False}, addon=False, urls=web.url())
    assert web.paths.count("/") == 2


@crawl_test
async def test_a_wall_that_sends_back_to_the_same_url_is_passed(
    web: WebServer, settings: dict[str, Any]
) -> None:
    visits = Counter[str]()

    def wall(handler: Any) -> Page:
        visits[handler.path] += 1
        if visits[handler.path] == 1:
            return Page(status=302, headers=[("Location", handler.path)])
        return Page(b"behind the wall")

    web.page("/", links("/wall"))
    web.pages["/wall"] = wall
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert web.paths == ["/", "/wall", "/wall"]
    assert stat(crawler, "dedupe/url/redirects_passed") == 1
    assert stat(crawler, "item_scraped_count") == 2


@crawl_test
async def test_a_stopped_job_goes_on_where_it_was(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web, 40)
    job = {**settings, "JOBDIR": str(tmp_path / "job"), "CONCURRENT_REQUESTS": 2}
    await crawl(LinkSpider, {**job, "CLOSESPIDER_PAGECOUNT": 10}, addon=False, urls=web.url())
    assert len(set(web.paths)) < 30
    crawler = await crawl(LinkSpider, job, addon=False, urls=web.url())
    counts = Counter(web.paths)
    assert counts.pop("/") == 2  # a start request, which passes in every run
    assert counts == Counter(f"/{n}" for n in range(40))
    assert stat(crawler, "dedupe/url/seen") == 41


@crawl_test
async def test_what_was_done_is_in_the_journal_after_a_clean_stop(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web, 5)
    web.page("/0", links("/moved"))
    web.pages["/moved"] = Page(status=301, headers=[("Location", "/target")])
    web.page("/target", "arrived")
    await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    (tmp_path / "dedupe" / "urls" / "urls.bloom").unlink()
    opened = FilterFolder(tmp_path / "dedupe" / "urls", FINGERPRINTER).open(1000, 1e-6)
    assert opened.last_stop is LastStop.CUT
    assert len(opened.filter) == len(set(web.paths)) == 8


@crawl_test
async def test_a_callback_that_still_runs_is_not_done(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    journal_sizes: list[int] = []

    class Slow(LinkSpider):
        async def parse(self, response: Any, **kwargs: Any) -> Any:
            journal = tmp_path / "dedupe" / "urls" / "urls.done"
            before = journal.stat().st_size
            await asyncio.sleep(0.4)
            journal_sizes.append(journal.stat().st_size - before)

    web.page("/", "text")
    await crawl(Slow, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    assert journal_sizes == [0]
    assert (tmp_path / "dedupe" / "urls" / "urls.done").stat().st_size > 80


@crawl_test
async def test_scrapys_own_file_is_taken_over(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site(web, 4)
    seen = [RequestFingerprinter().fingerprint(scrapy.Request(web.url(f"/{n}"))).hex() for n in range(3)]
    (tmp_path / "requests.seen").write_text("".join(f"{line}\n" for line in seen))
    await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    assert sorted(web.paths) == ["/", "/3"]
    assert "took over 3 fingerprints" in caplog.text


@crawl_test
async def test_a_damaged_filter_stops_the_crawl_at_the_start(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 4)
    job = {**settings, "JOBDIR": str(tmp_path)}
    await crawl(LinkSpider, job, addon=False, urls=web.url())
    snapshot = tmp_path / "dedupe" / "urls" / "urls.bloom"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    web.paths.clear()
    with refusal():
        await crawl(LinkSpider, job, addon=False, urls=web.url())
    assert web.paths == []
    assert "The crawl does not start. The URL filter" in caplog.text
    assert "urls.bloom is damaged" in caplog.text


@crawl_test
async def test_a_folder_that_becomes_full_does_not_stop_the_crawl(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site(web, 10)

    def full(self: FilterFolder, fingerprints: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FilterFolder, "record_done", full)
    crawler = await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    assert len(web.paths) == 11
    assert stat(crawler, "finish_reason") == "finished"
    assert stat(crawler, "dedupe/errors/url") >= 1
    assert "No space left" in caplog.text
    assert (tmp_path / "dedupe" / "urls" / "urls.bloom").exists()


KILLED = """
import asyncio, sys
import scrapy
sys.path.insert(0, sys.argv[3])
from crawling import LinkSpider
from scrapy.crawler import CrawlerProcess
process = CrawlerProcess({
    "DUPEFILTER_CLASS": "scrapy_dedupe.dupefilters.BloomDupeFilter", "JOBDIR": sys.argv[2],
    "DEDUPE_URL_FLUSH_SECONDS": 0.05, "COOKIES_ENABLED": False, "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False, "LOG_ENABLED": False, "CONCURRENT_REQUESTS": 4, "DOWNLOAD_DELAY": 0.01,
})
process.crawl(LinkSpider, urls=sys.argv[1])
process.start()
"""


def start_crawl(url: str, job: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", KILLED, url, str(job), str(Path(__file__).parent)]
    return subprocess.Popen(arguments, cwd=job.parent)


async def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@crawl_test
async def test_after_a_kill_no_page_is_lost_and_none_that_was_done_is_repeated(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 60)
    job = tmp_path / "job"
    process = start_crawl(web.url(), job)
    try:
        await until(lambda: len(web.paths) >= 30)
    finally:
        process.kill()
        process.wait()
    asked = set(web.paths)
    assert 30 <= len(asked) < 61
    known = FilterFolder(job / "dedupe" / "urls", FINGERPRINTER)
    done = known.open(1000, 1e-9).filter
    known.abandon()
    assert len(done) >= 10
    web.paths.clear()
    # Scrapy's own queue did not survive; a walk from the home page finds what is left.
    shutil.rmtree(job / "requests.queue")
    crawler = await crawl(LinkSpider, {**settings, "JOBDIR": str(job)}, addon=False, urls=web.url())
    assert "The last run of this job was cut" in caplog.text
    assert stat(crawler, "finish_reason") == "finished"
    assert asked | set(web.paths) == {"/", *(f"/{n}" for n in range(60))}
    fingerprint = RequestFingerprinter().fingerprint
    repeated = {path for path in web.paths if fingerprint(scrapy.Request(web.url(path))) in done}
    assert repeated == {"/"}  # a start request, which passes in every run
    assert max(Counter(web.paths).values()) == 1


# Shared


@crawl_test
async def test_crawls_that_share_a_filter_share_the_pages(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    site(web, 20)
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url}
    first, second = await asyncio.gather(
        crawl(LinkSpider, shared, addon=False, urls=web.url()),
        crawl(LinkSpider, shared, addon=False, urls=web.url()),
    )
    counts = Counter(web.paths)
    assert counts.pop("/") == 2
    assert counts == Counter(f"/{n}" for n in range(20))
    assert max(stat(first, "dedupe/url/seen"), stat(second, "dedupe/url/seen")) == 21
    # The last one to leave took the filter away.
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("dedupe:urls:*") == []


@crawl_test
async def test_a_shared_filter_of_a_job_is_kept(
    web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    site(web, 5)
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url, "JOBDIR": str(tmp_path)}
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/", *(f"/{n}" for n in range(5))])


@crawl_test
async def test_a_store_that_goes_away_stops_no_crawl_and_loses_no_page(
    web: WebServer, settings: dict[str, Any], redis_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 30)
    stopped = []

    def stop_the_server(handler: Any) -> Page:
        if not stopped:
            stopped.append(True)
            redis_server.stop()
        return Page(links("/", "/5", "/29", "/new-1", "/new-2", "/new-1").encode())

    web.pages["/5"] = stop_the_server
    web.page("/new-1", links("/new-2", "/0"))
    web.page("/new-2", links("/new-1"))
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_server.url, "DEDUPE_STORE_TIMEOUT": 0.5}
    crawler = await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/new-1", "/new-2", *(f"/{n}" for n in range(30))])
    assert stat(crawler, "finish_reason") == "finished"
    assert stat(crawler, "dedupe/errors/store") >= 1


@crawl_test
async def test_a_store_that_is_away_at_the_start_stops_the_crawl(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 3)
    shared = {**settings, "DEDUPE_URL_STORE_URL": "redis://127.0.0.1:1/0", "DEDUPE_STORE_TIMEOUT": 0.5}
    with refusal():
        await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert web.paths == []
    assert "The crawl does not start. " in caplog.text


# scrapy-redis's scheduler


def redis_scheduler(settings: dict[str, Any], redis_url: str, **more: Any) -> dict[str, Any]:
    return {
        **settings,
        "DUPEFILTER_CLASS": "scrapy_dedupe.dupefilters.BloomDupeFilter",
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "REDIS_URL": redis_url,
        **more,
    }


@pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")
@crawl_test
async def test_under_the_scheduler_of_scrapy_redis_with_a_shared_filter(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    site(web, 15)
    crawler = await crawl(
        LinkSpider,
        redis_scheduler(settings, redis_url, DEDUPE_URL_STORE_URL=redis_url),
        addon=False,
        urls=web.url(),
    )
    assert Counter(web.paths) == Counter(["/", *(f"/{n}" for n in range(15))])
    assert stat(crawler, "dedupe/url/seen") == 16
    assert stat(crawler, "dupefilter/filtered") == 45
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("dedupe:urls:*") == []


@pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")
@crawl_test
async def test_scrapy_redis_keeps_the_filter_when_it_persists(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    site(web, 5)
    kept = redis_scheduler(settings, redis_url, DEDUPE_URL_STORE_URL=redis_url, SCHEDULER_PERSIST=True)
    await crawl(LinkSpider, kept, addon=False, urls=web.url())
    await crawl(LinkSpider, kept, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/", *(f"/{n}" for n in range(5))])


@pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")
@crawl_test
async def test_under_the_scheduler_of_scrapy_redis_with_a_filter_of_its_own(
    web: WebServer, settings: dict[str, Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 5)
    crawler = await crawl(LinkSpider, redis_scheduler(settings, redis_url), addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", *(f"/{n}" for n in range(5))])
    assert stat(crawler, "dedupe/url/seen") == 6
    assert "Set DEDUPE_URL_STORE_URL" in caplog.text
