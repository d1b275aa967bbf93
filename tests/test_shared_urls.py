"""The shared URL filter of a job over several runs: what was forgotten, and starts that come to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from crawling import LinkSpider, crawl, crawl_test
from scrapy import Request
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from webserver import Page

from scrapy_dedupe.dupefilters import BloomDupeFilter
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.live.urls.shared import SharedUrls
from scrapy_dedupe.urls import fallback
from scrapy_dedupe.urls.shared import SharedBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from webserver import WebServer

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"
A, B, C = b"a", b"b", b"c"


@pytest.fixture
def job(settings: dict[str, Any], redis_url: str, tmp_path: Path) -> dict[str, Any]:
    return {**settings, "JOBDIR": str(tmp_path), "DEDUPE_URL_STORE_URL": redis_url}


def started(job: dict[str, Any]) -> tuple[SharedUrls, Session]:
    crawler = get_crawler(LinkSpider, job)
    crawler.spider = crawler._create_spider()
    filter_ = BloomDupeFilter.from_crawler(crawler)
    filter_.open()
    assert isinstance(filter_._urls, SharedUrls)
    return filter_._urls, Session.of(crawler)


async def run(
    job: dict[str, Any], asked: list[bytes], done: list[bytes], *, clean: bool = True
) -> list[bool]:
    """Which of those that a run asked for were new; its stop counts as clean or as cut."""
    urls, session = started(job)
    answers = [urls.add(fingerprint) for fingerprint in asked]
    session.is_spoiled = not clean
    await urls.close(done, [], 0)
    return answers


def kill(urls: SharedUrls) -> None:
    """End a run as a kill does: nobody is told of it, and what is on the disk stays."""
    urls._close_journals()
    assert urls._filter is not None
    urls._filter.shared._caller.close()


def forget(job: dict[str, Any], *fingerprints: bytes) -> None:
    with redis.Redis.from_url(job["DEDUPE_URL_STORE_URL"]) as client:
        tool = SharedBloomFilter.existing(client, LinkSpider.name)
        assert tool is not None
        tool.forget(fingerprints)


@crawl_test
async def test_what_was_forgotten_and_not_asked_for_since_is_new_after_a_cut_run(job: dict[str, Any]) -> None:
    assert await run(job, [A, B], [A, B]) == [True, True]
    forget(job, A)
    await run(job, [C], [], clean=False)
    assert await run(job, [A, B, A], [A]) == [True, False, False]
    assert await run(job, [A, B], []) == [False, False]


@crawl_test
@pytest.mark.parametrize("stop", ["cut", "clean, then cut", "cut, then cut"])
async def test_what_was_asked_for_again_and_not_done_is_new_after_a_cut_run(
    job: dict[str, Any], stop: str
) -> None:
    assert await run(job, [A, B, C], [A, B, C]) == [True, True, True]
    forget(job, A, C)
    assert await run(job, [A, B, C], [C], clean=stop == "clean, then cut") == [True, False, True]
    if stop != "cut":
        # In whose queue it stays.
        await run(job, [], [], clean=False)
    assert (await run(job, [A, B], [A])) == [True, False]
    await run(job, [], [], clean=False)
    assert await run(job, [A, B], []) == [False, False]


@crawl_test
async def test_what_was_asked_for_again_a_moment_before_a_kill_is_new(job: dict[str, Any]) -> None:
    assert await run(job, [A, B], [A, B]) == [True, True]
    forget(job, A)
    urls, _ = started(job)
    assert [urls.add(A), urls.add(B)] == [True, False]
    kill(urls)
    assert await run(job, [A, B], [A]) == [True, False]


@crawl_test
async def test_what_was_asked_for_again_while_the_server_was_away_is_new_after_a_kill(
    job: dict[str, Any], redis_server: Any
) -> None:
    job["DEDUPE_URL_STORE_URL"] = redis_server.url
    assert await run(job, [A, B], [A, B]) == [True, True]
    urls, _ = started(job)
    redis_server.stop()
    assert [urls.add(A), urls.add(A)] == [True, False]
    kill(urls)
    redis_server.start()
    assert await run(job, [A, B], [A]) == [True, False]
    await run(job, [], [], clean=False)
    assert await run(job, [A, B], []) == [False, False]


@crawl_test
async def test_what_was_asked_for_again_since_the_server_lost_the_filter_is_new_after_a_kill(
    job: dict[str, Any],
) -> None:
    assert await run(job, [A, B], [A, B]) == [True, True]
    urls, _ = started(job)
    with redis.Redis.from_url(job["DEDUPE_URL_STORE_URL"]) as client:
        client.flushall()
    assert [urls.add(A), urls.add(A)] == [True, False]
    kill(urls)
    assert await run(job, [A, B], []) == [True, False]


@crawl_test
async def test_what_is_done_again_is_done(job: dict[str, Any]) -> None:
    assert await run(job, [A], [A]) == [True]
    forget(job, A)
    assert await run(job, [A], [A]) == [True]
    await run(job, [], [], clean=False)
    assert await run(job, [A], []) == [False]


@crawl_test
async def test_a_first_start_that_is_refused_later_leaves_scrapys_queue(
    job: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise StoreError("another layer")

    (tmp_path / "requests.queue").mkdir()
    for _ in range(2):
        _, session = started(job)
        with pytest.raises(StoreError):
            session.at_start(refuse)
    assert (tmp_path / "requests.queue").is_dir()
    assert "did not end cleanly" not in caplog.text
    await run(job, [A], [], clean=False)
    await run(job, [], [])
    assert not (tmp_path / "requests.queue").exists()


@crawl_test
async def test_what_the_server_is_never_told_is_counted(
    job: dict[str, Any], redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_MAX_UNSENT", 2)
    job["DEDUPE_URL_STORE_URL"] = redis_server.url
    urls, _ = started(job)
    assert "not_shared" not in urls.figures()
    redis_server.stop()
    assert [urls.add(item) for item in (A, B, C, C)] == [True, True, True, False]
    redis_server.start()
    assert urls.figures()["not_shared"] == 1
    await urls.close([], [], 0)


@pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")
@crawl_test
async def test_who_begins_queue_and_filter_anew_does_so_for_others_too(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    paths = ["/", "/0", "/1"]
    web.page("/", '<a href="/0">x</a><a href="/1">x</a>')
    for path in paths[1:]:
        web.page(path, "")
    settings |= {
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "REDIS_URL": redis_url,
        "DEDUPE_URL_STORE_URL": redis_url,
        "SCHEDULER_FLUSH_ON_START": True,
    }
    asked = [fingerprint(Request(web.url(path))) for path in paths]
    with redis.Redis.from_url(redis_url) as client:
        # One on another machine, perhaps, that runs or was killed less than its lease ago.
        other = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER)
        assert all(other.add_many(asked))
        await crawl(LinkSpider, settings, addon=False, urls=web.url())
        assert sorted(web.paths) == paths
        # Its own filter goes with it; what the other remembers, too, once it has looked.
        other.describe()
        assert other.add_many(asked) == [True, True, True]
        other.detach(delete=True)
        assert client.keys("dedupe:urls:*") == []


@crawl_test
@pytest.mark.parametrize("times", [1, 2])
async def test_a_store_that_is_emptied_during_the_crawl_is_told_once_and_no_page_is_asked_for_again(
    times: int, web: WebServer, settings: dict[str, Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def emptying(number: int) -> Callable[[Any], Page]:
        def answer(handler: Any) -> Page:
            if web.paths.count(handler.path) == 1:
                with redis.Redis.from_url(redis_url) as client:
                    client.flushall()
            return Page(f'<a href="/{number + 1}">x</a><a href="/0">x</a><a href="/1">x</a>'.encode())

        return answer

    for number in range(12):
        web.page(f"/{number}", f'<a href="/{number + 1}">x</a><a href="/0">x</a>')
    for number in (4, 8)[:times]:
        web.pages[f"/{number}"] = emptying(number)
    settings |= {
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "DEDUPE_URL_STORE_URL": redis_url,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "CONCURRENT_REQUESTS": 1,
    }
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url("/0"))
    assert web.paths == [f"/{number}" for number in range(13)]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "dedupe:urls:2:{links} was lost during the crawl" in errors[0]
    assert redis_url in errors[0]
    assert crawler.stats.get_value("dedupe/errors/url") == times
