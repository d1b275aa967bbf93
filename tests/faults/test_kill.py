"""kill -9 in the middle of a crawl, and what the next run with the same JOBDIR makes of it."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from archives import check, files_of, records_of
from faults_site import Hold, start_crawl
from sampling import sampled
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.urls.folder import FilterFolder, LastStop

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

    from scrapy_dedupe.urls.bloom import GrowingBloomFilter

PAGES = 60


def garden(web: WebServer) -> None:
    """A page that links to all others."""
    links = "".join(f'<a href="/{number}">x</a>' for number in range(1, PAGES))
    web.page("/0", f"<title>Garden</title>{links}" + "<p>Every bed has a number." * 60)
    for number in range(1, PAGES):
        text = f"<title>{number}</title>" + f"<p>In bed {number} grow {number * 7} kinds of herbs." * 50
        web.page(f"/{number}", text)


def journaled(folder: Path) -> GrowingBloomFilter:
    """What the next run will know, read from a copy."""
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(folder / "job" / "dedupe" / "urls", folder / "copy" / "dedupe" / "urls")
    kept = FilterFolder(folder / "copy", "scrapy.utils.request.RequestFingerprinter")
    opened = kept.open(10_000, 1e-6)
    kept.abandon()
    assert opened.last_stop is LastStop.CUT
    return opened.filter


@pytest.mark.parametrize("store", sampled(["sqlite", "redis"], ["sqlite"]))
def test_a_killed_crawl_goes_on_where_the_journal_ends(
    store: str, web: WebServer, settings: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "redis":
        settings["DEDUPE_STORE_URL"] = request.getfixturevalue("redis_url")
        settings["DEDUPE_URL_STORE_URL"] = "local"
    settings |= {
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_FLUSH_SECONDS": 0.1,
        "CONCURRENT_REQUESTS": 2,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
        "DOWNLOAD_DELAY": 0,
        "LOG_LEVEL": "INFO",
    }
    hold = Hold(web, PAGES // 2)
    garden(web)
    process = start_crawl(settings, web.url("/0"))

    def done() -> set[str]:
        known = journaled(tmp_path)
        return {path for path in web.paths if fingerprint(Request(web.url(path))) in known}

    try:
        is_half_way = hold.is_reached(process)
        deadline = time.monotonic() + 240
        while is_half_way and len(done()) <= PAGES // 4:
            assert time.monotonic() < deadline, "most of what was done is journaled"
            time.sleep(0.05)
    finally:
        process.kill()
        _, log = process.communicate()
        hold.end()
    assert is_half_way, log
    assert list((tmp_path / "warcs").glob("*.open"))

    before, were_done = list(web.paths), done()
    web.paths.clear()
    web.at_request = lambda: None

    process = start_crawl(settings, web.url("/0"))
    _, log = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "Traceback" not in log, log
    assert "did not end cleanly" in log
    assert (tmp_path / "job" / "requests.queue.cut-1").is_dir(), (
        "what Scrapy could choke on is out of its way"
    )

    assert not (were_done - {"/0"}) & set(web.paths), "no page that the journal knew was asked for again"
    assert set(before) | set(web.paths) >= {f"/{number}" for number in range(PAGES)}, "and none was lost"

    assert not list((tmp_path / "warcs").glob("*.open"))
    check(tmp_path / "warcs")
    assert len(files_of(tmp_path / "warcs")) == 2
    principals = [r for r in records_of(tmp_path / "warcs") if r.type in {"response", "revisit"}]
    responses = {record.id for record in principals if record.type == "response"}
    for record in principals:
        assert record.type == "response" or record.headers["WARC-Refers-To"] in responses
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
    assert info.state == "committed"
    assert info.counts.total_urls == len(principals)
    assert info.counts.dupe_urls == len(principals) - len(responses)
