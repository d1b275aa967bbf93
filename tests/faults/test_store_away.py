"""A store that is not there, goes away, comes back, or is not ours."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
import redis
from archives import check, records_of
from crawling import LinkSpider, collecting, crawl, crawl_test
from faults_site import chain
from scrapy import version_info
from scrapy.core.scheduler import Scheduler
from servers import RedisServer, free_port

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.live import stores
from scrapy_dedupe.reports.observations import unpack
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer


@crawl_test
async def test_a_store_that_cannot_be_reached_stops_the_start(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<p>x")
    settings["DEDUPE_STORE_URL"] = url = f"redis://127.0.0.1:{free_port()}/0"
    with pytest.raises(Exception):  # noqa: B017 - Scrapy may put an error of its own in place of ours
        await crawl(LinkSpider, settings, urls=web.url())
    assert web.paths == []
    sentence = next(
        record.getMessage() for record in caplog.records if "does not start" in record.getMessage()
    )
    assert url in sentence
    assert "DEDUPE_STORE_URL" in sentence, "it says how to run without"


@crawl_test
async def test_a_crawl_goes_on_when_redis_is_stopped_and_its_archive_is_whole(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, redis_server: RedisServer, caplog: Any
) -> None:
    chain(web, 12, {6: redis_server.stop})
    settings |= {"DEDUPE_STORE_URL": redis_server.url, "DEDUPE_CRAWL_ID": "cut", "DEDUPE_STORE_TIMEOUT": 30}
    spider, items = collecting()
    crawler = await crawl(spider, settings, urls=web.url("/0"))
    assert len(items) == 13, "no page was lost"
    kinds = [item["kind"] for item in items]
    assert kinds[:5] == ["unique"] * 5
    assert kinds[-1] == "unknown"
    stats = crawler.stats.get_stats()
    assert stats["finish_reason"] == "finished"
    assert stats["dedupe/errors/store"] > 0
    assert (
        sum("The crawl continues without the store" in record.getMessage() for record in caplog.records) == 1
    )
    assert "scrapy dedupe commit cut" in caplog.text
    check(tmp_path / "warcs")
    assert f"WARC      {next((tmp_path / 'warcs').iterdir())}" in caplog.text
    assert sum(record.type == "response" for record in records_of(tmp_path / "warcs")) == 13


@crawl_test
async def test_what_redis_missed_is_entered_before_the_commit(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, redis_server: RedisServer
) -> None:
    chain(web, 12, {3: redis_server.stop, 9: redis_server.start})
    settings |= {"DEDUPE_STORE_URL": redis_server.url, "DEDUPE_CRAWL_ID": "gap", "DEDUPE_STORE_TIMEOUT": 30}
    settings |= {"DEDUPE_URL_STORE_URL": "local"}
    await crawl(LinkSpider, settings, urls=web.url("/0"))
    with open_index(redis_server.url) as index:
        (info,) = index.crawls()
    assert (info.state, info.incomplete, info.counts.total_urls) == ("committed", False, 13)
    assert sum(record.type == "response" for record in records_of(tmp_path / "warcs")) == 13
    await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": "next"}, urls=web.url("/0"))
    with open_index(redis_server.url) as index:
        counts = next(info.counts for info in index.crawls() if info.id == "next")
    assert counts.dupe_urls == 12, "every page of the first crawl is known, but for the short last one"


@crawl_test
async def test_a_server_that_can_only_be_read_is_told_of_once(
    web: WebServer,
    settings: dict[str, Any],
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(stores, "LONGEST_PAUSE_S", 0.001)

    def order(*words: str) -> None:
        with redis.Redis.from_url(redis_server.url) as client:
            client.execute_command("REPLICAOF", *words)

    chain(web, 30, {5: lambda: order("127.0.0.1", "1"), 25: lambda: order("NO", "ONE")})
    settings |= {
        "DEDUPE_STORE_URL": redis_server.url,
        "DEDUPE_CRAWL_ID": "read",
        "DEDUPE_URL_STORE_URL": "local",
    }
    crawler = await crawl(LinkSpider, settings, urls=web.url("/0"))
    assert crawler.stats.get_value("dedupe/errors/store") >= 20, (
        "a page that can be read of is no sign of health"
    )
    assert caplog.text.count("The crawl continues without the store") == 1
    assert caplog.text.count("is available again. Further failures are only counted") == 1
    with open_index(redis_server.url) as index:
        (info,) = index.crawls()
    assert (info.state, info.incomplete, info.counts.total_urls) == ("committed", False, 31)


@crawl_test
async def test_what_was_seen_is_kept_in_a_store_that_is_back_at_the_end_alone(
    web: WebServer, settings: dict[str, Any], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that nobody asks it again before.
    monkeypatch.setattr(stores, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(stores, "LONGEST_PAUSE_S", 3600.0)
    chain(web, 10, {3: redis_server.stop, 8: redis_server.start})
    settings |= {
        "DEDUPE_STORE_URL": redis_server.url,
        "DEDUPE_CRAWL_ID": "late",
        "DEDUPE_URL_STORE_URL": "local",
    }
    await crawl(LinkSpider, settings, urls=web.url("/0"))
    store = open_store(redis_server.url)
    try:
        seen = unpack(store.reports.load("late"), "late")
    finally:
        store.close()
    assert seen.totals["responses"] == 11


@crawl_test
async def test_a_lost_store_ends_the_crawl_when_asked(
    web: WebServer, settings: dict[str, Any], redis_server: RedisServer
) -> None:
    chain(web, 200, {3: redis_server.stop})
    settings |= {
        "DEDUPE_STORE_URL": redis_server.url,
        "DEDUPE_STORE_TIMEOUT": 30,
        "DEDUPE_ON_STORE_ERROR": "close",
    }
    crawler = await crawl(LinkSpider, settings, urls=web.url("/0"))
    assert crawler.stats.get_value("finish_reason") == "dedupe_store_error"
    assert len(web.paths) < 200


@crawl_test
async def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dedupe.sqlite"
    path.write_bytes(b"These are my notes, not a database." * 100)
    before = path.read_bytes()
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert "The crawl does not start." in caplog.text
    assert "dedupe.sqlite" in caplog.text
    assert path.read_bytes() == before


@crawl_test
async def test_somebody_elses_database_is_refused_and_left_as_it_is(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dedupe.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert "another program" in caplog.text
    assert path.read_bytes() == before


@crawl_test
async def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<p>x")
    await crawl(LinkSpider, settings, urls=web.url())
    path = tmp_path / "dedupe.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Exception):  # noqa: B017
        await crawl(LinkSpider, settings, urls=web.url())
    assert "format 99" in caplog.text
    assert path.read_bytes() == before


@crawl_test
async def test_an_index_of_a_newer_version_in_redis_is_refused_and_left_as_it_is(
    web: WebServer, settings: dict[str, Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.hset("dedupe:index", mapping={"format": "99", "payload": "stored"})
        settings["DEDUPE_STORE_URL"] = redis_url
        with pytest.raises(Exception):  # noqa: B017
            await crawl(LinkSpider, settings, urls=web.url())
        assert client.hgetall("dedupe:index") == {b"format": b"99", b"payload": b"stored"}
        assert not client.exists("uncommittedcrawls")
    assert "99" in caplog.text


@crawl_test
async def test_a_refused_start_is_told_once_and_leaves_no_crawl_that_waits(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = tmp_path / "job" / "dedupe" / "urls"
    job.mkdir(parents=True)
    (job / "urls.bloom").write_bytes(b"no filter")
    with contextlib.suppress(Exception):
        await crawl(LinkSpider, {**settings, "JOBDIR": str(tmp_path / "job")}, urls=web.url())
    assert web.paths == []
    assert sum("The crawl does not start." in record.getMessage() for record in caplog.records) == 1
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert "uncommitted" not in {info.state for info in index.crawls()}


@crawl_test
async def test_a_store_that_goes_away_while_a_crawl_starts_is_told_once(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, redis_server: RedisServer, caplog: Any
) -> None:
    class Late(Scheduler):
        def open(self, spider: Any) -> Any:
            redis_server.stop()
            return super().open(spider)

    url = redis_server.url
    settings |= {"DEDUPE_STORE_URL": url, "DEDUPE_URL_STORE_URL": url, "JOBDIR": str(tmp_path / "job")}
    settings |= {"SCHEDULER": Late, "DEDUPE_REPORT": str(tmp_path / "report.html")}
    # Scrapy before 2.18 has its own errors.
    with contextlib.suppress(Exception):
        await crawl(LinkSpider, settings, urls=web.url())
    assert web.paths == []
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    # Sessions of other tests may be reported by asyncio.
    loggers = "scrapy" if version_info >= (2, 18) else "scrapy_dedupe"
    (told,) = [record for record in errors if record.name.startswith(loggers)]
    assert told.getMessage().startswith("The crawl does not start. The store ")
