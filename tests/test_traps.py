"""Which patterns of URLs a report tells of a site with traps, and which not. Crawled with the default settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traps_site
from crawling import LinkSpider, crawl, crawl_test

from scrapy_dedupe.reports.observations import unpack
from scrapy_dedupe.reports.sums import CrawlSeen, report_of
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from webserver import WebServer

    from scrapy_dedupe.reports.figures import Trap


async def traps_of(web: WebServer, settings: dict[str, Any]) -> dict[str, Trap]:
    """The traps of a report, by their pattern behind the host."""
    await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": "c"}, urls=web.url())
    store = open_store(settings["DEDUPE_STORE_URL"])
    try:
        report = report_of([CrawlSeen("c", None, unpack(store.reports.load("c") or b"", "c"))])
    finally:
        store.close()
    host = web.url("").partition("://")[2].rstrip("/")
    return {trap.pattern.removeprefix(host): trap for trap in report.traps}


@crawl_test
async def test_traps_are_told_and_lists_and_manuals_are_not(web: WebServer, settings: dict[str, Any]) -> None:
    traps_site.put(web)
    traps = await traps_of(web, settings)
    # In whatever order the pages came. The list and the manual are not among them.
    assert sorted(traps) == sorted(traps_site.TRAPS.values())
    months = traps[traps_site.TRAPS["calendar"]]
    assert months.pages == 100
    assert months.template > 50
    sessions = traps[traps_site.TRAPS["session"]]
    # Of each of the four pages the first one is new.
    assert (sessions.pages, sessions.exact + sessions.near, sessions.template) == (45, 41, 0)
    assert list(traps)[-1] == traps_site.TRAPS["soft 404"]


@crawl_test
async def test_without_the_guard_no_page_counts_as_one_of_few_words(
    web: WebServer, settings: dict[str, Any]
) -> None:
    for path, html in traps_site.months(24_312, 24_342):
        web.page(path, html)
    first = next(path for path, _ in traps_site.months(24_312, 24_342))
    web.page("/", f'<a href="{first}">calendar</a>')
    traps = await traps_of(
        web, {**settings, **dict.fromkeys(("DEDUPE_NEAR_IDENTITY", "DEDUPE_TEMPLATE_GUARD"), False)}
    )
    (months,) = traps.values()
    assert (months.pattern.partition("/")[2], months.pages) == ("calendar/{n}/{n}", 30)
    assert (months.exact, months.near, months.template) == (0, 29, 0)
