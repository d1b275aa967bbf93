"""What is archived of crawls with scrapy-playwright and Chromium, scrapy-impersonate and scrapy-zyte-api.

``tox -e handlers`` has the three packages, and skips nothing. The rule itself is tested in tests/test_rendered.py.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import check, records_of
from chromium import browser
from crawling import collecting, crawl, crawl_test
from exchange_servers import Answer, Asked, RawServer

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archives import Seen

# These packages and theirs warn about themselves and each other.
pytestmark = pytest.mark.filterwarnings("default")


def needs(package: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(package) is None and os.environ.get("TOX_ENV_NAME") != "handlers"
    return pytest.mark.skipif(is_missing, reason=f"{package} is not there; use tox -e handlers")


TEXT = "<p>Ring numbers of birds." * 60
PAGE = (
    f"<!doctype html><title>Lake</title><body><script>document.body.append('Heron €')</script>{TEXT}".encode()
)
STYLE = b"p { color: green }\n" * 100
ZIPPED = gzip.compress(PAGE, mtime=0)


def png() -> bytes:
    """One grey pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    ends = chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ends


def sized(
    body: bytes, content_type: bytes, *headers: tuple[bytes, bytes], status: bytes = b"200 OK"
) -> Answer:
    length = (b"Content-Length", b"%d" % len(body))
    return Answer(body, status, [(b"Content-Type", content_type), length, *headers])


SITE = {
    "/page": sized(PAGE, b"text/html; charset=iso-8859-1"),
    "/zipped": sized(ZIPPED, b"text/html; charset=utf-8", (b"Content-Encoding", b"gzip")),
    "/image.png": sized(png(), b"image/png"),
    "/moved": sized(b"", b"text/html", (b"Location", b"/page"), status=b"302 Found"),
    "/text": sized(b"herons\n" * 200, b"text/plain"),
    "/file": sized(
        STYLE, b"application/octet-stream", (b"Content-Disposition", b"attachment; filename=a.css")
    ),
    "/gone": sized(b"<p>Gone." * 200, b"text/html", status=b"410 Gone"),
    "/own": sized(PAGE + b"<!-- own -->", b"text/html"),
}


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        server.answers.update(SITE)
        yield server


class HandlerSpider(scrapy.Spider):
    """Asks for ``paths`` through the handler, one after the other, and for ``/own`` through Scrapy's own client."""

    name = "handlers"
    base = ""
    paths: tuple[str, ...] = ()
    handled: dict[str, Any] = {}

    def start_requests(self) -> Any:
        for path in self.paths:
            meta = {} if path == "/own" else dict(self.handled)
            yield scrapy.Request(self.base + path, meta=meta, dont_filter=True)

    async def start(self) -> Any:
        for request in self.start_requests():
            yield request

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {
            "path": response.url.removeprefix(self.base),
            "flags": [flag for flag in response.flags if not flag.startswith("dedupe")],
            "kind": response.meta["dedupe"].kind,
            "warc": response.meta.get("warc"),
        }


async def run(
    server: RawServer, settings: dict[str, Any], handled: dict[str, Any], paths: tuple[str, ...], **more: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The stats of a crawl and its items by path."""
    spider, items = collecting(HandlerSpider)
    values = {**settings, "CONCURRENT_REQUESTS": 1, "HTTPERROR_ALLOW_ALL": True, "DEDUPE_CRAWL_ID": "c"}
    crawler = await crawl(
        spider, {**values, **more}, base=server.url(""), paths=(*paths, "/own"), handled=handled
    )
    assert crawler.stats.get_value("dedupe/warc/not_archived") is None
    assert crawler.stats.get_value("log_count/ERROR") is None
    return crawler.stats.get_stats(), {item["path"]: item for item in items}


def archived(folder: Path, base: str) -> dict[str, Seen]:
    """The records by path, warcinfo and requests left out; both judges accept the files."""
    check(folder)
    records = [record for record in records_of(folder) if record.type not in ("warcinfo", "request")]
    found = {(record.uri or "").removeprefix(base): record for record in records}
    assert len(found) == len(records)
    return found


def entered(settings: dict[str, Any]) -> tuple[int, int]:
    """How many responses and revisits the index counts, and how many payloads it has."""
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
        return info.counts.total_urls, len(list(index.records("c")))


def assert_only_own(folder: Path, base: str, settings: dict[str, Any], items: dict[str, Any]) -> None:
    """The archive has the response of Scrapy's own client alone, and nothing refers to another one."""
    assert {path: record.type for path, record in archived(folder, base).items()} == {"/own": "response"}
    assert {path for path, item in items.items() if item["warc"]} == {"/own"}
    assert entered(settings) == (1, 1)


PLAYWRIGHT = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
BROWSED = ("/page", "/image.png", "/moved", "/text", "/file", "/gone")


def playwright_settings() -> dict[str, Any]:
    flags = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
    more = ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
    return {
        "DOWNLOAD_HANDLERS": {"http": PLAYWRIGHT, "https": PLAYWRIGHT},
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
        "PLAYWRIGHT_LAUNCH_OPTIONS": {"executable_path": browser(), "args": [*flags, *more]},
    }


@needs("scrapy_playwright")
@pytest.mark.parametrize("mode", ["skip", "resource"])
@crawl_test
async def test_playwright(
    mode: str, server: RawServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings |= playwright_settings()
    handled = {"playwright": True}
    stats, items = await run(server, settings, handled, BROWSED, DEDUPE_WARC_RENDERED=mode)
    base = server.url("")
    assert stats["dedupe/warc/rendered"] == len(BROWSED)
    assert items["/own"]["flags"] == []
    # /moved led to /page, which has an item already.
    assert {path for path, item in items.items() if item["flags"] == ["playwright"]} == set(BROWSED) - {
        "/moved"
    }
    assert items["/page"]["kind"] != "unknown"
    told = [record for record in caplog.records if "differs from what the server sent" in record.getMessage()]
    assert len(told) == 1
    assert (
        f"the download handler {PLAYWRIGHT} rendered or decoded it (flag playwright)" in told[0].getMessage()
    )
    if mode == "skip":
        assert_only_own(tmp_path / "warcs", base, settings, items)
        return
    check(tmp_path / "warcs")
    records = records_of(tmp_path / "warcs")
    assert [record.type for record in records].count("request") == 1
    types = [
        (record.uri.removeprefix(base), record.headers["Content-Type"])
        for record in records
        if record.type == "resource" and record.uri is not None
    ]
    assert types == [
        ("/page", "text/html; charset=utf-8"),
        ("/image.png", "text/html; charset=utf-8"),
        ("/page", "text/html; charset=utf-8"),
        ("/text", "text/html"),
        ("/file", "application/octet-stream"),
    ]
    resources = {
        record.uri.removeprefix(base): record
        for record in records
        if record.type == "resource" and record.uri
    }
    assert "Heron €" in resources["/page"].payload.decode()
    assert resources["/image.png"].payload.startswith(b"<html")
    assert resources["/file"].payload == STYLE
    assert items["/image.png"]["warc"]["record_id"] == resources["/image.png"].id
    assert items["/gone"]["warc"] is None
    assert entered(settings) == (1, 1)


@needs("scrapy_impersonate")
@pytest.mark.parametrize("mode", ["skip", "resource"])
@crawl_test
async def test_impersonate(mode: str, server: RawServer, settings: dict[str, Any], tmp_path: Path) -> None:
    handler = "scrapy_impersonate.ImpersonateDownloadHandler"
    settings |= {"DOWNLOAD_HANDLERS": {"http": handler, "https": handler}, "USER_AGENT": None}
    paths = ("/zipped", "/image.png", "/moved", "/gone")
    handled = {"impersonate": "chrome"}
    stats, items = await run(server, settings, handled, paths, DEDUPE_WARC_RENDERED=mode)
    base = server.url("")
    # The redirect of /moved is followed by Scrapy.
    assert stats["dedupe/warc/rendered"] == len(paths) + 1
    assert items["/zipped"]["flags"] == ["impersonate"]
    if mode == "skip":
        assert_only_own(tmp_path / "warcs", base, settings, items)
        return
    records = archived(tmp_path / "warcs", base)
    assert {
        path: record.headers["Content-Type"] for path, record in records.items() if record.type == "resource"
    } == {
        "/zipped": "text/html; charset=utf-8",
        "/image.png": "image/png",
        "/page": "text/html; charset=iso-8859-1",
    }
    assert records["/zipped"].payload == PAGE
    assert records["/image.png"].payload == png()
    assert entered(settings) == (1, 1)


def api_answer(asked: Asked) -> Answer:
    """What Zyte API answers, as its reference says."""
    query = json.loads(asked.body)
    url = query["url"]
    answer: dict[str, Any] = {"url": url, "statusCode": 200}
    if query.get("browserHtml"):
        answer["browserHtml"] = f"<html><head><title>Lake</title></head><body>Heron €{TEXT}</body></html>"
    else:
        site = SITE[url[url.rindex("/") :]]
        body = gzip.decompress(site.body) if site.body == ZIPPED else site.body
        answer |= {
            "statusCode": site.code,
            "httpResponseBody": base64.b64encode(body).decode(),
            "httpResponseHeaders": [
                {"name": name.decode(), "value": value.decode()} for name, value in site.headers
            ],
        }
    return sized(json.dumps(answer).encode(), b"application/json")


@needs("scrapy_zyte_api")
@pytest.mark.parametrize("mode", ["skip", "resource"])
@crawl_test
async def test_zyte_api(mode: str, server: RawServer, settings: dict[str, Any], tmp_path: Path) -> None:
    server.answers["/v1/extract"] = api_answer
    settings |= {
        "ADDONS": {"scrapy_dedupe.Addon": 500, "scrapy_zyte_api.Addon": 400},
        "ZYTE_API_KEY": "none",
        "ZYTE_API_URL": server.url("/v1/"),
        "ZYTE_API_TRANSPARENT_MODE": False,
    }
    base = server.url("")
    shown = {"zyte_api": {"browserHtml": True}}
    stats, items = await run(server, settings, shown, ("/page", "/image.png"), DEDUPE_WARC_RENDERED=mode)
    assert stats["dedupe/warc/rendered"] == 2
    assert items["/page"]["flags"] == ["zyte-api"]
    if mode == "skip":
        assert_only_own(tmp_path / "warcs", base, settings, items)
    else:
        records = archived(tmp_path / "warcs", base)
        assert {path: record.type for path, record in records.items()} == {
            "/page": "resource",
            "/image.png": "resource",
            "/own": "response",
        }
        assert records["/image.png"].headers["Content-Type"] == "text/html; charset=utf-8"
        assert entered(settings) == (1, 1)


@needs("scrapy_zyte_api")
@crawl_test
async def test_zyte_api_returns_decoded_bodies(
    server: RawServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    server.answers["/v1/extract"] = api_answer
    settings |= {
        "ADDONS": {"scrapy_dedupe.Addon": 500, "scrapy_zyte_api.Addon": 400},
        "ZYTE_API_KEY": "none",
        "ZYTE_API_URL": server.url("/v1/"),
    }
    # Transparent mode, which the add-on turns on, takes every request.
    automatic = {"zyte_api": {"httpResponseBody": True, "httpResponseHeaders": True}}
    stats, items = await run(
        server, settings, automatic, ("/zipped", "/image.png"), DEDUPE_WARC_RENDERED="resource"
    )
    assert stats["dedupe/warc/rendered"] == 3
    records = archived(tmp_path / "warcs", server.url(""))
    assert {path: (record.type, record.headers["Content-Type"]) for path, record in records.items()} == {
        "/zipped": ("resource", "text/html; charset=utf-8"),
        "/image.png": ("resource", "image/png"),
        "/own": ("resource", "text/html; charset=utf-8"),
    }
    assert records["/zipped"].payload == PAGE
    assert all(item["warc"]["type"] == "resource" for item in items.values())
    assert entered(settings) == (0, 0)
