"""What a scrape of a crawl says: real crawls, read through the port and the file, and the figures that add up."""

from __future__ import annotations

import gc
import logging
import math
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import crawling
import pytest
import scrapy
from crawling import LinkSpider, crawl, crawl_test
from prometheus_client.parser import text_string_to_metric_families as parse
from scrapes import LAYERS, ScrapingSpider, samples, scraped
from scrapy import version_info
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.test import get_crawler
from servers import free_port

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.live.figures import BOUNDS_S
from scrapy_dedupe.live.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler
    from webserver import WebServer


def site(web: WebServer) -> None:
    """A home page, two pages with one text, a nearly equal one, one without text and two links to the same URL."""
    text = " ".join(
        f"The {number}th warbler sings in the reed beds by night as well." for number in range(60)
    )
    links = "".join(f'<a href="/{name}">x</a>' for name in ("a", "b", "c", "empty", "a", "b"))
    web.page("/", f"<title>Home</title>{links}")
    web.page("/a", f"<p>{text}")
    web.page("/b", f"<p>{text}")
    web.page("/c", f"<p>{text} Now and then.")
    web.page("/empty", "")


@pytest.fixture
def port(settings: dict[str, Any]) -> int:
    settings["DEDUPE_METRICS_PORT"] = port = free_port()
    return port


@crawl_test
async def test_a_scrape_says_what_the_stats_say(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    port, file = free_port(), tmp_path / "links.prom"
    stored |= {"DEDUPE_METRICS_PORT": port, "DEDUPE_METRICS_FILE": file}
    crawler = await crawl(ScrapingSpider, stored, urls=web.url(), port=port)
    stats = crawler.stats.get_stats()
    found = samples(crawler.spider.scrapes[-1])
    for kind in ("unique", "exact", "near", "unchanged", "unknown"):
        assert found["dedupe_content_pages_total", kind] == stats.get(f"dedupe/content/{kind}", 0)
    assert found["dedup_exact_hits_total",] == stats["dedupe/content/exact"] == 1
    assert found["dedup_near_hits_total",] == stats["dedupe/content/near"] == 1
    assert found["dedupe_content_skipped_total", "no_text"] == 1
    assert found["dedupe_url_filtered_total",] == stats["dupefilter/filtered"] == 2
    assert found["dedupe_crawls_running",] == 1
    assert found["dedup_errors_total", "store"] == 0
    (crawl_id,) = [key[1] for key in found if key[0] == "dedupe_crawl_info"]
    assert crawl_id.startswith("links-")
    # Those of a filter in Redis are read every ten seconds, and at the end.
    last = samples(file.read_text())
    for name in ("seen", "capacity", "layers", "bytes"):
        assert last[f"dedupe_url_{name}",] == stats[f"dedupe/url/{name}"]
    for name in ("fill_ratio", "estimated_error", "expected_lost"):
        assert last[f"dedupe_url_{name}",] == pytest.approx(stats[f"dedupe/url/{name}"], rel=0.2)


@crawl_test
async def test_each_step_has_its_times(web: WebServer, settings: dict[str, Any], port: int) -> None:
    site(web)
    crawler = await crawl(ScrapingSpider, settings, urls=web.url(), port=port)
    (family,) = [f for f in parse(crawler.spider.scrapes[-1]) if f.name == "dedup_latency_seconds"]
    counts = {s.labels["layer"]: s.value for s in family.samples if s.name.endswith("_count")}
    sums = {s.labels["layer"]: s.value for s in family.samples if s.name.endswith("_sum")}
    assert counts == {"url": 6, "canonical": 4, "exact": 4, "near": 2, "verdict": 4, "warc": 5}
    assert all(seconds > 0 for seconds in sums.values())
    for layer in LAYERS:
        buckets = [s for s in family.samples if s.name.endswith("_bucket") and s.labels["layer"] == layer]
        assert [float(s.labels["le"]) for s in buckets] == [*BOUNDS_S, math.inf]
        values = [s.value for s in buckets]
        assert values == sorted(values)
        assert values[-1] == counts[layer]


@crawl_test
async def test_the_file_has_the_last_figures(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    file = tmp_path / "node" / "links.prom"
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_METRICS_FILE": str(file)}, urls=web.url())
    stats = crawler.stats.get_stats()
    found = samples(file.read_text())
    assert found["dedupe_warc_records_total", "response"] == stats["dedupe/warc/response"]
    assert found["dedupe_warc_records_total", "revisit"] == stats["dedupe/warc/revisit"]
    assert found["dedupe_warc_bytes_written_total",] == stats["dedupe/warc/bytes_written"]
    assert found["dedupe_warc_bytes_conserved_total",] == stats["dedupe/warc/bytes_conserved"] > 0
    assert found["dedupe_crawls_running",] == 0
    assert [path.name for path in file.parent.iterdir()] == ["links.prom"]


@crawl_test
async def test_each_spider_may_have_a_file_of_its_own(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    settings["DEDUPE_METRICS_FILE"] = str(tmp_path / "%(name)s.prom")
    await crawl(LinkSpider, settings, urls=web.url())
    assert samples((tmp_path / "links.prom").read_text())["dedupe_crawls_running",] == 0
    assert not (tmp_path / "%(name)s.prom").exists()


@crawl_test
async def test_errors_at_the_very_end_are_among_the_last_figures(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    page, file = tmp_path / "report.html", tmp_path / "links.prom"

    class Spider(LinkSpider):
        def closed(self, reason: str) -> None:
            page.mkdir()

    settings |= {"DEDUPE_METRICS_FILE": file, "DEDUPE_REPORT": page}
    crawler = await crawl(Spider, settings, urls=web.url())
    assert crawler.stats.get_value("dedupe/errors/report") == 1
    assert samples(file.read_text())["dedup_errors_total", "report"] == 1


@crawl_test
async def test_a_collector_that_keeps_nothing_changes_no_figure(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    file = tmp_path / "links.prom"
    settings |= {"DEDUPE_METRICS_FILE": file, "STATS_CLASS": "scrapy.statscollectors.DummyStatsCollector"}
    caplog.set_level(logging.INFO)
    crawler = await crawl(LinkSpider, settings, urls=web.url())
    assert crawler.stats.get_stats() == {}
    found = samples(file.read_text())
    assert found["dedup_exact_hits_total",] == 1
    assert found["dedupe_url_filtered_total",] == 2
    assert found["dedupe_warc_records_total", "revisit"] == 1
    lines = [record.getMessage() for record in caplog.records if record.name == "scrapy_dedupe.live.session"]
    (requests,) = [line for line in lines if line.startswith("  Requests")]
    assert requests == "  Requests  2 requests were duplicates"
    (pages,) = [line for line in lines if line.startswith("  Pages")]
    assert pages.startswith("  Pages     2 of 4 pages (50%) were duplicates")
    (archived,) = [line for line in lines if line.startswith("  Bytes")]
    assert "1 of 5 responses was a duplicate" in archived


@crawl_test
async def test_a_scrape_waits_for_nobody(web: WebServer, settings: dict[str, Any], port: int) -> None:
    site(web)

    class BlockingSpider(ScrapingSpider):
        """Scrapes on the event loop, while the worker does something that takes long."""

        def scrape(self) -> None:
            is_over = threading.Event()
            Session.of(self.crawler).worker.submit(is_over.wait)
            try:
                super().scrape()
            finally:
                is_over.set()

    crawler = await crawl(BlockingSpider, settings, urls=web.url(), port=port)
    found = samples(crawler.spider.scrapes[-1])
    assert found["dedupe_url_seen",] == 5
    assert found["dedupe_content_pages_total", "unique"] == 2


@crawl_test
async def test_confirmed_hits_are_counted(web: WebServer, settings: dict[str, Any], port: int) -> None:
    site(web)
    crawler = await crawl(ScrapingSpider, {**settings, "DEDUPE_URL_CONFIRM": True}, urls=web.url(), port=port)
    found = samples(crawler.spider.scrapes[-1])
    assert found["dedupe_url_confirmed_total",] == crawler.stats.get_value("dedupe/url/confirmed") == 2
    assert found["dedupe_url_false_positives_total",] == found["dedupe_url_expected_lost",] == 0
    assert found["dedupe_url_seen",] == 5


@crawl_test
async def test_nothing_is_said_of_layers_that_are_off(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    site(web)
    file = tmp_path / "links.prom"
    off = {"DEDUPE_CONTENT_ENABLED": False, "DEDUPE_WARC_ENABLED": False, "DEDUPE_METRICS_FILE": str(file)}
    await crawl(LinkSpider, {**settings, **off}, urls=web.url())
    names = {key[0] for key in samples(file.read_text())}
    assert {name for name in names if "content" in name or "warc" in name or "hits" in name} == set()
    assert {"dedupe_url_seen", "dedupe_url_filtered_total", "dedup_errors_total"} <= names


@crawl_test
async def test_crawls_share_a_port_and_the_last_one_closes_it(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, port: int
) -> None:
    site(web)
    other = type("OtherSpider", (ScrapingSpider,), {"name": "others"})
    shared = {**settings, "DEDUPE_METRICS_FILE": str(tmp_path / "all.prom")}
    both = [deferred_from_coro(crawl(s, shared, urls=web.url(), port=port)) for s in (ScrapingSpider, other)]
    for deferred in both:
        await maybe_deferred_to_future(deferred)
    families = {f.name: f for f in parse((tmp_path / "all.prom").read_text())}
    spiders = {s.labels["spider"]: s.value for s in families["dedupe_url_filtered"].samples}
    assert spiders == {"links": 2, "others": 2}
    with pytest.raises(OSError):
        scraped(port)
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free


@crawl_test
async def test_counters_go_on_with_the_next_crawl(
    web: WebServer, settings: dict[str, Any], port: int
) -> None:
    site(web)
    values = []
    for _ in range(2):
        crawler = await crawl(ScrapingSpider, settings, urls=web.url(), port=port)
        found = samples(crawler.spider.scrapes[-1])
        values.append(
            (
                found["dedupe_url_filtered_total",],
                found["dedup_latency_seconds_count", "url"],
                found["dedupe_url_seen",],
            )
        )
        assert sum(key[0] == "dedupe_crawl_info" for key in found) == 1
    assert values == [(2, 6, 5), (4, 12, 5)]


@crawl_test
async def test_what_nobody_scraped_is_counted_all_the_same(
    web: WebServer, settings: dict[str, Any], port: int
) -> None:
    site(web)
    await crawl(LinkSpider, settings, urls=web.url())
    crawler = await crawl(ScrapingSpider, settings, urls=web.url(), port=port)
    found = samples(crawler.spider.scrapes[-1])
    assert found["dedupe_url_filtered_total",] == 4
    assert found["dedupe_content_pages_total", "unchanged"] == 4


@pytest.mark.parametrize("address", ["no.such.host.invalid", "x" * 300, "203.0.113.7"])
@crawl_test
async def test_an_address_of_no_use_is_refused(
    web: WebServer, settings: dict[str, Any], port: int, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, {**settings, "DEDUPE_METRICS_ADDRESS": address}, urls=web.url())
    assert f"The crawl does not start. The metrics server cannot listen on {address}:{port}: " in caplog.text


@crawl_test
async def test_a_port_in_use_is_refused(
    web: WebServer, settings: dict[str, Any], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert "The crawl does not start." in caplog.text
    assert f"127.0.0.1:{port}" in caplog.text
    assert "Set DEDUPE_METRICS_PORT to a free port" in caplog.text
    assert web.paths == []
    # Once it is free the same process can crawl.
    site(web)
    crawler = await crawl(ScrapingSpider, settings, urls=web.url(), port=port)
    assert samples(crawler.spider.scrapes[-1])["dedupe_url_seen",] == 5


@crawl_test
async def test_a_file_that_cannot_be_written_is_refused_and_the_port_given_back(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    settings["DEDUPE_METRICS_FILE"] = str(tmp_path / "taken" / "x.prom")
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    words = f"The metrics file {tmp_path}/taken/x.prom (DEDUPE_METRICS_FILE) cannot be written: {tmp_path}/taken is a file. Name"
    assert words in caplog.text
    with socket.create_server(("127.0.0.1", port)):
        pass


@crawl_test
async def test_a_file_that_cannot_be_written_any_more_is_told_and_the_crawl_goes_on(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(web)
    file = tmp_path / "m" / "links.prom"

    def break_it(handler: Any) -> Any:
        file.unlink()
        file.parent.rmdir()
        file.parent.write_text("no folder any more")
        return web.pages["/a"]

    web.pages["/empty"] = break_it
    crawler = await crawl(LinkSpider, {**settings, "DEDUPE_METRICS_FILE": str(file)}, urls=web.url())
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("dedupe/errors/metrics") == 1
    assert "its metrics may be out of date" in caplog.text


class BrokenExtension:
    @classmethod
    def from_crawler(cls, crawler: Crawler) -> None:
        raise RuntimeError("nobody knows of this one")


@pytest.mark.skipif(scrapy.version_info < (2, 14), reason="a handler of the log keeps such a crawler")
def test_a_start_that_others_break_gives_the_port_back(
    settings: dict[str, Any], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Records of the log would keep the crawler.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    settings |= {"ADDONS": {"scrapy_dedupe.Addon": 500}, "EXTENSIONS": {BrokenExtension: 600}}
    with pytest.raises(RuntimeError, match="nobody knows of this one"):
        get_crawler(LinkSpider, settings)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        gc.collect()
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return
    pytest.fail("the port is still in use")


@pytest.mark.skipif(crawling.reactorless, reason="without a reactor Scrapy leaves its HTTP client open")
@crawl_test
async def test_a_component_that_fails_while_the_spider_is_opened_leaves_nothing_behind(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, port: int
) -> None:
    class Broken:
        def open_spider(self) -> None:
            raise RuntimeError("no database")

    class Old(Broken):  # Scrapy 2.13 hands the spider over
        def open_spider(self, spider: Any) -> None:  # type: ignore[override]
            super().open_spider()

    broken = Broken if version_info >= (2, 14) else Old
    file = tmp_path / "links.prom"
    settings |= {"DEDUPE_METRICS_FILE": file, "DEDUPE_CRAWL_ID": "c1", "ITEM_PIPELINES": {broken: 100}}
    # Those of other tests.
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="no database"):
        await crawl(LinkSpider, settings, urls=web.url())
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("dedupe-")]
    assert samples(file.read_text())["dedupe_crawls_running",] == 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls() if info.state != "canceled"] == []


def test_prometheus_client_is_loaded_only_if_it_is_asked_for(tmp_path: Path) -> None:
    script = (
        "import sys, scrapy, scrapy_dedupe.live.observers.metrics\n"
        "from scrapy.settings import Settings\n"
        "from scrapy_dedupe import Addon\n"
        "settings = Settings()\n"
        "Addon().update_settings(settings)\n"
        "assert scrapy_dedupe.extensions.MetricsExtension not in settings['EXTENSIONS']\n"
        "print('prometheus_client' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert run.stdout.strip() == "False"


@crawl_test
async def test_without_the_extra_the_start_is_refused(
    web: WebServer,
    settings: dict[str, Any],
    port: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scrapy_dedupe.live.observers.metric_outputs", None)
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert 'pip install "scrapy-dedupe[prometheus]"' in caplog.text
    assert web.paths == []
