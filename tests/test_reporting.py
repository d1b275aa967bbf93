"""The report of a crawl: what is kept in the store, and the page at the end."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from programs import Program, run_program
from webserver import Page

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.live.observers import report
from scrapy_dedupe.reports.observations import unpack
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from servers import RedisServer
    from webserver import WebServer

    from scrapy_dedupe.reports.observations import Observations


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


def kept_of(url: str) -> list[str]:
    store = open_store(url)
    try:
        return store.reports.crawls()
    finally:
        store.close()


def kept(settings: dict[str, Any], crawl_id: str) -> Observations | None:
    store = open_store(settings["DEDUPE_STORE_URL"])
    try:
        data = store.reports.load(crawl_id)
        return None if data is None else unpack(data, crawl_id)
    finally:
        store.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture
def site(web: WebServer) -> WebServer:
    """Three pages; two are equal, and one is linked to twice."""
    web.page("/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/a">3</a>')
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    return web


@crawl_test
async def test_what_was_seen_is_kept_in_the_store(site: WebServer, stored: dict[str, Any]) -> None:
    stored.update(DEDUPE_CRAWL_ID="c1", DEDUPE_ACTION_EXACT="drop", CONCURRENT_REQUESTS=1)
    crawler = await crawl(LinkSpider, stored, urls=site.url())
    seen = kept(stored, "c1")
    stats = crawler.stats.get_stats()
    assert seen.totals == {
        "requests_filtered": 1,
        "pages_judged": 3,
        "duplicates": 1,
        "dropped": 1,
        "responses": 2,
        "revisits": 1,
        "bytes_written": stats["dedupe/warc/bytes_written"],
        "bytes_conserved": stats["dedupe/warc/bytes_conserved"],
        "bytes_judged": sum(len(page.body) for page in site.pages.values()),
    }
    assert {kind: pages for kind, pages in seen.verdicts.items() if pages} == {"unique": 2, "exact": 1}
    assert seen.spider == "links"
    assert seen.stats["dedupe/url/seen"] == 3


@crawl_test
async def test_it_is_kept_with_the_index_or_else_with_the_texts(
    site: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    texts, index = (f"sqlite:///{tmp_path / name}" for name in ("texts.sqlite", "index.sqlite"))
    settings.update(DEDUPE_CONTENT_STORE_URL=texts, DEDUPE_INDEX_URL=index)
    await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": "both"}, urls=site.url())
    await crawl(
        LinkSpider,
        {**settings, "DEDUPE_CRAWL_ID": "texts", "DEDUPE_WARC_ENABLED": False},
        urls=site.url(),
    )
    await crawl(
        LinkSpider,
        {
            **settings,
            "DEDUPE_CRAWL_ID": "none",
            "DEDUPE_WARC_ENABLED": False,
            "DEDUPE_CONTENT_ENABLED": False,
        },
        urls=site.url(),
    )
    assert (kept_of(texts), kept_of(index)) == (["texts"], ["both"])


@crawl_test
async def test_without_the_addon_the_extension_is_set_by_hand(
    site: WebServer, settings: dict[str, Any]
) -> None:
    settings.update(
        DEDUPE_CRAWL_ID="c1",
        DOWNLOADER_MIDDLEWARES={"scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 543},
        EXTENSIONS={"scrapy_dedupe.extensions.ReportExtension": 500},
    )
    await crawl(LinkSpider, settings, addon=False, urls=site.url())
    seen = kept(settings, "c1")
    assert (seen.totals["pages_judged"], seen.totals["responses"], seen.totals["requests_filtered"]) == (
        3,
        0,
        0,
    )


@crawl_test
async def test_a_job_that_goes_on_adds_to_what_it_kept(
    site: WebServer, stored: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored.update(JOBDIR=str(tmp_path / "job"), DEDUPE_COMMIT_REASONS=["never"])
    for run in (1, 2):
        caplog.clear()
        await crawl(LinkSpider, stored, urls=site.url())
        assert ("of this run (the report counts all runs" in caplog.text) == (run == 2)
        (crawl_id,) = kept_of(stored["DEDUPE_STORE_URL"])
        seen = kept(stored, crawl_id)
        # The second run asks for the first page alone, and filters its three links.
        assert seen.totals["requests_filtered"] == (1 if run == 1 else 4)
        assert seen.totals["responses"] + seen.totals["revisits"] == (3 if run == 1 else 4)


KILLED = """
import scrapy_dedupe.live.observers.report
scrapy_dedupe.live.observers.report._TICK_S = 0.05
scrapy_dedupe.live.observers.report._TICKS_PER_SAVE = 1
from faults.killed_crawl import main
main()
"""


def test_after_a_kill_there_is_what_was_saved_last(
    site: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings.update(ADDONS={"scrapy_dedupe.Addon": 500}, DEDUPE_CRAWL_ID="c1", CONCURRENT_REQUESTS=1)
    is_last, is_over = threading.Event(), threading.Event()

    def answer(request: Any) -> Page:
        is_last.set()
        is_over.wait(240)
        return Page(b"<p>x")

    site.pages["/copy"] = site.pages["/a"] = answer
    process = Program("python", "-c", KILLED, json.dumps(settings), site.url(), cwd=tmp_path)
    try:
        assert is_last.wait(240)
        looking = threading.Event()
        for _ in range(5_000):
            seen = kept(settings, "c1")
            if seen is not None and seen.totals["responses"] and seen.totals["pages_judged"]:
                break
            looking.wait(0.05)
    finally:
        process.kill()
        is_over.set()
    assert (seen.totals["responses"], seen.totals["pages_judged"]) == (1, 1)
    assert seen.stats["dedupe/url/seen"] >= 1


@pytest.mark.parametrize(
    "data",
    [b"not ours", zlib.compress(b"{}"), zlib.compress(b'{"format": 99}')],
    ids=["damaged", "incomplete", "newer"],
)
@crawl_test
async def test_what_cannot_be_read_is_left_as_it_is(
    data: bytes, site: WebServer, stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(stored["DEDUPE_STORE_URL"])
    store.reports.save("c1", data)
    crawler = await crawl(LinkSpider, {**stored, "DEDUPE_CRAWL_ID": "c1"}, urls=site.url())
    stats = crawler.stats.get_stats()
    assert (stats["finish_reason"], stats["dedupe/errors/report"]) == ("finished", 1)
    assert "The observations of this run are not saved." in caplog.text
    assert "scrapy dedupe report" not in caplog.text
    assert store.reports.load("c1") == data
    store.close()


def test_a_crawl_is_kept_early_and_then_each_minute() -> None:
    due = [report._TICK_S * tick for tick in range(1, 40) if report._is_due(tick)]
    assert due == [5, 10, 20, 40, 60, 120, 180]


@crawl_test
async def test_a_store_that_is_lost_costs_the_report_alone(
    site: WebServer,
    settings: dict[str, Any],
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(report, "_TICK_S", 0.05)
    settings.update(DEDUPE_CONTENT_STORE_URL=redis_server.url, DEDUPE_WARC_ENABLED=False)

    class Stopping(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            redis_server.stop()
            yield from super().parse(response, **kwargs)

    crawler = await crawl(Stopping, settings, urls=site.url())
    stats = crawler.stats.get_stats()
    assert (stats["finish_reason"], stats["response_received_count"]) == ("finished", 3)
    assert stats["dedupe/errors/store"] >= 1
    assert "dedupe/errors/report" not in stats
    assert "scrapy dedupe report" not in caplog.text


@crawl_test
async def test_a_crawl_that_is_canceled_while_it_runs_keeps_nothing_more(
    site: WebServer, stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Canceling(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url == site.url():
                # As from another machine, where the files that are being written are not seen.
                with open_index(stored["DEDUPE_STORE_URL"]) as index:
                    index.cancel("c1")
            yield from super().parse(response, **kwargs)

    crawler = await crawl(Canceling, {**stored, "DEDUPE_CRAWL_ID": "c1"}, urls=site.url())
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert kept_of(stored["DEDUPE_STORE_URL"]) == []
    assert "The report data of the crawl c1 was deleted" in caplog.text
    assert "scrapy dedupe report" not in caplog.text


@crawl_test
async def test_two_processes_with_one_id_do_not_overwrite_each_other(
    site: WebServer, stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    stored.update(DEDUPE_WARC_ENABLED=False, DEDUPE_CRAWL_ID="c1")

    class Meeting(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            if response.url == site.url():
                store = open_store(stored["DEDUPE_STORE_URL"])
                store.reports.save("c1", b"of the other process")
                store.close()
            yield from super().parse(response, **kwargs)

    crawler = await crawl(Meeting, stored, urls=site.url())
    store = open_store(stored["DEDUPE_STORE_URL"])
    assert store.reports.load("c1") == b"of the other process"
    store.close()
    assert crawler.stats.get_value("dedupe/errors/report") == 1
    assert "Another process has saved report data under the crawl id c1." in caplog.text
    assert "scrapy dedupe report" not in caplog.text


@crawl_test
async def test_the_line_that_says_more_can_be_pasted(
    site: WebServer,
    settings: dict[str, Any],
    redis_server: RedisServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    async def more(url: str | None) -> str:
        caplog.clear()
        await crawl(
            LinkSpider, {**settings, "DEDUPE_STORE_URL": url, "DEDUPE_CRAWL_ID": None}, urls=site.url()
        )
        (line,) = [
            record.getMessage().removeprefix("  More ").strip()
            for record in caplog.records
            if record.getMessage().startswith("  More ")
        ]
        return line

    words = shlex.split(await more("sqlite:///a b.sqlite"))
    assert (words[:3], words[4:]) == (["scrapy", "dedupe", "report"], ["--store", "sqlite:///a b.sqlite"])
    done = run_program("scrapy-dedupe", *words[2:], "--json")
    assert [one["id"] for one in json.loads(done.stdout)["crawls"]] == [words[3]]
    # The default is what the command takes too.
    assert len(shlex.split(await more(None))) == 4
    # Without a password of its own the server takes any.
    url = redis_server.url.replace("redis://", "redis://default:secret@")
    words = shlex.split(await more(url))
    assert words[4:] == ["--store", redis_server.url.replace("redis://", "redis://default:***@")]
    assert "secret" not in caplog.text


# The page


@crawl_test
async def test_the_page_is_written_after_the_commit(
    site: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.update(DEDUPE_REPORT=tmp_path / "link-%(name)s", DEDUPE_CRAWL_ID="c1")
    (tmp_path / "link-links").symlink_to(tmp_path / "out" / "links.html")
    site.page(
        "/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/a?<script>alert(1)">3</a>'
    )
    await crawl(LinkSpider, settings, urls=site.url())
    assert names_in(tmp_path / "out") == ["links.html"]
    page = read(tmp_path / "out" / "links.html")
    assert "c1" in page
    assert "committed" in page
    assert "uncommitted" not in page
    assert site.url("/copy") in page
    assert "<script>alert" not in page
    *_, report, more = [
        record.getMessage().split(maxsplit=1)
        for record in caplog.records
        if record.name == "scrapy_dedupe.live.session"
    ]
    assert report == ["Report", f"{tmp_path / 'out' / 'links.html'}"]
    assert more == ["More", f"scrapy dedupe report c1 --store {settings['DEDUPE_STORE_URL']}"]


@crawl_test
async def test_the_page_says_which_crawls_this_one_needs(
    site: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": "first"}, urls=site.url())
    settings.update(DEDUPE_REPORT=str(tmp_path / "report.html"), DEDUPE_CRAWL_ID="second")
    await crawl(LinkSpider, settings, urls=site.url())
    assert "second needs first" in read(tmp_path / "report.html")


@crawl_test
async def test_the_page_says_that_not_all_was_seen(
    site: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, url: str) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(report.Observations, "filtered", fail)
    settings.update(DEDUPE_REPORT=str(tmp_path / "report.html"), DEDUPE_CRAWL_ID="c1")
    crawler = await crawl(LinkSpider, settings, urls=site.url())
    assert crawler.stats.get_value("dedupe/errors/report") == 1
    assert "Observing the crawl c1 failed at times" in read(tmp_path / "report.html")


@crawl_test
async def test_each_spider_of_a_process_has_its_page(
    site: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings.update(
        DEDUPE_REPORT=str(tmp_path / "out" / "%(name)s.html"),
        DEDUPE_WARC_ENABLED=False,
        DEDUPE_CONTENT_ENABLED=False,
    )

    class Other(LinkSpider):
        name = "a/b"

    await asyncio.gather(
        crawl(LinkSpider, settings, urls=site.url()), crawl(Other, settings, urls=site.url("/copy"))
    )
    assert names_in(tmp_path / "out") == ["a-b.html", "links.html"]


@crawl_test
async def test_a_page_that_cannot_be_written_refuses_the_start(
    site: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "report.html", "/dev/null", "a\0b"):
        with pytest.raises(SettingError, match=r"The report page .* \(DEDUPE_REPORT\) cannot be written"):
            await crawl(LinkSpider, {**settings, "DEDUPE_REPORT": path}, urls=site.url())
    assert caplog.text.count("The crawl does not start. The report page ") == 4
    assert site.paths == []


@pytest.mark.parametrize("name", ["jinja2", "vl_convert"])
@crawl_test
async def test_without_the_extra_a_page_refuses_the_start(
    name: str, site: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    await crawl(LinkSpider, settings, urls=site.url())
    with pytest.raises(SettingError, match=rf'{name}.*pip install "scrapy-dedupe\[report\]"'):
        await crawl(LinkSpider, {**settings, "DEDUPE_REPORT": tmp_path / "report.html"}, urls=site.url())


@crawl_test
async def test_a_page_that_fails_at_the_end_does_not_hurt_the_crawl(
    site: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "out"
    settings.update(DEDUPE_REPORT=folder / "report.html", DEDUPE_CRAWL_ID="c1")

    class Removing(LinkSpider):
        def closed(self, reason: str) -> None:
            folder.rmdir()

    crawler = await crawl(Removing, settings, urls=site.url())
    assert crawler.stats.get_value("dedupe/errors/report") == 1
    assert (
        f"The report page {folder / 'report.html'} cannot be written: No such file or directory."
        in caplog.text
    )
    assert f"  Report    {folder / 'report.html'} was not written" in caplog.text
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["committed"]
