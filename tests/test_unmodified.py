"""A 304 (Not Modified), and revisits that come too soon after the last one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import check, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from webserver import Page

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from webserver import WebServer

NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


def text(name: str) -> bytes:
    words = random.Random(name)
    return f"<title>{name}</title><p>{' '.join(f'{words.getrandbits(40):x}' for _ in range(300))}".encode()


def validating(
    body: bytes,
    tag: str | None = '"v1"',
    modified: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    confirming: Sequence[tuple[str, str]] = (),
) -> Any:
    """A page with validators, as a server answers for it. A 200 has also ``headers``, a 304 those in ``confirming``."""

    def answer(handler: Any) -> Page:
        validators = []
        if tag is not None:
            validators.append(("ETag", tag))
        if modified is not None:
            validators.append(("Last-Modified", modified))
        tags = handler.headers.get("If-None-Match")
        is_current = (
            tag in tags.split(", ")
            if tags is not None
            else handler.headers.get("If-Modified-Since") == modified
        )
        if (tags or handler.headers.get("If-Modified-Since")) and is_current:
            return Page(b"", 304, [*validators, *confirming], content_type=None)
        return Page(body, 200, [*validators, *headers])

    return answer


class Asking(LinkSpider):
    """Asks with the request headers that it is given."""

    handle_httpstatus_list = (304,)
    headers: dict[str, str] = {}

    async def start(self) -> Any:
        for url in self.urls.split():
            yield scrapy.Request(url, dont_filter=True, headers=self.headers)

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {"status": response.status, "warc": response.meta["warc"]}


@pytest.mark.parametrize(
    ("validators", "asked"),
    [
        ({"tag": '"v1"'}, {"If-None-Match": '"v0", "v1"'}),
        ({"tag": 'W/"v1"'}, {"If-None-Match": 'W/"v1"'}),
        (
            {"tag": None, "modified": "Sat, 28 Nov 2026 10:00:00 GMT"},
            {"If-Modified-Since": "Sat, 28 Nov 2026 10:00:00 GMT"},
        ),
    ],
)
@crawl_test
async def test_a_304_refers_to_the_record_that_it_confirms(
    validators: dict[str, Any], asked: dict[str, str], web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"), **validators)
    await crawl(Asking, stored, urls=web.url("/a"))
    spider, items = collecting(Asking)
    crawler = await crawl(spider, stored, urls=web.url("/a"), headers=asked)
    check(tmp_path / "warcs")
    original, confirmation = (r for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit"))
    assert confirmation.type == "revisit"
    assert confirmation.headers["WARC-Profile"] == NOT_MODIFIED
    assert confirmation.headers["WARC-Refers-To"] == original.id
    assert confirmation.headers["WARC-Refers-To-Target-URI"] == web.url("/a")
    assert confirmation.headers["WARC-Refers-To-Date"] == original.headers["WARC-Date"]
    assert confirmation.headers["Content-Length"] == "0", "a block would be replayed as an empty page"
    (item,) = items
    assert item["status"] == 304
    assert item["warc"]["type"] == "revisit"
    assert item["warc"]["refers_to"]["record_id"] == original.id
    assert crawler.stats.get_value("dedupe/warc/revisit") == 1
    with open_index(stored["DEDUPE_STORE_URL"]) as index:
        counts = index.crawls()[-1].counts
    assert (counts.total_urls, counts.dupe_urls, counts.conserved_size) == (1, 1, 0)


@crawl_test
async def test_a_304_that_nobody_can_explain_is_a_response(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/always", b"", status=304, content_type=None)
    web.pages["/unknown"] = validating(text("unknown"))
    web.pages["/older"] = validating(text("older"), '"old"')
    await crawl(Asking, settings, urls=web.url("/older"))
    web.pages["/older"] = validating(text("newer"), '"new"')
    await crawl(Asking, settings, urls=web.url("/older"))
    web.pages["/older"] = validating(text("older"), '"old"')
    for path, headers in (
        ("/always", {}),
        ("/always", {"If-None-Match": '"x"'}),
        ("/unknown", {"If-None-Match": '"v1"'}),
        # The last record of this URL is the newer version, the server confirms the older one.
        ("/older", {"If-None-Match": '"old"'}),
    ):
        await crawl(Asking, settings, urls=web.url(path), headers=headers)
    check(tmp_path / "warcs")
    records = [r for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert [(r.type, r.status) for r in records] == [("response", "200")] * 2 + [("response", "304")] * 4
    assert not any("WARC-Payload-Digest" in r.headers for r in records[2:])


@crawl_test
async def test_a_304_of_a_url_whose_last_record_was_a_revisit_refers_to_the_original(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/first"] = validating(text("a"), '"of the first"')
    web.pages["/a"] = validating(text("a"), '"v1"')
    await crawl(Asking, stored, urls=web.url("/first"))
    await crawl(Asking, stored, urls=web.url("/a"))
    # Put up anew: the same page with another tag.
    web.pages["/a"] = validating(text("a"), '"v2"')
    await crawl(Asking, stored, urls=web.url("/a"))
    await crawl(Asking, stored, urls=web.url("/a"), headers={"If-None-Match": '"v2"'})
    check(tmp_path / "warcs")
    records = [r for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert [(r.type, r.status) for r in records] == [
        ("response", "200"),
        ("revisit", "200"),
        ("revisit", "200"),
        ("revisit", None),
    ]
    assert records[-1].headers["WARC-Profile"] == NOT_MODIFIED
    assert records[-1].headers["WARC-Refers-To"] == records[0].id
    assert records[-1].headers["WARC-Refers-To-Target-URI"] == web.url("/first")


@crawl_test
async def test_a_304_refers_to_a_record_whose_file_was_moved_by_hand(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    await crawl(Asking, settings, urls=web.url("/a"))
    (tmp_path / "warcs").rename(tmp_path / "elsewhere")
    settings["DEDUPE_WARC_CHECK_FILES"] = False
    await crawl(Asking, settings, urls=web.url("/a"), headers={"If-None-Match": '"v1"'})
    assert "revisit" in [r.type for r in records_of(tmp_path / "warcs")]


@crawl_test
async def test_a_304_is_a_response_where_revisits_are_turned_off(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    await crawl(Asking, settings, urls=web.url("/a"))
    settings["DEDUPE_WARC_REVISIT"] = False
    await crawl(Asking, settings, urls=web.url("/a"), headers={"If-None-Match": '"v1"'})
    assert [r.type for r in records_of(tmp_path / "warcs") if r.status == "304"] == ["response"]


@crawl_test
async def test_a_revalidated_cache_is_a_304_in_the_archive(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/a"] = validating(text("a"))
    settings |= {
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": str(tmp_path / "cache"),
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
    }
    for _ in range(2):
        spider, items = collecting()
        await crawl(spider, settings, urls=web.url("/a"))
        assert len(items) == 1
    types = [r.type for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert types == ["response", "revisit"]


@crawl_test
async def test_within_the_blackout_a_payload_of_a_url_is_recorded_once(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    stored["DEDUPE_WARC_BLACKOUT"] = 3600
    await crawl(Asking, stored, urls=web.url("/a"))
    spider, items = collecting(Asking)
    crawler = await crawl(spider, stored, urls=f"{web.url('/a')} {web.url('/copy')}")
    records = [(r.type, r.uri) for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert records == [("response", web.url("/a")), ("revisit", web.url("/copy"))]
    assert crawler.stats.get_value("dedupe/warc/skipped") == 1
    (skipped,) = (item["warc"] for item in items if item["warc"]["type"] == "skipped")
    assert skipped["record_id"] is None
    assert skipped["refers_to"]["url"] == web.url("/a")
    web.page("/a", text("changed"))
    await crawl(Asking, stored, urls=web.url("/a"))
    assert [r.type for r in records_of(tmp_path / "warcs") if r.uri == web.url("/a")].count("response") == 2


@crawl_test
async def test_after_the_blackout_a_revisit_is_written_again(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"))
    settings["DEDUPE_WARC_BLACKOUT"] = 0.001
    for _ in range(2):
        await crawl(Asking, settings, urls=web.url("/a"))
    types = [r.type for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert types == ["response", "revisit"]
