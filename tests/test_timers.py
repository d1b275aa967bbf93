"""What the layers do every so many seconds goes on after an error, which is counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import scrapy
from crawling import crawl, crawl_test

from scrapy_dedupe.live.session import Session

if TYPE_CHECKING:
    import pytest
    from webserver import WebServer


@crawl_test
async def test_a_timer_that_raises_is_called_again(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<title>Reed</title>")

    class Spider(scrapy.Spider):
        name = "timed"
        start_urls = (web.url("/"),)

        async def parse(self, response: Any) -> Any:
            calls, is_enough = 0, asyncio.Event()

            def fail() -> None:
                nonlocal calls
                calls += 1
                if calls == 3:
                    is_enough.set()
                raise OSError("no such thing")

            Session.of(self.crawler).run_every(0.01, fail, "log")
            await is_enough.wait()
            yield {}

    crawler = await crawl(Spider, settings)
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("dedupe/errors/log") >= 3
    told = [record.getMessage() for record in caplog.records if "no such thing" in record.getMessage()]
    assert len(told) == 1
    assert "dedupe/errors/log" in told[0]
