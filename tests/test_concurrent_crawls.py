"""Two crawls at once in two processes: what the one may know of the other before that is committed."""

from __future__ import annotations

import json
import random
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from archives import check, records_of
from crawling import LinkSpider, crawl, crawl_test
from faults_site import start_crawl
from waiting import wait_until
from webserver import Page

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.packing import requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from webserver import WebServer

    from scrapy_dedupe.stores.crawl_index import CrawlIndex


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


class Other:
    """A crawl in a process of its own that records /a and /b, and then waits for the answer to /wait."""

    def __init__(self, web: WebServer, settings: dict[str, Any], log: Path) -> None:
        self.log = log
        self._reached, self._answer = threading.Event(), threading.Event()
        web.page("/a", text("a"))
        web.page("/b", text("b"))
        web.pages["/wait"] = self._wait
        values = settings | {"ADDONS": {"scrapy_dedupe.Addon": 500}, "CONCURRENT_REQUESTS": 1}
        with log.open("wb") as file:
            urls = " ".join(map(web.url, ("/a", "/b", "/wait")))
            self.process = start_crawl(values, urls, stderr=file.fileno())

    def _wait(self, handler: Any) -> Page:
        self._reached.set()
        assert self._answer.wait(240)
        return Page(text("wait").encode())

    def at_work(self, index: CrawlIndex) -> None:
        """Wait until its two records are in its file, and entered if it is concurrent."""
        assert self._reached.wait(240), self.log.read_text()

        def is_entered() -> bool:
            info = next(info for info in index.crawls() if info.id == "first")
            return not info.concurrent or info.counts.total_urls == 2

        wait_until(is_entered, self.log.read_text)

    def finish(self) -> None:
        self._answer.set()
        assert self.process.wait(240) == 0, self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self._answer.set()


@pytest.fixture
def other(web: WebServer, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Other]]:
    started: list[Other] = []

    def start(settings: dict[str, Any]) -> Other:
        started.append(Other(web, settings, tmp_path / "first.log"))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def shared(stored: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return stored | {"DEDUPE_URL_STORE_URL": "local"}


def of(shared: dict[str, Any], tmp_path: Path, crawl_id: str, **more: Any) -> dict[str, Any]:
    """Settings of one of several crawls, each with a folder of its own."""
    own = {"DEDUPE_CRAWL_ID": crawl_id, "DEDUPE_WARC_DIR": str(tmp_path / crawl_id)}
    return shared | own | more


def types_of(folder: Path) -> list[str]:
    return [record.type for record in records_of(folder) if record.type in ("response", "revisit")]


@crawl_test
async def test_a_crawl_refers_to_records_of_a_concurrent_one_that_runs(
    web: WebServer, shared: dict[str, Any], tmp_path: Path, other: Callable[[dict[str, Any]], Other]
) -> None:
    first = other(of(shared, tmp_path, "first", DEDUPE_CONCURRENT=True))
    with open_index(shared["DEDUPE_STORE_URL"]) as index:
        first.at_work(index)
        await crawl(LinkSpider, of(shared, tmp_path, "second"), urls=f"{web.url('/a')} {web.url('/b')}")
        assert {info.id: info.state for info in index.crawls()} == {
            "first": "uncommitted",
            "second": "committed",
        }
        first.finish()
        states = {info.id: (info.state, info.counts.total_urls) for info in index.crawls()}
        assert states == {"first": ("committed", 3), "second": ("committed", 2)}
        assert index.counts.total_urls == 5
        assert index.counts.dupe_urls == 2
    check(tmp_path / "first")
    check(tmp_path / "second")
    originals = {record.id: record for record in records_of(tmp_path / "first") if record.type == "response"}
    revisits = [record for record in records_of(tmp_path / "second") if record.type == "revisit"]
    assert len(revisits) == 2
    for record in revisits:
        assert originals[record.headers["WARC-Refers-To"]].uri == record.uri


@crawl_test
async def test_a_crawl_that_is_not_concurrent_is_not_referred_to_while_it_runs(
    web: WebServer, shared: dict[str, Any], tmp_path: Path, other: Callable[[dict[str, Any]], Other]
) -> None:
    first = other(of(shared, tmp_path, "first"))
    with open_index(shared["DEDUPE_STORE_URL"]) as index:
        first.at_work(index)
        # What a crawl may refer to is for the other one to allow, not for itself.
        second = of(shared, tmp_path, "second", DEDUPE_CONCURRENT=True)
        await crawl(LinkSpider, second, urls=f"{web.url('/a')} {web.url('/b')}")
        first.finish()
        assert {info.id: info.concurrent for info in index.crawls()} == {"first": False, "second": True}
    assert types_of(tmp_path / "second") == ["response", "response"]


@crawl_test
async def test_the_container_that_a_running_crawl_will_have_is_named(
    web: WebServer, shared: dict[str, Any], tmp_path: Path, other: Callable[[dict[str, Any]], Other]
) -> None:
    shared |= {"DEDUPE_WACZ": True}
    first = other(of(shared, tmp_path, "first", DEDUPE_CONCURRENT=True))
    with open_index(shared["DEDUPE_STORE_URL"]) as index:
        first.at_work(index)
        await crawl(LinkSpider, of(shared, tmp_path, "second"), urls=web.url("/a"))
        with zipfile.ZipFile(tmp_path / "wacz" / "second.wacz") as container:
            about = json.loads(container.read("datapackage.json"))
        assert about["relation"] == {"requires": [{"filename": "first.wacz", "crawlId": "first"}]}
        manifest = json.loads((tmp_path / "wacz" / "second.multi-wacz.json").read_bytes())
        assert [resource["path"] for resource in manifest["resources"]] == ["second.wacz", "first.wacz"]
        first.finish()
        (required,) = requirements(index, "second")
        assert (required.filename, required.crawl) == ("first.wacz", "first")
        assert required.hash is not None
        assert required.size == (tmp_path / "wacz" / "first.wacz").stat().st_size
    (revisit,) = (record for record in records_of(tmp_path / "second") if record.type == "revisit")
    assert revisit.headers["WARC-Refers-To-Container"] == "file://first.wacz"


@crawl_test
async def test_a_concurrent_crawl_that_others_need_is_canceled_by_force_alone(
    web: WebServer,
    shared: dict[str, Any],
    tmp_path: Path,
    other: Callable[[dict[str, Any]], Other],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = other(of(shared, tmp_path, "first", DEDUPE_CONCURRENT=True, DEDUPE_COMMIT_REASONS=["never"]))
    store = ["--store", shared["DEDUPE_STORE_URL"]]
    with open_index(shared["DEDUPE_STORE_URL"]) as index:
        first.at_work(index)
        await crawl(LinkSpider, of(shared, tmp_path, "second"), urls=web.url("/a"))
        first.finish()
        capsys.readouterr()
        assert main(["cancel", *store, "first"]) == 3
        told = capsys.readouterr().err
        assert "second needs first" in told
        assert "--force" in told
        assert main(["cancel", *store, "--force", "first"]) == 0
        # Its own is forgotten, and what the other has of it stays.
        assert {info.id: info.state for info in index.crawls()} == {
            "first": "canceled",
            "second": "committed",
        }
        assert [need.crawl for need in index.needs("second")] == ["first"]
        assert index.counts.total_urls == 1
        await crawl(LinkSpider, of(shared, tmp_path, "third"), urls=f"{web.url('/a')} {web.url('/b')}")
        # Its files stay too, so the revisit of the second crawl still has its original.
    check(tmp_path / "first")
    assert types_of(tmp_path / "first") == ["response"] * 3
    assert types_of(tmp_path / "second") == ["revisit"]
    assert types_of(tmp_path / "third") == ["response", "response"]


@crawl_test
async def test_a_concurrent_crawl_that_is_killed_goes_on_as_one(
    web: WebServer, shared: dict[str, Any], tmp_path: Path, other: Callable[[dict[str, Any]], Other]
) -> None:
    first = other(of(shared, tmp_path, "first", DEDUPE_CONCURRENT=True))
    with open_index(shared["DEDUPE_STORE_URL"]) as index:
        first.at_work(index)
        first.kill()
        # The setting is looked at when a crawl is begun.
        await crawl(LinkSpider, of(shared, tmp_path, "first"), urls=f"{web.url('/a')} {web.url('/b')}")
        (info,) = index.crawls()
        assert (info.state, info.concurrent) == ("committed", True)
        assert (info.counts.total_urls, info.counts.dupe_urls) == (4, 2)
    assert types_of(tmp_path / "first") == ["response", "response", "revisit", "revisit"]
    check(tmp_path / "first")
