"""A site that is crawled twice, for the replay programs to show what the archive holds."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import time
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import scrapy
from archives import Seen, records_of
from crawling import LinkSpider, crawl
from webserver import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from webserver import WebServer

TAG = '"v1"'

DECODERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


async def next_second() -> None:
    """Wait for the moment when the time has another second."""
    await asyncio.sleep(1.01 - time.time() % 1)


class ReturningSpider(LinkSpider):
    """Knows the version of the page that has a tag."""

    async def start(self) -> Any:
        for url in self.urls.split():
            yield scrapy.Request(
                url, dont_filter=True, headers={"If-None-Match": TAG}, meta={"handle_httpstatus_list": [304]}
            )


@dataclass(frozen=True)
class Capture:
    """A response or revisit record and what a replay of it has to show."""

    crawl: str
    record: Seen
    original: Seen
    relations: frozenset[str]
    stored: bytes
    coding: str | None

    @property
    def url(self) -> str:
        return self.record.headers["WARC-Target-URI"]

    @property
    def time(self) -> str:
        """Of the capture, to the millisecond, as digits."""
        return "".join(char for char in self.record.headers["WARC-Date"] if char.isdigit())

    @property
    def status(self) -> int:
        return int(self.original.status or 0)

    @property
    def body(self) -> bytes:
        """What a browser shows: the content coding undone."""
        return DECODERS[self.coding](self.stored)

    @property
    def exchange(self) -> str:
        """The header that the server numbered the exchange with, from the head that a replay shows."""
        return dict(self.record.http_headers or self.original.http_headers)["X-Exchange"]


class Site:
    """Pages whose copies are stored as every kind of revisit. Each answer carries its number in ``X-Exchange``.

    If ``has_tags``, every page has a tag, and the second crawl uses the archive of the first one as its HTTP cache.
    """

    def __init__(self, web: WebServer, *, has_tags: bool = False) -> None:
        self.web = web
        self.has_tags = has_tags
        self.crawl = "first"
        pages = {
            # Asked for from the last to the first.
            "/far-copy-of-a": Page(_text("a")),
            "/gzip": Page(gzip.compress(_text("gzip"), mtime=0), headers=[("Content-Encoding", "gzip")]),
            "/deflate": Page(zlib.compress(_text("deflate")), headers=[("Content-Encoding", "deflate")]),
            "/chunked": Page(_text("chunked"), chunked=True),
            "/picture": Page(random.Random("picture").randbytes(3000), content_type="image/png"),
            # Rules of replay programs that take lookalikes for one page must not mix these up.
            "/page?b=2&a=1": Page(_text("page")),
            "/page?a=1&b=2&_=1795860771": Page(_text("page past caches")),
            "/page?a=1&b=2&jsonp=jQuery1795860771_1": Page(_text("page past other caches")),
            "/news": Page(_text("old news")),
            "/archive-of-news": Page(_text("no news")),
            "/copy-of-a": Page(_text("a")),
            "/a": Page(_text("a")),
            "/gone": Page(_text("gone"), 404),
        }
        links = "".join(f'<a href="{path}">x</a>' for path in pages)
        pages["/"] = Page(links.encode() + _text("home"))
        pages["/tagged"] = Page(_text("tagged"), headers=[("ETag", TAG)])
        # The original of what the archive shows then is not the last capture of its URL.
        moved = {"/news": Page(_text("new news")), "/archive-of-news": pages["/news"]}
        self.pages = {"first": pages, "second": pages | moved}
        exchanges = itertools.count()
        for path in pages:

            def answer(handler: Any, path: str = path) -> Page:
                page = self.pages[self.crawl][path]
                headers = [*page.headers, ("X-Exchange", str(next(exchanges)))]
                if has_tags and path != "/tagged":
                    headers.append(("ETag", f'"{zlib.crc32(page.body)}"'))
                if ("ETag", handler.headers["If-None-Match"]) in headers:
                    return Page(status=304, headers=headers, content_type=None)
                return replace(page, headers=headers)

            web.pages[path] = answer

    async def crawl_twice(self, settings: Mapping[str, Any], folder: Path) -> list[Capture]:
        """Crawl into the folders ``first`` and ``second`` of *folder*; the second crawl's captures come first."""
        returning = LinkSpider if self.has_tags else ReturningSpider
        for self.crawl, spider in (("first", LinkSpider), ("second", returning)):
            # pywb tells captures of a URL apart by the second.
            await next_second()
            await crawl(
                spider,
                {
                    **settings,
                    "DEDUPE_CRAWL_ID": self.crawl,
                    "DEDUPE_WARC_DIR": str(folder / self.crawl),
                    "DEDUPE_WARC_FILE_SIZE": 8000,
                    "CONCURRENT_REQUESTS": 1,
                    "DEDUPE_HTTPCACHE": self.has_tags,
                },
                urls=f"{self.web.url('/')} {self.web.url('/tagged')}",
            )
        return self._captures(folder)

    def check(self, captures: list[Capture]) -> None:
        """The archive holds every page twice, and a revisit of every kind."""
        urls = {self.web.url(path) for path in self.pages["first"]}
        for name in ("first", "second"):
            found = {capture.url for capture in captures if capture.crawl == name}
            assert found == urls, found ^ urls
        if self.has_tags:
            # Only a page with status 200 is cached.
            changed = {self.web.url(path) for path in ("/news", "/archive-of-news", "/gone")}
            second = [capture for capture in captures if capture.crawl == "second"]
            confirmed = {capture.url for capture in second if not capture.record.http_headers}
            assert confirmed == urls - changed, confirmed
            return
        for revisited in (
            {"same crawl", "same file", "other URL"},
            {"same crawl", "other file", "other URL"},
            {"other crawl", "same URL"},
            {"other crawl", "other URL"},
        ):
            assert any(revisited <= capture.relations for capture in captures), revisited
        new = {
            capture.url
            for capture in captures
            if capture.crawl == "second" and capture.record.type == "response"
        }
        assert new == {self.web.url("/gone"), self.web.url("/news")}, new
        unmodified = [capture.url for capture in captures if not capture.record.http_headers]
        assert unmodified == [self.web.url("/tagged")], unmodified

    def _captures(self, folder: Path) -> list[Capture]:
        records = {
            record.id: (name, record) for name in ("first", "second") for record in records_of(folder / name)
        }
        captures = []
        for name, record in records.values():
            if record.type in {"response", "revisit"}:
                where, original = records[record.headers.get("WARC-Refers-To", record.id)]
                shared = {
                    "crawl": name == where,
                    "file": record.headers["WARC-Warcinfo-ID"] == original.headers["WARC-Warcinfo-ID"],
                    "URL": record.uri == original.uri,
                }
                relations = {f"{'same' if is_same else 'other'} {what}" for what, is_same in shared.items()}
                page = self.pages[name][record.headers["WARC-Target-URI"].removeprefix(self.web.url(""))]
                coding = dict(page.headers).get("Content-Encoding")
                captures.append(Capture(name, record, original, frozenset(relations), page.body, coding))
        return sorted(captures, key=lambda capture: capture.crawl, reverse=True)


def _text(name: str) -> bytes:
    words = random.Random(name)
    text = " ".join(f"{words.getrandbits(40):x}" for _ in range(300))
    return f"<!doctype html><title>{name}</title><p>{text}".encode()
