"""The archive layer, as someone who opens the files sees it."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import scrapy
from archives import check, files_of, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from offline.planted import Planting
from webserver import Page, WebServer

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.pipelines import WarcItem


class Text:
    """Pages that do not compress to nothing; the same name gives the same page."""

    def format(self, name: str) -> str:
        words = random.Random(name)
        body = " ".join(f"{words.getrandbits(40):x}" for _ in range(400))
        return f"<title>{name}</title><p>Ring numbers of birds seen at {name}: {body}"


TEXT = Text()


def site(web: WebServer) -> None:
    links = "".join(
        f'<a href="{path}">x</a>' for path in ("/a", "/copy-of-a", "/b", "/gone", "/moved", "/gz")
    )
    web.page("/", f"<title>Home</title>{links}" + "<p>Welcome to the lake." * 100)
    web.page("/a", TEXT.format("a"))
    web.page("/copy-of-a", TEXT.format("a"))
    web.page("/b", TEXT.format("b"), chunked=True)
    web.page("/gone", "<p>Gone." * 300, status=410)
    web.page("/moved", b"", status=302, headers=[("Location", "/b")])
    web.page(
        "/gz",
        gzip.compress(TEXT.format("zipped").encode(), mtime=0),
        headers=[("Content-Encoding", "gzip"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")],
    )


@crawl_test
async def test_two_crawls_store_each_payload_once(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    first = {**stored, "DEDUPE_WARC_DIR": str(tmp_path / "first"), "DEDUPE_CRAWL_ID": "first"}
    second = {**stored, "DEDUPE_WARC_DIR": str(tmp_path / "second"), "DEDUPE_CRAWL_ID": "second"}
    await crawl(LinkSpider, first, urls=web.url())
    crawler = await crawl(LinkSpider, second, urls=web.url())

    for folder in ("first", "second"):
        check(tmp_path / folder)
    before, after = records_of(tmp_path / "first"), records_of(tmp_path / "second")
    assert [record.type for record in before].count("warcinfo") == 1
    revisits = [record for record in before if record.type == "revisit"]
    assert len(revisits) == 1, "a and its copy were stored once"

    responses = {record.id: record for record in before if record.type == "response"}
    later = {
        record.uri.removeprefix(web.url("")): record
        for record in after
        if record.type in {"response", "revisit"}
    }
    assert {path for path, record in later.items() if record.type == "revisit"} == {
        "/",
        "/a",
        "/copy-of-a",
        "/b",
        "/gz",
    }
    assert {path for path, record in later.items() if record.type == "response"} == {"/gone", "/moved"}
    for record in later.values():
        if record.type == "revisit":
            original = responses[record.headers["WARC-Refers-To"]]
            assert record.headers["WARC-Refers-To-Target-URI"] == original.uri
            assert record.headers["WARC-Refers-To-Date"] == original.headers["WARC-Date"]
            assert record.headers["WARC-Payload-Digest"] == original.headers["WARC-Payload-Digest"]
            assert record.headers["WARC-Truncated"] == "length"
            assert record.payload == b""
    stats = crawler.stats.get_stats()
    assert stats["dedupe/warc/revisit"] == 5
    assert stats["dedupe/warc/response"] == 2
    assert stats["dedupe/warc/bytes_conserved"] > 0


@crawl_test
async def test_bodies_and_headers_are_those_that_the_server_sent(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, urls=web.url())
    seen = {
        r.uri.removeprefix(web.url("")): r for r in records_of(tmp_path / "warcs") if r.type == "response"
    }
    zipped = web.pages["/gz"]
    assert isinstance(zipped, Page)
    assert seen["/gz"].payload == zipped.body
    assert ("Content-Encoding", "gzip") in seen["/gz"].http_headers
    assert [value for name, value in seen["/gz"].http_headers if name == "Set-Cookie"] == ["a=1", "b=2"]
    chunked = web.pages["/b"]
    assert isinstance(chunked, Page)
    assert seen["/b"].payload == chunked.body
    assert not [name for name, _ in seen["/b"].http_headers if name == "Transfer-Encoding"]
    assert ("Content-Length", str(len(chunked.body))) in seen["/b"].http_headers
    assert seen["/gone"].status == "410"
    assert seen["/moved"].status == "302"


@crawl_test
async def test_each_request_names_its_principal_record(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, urls=web.url())
    principals = {}
    for record in records_of(tmp_path / "warcs"):
        if record.type in {"response", "revisit"}:
            principals[record.id] = record
        elif record.type == "request":
            principal = principals.pop(record.headers["WARC-Concurrent-To"])
            assert principal.uri == record.uri
            assert principal.headers["WARC-Date"] == record.headers["WARC-Date"]
    assert not principals


@crawl_test
async def test_a_finished_crawl_is_committed_with_its_counts_and_stats(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    await crawl(LinkSpider, {**stored, "DEDUPE_CRAWL_ID": "lake"}, urls=web.url())
    with open_index(stored["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
    files = files_of(tmp_path / "warcs")
    assert info.state == "committed"
    assert not info.incomplete
    assert info.counts.total_urls == 7
    assert info.counts.dupe_urls == 1
    assert info.counts.total_crawl_size == sum(path.stat().st_size for path in files)
    assert [Path(name) for name in info.files] == files
    assert info.stats is not None
    assert info.stats["finish_reason"] == "finished"
    json.dumps(info.stats)


@crawl_test
async def test_a_crawl_that_is_stopped_waits_for_a_decision(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    site(web)

    class Stopping(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            raise scrapy.exceptions.CloseSpider("enough")

    await crawl(Stopping, {**settings, "DEDUPE_CRAWL_ID": "lake"}, urls=web.url())
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["uncommitted"]
    assert "scrapy dedupe commit lake" in caplog.text
    assert "scrapy dedupe cancel lake" in caplog.text


@crawl_test
async def test_an_original_whose_file_is_gone_is_not_referred_to(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    await crawl(LinkSpider, settings, urls=web.url("/a"))
    for path in files_of(tmp_path / "warcs"):
        path.unlink()
    await crawl(LinkSpider, settings, urls=web.url("/a"))
    assert [r.type for r in records_of(tmp_path / "warcs")] == ["warcinfo", "response", "request"]
    assert "DEDUPE_WARC_CHECK_FILES" in caplog.text


@crawl_test
async def test_small_and_posted_bodies_are_always_stored(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/small", "<p>small")
    web.page("/form", TEXT.format("form"))

    class Posting(LinkSpider):
        async def start(self) -> Any:
            for path in ("/small", "/form"):
                for query in range(2):
                    method = "POST" if path == "/form" else "GET"
                    yield scrapy.Request(web.url(path), method=method, body=str(query), dont_filter=True)

    await crawl(Posting, settings)
    types = [record.type for record in records_of(tmp_path / "warcs")]
    assert types.count("response") == 4
    assert "revisit" not in types


@crawl_test
async def test_revisits_can_be_turned_off(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> None:
    site(web)
    await crawl(LinkSpider, {**settings, "DEDUPE_WARC_REVISIT": False}, urls=web.url())
    assert "revisit" not in {record.type for record in records_of(tmp_path / "warcs")}


@crawl_test
async def test_robots_txt_and_sha1_digests(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> None:
    site(web)
    web.page("/robots.txt", "User-agent: *\nDisallow: /b", content_type="text/plain")
    settings |= {"ROBOTSTXT_OBEY": True, "DEDUPE_WARC_DIGEST": "sha1"}
    await crawl(LinkSpider, settings, urls=web.url())
    check(tmp_path / "warcs")
    records = [record for record in records_of(tmp_path / "warcs") if record.type == "response"]
    assert web.url("/robots.txt") in {record.uri for record in records}
    assert "/b" not in web.paths
    digests = [r.headers["WARC-Payload-Digest"] for r in records if r.payload]
    assert all(digest.startswith("sha1:") and len(digest) == 37 for digest in digests)


@crawl_test
async def test_items_alone_are_archived_when_asked(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)

    class Choosing(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            for entry in super().parse(response):
                if isinstance(entry, scrapy.Request):
                    yield entry
            if response.url.endswith(("/a", "/gz")):
                yield WarcItem(response)

    await crawl(Choosing, {**settings, "DEDUPE_WARC_SCOPE": "items"}, urls=web.url())
    seen = {r.uri: r for r in records_of(tmp_path / "warcs") if r.type == "response"}
    assert set(seen) == {web.url("/a"), web.url("/gz")}
    zipped = web.pages["/gz"]
    assert isinstance(zipped, Page)
    assert seen[web.url("/gz")].payload == zipped.body, "the body as it was sent, not as the spider saw it"


@crawl_test
async def test_the_pipeline_works_alone_and_leaves_items_as_they_are(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    spider, items = collecting()
    settings["ITEM_PIPELINES"] = {"scrapy_dedupe.pipelines.WarcPipeline": 900}
    await crawl(spider, settings, addon=False, urls=web.url("/a"))
    assert items == [{"url": web.url("/a"), "kind": None}]
    check(tmp_path / "warcs")


@crawl_test
async def test_files_rotate_between_exchanges(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(12):
        web.page(f"/{number}", os.urandom(3_000), content_type="application/octet-stream")
    settings["DEDUPE_WARC_FILE_SIZE"] = 10_000
    await crawl(LinkSpider, settings, urls=" ".join(web.url(f"/{number}") for number in range(12)))
    files = files_of(tmp_path / "warcs")
    assert len(files) >= 3
    check(tmp_path / "warcs")
    for path in files:
        folder = tmp_path / path.stem
        folder.mkdir()
        path.rename(folder / path.name)
        types = [record.type for record in records_of(folder)]
        assert types[0] == "warcinfo"
        assert types[1:] == ["response", "request"] * (len(types) // 2)


@crawl_test
async def test_a_committed_id_cannot_be_crawled_again(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    settings["DEDUPE_CRAWL_ID"] = "once"
    await crawl(LinkSpider, settings, urls=web.url("/a"))
    asked = len(web.paths)
    with pytest.raises(Exception, match="DEDUPE_CRAWL_ID"):
        await crawl(LinkSpider, settings, urls=web.url("/a"))
    assert len(web.paths) == asked
    assert "DEDUPE_CRAWL_ID" in caplog.text


@crawl_test
async def test_a_job_that_goes_on_is_one_crawl(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    settings |= {
        "JOBDIR": str(tmp_path / "job"),
        "CLOSESPIDER_PAGECOUNT": 2,
        "DEDUPE_COMMIT_REASONS": ["finished"],
    }
    settings |= {"CONCURRENT_REQUESTS": 1}
    await crawl(LinkSpider, settings, urls=web.url())
    await crawl(LinkSpider, {**settings, "CLOSESPIDER_PAGECOUNT": 0}, urls=web.url())
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
    assert info.state == "committed"
    principals = [r for r in records_of(tmp_path / "warcs") if r.type in {"response", "revisit"}]
    assert info.counts.total_urls == len(principals)
    assert info.counts.total_crawl_size == sum(path.stat().st_size for path in files_of(tmp_path / "warcs"))
    check(tmp_path / "warcs")


@crawl_test
async def test_an_unwritable_folder_is_refused_at_the_start(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    settings["DEDUPE_WARC_DIR"] = str(tmp_path / "file" / "warcs")
    with pytest.raises(Exception, match=r"file/warcs|not a directory|Not a directory"):
        await crawl(LinkSpider, settings, urls=web.url())
    assert web.paths == []
    assert "The crawl does not start." in caplog.text


@crawl_test
async def test_a_revisit_names_the_url_of_an_imported_original_as_that_has_it(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    urls = {
        "plain": "http://old.example/plain",
        "accent": "http://old.example/é",
        "blank": "http://old.example/a b",
        "no-break": "http://old.example/a\u00a0",
        "control": "http://old.example/a\x01b",
    }
    old = Planting()
    old.file("old.warc.gz")
    for name, url in urls.items():
        old.exchange("old.warc.gz", name, url, TEXT.format(name).encode(), digest_form="sha256")
        web.page(f"/{name}", TEXT.format(name))
    old.write(tmp_path / "old")
    store = stored["DEDUPE_STORE_URL"]
    assert main(["import", "--store", store, str(tmp_path / "old" / "old.warc.gz")]) == 0

    await crawl(LinkSpider, stored, urls=" ".join(web.url(f"/{name}") for name in urls))

    check(tmp_path / "warcs")
    seen = {
        record.uri: record
        for record in records_of(tmp_path / "warcs")
        if record.type in ("response", "revisit")
    }
    for name in ("plain", "accent"):
        revisit = seen[web.url(f"/{name}")]
        assert revisit.type == "revisit"
        assert revisit.headers["WARC-Refers-To-Target-URI"] == urls[name]
        assert revisit.headers["WARC-Refers-To-Date"] == old.records[name].date.decode()
    # No revisit leads to these for every reader, so their payloads are stored once more.
    for name in ("blank", "no-break", "control"):
        assert seen[web.url(f"/{name}")].type == "response"
