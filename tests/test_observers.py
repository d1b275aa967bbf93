"""Whoever looks on during a crawl hears of it, and cannot hurt it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from scrapy import Request
from webserver import Page

from scrapy_dedupe.live.session import Session

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from webserver import WebServer

    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.live.events import JudgedPage, Observer
    from scrapy_dedupe.warc.capture import Capture


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


def watched(*onlookers: Observer, spider: type[LinkSpider] = LinkSpider) -> type[LinkSpider]:
    """A spider like *spider*, at whose crawl *onlookers* look."""

    class Watched(spider):  # type: ignore[misc, valid-type]
        @classmethod
        def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
            for onlooker in onlookers:
                Session.of(crawler).events.add(onlooker)
            return super().from_crawler(crawler, *args, **kwargs)

    return Watched


class Listening:
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.filtered: list[str] = []
        self.judged: list[JudgedPage] = []
        self.recorded: list[tuple[Capture, Recorded]] = []

    def request_filtered(self, url: str) -> None:
        self.filtered.append(url)

    def page_judged(self, page: JudgedPage) -> None:
        self.judged.append(page)

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        self.recorded.append((capture, recorded))


@crawl_test
async def test_all_that_is_decided_is_told(web: WebServer, settings: dict[str, Any]) -> None:
    web.page(
        "/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/a">3</a><a href="/pdf">4</a>'
    )
    web.page("/a", text("a"))
    web.page("/copy", text("a"), content_type="Text/HTML; charset=utf-8")
    web.page("/pdf", b"%PDF-1.4", content_type="application/pdf")
    listening = Listening()
    settings.update(DEDUPE_ACTION_EXACT="drop", ROBOTSTXT_OBEY=True)
    await crawl(watched(listening), settings, urls=web.url())
    assert listening.filtered == [web.url("/a")]
    # Not the PDF and robots.txt, which are not to be judged.
    assert sorted(
        (page.url, page.response.status, page.mime, len(page.response.body)) for page in listening.judged
    ) == [(web.url(path), 200, "text/html", len(web.pages[path].body)) for path in ("/", "/a", "/copy")]
    assert sorted((page.verdict.kind, page.dropped) for page in listening.judged) == [
        ("exact", True),
        ("unique", False),
        ("unique", False),
    ]
    assert sorted((capture.url, recorded.kind) for capture, recorded in listening.recorded)[::4] == [
        (web.url("/"), "response"),
        (web.url("/robots.txt"), "response"),
    ]
    assert sorted(recorded.kind for _, recorded in listening.recorded) == ["response"] * 4 + ["revisit"]


@crawl_test
async def test_a_chain_of_redirects_that_comes_back_was_not_filtered(
    web: WebServer, settings: dict[str, Any]
) -> None:
    """A site that sets a cookie and sends the client back to the same URL."""

    def answer(request: Any) -> Page:
        if request.headers.get("Cookie"):
            return Page(text("a").encode())
        return Page(status=302, headers=[("Location", "/a"), ("Set-Cookie", "seen=1")])

    web.page("/", text("home") + '<a href="/a">1</a>')
    web.pages["/a"] = answer
    listening = Listening()
    crawler = await crawl(watched(listening), settings, urls=web.url())
    assert crawler.stats.get_value("dedupe/url/redirects_passed") == 1
    assert listening.filtered == []
    assert len(listening.recorded) == 3


@pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")
@crawl_test
async def test_under_the_scheduler_of_scrapy_redis_too(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    web.page("/", text("home") + '<a href="/a">1</a><a href="/a">2</a>')
    web.page("/a", text("a"))
    settings.update(SCHEDULER="scrapy_redis.scheduler.Scheduler", REDIS_URL=redis_url)
    settings.update(DEDUPE_URL_STORE_URL=redis_url)
    listening = Listening()
    await crawl(watched(listening), settings, urls=web.url())
    assert listening.filtered == [web.url("/a")]
    assert [len(listening.judged), len(listening.recorded)] == [2, 2]


@crawl_test
async def test_what_is_skipped_within_the_blackout_is_told(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/a", text("a"))

    class Twice(LinkSpider):
        async def start(self) -> Any:
            yield Request(web.url("/a"), dont_filter=True, callback=self.again)

        def again(self, response: Any) -> Any:
            yield response.request.replace(callback=self.parse)

    listening = Listening()
    settings.update(DEDUPE_WARC_BLACKOUT=3600)
    await crawl(watched(listening, spider=Twice), settings)
    assert [recorded.kind for _, recorded in listening.recorded] == ["response", "skipped"]


class Failing:
    """Counts how often it was called."""

    calls = 0

    def request_filtered(self, url: str) -> None:
        self._fail()

    def page_judged(self, page: Any) -> None:
        self._fail()

    def exchange_recorded(self, capture: Any, recorded: Any) -> None:
        self._fail()

    def _fail(self) -> None:
        self.calls += 1
        raise RuntimeError("no")


@crawl_test
async def test_an_onlooker_that_fails_is_told_nothing_more(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    failing, listening = Failing(), Listening()
    web.page("/", text("home") + '<a href="/a">1</a><a href="/a">2</a>')
    web.page("/a", text("a"))
    crawler = await crawl(watched(failing, listening), settings, urls=web.url())
    stats = crawler.stats.get_stats()
    assert (stats["finish_reason"], stats["response_received_count"]) == ("finished", 2)
    # The two threads may be in it at the same time.
    assert 1 <= failing.calls <= 2
    assert stats["dedupe/errors/report"] == failing.calls
    assert caplog.text.count("Unexpected RuntimeError: no.") == 1
    assert [len(told) for told in (listening.filtered, listening.judged, listening.recorded)] == [1, 2, 2]
