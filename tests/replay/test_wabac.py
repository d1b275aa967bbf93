"""wabac, the engine of replayweb.page, opens our WACZ and multi-WACZ files in a headless Chromium.

``tox -e replay`` installs the engine with npm and names its folder in WABAC_DIR; without that variable the tests are
skipped. With it, a missing browser or engine is a failure. The browser is looked for on the PATH, or named in
CHROMIUM_BIN. In package.json, warcio is overridden since wabac 2.27.3 asks for a version that was never published,
and puppeteer-core stays under 25, which wants Node.js 22.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import records_of
from chromium import browser
from crawling import crawl, crawl_test
from recorded_crawls import record_crawl, rendered
from replay_site import Site, next_second
from webserver import Page

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.warc import cdxj, wacz

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay_site import Capture
    from webserver import WebServer

DRIVER = Path(__file__).parent / "wabac" / "driver.mjs"

pytestmark = pytest.mark.skipif("WABAC_DIR" not in os.environ, reason="wabac is not there; use tox -e replay")


def replay(source: Path, asked: list[dict[str, str]]) -> dict[str, Any]:
    """What the engine says of the WACZ or multi-WACZ *source*, and what it shows for each capture."""
    done = subprocess.run(
        ["node", str(DRIVER), str(source.parent)],
        input=json.dumps({"source": source.name, "asked": asked}),
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
        env={**os.environ, "CHROMIUM_BIN": browser()},
    )
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def questions(captures: Iterable[Capture], containers: dict[str, str]) -> list[dict[str, str]]:
    """Each capture by its own time, in the container of its own crawl."""
    return [
        {"time": capture.time, "url": capture.url, "container": containers[capture.crawl]}
        for capture in captures
    ]


def digest_shown(capture: Capture) -> str:
    """The SHA-256 of the body as the engine gives it: it undoes gzip, and leaves deflate to the browser."""
    body = capture.stored if capture.coding == "deflate" else capture.body
    return hashlib.sha256(body).hexdigest()


def assert_shown(captures: list[Capture], answers: list[dict[str, Any]]) -> None:
    """Each capture is shown with its original's body, and with a head of its own or of its original."""
    for capture, shown in zip(captures, answers, strict=True):
        where = (capture.crawl, capture.record.type, capture.url, shown)
        assert shown["sha256"] == digest_shown(capture), where
        assert shown["status"] == capture.status, where
        # Which of the two heads is a matter of what the engine has in its cache.
        assert shown["exchange"] in {capture.exchange, dict(capture.original.http_headers)["X-Exchange"]}, (
            where
        )


@pytest.fixture
def folder(tmp_path: Path, settings: dict[str, Any]) -> Path:
    """Where the crawls put their containers."""
    settings.update({"DEDUPE_WACZ": True, "DEDUPE_WACZ_DIR": str(tmp_path / "waczs")})
    return tmp_path / "waczs"


def container_of(folder: Path, crawled: str) -> Path:
    (container,) = folder.glob(f"*{crawled}*.wacz")
    return container


def hashes(manifest: Path) -> dict[str, str]:
    """The hash of each crawl's container in a multi-WACZ JSON, by which the engine knows it."""
    resources = json.loads(manifest.read_text("utf-8"))["resources"]
    return {resource["crawlId"]: resource["hash"].removeprefix("sha256:") for resource in resources}


@pytest.mark.parametrize("index", ["plain", "compressed"])
@crawl_test
async def test_a_multi_wacz_replays_every_capture_with_the_bytes_of_its_original(
    index: str,
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if index == "compressed":
        monkeypatch.setattr(wacz, "PLAIN_LINES", 1)
        monkeypatch.setattr(cdxj, "BLOCK_LINES", 4)
    site = Site(web)
    captures = await site.crawl_twice(settings, tmp_path)
    site.check(captures)
    for crawled in ("first", "second"):
        with zipfile.ZipFile(container_of(folder, crawled)) as container:
            is_compressed = any(name.endswith(".idx") for name in container.namelist())
        assert is_compressed == (index == "compressed")
    manifest = folder / "second.multi-wacz.json"
    containers = hashes(manifest)
    assert set(containers) == {"first", "second"}
    # The captures of the second crawl are asked for first, so that the engine has to find the first container itself.
    shown = replay(manifest, questions(captures, containers))
    assert_shown(captures, shown["answers"])


@crawl_test
async def test_a_recrawl_with_the_archive_as_http_cache_replays_with_all_bodies(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, folder: Path
) -> None:
    site = Site(web, has_tags=True)
    captures = await site.crawl_twice(settings, tmp_path)
    site.check(captures)
    manifest = folder / "second.multi-wacz.json"
    shown = replay(manifest, questions(captures, hashes(manifest)))
    assert_shown(captures, shown["answers"])


@crawl_test
async def test_a_wacz_that_needs_no_other_replays_alone(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, folder: Path
) -> None:
    site = Site(web)
    captures = await site.crawl_twice(settings, tmp_path)
    alone = [capture for capture in captures if capture.crawl == "first"]
    assert any(capture.record.type == "revisit" for capture in alone)
    shown = replay(
        container_of(folder, "first"),
        [{"time": capture.time, "url": capture.url} for capture in alone],
    )
    assert_shown(alone, shown["answers"])
    pages = {page["url"]: page["title"] for page in shown["collection"]["pages"]}
    assert pages[web.url("/a")] == "a"


@crawl_test
async def test_a_wacz_without_those_that_it_needs_cannot_show_its_revisits(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, folder: Path
) -> None:
    site = Site(web)
    captures = await site.crawl_twice(settings, tmp_path)
    later = [
        capture for capture in captures if capture.crawl == "second" and capture.record.type == "revisit"
    ]
    shown = replay(
        container_of(folder, "second"),
        [{"time": capture.time, "url": capture.url} for capture in later],
    )
    for capture, answer in zip(later, shown["answers"], strict=True):
        assert answer["sha256"] != digest_shown(capture), (capture.url, answer)


class ImpatientSpider(scrapy.Spider):
    """Asks for one URL twice in a row."""

    name = "impatient"
    url = ""

    async def start(self) -> Any:
        for _ in range(2):
            yield scrapy.Request(self.url, dont_filter=True)

    def parse(self, response: Any, **kwargs: Any) -> None:
        pass


@crawl_test
async def test_captures_of_one_url_within_a_second_are_all_shown(
    web: WebServer, settings: dict[str, Any], folder: Path
) -> None:
    exchanges = itertools.count()
    web.pages["/"] = lambda _: Page(b"<p>" + b"%d " % next(exchanges) * 1000)
    await next_second()
    await crawl(
        ImpatientSpider,
        {**settings, "CONCURRENT_REQUESTS": 1, "DEDUPE_CRAWL_ID": "only"},
        url=web.url("/"),
    )
    records = [
        record
        for record in records_of(Path(settings["DEDUPE_WARC_DIR"]))
        if record.type == "response" and record.uri == web.url("/")
    ]
    assert len({record.payload for record in records}) == 2
    dates = [record.headers["WARC-Date"] for record in records]
    assert dates[0][:19] == dates[1][:19], "another second has begun"
    manifest = folder / "only.multi-wacz.json"
    # Without the container the engine sends the browser on to the second of the capture.
    container = hashes(manifest)["only"]
    moments = ["".join(char for char in date if char.isdigit()) for date in dates]
    asked = [{"time": moment, "url": web.url("/"), "container": container} for moment in moments]
    shown = [answer["sha256"] for answer in replay(manifest, asked)["answers"]]
    assert shown == [hashlib.sha256(record.payload).hexdigest() for record in records]


def test_a_page_of_a_browser_is_shown_though_no_server_sent_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    page = rendered(1)
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (container,) = record_crawl(index, tmp_path, "browsed", [page], in_wacz=True)
    moment = "".join(char for char in page.warc_date if char.isdigit())
    (answer,) = replay(container, [{"time": moment, "url": page.url}])["answers"]
    assert (answer["status"], answer["sha256"]) == (200, hashlib.sha256(page.body).hexdigest())
