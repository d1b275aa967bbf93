"""kill -9 in the middle of crawls over a tree of pages, and what the next runs ask for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import redis
from faults_site import Hold, start_crawl
from sampling import sampled
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_dedupe.urls.folder import FilterFolder, LastStop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from webserver import WebServer


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        "DUPEFILTER_CLASS": "scrapy_dedupe.dupefilters.BloomDupeFilter",
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "CONCURRENT_REQUESTS": 4,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
        "DOWNLOAD_DELAY": 0.01,
        "RANDOMIZE_DOWNLOAD_DELAY": False,
        "LOG_LEVEL": "INFO",
    }


def plant(web: WebServer, branching: int = 4, levels: int = 3) -> None:
    """A tree: each page is linked from the one above alone, and links home."""

    def grow(path: str, level: int) -> None:
        below = [f"{path.rstrip('/')}/{n}" for n in range(branching)] if level < levels else []
        web.page(path, "".join(f'<a href="{link}">x</a>' for link in ["/", *below]))
        for link in below:
            grow(link, level + 1)

    grow("/", 0)


class Run:
    """One crawl in a process of its own, which gets so many answers."""

    def __init__(self, web: WebServer, settings: dict[str, Any], log: Path, answers: int) -> None:
        self.hold, self.log = Hold(web, answers), log
        with log.open("wb") as file:
            self.process = start_crawl(settings, web.url("/"), stderr=file.fileno())

    def kill(self) -> None:
        """When it has got its answers."""
        is_reached = self.hold.is_reached(self.process)
        self.process.kill()
        self.hold.end()
        assert is_reached, self.log.read_text()

    def finish(self) -> str:
        assert self.process.wait(240) == 0
        return self.log.read_text()


@pytest.fixture
def runs(web: WebServer, tmp_path: Path) -> Iterator[Any]:
    started: list[Run] = []

    def run(settings: dict[str, Any], answers: int = 1_000_000) -> Run:
        web.paths.clear()
        started.append(Run(web, settings, tmp_path / f"log-{len(started)}", answers))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.hold.end()


def journaled(web: WebServer, job: Path, copy: Path) -> set[str]:
    """The pages that the next run will know, read from a copy."""
    shutil.copytree(job / "dedupe" / "urls", copy / "dedupe" / "urls")
    folder = FilterFolder(copy, "scrapy.utils.request.RequestFingerprinter")
    opened = folder.open(10_000, 1e-6)
    folder.abandon()
    assert opened.last_stop is LastStop.CUT
    return {path for path in web.pages if fingerprint(Request(web.url(path))) in opened.filter}


@pytest.mark.parametrize("filter_", sampled(["local", "confirmed", "shared"], ["shared"]))
def test_a_crawl_that_is_killed_again_and_again_asks_for_every_page_and_repeats_no_leaf_that_it_knew(
    filter_: str, web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path, runs: Any
) -> None:
    plant(web)
    settings["DEDUPE_URL_CONFIRM"] = filter_ == "confirmed"
    settings["DEDUPE_URL_STORE_URL"] = redis_url if filter_ == "shared" else "local"
    job = tmp_path / "job"
    settings["JOBDIR"] = str(job)
    asked: set[str] = set()
    known: set[str] = set()
    for number, answers in enumerate((7, 25, 45)):
        runs(settings, answers).kill()
        assert not known & set(web.paths)
        asked |= set(web.paths)
        after = journaled(web, job, tmp_path / f"copy-{number}")
        assert known <= after <= asked
        known = after
    # Pages of the last level are leaves; the others bring nothing new only once all below them are known.
    assert len(known) > 5
    inner = {path for path in known if path.count("/") < 3}
    assert all({f"{path}/{n}" for n in range(4)} <= known for path in inner)
    assert len(asked) < len(web.pages)

    log = runs(settings).finish()
    assert "The last run of this job did not end cleanly" in log
    assert not known & set(web.paths)
    assert len(web.paths) == len(set(web.paths))
    assert asked | set(web.paths) == set(web.pages)


def test_a_stop_between_two_kills_loses_no_page(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, runs: Any
) -> None:
    plant(web)
    settings["JOBDIR"] = str(tmp_path / "job")
    asked: set[str] = set()
    runs(settings, 20).kill()
    asked |= set(web.paths)
    runs({**settings, "CLOSESPIDER_PAGECOUNT": 25}).finish()
    asked |= set(web.paths)
    runs(settings, 15).kill()
    asked |= set(web.paths)
    assert len(asked) < len(web.pages)
    known = journaled(web, tmp_path / "job", tmp_path / "copy")
    runs(settings).finish()
    assert not known & set(web.paths)
    assert asked | set(web.paths) == set(web.pages)


def test_after_a_kill_a_shared_filter_hides_no_page_from_the_next_crawl(
    web: WebServer, settings: dict[str, Any], redis_url: str, runs: Any
) -> None:
    plant(web, levels=2)
    settings["DEDUPE_URL_STORE_URL"] = redis_url
    runs(settings, 8).kill()
    assert len(set(web.paths)) < len(web.pages)
    log = runs(settings).finish()
    assert sorted(web.paths) == sorted(web.pages)
    assert "The last run with the shared URL filter" in log
    assert "did not end cleanly" in log


def test_a_job_whose_shared_filter_is_gone_asks_for_no_leaf_that_it_was_done_with(
    web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path, runs: Any
) -> None:
    plant(web)
    settings |= {"DEDUPE_URL_STORE_URL": redis_url, "JOBDIR": str(tmp_path / "job")}
    runs({**settings, "CLOSESPIDER_PAGECOUNT": 40}).finish()
    asked = set(web.paths)
    known = journaled(web, tmp_path / "job", tmp_path / "copy")
    assert known
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    log = runs(settings).finish()
    assert f"Added {len(known)} completed URLs of this job" in log
    assert not known & set(web.paths)
    assert asked | set(web.paths) == set(web.pages)
