"""Responses that a browser rendered or a download handler decoded: recognised, never archived as if a server had sent them.

The crawls have a download handler for https that returns what such handlers return, and Scrapy's own for http. Crawls
with the real packages are in tests/handlers.
"""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import check, records_of
from crawling import collecting, crawl, crawl_test
from scrapy.http import Headers, HtmlResponse, Request, Response

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.live.archive.replay import NotInArchive
from scrapy_dedupe.live.responses import capture_of
from scrapy_dedupe.pipelines import WarcItem
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archives import Seen
    from webserver import WebServer

LENGTH, CODING, TYPE = "Content-Length", "Content-Encoding", "Content-Type"


def text(name: str) -> bytes:
    words = random.Random(name)
    body = " ".join(f"{words.getrandbits(40):x}" for _ in range(300))
    return f"<html><head><title>{name}</title></head><body><p>{body}</body></html>".encode()


# The rule


def rendering(body: bytes = b"12345", method: str = "GET", status: int = 200, **kwargs: Any) -> Any:
    """What is found of a response; ``headers`` are pairs."""
    headers = Headers()
    for name, value in kwargs.pop("headers", [(TYPE, "text/plain")]):
        headers.appendlist(name, value)
    request = Request("https://example.org/a", method=method)
    response = Response(request.url, status, headers, body, kwargs.pop("flags", None), request, **kwargs)
    return capture_of(request, response).rendering


CAPTURED = {
    "no length": {"headers": [(TYPE, "text/plain")]},
    "no header over HTTP": {"headers": [], "protocol": "HTTP/1.0"},
    "right length": {"headers": [(LENGTH, "5")]},
    "white space": {"headers": [(LENGTH, " 5\t")]},
    "leading zeros": {"headers": [(LENGTH, "005")]},
    "repeated": {"headers": [(LENGTH, "5"), (LENGTH, "5")]},
    "repeated in one": {"headers": [(LENGTH, "5, 5")]},
    "contradiction": {"headers": [(LENGTH, "6"), (LENGTH, "7")]},
    "no number": {"headers": [(LENGTH, "many")]},
    "sign": {"headers": [(LENGTH, "+6")]},
    "empty": {"headers": [(LENGTH, "")]},
    "number of many digits": {"headers": [(LENGTH, "9" * 5_000)]},
    "chunked with a length": {"headers": [("transfer-encoding", "chunked"), (LENGTH, "77")]},
    "coded": {"body": gzip.compress(b"12345"), "headers": [(CODING, "gzip"), (LENGTH, "77")]},
    "HEAD": {"method": "HEAD", "body": b"", "headers": [(LENGTH, "77")]},
    "not modified": {"status": 304, "body": b"", "headers": [(LENGTH, "77")]},
    "no content": {"status": 204, "body": b"", "headers": [(LENGTH, "77")]},
    "interim": {"status": 103, "body": b"", "headers": [(LENGTH, "77")]},
    "cut off": {"flags": ["dataloss"], "headers": [(LENGTH, "77")]},
    "stopped": {"flags": ["download_stopped"], "headers": [(LENGTH, "77")]},
    "ended by the connection": {"flags": ["partial"]},
    "range": {"status": 206, "headers": [(LENGTH, "5"), ("Content-Range", "bytes 0-4/77")]},
    # scrapy-curl and scrapy-curl-cffi return bodies as they came.
    "faithful handler": {"flags": ["curl_cffi"], "headers": [(CODING, "br"), (LENGTH, "5")]},
}


@pytest.mark.parametrize("response", CAPTURED.values(), ids=CAPTURED)
def test_what_a_server_sent_is_captured(response: dict[str, Any]) -> None:
    assert rendering(**response) is None


RENDERED = {
    "scrapy-playwright": ({"flags": ["playwright"]}, "flag playwright"),
    "scrapy-camoufox": ({"flags": ["camoufox"]}, "flag camoufox"),
    "scrapy-pyppeteer": ({"flags": ["pyppeteer"]}, "flag pyppeteer"),
    "scrapy-impersonate": ({"flags": ["impersonate"], "headers": [(LENGTH, "5")]}, "flag impersonate"),
    "scrapy-zyte-api": ({"flags": ["zyte-api"]}, "flag zyte-api"),
    "a handler of one's own": ({"flags": ["rendered"], "protocol": "HTTP/1.1"}, "flag rendered"),
    "empty answer": ({"flags": ["playwright"], "status": 304, "body": b""}, "flag playwright"),
    "longer body": ({"headers": [(LENGTH, "4")]}, "Content-Length 4, but a body of 5 bytes"),
    "shorter body": (
        {"headers": [(LENGTH, "6"), (CODING, "identity")]},
        "Content-Length 6, but a body of 5 bytes",
    ),
    "no body": ({"headers": [(LENGTH, "6")], "body": b""}, "Content-Length 6, but a body of 0 bytes"),
    "no head": ({"headers": []}, "no HTTP headers"),
}


@pytest.mark.parametrize(("response", "sign"), RENDERED.values(), ids=RENDERED)
def test_what_no_server_sent_is_recognised(response: dict[str, Any], sign: str) -> None:
    assert rendering(**response).sign == sign


# Crawls


PAGE = text("Lake")
UMLAUTS = text("Lake").replace(b"Lake", "Größe 20 €".encode())


class Browser:
    """A download handler; ``answers`` by path."""

    lazy = False
    answers: dict[str, dict[str, Any]] = {}

    @classmethod
    def from_crawler(cls, crawler: Any) -> Browser:
        return cls()

    def _answer(self, request: Request) -> Response:
        answer = {"flags": ["playwright"], "headers": {TYPE: "text/html"}, **self.answers[request.url[15:]]}
        response_class = HtmlResponse if b"<html" in answer["body"] else Response
        return response_class(answer.pop("url", request.url), request=request, **answer)

    if scrapy.version_info >= (2, 14):

        async def download_request(self, request: Request) -> Response:
            return self._answer(request)

        async def close(self) -> None:
            pass

    else:

        def download_request(self, request: Request, spider: Any) -> Any:
            from twisted.internet.defer import succeed

            return succeed(self._answer(request))


SITE = "https://example"  # 15 characters
HANDLER = f"{Browser.__module__}.{Browser.__qualname__}"


class AskingSpider(scrapy.Spider):
    """Asks for ``requests``, one after the other; an item says what is known of each response."""

    name = "asking"
    requests: list[Request] = []

    def next_request(self) -> Iterator[Request]:
        if self.requests:
            yield self.requests.pop(0).replace(dont_filter=True, errback=self.failed)

    def start_requests(self) -> Any:
        return self.next_request()

    async def start(self) -> Any:
        for request in self.next_request():
            yield request

    def failed(self, failure: Any) -> Any:
        yield {"failure": failure.type}
        yield from self.next_request()

    def parse(self, response: Any, **kwargs: Any) -> Any:
        verdict = response.meta.get("dedupe")
        yield {"url": response.url, "kind": verdict and verdict.kind, "warc": response.meta.get("warc")}
        yield from self.next_request()


@pytest.fixture
def site(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The answers of the handler, which is for https."""
    settings |= {
        "DOWNLOAD_HANDLERS": {"https": Browser},
        "CONCURRENT_REQUESTS": 1,
        "HTTPERROR_ALLOW_ALL": True,
        "REDIRECT_ENABLED": False,
        "DEDUPE_CRAWL_ID": "c",
    }
    answers: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(Browser, "answers", answers)
    return answers


async def ask(
    settings: dict[str, Any], *requests: Request | str, spider: type[AskingSpider] = AskingSpider
) -> tuple[dict[str, Any], list[Any]]:
    """The stats of a crawl, which had no error, and its items."""
    asking, items = collecting(spider)
    asked = [request if isinstance(request, Request) else Request(request) for request in requests]
    crawler = await crawl(asking, settings, requests=asked)
    stats = crawler.stats.get_stats()
    assert [key for key in stats if key.startswith("dedupe/errors/")] == []
    assert "dedupe/warc/not_archived" not in stats
    return stats, items


def principals(folder: Path) -> list[Seen]:
    """The records but for warcinfo and requests; both judges accept the files."""
    check(folder)
    return [record for record in records_of(folder) if record.type not in ("warcinfo", "request")]


def index_of(wacz: zipfile.ZipFile) -> str:
    return wacz.read("indexes/index.cdx").decode()


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, message) for level, message in records if "differs from what the server sent" in message]


@crawl_test
async def test_a_rendered_response_is_left_out_of_the_archive(
    site: dict[str, Any],
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site["/image.png"] = {"body": b'<html style="height: 100%">', "headers": {TYPE: "image/png"}}
    site["/page"] = {"body": PAGE, "headers": {TYPE: "text/html", LENGTH: "12"}}
    web.page("/own", text("own"))
    settings |= {"DEDUPE_WARC_ITEM_FIELD": "record", "DEDUPE_DUPLICATES_LOG": str(tmp_path / "log.jsonl")}
    site["/copy"] = site["/page"]
    urls = [f"{SITE}/image.png", f"{SITE}/page", web.url("/own"), f"{SITE}/copy"]
    stats, items = await ask(settings, *urls)
    assert stats["dedupe/warc/rendered"] == 3
    assert stats["dedupe/warc/response"] == 1
    assert [(record.type, record.uri) for record in principals(tmp_path / "warcs")] == [
        ("response", web.url("/own"))
    ]
    assert [item["kind"] for item in items[1:]] == ["unique", "unique", "exact"]
    assert [item["warc"] is None for item in items] == [True, True, False, True]
    assert [item.get("record") is None for item in items] == [True, True, False, True]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["layer"] for line in lines] == ["content"]
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [entry.url for entry in index.records("c")] == [web.url("/own")]
        assert [info.counts.total_urls for info in index.crawls()] == [1]
    ((level, message),) = messages(caplog)
    assert level == "WARNING"
    assert message.startswith(
        f"The response of {SITE}/image.png differs from what the server sent: the download handler {HANDLER} rendered or decoded"
        ' it (flag playwright). It is not archived. Set DEDUPE_WARC_RENDERED = "resource" to store'
    )
    assert "resource" not in records_of(tmp_path / "warcs")[0].payload.decode()
    assert "3 rendered or decoded responses not archived" in caplog.text


@crawl_test
async def test_a_response_that_a_middleware_made_is_no_download(
    site: dict[str, Any], web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    class Selenium:
        """As scrapy-selenium has it."""

        def process_request(self, request: Request, spider: Any = None) -> Response | None:
            if not request.meta.get("selenium"):
                return None
            return HtmlResponse(request.url, body=PAGE, request=request)

    web.page("/own", text("own"))
    settings |= {"DOWNLOADER_MIDDLEWARES": {Selenium: 800}, "DEDUPE_WARC_RENDERED": "resource"}
    stats, items = await ask(settings, Request(web.url("/a"), meta={"selenium": True}), web.url("/own"))
    assert [(record.type, record.uri) for record in principals(tmp_path / "warcs")] == [
        ("response", web.url("/own"))
    ]
    assert "dedupe/warc/rendered" not in stats
    assert [item["warc"] is None for item in items] == [True, False]


@pytest.fixture
def resources(settings: dict[str, Any], site: dict[str, Any]) -> dict[str, Any]:
    settings["DEDUPE_WARC_RENDERED"] = "resource"
    return settings


@crawl_test
async def test_a_rendered_page_becomes_a_resource_record_if_wished(
    resources: dict[str, Any], site: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The browser followed a redirect.
    site["/moved"] = {
        "url": f"{SITE}/page?a=b c#top",
        "body": PAGE,
        "headers": {TYPE: "text/html", LENGTH: "12"},
    }
    stats, (item,) = await ask(resources, f"{SITE}/moved")
    (record,) = principals(tmp_path / "warcs")
    warcinfo, *more = records_of(tmp_path / "warcs")
    assert [other.id for other in more] == [record.id], "no request was seen"
    assert record.type == "resource"
    assert record.uri == f"{SITE}/page?a=b%20c"
    assert record.status is None
    assert record.payload == PAGE
    assert record.headers["Content-Type"] == "text/html"
    assert record.headers["WARC-Block-Digest"] == record.headers["WARC-Payload-Digest"]
    assert b"Records of type resource are not as received" in warcinfo.payload
    where = item["warc"]
    assert where["refers_to"] is None
    assert (where["type"], where["record_id"]) == ("resource", record.id)
    assert where["digest"] == record.headers["WARC-Payload-Digest"]
    assert read_record(tmp_path / "warcs" / where["file"], where["offset"]).id == record.id
    assert stats["dedupe/warc/rendered"] == stats["dedupe/warc/resource"] == 1
    assert stats["dedupe/warc/bytes_written"] > 0
    ((level, message),) = messages(caplog)
    assert level == "INFO"
    assert "become resource records if they are complete and have status 200" in message
    assert "written for 1 response; no duplicates" in caplog.text


TYPES = {
    "image viewer": ("image/png", PAGE, "playwright", "text/html"),
    "text viewer": ("text/plain; charset=iso-8859-1", PAGE, "playwright", "text/html; charset=iso-8859-1"),
    "more than the charset has": (
        "text/html; charset=iso-8859-1",
        UMLAUTS,
        "zyte-api",
        "text/html; charset=utf-8",
    ),
    "XHTML": ("application/xhtml+xml", PAGE, "playwright", "application/xhtml+xml"),
    "no type": (None, UMLAUTS, "zyte-api", "text/html; charset=utf-8"),
    "download": ("image/png", b"\x89PNG", "playwright", "image/png"),
    "download without a type": (None, b"\x89PNG", "playwright", "application/octet-stream"),
    "source text": ("text/plain", PAGE, "impersonate", "text/plain"),
    "decoded": ("text/html", UMLAUTS, "impersonate", "text/html"),
}


@crawl_test
async def test_a_resource_has_the_type_that_its_body_has(
    resources: dict[str, Any], site: dict[str, Any], tmp_path: Path
) -> None:
    for name, (declared, body, flag, _) in TYPES.items():
        headers = {"X-Name": "1"} | ({TYPE: declared} if declared else {})
        site["/" + name.replace(" ", "-")] = {"body": body, "flags": [flag], "headers": headers}
    await ask(resources, *(f"{SITE}{path}" for path in site))
    found = [record.headers["Content-Type"] for record in principals(tmp_path / "warcs")]
    assert dict(zip(TYPES, found, strict=True)) == {name: wanted for name, (*_, wanted) in TYPES.items()}


@crawl_test
async def test_what_is_no_page_of_its_url_gets_no_record(
    resources: dict[str, Any], site: dict[str, Any], tmp_path: Path
) -> None:
    site["/gone"] = {"body": PAGE, "status": 410}
    site["/moved"] = {"body": b"", "status": 302, "headers": {"Location": "/page"}}
    site["/unmodified"] = {"body": b"", "status": 304}
    site["/empty"] = {"body": b""}
    site["/cut"] = {"body": PAGE, "flags": ["impersonate", "dataloss"]}
    site["/form"] = {"body": PAGE}
    paths = ("gone", "moved", "unmodified", "empty", "cut")
    stats, items = await ask(
        resources, *(f"{SITE}/{path}" for path in paths), Request(f"{SITE}/form", method="POST")
    )
    assert stats["dedupe/warc/rendered"] == 6
    assert "dedupe/warc/resource" not in stats
    assert [item["warc"] for item in items] == [None] * 6
    assert list((tmp_path / "warcs").iterdir()) == []


@crawl_test
async def test_a_resource_is_neither_an_original_nor_a_revisit(
    resources: dict[str, Any],
    site: dict[str, Any],
    web: WebServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    web.page("/own", PAGE)
    web.page("/copy", PAGE)
    site["/page"] = {"body": PAGE}
    log = tmp_path / "log.jsonl"
    resources |= {
        "DEDUPE_DUPLICATES_LOG": str(log),
        "DEDUPE_CONTENT_ENABLED": False,
        "DEDUPE_WARC_BLACKOUT": 1e6,
    }
    rendered = f"{SITE}/page"
    await ask(resources, rendered, rendered, web.url("/own"), rendered, web.url("/copy"))
    records = principals(tmp_path / "warcs")
    assert [record.type for record in records] == ["resource", "resource", "response", "resource", "revisit"]
    assert records[-1].headers["WARC-Refers-To"] == records[2].id
    assert [json.loads(line)["url"] for line in log.read_text().splitlines()] == [web.url("/copy")]
    store = resources["DEDUPE_STORE_URL"]
    with open_index(store) as index:
        assert [entry.url for entry in index.records("c")] == [web.url("/own")]
        (info,) = index.crawls()
        assert (info.counts.total_urls, info.counts.dupe_urls) == (2, 1)
    # The index says what the files say, and so does one that is made of the files.
    assert main(["check", "--store", store]) == 0
    (file,) = (tmp_path / "warcs").iterdir()
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    assert main(["import", str(file), "--store", other, "--crawl", "c"]) == 0, capsys.readouterr()
    with open_index(other) as index:
        assert [entry.url for entry in index.records("c")] == [web.url("/own")]
    assert main(["dedupe", str(file), "-o", str(tmp_path / "deduped")]) == 0
    assert [record.type for record in principals(tmp_path / "deduped")] == [record.type for record in records]


@crawl_test
async def test_a_wacz_lists_the_resources_that_are_in_it(
    resources: dict[str, Any], site: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    pytest.importorskip("surt")
    web.page("/own", text("own"))
    site["/page"] = {"body": PAGE}
    site["/image.png"] = {"body": b"\x89PNG", "headers": {TYPE: "image/png"}}
    resources |= {"DEDUPE_WACZ": True, "DEDUPE_WACZ_TEXT": True}
    await ask(resources, f"{SITE}/page", f"{SITE}/image.png", web.url("/own"))
    with zipfile.ZipFile(tmp_path / "wacz" / "c.wacz") as wacz:
        pages = [json.loads(line) for line in wacz.read("pages/pages.jsonl").splitlines()[1:]]
        index = index_of(wacz).splitlines()
    assert {(page["url"], page["title"]) for page in pages} == {
        (f"{SITE}/page", "Lake"),
        (web.url("/own"), "own"),
    }
    lines = [json.loads(line[line.index("{") :]) for line in index]
    found = {line["url"]: (line["mime"], line.get("status")) for line in lines}
    assert found == {
        f"{SITE}/page": ("text/html", None),
        f"{SITE}/image.png": ("image/png", None),
        web.url("/own"): ("text/html", "200"),
    }


@crawl_test
async def test_a_wacz_lists_no_page_that_was_left_out(
    site: dict[str, Any], web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("surt")
    web.page("/own", text("own"))
    site["/page"] = {"body": PAGE}
    await ask({**settings, "DEDUPE_WACZ": True}, f"{SITE}/page", web.url("/own"))
    with zipfile.ZipFile(tmp_path / "wacz" / "c.wacz") as wacz:
        pages = [json.loads(line)["url"] for line in wacz.read("pages/pages.jsonl").splitlines()[1:]]
        index = index_of(wacz)
    assert pages == [web.url("/own")]
    assert SITE not in index


@crawl_test
async def test_a_resource_is_not_replayed_as_a_response(
    resources: dict[str, Any], site: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    web.page("/own", text("own"))
    site["/page"] = {"body": PAGE}
    await ask(resources, f"{SITE}/page", web.url("/own"))
    replay = {"DEDUPE_REPLAY": str(tmp_path / "warcs" / "*.warc.gz"), "DEDUPE_CONTENT_ENABLED": False}
    _, items = await ask({**resources, **replay}, f"{SITE}/page", web.url("/own"))
    assert items[0] == {"failure": NotInArchive}
    assert items[1]["warc"]["type"] == "response"


@pytest.mark.parametrize("mode", ["skip", "resource"])
@crawl_test
async def test_a_rendered_response_in_a_warc_item(
    mode: str, site: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    site["/page"] = {"body": PAGE}
    site["/other"] = {"body": PAGE}
    settings |= {"DEDUPE_WARC_SCOPE": "items", "DEDUPE_WARC_RENDERED": mode}

    class Choosing(AskingSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url.endswith("/page"):
                yield WarcItem(response)
            yield from self.next_request()

    stats, (item,) = await ask(settings, f"{SITE}/page", f"{SITE}/other", spider=Choosing)
    assert stats["dedupe/warc/rendered"] == 1
    assert "dedupe/warc/items_without_exchange" not in stats
    where = item.response.meta.get("warc")
    if mode == "skip":
        assert where is None
        assert list((tmp_path / "warcs").iterdir()) == []
    else:
        assert [(record.type, record.id) for record in principals(tmp_path / "warcs")] == [
            ("resource", where["record_id"])
        ]


@crawl_test
async def test_a_rendered_response_in_the_http_cache_is_no_exchange_either(
    site: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    site["/page"] = {"body": PAGE}
    settings |= {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    first, _ = await ask(settings, f"{SITE}/page")
    assert first["dedupe/warc/rendered"] == 1
    second, (item,) = await ask(settings | {"DEDUPE_CRAWL_ID": "d"}, f"{SITE}/page")
    assert second["httpcache/hit"] == 1
    assert "dedupe/warc/rendered" not in second
    assert item["warc"] is None
    assert list((tmp_path / "warcs").iterdir()) == []


@crawl_test
async def test_an_archive_of_decoded_payloads_leaves_rendered_responses_alone(
    resources: dict[str, Any], site: dict[str, Any], tmp_path: Path
) -> None:
    site["/page"] = {"body": PAGE, "headers": {TYPE: "text/html", CODING: "gzip"}}
    resources |= {"DEDUPE_PAYLOAD": "decoded", "COMPRESSION_ENABLED": False}
    stats, _ = await ask(resources, f"{SITE}/page")
    assert [(record.type, record.payload) for record in principals(tmp_path / "warcs")] == [
        ("resource", PAGE)
    ]
    assert "dedupe/warc/undecodable" not in stats
