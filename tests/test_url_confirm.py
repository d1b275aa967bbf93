"""DEDUPE_URL_CONFIRM: a filter that errs often loses no page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test

from scrapy_dedupe.dupefilters import BloomDupeFilter

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

PAGES = 120


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "COOKIES_ENABLED": False,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "DEDUPE_URL_CAPACITY": 100,
        "DEDUPE_URL_ERROR_RATE": 0.5,
        "DEDUPE_URL_CONFIRM": True,
    }


def plant(web: WebServer) -> None:
    """Every page but the last is found twice: on the home page and on the page before."""
    web.page("/", "".join(f'<a href="/{n}">a link</a>' for n in range(PAGES)))
    for n in range(PAGES):
        web.page(f"/{n}", f'<a href="/{(n + 1) % PAGES}">a link</a>')


@crawl_test
async def test_every_page_is_downloaded_once_by_a_filter_that_errs(
    web: WebServer, settings: dict[str, Any]
) -> None:
    plant(web)
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", *(f"/{n}" for n in range(PAGES))])
    stats = crawler.stats.get_stats()
    assert stats["dedupe/url/confirmed"] == stats["dupefilter/filtered"] == PAGES
    assert stats["dedupe/url/false_positives"] > 1
    assert stats["dedupe/url/expected_lost"] == 0
    assert stats["dedupe/url/seen"] == PAGES + 1
    assert "dedupe/errors/url" not in stats


@crawl_test
async def test_without_it_the_same_filter_loses_pages(web: WebServer, settings: dict[str, Any]) -> None:
    plant(web)
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_URL_CONFIRM": False}, addon=False, urls=web.url())
    assert len(set(web.paths)) < PAGES
    assert crawler.stats.get_value("dedupe/url/expected_lost") > PAGES / 20


@crawl_test
async def test_a_job_that_is_stopped_goes_on_with_its_exact_set(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    plant(web)
    job = {**settings, "JOBDIR": str(tmp_path / "job"), "CONCURRENT_REQUESTS": 2}
    await crawl(LinkSpider, {**job, "CLOSESPIDER_PAGECOUNT": 20}, addon=False, urls=web.url())
    assert len(set(web.paths)) < PAGES
    crawler = await crawl(LinkSpider, job, addon=False, urls=web.url())
    counts = Counter(web.paths)
    assert counts.pop("/") == 2
    assert counts == Counter(f"/{n}" for n in range(PAGES))
    assert crawler.stats.get_value("dedupe/errors/url") is None
    kept = {path.name for path in (tmp_path / "job" / "dedupe" / "urls").iterdir()}
    assert kept == {"urls.bloom", "urls.done", "urls.forgotten", "urls.seen", "urls.sqlite", "urls.started"}
