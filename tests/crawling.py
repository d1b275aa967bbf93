"""Runs crawls in the process of the tests, under the asyncio reactor or without one."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import CrawlerProcess, CrawlerRunner
from scrapy.utils.defer import deferred_f_from_coro_f, maybe_deferred_to_future

from scrapy_dedupe.live.content import pending_texts
from scrapy_dedupe.live.urls import shared

try:
    from scrapy.crawler import AsyncCrawlerProcess, AsyncCrawlerRunner
except ImportError:  # Scrapy 2.13
    AsyncCrawlerProcess = CrawlerProcess
    AsyncCrawlerRunner = None

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from scrapy.crawler import Crawler

reactorless = False

# Scrapy looks every five seconds whether a crawl is over; tests need not wait that long.
ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 0.1
# How long a crawl waits for a copy's first page and for a server is no matter of how busy this machine is.
pending_texts._LONGEST_WAIT_S = 60.0  # type: ignore[misc]
shared._MAX_TIMEOUT_S = 60.0


def crawl_test(function: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """Decorator of ``async def`` tests."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if reactorless:
            return asyncio.run(function(*args, **kwargs))
        return deferred_f_from_coro_f(function)(*args, **kwargs)

    return run


async def crawl(
    spider: type[scrapy.Spider], settings: Mapping[str, Any], *, addon: bool = True, **arguments: Any
) -> Crawler:
    """Run one crawl to its end; with the add-on unless told otherwise."""
    # Without the warning Scrapy need not read the source of each callback. It makes CONCURRENT_ITEMS tasks per response.
    values = {"WARN_ON_GENERATOR_RETURN_VALUE": False, "CONCURRENT_ITEMS": 10, **settings}
    if addon:
        values.setdefault("ADDONS", {"scrapy_dedupe.Addon": 500})
    if reactorless:
        values["TWISTED_REACTOR_ENABLED"] = False
    if AsyncCrawlerRunner is None:
        runner = CrawlerRunner(values)
        crawler = runner.create_crawler(spider)
        await maybe_deferred_to_future(runner.crawl(crawler, **arguments))
    else:
        runner = AsyncCrawlerRunner(values)
        crawler = runner.create_crawler(spider)
        await runner.crawl(crawler, **arguments)
    return crawler


class LinkSpider(scrapy.Spider):
    """Follows every link; yields one item a page with the verdict. ``urls`` are separated by spaces."""

    name = "links"
    urls = ""

    async def start(self) -> Any:
        for url in self.urls.split():
            yield scrapy.Request(url, dont_filter=True)

    def parse(self, response: Any, **kwargs: Any) -> Iterable[Any]:
        verdict = response.meta.get("dedupe")
        yield {"url": response.url, "kind": verdict.kind if verdict else None}
        if isinstance(response, scrapy.http.HtmlResponse):
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link)


class OneByOneSpider(LinkSpider):
    """Asks for each of the ``urls`` when the page before it has been answered, and follows no links."""

    async def start(self) -> Any:
        self._urls = iter(self.urls.split())
        yield scrapy.Request(next(self._urls), dont_filter=True)

    def parse(self, response: Any, **kwargs: Any) -> Iterable[Any]:
        verdict = response.meta.get("dedupe")
        yield {"url": response.url, "kind": verdict.kind if verdict else None}
        for url in self._urls:
            yield scrapy.Request(url, dont_filter=True)
            break


def collecting(spider: type[scrapy.Spider] = LinkSpider) -> tuple[type[scrapy.Spider], list[dict[str, Any]]]:
    """A spider class like *spider* and the list that its items go to."""
    items: list[dict[str, Any]] = []

    class Collecting(spider):  # type: ignore[misc, valid-type]
        @classmethod
        def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
            made = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(made.keep_item, signal=scrapy.signals.item_scraped)
            return made

        def keep_item(self, item: Any) -> None:
            items.append(item)

    return Collecting, items
