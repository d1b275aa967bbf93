"""Every kind of exchange, recorded by real crawls and compared with what the server sent and received.

The same site is crawled with each HTTP client that Scrapy has. The files are read by warcio without looking
into the records (whose HTTP heads are taken apart here) and by this package.

What Scrapy loses, nobody can compare: status phrases, the case of header names, the place of Content-Length
and Host among the other headers, interim responses and trailers.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import random
import zlib
from argparse import Namespace
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import unquote_to_bytes

import crawling
import pytest
import scrapy
from archives import files_of
from click.testing import CliRunner
from crawling import crawl, crawl_test
from exchange_servers import CONNECTION_HEADERS, Answer, Asked, Http2Server, RawServer
from fastwarc.cli import check as fastwarc_check
from scrapy.http import FormRequest, JsonRequest
from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import BufferedReader
from warcio.checker import Checker

from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from exchange_servers import Headers

HTTP11 = "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler"
AIOHTTP = "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler"
HTTPX = "scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler"
HTTP2 = "scrapy.core.downloader.handlers.http2.H2DownloadHandler"

needs_reactor = pytest.mark.skipif(crawling.reactorless, reason="Scrapy has this client with a reactor only")
needs_aiohttp = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None
    or importlib.util.find_spec("scrapy.core.downloader.handlers._aiohttp") is None,
    reason="aiohttp is missing, or Scrapy is older than its client for it (2.19)",
)
needs_httpx = pytest.mark.skipif(
    importlib.util.find_spec("httpx2") is None
    or importlib.util.find_spec("scrapy.core.downloader.handlers._httpx") is None,
    reason="httpx2 is missing, or Scrapy is older than its client for it",
)
needs_h2 = pytest.mark.skipif(
    importlib.util.find_spec("h2") is None or scrapy.version_info < (2, 18),
    reason="h2 is not installed, or Scrapy is older than the release with a stable HTTP/2 (2.18)",
)

every_client = pytest.mark.parametrize(
    "client",
    [
        pytest.param(HTTP11, marks=needs_reactor, id="http11"),
        pytest.param(AIOHTTP, marks=needs_aiohttp, id="aiohttp"),
        pytest.param(HTTPX, marks=needs_httpx, id="httpx"),
    ],
)

TEXT = b"<p>Ring numbers of birds." * 60
BINARY = random.Random(5).randbytes(3_000_000)
BROTLI = bytes.fromhex("1bdb05f81d07760c3d50d861acd73c3e62695aca0d4e4ebb909dcd295b6c2b141a92642ba4be7a07")
# A Zstandard frame of one raw block (RFC 8878, sections 3.1.1 and 3.1.1.2).
ZSTD = (
    b"\x28\xb5\x2f\xfd\x60"
    + (len(TEXT) - 256).to_bytes(2, "little")
    + (len(TEXT) << 3 | 1).to_bytes(3, "little")
    + TEXT
)
LONG = "/" + "long/" * 1_600 + "?q=1"
ODD = "/a%20b%22%27(c)%0d%0aSet-Cookie:%20x?q=%C3%A9%3Ci%3E&r=~%7C"


@dataclass
class Exchange:
    """A principal record and its request, with their HTTP heads taken apart."""

    fields: list[tuple[str, str]]
    first_line: bytes
    headers: Headers
    body: bytes
    block: bytes
    request_fields: list[tuple[str, str]] = field(default_factory=list)
    request_line: bytes = b""
    request_headers: Headers = field(default_factory=list)
    request_body: bytes = b""

    def get(self, name: str) -> str | None:
        values = [value for header, value in self.fields if header == name]
        assert len(values) <= 1, (name, values)
        return values[0] if values else None

    @property
    def target(self) -> bytes:
        return self.request_line.split(b" ")[1]

    @property
    def code(self) -> int:
        return int(self.first_line.split(b" ")[1])


def check(folder: Path) -> None:
    """Both judges accept every file: ``warcio check`` and ``fastwarc check``, in this process to save time."""
    paths = [str(path) for path in files_of(folder)]
    assert paths
    with mock.patch.dict(BufferedReader.DECOMPRESSORS):
        # warcio 1.8.1 and the package brotli do not fit together: it stops at the first page that is coded so.
        BufferedReader.DECOMPRESSORS.pop("br", None)
        assert Checker(Namespace(inputs=paths, verbose=False)).process_all() == 0
    for path in paths:
        done = CliRunner().invoke(fastwarc_check, ["--quiet", path])
        assert done.exit_code == 0, done.output


def exchanges_of(folder: Path) -> list[Exchange]:
    """Both judges accept the files, our reader reads the same as warcio; what warcio reads is returned."""
    check(folder)
    found: dict[str, Exchange] = {}
    for path in files_of(folder):
        ours = read_records(path)
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream, no_record_parse=True):
                block = record.raw_stream.read()
                fields = record.rec_headers.headers
                own = next(ours)
                assert list(own.headers) == fields
                assert own.block() == block
                values = dict(fields)
                assert values["WARC-Block-Digest"] == f"sha256:{hashlib.sha256(block).hexdigest()}"
                if record.rec_type == "warcinfo":
                    continue
                head, blank, body = block.partition(b"\r\n\r\n")
                assert blank
                assert own.payload() == body
                first_line, *lines = head.split(b"\r\n")
                headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
                assert own.http is not None
                assert own.http.headers == tuple(headers)
                digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
                assert values.get("WARC-Payload-Digest") == (digest if body else None)
                if record.rec_type == "request":
                    exchange = found[values["WARC-Concurrent-To"]]
                    assert not exchange.request_line
                    exchange.request_fields, exchange.request_body = fields, body
                    exchange.request_line, exchange.request_headers = first_line, headers
                else:
                    assert record.rec_type == "response"
                    found[values["WARC-Record-ID"]] = Exchange(fields, first_line, headers, body, block)
        assert next(ours, None) is None
    exchanges = list(found.values())
    assert all(exchange.request_line for exchange in exchanges)
    return exchanges


def values_by_name(headers: Headers, *without: bytes) -> dict[bytes, list[bytes]]:
    """The values of each name, in order; the names as they come first, in title case as Scrapy has them."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name.lower() not in CONNECTION_HEADERS | set(without):
            values.setdefault(name.title(), []).append(value)
    return values


def chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts) + end


def sized(body: bytes, *headers: tuple[bytes, bytes], **kwargs: Any) -> Answer:
    return Answer(body, headers=[*headers, (b"Content-Length", b"%d" % len(body))], **kwargs)


HTML = (b"Content-Type", b"text/html; charset=utf-8")
CHUNKED = (b"Transfer-Encoding", b"chunked")
SITE = {
    "/plain": sized(TEXT, HTML, (b"Server", b"raw"), (b"ETag", b'"1"')),
    "/gzip": sized(gzip.compress(TEXT, mtime=0), HTML, (b"Content-Encoding", b"gzip")),
    "/deflate": sized(zlib.compress(TEXT), HTML, (b"Content-Encoding", b"deflate")),
    "/br": sized(BROTLI, HTML, (b"Content-Encoding", b"br")),
    "/zstd": sized(ZSTD, HTML, (b"Content-Encoding", b"zstd")),
    "/chunked": Answer(
        TEXT,
        headers=[HTML, CHUNKED, (b"Trailer", b"X-Sum"), (b"X-After", b"1")],
        wire=chunks(TEXT[:7], TEXT[7:500], TEXT[500:], end=b"0\r\nX-Sum: 12\r\n\r\n"),
    ),
    "/chunked-gzip": Answer(
        gzip.compress(TEXT, mtime=0),
        headers=[HTML, CHUNKED, (b"Content-Encoding", b"gzip")],
        wire=chunks(gzip.compress(TEXT, mtime=0)),
    ),
    "/binary": sized(BINARY, (b"Content-Type", b"application/octet-stream")),
    "/empty": sized(b"", HTML),
    "/head": Answer(headers=[HTML, (b"Content-Length", b"500")]),
    "/head-without-length": Answer(headers=[HTML]),
    "/204": Answer(status=b"204 No Content", headers=[(b"X-Why", b"nothing")]),
    "/206": sized(TEXT[:100], HTML, (b"Content-Range", b"bytes 0-99/1500"), status=b"206 Partial Content"),
    "/304": Answer(status=b"304 Not Modified", headers=[(b"ETag", b'"1"')]),
    "/early": sized(
        TEXT,
        HTML,
        before=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-Early: 1\r\n\r\n",
    ),
    "/connection": sized(
        TEXT, HTML, (b"Connection", b"keep-alive"), (b"Keep-Alive", b"timeout=5"), (b"Upgrade", b"h2c")
    ),
    "/ended-by-connection": Answer(TEXT, headers=[HTML], closes=True),
    "/http10": Answer(TEXT, headers=[HTML], version=b"HTTP/1.0", closes=True),
    "/cookies": sized(
        TEXT,
        (b"Set-Cookie", b"a=1; path=/; expires=Sat, 28 Nov 2099 10:00:00 GMT"),
        (b"X-Between", b"1"),
        (b"set-cookie", b"b=2; path=/"),
        (b"SET-COOKIE", b"a=3; path=/other"),
        (b"X-Between", b"2, 3"),
    ),
    "/values": sized(
        TEXT,
        (b"X-Empty", b""),
        (b"X-Utf8", "Größe 20 €".encode()),
        (b"X-Colon", b"a: b: c"),
        (b"X-Long", b"v" * 6_000),
        (b"X-Odd_name.1", b"'\"\\"),
    ),
    "/folded": Answer(
        TEXT,
        headers=[(b"X-Folded", b"one two\tthree"), (b"Content-Length", b"%d" % len(TEXT))],
        fields=b"X-Folded: one\r\n two\r\n\tthree\r\nContent-Length: %d\r\n" % len(TEXT),
    ),
    "/410": sized(TEXT, HTML, status=b"410 Gone, and not coming back"),
    "/500": sized(TEXT, HTML, status=b"500 Internal Server Error"),
    "/599": sized(TEXT, HTML, status=b"599 Own Status"),
    LONG: sized(TEXT, HTML),
    ODD: sized(TEXT, HTML),
}
HEADS = {"/head", "/head-without-length"}
BODIES = {path for path in SITE if path not in {*HEADS, "/204", "/304"}}


class RawSpider(scrapy.Spider):
    """Asks for ``requests``, one after the other; takes every status as an answer."""

    name = "raw"
    requests: list[scrapy.Request] = []

    def start_requests(self) -> Any:
        self.failures: list[Any] = []
        for request in self.requests:
            yield request.replace(errback=self.failures.append, dont_filter=True)

    async def start(self) -> Any:
        for request in self.start_requests():
            yield request

    def parse(self, response: Any, **kwargs: Any) -> None:
        pass


async def record(
    folder: Path,
    requests: list[scrapy.Request],
    client: str,
    *,
    spider: type[RawSpider] = RawSpider,
    **settings: Any,
) -> scrapy.crawler.Crawler:
    values = {
        "DEDUPE_STORE_URL": f"sqlite:///{folder / 'dedupe.sqlite'}",
        "DEDUPE_WARC_DIR": str(folder / "warcs"),
        "DEDUPE_WARC_REVISIT": False,
        "DOWNLOAD_HANDLERS": {"http": client, "https": client},
        "CONCURRENT_REQUESTS": 1,
        "REDIRECT_ENABLED": False,
        "RETRY_ENABLED": False,
        "HTTPERROR_ALLOW_ALL": True,
        "TELNETCONSOLE_ENABLED": False,
        "DOWNLOAD_TIMEOUT": 20,
        "URLLENGTH_LIMIT": 0,
        "LOG_LEVEL": "DEBUG",
    }
    return await crawl(spider, {**values, **settings}, requests=requests)


def assert_same_request(exchange: Exchange, asked: Asked, client: str) -> None:
    """The record holds what the server received, as far as somebody outside the client can know it."""
    without: tuple[bytes, ...] = ()
    if client == AIOHTTP:
        # It sends some characters without their percent-encoding, and tells the length of an empty body.
        assert unquote_to_bytes(exchange.request_line) == unquote_to_bytes(asked.line)
        without = () if asked.body else (b"content-length",)
    else:
        # With an old w3lib Scrapy leaves out the slash of an empty path, which is no HTTP.
        assert exchange.request_line == asked.line.replace(b" ?", b" /?", 1)
    received = values_by_name(asked.headers, *without)
    assert values_by_name(exchange.request_headers, *without) == received
    assert exchange.request_body == asked.body


@dataclass
class Recorded:
    """The site after a crawl: what was asked for and what was recorded, by the path and query that were sent."""

    base: str
    asked: dict[str, Asked]
    exchanges: dict[str, Exchange]


_recorded: dict[str, Recorded] = {}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp


async def recorded(client: str, folder_of: Any) -> Recorded:
    """The whole site, crawled once with each client."""
    if client not in _recorded:
        folder = folder_of("exchanges")
        with RawServer() as server:
            server.answers.update(SITE)
            requests = [
                scrapy.Request(server.url(path), method="HEAD" if path in HEADS else "GET") for path in SITE
            ]
            crawler = await record(folder, requests, client)
            assert crawler.spider.failures == []
            asked = dict(zip(SITE, server.asked, strict=True))
            exchanges = dict(zip(SITE, exchanges_of(folder / "warcs"), strict=True))
            _recorded[client] = Recorded(server.url(""), asked, exchanges)
    return _recorded[client]


@every_client
@crawl_test
async def test_every_body_is_stored_as_it_was_sent(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, answer in SITE.items():
        assert site.exchanges[path].body == answer.body, path


@every_client
@crawl_test
async def test_every_header_value_is_stored_in_its_order(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, answer in SITE.items():
        headers = answer.headers
        if client == HTTPX:  # It folds with spaces alone.
            headers = [(name, value.replace(b"\t", b" ")) for name, value in headers]
        sent = values_by_name(headers, b"content-length")
        stored = values_by_name(site.exchanges[path].headers, b"content-length")
        assert stored == sent, path
        assert list(stored) == list(sent), path
        assert not {name.lower() for name, _ in site.exchanges[path].headers} & CONNECTION_HEADERS


@every_client
@crawl_test
async def test_content_length_is_true_or_that_of_the_server(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, exchange in site.exchanges.items():
        lengths = [value for name, value in exchange.headers if name == b"Content-Length"]
        if path in BODIES:
            assert lengths == [b"%d" % len(exchange.body)], path
        else:
            sent = [value for name, value in SITE[path].headers if name == b"Content-Length"]
            assert lengths == sent, path


@every_client
@crawl_test
async def test_the_status_line_has_the_version_and_the_status(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, answer in SITE.items():
        assert site.exchanges[path].first_line.startswith(answer.version + b" %d " % answer.code), path
    assert site.exchanges["/410"].first_line == b"HTTP/1.1 410 Gone"
    assert site.exchanges["/599"].first_line == b"HTTP/1.1 599 "


@every_client
@crawl_test
async def test_the_fields_of_a_record_say_what_happened(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, exchange in site.exchanges.items():
        assert exchange.get("WARC-Target-URI") == site.base + path
        assert exchange.get("WARC-Protocol") == ("http/1.0" if path == "/http10" else "http/1.1")
        assert exchange.get("WARC-Truncated") is None, path
        assert exchange.get("Content-Type") == "application/http; msgtype=response"
        # Before 2.19 Twisted's client does not tell the address when there is no body.
        if exchange.body or scrapy.version_info >= (2, 19):
            assert exchange.get("WARC-IP-Address") == "127.0.0.1", path
        request = dict(exchange.request_fields)
        for name in ("WARC-Target-URI", "WARC-Date", "WARC-Warcinfo-ID"):
            assert request[name] == exchange.get(name)
        assert request["Content-Type"] == "application/http; msgtype=request"


@every_client
@crawl_test
async def test_requests_are_recorded_as_the_server_received_them(client: str, folder_of: Any) -> None:
    site = await recorded(client, folder_of)
    for path, exchange in site.exchanges.items():
        asked = site.asked[path]
        assert_same_request(exchange, asked, client)
        assert exchange.request_body == b""


@needs_reactor
@crawl_test
async def test_bytes_that_are_no_utf8_are_kept_in_header_values(tmp_path: Path) -> None:
    latin = sized(TEXT, (b"X-Size", b"20 \xa4 caf\xe9"), (b"X-Raw", bytes(range(128, 256))))
    with RawServer() as server:
        server.answers["/"] = latin
        await record(tmp_path, [scrapy.Request(server.url())], HTTP11)
    (exchange,) = exchanges_of(tmp_path / "warcs")
    assert values_by_name(exchange.headers, b"content-length") == values_by_name(
        latin.headers, b"content-length"
    )


@every_client
@pytest.mark.parametrize(
    "fields", [b"X-A: a\rInjected: b\r\n", b"X-A\xe9: a\r\n", b"X A: a\r\n", b"X-A: a\x00b\r\n"]
)
@crawl_test
async def test_a_malformed_header_never_becomes_another_one(
    client: str, fields: bytes, tmp_path: Path
) -> None:
    with RawServer() as server:
        server.answers["/"] = Answer(TEXT, fields=fields + b"Content-Length: %d\r\n" % len(TEXT), closes=True)
        server.answers["/fine"] = sized(TEXT)
        await record(tmp_path, [scrapy.Request(server.url(path)) for path in ("/", "/fine")], client)
    # Most of them Scrapy's clients refuse, and a refused response is no exchange.
    exchanges = {exchange.target: exchange for exchange in exchanges_of(tmp_path / "warcs")}
    assert b"/fine" in exchanges
    if b"/" in exchanges:
        assert exchanges[b"/"].body == TEXT
        assert {name for name, _ in exchanges[b"/"].headers} == {b"X-A", b"Content-Length"}


@every_client
@crawl_test
async def test_any_url_is_recorded_as_it_was_sent(client: str, tmp_path: Path) -> None:
    paths = [
        "/with space and\ttab",
        '/"quotes"/\'more\'?q="x"&y=<z>',
        "/größe/日本?q=ü&r=€",
        "/line\r\nSet-Cookie: x=1",
        "/%0d%0aSet-Cookie:%20x=1?%0a",
        "/brackets[1]{2}|^`",
        "/fragment?q=1#part",
        "/params;a=1;b?c;d",
        "?only=query",
    ]
    with RawServer() as server:
        requests = [scrapy.Request(server.url(path)) for path in paths]
        await record(tmp_path, requests, client)
        base, asked = server.url(""), server.asked
    exchanges = exchanges_of(tmp_path / "warcs")
    assert len(exchanges) == len(paths)
    for exchange, received in zip(exchanges, asked, strict=True):
        assert_same_request(exchange, received, client)
        uri = exchange.get("WARC-Target-URI")
        assert uri is not None
        assert uri.isascii()
        assert not set(uri) & set(' "<>#')
        assert uri.replace(base + "?", base + "/?") == base + exchange.target.decode()


@needs_reactor
@pytest.mark.skipif(scrapy.version_info < (2, 19), reason="Scrapy sends URLs verbatim since 2.19")
@crawl_test
async def test_a_url_that_is_sent_verbatim_is_verbatim_in_the_request_only(tmp_path: Path) -> None:
    with RawServer() as server:
        url = server.url('/a"<b>?q=%7e|')
        await record(tmp_path, [scrapy.Request(url, meta={"verbatim_url": True})], HTTP11)
        (asked,) = server.asked
    (exchange,) = exchanges_of(tmp_path / "warcs")
    assert asked.line == exchange.request_line == b'GET /a"<b>?q=%7e| HTTP/1.1'
    assert exchange.get("WARC-Target-URI") == server.url("/a%22%3Cb%3E?q=%7e|")


@every_client
@crawl_test
async def test_methods_and_bodies_are_recorded_as_they_were_sent(client: str, tmp_path: Path) -> None:
    with RawServer() as server:
        url = server.url("/form")
        server.answers["/form"] = sized(TEXT, HTML)
        requests = [
            FormRequest(url, formdata={"name": "Möwe", "ring": "A 1&2"}),
            JsonRequest(url, data={"ring": ["A1", None]}),
            scrapy.Request(url, method="PUT", body=BINARY[:300_000], headers={"Content-Type": "image/x-raw"}),
            scrapy.Request(url, method="PATCH", body=b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            scrapy.Request(url, method="POST"),
            scrapy.Request(url, method="PUT"),
            scrapy.Request(url, method="DELETE"),
            scrapy.Request(url, method="OPTIONS"),
            scrapy.Request(url, headers={"Host": "other.example", "Cookie": "a=1", "X-Two": ["1", "2"]}),
        ]
        crawler = await record(tmp_path, requests, client)
        assert crawler.spider.failures == []
    exchanges = exchanges_of(tmp_path / "warcs")
    assert len(exchanges) == len(requests)
    for exchange, asked, request in zip(exchanges, server.asked, requests, strict=True):
        assert_same_request(exchange, asked, client)
        assert exchange.request_body == request.body
        digest = f"sha256:{hashlib.sha256(request.body).hexdigest()}" if request.body else None
        assert dict(exchange.request_fields).get("WARC-Payload-Digest") == digest
        assert exchange.body == TEXT


@every_client
@crawl_test
async def test_redirects_are_exchanges_of_their_own(client: str, tmp_path: Path) -> None:
    visits = iter([302, 200])

    def to_itself(asked: Asked) -> Answer:
        if next(visits) == 200:
            return sized(TEXT, HTML)
        headers = [(b"Location", b"/itself"), (b"Set-Cookie", b"seen=1")]
        return sized(b"", *headers, status=b"302 Found")

    with RawServer() as server:
        codes = (301, 302, 303, 307, 308)
        for code in codes:
            server.answers[f"/{code}"] = sized(b"moved", (b"Location", b"/end"), status=b"%d Moved" % code)
        server.answers["/itself"] = to_itself
        server.answers["/end"] = sized(TEXT, HTML)
        requests = [scrapy.Request(server.url(f"/{code}"), method="POST", body=b"a=1") for code in codes]
        requests.append(scrapy.Request(server.url("/itself")))
        await record(tmp_path, requests, client, REDIRECT_ENABLED=True)
    exchanges = exchanges_of(tmp_path / "warcs")
    assert len(exchanges) == len(server.asked)
    for exchange, asked in zip(exchanges, server.asked, strict=True):
        assert_same_request(exchange, asked, client)
    found = {exchange.target: exchange for exchange in exchanges}
    for code in codes:
        assert found[b"/%d" % code].code == code
        assert found[b"/%d" % code].body == b"moved"
        assert (b"Location", b"/end") in found[b"/%d" % code].headers
    assert [exchange.code for exchange in exchanges if exchange.target == b"/itself"] == [302, 200]
    assert found[b"/end"].body == TEXT


@every_client
@crawl_test
async def test_retries_robots_txt_and_files_are_recorded(client: str, tmp_path: Path) -> None:
    visits = iter([503, 429, 200])

    def busy(asked: Asked) -> Answer:
        code = next(visits)
        return sized(b"visit %d" % code, status=b"%d Whatever" % code)

    class Downloading(RawSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"file_urls": [response.urljoin("/file.bin")]}

    with RawServer() as server:
        server.answers["/robots.txt"] = sized(
            b"User-agent: *\nDisallow: /no", (b"Content-Type", b"text/plain")
        )
        server.answers["/busy"] = busy
        server.answers["/file.bin"] = sized(BINARY[:50_000], (b"Content-Type", b"application/octet-stream"))
        settings = {
            "DEDUPE_STORE_URL": f"sqlite:///{tmp_path / 'dedupe.sqlite'}",
            "DEDUPE_WARC_DIR": str(tmp_path / "warcs"),
            "DOWNLOAD_HANDLERS": {"http": client},
            "CONCURRENT_REQUESTS": 1,
            "TELNETCONSOLE_ENABLED": False,
            "ROBOTSTXT_OBEY": True,
            "RETRY_TIMES": 2,
            "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
            "FILES_STORE": str(tmp_path / "files"),
        }
        requests = [scrapy.Request(server.url(path)) for path in ("/busy", "/no")]
        await crawl(Downloading, settings, requests=requests)
    exchanges = exchanges_of(tmp_path / "warcs")
    seen = [(exchange.target, exchange.code) for exchange in exchanges]
    assert seen == [
        (b"/robots.txt", 200),
        (b"/busy", 503),
        (b"/busy", 429),
        (b"/busy", 200),
        (b"/file.bin", 200),
    ]
    assert [exchange.body for exchange in exchanges[1:4]] == [b"visit 503", b"visit 429", b"visit 200"]
    assert exchanges[-1].body == BINARY[:50_000]
    for exchange, asked in zip(exchanges, server.asked, strict=True):
        assert_same_request(exchange, asked, client)


@every_client
@crawl_test
async def test_a_body_that_was_cut_by_the_server_says_so(client: str, tmp_path: Path) -> None:
    with RawServer() as server:
        server.answers["/short"] = Answer(TEXT, headers=[HTML, (b"Content-Length", b"99999")], closes=True)
        server.answers["/chunks"] = Answer(
            TEXT, headers=[HTML, CHUNKED], wire=chunks(TEXT, end=b""), closes=True
        )
        server.answers["/nothing"] = Answer(headers=[HTML, (b"Content-Length", b"99999")], closes=True)
        requests = [scrapy.Request(server.url(path)) for path in server.answers]
        await record(tmp_path, requests, client, DOWNLOAD_FAIL_ON_DATALOSS=False)
    short, cut, nothing = exchanges_of(tmp_path / "warcs")
    for exchange, body in ((short, TEXT), (cut, TEXT), (nothing, b"")):
        assert exchange.get("WARC-Truncated") == "disconnect"
        assert exchange.body == body
        assert (b"Content-Length", b"%d" % len(body)) in exchange.headers
        assert "WARC-Truncated" not in dict(exchange.request_fields)


@every_client
@crawl_test
async def test_downloads_that_fail_are_no_exchanges(client: str, tmp_path: Path) -> None:
    with RawServer() as server:
        server.answers["/short"] = Answer(TEXT, headers=[HTML, (b"Content-Length", b"99999")], closes=True)
        server.answers["/large"] = sized(BINARY)
        server.answers["/large-chunked"] = Answer(
            BINARY, headers=[CHUNKED], wire=chunks(BINARY[:2_000_000], BINARY[2_000_000:])
        )
        server.answers["/fine"] = sized(TEXT, HTML)
        requests = [scrapy.Request(server.url(path)) for path in server.answers]
        crawler = await record(tmp_path, requests, client, DOWNLOAD_MAXSIZE=100_000)
    (exchange,) = exchanges_of(tmp_path / "warcs")
    assert exchange.target == b"/fine"
    assert len(crawler.spider.failures) == 3


@every_client
@crawl_test
async def test_a_download_that_was_stopped_says_so(client: str, tmp_path: Path) -> None:
    class Stopping(RawSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.stop_body, scrapy.signals.bytes_received)
            crawler.signals.connect(spider.stop_head, scrapy.signals.headers_received)
            return spider

        def stop_body(self, data: bytes, request: Any, spider: Any) -> None:
            if request.url.endswith("/body"):
                raise scrapy.exceptions.StopDownload(fail=False)

        def stop_head(self, headers: Any, body_length: Any, request: Any, spider: Any) -> None:
            if request.url.endswith("/head"):
                raise scrapy.exceptions.StopDownload(fail=False)
            if request.url.endswith("/failing"):
                raise scrapy.exceptions.StopDownload(fail=True)

    with RawServer() as server:
        server.answers.update(dict.fromkeys(("/body", "/head", "/failing"), sized(BINARY)))
        requests = [scrapy.Request(server.url(path)) for path in server.answers]
        await record(tmp_path, requests, client, spider=Stopping)
    body, head = exchanges_of(tmp_path / "warcs")
    assert 0 < len(body.body) < len(BINARY)
    assert BINARY.startswith(body.body)
    assert head.body == b""
    for exchange in (body, head):
        assert exchange.get("WARC-Truncated") == "length"
        assert (b"Content-Length", b"%d" % len(exchange.body)) in exchange.headers


@every_client
@crawl_test
async def test_what_did_not_come_from_the_network_is_not_recorded(client: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(TEXT)
    cache = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    with RawServer() as server:
        server.answers["/"] = sized(TEXT, HTML)
        requests = [
            scrapy.Request(server.url()),
            scrapy.Request((tmp_path / "page.html").as_uri()),
            scrapy.Request("data:text/plain,birds"),
        ]
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        await record(first, requests, client, **cache)
        crawler = await record(second, requests, client, **cache)
        assert len(server.asked) == 1
    assert crawler.stats.get_value("httpcache/hit", 0) >= 1
    assert crawler.stats.get_value("response_received_count") == 3
    assert [exchange.target for exchange in exchanges_of(first / "warcs")] == [b"/"]
    assert files_of(second / "warcs") == []


@every_client
@crawl_test
async def test_the_record_of_a_proxied_request_is_that_of_the_page(client: str, tmp_path: Path) -> None:
    with RawServer() as proxy:
        proxy.answers["http://site.example/page?q=1"] = sized(TEXT, HTML)
        address = proxy.url("").replace("http://", "http://user:s3cret@")
        request = scrapy.Request("http://site.example/page?q=1", meta={"proxy": address})
        await record(tmp_path, [request], client)
        (asked,) = proxy.asked
    password = base64.b64encode(b"user:s3cret")
    assert asked.get(b"proxy-authorization") == b"Basic " + password
    (exchange,) = exchanges_of(tmp_path / "warcs")
    assert exchange.body == TEXT
    assert exchange.get("WARC-Target-URI") == "http://site.example/page?q=1"
    assert exchange.request_line == b"GET /page?q=1 HTTP/1.1"
    assert (b"Host", b"site.example") in exchange.request_headers
    # The address that Scrapy knows is the proxy's, and the field is about the host of the URL.
    assert exchange.get("WARC-IP-Address") is None
    (path,) = files_of(tmp_path / "warcs")
    stored = gzip.decompress(path.read_bytes())
    assert b"s3cret" not in stored
    assert password not in stored


@every_client
@crawl_test
async def test_https_is_recorded_like_http(client: str, tmp_path: Path) -> None:
    with RawServer(tmp_path) as server:
        server.answers["/page?q=1"] = sized(TEXT, HTML)
        await record(tmp_path, [scrapy.Request(server.url("/page?q=1"))], client)
        (asked,) = server.asked
    (exchange,) = exchanges_of(tmp_path / "warcs")
    assert exchange.get("WARC-Target-URI") == server.url("/page?q=1")
    assert exchange.get("WARC-Protocol") == "http/1.1"
    assert exchange.body == TEXT
    assert_same_request(exchange, asked, client)


@needs_reactor
@every_client
@crawl_test
async def test_a_length_that_the_body_does_not_have_is_no_sign_of_a_rendered_response(
    client: str, tmp_path: Path
) -> None:
    length = (b"Content-Length", b"%d" % len(TEXT))
    wrong = (b"Content-Length", b"77")
    answers = {
        "/chunked": Answer(TEXT, headers=[HTML, CHUNKED, wrong], wire=chunks(TEXT), closes=True),
        "/repeated": Answer(TEXT, headers=[HTML, length, length], closes=True),
        "/repeated-in-one": Answer(
            TEXT, headers=[HTML, (length[0], b"%b, %b" % (length[1], length[1]))], closes=True
        ),
        "/zeros": Answer(TEXT, headers=[HTML, (length[0], b"00" + length[1])], closes=True),
        "/cut": Answer(TEXT[:99], headers=[HTML, length], closes=True),
        "/more": Answer(TEXT[:77], headers=[HTML, wrong], wire=TEXT, closes=True),
        "/decoded-length": Answer(
            gzip.compress(TEXT, mtime=0), headers=[HTML, (b"Content-Encoding", b"gzip"), length], closes=True
        ),
    }
    with RawServer() as server:
        server.answers.update(answers)
        requests = [scrapy.Request(server.url(path)) for path in answers]
        crawler = await record(tmp_path, requests, client, DOWNLOAD_FAIL_ON_DATALOSS=False)
        base = server.url("")
    assert crawler.stats.get_value("dedupe/warc/rendered") is None
    failed = {failure.request.url.removeprefix(base) for failure in crawler.spider.failures}
    bodies = {
        (exchange.get("WARC-Target-URI") or "").removeprefix(base): exchange.body
        for exchange in exchanges_of(tmp_path / "warcs")
    }
    # Some of these some clients refuse.
    assert failed <= {"/chunked", "/repeated", "/repeated-in-one", "/more"}
    assert bodies == {path: answer.body for path, answer in answers.items() if path not in failed}


@needs_reactor
@needs_h2
@crawl_test
async def test_http2_is_recorded_as_http11_with_its_own_protocol(tmp_path: Path) -> None:
    zipped = gzip.compress(TEXT, mtime=0)
    with Http2Server(tmp_path) as server:
        server.answers = {
            "/plain": Answer(TEXT, b"200", [(b"content-type", b"text/html"), (b"content-length", b"1500")]),
            "/gzip": Answer(
                zipped, b"200", [(b"content-type", b"text/html"), (b"content-encoding", b"gzip")]
            ),
            "/binary": Answer(BINARY, b"200", [(b"content-type", b"application/octet-stream")]),
            "/cookies": Answer(
                TEXT,
                b"200",
                [
                    (b"set-cookie", b"a=1"),
                    (b"x-empty", b""),
                    (b"set-cookie", b"b=2"),
                    (b"x-utf8", "é".encode()),
                ],
            ),
            "/early": Answer(TEXT, b"200", [(b"x-late", b"1")], before=b"103"),
            "/empty": Answer(b"", b"200", [(b"content-length", b"0")]),
            "/head": Answer(b"", b"200", [(b"content-length", b"500")]),
            "/head-of-nothing": Answer(b"", b"200", [(b"content-length", b"0")]),
            "/204": Answer(b"", b"204", [(b"x-why", b"nothing")]),
            "/304": Answer(b"", b"304", [(b"etag", b'"1"'), (b"content-length", b"500")]),
            "/404": Answer(TEXT, b"404", [(b"content-type", b"text/html")]),
            "/form?a=1&b=%C3%A9": Answer(TEXT, b"200", []),
        }
        requests = []
        for path in server.answers:
            url = server.url(path)
            if path.startswith("/form"):
                requests.append(FormRequest(url, formdata={"name": "Möwe"}))
            else:
                requests.append(scrapy.Request(url, method="HEAD" if path.startswith("/head") else "GET"))
        crawler = await record(tmp_path, requests, HTTP2)
        assert crawler.spider.failures == []
        answers, base, host = dict(server.answers), server.url(""), f"127.0.0.1:{server.port}".encode()
    exchanges = exchanges_of(tmp_path / "warcs")
    for path, exchange, asked in zip(answers, exchanges, server.asked, strict=True):
        answer = answers[path]
        assert isinstance(answer, Answer)
        assert exchange.first_line.startswith(b"HTTP/1.1 " + answer.status), path
        assert exchange.body == answer.body, path
        sent = values_by_name(answer.headers, b"content-length")
        assert values_by_name(exchange.headers, b"content-length") == sent, path
        lengths = [value for name, value in exchange.headers if name == b"Content-Length"]
        if path.startswith("/head") or answer.status in (b"204", b"304"):
            assert lengths == [value for name, value in answer.headers if name == b"content-length"], path
        else:
            assert lengths == [b"%d" % len(answer.body)], path
        assert exchange.get("WARC-Protocol") == "h2"
        assert exchange.get("WARC-IP-Address") == "127.0.0.1"
        assert exchange.get("WARC-Target-URI") == base + path
        method, target = asked.get(b":method"), asked.get(b":path")
        assert method is not None
        assert target is not None
        assert exchange.request_line == method + b" " + target + b" HTTP/1.1"
        received = [(name, value) for name, value in asked.headers if not name.startswith(b":")]
        assert values_by_name(exchange.request_headers) == values_by_name([*received, (b"host", host)]), path
        assert exchange.request_body == asked.body
