from __future__ import annotations

import asyncio
import codecs
import gc
import gzip
import logging
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from crawling import LinkSpider, collecting, crawl, crawl_test
from hypothesis import given
from hypothesis import strategies as st
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse
from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_dedupe.content import Judge, Page, Verdict
from scrapy_dedupe.downloadermiddlewares import ContentDedupeMiddleware, DuplicateContent
from scrapy_dedupe.live.content.pending_texts import PendingTexts
from scrapy_dedupe.live.responses import utf8_of
from scrapy_dedupe.signals import content_judged
from scrapy_dedupe.stores.sqlite_content import SqliteContent

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RedisServer
    from webserver import WebServer

LONG = "".join(f"<p>Sentence number {number} of a text that is long enough." for number in range(40))


@pytest.fixture
def alone(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with which the middleware works by itself, without the add-on."""
    return settings | {
        "DOWNLOADER_MIDDLEWARES": {"scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 543}
    }


class Listed(scrapy.Spider):
    """Asks for ``paths`` of ``base``, one after another; keeps responses by path and failures."""

    name = "listed"

    def __init__(self, base: str, paths: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = base
        self.paths = paths.split()
        self.responses: dict[str, Any] = {}
        self.failures: list[Any] = []

    custom_settings = {"CONCURRENT_REQUESTS": 1}

    def request_for(self, path: str) -> scrapy.Request:
        return scrapy.Request(self.base + path, errback=self.fail, dont_filter=True)

    async def start(self) -> Any:
        for priority, path in enumerate(self.paths):
            yield self.request_for(path).replace(priority=-priority)

    def parse(self, response: Any, **kwargs: Any) -> None:
        self.responses[response.url.removeprefix(self.base)] = response

    def fail(self, failure: Any) -> None:
        self.failures.append(failure)


async def listed(web: WebServer, settings: dict[str, Any], paths: str, spider: type[Listed] = Listed) -> Any:
    return await crawl(spider, settings, addon=False, base=web.url(""), paths=paths)


def kinds(crawler: Any) -> dict[str, str]:
    return {path: response.meta["dedupe"].kind for path, response in crawler.spider.responses.items()}


def content_stats(crawler: Any) -> dict[str, int]:
    stats = crawler.stats.get_stats()
    return {
        key.removeprefix("dedupe/content/"): n
        for key, n in stats.items()
        if key.startswith("dedupe/content/") and "/latency/" not in key
    }


@crawl_test
async def test_verdicts_are_on_the_meta_and_among_the_flags(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/a", LONG)
    web.page("/b", LONG.replace("<p>", "<div>"))
    web.page("/c", LONG + "<p>One more.")
    web.page("/d", "<p>Something else")
    crawler = await listed(web, alone, "/a /b /c /d")
    responses = crawler.spider.responses
    assert kinds(crawler) == {"/a": "unique", "/b": "exact", "/c": "near", "/d": "unique"}
    assert [responses[path].flags for path in ("/a", "/b", "/c")] == [[], ["dedupe-exact"], ["dedupe-near"]]
    verdict = responses["/b"].meta["dedupe"]
    assert verdict.original_url == web.url("/a")
    assert verdict.original_crawl
    assert content_stats(crawler) == {"unique": 2, "exact": 1, "near": 1}


@crawl_test
async def test_a_second_crawl_finds_the_texts_of_the_first(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/a", LONG)
    web.page("/b", "<p>Old")
    first = await listed(web, alone | {"DEDUPE_CRAWL_ID": "first"}, "/a /b")
    web.page("/b", "<p>New")
    second = await listed(web, alone | {"DEDUPE_CRAWL_ID": "second"}, "/a /b")
    assert kinds(first) == {"/a": "unique", "/b": "unique"}
    assert kinds(second) == {"/a": "unchanged", "/b": "unique"}
    assert second.spider.responses["/a"].meta["dedupe"].original_crawl == "first"


@crawl_test
@pytest.mark.parametrize("is_coded", [False, True])
async def test_a_page_is_known_by_its_bytes_with_and_without_an_archive(
    web: WebServer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_coded: bool
) -> None:
    if is_coded:
        web.page("/a", gzip.compress(LONG.encode()), headers=[("Content-Encoding", "gzip")])
    else:
        web.page("/a", LONG)
    first = await crawl(Listed, settings, base=web.url(""), paths="/a")
    assert kinds(first) == {"/a": "unique"}

    def fail(*args: object) -> None:
        raise AssertionError("The text of the page is read.")

    monkeypatch.setattr("scrapy_dedupe.content.pages.read", fail)
    for has_archive in (False, True):
        again = settings | {"DEDUPE_WARC_ENABLED": has_archive}
        assert kinds(await crawl(Listed, again, base=web.url(""), paths="/a")) == {"/a": "unchanged"}


@given(
    st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE]),
    st.sampled_from(["text/html", "text/html; charset=utf-8", "text/html; charset=latin-1"]),
)
def test_a_body_is_taken_for_the_text_in_utf_8_only_if_it_is(body: bytes, mark: bytes, declared: str) -> None:
    response = HtmlResponse("http://a.example/", body=mark + body, headers={"Content-Type": declared})
    assert utf8_of(response) in (None, response.text.encode())


def test_the_body_of_a_utf_8_page_is_its_text() -> None:
    body = "<meta charset=utf-8><p>Käse".encode()
    assert utf8_of(HtmlResponse("http://a.example/", body=body)) is body


@crawl_test
async def test_pages_that_changed_little_are_counted_among_the_near_ones(
    web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/a", LONG)
    await listed(web, alone, "/a")
    web.page("/a", LONG + "<p>One more.")
    web.page("/b", LONG + "<p>Another one.")
    second = await listed(web, alone, "/a /b")
    assert kinds(second) == {"/a": "near", "/b": "near"}
    assert content_stats(second) == {"near": 2, "changed": 1}


@crawl_test
async def test_a_dropped_page_reaches_the_errback_with_its_verdict(
    web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/a", LONG)
    web.page("/b", LONG)
    web.page("/c", LONG + "<p>One more.")
    crawler = await listed(web, alone | {"DEDUPE_ACTION_EXACT": "drop"}, "/a /b /c")
    assert kinds(crawler) == {"/a": "unique", "/c": "near"}
    (failure,) = crawler.spider.failures
    assert isinstance(failure.value, DuplicateContent)
    assert isinstance(failure.value, IgnoreRequest)
    assert failure.value.verdict.kind == "exact"
    assert failure.value.verdict.original_url == web.url("/a")
    assert content_stats(crawler)["dropped"] == 1


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"CLOSESPIDER_PAGECOUNT": 10}, "closespider_pagecount"),
        ({"CLOSESPIDER_PAGECOUNT_NO_ITEM": 10}, "closespider_pagecount_no_item"),
    ],
)
def test_a_crawl_that_drops_everything_ends_by_the_page_count(
    web: WebServer, alone: dict[str, Any], limit: dict[str, int], reason: str
) -> Any:
    paths = [f"/{number}" for number in range(200)]
    for path in paths:
        web.page(path, LONG)

    @crawl_test
    async def run() -> None:
        crawler = await listed(web, alone | {"DEDUPE_ACTION_EXACT": "drop"} | limit, " ".join(paths))
        assert crawler.stats.get_value("finish_reason") == reason
        assert 10 <= len(web.paths) <= 20

    return run()


@crawl_test
async def test_a_crawl_without_drops_is_counted_by_scrapy_alone(
    web: WebServer, alone: dict[str, Any]
) -> None:
    paths = [f"/{number}" for number in range(50)]
    for path in paths:
        web.page(path, LONG)
    crawler = await listed(web, alone | {"CLOSESPIDER_PAGECOUNT": 10}, " ".join(paths))
    assert crawler.stats.get_value("finish_reason") == "closespider_pagecount"
    assert crawler.stats.get_value("response_received_count") in (10, 11)


@crawl_test
async def test_robots_txt_that_equals_another_hosts_is_obeyed(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/robots.txt", "User-agent: *\nDisallow: /private", content_type="text/plain")
    web.page("/a", "<p>a")
    web.page("/private", "<p>secret")
    drop = (
        alone
        | {"ROBOTSTXT_OBEY": True}
        | dict.fromkeys(("DEDUPE_ACTION_EXACT", "DEDUPE_ACTION_UNCHANGED", "DEDUPE_ACTION_NEAR"), "drop")
    )
    await listed(web, drop, "/robots.txt")  # as a page, so that its text is known from now on
    second = await listed(web, drop, "/a /private")
    assert kinds(second) == {"/a": "unique"}
    assert "/private" not in web.paths
    assert content_stats(second)["skipped/internal"] == 1


@crawl_test
async def test_some_pages_are_never_judged(web: WebServer, alone: dict[str, Any]) -> None:
    class Skipping(Listed):
        handle_httpstatus_list = [404]

        def request_for(self, path: str) -> scrapy.Request:
            request = super().request_for(path)
            if path == "/skip":
                request.meta["dedupe_skip"] = True
            return request.replace(method="HEAD") if path == "/head" else request

    for path in ("/skip", "/head"):
        web.page(path, LONG)
    web.page("/missing", LONG, status=404)
    web.page("/pdf", b"%PDF-1.7 looks like text", content_type="application/pdf")
    web.page("/coded", LONG, headers=[("Content-Encoding", "unheard-of")])
    web.page("/big", LONG * 10)
    web.page("/shell", "<div id=app></div><script>load()</script>")
    settings = alone | {"DEDUPE_CONTENT_MAX_BYTES": len(LONG)}
    crawler = await listed(web, settings, "/skip /head /missing /pdf /coded /big /shell", Skipping)
    reasons = {path: response.meta["dedupe"].reason for path, response in crawler.spider.responses.items()}
    assert reasons == {
        "/skip": "meta",
        "/head": "method",
        "/missing": "status",
        "/pdf": "type",
        "/coded": "encoding",
        "/big": "size",
        "/shell": "no text",
    }
    assert set(kinds(crawler).values()) == {"unknown"}
    assert not any(response.flags for response in crawler.spider.responses.values())
    assert content_stats(crawler) == {f"skipped/{reason.replace(' ', '_')}": 1 for reason in reasons.values()}


@crawl_test
@pytest.mark.parametrize("value", ["none", "identity", "UTF-8", "iso-8859-1", "", "binary", "8bit, None"])
async def test_a_content_encoding_that_is_no_coding_is_passed_over(
    value: str, web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/", LONG)
    web.page("/copy", LONG, headers=[("Content-Encoding", value)])
    spider, items = collecting()
    await crawl(spider, {**alone, "CONCURRENT_REQUESTS": 1}, urls=f"{web.url()} {web.url('/copy')}")
    assert [item["kind"] for item in items] == ["unique", "exact"]


@crawl_test
@pytest.mark.parametrize("value", ["unheard-of", "gzip, none", "compress"])
async def test_a_body_in_a_coding_is_not_judged(value: str, web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/", LONG, headers=[("Content-Encoding", value)])
    spider, items = collecting()
    crawler = await crawl(spider, alone, urls=web.url())
    assert [item["kind"] for item in items] == ["unknown"]
    assert crawler.stats.get_value("dedupe/content/skipped/encoding") == 1


@crawl_test
async def test_truncated_bodies_are_not_judged(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/a", LONG)

    class Stopping(Listed):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.stop, signal=scrapy.signals.bytes_received)
            return spider

        def stop(self) -> None:
            raise scrapy.exceptions.StopDownload(fail=False)

    crawler = await listed(web, alone, "/a", Stopping)
    assert crawler.spider.responses["/a"].meta["dedupe"].reason == "truncated"


@crawl_test
async def test_coded_and_chunked_bodies_are_judged_by_their_text(
    web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/plain", LONG)
    web.page("/gzip", gzip.compress(LONG.encode()), headers=[("Content-Encoding", "gzip")])
    web.page("/chunked", LONG, chunked=True)
    web.page("/latin", "<p>Gr\u00fc\u00dfe".encode("latin-1"), content_type="text/html; charset=iso-8859-1")
    web.page("/utf8", "<p>Gr\u00fc\u00dfe".encode(), content_type="text/html; charset=utf-8")
    crawler = await listed(web, alone, "/plain /gzip /chunked /latin /utf8")
    assert list(kinds(crawler).values()) == ["unique", "exact", "exact", "unique", "exact"]


@crawl_test
async def test_the_declared_type_decides_how_a_page_is_read(web: WebServer, alone: dict[str, Any]) -> None:
    body = "<html><head><title/></head><body><p>one</p><p>two</p></body></html>"
    for path, content_type in [
        ("/html", "text/html"),
        ("/xhtml", "application/xhtml+xml"),
        ("/xml", "application/xml"),
        ("/text", "text/plain"),
        ("/undeclared", None),
    ]:
        web.page(path, body, content_type=content_type)
    crawler = await listed(web, alone, "/xhtml /xml /html /text /undeclared")
    # XHTML and XML read "one two"; for HTML the open title is all there is, as it is without a type, and a page
    # with a title alone is not judged.
    assert kinds(crawler) == {
        "/xhtml": "unique", "/xml": "exact", "/html": "unknown", "/text": "unique", "/undeclared": "unknown",
    }  # fmt: skip


@crawl_test
async def test_meta_that_a_spider_copies_does_not_pass_a_verdict_on(
    web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/a", LONG)
    web.page("/b.pdf", b"%PDF", content_type="application/pdf")

    class Copying(Listed):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            super().parse(response)
            if response.url.endswith("/a"):
                yield response.follow("/b.pdf", meta=response.meta)

    crawler = await listed(web, alone | {"LOG_LEVEL": "ERROR"}, "/a", Copying)
    assert crawler.spider.responses["/b.pdf"].meta["dedupe"] == Verdict("unknown", reason="type")


@crawl_test
async def test_a_fault_of_ours_costs_no_page(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("scrapy_dedupe.content.pages.read", fail)
    for path in ("/a", "/b"):
        web.page(path, LONG)
    crawler = await listed(web, alone, "/a /b")
    assert kinds(crawler) == {"/a": "unknown", "/b": "unknown"}
    assert crawler.spider.responses["/a"].flags == ["dedupe-unknown"]
    assert crawler.stats.get_value("dedupe/errors/content") == 2
    assert crawler.stats.get_value("dedupe/content/unknown") == 2
    assert crawler.stats.get_value("dedupe/errors/store") is None
    messages = [record.getMessage() for record in caplog.records if "planted" in record.getMessage()]
    assert len(messages) == 1
    assert "dedupe/errors/content" in messages[0]


@pytest.mark.parametrize("method", ["claim", "recall"])
@crawl_test
async def test_a_store_that_is_lost_costs_no_page_and_is_told_once(
    web: WebServer,
    alone: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    calls: list[object] = []
    real = getattr(SqliteContent, method)

    def lost(self: SqliteContent, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            # What a lost disk looks like from here; the translation into our own error is the real one.
            self._connection.close()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(SqliteContent, method, lost)
    monkeypatch.setattr(SqliteContent, "has_sources", lambda self: method == "recall")
    paths = [f"/{number}" for number in range(6)]
    for path in paths:
        web.page(path, LONG)
    crawler = await listed(web, alone | {"DEDUPE_ACTION_EXACT": "drop"}, " ".join(paths))
    assert list(kinds(crawler).values()) == ["unique"] + ["unknown"] * 5
    assert {response.meta["dedupe"].reason for response in list(crawler.spider.responses.values())[1:]} == {
        "store"
    }
    assert crawler.stats.get_value("dedupe/errors/store") == 5
    assert crawler.stats.get_value("dedupe/errors/content") is None
    assert len(calls) < 6, "the breaker kept pages from asking"
    assert (
        len(
            [
                record
                for record in caplog.records
                if "The crawl continues without the store" in record.getMessage()
            ]
        )
        == 1
    )
    assert crawler.stats.get_value("finish_reason") == "finished"


@crawl_test
async def test_a_redis_server_that_is_stopped_costs_no_page(
    web: WebServer, alone: dict[str, Any], redis_server: RedisServer
) -> None:
    class StoppingServer(Listed):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            super().parse(response)
            if response.url.endswith("/a"):
                redis_server.stop()
                yield self.request_for("/b")
                yield self.request_for("/c")

    for path in ("/a", "/b", "/c"):
        web.page(path, LONG)
    crawler = await listed(web, alone | {"DEDUPE_STORE_URL": redis_server.url}, "/a", StoppingServer)
    assert kinds(crawler) == {"/a": "unique", "/b": "unknown", "/c": "unknown"}
    assert crawler.stats.get_value("dedupe/errors/store") == 2


# Without a reactor Scrapy leaves its HTTP client open when a crawl fails at its start.
@crawl_test
async def test_a_store_that_is_no_use_stops_the_crawl_at_its_start(
    web: WebServer, alone: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE somebodys (data)")
    connection.close()
    before = path.read_bytes()
    web.page("/a", LONG)
    refused = None
    try:
        await listed(web, alone | {"DEDUPE_STORE_URL": f"sqlite:///{path}"}, "/a")
    except Exception as error:  # noqa: BLE001 - which one it is depends on the version of Scrapy
        refused = repr(error)
    assert refused is not None
    assert web.paths == []
    assert path.read_bytes() == before
    sentences = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any("The crawl does not start." in sentence and str(path) in sentence for sentence in sentences)
    caplog.clear()  # its records keep the failed crawl alive
    gc.collect()


@crawl_test
async def test_many_pages_at_once_are_judged_in_some_order_each_text_once(
    web: WebServer, alone: dict[str, Any]
) -> None:
    links = "".join(f'<a href="/{number}">{number}</a>' for number in range(40))
    web.page("/", links)
    for number in range(40):
        web.page(f"/{number}", LONG if number % 2 else f"<p>Page {number}")
    spider, items = collecting(LinkSpider)
    await crawl(spider, alone | {"CONCURRENT_REQUESTS_PER_DOMAIN": 16}, addon=False, urls=web.url("/"))
    found = [item["kind"] for item in items]
    assert (found.count("unique"), found.count("exact")) == (1 + 20 + 1, 19)


class Failing(Listed):
    """Raises on the pages named in ``failing``, in the callback or in a pipeline."""

    def __init__(self, *args: Any, failing: str = "", bad_items: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.failing = failing.split()
        self.bad_items = bad_items.split()

    def parse(self, response: Any, **kwargs: Any) -> Any:
        super().parse(response)
        path = response.url.removeprefix(self.base)
        if path in self.failing:
            raise ZeroDivisionError("planted")
        yield {"is_bad": path in self.bad_items}


class RefusingPipeline:
    def process_item(self, item: dict[str, bool], spider: Any = None) -> dict[str, bool]:
        if item["is_bad"]:
            raise ValueError("planted")
        return item


@crawl_test
async def test_a_page_that_failed_is_new_when_it_comes_again(web: WebServer, alone: dict[str, Any]) -> None:
    for path, text in {
        "/ok": LONG,
        "/callback": "<p>One " + LONG,
        "/item": "<p>Two, three. <p>Four.",
    }.items():
        web.page(path, text)
    alone = alone | {"ITEM_PIPELINES": {RefusingPipeline: 300}, "DEDUPE_NEAR_THRESHOLD": 1}
    paths = "/ok /callback /item"
    first = await crawl(
        Failing, alone, addon=False, base=web.url(""), paths=paths, failing="/callback", bad_items="/item"
    )
    assert set(kinds(first).values()) == {"unique"}
    assert first.stats.get_value("dedupe/content/failed") == 2
    second = await crawl(Failing, alone, addon=False, base=web.url(""), paths=paths)
    assert kinds(second) == {"/ok": "unchanged", "/callback": "unique", "/item": "unique"}
    third = await crawl(Failing, alone, addon=False, base=web.url(""), paths=paths)
    assert set(kinds(third).values()) == {"unchanged"}


class AllAtOnce(Failing):
    custom_settings = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}


@crawl_test
async def test_copies_that_come_together_are_dropped_once_the_first_went_through(
    web: WebServer, alone: dict[str, Any]
) -> None:
    paths = [f"/{number}" for number in range(16)]
    for path in paths:
        web.page(path, LONG)
    crawler = await crawl(
        AllAtOnce,
        alone | {"DEDUPE_ACTION_EXACT": "drop"},
        addon=False,
        base=web.url(""),
        paths=" ".join(paths),
    )
    assert list(kinds(crawler).values()) == ["unique"]
    assert len(crawler.spider.failures) == 15
    assert not any(failure.value.verdict.pending for failure in crawler.spider.failures)
    assert content_stats(crawler) == {"unique": 1, "exact": 15, "dropped": 15}


@crawl_test
async def test_a_copy_of_a_page_that_fails_is_not_dropped(web: WebServer, alone: dict[str, Any]) -> None:
    for path in ("/a", "/b", "/c"):
        web.page(path, LONG)
    crawler = await crawl(
        Failing,
        alone | {"DEDUPE_ACTION_EXACT": "drop"},
        addon=False,
        base=web.url(""),
        paths="/a /b /c",
        failing="/a",
    )
    assert kinds(crawler) == {"/a": "unique", "/b": "unique"}
    assert len(crawler.spider.failures) == 1


@crawl_test
async def test_a_callback_that_waits_for_a_copy_of_its_own_page_gets_it(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_dedupe.live.content.pending_texts._LONGEST_WAIT_S", 0.3)

    class Waiting(Listed):
        async def parse(self, response: Any, **kwargs: Any) -> None:
            super().parse(response)
            request = self.request_for("/b")
            engine = self.crawler.engine
            if hasattr(engine, "download_async"):
                self.copy = await engine.download_async(request)
            else:
                self.copy = await maybe_deferred_to_future(engine.download(request))

    web.page("/a", LONG)
    web.page("/b", LONG)
    crawler = await listed(
        web, alone | {"DEDUPE_ACTION_EXACT": "drop", "CONCURRENT_REQUESTS": 8}, "/a", Waiting
    )
    assert crawler.spider.copy.meta["dedupe"].kind == "exact"
    assert crawler.spider.copy.meta["dedupe"].pending
    assert crawler.stats.get_value("dedupe/content/not_dropped") == 1
    assert crawler.stats.get_value("dedupe/errors/content") is None


@crawl_test
async def test_a_request_can_have_an_action_of_its_own(
    web: WebServer, alone: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    actions = {
        "/drop": "drop",
        "/mark": "mark",
        "/exact": {"exact": "drop"},
        "/near": {"near": "drop", "unchanged": "mark"},
        "/wrong": "delete",
    }

    class Choosing(Listed):
        def request_for(self, path: str) -> scrapy.Request:
            request = super().request_for(path)
            if path in actions:
                request.meta["dedupe_action"] = actions[path]
            return request

    web.page("/first", LONG)
    for path in actions:
        web.page(path, LONG)
    crawler = await listed(web, alone, " ".join(["/first", *actions]), Choosing)
    assert kinds(crawler) == {"/first": "unique", "/mark": "exact", "/near": "exact", "/wrong": "exact"}
    assert len(crawler.spider.failures) == 2
    (message,) = [record.getMessage() for record in caplog.records if "dedupe_action" in record.getMessage()]
    assert "'delete'" in message
    assert "/wrong" in message


@crawl_test
async def test_extensions_hear_of_every_verdict(web: WebServer, alone: dict[str, Any]) -> None:
    heard: list[tuple[str, str, str]] = []

    class Ear:
        @classmethod
        def from_crawler(cls, crawler: Any) -> Any:
            self = cls()
            crawler.signals.connect(self.judged, signal=content_judged)
            return self

        def judged(self, verdict: Verdict, response: Any, request: Any, spider: Any) -> None:
            heard.append((request.url.rpartition("/")[2], verdict.kind, spider.name))
            assert response.url == request.url

    web.page("/a", LONG)
    web.page("/b", LONG)
    web.page("/empty", "")
    await listed(web, alone | {"EXTENSIONS": {Ear: 1}, "DEDUPE_ACTION_EXACT": "drop"}, "/a /b /empty")
    assert heard == [("a", "unique", "listed"), ("b", "exact", "listed"), ("empty", "unknown", "listed")]


@crawl_test
async def test_a_listener_that_fails_is_called_again_and_keeps_no_event_from_the_others(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(ContentDedupeMiddleware, "_count", fail)
    web.page("/a", LONG)
    web.page("/b", LONG)
    crawler = await listed(web, alone | {"DEDUPE_ACTION_EXACT": "drop"}, "/a /b")
    assert content_stats(crawler) == {"dropped": 1}
    assert crawler.stats.get_value("dedupe/errors/content") == 2
    assert kinds(await listed(web, alone, "/a")) == {"/a": "unchanged"}


@crawl_test
async def test_how_long_verdicts_took_is_among_the_stats(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/a", LONG)
    web.page("/b", LONG)
    crawler = await listed(web, alone, "/a /b")
    values = crawler.stats.get_stats()
    counts = {
        step: values[f"dedupe/content/latency/{step}/count"]
        for step in ("canonical", "exact", "near", "verdict")
    }
    assert counts == {"canonical": 2, "exact": 2, "near": 1, "verdict": 2}
    for step in counts:
        p50, p99 = (values[f"dedupe/content/latency/{step}/{name}"] for name in ("p50_ms", "p99_ms"))
        assert 0 < p50 <= p99


@crawl_test
async def test_texts_are_forgotten_after_their_lifetime(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    web.page("/a", LONG)
    alone = alone | {"DEDUPE_CONTENT_TTL": 1000}
    first = await listed(web, alone, "/a")
    second = await listed(web, alone, "/a")
    real = time.time_ns
    monkeypatch.setattr("scrapy_dedupe.content.pages.time.time_ns", lambda: real() + 2_000_000_000_000)
    third = await listed(web, alone, "/a")
    assert [kinds(crawler)["/a"] for crawler in (first, second, third)] == ["unique", "unchanged", "unique"]


@crawl_test
async def test_hostile_markup_is_passed_on_unjudged(web: WebServer, alone: dict[str, Any]) -> None:
    web.page("/a", LONG)
    web.page("/deep", "<div>" * 80_000)
    crawler = await listed(web, alone, "/a /deep")
    assert kinds(crawler) == {"/a": "unique", "/deep": "unknown"}
    assert crawler.spider.responses["/deep"].meta["dedupe"].reason == "markup"
    assert content_stats(crawler) == {"unique": 1, "skipped/markup": 1}


WORDS = "".join(f"<p>Satz {number}: “Grüße” – 10 €" for number in range(40))
CHINESE = "".join(f"<p>第{number}句：今天天气很好。" for number in range(40))
JAPANESE = "".join(f"<p>{number}番目の文です。カタカナ。" for number in range(40))

# Body and declaration; what Scrapy makes of them is what is compared.
ENCODINGS = {
    "utf-16 with a mark": (WORDS, WORDS.encode("utf-16"), "text/html"),
    "utf-16 by its header": (WORDS, WORDS.encode("utf-16-le"), "text/html; charset=utf-16le"),
    "utf-8 with a mark": (WORDS, WORDS.encode("utf-8-sig"), "text/html"),
    "windows-1252 by its header": (WORDS, WORDS.encode("windows-1252"), "text/html; charset=windows-1252"),
    "windows-1252 called latin-1": (WORDS, WORDS.encode("windows-1252"), "text/html; charset=iso-8859-1"),
    "windows-1252 by meta": (
        WORDS,
        b"<meta charset=windows-1252>" + WORDS.encode("windows-1252"),
        "text/html",
    ),
    "gb18030": (CHINESE, CHINESE.encode("gb18030"), "text/html; charset=gb18030"),
    "gb18030 called gb2312": (CHINESE, CHINESE.encode("gb18030"), "text/html; charset=gb2312"),
    "iso-2022-jp": (JAPANESE, JAPANESE.encode("iso-2022-jp"), "text/html; charset=iso-2022-jp"),
    "shift_jis by meta": (
        JAPANESE,
        b'<meta http-equiv="Content-Type" content="text/html; charset=shift_jis">'
        + JAPANESE.encode("shift_jis"),
        "text/html",
    ),
    "utf-8 that the header calls by a name that nobody knows": (
        WORDS,
        WORDS.encode(),
        "text/html; charset=x-none",
    ),
}


@pytest.mark.parametrize(("text", "body", "content_type"), ENCODINGS.values(), ids=ENCODINGS)
@crawl_test
async def test_a_text_is_the_same_in_whatever_encoding(
    web: WebServer, alone: dict[str, Any], text: str, body: bytes, content_type: str
) -> None:
    web.page("/utf-8", text)
    web.page("/other", body, content_type=content_type)
    crawler = await listed(web, alone, "/utf-8 /other")
    assert kinds(crawler) == {"/utf-8": "unique", "/other": "exact"}


@crawl_test
async def test_a_wrong_encoding_is_read_as_scrapy_reads_it(web: WebServer, alone: dict[str, Any]) -> None:
    # The header says what the bytes are; those that are not come out as U+FFFD, which makes another text.
    words = WORDS.encode("windows-1252")
    web.page("/right", words, content_type="text/html; charset=windows-1252")
    web.page("/wrong", words, content_type="text/html; charset=utf-8")
    web.page("/wrong-again", words, content_type="text/html; charset=utf-8")
    crawler = await listed(web, alone | {"DEDUPE_NEAR_THRESHOLD": 1.0}, "/right /wrong /wrong-again")
    assert "\ufffd" in crawler.spider.responses["/wrong"].text
    assert kinds(crawler) == {"/right": "unique", "/wrong": "unique", "/wrong-again": "exact"}


@crawl_test
async def test_a_fault_in_looking_after_pages_keeps_no_copy_waiting(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(crawler: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("scrapy_dedupe.live.content.pending_texts.requests_in_hand", fail)
    monkeypatch.setattr("scrapy_dedupe.live.content.pending_texts._LONGEST_WAIT_S", 0.3)
    paths = [f"/{number}" for number in range(4)]
    for path in paths:
        web.page(path, LONG)
    crawler = await crawl(
        AllAtOnce,
        alone | {"DEDUPE_ACTION_EXACT": "drop"},
        addon=False,
        base=web.url(""),
        paths=" ".join(paths),
    )
    assert sorted(kinds(crawler).values()) == ["exact", "exact", "exact", "unique"]
    assert crawler.stats.get_value("dedupe/content/not_dropped") == 3
    assert crawler.stats.get_value("dedupe/errors/content") >= 1
    again = await listed(web, alone, "/0")
    assert kinds(again) == {"/0": "unchanged"}


@crawl_test
async def test_a_copy_is_told_new_if_the_first_page_fails_meanwhile(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_waiting = asyncio.Event()
    outcome = PendingTexts.outcome

    def wait_for_outcome(self: PendingTexts, digest: bytes) -> Any:
        is_waiting.set()
        return outcome(self, digest)

    monkeypatch.setattr(PendingTexts, "outcome", wait_for_outcome)

    class RefusingPipeline:
        async def process_item(self, item: dict[str, str], spider: Any = None) -> dict[str, str]:
            if item["path"] == "/a":
                await asyncio.wait_for(is_waiting.wait(), 240)
                raise ValueError("planted")
            return item

    class OnlyNew(AllAtOnce):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            path = response.url.removeprefix(self.base)
            self.responses[path] = response
            if path == "/a":
                yield self.request_for("/b")
            if not response.meta["dedupe"].is_duplicate:
                yield {"path": path}

    web.page("/a", LONG)
    web.page("/b", LONG)
    crawler = await listed(web, alone | {"ITEM_PIPELINES": {RefusingPipeline: 300}}, "/a", OnlyNew)
    assert is_waiting.is_set()
    assert kinds(crawler) == {"/a": "unique", "/b": "unique"}
    assert crawler.stats.get_value("item_scraped_count") == 1
    again = await listed(web, alone, "/a /b")
    assert kinds(again) == {"/a": "exact", "/b": "unchanged"}


@crawl_test
async def test_a_dict_of_actions_names_kinds_of_verdicts(
    web: WebServer, alone: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Misspelling(Listed):
        def request_for(self, path: str) -> scrapy.Request:
            return super().request_for(path).replace(meta={"dedupe_action": {"exat": "drop"}})

    web.page("/a", LONG)
    web.page("/b", LONG)
    crawler = await listed(web, alone, "/a /b", Misspelling)
    assert kinds(crawler) == {"/a": "unique", "/b": "exact"}
    assert "exat" in caplog.text
    assert crawler.stats.get_value("dedupe/errors/content") == 1


@crawl_test
async def test_a_near_copy_that_was_dropped_is_near_again_and_no_original(
    web: WebServer, alone: dict[str, Any]
) -> None:
    web.page("/a", LONG)
    web.page("/b", LONG + "<p>One more.")
    first = await listed(web, alone | {"DEDUPE_ACTION_NEAR": "drop"}, "/a /b")
    assert kinds(first) == {"/a": "unique"}
    web.page("/c", LONG + "<p>One more.")
    drop = {"DEDUPE_ACTION_UNCHANGED": "drop", "DEDUPE_ACTION_EXACT": "drop"}
    second = await listed(web, alone | drop, "/b /c")
    assert kinds(second) == {"/b": "near"}
    assert second.spider.responses["/b"].meta["dedupe"].original_url == web.url("/a")
    assert second.spider.failures[0].value.verdict.original_url == web.url("/b")


@crawl_test
async def test_no_page_waits_for_a_large_one(
    web: WebServer, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_small_one_done = threading.Event()
    read = Judge.read

    def slow(self: Judge, page: Page) -> Any:
        if len(page.text) > 50_000:
            assert is_small_one_done.wait(240)
        return read(self, page)

    class Ordered(AllAtOnce):
        def parse(self, response: Any, **kwargs: Any) -> None:
            self.responses[response.url.removeprefix(self.base)] = response
            is_small_one_done.set()

    monkeypatch.setattr(Judge, "read", slow)
    web.page("/large", LONG * 40)
    web.page("/small", LONG)
    crawler = await listed(web, alone, "/large /small", Ordered)
    assert kinds(crawler)["/small"] == "unique"
    assert list(kinds(crawler)) == ["/small", "/large"]


@crawl_test
async def test_a_store_file_that_is_removed_is_noticed(
    web: WebServer, alone: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "texts.sqlite"

    class Removing(Listed):
        def parse(self, response: Any, **kwargs: Any) -> None:
            super().parse(response)
            for name in tmp_path.glob("texts.sqlite*"):
                name.unlink()

    web.page("/a", LONG)
    crawler = await listed(web, alone | {"DEDUPE_STORE_URL": f"sqlite:///{path}"}, "/a", Removing)
    assert kinds(crawler) == {"/a": "unique"}
    assert crawler.stats.get_value("dedupe/errors/store") >= 1
    assert any("was removed or replaced" in record.getMessage() for record in caplog.records)
