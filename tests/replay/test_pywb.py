"""pywb, a replay program of the web archives, shows what our revisit records refer to.

pywb wants a redis client of 2014, so it cannot live in our environment: ``tox -e replay`` makes one for it and
names its folder of programs in PYWB_BIN. Without that variable the programs are looked for on the PATH.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from archives import files_of
from crawling import LinkSpider, crawl, crawl_test
from recorded_crawls import record_crawl, rendered
from replay.wayback import IS_MISSING, Wayback
from replay_site import DECODERS, Site

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import Counts, Original, Source
from scrapy_dedupe.stores.normal_forms import digest_and_form
from scrapy_dedupe.warc import capture as exchanges
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from replay_site import Capture
    from webserver import WebServer

pytestmark = pytest.mark.skipif(IS_MISSING, reason="pywb is not there; use tox -e replay")


class Replay(Wayback):
    """A pywb server with one collection that holds the given files, WARC or WACZ."""

    def open(self, files: Iterable[Path]) -> None:
        self.add("lake", files)
        self.start()

    def shown(self, moment: str, url: str) -> tuple[int, str | None, bytes]:
        """The status, the number of the exchange and the body of what is shown."""
        shown = self.get("lake", moment, url)
        return shown.status, shown.exchange, DECODERS[shown.coding](shown.body)


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    folder = tmp_path / "replay"
    folder.mkdir()
    replay = Replay(folder)
    yield replay
    replay.stop()


def assert_shown(replay: Replay, captures: list[Capture]) -> None:
    """Each capture, asked for by its own time, is shown with its own head and with its original's body."""
    for capture in captures:
        shown = replay.shown(capture.time[:14], capture.url)
        wanted = (capture.status, capture.exchange, capture.body)
        assert shown == wanted, (capture.crawl, capture.record.type, capture.url)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@crawl_test
async def test_every_capture_of_two_crawls_replays_with_its_own_head_and_the_bytes_of_its_original(
    store: str,
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    replay: Replay,
    request: pytest.FixtureRequest,
) -> None:
    if store == "redis":
        settings["DEDUPE_STORE_URL"] = request.getfixturevalue("redis_url")
    site = Site(web)
    captures = await site.crawl_twice(settings, tmp_path)
    site.check(captures)
    replay.open([*files_of(tmp_path / "first"), *files_of(tmp_path / "second")])
    assert_shown(replay, captures)


@crawl_test
async def test_the_containers_of_two_crawls_replay_like_their_files(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, replay: Replay
) -> None:
    site = Site(web)
    captures = await site.crawl_twice(
        {**settings, "DEDUPE_WACZ": True, "DEDUPE_WACZ_DIR": str(tmp_path / "waczs")}, tmp_path
    )
    site.check(captures)
    containers = sorted((tmp_path / "waczs").glob("*.wacz"))
    assert len(containers) == 2
    replay.open(containers)
    assert_shown(replay, captures)


@crawl_test
async def test_a_recrawl_with_the_archive_as_http_cache_replays_with_all_bodies(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, replay: Replay
) -> None:
    site = Site(web, has_tags=True)
    captures = await site.crawl_twice(settings, tmp_path)
    site.check(captures)
    replay.open([*files_of(tmp_path / "first"), *files_of(tmp_path / "second")])
    assert_shown(replay, captures)


@pytest.mark.parametrize("form", ["sha-256:{hex}", "sha1:{hex}"])
@crawl_test
async def test_a_revisit_of_an_original_with_an_unusual_digest_replays(
    web: WebServer, settings: dict[str, Any], tmp_path: Path, replay: Replay, form: str
) -> None:
    body = b"<p>Reed warblers " + b"sing at night. " * 200
    algorithm = "sha1" if form.startswith("sha1") else "sha256"
    theirs = exchanges.Capture(
        url="http://example.org/theirs",
        method="GET",
        status=200,
        date=datetime(2026, 8, 1, tzinfo=UTC),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=body,
    )
    written = form.format(hex=hashlib.new(algorithm, body).hexdigest())
    response = records.response(theirs, digest=theirs.payload_digest(algorithm))
    fields = tuple(
        (name, written if name == "WARC-Payload-Digest" else value) for name, value in response.headers
    )
    with WarcWriter(tmp_path / "theirs", "theirs", info={}) as writer:
        (place,) = writer.write([replace(response, headers=fields)])
    (file,) = files_of(tmp_path / "theirs")
    (record,) = (record for record in read_records(file) if record.type == "response")
    assert record.get("WARC-Payload-Digest") == written
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        source = Source(str(file), "theirs", str(file))
        digest, digest_form = digest_and_form(written)
        assert digest is not None
        index.begin_source(source, "stored")
        original = Original(
            digest=digest,
            crawl="theirs",
            date="20260801000000000",
            url=theirs.url,
            size=place.length,
            file=str(file),
            offset=place.offset,
            form=digest_form,
        )
        index.add_imported(source, [original])
        index.end_source(source, Counts(total_urls=1))
    web.page("/ours", body)
    await crawl(LinkSpider, settings | {"DEDUPE_WARC_DIGEST": algorithm}, urls=web.url("/ours"))
    ours = files_of(tmp_path / "warcs")
    (revisit,) = (record for path in ours for record in read_records(path) if record.type == "revisit")
    assert revisit.get("WARC-Payload-Digest") == written
    replay.open([file, *ours])
    status, _, shown = replay.shown(str(revisit.date).replace("-", "")[:8], web.url("/ours"))
    assert (status, shown) == (200, body)


def test_a_page_of_a_browser_is_shown_though_no_server_sent_it(
    settings: dict[str, Any], tmp_path: Path, replay: Replay
) -> None:
    page = rendered(1)
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        files = record_crawl(index, tmp_path, "browsed", [page])
    replay.open(files)
    shown = replay.shown(page.warc_date.translate(str.maketrans("", "", "-T:"))[:14], page.url)
    assert shown == (200, None, page.body)
