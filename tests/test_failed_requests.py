"""A request that failed is no longer seen in the next run; one that was answered stays seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from scrapy.exceptions import IgnoreRequest
from webserver import Page

from scrapy_dedupe.dupefilters import BloomDupeFilter

if TYPE_CHECKING:
    from pathlib import Path

    import scrapy
    from webserver import WebServer


@pytest.fixture
def settings(settings: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {
        **settings,
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "COOKIES_ENABLED": False,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "JOBDIR": str(tmp_path / "job"),
    }


def links(*paths: str) -> str:
    return "".join(f'<a href="{path}">a link</a>' for path in paths)


def hang_up(handler: Any) -> Page:
    handler.connection.close()
    raise ConnectionError


async def asked(
    web: WebServer, settings: dict[str, Any], spider: type[scrapy.Spider] = LinkSpider
) -> set[str]:
    """The paths that a run asks for, except for the start."""
    web.paths.clear()
    crawler = await crawl(spider, settings, addon=False, urls=web.url())
    assert crawler.stats.get_value("dedupe/errors/url") is None
    assert web.paths.count("/") == 1
    return {*web.paths} - {"/"}


@crawl_test
async def test_what_failed_is_asked_for_again_in_the_next_run(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", links("/good", "/missing", "/broken", "/moved", "/loop"))
    web.page("/good", "good")
    web.pages["/broken"] = hang_up
    web.pages["/moved"] = Page(status=302, headers=[("Location", "/arrived")])
    web.pages["/arrived"] = Page(b"not yet", 503)
    web.pages["/loop"] = Page(status=302, headers=[("Location", "/good")])
    everything = {"/good", "/missing", "/broken", "/moved", "/arrived", "/loop"}
    assert await asked(web, settings) == everything
    # The way to the page that failed is open too, and only that.
    assert await asked(web, settings) == everything - {"/good", "/loop"}
    for path in ("/missing", "/broken", "/arrived"):
        web.page(path, "there now")
    assert await asked(web, settings) == everything - {"/good", "/loop"}
    assert await asked(web, settings) == set()


@crawl_test
async def test_nothing_is_asked_for_twice_in_the_run_in_which_it_failed(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", links("/missing", "/page"))
    web.page("/page", links("/missing"))
    for _ in range(2):
        web.paths.clear()
        await crawl(LinkSpider, settings, addon=False, urls=web.url())
        assert web.paths.count("/missing") == 1


@crawl_test
async def test_a_retry_that_succeeds_is_no_failure(web: WebServer, settings: dict[str, Any]) -> None:
    tries: list[str] = []

    def unsteady(handler: Any) -> Page:
        tries.append(handler.path)
        return Page(b"at last", 200 if len(tries) > 2 else 503)

    web.page("/", links("/unsteady"))
    web.pages["/unsteady"] = unsteady
    retrying = {**settings, "RETRY_ENABLED": True, "RETRY_TIMES": 3}
    assert await asked(web, retrying) == {"/unsteady"}
    assert tries == ["/unsteady"] * 3
    assert await asked(web, retrying) == set()


@crawl_test
async def test_retries_that_are_used_up_are_a_failure(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/", links("/down", "/broken"))
    web.pages["/down"] = Page(b"down", 503)
    web.pages["/broken"] = hang_up
    retrying = {**settings, "RETRY_ENABLED": True, "RETRY_TIMES": 1}
    assert await asked(web, retrying) == {"/down", "/broken"}
    assert await asked(web, retrying) == {"/down", "/broken"}


@crawl_test
async def test_a_status_that_the_spider_handles_is_an_answer(
    web: WebServer, settings: dict[str, Any]
) -> None:
    class Tolerant(LinkSpider):
        handle_httpstatus_list = (404,)

    web.page("/", links("/missing"))
    assert await asked(web, settings, Tolerant) == {"/missing"}
    assert await asked(web, settings, Tolerant) == set()


@crawl_test
async def test_a_page_that_a_middleware_refuses_is_a_failure(
    web: WebServer, settings: dict[str, Any]
) -> None:
    class Ban:
        def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
            if b"go away" in response.body:
                raise IgnoreRequest("a ban page")
            return response

    web.page("/", links("/banned"))
    web.page("/banned", "go away")
    banned = {**settings, "DOWNLOADER_MIDDLEWARES": {Ban: 560}}
    assert await asked(web, banned) == {"/banned"}
    assert await asked(web, banned) == {"/banned"}


@crawl_test
async def test_a_copy_that_was_dropped_is_no_failure(web: WebServer, settings: dict[str, Any]) -> None:
    text = "the same words on two pages " * 20
    web.page("/", links("/one", "/two"))
    web.page("/one", text)
    web.page("/two", text)
    dropping = {
        **settings,
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_WARC_ENABLED": False,
        "DEDUPE_ACTION_EXACT": "drop",
        "DEDUPE_ACTION_UNCHANGED": "drop",
    }
    assert await asked(web, dropping) == {"/one", "/two"}
    assert await asked(web, dropping) == set()


@crawl_test
async def test_a_failed_page_behind_a_wall_is_found_again_with_its_way(
    web: WebServer, settings: dict[str, Any]
) -> None:
    walled = [True]
    status = [404]

    def wall(handler: Any) -> Page:
        if walled[0]:
            return Page(status=302, headers=[("Location", "/cookie")])
        return Page(b"behind the wall", status[0])

    def cookie(handler: Any) -> Page:
        walled[0] = False
        return Page(status=302, headers=[("Location", "/wall")])

    web.page("/", links("/wall"))
    web.pages |= {"/wall": wall, "/cookie": cookie}
    assert await asked(web, settings) == {"/wall", "/cookie"}
    walled[0], status[0] = True, 200
    assert await asked(web, settings) == {"/wall", "/cookie"}
    assert web.paths == ["/", "/wall", "/cookie", "/wall"]
    walled[0] = True
    assert await asked(web, settings) == set()


@crawl_test
async def test_redirects_in_a_circle_are_a_failure(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/", links("/one"))
    web.pages["/one"] = Page(status=302, headers=[("Location", "/two")])
    web.pages["/two"] = Page(status=302, headers=[("Location", "/one")])
    circling = {**settings, "REDIRECT_MAX_TIMES": 4}
    for _ in range(2):
        assert await asked(web, circling) == {"/one", "/two"}


@crawl_test
async def test_failures_stay_seen_by_setting(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/", links("/missing"))
    never = {**settings, "DEDUPE_URL_FORGET_FAILED": False}
    assert await asked(web, never) == {"/missing"}
    assert await asked(web, never) == set()


@crawl_test
async def test_a_redirect_of_a_retry_is_recorded(web: WebServer, settings: dict[str, Any]) -> None:
    tries: list[str] = []

    def first_down(handler: Any) -> Page:
        tries.append(handler.path)
        return Page(b"down", 503) if len(tries) == 1 else Page(status=302, headers=[("Location", "/target")])

    web.page("/", links("/moved", "/later"))
    web.pages["/moved"] = first_down
    web.page("/target", links("/after"))
    web.page("/after", links("/target"))
    web.page("/later", "later")
    del settings["JOBDIR"]
    await crawl(
        LinkSpider,
        {**settings, "RETRY_ENABLED": True, "RETRY_TIMES": 1, "CONCURRENT_REQUESTS": 1},
        addon=False,
        urls=web.url(),
    )
    assert sorted(web.paths) == ["/", "/after", "/later", "/moved", "/moved", "/target"]
