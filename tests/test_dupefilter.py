from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from crawling import LinkSpider, crawl, crawl_test
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from webserver import Page

from scrapy_dedupe.dupefilters import BloomDupeFilter
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.urls.folder import FilterFolder, LastStop
from scrapy_dedupe.urls.journal import DONE, Journal
from scrapy_dedupe.urls.shared import VERSION as SHARED_VERSION

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

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


def known_paths(known: Container[bytes], web: WebServer) -> set[str]:
    fingerprint = RequestFingerprinter().fingerprint
    return {path for path in web.pages if fingerprint(scrapy.Request(web.url(path))) in known}


def stat(crawler: Any, name: str) -> Any:
    return crawler.stats.get_value(name)


# One request after the other


def test_a_request_is_seen_the_second_time() -> None:
    seen = made()
    assert not seen.request_seen(scrapy.Request("http://a.example/?b=1&a=2"))
    assert seen.request_seen(scrapy.Request("http://a.example/?a=2&b=1#fragment"))
    assert not seen.request_seen(scrapy.Request("http://a.example/?a=2&b=1", method="POST"))


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
    assert stat(crawler, "dedupe/url/bytes") == pytest.approx(38_000, rel=0.02)
    assert 0 < stat(crawler, "dedupe/url/fill_ratio") < 0.01
    assert 0 <= stat(crawler, "dedupe/url/estimated_error") < 1e-20
    assert 0 <= stat(crawler, "dedupe/url/expected_lost") < 1e-20
    # Each page has three links, of which one was new or none.
    assert stat(crawler, "dupefilter/filtered") == 60
    assert stat(crawler, "dedupe/errors/url") is None


@crawl_test
async def test_growth_is_told_once_with_the_setting_that_avoids_it(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 50)
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_URL_CAPACITY": 10}, addon=False, urls=web.url())
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([message for message in warnings if "initial capacity of 10 " in message]) == 1
    assert "Set DEDUPE_URL_CAPACITY higher" in warnings[-1]
    assert stat(crawler, "dedupe/url/layers") == 3
    assert len(set(web.paths)) == 51


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


class CopyingSpider(LinkSpider):
    """Hands on the meta of its responses, and so what says how they were asked for."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, meta=dict(response.meta))


@crawl_test
@pytest.mark.filterwarnings("ignore:.*meta")
@pytest.mark.parametrize("is_job", [False, True])
async def test_a_link_is_no_redirect_though_it_carries_the_meta_of_one(
    is_job: bool, web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    if is_job:
        settings["JOBDIR"] = str(tmp_path)
    cookies: list[str] = []

    def wall(handler: Any) -> Page:
        if cookies:
            return Page(links("/wall", "/").encode())
        return Page(status=302, headers=[("Location", "/cookie")])

    def cookie(handler: Any) -> Page:
        cookies.append("taken")
        return Page(status=302, headers=[("Location", "/wall")])

    site(web, 20)
    web.page("/home", links("/wall", *(f"/{n}" for n in range(20))))
    web.pages |= {"/": Page(status=302, headers=[("Location", "/home")]), "/wall": wall, "/cookie": cookie}
    await crawl(CopyingSpider, settings, addon=False, urls=web.url())
    once = ["/", "/home", "/cookie", *(f"/{n}" for n in range(20))]
    assert Counter(web.paths) == Counter([*once, "/wall", "/wall"])


@crawl_test
@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_stop_that_loses_requests_counts_as_cut(
    is_shared: bool,
    web: WebServer,
    settings: dict[str, Any],
    redis_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings["DEDUPE_URL_STORE_URL"] = redis_url if is_shared else "local"

    class Lambdas(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, callback=lambda response: self.parse(response))

    site(web, 40)
    job = {**settings, "JOBDIR": str(tmp_path / "job"), "CONCURRENT_REQUESTS": 2}
    await crawl(Lambdas, {**job, "CLOSESPIDER_PAGECOUNT": 10}, addon=False, urls=web.url())
    assert len(set(web.paths)) < 30
    assert "requests are lost" in caplog.text
    await crawl(Lambdas, job, addon=False, urls=web.url())
    assert set(web.paths) == {"/", *(f"/{n}" for n in range(40))}


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
async def test_leaves_are_in_the_journal_after_a_clean_stop(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", links(*(f"/{n}" for n in range(5))))
    for n in range(5):
        web.page(f"/{n}", links("/", f"/{(n + 1) % 5}"))
    web.page("/0", links("/moved"))
    web.pages["/moved"] = Page(status=301, headers=[("Location", "/target")])
    web.page("/target", "arrived")
    await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    (tmp_path / "dedupe" / "urls" / "urls.bloom").unlink()
    folder = FilterFolder(tmp_path, FINGERPRINTER)
    opened = folder.open(1000, 1e-6)
    folder.abandon()
    assert opened.last_stop is LastStop.CUT
    # The home page and /0 found others. The chain that ended at /target found none.
    assert known_paths(opened.filter, web) == {"/1", "/2", "/3", "/4", "/moved", "/target"}


@crawl_test
async def test_a_callback_that_still_runs_is_not_done(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    journal_sizes: list[int] = []

    class Slow(LinkSpider):
        async def parse(self, response: Any, **kwargs: Any) -> Any:
            if not response.url.endswith("/leaf"):
                return [response.follow("/leaf")]
            journal = tmp_path / "dedupe" / "urls" / "urls.done"
            before = journal.stat().st_size
            await asyncio.sleep(0.4)
            journal_sizes.append(journal.stat().st_size - before)
            return []

    web.page("/", "text")
    web.page("/leaf", "text")
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
    assert "Imported 3 fingerprints" in caplog.text


@crawl_test
async def test_a_file_of_neither_form_in_its_place_stops_the_crawl_at_the_start(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 4)
    seen = tmp_path / "requests.seen"
    seen.write_text("https://example.com/\n")
    job = {**settings, "JOBDIR": str(tmp_path)}
    with refusal():
        await crawl(LinkSpider, job, addon=False, urls=web.url())
    assert web.paths == []
    errors = [r.getMessage() for r in caplog.records if r.name == "scrapy_dedupe.live.session"]
    assert len(errors) == 1
    assert f"The crawl does not start. {seen} is not a file of Scrapy's dupefilter" in errors[0]
    assert "move it away to start without it" in errors[0]
    # The remedy works.
    seen.unlink()
    await crawl(LinkSpider, job, addon=False, urls=web.url())
    assert sorted(web.paths) == ["/", "/0", "/1", "/2", "/3"]


@crawl_test
async def test_a_damaged_end_of_scrapys_own_file_is_told(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 4)
    seen = tmp_path / "requests.seen"
    line = RequestFingerprinter().fingerprint(scrapy.Request(web.url("/0"))).hex() + "\n"
    seen.write_text(f"{line}damaged\n{line}")
    crawler = await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    assert sorted(web.paths) == ["/", "/1", "/2", "/3"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([text for text in warnings if f"{seen} is truncated or damaged at byte 41" in text]) == 1
    assert crawler.stats.get_value("dedupe/errors/url") == 1


@crawl_test
@pytest.mark.parametrize("size", [0, 60, -1])
@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("urls.done", "If this run is killed, the pages that they listed are requested again."),
        ("urls.seen", "The filter itself is complete, but it cannot be rebuilt"),
    ],
)
async def test_a_truncated_list_of_a_job_is_reported_and_no_page_is_lost(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    consequence: str,
    size: int,
) -> None:
    site(web, 30)
    job = {**settings, "JOBDIR": str(tmp_path)}
    await crawl(LinkSpider, {**job, "CLOSESPIDER_PAGECOUNT": 6}, addon=False, urls=web.url())
    path = tmp_path / "dedupe" / "urls" / name
    os.truncate(path, size % path.stat().st_size)
    caplog.clear()
    crawler = await crawl(LinkSpider, job, addon=False, urls=web.url())
    (warning,) = [text for text in caplog.messages if str(path) in text]
    assert f"{path} is truncated or damaged: " in warning
    assert consequence in warning
    assert crawler.stats.get_value("dedupe/errors/url") == 1
    # The filter is complete, so no page is requested twice either.
    assert sorted(set(web.paths)) == sorted(["/", *(f"/{number}" for number in range(30))])
    assert max(Counter(path for path in web.paths if path != "/").values()) == 1
    caplog.clear()
    await crawl(LinkSpider, job, addon=False, urls=web.url())
    assert not [text for text in caplog.messages if str(path) in text]


@crawl_test
async def test_an_empty_list_of_a_killed_job_is_reported_and_all_pages_are_requested(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 4)
    job = {**settings, "JOBDIR": str(tmp_path)}
    await crawl(LinkSpider, job, addon=False, urls=web.url())
    folder = tmp_path / "dedupe" / "urls"
    (folder / "urls.bloom").unlink()
    os.truncate(folder / "urls.done", 0)
    web.paths.clear()
    crawler = await crawl(LinkSpider, job, addon=False, urls=web.url())
    assert "urls.done is empty, but" in caplog.text
    assert crawler.stats.get_value("dedupe/errors/url") == 1
    assert sorted(web.paths) == ["/", "/0", "/1", "/2", "/3"]


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

    append = Journal.append

    def full(self: Journal, fingerprints: Any) -> None:
        if self.kind is DONE:
            raise OSError(28, "No space left on device")
        append(self, fingerprints)

    monkeypatch.setattr(Journal, "append", full)
    crawler = await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path)}, addon=False, urls=web.url())
    assert len(web.paths) == 11
    assert stat(crawler, "finish_reason") == "finished"
    assert stat(crawler, "dedupe/errors/url") >= 1
    assert "No space left" in caplog.text
    assert (tmp_path / "dedupe" / "urls" / "urls.bloom").exists()


# Pages that found something new


class UnfilteredSpider(LinkSpider):
    """Asks for the links of /inner past the filter."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, dont_filter=response.url.endswith("/inner"))


class AgainSpider(LinkSpider):
    """Asks for /inner a second time, when its links are known."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield from super().parse(response)
        if response.url.endswith("/leaf"):
            yield response.follow("/inner", dont_filter=True)


class ReplacingSpider(LinkSpider):
    """Makes its requests out of the one before, with the Referer of that one."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        for link in response.css("a::attr(href)").getall():
            yield response.request.replace(url=response.urljoin(link), dont_filter=False)


async def journaled(
    spider: type[scrapy.Spider], settings: Mapping[str, Any], web: WebServer, job: Path
) -> set[str]:
    """What a kill at the end of a crawl would leave as known."""
    await crawl(spider, {**settings, "JOBDIR": str(job)}, addon=False, urls=web.url())
    (job / "dedupe" / "urls" / "urls.bloom").unlink()
    folder = FilterFolder(job, FINGERPRINTER)
    known = folder.open(1000, 1e-9).filter
    folder.abandon()
    return known_paths(known, web)


@pytest.mark.parametrize("referer", [True, False])
@pytest.mark.parametrize(
    "spider",
    [LinkSpider, CopyingSpider, UnfilteredSpider, ReplacingSpider],
    ids=lambda spider: spider.__name__,
)
@crawl_test
async def test_a_page_that_found_something_new_is_not_journaled_however_it_was_asked(
    spider: type[scrapy.Spider], referer: bool, web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", links("/moved", "/leaf"))
    web.pages["/moved"] = Page(status=302, headers=[("Location", "/inner")])
    web.page("/inner", links("/deep", "/leaf"))
    web.page("/deep", links("/deepest", "/"))
    web.page("/deepest", "nothing")
    web.page("/leaf", links("/", "/leaf"))
    alone = {**settings, "REFERER_ENABLED": referer, "CONCURRENT_REQUESTS": 1}
    known = await journaled(spider, alone, web, tmp_path)
    assert not {"/", "/moved", "/inner", "/deep"} & known
    assert "/deepest" in known
    # Without a Referer to believe, /leaf may count as the parent of what was found beside it.
    assert known - {"/leaf"} == {"/deepest"}
    if spider is LinkSpider and referer:
        assert "/leaf" in known


@crawl_test
async def test_meta_that_is_handed_on_hides_no_page_that_found_something(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Each page names the redirected home page in its meta, while others ask for that page past the filter."""

    class Restless(CopyingSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield response.follow("/", dont_filter=True)
            yield from super().parse(response, **kwargs)

    web.pages["/"] = Page(status=302, headers=[("Location", "/0")])
    for n in range(30):
        web.page(f"/{n}", links(f"/{n + 1}"))
    web.page("/30", "the end")
    limited = {**settings, "DEPTH_LIMIT": 40, "CLOSESPIDER_PAGECOUNT": 60}
    known = await journaled(Restless, limited, web, tmp_path)
    assert {f"/{n}" for n in range(5)} <= set(web.paths)
    assert not {f"/{n}" for n in range(30)} & known


@crawl_test
async def test_a_page_that_finds_nothing_new_the_second_time_is_not_journaled(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", links("/inner"))
    web.page("/inner", links("/leaf"))
    web.page("/leaf", "nothing")
    known = await journaled(AgainSpider, settings, web, tmp_path)
    assert web.paths == ["/", "/inner", "/leaf", "/inner"]
    # A request past the filter is something new as well.
    assert known == set()


@crawl_test
async def test_retries_and_redirects_make_no_page_an_inner_one(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Each leaf is redirected, or comes at the second try, while others are at work."""
    asked = Counter[str]()

    def shaky(handler: Any) -> Page:
        asked[handler.path] += 1
        return Page(b"nothing", 503 if asked[handler.path] == 1 else 200)

    web.page("/", links(*(f"/{kind}-{n}" for n in range(8) for kind in ("moved", "shaky"))))
    for n in range(8):
        web.pages[f"/moved-{n}"] = Page(status=301, headers=[("Location", f"/to-{n}")])
        web.page(f"/to-{n}", "nothing")
        web.pages[f"/shaky-{n}"] = shaky
    known = await journaled(LinkSpider, {**settings, "RETRY_ENABLED": True}, web, tmp_path)
    # What was tried again went past the filter, and is asked for again.
    assert known == {f"/{kind}-{n}" for n in range(8) for kind in ("moved", "to")}


@crawl_test
async def test_a_run_whose_archive_lacks_pages_counts_as_cut(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Spoiling(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url.endswith("/5"):
                Session.of(self.crawler).is_spoiled = True
            yield from super().parse(response)

    site(web, 20)
    job = {**settings, "JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 1, "DOWNLOAD_DELAY": 0.02}
    await crawl(Spoiling, job, addon=False, urls=web.url())
    asked = list(web.paths)
    folder = FilterFolder(tmp_path, FINGERPRINTER)
    opened = folder.open(1000, 1e-9)
    folder.abandon()
    assert opened.last_stop is LastStop.CUT
    known = known_paths(opened.filter, web)
    assert known <= set(asked[: asked.index("/5")])
    assert "requests them again" in caplog.text


def test_a_start_that_is_refused_later_gives_the_filter_back(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StoreError("another layer")

    folder = FilterFolder(tmp_path, FINGERPRINTER)
    opened = folder.open(10_000, 1e-6)
    opened.filter.add(b"queued")
    folder.close(opened.filter)
    before = folder.snapshot.read_bytes()
    seen = made({"JOBDIR": str(tmp_path)})
    assert not folder.snapshot.exists()
    with pytest.raises(StoreError):
        Session.of(seen._crawler).at_start(refuse)
    assert folder.snapshot.read_bytes() == before
    assert seen.close("refused") is None


def test_a_first_start_that_is_refused_later_leaves_what_scrapy_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise StoreError("another layer")

    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.seen").write_bytes(b"\x00\x06queued")
    for _ in range(2):
        caplog.clear()
        with pytest.raises(StoreError):
            Session.of(made({"JOBDIR": str(tmp_path)})._crawler).at_start(refuse)
        assert "Imported 1 fingerprints" in caplog.text
        assert "did not end cleanly" not in caplog.text
        assert (tmp_path / "requests.queue").is_dir()


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
    site(web, 40)
    shared = {
        **settings,
        "DEDUPE_URL_STORE_URL": redis_url,
        "JOBDIR": str(tmp_path),
        "CONCURRENT_REQUESTS": 2,
    }
    await crawl(LinkSpider, {**shared, "CLOSESPIDER_PAGECOUNT": 10}, addon=False, urls=web.url())
    assert len(set(web.paths)) < 30
    with redis.Redis.from_url(redis_url) as client:
        (born,) = client.hmget(f"dedupe:urls:{SHARED_VERSION}:{{links}}:meta", "born")
        assert born is not None
        assert client.exists("dedupe:urls:1:{links}:attached") == 0
    kept = (tmp_path / "dedupe" / "urls" / "shared").read_text().split()
    assert kept[0] == born.decode()
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/", *(f"/{n}" for n in range(40))])


@crawl_test
async def test_another_job_of_the_same_spider_begins_a_shared_filter_anew(
    web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site(web, 5)
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url}
    for job in ("one", "two"):
        await crawl(LinkSpider, {**shared, "JOBDIR": str(tmp_path / job)}, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(2 * ["/", *(f"/{n}" for n in range(5))])
    assert "Discarded 6 fingerprints of an earlier crawl from the shared URL filter" in caplog.text
    assert "did not end cleanly" not in caplog.text


@crawl_test
async def test_a_run_with_a_shared_filter_whose_archive_lacks_pages_counts_as_cut(
    web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Spoiling(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            Session.of(self.crawler).is_spoiled = True
            yield from super().parse(response)

    site(web, 5)
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url, "JOBDIR": str(tmp_path)}
    await crawl(Spoiling, shared, addon=False, urls=web.url())
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(2 * ["/", *(f"/{n}" for n in range(5))])
    assert "did not end cleanly" in caplog.text


@crawl_test
async def test_who_ends_first_leaves_the_shared_filter_to_the_other(
    web: WebServer, settings: dict[str, Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site(web, 20)
    second: list[Any] = []

    class Starting(LinkSpider):
        """Has a second crawl begin and end in the middle of its own."""

        async def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url.endswith("/10"):
                stopped = {**shared, "CLOSESPIDER_PAGECOUNT": 1}
                second.append(await crawl(LinkSpider, stopped, addon=False, urls=web.url()))
            for item in super().parse(response):
                yield item

    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url, "CONCURRENT_REQUESTS": 1}
    await crawl(Starting, shared, addon=False, urls=web.url())
    counts = Counter(web.paths)
    assert counts.pop("/") == 2
    assert counts == Counter(f"/{n}" for n in range(20))
    assert len(second) == 1
    assert "is used by 1 other process" in caplog.text


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
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_server.url, "DEDUPE_STORE_TIMEOUT": 30}
    crawler = await crawl(LinkSpider, shared, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/new-1", "/new-2", *(f"/{n}" for n in range(30))])
    assert stat(crawler, "finish_reason") == "finished"
    assert stat(crawler, "dedupe/errors/store") >= 1


@crawl_test
async def test_a_store_that_is_away_at_the_start_stops_the_crawl(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    site(web, 3)
    shared = {**settings, "DEDUPE_URL_STORE_URL": "redis://127.0.0.1:1/0", "DEDUPE_STORE_TIMEOUT": 30}
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
