"""The archive as the storage of Scrapy's HTTP cache."""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from archives import check, files_of, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from test_unmodified import validating
from webserver import Page

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.live.archive import cache
from scrapy_dedupe.live.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler
    from servers import RedisServer
    from webserver import WebServer

DUMMY = "scrapy.extensions.httpcache.DummyPolicy"


class Reading(LinkSpider):
    """Yields what an item pipeline can see of each response. ``asking`` has arguments of each request."""

    asking: dict[str, Any] = {}

    async def start(self) -> Any:
        for url in self.urls.split():
            yield scrapy.Request(url, dont_filter=True, **self.asking)

    def parse(self, response: Any, **kwargs: Any) -> Any:
        verdict = response.meta.get("dedupe")
        yield {
            "url": response.url,
            "text": response.text,
            "headers": response.headers.to_unicode_dict(),
            "cached": "cached" in response.flags,
            "kind": verdict.kind if verdict else None,
            "warc": response.meta.get("warc"),
        }


@pytest.fixture
def cached(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "DEDUPE_HTTPCACHE": True}


def text(name: str, words: int = 300) -> bytes:
    numbers = random.Random(name)
    return (
        f"<title>{name}</title><p>{' '.join(f'{numbers.getrandbits(40):x}' for _ in range(words))}".encode()
    )


async def read(settings: dict[str, Any], *urls: str, **asking: Any) -> tuple[list[dict[str, Any]], Crawler]:
    spider, items = collecting(Reading)
    crawler = await crawl(spider, settings, urls=" ".join(urls), asking=asking)
    return sorted(items, key=lambda item: str(item["url"])), crawler


def counts(crawler: Crawler) -> dict[str, int]:
    stats = crawler.stats.get_stats()
    prefix = "dedupe/cache/"
    found = {key.removeprefix(prefix): value for key, value in stats.items() if key.startswith(prefix)}
    found.pop("bytes_received", None)
    return found


@pytest.mark.parametrize("payload", ["stored", "decoded"])
@crawl_test
async def test_a_recrawl_downloads_only_what_changed(
    payload: str, web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    cached = {**stored, "DEDUPE_HTTPCACHE": True, "DEDUPE_PAYLOAD": payload}
    modified = "Sat, 28 Nov 2020 10:00:00 GMT"
    for name in ("tag", "changed", "copied"):
        web.pages[f"/{name}"] = validating(text(name if name != "copied" else "tag"))
    web.pages["/modified"] = validating(text("modified"), None, modified)
    web.pages["/small"] = validating(text("small", 2), '"s"', headers=[("Cache-Control", "no-cache")])
    web.page("/neither", text("neither"))
    urls = [web.url(path) for path in sorted(web.pages)]
    first, _ = await read(cached, *urls)
    web.pages["/changed"] = validating(text("changed now"), '"v2"')
    second, crawler = await read(cached, *urls)
    uncached, _ = await read({**cached, "DEDUPE_HTTPCACHE": False}, *urls)
    assert [item["text"] for item in second] == [item["text"] for item in uncached]
    assert [item["kind"] for item in second][1:] == [item["kind"] for item in uncached][1:]
    fresh = [item["url"].rpartition("/")[2] for item in second if item["cached"]]
    assert fresh == ["copied", "modified", "small", "tag"]
    assert counts(crawler)["used"] == 4
    # Without any other sign a page that was not modified for years is fresh for a while.
    assert crawler.stats.get_value("httpcache/hit") == 1
    assert crawler.stats.get_value("httpcache/revalidate") == 3
    assert "Age" not in second[2]["headers"]
    assert (
        next(item for item in second if item["url"].endswith("small"))["headers"]["Cache-Control"]
        == "no-cache"
    )
    # A 304 of a page that has an original is recorded as such, and names the original.
    by_name = {item["url"].rpartition("/")[2]: item for item in second}
    origin = {item["url"].rpartition("/")[2]: item["warc"] for item in first}
    assert by_name["tag"]["warc"]["type"] == "revisit"
    assert by_name["tag"]["warc"]["refers_to"]["record_id"] == (
        origin["tag"]["record_id"]
        if origin["tag"]["type"] == "response"
        else origin["tag"]["refers_to"]["record_id"]
    )
    check(tmp_path / "warcs")


@pytest.mark.parametrize("is_cached", [True, False])
@crawl_test
async def test_the_text_of_an_unchanged_page_is_not_extracted_again(
    is_cached: bool, web: WebServer, cached: dict[str, Any]
) -> None:
    names = ("small", "large", "changed", "charset")
    for name in names:
        web.pages[f"/{name}"] = validating(text(name, 9_000 if name == "large" else 300))
    urls = [web.url(f"/{name}") for name in names]
    await read(cached, *urls)
    web.pages["/changed"] = validating(text("changed").replace(b"<p>", b"<p class=new>"), '"v2"')
    # The same bytes in another encoding are another text.
    web.page("/charset", text("charset"), content_type="text/html; charset=utf-16")
    items, crawler = await read({**cached, "DEDUPE_HTTPCACHE": is_cached}, *urls)
    assert [item["kind"] for item in items] == ["unchanged", "unique", "unchanged", "unchanged"]
    extracted = crawler.stats.get_value("dedupe/content/latency/canonical/count")
    assert extracted == 2, "the text of the page with other markup, and that in another encoding"


@crawl_test
async def test_a_fresh_page_is_used_without_a_request(web: WebServer, cached: dict[str, Any]) -> None:
    web.page("/a", text("a"), headers=[("Cache-Control", "public"), ("Cache-Control", "max-age=3600")])
    first, _ = await read(cached, web.url("/a"))
    second, crawler = await read(cached, web.url("/a"))
    assert web.paths == ["/a"]
    assert second[0]["cached"]
    assert second[0]["text"] == first[0]["text"]
    assert second[0]["kind"] == "unchanged"
    assert second[0]["warc"]["record_id"] == first[0]["warc"]["record_id"]
    assert counts(crawler) == {"found": 1, "used": 1, "bytes_used": len(text("a"))}


@crawl_test
async def test_with_the_dummy_policy_every_page_comes_from_the_archive(
    web: WebServer, cached: dict[str, Any]
) -> None:
    cached["HTTPCACHE_POLICY"] = DUMMY
    web.page("/a", text("a"))
    web.page("/gone", "gone", status=410)
    await read(cached, web.url("/a"))
    items, crawler = await read(cached, web.url("/a"), web.url("/gone"), web.url("/a#part"))
    assert web.paths == ["/a", "/gone"]
    assert [item["url"].rpartition("/")[2] for item in items] == ["a", "a"]
    assert crawler.stats.get_value("httpcache/hit") == 2


@pytest.mark.parametrize(
    ("headers", "asked", "asked_again", "is_used"),
    [
        ([], {}, {}, True),
        ([("Vary", "X-Kind")], {"X-Kind": "1"}, {"X-Kind": "1"}, True),
        ([("Vary", "X-Kind")], {"X-Kind": "1"}, {"X-Kind": "2"}, False),
        ([("Vary", "Accept"), ("Vary", "x-kind")], {"X-Kind": "1"}, {}, False),
        ([("Vary", "*")], {}, {}, False),
        ([], {"Authorization": "Basic YTpi"}, {"Authorization": "Basic YTpi"}, True),
        ([], {"Authorization": "Basic YTpi"}, {}, False),
        ([], {}, {"Authorization": "Basic YTpi"}, False),
        ([("Cache-Control", "private, max-age=60")], {"Cookie": "a=1; b=2"}, {"Cookie": "b=2; a=1"}, True),
        ([("Cache-Control", "private, max-age=60")], {"Cookie": "a=1"}, {"Cookie": "a=2"}, False),
        ([("Set-Cookie", "sid=1")], {"Cookie": "sid=0"}, {}, True),
        ([("Cache-Control", "no-store")], {}, {}, False),
        ([], {"Cache-Control": "no-store"}, {}, False),
    ],
)
@crawl_test
async def test_a_page_answers_only_requests_that_it_may_answer(
    headers: list[tuple[str, str]],
    asked: dict[str, str],
    asked_again: dict[str, str],
    is_used: bool,
    web: WebServer,
    cached: dict[str, Any],
) -> None:
    sent: list[str | None] = []

    def page(handler: Any) -> Page:
        sent.append(handler.headers.get("If-None-Match"))
        return Page(text("a"), 200, [("ETag", '"v1"'), *headers])

    cached["COOKIES_ENABLED"] = False
    web.pages["/a"] = page
    await read(cached, web.url("/a"), headers=asked)
    await read(cached, web.url("/a"), headers={**asked_again, "Cache-Control": "max-age=0"})
    assert sent == [None, '"v1"' if is_used else None]


@crawl_test
async def test_only_committed_crawls_serve(web: WebServer, cached: dict[str, Any]) -> None:
    web.page("/a", text("a"), headers=[("Cache-Control", "max-age=3600")])
    await read({**cached, "DEDUPE_COMMIT_REASONS": ["never"]}, web.url("/a"))
    _, crawler = await read(cached, web.url("/a"))
    assert len(web.paths) == 2
    assert counts(crawler) == {"missed": 1, "missed/unknown": 1}


@crawl_test
async def test_a_missing_or_replaced_file_means_not_cached(
    web: WebServer, cached: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        web.page(f"/{name}", text(name), headers=[("Cache-Control", "max-age=3600")])
    await read(cached, web.url("/a"), web.url("/b"))
    (file,) = (tmp_path / "warcs").glob("*.gz")
    moved = file.rename(tmp_path / "moved")
    items, crawler = await read(cached, web.url("/a"), web.url("/b"))
    assert len(items) == 2
    assert counts(crawler) == {"missed": 2, "missed/unreadable": 2}
    assert caplog.text.count("cannot be used as cache") == 1
    data = moved.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    items, crawler = await read(cached, web.url("/a"), web.url("/b"))
    assert len(items) == 2


@crawl_test
async def test_without_the_middleware_the_storage_waits_for_the_index(
    web: WebServer, cached: dict[str, Any]
) -> None:
    web.pages["/a"] = validating(text("a"))
    cached["DOWNLOADER_MIDDLEWARES"] = {"scrapy_dedupe.httpcache.ArchiveCacheMiddleware": None}
    await read(cached, web.url("/a"))
    items, _ = await read(cached, web.url("/a"))
    assert items[0]["cached"]


@crawl_test
async def test_a_server_error_is_answered_from_the_archive(web: WebServer, cached: dict[str, Any]) -> None:
    web.pages["/a"] = validating(text("a"))
    first, _ = await read(cached, web.url("/a"))
    web.page("/a", "down", status=500)
    second, _ = await read(cached, web.url("/a"))
    assert second[0]["cached"]
    assert second[0]["warc"]["record_id"] == first[0]["warc"]["record_id"]


@crawl_test
async def test_nothing_is_stored_twice(web: WebServer, cached: dict[str, Any], tmp_path: Path) -> None:
    web.pages["/a"] = validating(text("a"))
    for _ in range(3):
        await read(cached, web.url("/a"))
    types = [r.type for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert types == ["response", "revisit", "revisit"]


@crawl_test
async def test_a_page_is_confirmed_several_times_in_a_crawl(
    web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    web.pages["/copy"] = validating(text("a"), '"c"')
    urls = [web.url("/a"), web.url("/copy")]
    await read(cached, *urls)
    items, _ = await read(cached, *urls * 3)
    assert [(item["cached"], item["text"]) for item in items] == [(True, text("a").decode())] * 6
    types = [r.type for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert types == ["response", *["revisit"] * 7]


@crawl_test
async def test_pages_of_an_imported_wacz_serve(
    web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    web.pages["/b"] = validating(text("a"), '"b"')
    await read({**cached, "DEDUPE_WACZ": True, "DEDUPE_CRAWL_ID": "one"}, web.url("/a"), web.url("/b"))
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    for file in (tmp_path / "warcs").iterdir():
        file.unlink()
    assert main(["import", str(tmp_path / "wacz" / "one.wacz"), "--store", other]) == 0
    items, crawler = await read({**cached, "DEDUPE_STORE_URL": other}, web.url("/a"), web.url("/b"))
    assert [item["cached"] for item in items] == [True, True]
    assert [item["warc"]["refers_to"]["crawl"] for item in items] == ["one", "one"]
    assert counts(crawler)["used"] == 2


@crawl_test
async def test_pages_of_a_crawl_in_an_index_of_browsertrix_serve_when_its_wacz_is_imported(
    web: WebServer, cached: dict[str, Any], tmp_path: Path, redis_url: str
) -> None:
    sent: list[str | None] = []
    answer = validating(gzip.compress(text("a")), headers=[("Content-Encoding", "gzip")])

    def page(handler: Any) -> Page:
        sent.append(handler.headers.get("If-None-Match"))
        return answer(handler)

    web.pages["/a"] = page
    cached |= {"DEDUPE_WACZ": True, "DEDUPE_PAYLOAD": "decoded"}
    first, _ = await read({**cached, "DEDUPE_CRAWL_ID": "bx"}, web.url("/a"))
    made = tmp_path / "wacz" / "bx.wacz"
    theirs = as_browsertrix(made, tmp_path / "theirs" / "bx.wacz")
    made.unlink()
    for file in files_of(tmp_path / "warcs"):
        file.unlink()
    with open_index(cached["DEDUPE_STORE_URL"]) as index:
        (original,) = index.records("bx")
    counted = {"totalUrls": 1, "dupeUrls": 0, "conservedSize": 0, "totalCrawlSize": theirs.stat().st_size}
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.sadd("allcrawls", "bx")
        client.hset("h:bx", original.digest, f"0 {original.date} {original.url} {original.size}")
        client.hset("alldupes", original.digest, "bx")
        client.hset("h:bx:counts", mapping=counted)
        client.hset("allcounts", mapping=counted)
        client.rpush("c:bx:wacz", '{"filename":"bx.wacz"}')
        client.sadd("src:d", "bx.wacz")
    cached["DEDUPE_STORE_URL"] = redis_url
    # The keys of that program name payloads, not pages.
    items, crawler = await read({**cached, "DEDUPE_COMMIT_REASONS": ["never"]}, web.url("/a"))
    assert items[0]["warc"]["refers_to"]["crawl"] == "bx"
    assert counts(crawler) == {"missed": 1, "missed/unknown": 1}
    assert main(["purge", "bx", "--store", redis_url, "--force"]) == 0
    assert main(["import", str(theirs), "--store", redis_url]) == 0
    items, crawler = await read(cached, web.url("/a"))
    assert sent == [None, None, '"v1"']
    assert items[0]["cached"]
    assert items[0]["text"] == first[0]["text"] == text("a").decode()
    assert items[0]["warc"]["refers_to"]["crawl"] == "bx"
    assert counts(crawler) == {"found": 1, "used": 1, "bytes_used": len(text("a"))}


def as_browsertrix(wacz: Path, copy: Path) -> Path:
    """A copy of a WACZ that names Browsertrix as its maker."""
    copy.parent.mkdir()
    with zipfile.ZipFile(wacz) as made, zipfile.ZipFile(copy, "w") as written:
        for name in made.namelist():
            data = made.read(name)
            if name == "datapackage.json":
                data = json.dumps({**json.loads(data), "software": "Browsertrix-Crawler 1.14.1"}).encode()
            if name != "datapackage-digest.json":
                written.writestr(name, data)
    return copy


@crawl_test
async def test_a_purged_crawl_no_longer_serves(web: WebServer, cached: dict[str, Any]) -> None:
    web.page("/a", text("a"), headers=[("Cache-Control", "max-age=3600")])
    await read({**cached, "DEDUPE_CRAWL_ID": "one"}, web.url("/a"))
    assert main(["purge", "one", "--store", cached["DEDUPE_STORE_URL"], "--force"]) == 0
    _, crawler = await read(cached, web.url("/a"))
    assert len(web.paths) == 2
    assert counts(crawler) == {"missed": 1, "missed/unknown": 1}


@crawl_test
async def test_a_range_and_other_methods_are_not_pages(web: WebServer, cached: dict[str, Any]) -> None:
    cached["HTTPCACHE_POLICY"] = DUMMY
    web.page("/a", text("a"), status=206)
    await read(cached, web.url("/a"), meta={"handle_httpstatus_all": True})
    web.page("/a", text("a"))
    await read(cached, web.url("/a"), method="POST", body=b"x")
    items, _ = await read(cached, web.url("/a"))
    assert not items[0]["cached"]
    assert len(web.paths) == 3
    items, _ = await read(cached, web.url("/a"), method="POST", body=b"x")
    assert not items[0]["cached"]


@crawl_test
async def test_settings_that_prevent_the_cache_are_named(
    web: WebServer, cached: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/a", text("a"))
    await read({**cached, "HTTPCACHE_ENABLED": False}, web.url("/a"))
    assert "DEDUPE_HTTPCACHE has no effect, since HTTPCACHE_ENABLED is False." in caplog.text
    await read({**cached, "DEDUPE_WARC_ENABLED": False}, web.url("/a"))
    assert "DEDUPE_HTTPCACHE has no effect, since DEDUPE_WARC_ENABLED is False" in caplog.text
    order = {"scrapy_dedupe.httpcache.ArchiveCacheMiddleware": 910}
    await read({**cached, "DOWNLOADER_MIDDLEWARES": order}, web.url("/a"))
    assert "Each request blocks the crawl while it is looked up in the archive." in caplog.text
    assert 'ArchiveCacheMiddleware": 899}' in caplog.text
    cache = {"scrapy.downloadermiddlewares.httpcache.HttpCacheMiddleware": None}
    await read({**cached, "DOWNLOADER_MIDDLEWARES": cache}, web.url("/a"))
    assert "Scrapy's HttpCacheMiddleware is disabled" in caplog.text


@pytest.mark.parametrize(
    ("confirming", "requests"),
    [
        # The page is fresh again.
        ([], [None, '"v1"']),
        ([("Cache-Control", "max-age=3600")], [None, '"v1"']),
        ([("Age", "4000")], [None, '"v1"', '"v1"', '"v1"']),
        # The headers of the 304 replace those of the page.
        ([("Cache-Control", "max-age=0")], [None, '"v1"', '"v1"', '"v1"']),
        ([("Cache-Control", "no-store")], [None, '"v1"', None, '"v1"']),
        ([("Vary", "*")], [None, '"v1"', None, '"v1"']),
        ([("Expires", "Sat, 28 Nov 2020 10:00:00 GMT"), ("Cache-Control", "public")], [None, *['"v1"'] * 3]),
    ],
)
@crawl_test
async def test_a_304_confirms_a_page(
    confirming: list[tuple[str, str]],
    requests: list[str | None],
    web: WebServer,
    cached: dict[str, Any],
    tmp_path: Path,
) -> None:
    sent: list[str | None] = []
    answer = validating(
        text("a"), headers=[("Cache-Control", "max-age=3600"), ("Age", "4000")], confirming=confirming
    )

    def page(handler: Any) -> Page:
        sent.append(handler.headers.get("If-None-Match"))
        return answer(handler)

    web.pages["/a"] = page
    for _ in range(4):
        items, _ = await read(cached, web.url("/a"))
        assert items[0]["text"] == text("a").decode()
    assert sent == requests
    check(tmp_path / "warcs")
    # The files contain all that the index contains.
    read_again = f"sqlite:///{tmp_path / 'again.sqlite'}"
    assert main(["import", *map(str, (tmp_path / "warcs").iterdir()), "--store", read_again]) == 0
    captures = []
    for url in (cached["DEDUPE_STORE_URL"], read_again):
        with open_index(url) as index:
            captures.append(index.find_urls("another", [web.url("/a")]))
    assert captures[0] == captures[1] != [None]


@pytest.mark.parametrize("words", [2, 300])
@crawl_test
async def test_a_304_with_the_etag_of_another_version_confirms_nothing(
    words: int, web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    sent: list[str | None] = []

    def page(handler: Any) -> Page:
        tag = handler.headers.get("If-None-Match")
        sent.append(tag)
        if tag == '"v1"':
            return Page(b"", 304, [("ETag", '"other"')], content_type=None)
        return validating(text("changed", words), '"v2"')(handler)

    web.pages["/a"] = validating(text("a", words), '"v1"')
    await read(cached, web.url("/a"))
    web.pages["/a"] = page
    items, crawler = await read(cached, web.url("/a"))
    assert [item["text"] for item in items] == [text("changed", words).decode()]
    assert [item["kind"] for item in items] == ["unique"]
    assert not items[0]["cached"]
    assert counts(crawler) == {"found": 1, "missed": 1, "missed/etag": 1}
    items, _ = await read(cached, web.url("/a"))
    assert items[0]["cached"]
    assert items[0]["text"] == text("changed", words).decode()
    assert sent == ['"v1"', None, '"v2"']
    types = [(r.type, r.status) for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert types[:3] == [("response", "200"), ("response", "304"), ("response", "200")]


@pytest.mark.parametrize("tags", [('W/"v1"', '"v1"'), ('"v1"', 'W/"v1"'), ('"v1"', None)])
@crawl_test
async def test_a_304_with_a_weaker_etag_or_none_confirms_the_page(
    tags: tuple[str, str | None], web: WebServer, cached: dict[str, Any]
) -> None:
    first, second = tags
    web.pages["/a"] = validating(text("a"), first)
    await read(cached, web.url("/a"))
    web.page("/a", b"", status=304, headers=[("ETag", second)] if second else [], content_type=None)
    items, crawler = await read(cached, web.url("/a"))
    assert items[0]["text"] == text("a").decode()
    assert counts(crawler)["used"] == 1


@pytest.mark.parametrize(
    "confirming",
    [
        ("Content-Encoding", "gzip"),
        ("Content-Type", "image/gif"),
        ("Content-Range", "bytes 0-0/5"),
    ],
)
@pytest.mark.parametrize("control", ["max-age=0", "max-age=3600"])
@crawl_test
async def test_headers_of_a_304_that_describe_a_body_do_not_change_the_page(
    control: str, confirming: tuple[str, str], web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    answers = {
        "headers": [("Cache-Control", "max-age=0")],
        "confirming": [("Cache-Control", control), confirming],
    }
    web.pages["/a"] = validating(text("a"), **answers)
    first, _ = await read(cached, web.url("/a"))
    for _ in range(2):
        items, _ = await read(cached, web.url("/a"))
        assert [(item["kind"], item["text"]) for item in items] == [("unchanged", first[0]["text"])]
        for name in ("Content-Encoding", "Content-Type", "Content-Length", "Content-Range"):
            assert items[0]["headers"].get(name) == first[0]["headers"].get(name)
    assert len(web.paths) == (2 if "3600" in control else 3)
    check(tmp_path / "warcs")


@crawl_test
async def test_a_304_does_not_renew_a_page_that_is_too_small_to_be_an_original(
    web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    headers = [("Cache-Control", "max-age=3600"), ("Age", "4000")]
    confirming = [("Cache-Control", "max-age=3600"), ("Age", "0")]
    web.pages["/a"] = validating(text("a", 2), headers=headers, confirming=confirming)
    for _ in range(3):
        items, _ = await read(cached, web.url("/a"))
        assert items[0]["text"] == text("a", 2).decode()
    assert web.paths == ["/a"] * 3
    responses = [record.status for record in records_of(tmp_path / "warcs") if record.type == "response"]
    assert responses == ["200", "304", "304"]


@crawl_test
async def test_a_304_confirms_a_page_only_for_requests_that_it_may_answer(
    web: WebServer, cached: dict[str, Any]
) -> None:
    headers = [("Cache-Control", "max-age=3600"), ("Age", "4000"), ("Vary", "X-Kind")]
    web.pages["/a"] = validating(text("a"), headers=headers)
    await read(cached, web.url("/a"), headers={"X-Kind": "1"})
    # This spider asks itself, and the server does not distinguish the two.
    asking = {"X-Kind": "2", "If-None-Match": '"v1"'}
    await read(cached, web.url("/a"), headers=asking, meta={"handle_httpstatus_all": True})
    items, _ = await read(cached, web.url("/a"), headers={"X-Kind": "2"})
    assert not items[0]["cached"]


@crawl_test
async def test_a_page_whose_original_was_purged_is_downloaded_again(
    web: WebServer, cached: dict[str, Any]
) -> None:
    headers = [("Cache-Control", "max-age=3600"), ("Age", "4000")]
    web.pages["/a"] = validating(text("a"), headers=headers)
    await read({**cached, "DEDUPE_CRAWL_ID": "one"}, web.url("/a"))
    await read(cached, web.url("/a"))
    assert main(["purge", "one", "--store", cached["DEDUPE_STORE_URL"], "--force"]) == 0
    items, crawler = await read(cached, web.url("/a"))
    assert not items[0]["cached"]
    assert counts(crawler) == {"missed": 1, "missed/unreadable": 1}


@pytest.mark.parametrize("is_packed", [False, True])
@crawl_test
async def test_remote_files_serve(
    is_packed: bool, web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    storage = tmp_path / "storage"
    storage.mkdir()
    cached |= {
        "DEDUPE_WARC_UPLOAD_URL": storage.as_uri(),
        "DEDUPE_WACZ": is_packed,
        "DEDUPE_WACZ_KEEP_WARC": False,
    }
    for _ in range(2):
        items, _ = await read(cached, web.url("/a"))
    assert items[0]["cached"]
    assert not files_of(tmp_path / "warcs")


@crawl_test
async def test_a_crawl_uses_its_own_earlier_captures(
    web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"), headers=[("Cache-Control", "max-age=3600")])
    cached |= {"DEDUPE_COMMIT_REASONS": ["never"], "JOBDIR": str(tmp_path / "job")}
    await read(cached, web.url("/a"))
    items, _ = await read(cached, web.url("/a"))
    assert items[0]["cached"]
    assert len(web.paths) == 1


@crawl_test
async def test_a_request_does_not_wait_longer_than_the_timeout(
    web: WebServer, cached: dict[str, Any]
) -> None:
    crawler: Any = None

    class Blocking(Reading):
        async def start(self) -> Any:
            self.release = threading.Event()
            Session.of(self.crawler).worker.submit(self.release.wait, 60)
            async for request in super().start():
                yield request

        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"waited_s": response.meta["waited_s"]}

    class Release:
        """Releases the worker when the request has been looked up, before the response waits for its record."""

        def process_request(self, request: Any, spider: Any = None) -> None:
            request.meta["waited_s"] = time.monotonic() - started
            crawler.spider.release.set()

        @classmethod
        def from_crawler(cls, made: Any) -> Any:
            nonlocal crawler
            crawler = made
            return cls()

    web.page("/a", text("a"), headers=[("Cache-Control", "max-age=3600")])
    await read(cached, web.url("/a"))
    spider, items = collecting(Blocking)
    cached |= {"DEDUPE_STORE_TIMEOUT": 0.3, "DOWNLOADER_MIDDLEWARES": {Release: 905}}
    started = time.monotonic()
    done = await crawl(spider, cached, urls=web.url("/a"))
    assert len(items) == 1
    assert items[0]["waited_s"] < 30
    assert counts(done) == {"missed": 1, "missed/timeout": 1}


@crawl_test
async def test_a_page_that_can_only_be_downloaded_again_is_not_read(
    web: WebServer, cached: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"))
    await read(cached, web.url("/a"))
    for file in files_of(tmp_path / "warcs"):
        file.unlink()
    _, crawler = await read(cached, web.url("/a"))
    assert counts(crawler) == {"missed": 1, "missed/policy": 1}


@crawl_test
async def test_pages_are_downloaded_while_the_store_is_away(
    web: WebServer, cached: dict[str, Any], redis_server: RedisServer
) -> None:
    class Stopping(Reading):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield from super().parse(response)
            if response.url.endswith("/a"):
                redis_server.stop()
                yield scrapy.Request(web.url("/b"))

    cached |= {"DEDUPE_STORE_URL": redis_server.url, "DEDUPE_STORE_TIMEOUT": 0.5}
    for name in "ab":
        web.page(f"/{name}", text(name), headers=[("Cache-Control", "max-age=3600")])
    await read(cached, web.url("/a"), web.url("/b"))
    spider, items = collecting(Stopping)
    crawler = await crawl(spider, cached, urls=web.url("/a"))
    assert [item["cached"] for item in items] == [True, False]
    assert counts(crawler)["missed/store_away"] == 1


@pytest.mark.parametrize(
    ("setting", "asking", "is_used"),
    [
        ({"HTTPCACHE_EXPIRATION_SECS": 3600}, {}, True),
        ({"HTTPCACHE_EXPIRATION_SECS": 100}, {}, False),
        ({"HTTPCACHE_IGNORE_RESPONSE_CACHE_CONTROLS": ["no-store", "private"]}, {}, True),
        ({"HTTPCACHE_POLICY": DUMMY, "HTTPCACHE_IGNORE_HTTP_CODES": [200]}, {}, False),
        ({"HTTPCACHE_IGNORE_SCHEMES": ["http"]}, {}, False),
        ({}, {"meta": {"dont_cache": True}}, False),
    ],
)
@crawl_test
async def test_the_settings_of_scrapy_apply(
    setting: dict[str, Any],
    asking: dict[str, Any],
    is_used: bool,
    web: WebServer,
    cached: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignores = "HTTPCACHE_IGNORE_RESPONSE_CACHE_CONTROLS" in setting
    control = "no-store, private, max-age=3600" if ignores else "max-age=3600"
    web.page("/a", text("a"), headers=[("Cache-Control", control)])
    cached["COOKIES_ENABLED"] = False
    await read(cached, web.url("/a"), headers={"Cookie": "a=1"})
    # As if two minutes had passed.
    clock = SimpleNamespace(time=lambda: time.time() + 120, monotonic=time.monotonic)
    monkeypatch.setattr(cache, "time", clock)
    items, _ = await read({**cached, **setting}, web.url("/a"), **asking)
    assert items[0]["cached"] == is_used
    assert len(web.paths) == 2 - is_used
