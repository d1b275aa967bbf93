"""The report of a crawl: what is kept in the store, and the page at the end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test

from scrapy_dedupe.reports.kept import unpack
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

    from scrapy_dedupe.reports.observations import Observations


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


def kept(settings: dict[str, Any], crawl_id: str) -> Observations | None:
    store = open_store(settings["DEDUPE_STORE_URL"])
    try:
        data = store.reports.load(crawl_id)
        return None if data is None else unpack(data, crawl_id)
    finally:
        store.close()


@pytest.fixture
def site(web: WebServer) -> WebServer:
    """Three pages; two are equal, and one is linked to twice."""
    web.page("/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/a">3</a>')
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    return web


@crawl_test
async def test_what_was_seen_is_kept_in_the_store(site: WebServer, stored: dict[str, Any]) -> None:
    stored.update(DEDUPE_CRAWL_ID="c1", DEDUPE_ACTION_EXACT="drop", CONCURRENT_REQUESTS=1)
    crawler = await crawl(LinkSpider, stored, urls=site.url())
    seen = kept(stored, "c1")
    stats = crawler.stats.get_stats()
    assert seen.totals == {
        "requests_filtered": 1,
        "pages_judged": 3,
        "duplicates": 1,
        "dropped": 1,
        "responses": 2,
        "revisits": 1,
        "bytes_written": stats["dedupe/warc/bytes_written"],
        "bytes_conserved": stats["dedupe/warc/bytes_conserved"],
        "bytes_judged": sum(len(page.body) for page in site.pages.values()),
    }
    assert {kind: pages for kind, pages in seen.verdicts.items() if pages} == {"unique": 2, "exact": 1}
    assert seen.spider == "links"
    assert seen.stats["dedupe/url/seen"] == 3
