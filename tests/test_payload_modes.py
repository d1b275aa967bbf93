"""Archives of decoded payloads, as someone who opens the files sees them."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import check, files_of, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import Counts, Original, Source
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from archives import Seen
    from webserver import WebServer

    from scrapy_dedupe.stores.base import CrawlInfo


def text(name: str, numbers: int = 300) -> str:
    words = random.Random(name)
    numerals = " ".join(f"{words.getrandbits(40):x}" for _ in range(numbers))
    return f"<title>{name}</title><p>Ring numbers of birds: {numerals}"


def zipped(data: str | bytes) -> bytes:
    return gzip.compress(data.encode() if isinstance(data, str) else data, mtime=0)


PLAIN = text("reed")
CODED = {
    "/gzip": (zipped(PLAIN), "gzip"),
    "/x-gzip": (zipped(PLAIN), "X-GZip"),
    "/deflate": (zlib.compress(PLAIN.encode()), "deflate"),
    "/twice": (zipped(zlib.compress(PLAIN.encode())), "deflate, gzip"),
    "/identity": (PLAIN.encode(), "identity"),
    "/none": (PLAIN.encode(), "none"),
    "/charset": (PLAIN.encode(), "UTF-8"),
    "/nothing": (PLAIN.encode(), ""),
}
AS_THEY_CAME = {
    "/cut": (zipped(text("cut"))[:-500], "gzip"),
    "/not-coded": (text("not coded").encode(), "gzip"),
    "/unknown": (text("unknown").encode(), "unheard-of"),
    "/bomb": (zipped(text("bomb") + "x" * 400_000), "gzip"),
}
LIMIT = 200_000


def site(web: WebServer) -> None:
    web.page("/plain", PLAIN)
    for path, (body, coding) in (CODED | AS_THEY_CAME).items():
        web.page(path, body, headers=[("Content-Encoding", coding)], chunked=path == "/twice")


@pytest.fixture
def decoded(stored: dict[str, Any], web: WebServer) -> dict[str, Any]:
    """Settings of a crawl that stores decoded payloads, and a site for it."""
    site(web)
    return stored | {"DEDUPE_PAYLOAD": "decoded", "DOWNLOAD_MAXSIZE": LIMIT, "CONCURRENT_REQUESTS": 1}


def urls(web: WebServer, *paths: str) -> str:
    return " ".join(map(web.url, paths))


def principals(web: WebServer, *folders: Path) -> dict[str, Seen]:
    """The last ``response`` or ``revisit`` of each path."""
    return {
        str(record.uri).removeprefix(web.url("")): record
        for record in records_of(*folders)
        if record.type in ("response", "revisit")
    }


def headers_of(record: Seen, name: str) -> list[str]:
    return [value for header, value in record.http_headers if header == name]


def info_of(settings: dict[str, Any], crawl_id: str) -> CrawlInfo:
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        return next(info for info in index.crawls() if info.id == crawl_id)


@crawl_test
async def test_bodies_are_stored_decoded_and_the_coding_is_told_under_another_name(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path
) -> None:
    decoded["DEDUPE_WARC_REVISIT"] = False
    await crawl(LinkSpider, decoded, urls=urls(web, "/plain", *CODED))
    check(tmp_path / "warcs")
    seen = principals(web, tmp_path / "warcs")
    assert seen.keys() == {"/plain", *CODED}
    digest = "sha256:" + hashlib.sha256(PLAIN.encode()).hexdigest()
    for path, record in seen.items():
        assert record.payload == PLAIN.encode(), path
        assert record.headers["WARC-Payload-Digest"] == digest
        assert headers_of(record, "Content-Encoding") == []
        assert headers_of(record, "Content-Length") == [str(len(PLAIN))]
        assert headers_of(record, "X-Orig-Content-Encoding") == ([CODED[path][1]] if path in CODED else [])


@crawl_test
async def test_a_page_is_stored_once_however_it_is_coded(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path
) -> None:
    crawler = await crawl(LinkSpider, decoded, urls=urls(web, "/gzip", "/plain", *CODED))
    check(tmp_path / "warcs")
    seen = principals(web, tmp_path / "warcs")
    assert crawler.stats.get_value("dedupe/warc/response") == 1
    assert crawler.stats.get_value("dedupe/warc/revisit") == len(CODED) + 1
    assert {record.headers["WARC-Payload-Digest"] for record in seen.values()} == {
        "sha256:" + hashlib.sha256(PLAIN.encode()).hexdigest()
    }
    for path, record in seen.items():
        # A replay program puts this head before the decoded body.
        assert headers_of(record, "Content-Encoding") == [], path


@crawl_test
async def test_what_cannot_be_decoded_is_stored_as_it_came_and_nothing_refers_to_it(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for crawl_id in ("one", "two"):
        folder = tmp_path / crawl_id
        values = decoded | {"DEDUPE_WARC_DIR": str(folder), "DEDUPE_CRAWL_ID": crawl_id}
        crawler = await crawl(LinkSpider, values, urls=urls(web, *AS_THEY_CAME))
        check(folder)
        seen = principals(web, folder)
        assert seen.keys() == AS_THEY_CAME.keys()
        for path, record in seen.items():
            body, coding = AS_THEY_CAME[path]
            assert (record.type, record.payload) == ("response", body)
            assert headers_of(record, "Content-Encoding") == [coding]
            assert "WARC-Payload-Digest" not in record.headers
        assert crawler.stats.get_value("dedupe/warc/undecodable") == 4
        with open_index(decoded["DEDUPE_STORE_URL"]) as index:
            assert list(index.records(crawl_id)) == []
        assert info_of(decoded, crawl_id).counts.total_urls == 4
    assert "could not be decoded: it has more than 200000 bytes when decoded" in caplog.text
    assert "could not be decoded: its content coding 'unheard-of' is not known" in caplog.text
    # For /cut and /not-coded, in each of two crawls.
    assert caplog.text.count("could not be decoded: its gzip data is damaged or incomplete") == 2


@crawl_test
async def test_a_request_can_have_a_limit_of_its_own(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path
) -> None:
    class Limited(scrapy.Spider):
        name = "limited"

        async def start(self) -> Any:
            yield scrapy.Request(web.url("/bomb"), meta={"download_maxsize": 1_000_000})
            yield scrapy.Request(web.url("/gzip"), meta={"download_maxsize": len(PLAIN) - 1})

        def parse(self, response: Any) -> None:
            pass

    await crawl(Limited, decoded)
    seen = principals(web, tmp_path / "warcs")
    assert len(seen["/bomb"].payload) > LIMIT
    assert seen["/gzip"].payload == CODED["/gzip"][0]


@crawl_test
async def test_no_limit_at_all_is_no_error(web: WebServer, decoded: dict[str, Any], tmp_path: Path) -> None:
    web.page("/unlimited", PLAIN)

    class Unlimited(scrapy.Spider):
        name = "unlimited"

        async def start(self) -> Any:
            yield scrapy.Request(web.url("/unlimited"), meta={"download_maxsize": None})

        def parse(self, response: Any) -> None:
            pass

    crawler = await crawl(Unlimited, decoded)
    assert principals(web, tmp_path / "warcs")["/unlimited"].payload == PLAIN.encode()
    assert crawler.stats.get_value("dedupe/warc/not_archived") is None


@crawl_test
async def test_bodies_that_are_cut_or_empty_or_ranges_are_not_decoded(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/range", zipped(PLAIN), status=206, headers=[("Content-Encoding", "gzip")])
    web.page("/empty", b"", headers=[("Content-Encoding", "gzip")])

    class Stopping(LinkSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            made = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(made.stop, signal=scrapy.signals.bytes_received)
            return made

        def stop(self, data: bytes, request: Any, spider: Any = None) -> None:
            if request.url.endswith("/gzip"):
                raise scrapy.exceptions.StopDownload(fail=False)

    crawler = await crawl(Stopping, decoded, urls=urls(web, "/range", "/empty", "/gzip"))
    check(tmp_path / "warcs")
    seen = principals(web, tmp_path / "warcs")
    assert seen["/gzip"].headers["WARC-Truncated"] == "length"
    assert CODED["/gzip"][0].startswith(seen["/gzip"].payload)
    assert seen["/range"].payload == zipped(PLAIN)
    for record in seen.values():
        assert headers_of(record, "Content-Encoding") == ["gzip"]
        assert "WARC-Payload-Digest" not in record.headers
    assert crawler.stats.get_value("dedupe/warc/undecodable") is None


@crawl_test
async def test_files_and_containers_say_which_payloads_they_hold(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    for mode in ("stored", "decoded"):
        folder = tmp_path / mode
        values = stored | {
            "DEDUPE_STORE_URL": f"sqlite:///{folder}.sqlite",
            "DEDUPE_PAYLOAD": mode,
            "DEDUPE_CRAWL_ID": mode,
            "DEDUPE_WARC_DIR": str(folder),
            "DEDUPE_WACZ": True,
        }
        await crawl(LinkSpider, values, urls=urls(web, "/gzip"))
        (path,) = files_of(folder)
        info = next(iter(read_records(path))).info()
        assert info["dedupe-payload"] == mode
        assert ("X-Orig-Content-Encoding" in info["description"]) == (mode == "decoded")
        assert info_of(values, mode).payload == mode
        with zipfile.ZipFile(tmp_path / "wacz" / f"{mode}.wacz") as container:
            about = json.loads(container.read("datapackage.json"))
            pages = container.read("pages/pages.jsonl").splitlines()
        assert about.get("dedupePayload") == ("decoded" if mode == "decoded" else None)
        assert [json.loads(page)["title"] for page in pages[1:]] == ["reed"]


@pytest.mark.parametrize(("first", "second"), [("stored", "decoded"), ("decoded", "stored")])
@crawl_test
async def test_an_index_takes_one_kind_of_payloads(
    web: WebServer, stored: dict[str, Any], caplog: pytest.LogCaptureFixture, first: str, second: str
) -> None:
    site(web)
    await crawl(LinkSpider, stored | {"DEDUPE_PAYLOAD": first}, urls=urls(web, "/plain"))
    with pytest.raises(Exception, match=r"DEDUPE_PAYLOAD|Engine slot"):
        await crawl(LinkSpider, stored | {"DEDUPE_PAYLOAD": second}, urls=urls(web, "/gzip"))
    assert (
        f"holds digests of {first} payloads; this crawl computes digests of {second} payloads. Set"
        in caplog.text
    )
    assert f'DEDUPE_PAYLOAD = "{first}"' in caplog.text
    assert web.paths == ["/plain"]
    with open_index(stored["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["committed"]


@crawl_test
async def test_a_decoded_archive_is_replayed_as_the_site_was(
    web: WebServer, decoded: dict[str, Any], tmp_path: Path
) -> None:
    class Reading(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"url": response.url, "text": response.text, "type": type(response).__name__}

    asked = urls(web, "/plain", "/gzip", "/x-gzip", "/deflate", "/twice", "/bomb")
    spider, live = collecting(Reading)
    await crawl(spider, decoded, urls=asked)
    count = len(web.paths)
    spider, replayed = collecting(Reading)
    replay = {name: value for name, value in decoded.items() if name != "DEDUPE_WARC_DIR"}
    replay |= {"DEDUPE_REPLAY": str(tmp_path / "warcs" / "*.warc.gz"), "DEDUPE_WARC_ENABLED": False}
    await crawl(spider, replay, urls=asked)
    assert len(web.paths) == count

    def order(item: dict[str, Any]) -> str:
        return str(item["url"])

    assert len(live) == 5
    assert sorted(replayed, key=order) == sorted(live, key=order)
    assert {item["text"] for item in replayed} == {PLAIN}


@crawl_test
async def test_the_texts_of_a_decoded_archive_can_be_read_again(
    web: WebServer,
    decoded: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web.page("/near", zipped(PLAIN + " and a warbler"), headers=[("Content-Encoding", "gzip")])
    await crawl(LinkSpider, decoded, urls=urls(web, "/gzip", "/near"))
    monkeypatch.chdir(tmp_path)
    words = ["--store", decoded["DEDUPE_STORE_URL"], "--warc-dir", decoded["DEDUPE_WARC_DIR"]]
    assert main(["content", "explain", *words, web.url("/near"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["texts"]
    assert found["kind"] == "near"
    assert "warbler" in str(found["diff"]["lines"])


class Unfinished(LinkSpider):
    """Stops as Ctrl-C does, after the last page."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        if response.url.endswith("/last"):
            raise scrapy.exceptions.CloseSpider("shutdown")


@crawl_test
async def test_a_lost_index_is_made_anew_with_the_payloads_of_the_files(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(web)
    web.page("/last", text("last"))
    settings |= {"DEDUPE_PAYLOAD": "decoded", "DEDUPE_CRAWL_ID": "lake", "DOWNLOAD_MAXSIZE": LIMIT}
    asked = urls(web, "/gzip", "/deflate", *AS_THEY_CAME, "/last")
    await crawl(Unfinished, settings | {"CONCURRENT_REQUESTS": 1}, urls=asked)
    before = info_of(settings, "lake")
    assert before.state == "uncommitted"
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'another.sqlite'}"
    with open_index(store):
        pass
    settings["DEDUPE_STORE_URL"] = store
    assert main(["commit", "--store", store, "--warc-dir", str(tmp_path / "warcs"), "lake"]) == 0
    after = info_of(settings, "lake")
    assert (after.state, after.payload, after.counts) == ("committed", "decoded", before.counts)
    with open_index(store) as index:
        digests = {original.digest for original in index.records("lake")}
    # What was stored as it came is no original after that either.
    assert digests == {hashlib.sha256(page.encode()).hexdigest() for page in (PLAIN, text("last"))}


def imported(settings: dict[str, Any], *originals: Original) -> None:
    """Import a source with these originals."""
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        source = Source("theirs.wacz", "theirs", "https://example.com/theirs.wacz", True, "ab" * 32, 9_000)
        index.begin_source(source, "stored")
        index.add_imported(source, originals)
        index.end_source(source, Counts(total_urls=len(originals)))


def original(name: str, **values: Any) -> Original:
    return Original(
        digest=hashlib.sha256(text(name).encode()).hexdigest(),
        crawl="theirs",
        date="20260801120000",
        url=f"https://example.com/{name}",
        size=5_000,
        file="https://example.com/theirs.wacz/archive/a.warc.gz",
        offset=0,
        **values,
    )


@crawl_test
async def test_a_revisit_writes_the_digest_as_its_imported_original_does(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("usual", "hyphen", "base32", "gone"):
        web.page(f"/{name}", text(name))
    imported(
        stored,
        original("usual"),
        original("hyphen", form="sha-256 hex"),
        original("base32", form="sha256 base32"),
        original("gone", status=404),
    )
    await crawl(LinkSpider, stored, urls=urls(web, "/usual", "/hyphen", "/base32", "/gone"))
    check(tmp_path / "warcs")
    seen = principals(web, tmp_path / "warcs")
    usual, hyphen, base32 = (seen[path] for path in ("/usual", "/hyphen", "/base32"))
    for record in (usual, hyphen, base32):
        assert record.type == "revisit"
        assert record.headers["WARC-Refers-To-Container"] == "file://theirs.wacz"
    hexes = {name: hashlib.sha256(text(name).encode()).hexdigest() for name in ("usual", "hyphen")}
    assert usual.headers["WARC-Payload-Digest"] == f"sha256:{hexes['usual']}"
    assert hyphen.headers["WARC-Payload-Digest"] == f"sha-256:{hexes['hyphen']}"
    assert len(base32.headers["WARC-Payload-Digest"]) == len("sha256:") + 52
    # It was answered with another status, as which replay programs might show the page.
    assert seen["/gone"].type == "response"
    with open_index(stored["DEDUPE_STORE_URL"]) as index:
        (crawl_id,) = (info.id for info in index.crawls() if info.id != "theirs")
        assert {need.crawl for need in index.needs(crawl_id)} == {"theirs"}


@crawl_test
async def test_an_imported_original_with_another_status_serves_if_that_is_allowed(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/gone", text("gone"), status=404)
    imported(stored, original("gone", status=404))
    await crawl(LinkSpider, stored | {"DEDUPE_WARC_STATUSES": [200, 404]}, urls=urls(web, "/gone"))
    assert principals(web, tmp_path / "warcs")["/gone"].type == "revisit"
