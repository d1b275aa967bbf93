"""A crawl that is faster than the disk is held back, and goes on as soon as the disk has caught up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import scrapy
from crawling import LinkSpider, crawl, crawl_test
from scrapy.core.engine import ExecutionEngine

from scrapy_dedupe.live.session import Session
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    import pytest
    from webserver import WebServer

LIMIT = 1_000_000
PIPELINE = {"scrapy_dedupe.pipelines.WarcPipeline": 900}


@crawl_test
async def test_requests_are_asked_for_again_at_once(
    web: WebServer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        web.page(f"/{number}", bytes([number]) * (LIMIT + 1), content_type="application/octet-stream")
    write = WarcWriter.write

    def slow(self: WarcWriter, records: Any) -> Any:
        time.sleep(0.05)
        return write(self, records)

    monkeypatch.setattr(WarcWriter, "write", slow)
    heartbeat_s = 600.0
    monkeypatch.setattr(ExecutionEngine, "_SLOT_HEARTBEAT_INTERVAL", heartbeat_s)
    settings |= {
        "DEDUPE_WARC_QUEUE_BYTES": LIMIT,
        "CONCURRENT_REQUESTS": 1,
        # Nothing waits for a record, so when it is written no response is left to wake the engine.
        "ITEM_PIPELINES": PIPELINE,
    }
    urls = " ".join(web.url(f"/{number}") for number in range(4))
    start = time.monotonic()
    crawler = await crawl(LinkSpider, settings, addon=False, urls=urls)
    assert time.monotonic() - start < heartbeat_s
    assert crawler.stats.get_value("dedupe/warc/held_back") >= 1
    assert crawler.stats.get_value("dedupe/warc/response") == 4


@crawl_test
async def test_what_comes_in_while_the_worker_lets_go_holds_the_crawl_back_too(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", "<title>Reed</title>")
    paused: list[bool] = []

    class Spider(scrapy.Spider):
        name = "loads"
        start_urls = (web.url("/"),)

        async def parse(self, response: Any) -> Any:
            session, engine = Session.of(self.crawler), self.crawler.engine
            first, second = threading.Event(), threading.Event()
            session.worker.submit_weighing(LIMIT + 1, first.wait)
            paused.append(engine.paused)
            first.set()
            # The worker has said that the crawl can go on; the event loop is busy here, and has not heard it yet.
            session.worker.submit(lambda: None).result()
            session.worker.submit_weighing(LIMIT + 1, second.wait)
            await asyncio.sleep(0)
            paused.append(engine.paused)
            second.set()
            await session.on_worker(lambda: None)
            paused.append(engine.paused)
            yield {}

    await crawl(Spider, settings | {"DEDUPE_WARC_QUEUE_BYTES": LIMIT})
    assert paused == [True, True, False]
