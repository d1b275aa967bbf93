"""What a scrape of a crawl says: real crawls, read through the port and the file, and the figures that add up."""

from __future__ import annotations

import gc
import logging
import math
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from crawling import LinkSpider, crawl, crawl_test
from prometheus_client.parser import text_string_to_metric_families as parse
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.test import get_crawler

from scrapy_dedupe import metric_places
from scrapy_dedupe.content.latency import BOUNDS_S
from scrapy_dedupe.live_figures import LiveFigures
from scrapy_dedupe.metric_families import Reading, read_crawl
from scrapy_dedupe.metric_places import Board, File

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler
    from webserver import WebServer

LAYERS = {"url", "canonical", "exact", "near", "verdict", "warc"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def scraped(port: int, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and label values without the spider's, such as ("dedupe_content_pages_total", "exact")."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "spider"]
            key = (sample.name, *labels)
            assert key not in found or len({s.labels["spider"] for s in family.samples}) > 1
            found[key] = sample.value
    return found


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


class ScrapingSpider(LinkSpider):
    """Scrapes the metrics, off the event loop, when it goes idle: the crawl still runs then."""

    port = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.scrapes = []
        crawler.signals.connect(spider.scrape, signal=scrapy.signals.spider_idle)
        return spider

    def scrape(self) -> None:
        self.scrapes.append(scraped(int(self.port)))


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
    assert f"The crawl does not start. The metrics cannot be read at {address}:{port}: " in caplog.text


@crawl_test
async def test_a_port_in_use_is_refused(
    web: WebServer, settings: dict[str, Any], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert "The crawl does not start." in caplog.text
    assert f"127.0.0.1:{port}" in caplog.text
    assert "Set DEDUPE_METRICS_PORT to a port that is free" in caplog.text
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
    assert "Set DEDUPE_METRICS_FILE to a file in a folder that can be written." in caplog.text
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
    place = ("port", "127.0.0.1", port)
    deadline = time.monotonic() + 60
    while metric_places.is_open(place) and time.monotonic() < deadline:
        gc.collect()
    assert not metric_places.is_open(place)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_prometheus_client_is_loaded_only_if_it_is_asked_for(tmp_path: Path) -> None:
    script = (
        "import sys, scrapy, scrapy_dedupe.metrics\n"
        "from scrapy.settings import Settings\n"
        "from scrapy_dedupe import Addon\n"
        "settings = Settings()\n"
        "Addon().update_settings(settings)\n"
        "assert scrapy_dedupe.metrics.MetricsExtension not in settings['EXTENSIONS']\n"
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
    monkeypatch.setitem(sys.modules, "scrapy_dedupe.metric_places", None)
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert 'pip install "scrapy-dedupe[prometheus]"' in caplog.text
    assert web.paths == []


# Boards, without a crawl


class Counting:
    """A crawl of which a test sets the figures."""

    def __init__(self, spider: str, reading: Reading) -> None:
        self.spider = spider
        self.reading = reading
        self.errors: list[Exception] = []

    def read(self) -> Reading:
        return dict(self.reading)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


def test_counters_never_go_back() -> None:
    board = Board()
    name = ("dedupe_warc_bytes_written_total", "")
    seen = ("dedupe_url_seen", "")
    first, second = Counting("a", {name: 10.0, seen: 3.0}), Counting("a", {name: 1.0, seen: 2.0})
    board.add(first)
    board.add(second)

    def value(key: str) -> float | None:
        return samples(board.text().decode()).get((key,))

    assert (value(name[0]), value(seen[0])) == (11, 5)
    first.reading = {name: 4.0}  # whoever sets a stat back
    assert value(name[0]) == 11
    assert board.remove(first) is False
    assert (value(name[0]), value(seen[0])) == (11, 2)
    assert board.remove(second) is True
    assert board.remove(second) is False
    assert (value(name[0]), value(seen[0])) == (11, None)


def test_a_crawl_that_cannot_be_read_leaves_the_last_figures() -> None:
    class Broken(Counting):
        is_broken = False

        def read(self) -> Reading:
            if self.is_broken:
                raise RuntimeError("no stats")
            return super().read()

    board, source = Board(), Broken("a", {("dedupe_url_seen", ""): 3.0})
    board.add(source)
    before = board.text()
    source.is_broken = True
    assert board.text() == before
    assert [str(error) for error in source.errors] == ["no stats"]


HOSTILE = ['a"b\\c\nd', "\ud800", "x" * 100_000, "", "{}", "é"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_counted_the_text_can_be_read(name: str) -> None:
    live = LiveFigures()
    for step in LAYERS:
        live.latency(step)
    stats = {f"dedupe/errors/{name}": 7, 5: 1, "dedupe/content/exact": "many", "dupefilter/filtered": 10**400}
    stats |= {f"dedupe/content/skipped/{number}": 1 for number in range(10_000)}
    reading = read_crawl(stats, live, name, 5, is_running=True)
    board = Board()
    board.add(Counting("a", reading))
    text = board.text().decode()
    assert samples(text)["dedupe_warc_queue_bytes",] == 5
    assert len(text) < 100_000
    errors = next(f for f in parse(text) if f.name == "dedup_errors")
    assert sum(sample.value for sample in errors.samples) == 7


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    place = File(file, 3600.0)
    source = Counting("a", {("dedupe_url_seen", ""): 3.0})
    place.board.add(source)
    place.open()
    before = file.read_bytes()
    (tmp_path / "x.prom.tmp").mkdir()
    source.reading = {("dedupe_url_seen", ""): 4.0}
    place.last()
    place.close()
    assert file.read_bytes() == before
    assert len(source.errors) == 1
