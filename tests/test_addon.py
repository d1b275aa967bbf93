"""One line turns everything on; each class also works by itself."""

from __future__ import annotations

import random
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import files_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from programs import run_program
from sampling import sampled
from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import Settings, default_settings
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler
from waiting import wait_until

from scrapy_dedupe import Addon, kernel
from scrapy_dedupe.downloadermiddlewares import ContentDedupeMiddleware, ProvenanceMiddleware
from scrapy_dedupe.dupefilters import BloomDupeFilter
from scrapy_dedupe.extensions import PassageExtension
from scrapy_dedupe.live.archive.replay import ReplayMiddleware
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.pipelines import WarcPipeline
from scrapy_dedupe.settings.placement import archive_faults, misplaced, order_faults
from scrapy_dedupe.settings.specs import faults_of, unknown_names
from scrapy_dedupe.spidermiddlewares import ProvenanceSpiderMiddleware
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

BODY = "<title>Reed</title>" + "<p>The reed warbler sings by night as well." * 60


def test_the_addon_sets_the_three_classes() -> None:
    settings = Settings()
    Addon().update_settings(settings)
    assert settings["DUPEFILTER_CLASS"] is BloomDupeFilter
    assert settings["DOWNLOADER_MIDDLEWARES"][ContentDedupeMiddleware] == 543
    assert settings["DOWNLOADER_MIDDLEWARES"][ProvenanceMiddleware] == 540
    assert settings["ITEM_PIPELINES"][WarcPipeline] == 900
    assert ReplayMiddleware not in settings["DOWNLOADER_MIDDLEWARES"]
    assert ProvenanceSpiderMiddleware not in settings["SPIDER_MIDDLEWARES"]


def test_the_addon_sets_what_settings_ask_for() -> None:
    wished = {"DEDUPE_REPLAY": ["x.wacz"], "DEDUPE_WARC_ITEM_FIELD": "record"}
    settings = Settings({**wished, "DEDUPE_REPLAY_MISSING": "fetch"})
    Addon().update_settings(settings)
    assert settings["DOWNLOADER_MIDDLEWARES"][ReplayMiddleware] == 950
    assert settings["SPIDER_MIDDLEWARES"][ProvenanceSpiderMiddleware] == 950
    assert settings["ITEM_PIPELINES"][WarcPipeline] == 900


def test_the_passage_index_is_filled_when_it_is_asked_for() -> None:
    for wished in (False, True):
        settings = Settings({"DEDUPE_PASSAGES": wished})
        Addon().update_settings(settings)
        assert (PassageExtension in settings["EXTENSIONS"]) is wished


def test_what_an_archive_answers_is_not_archived_again() -> None:
    settings = Settings({"DEDUPE_REPLAY": ["x.wacz"]})
    Addon().update_settings(settings)
    assert WarcPipeline not in settings["ITEM_PIPELINES"]


def test_the_addon_leaves_what_the_project_sets() -> None:
    settings = Settings(
        {
            "DUPEFILTER_CLASS": RFPDupeFilter,
            "DOWNLOADER_MIDDLEWARES": {"scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 400},
            "ITEM_PIPELINES": {"scrapy_dedupe.pipelines.WarcPipeline": None},
        },
        priority="project",
    )
    Addon().update_settings(settings)
    assert settings["DUPEFILTER_CLASS"] is RFPDupeFilter
    assert list(settings["DOWNLOADER_MIDDLEWARES"].values()) == [400, 540]
    assert list(settings["ITEM_PIPELINES"].values()) == [None]


@pytest.mark.parametrize("layer", ["URL", "CONTENT", "WARC"])
def test_a_layer_can_be_left_out(layer: str) -> None:
    settings = Settings({f"DEDUPE_{layer}_ENABLED": "False"})
    Addon().update_settings(settings)
    enabled = {
        "URL": settings["DUPEFILTER_CLASS"] is BloomDupeFilter,
        "CONTENT": ContentDedupeMiddleware in settings["DOWNLOADER_MIDDLEWARES"],
        "WARC": WarcPipeline in settings["ITEM_PIPELINES"],
    }
    assert enabled == {name: name != layer for name in enabled}


def test_the_shell_is_left_alone(web: WebServer, tmp_path: Path) -> None:
    web.page("/", BODY)
    (tmp_path / "settings.py").write_text(
        "ADDONS = {'scrapy_dedupe.Addon': 500}\nTELNETCONSOLE_ENABLED = False\n"
    )
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = settings\n")
    done = run_program("scrapy", "shell", "--nolog", "-c", "response.status", web.url(), cwd=tmp_path)
    assert done.stdout.strip() == "200", done.stderr
    assert not (tmp_path / "warcs").exists()
    assert not (tmp_path / ".scrapy" / "dedupe").exists()


@crawl_test
async def test_all_three_layers_work_together(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web.page(
        "/", BODY + '<a href="/twin">1</a><a href="/?b=2&a=1">2</a><a href="/?a=1&b=2">3</a><a href="/">4</a>'
    )
    web.page("/twin", BODY + '<a href="/twin">1</a>')
    web.page("/?b=2&a=1", "<p>Short")
    web.page("/?a=1&b=2", "<p>Short")
    web.page("/robots.txt", "User-agent: *\nAllow: /", content_type="text/plain")
    spider, items = collecting()
    crawler = await crawl(spider, {**settings, "ROBOTSTXT_OBEY": True}, urls=web.url())
    assert sorted(web.paths) == ["/", "/?b=2&a=1", "/robots.txt", "/twin"]
    assert {item["url"].removeprefix(web.url("")): item["kind"] for item in items} == {
        "/": "unique",
        "/twin": "near",
        "/?b=2&a=1": "unique",
    }
    stats = crawler.stats.get_stats()
    assert stats["dupefilter/filtered"] == 3
    assert stats["dedupe/url/seen"] == 3
    assert stats["dedupe/warc/response"] == 4
    assert not [key for key in stats if key.startswith("dedupe/errors/")]
    assert files_of(tmp_path / "warcs")
    assert "Deduplication summary:" in caplog.text
    assert f"  Kernel    {kernel.NAME}" in caplog.text
    assert str(files_of(tmp_path / "warcs")[0]) in caplog.text


@crawl_test
async def test_the_dupefilter_works_alone(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> None:
    web.page("/", '<a href="/">1</a><a href="/x">2</a><a href="/x#y">3</a>')
    settings["DUPEFILTER_CLASS"] = "scrapy_dedupe.dupefilters.BloomDupeFilter"
    crawler = await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert sorted(web.paths) == ["/", "/x"]
    assert crawler.stats.get_value("dupefilter/filtered") == 2
    assert not files_of(tmp_path / "warcs")
    assert not (tmp_path / "dedupe.sqlite").exists()


@crawl_test
async def test_the_middleware_works_alone(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> None:
    web.page("/one", BODY)
    web.page("/two", BODY)
    settings["DOWNLOADER_MIDDLEWARES"] = {"scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 543}
    settings["CONCURRENT_REQUESTS"] = 1
    spider, items = collecting()
    await crawl(spider, settings, addon=False, urls=f"{web.url('/one')} {web.url('/two')}")
    assert [item["kind"] for item in items] == ["unique", "exact"]
    assert not files_of(tmp_path / "warcs")


@crawl_test
async def test_a_wrong_setting_stops_the_crawl_before_the_first_request(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", BODY)
    with pytest.raises(ValueError, match="DEDUPE_NEAR_THRESHOLD"):
        await crawl(LinkSpider, {**settings, "DEDUPE_NEAR_THRESHOLD": 3}, urls=web.url())
    assert "The setting DEDUPE_NEAR_THRESHOLD is 3. Allowed: a number from 0.5 to 1" in caplog.text
    assert web.paths == []


@crawl_test
async def test_a_wrong_setting_of_a_spider_is_told_too(web: WebServer, settings: dict[str, Any]) -> None:
    class Own(LinkSpider):
        custom_settings = {"DEDUPE_ACTION_NEAR": "hide"}

    with pytest.raises(ValueError, match="DEDUPE_ACTION_NEAR"):
        await crawl(Own, settings, urls=web.url())


@crawl_test
async def test_an_unknown_setting_is_warned_about_once(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", BODY)
    await crawl(LinkSpider, {**settings, "DEDUPE_WARC_DIGESTS": "sha1"}, urls=web.url())
    (message,) = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert (
        message
        == "The setting DEDUPE_WARC_DIGESTS is unknown and has no effect; did you mean DEDUPE_WARC_DIGEST?"
    )


@crawl_test
async def test_settings_of_the_archive_without_the_archive_are_warned_about(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", BODY)
    own = {**settings, "ADDONS": {"scrapy_dedupe.Addon": 500}, "DEDUPE_WARC_ENABLED": False}
    given = {"DEDUPE_WACZ": True, "DEDUPE_WARC_ITEM_FIELD": "record"}
    await crawl(LinkSpider, {**own, **given}, urls=web.url())
    for name in given:
        assert (
            f"The setting {name} has no effect, since the crawl is not archived."
            " Turn the archive on (DEDUPE_WARC_ENABLED = True), or remove the setting."
        ) in caplog.messages
    caplog.clear()
    await crawl(LinkSpider, {**own, "DEDUPE_WACZ": "False"}, urls=web.url())
    assert "has no effect" not in caplog.text


def test_a_replay_in_a_project_that_packs_its_crawls_has_no_warning() -> None:
    settings = Settings({"DEDUPE_REPLAY": ["x.wacz"], "DEDUPE_WACZ": True})
    Addon().update_settings(settings)
    assert list(archive_faults(settings)) == []


@crawl_test
async def test_a_slow_disk_slows_the_crawl_down(
    web: WebServer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 60
    for number in range(pages):
        web.page(
            f"/{number}", random.Random(number).randbytes(200_000), content_type="application/octet-stream"
        )
    sizes = []
    write = WarcWriter.write

    def slow(self: WarcWriter, records: Any) -> Any:
        # It stands still until the crawl does.
        wait_until(lambda: watched.stats.get_value("dedupe/warc/held_back"))
        sizes.append(worker.pending_bytes)
        return write(self, records)

    monkeypatch.setattr(WarcWriter, "write", slow)

    class Watching(LinkSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal watched, worker
            watched = crawler
            worker = Session.of(crawler).worker
            return super().from_crawler(crawler, *args, **kwargs)

    watched: Any = None
    worker: Any = None
    settings |= {
        "DEDUPE_WARC_QUEUE_BYTES": 1_000_000,
        "CONCURRENT_REQUESTS": 12,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 12,
        "DOWNLOAD_DELAY": 0,
    }
    crawler = await crawl(Watching, settings, urls=" ".join(web.url(f"/{number}") for number in range(pages)))
    assert crawler.stats.get_value("dedupe/warc/response") == pages
    assert crawler.stats.get_value("dedupe/warc/held_back") >= 1
    # Those that come in at one moment make room for as many before the crawl is held back.
    assert max(sizes) < 1_000_000 + 2 * 12 * 210_000, "what is on its way comes in, nothing new is asked for"


@crawl_test
async def test_several_crawls_of_one_process_do_not_share_their_state(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", BODY)
    for _ in range(2):
        crawler = await crawl(LinkSpider, settings, urls=web.url())
        assert crawler.stats.get_value("dedupe/url/seen") == 1
    assert web.paths == ["/", "/"]


def test_scrapy_finds_the_classes_by_their_names() -> None:
    for path in (
        "dupefilters.BloomDupeFilter",
        "pipelines.WarcItem",
        "downloadermiddlewares.DuplicateContent",
    ):
        assert scrapy.utils.misc.load_object(f"scrapy_dedupe.{path}")


@crawl_test
@pytest.mark.parametrize(
    ("stored", "name"),
    sampled(
        product(["sqlite", "redis"], ["новости", "新闻", "..", "{}", "100% {news}", "-"]),
        [("sqlite", "новости"), ("redis", ".."), ("redis", "{}"), ("sqlite", "100% {news}")],
    ),
    indirect=["stored"],
)
async def test_a_spider_may_have_any_name(
    name: str, web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", BODY)
    spider, items = collecting()
    spider.name = name
    values = {
        **stored,
        "DEDUPE_REPORT": str(tmp_path / "reports" / "%(name)s" / "report.html"),
        "DEDUPE_DUPLICATES_LOG": str(tmp_path / "%(name)s.jsonl"),
        "DEDUPE_METRICS_FILE": str(tmp_path / "%(name)s.prom"),
        "DEDUPE_PASSAGES": True,
        "DEDUPE_PASSAGES_DIR": str(tmp_path / "passages"),
        "JOBDIR": str(tmp_path / "job"),
    }
    crawler = await crawl(spider, values, urls=web.url())
    assert [item["kind"] for item in items] == ["unique"]
    (file,) = files_of(tmp_path / "warcs")
    begin = "100-news" if name.startswith("100") else "crawl"
    assert file.name.startswith(f"{begin}-2")
    assert Session.of(crawler).crawl_id.startswith(f"{begin}-2")
    assert not [key for key in crawler.stats.get_stats() if key.startswith("dedupe/errors/")]
    assert [path.name for path in (tmp_path / "reports").iterdir() if path.is_dir()]


@crawl_test
async def test_spiders_without_ascii_letters_share_no_url_filter(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    web.page("/", '<a href="/a">1</a>')
    web.page("/a", BODY)
    settings |= {"DEDUPE_URL_STORE_URL": redis_url, "SCHEDULER_PERSIST": True}
    for name in ("новости", "新闻", "..", "{}", "%7B%7D"):
        web.paths.clear()
        spider, _ = collecting()
        spider.name = name
        await crawl(spider, settings, urls=web.url())
        assert web.paths == ["/", "/a"], name


def test_components_are_made_for_a_spider_class_without_a_name(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    values = {
        **settings,
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_REPORT": str(tmp_path / "%(name)s.html"),
        "DEDUPE_METRICS_FILE": str(tmp_path / "%(name)s.prom"),
        "DEDUPE_DUPLICATES_LOG": str(tmp_path / "%(name)s.jsonl"),
        "DEDUPE_PASSAGES": True,
        "DEDUPE_PASSAGES_DIR": str(tmp_path / "passages"),
    }
    crawler = get_crawler(scrapy.Spider, values)
    for cls in (BloomDupeFilter, ContentDedupeMiddleware, WarcPipeline):
        cls.from_crawler(crawler)
    session = Session.of(crawler)
    assert session.spider_name == "crawl"
    assert session.crawl_id.startswith("crawl-2")
    session._abandon()


@pytest.mark.parametrize("jobdir", ["", "job"])
def test_the_filter_works_without_an_engine(
    jobdir: str, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {**settings, "ADDONS": {"scrapy_dedupe.Addon": 500}, "JOBDIR": jobdir and str(tmp_path / jobdir)}
    crawler = get_crawler(LinkSpider, values)
    scheduler = build_from_crawler(Scheduler, crawler)
    assert isinstance(scheduler.df, BloomDupeFilter)
    scheduler.df.open()
    request = scrapy.Request("http://127.0.0.1/")
    assert [scheduler.df.request_seen(request) for _ in range(2)] == [False, True]
    assert not [key for key in crawler.stats.get_stats() if key.startswith("dedupe/errors/")]
    assert "Unexpected" not in caplog.text
    Session.of(crawler)._abandon()


@crawl_test
async def test_where_there_is_nothing_to_close_the_signal_waits_for_nothing(settings: dict[str, Any]) -> None:
    crawler = get_crawler(LinkSpider, {**settings, "ADDONS": {"scrapy_dedupe.Addon": 500}})
    BloomDupeFilter.from_crawler(crawler)
    for signal in (scrapy.signals.spider_opened, scrapy.signals.spider_closed):
        answers = crawler.signals.send_catch_log(signal=signal, spider=LinkSpider(), reason="finished")
        ours = [answer for handler, answer in answers if "scrapy_dedupe" in handler.__module__]
        assert ours
        assert set(ours) == {None}
    Session.of(crawler).loop.close()


@crawl_test
async def test_no_setting_is_read_that_scrapy_deprecates(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/", BODY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spider, items = collecting()
        await crawl(spider, {**settings, "CONCURRENT_REQUESTS_PER_IP": 0}, urls=web.url())
        # Whatever Scrapy has a default for, and two that it warns of only when they are read.
        names = [name for name in dir(default_settings) if name.isupper()]
        read = Settings({name: getattr(default_settings, name) for name in names})
        read.setdict({**settings, "CONCURRENT_REQUESTS_PER_IP": 8, "DNS_RESOLVER": "a.Resolver"})
        assert unknown_names(read) == []
        assert misplaced(read) == []
        assert order_faults(read) == []
        assert faults_of(read) == []
    assert [item["kind"] for item in items] == ["unique"]


class OwnPipeline(WarcPipeline):
    pass


def test_a_pipeline_derived_from_that_of_the_archive_archives_the_crawl() -> None:
    given = {"DEDUPE_WACZ": True, "ITEM_PIPELINES": {OwnPipeline: 900}}
    assert list(archive_faults(Settings(given))) == []
    assert list(archive_faults(Settings({"DEDUPE_WACZ": True}))) != []
