"""A spider is run again from its archive, with the web server gone."""

from __future__ import annotations

import gzip
import json
import logging
import random
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import crawling
import pytest
import scrapy
from archives import files_of, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from programs import run_program
from scrapy.exceptions import IgnoreRequest
from scrapy.settings import Settings
from webserver import Page, WebServer

from scrapy_dedupe import Addon
from scrapy_dedupe.downloadermiddlewares import ContentDedupeMiddleware
from scrapy_dedupe.live.archive.replay import NotInArchive, ReplayMiddleware

if TYPE_CHECKING:
    from pathlib import Path


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(400))


def site(web: WebServer) -> None:
    web.page("/robots.txt", "User-agent: *\nDisallow: /secret", content_type="text/plain")
    web.page(
        "/",
        "".join(
            f'<a href="{path}">x</a>' for path in ("/moved", "/gz", "/zlib", "/gone", "/secret", "/shop")
        ),
    )
    web.page("/moved", b"", status=301, headers=[("Location", "/chunked")])
    web.page("/chunked", text("chunked"), chunked=True)
    web.page("/gz", gzip.compress(text("gz").encode()), headers=[("Content-Encoding", "gzip")])
    web.page("/zlib", zlib.compress(text("zlib").encode()), headers=[("Content-Encoding", "deflate")])
    web.page("/gone", "<p>Gone. <a href=/gone/more>x</a>", status=410)
    web.page("/secret", "<p>Not for robots.")
    web.pages["/shop"] = _shop
    web.pages["/busy"] = _busy()
    web.pages["/search"] = lambda handler: Page(text(f"found {handler.form}").encode())


def _shop(handler: Any) -> Page:
    if "basket=3" in (handler.headers["Cookie"] or ""):
        return Page(b"<p>Your basket holds 3 things.")
    return Page(
        b"", 302, [("Set-Cookie", "basket=3; Path=/"), ("Set-Cookie", "lang=de"), ("Location", "/shop")]
    )


def _busy() -> Any:
    calls = iter(range(1000))
    return lambda handler: Page(b"<p>Try again.", 503) if next(calls) == 0 else Page(text("busy").encode())


class ShopSpider(scrapy.Spider):
    """Uses most of what a spider can use."""

    name = "shop"
    base = ""
    custom_settings = {"ROBOTSTXT_OBEY": True, "RETRY_ENABLED": True, "RETRY_TIMES": 2}
    handle_httpstatus_list = [410]

    async def start(self) -> Any:
        yield scrapy.Request(self.base + "/")
        yield scrapy.Request(self.base + "/busy")
        for word in ("reed", "warbler"):
            yield scrapy.FormRequest(self.base + "/search", formdata={"q": word}, cb_kwargs={"word": word})
        yield scrapy.Request(self.base + "/gz", method="HEAD", dont_filter=True)

    def parse(self, response: Any, word: str = "") -> Any:
        yield {
            "url": response.url,
            "method": response.request.method,
            "word": word,
            "status": response.status,
            "type": type(response).__name__,
            "body": response.body,
            "headers": {name: response.headers.getlist(name) for name in response.headers},
            "ip": str(response.ip_address),
            "protocol": response.protocol,
            "redirected": response.meta.get("redirect_urls"),
            "retries": response.meta.get("retry_times"),
        }
        if isinstance(response, scrapy.http.HtmlResponse):
            yield from response.follow_all(css="a")


# What a replay cannot have: a chunked body gets a length, and a busy server is asked when it is not busy.
_VARYING = {b"Transfer-Encoding", b"Content-Length", b"Connection", b"Keep-Alive"}


def comparable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for item in items:
        headers = {name: values for name, values in item["headers"].items() if name not in _VARYING}
        found.append({**item, "headers": headers, "retries": None})
    return sorted(found, key=lambda item: (item["url"], item["method"], item["word"]))


class FormServer(WebServer):
    """Gives pages the form that was sent, as ``handler.form``."""

    def __init__(self) -> None:
        super().__init__()
        handler_class = self._server.RequestHandlerClass
        do_post = handler_class.do_GET  # type: ignore[attr-defined]

        def do_POST(handler: Any) -> None:
            read = handler.rfile.read

            def keep(length: int) -> bytes:
                data = read(length)
                handler.form = data.decode()
                handler.rfile.read = read
                return data

            handler.rfile.read = keep
            do_post(handler)

        handler_class.do_POST = do_POST  # type: ignore[attr-defined]


@pytest.fixture
def recording(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "COOKIES_ENABLED": True}


def replaying(settings: dict[str, Any], *files: object, **more: Any) -> dict[str, Any]:
    names = [str(file) for file in files]
    return {
        **settings,
        "DEDUPE_REPLAY": names,
        "DEDUPE_WARC_ENABLED": False,
        "DEDUPE_CONTENT_ENABLED": False,
        **more,
    }


async def run(
    spider: type[scrapy.Spider], settings: dict[str, Any], **arguments: Any
) -> tuple[Any, list[Any]]:
    collected, items = collecting(spider)
    crawler = await crawl(collected, settings, **arguments)
    return crawler.stats.get_stats(), items


@crawl_test
async def test_a_spider_gets_the_same_items_without_the_network(
    recording: dict[str, Any], tmp_path: Path
) -> None:
    with FormServer() as web:
        site(web)
        base = web.url("")
        first, before = await run(ShopSpider, recording, base=base)
    assert {item["status"] for item in before} == {200, 410}
    assert first["retry/count"] == 1
    assert first["robotstxt/forbidden"] == 1
    assert len(before) == 10

    # The server has gone: what is not answered from the archive fails.
    stats, after = await run(ShopSpider, replaying(recording, tmp_path / "warcs" / "*.warc.gz"), base=base)
    assert comparable(after) == comparable(before)
    assert stats["robotstxt/forbidden"] == 1
    assert stats["dedupe/replay/answered"] == first["downloader/response_count"] - first["retry/count"]
    assert "dedupe/replay/missing" not in stats
    # The page that robots.txt forbids, both times.
    assert stats["downloader/exception_count"] == first["downloader/exception_count"] == 1
    assert not [key for key in stats if key.startswith("dedupe/errors")]


async def recorded(web: WebServer, settings: dict[str, Any], folder: Path) -> list[Path]:
    own = {"DEDUPE_WARC_DIR": str(folder), "DEDUPE_CRAWL_ID": folder.name}
    await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    return files_of(folder)


class RecordSpider(LinkSpider):
    """Says where its pages come from; ``failed`` has what reached the errback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.failed: list[BaseException] = []

    async def start(self) -> Any:
        for url in self.urls.split():
            yield scrapy.Request(url, errback=self.keep_failure)

    def keep_failure(self, failure: Any) -> None:
        self.failed.append(failure.value)

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {"url": response.url, "body": response.body, "flags": response.flags, **response.meta["warc"]}
        if isinstance(response, scrapy.http.HtmlResponse):
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, errback=self.keep_failure)


def two_pages(web: WebServer) -> None:
    web.page("/", "<a href=/a>x</a><a href=/b>x</a>" + text("home"))
    web.page("/a", text("a"))
    web.page("/b", gzip.compress(text("b").encode(), mtime=0), headers=[("Content-Encoding", "gzip")])


@crawl_test
async def test_revisits_have_the_payloads_of_another_crawl(settings: dict[str, Any], tmp_path: Path) -> None:
    with WebServer() as web:
        two_pages(web)
        first = await recorded(web, settings, tmp_path / "first")
        second = await recorded(web, settings, tmp_path / "second")
        url = web.url()
    originals = {record.id for record in records_of(tmp_path / "first") if record.type == "response"}
    assert sum(record.type == "revisit" for record in records_of(tmp_path / "second")) == 3

    stats, items = await run(RecordSpider, replaying(settings, *first, *second), urls=url)
    bodies = {item["url"].rpartition("/")[2]: item["body"] for item in items}
    assert bodies == {
        "": b"<a href=/a>x</a><a href=/b>x</a>" + text("home").encode(),
        "a": text("a").encode(),
        "b": text("b").encode(),
    }
    assert {item["type"] for item in items} == {"revisit"}, "the newest capture is the answer"
    assert {item["file"] for item in items} == {str(second[0])}
    assert {item["refers_to"]["record_id"] for item in items} <= originals
    assert {item["refers_to"]["crawl"] for item in items} == {"first"}
    assert all(item["flags"] == ["replayed"] for item in items)
    assert stats["dedupe/replay/answered"] == 3


@crawl_test
async def test_a_revisit_without_its_original_is_told_and_missing(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WebServer() as web:
        two_pages(web)
        await recorded(web, settings, tmp_path / "first")
        second = await recorded(web, settings, tmp_path / "second")
        url = web.url()
    collected, items = collecting(RecordSpider)
    crawler = await crawl(collected, replaying(settings, *second), urls=url)
    assert items == []
    assert [type(error) for error in crawler.spider.failed] == [NotInArchive]
    assert url in str(crawler.spider.failed[0])
    stats = crawler.stats.get_stats()
    assert (stats["dedupe/replay/unresolved"], stats["dedupe/replay/missing"]) == (1, 1)
    (told,) = [record.getMessage() for record in caplog.records if "no file of the archive" in record.message]
    assert str(second[0]) in told


@crawl_test
async def test_what_is_missing_is_fetched_if_so_set(settings: dict[str, Any], tmp_path: Path) -> None:
    with WebServer() as web:
        two_pages(web)
        files = await recorded(web, settings, tmp_path / "first")
        web.paths.clear()
        web.page("/new", "<p>New.")
        urls = f"{web.url()} {web.url('/new')}"
        fetching = replaying(settings, *files, DEDUPE_REPLAY_MISSING="fetch")
        stats, items = await run(LinkSpider, fetching, urls=urls)
        assert web.paths == ["/new"]
    assert len(items) == 4
    assert (stats["dedupe/replay/answered"], stats["dedupe/replay/missing"]) == (3, 1)


@crawl_test
async def test_an_archive_without_robots_txt_forbids_nothing(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WebServer() as web:
        two_pages(web)
        files = await recorded(web, settings, tmp_path / "first")
        url = web.url()
    caplog.clear()
    stats, items = await run(LinkSpider, replaying(settings, *files, ROBOTSTXT_OBEY=True), urls=url)
    assert len(items) == 3
    assert (stats["dedupe/replay/answered"], stats["dedupe/replay/missing"]) == (3, 1)
    told = [
        record
        for record in caplog.records
        if record.name.startswith(("scrapy_dedupe", "scrapy.downloadermiddlewares"))
    ]
    assert not [record for record in told if record.levelno >= logging.WARNING]


def wacz(path: Path, *files: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("datapackage.json", "{}")
        for file in files:
            packed.write(file, f"archive/{file.name}", compression)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@crawl_test
async def test_a_wacz_and_a_multi_wacz_are_answered_from(
    settings: dict[str, Any], tmp_path: Path, compression: int
) -> None:
    with WebServer() as web:
        two_pages(web)
        first = await recorded(web, settings, tmp_path / "first")
        second = await recorded(web, settings, tmp_path / "second")
        url = web.url()
    one = wacz(tmp_path / "one.wacz", *first, compression=compression)
    two = wacz(tmp_path / "two.wacz", *second, compression=compression)
    _, items = await run(RecordSpider, replaying(settings, one), urls=url)
    assert len(items) == 3
    assert {item["file"] for item in items} == {f"{one}/archive/{first[0].name}"}

    manifest = tmp_path / "two.multi-wacz.json"
    resources = [{"name": file.name, "path": file.name, "size": file.stat().st_size} for file in (two, one)]
    manifest.write_text(json.dumps({"profile": "multi-wacz-package", "resources": resources}))
    _, again = await run(RecordSpider, replaying(settings, manifest), urls=url)
    assert sorted(item["body"] for item in again) == sorted(item["body"] for item in items)
    assert {item["type"] for item in again} == {"revisit"}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("*.warc.gz", "DEDUPE_REPLAY: .* matches no file"),
        ("folder", "DEDUPE_REPLAY: .* is a folder"),
        ("evil.wacz", r"DEDUPE_REPLAY: .*the name '\.\./a\.warc' in it points outside the archive"),
        ("page.html", "DEDUPE_REPLAY: .* is not a WARC, ARC or WACZ file"),
    ],
)
@crawl_test
async def test_files_that_cannot_be_read_stop_the_crawl_before_it_starts(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    sentence: str,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "page.html").write_text("<p>Hello.")
    with zipfile.ZipFile(tmp_path / "evil.wacz", "w") as packed:
        packed.writestr("../a.warc", b"")
    two_pages(web)
    with pytest.raises(Exception):  # noqa: B017 - Scrapy hides ours behind its own
        await crawl(LinkSpider, replaying(settings, tmp_path / name), urls=web.url())
    assert web.paths == []
    (told,) = [record.getMessage() for record in caplog.records if "does not start" in record.message]
    assert str(tmp_path / name) in told
    assert pytest.raises(AssertionError, match=sentence).matches(AssertionError(told))


@crawl_test
async def test_damaged_places_are_told_and_the_rest_is_answered(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WebServer() as web:
        two_pages(web)
        (file,) = await recorded(web, settings, tmp_path / "first")
        url = web.url()
    file.write_bytes(file.read_bytes()[:-30])
    stats, items = await run(RecordSpider, replaying(settings, file), urls=url)
    assert len(items) >= 2
    assert stats["dedupe/replay/damaged"] == 1
    assert any(f"{file}, offset" in record.getMessage() for record in caplog.records)


@crawl_test
async def test_an_archive_that_goes_away_before_it_is_read_ends_the_crawl(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with WebServer() as web:
        two_pages(web)
        (file,) = await recorded(web, settings, tmp_path / "first")
        url = web.url()

    class Removing(RecordSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            # Called after the files were looked at, and before they are read.
            crawler.signals.connect(cls.remove, signal=scrapy.signals.spider_opened)
            return super().from_crawler(crawler, *args, **kwargs)

        @staticmethod
        def remove() -> None:
            file.unlink(missing_ok=True)

    collected, items = collecting(Removing)
    crawler = await crawl(collected, replaying(settings, file), urls=url)
    stats = crawler.stats.get_stats()
    assert items == []
    assert stats["finish_reason"] == "dedupe_replay_error"
    assert stats["dedupe/errors/replay"] == 1


class ConditionalSpider(scrapy.Spider):
    name = "conditional"
    url = ""
    handle_httpstatus_list = [304]

    async def start(self) -> Any:
        yield scrapy.Request(self.url, dont_filter=True)
        yield scrapy.Request(self.url, headers={"If-None-Match": '"1"'}, dont_filter=True)

    def parse(self, response: Any) -> Any:
        yield {"status": response.status, "size": len(response.body)}


@crawl_test
async def test_only_a_conditional_request_gets_that_nothing_was_modified(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    def tagged(handler: Any) -> Page:
        if handler.headers["If-None-Match"] == '"1"':
            return Page(b"", 304, [("ETag", '"1"')])
        return Page(text("tagged").encode(), headers=[("ETag", '"1"')])

    with WebServer() as web:
        web.pages["/"] = tagged
        one_by_one = {"CONCURRENT_REQUESTS": 1, "DOWNLOAD_DELAY": 0.01}
        _, before = await run(ConditionalSpider, {**settings, **one_by_one}, url=web.url())
        url = web.url()
    assert sorted(item["status"] for item in before) == [200, 304]
    _, after = await run(ConditionalSpider, replaying(settings, tmp_path / "warcs" / "*.gz"), url=url)
    assert sorted(map(str, after)) == sorted(map(str, before))


@crawl_test
async def test_an_answer_is_no_larger_than_a_download_may_be(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WebServer() as web:
        web.page("/", "<a href=/large>x</a>" + text("home"))
        web.page("/large", text("large") * 20)
        files = await recorded(web, settings, tmp_path / "first")
        url = web.url()
    limited = replaying(settings, *files, DOWNLOAD_MAXSIZE=20_000)
    stats, items = await run(RecordSpider, limited, urls=url)
    assert [item["url"] for item in items] == [url]
    assert stats["dedupe/replay/missing"] == 1
    assert "DOWNLOAD_MAXSIZE allows 20000" in caplog.text


@pytest.mark.skipif(
    crawling.reactorless, reason="Scrapy's client without a reactor heeds the setting and the request alone"
)
@pytest.mark.filterwarnings(
    "ignore:The 'download_maxsize' spider attribute:scrapy.exceptions.ScrapyDeprecationWarning"
)
@crawl_test
async def test_what_a_spider_could_download_it_can_replay(settings: dict[str, Any], tmp_path: Path) -> None:
    class Patient(RecordSpider):
        download_maxsize = 30_000

    # To the last byte: the head of an answer does not count.
    large = "x" * 30_000
    limited = settings | {"DOWNLOAD_MAXSIZE": 20_000}
    with WebServer() as web:
        web.page("/", large)
        _, before = await run(Patient, limited, urls=web.url())
        url = web.url()
    stats, after = await run(Patient, replaying(limited, *files_of(tmp_path / "warcs")), urls=url)
    assert [item["url"] for item in before] == [item["url"] for item in after] == [url]
    assert stats["dedupe/replay/answered"] == 1


@crawl_test
async def test_the_url_of_an_answer_has_no_fragment(settings: dict[str, Any], tmp_path: Path) -> None:
    with WebServer() as web:
        two_pages(web)
        files = await recorded(web, settings, tmp_path / "first")
        url = web.url("/a")
    _, items = await run(RecordSpider, replaying(settings, *files), urls=f"{url}#part")
    assert [item["url"] for item in items] == [url]


@pytest.mark.parametrize(
    ("value", "sentence"), [("", "DEDUPE_REPLAY"), ("http://example.org/x.wacz", "is a URL")]
)
@crawl_test
async def test_what_names_no_file_does_not_send_a_replay_to_the_network(
    value: str, sentence: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match=sentence):
        await crawl(LinkSpider, settings | {"DEDUPE_REPLAY": value})


@crawl_test
async def test_a_body_that_was_cut_is_marked_as_cut_again(settings: dict[str, Any], tmp_path: Path) -> None:
    class Stopping(RecordSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            crawler.signals.connect(cls.stop, signal=scrapy.signals.headers_received)
            return super().from_crawler(crawler, *args, **kwargs)

        @staticmethod
        def stop() -> None:
            raise scrapy.exceptions.StopDownload(fail=False)

        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"flags": [flag for flag in response.flags if not flag.startswith("dedupe")]}

    with WebServer() as web:
        two_pages(web)
        _, before = await run(Stopping, settings, urls=web.url())
        url = web.url()
    _, after = await run(Stopping, replaying(settings, *files_of(tmp_path / "warcs")), urls=url)
    assert before == [{"flags": ["download_stopped"]}]
    assert after == [{"flags": ["replayed", "download_stopped"]}]


@crawl_test
async def test_without_the_setting_the_middleware_is_not_there(
    web: WebServer, settings: dict[str, Any]
) -> None:
    two_pages(web)
    middlewares = {"scrapy_dedupe.downloadermiddlewares.ReplayMiddleware": 950}
    stats, items = await run(LinkSpider, {**settings, "DOWNLOADER_MIDDLEWARES": middlewares}, urls=web.url())
    assert len(items) == 3
    assert not [key for key in stats if key.startswith("dedupe/replay")]


def test_the_addon_sets_the_middleware_nearest_to_the_network() -> None:
    settings = Settings({"DEDUPE_REPLAY": "a.wacz, b.warc.gz"})
    Addon().update_settings(settings)
    order = settings["DOWNLOADER_MIDDLEWARES"]
    assert order[ReplayMiddleware] > max(settings["DOWNLOADER_MIDDLEWARES_BASE"].values())
    assert order[ReplayMiddleware] > order[ContentDedupeMiddleware]
    assert issubclass(NotInArchive, IgnoreRequest)

    settings = Settings()
    Addon().update_settings(settings)
    assert ReplayMiddleware not in settings["DOWNLOADER_MIDDLEWARES"]


def test_the_shell_looks_at_archived_pages(web: WebServer, tmp_path: Path) -> None:
    two_pages(web)
    (tmp_path / "settings.py").write_text(
        "ADDONS = {'scrapy_dedupe.Addon': 500}\nTELNETCONSOLE_ENABLED = False\n"
    )
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = settings\n")

    def scrapy_says(*arguments: str) -> str:
        done = run_program("scrapy", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "one.py").write_text(
        f"import scrapy\n\n\nclass One(scrapy.Spider):\n    name = 'one'\n    start_urls = [{web.url('/b')!r}]\n\n"
        "    def parse(self, response):\n        pass\n"
    )
    scrapy_says("runspider", "--nolog", "one.py")
    show = "print(response.flags, response.css('title::text').get())"
    web.paths.clear()
    replay = "DEDUPE_REPLAY=warcs/*.warc.gz"
    said = scrapy_says("shell", "--nolog", "-s", replay, "-c", show, web.url("/b"))
    assert said.split("\n")[0] == "['replayed'] b"
    assert web.paths == []
