"""What a killed crawl leaves for the next crawl of another id, and a crawl whose disk is full."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import check, files_of, records_of
from crawling import LinkSpider, crawl, crawl_test
from faults_site import KILLED_CRAWL, Hold, start_crawl
from programs import run_program
from webserver import Page

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.rebuilding import mend_others

if TYPE_CHECKING:
    from webserver import WebServer

PAGES = 40
WHOLE = b"WARC/1.1\r\nWARC-Type: metadata\r\nContent-Length: 2\r\n\r\nhi\r\n\r\n"


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def site(web: WebServer) -> None:
    links = "".join(f'<a href="/{number}">x</a>' for number in range(PAGES))
    web.page("/", f"<title>Start</title>{links}" + "<p>All roads begin here." * 60)
    for number in range(PAGES):
        body = os.urandom(2_000)

        def answer(handler: Any, body: bytes = body) -> Page:
            time.sleep(0.02)
            return Page(body, content_type="application/octet-stream")

        web.pages[f"/{number}"] = answer


def open_files(folder: Path) -> list[Path]:
    """The files that are being written, once there is one."""
    deadline = time.monotonic() + 240
    while not (found := list(folder.glob("*.open"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.fixture
def alone(stored: dict[str, Any]) -> dict[str, Any]:
    """Settings for a process of its own."""
    return stored | {
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "CONCURRENT_REQUESTS": 2,
        "DOWNLOAD_DELAY": 0,
        "LOG_LEVEL": "INFO",
    }


def kill_half_way(settings: dict[str, Any], web: WebServer) -> None:
    hold = Hold(web, 1 + PAGES // 2)
    site(web)
    process = start_crawl(settings, web.url("/"))
    was_half_way = hold.is_reached(process)
    # Most of what was answered is on the disk then.
    deadline = time.monotonic() + 240
    folder = Path(settings["DEDUPE_WARC_DIR"])
    while (
        was_half_way and sum(path.stat().st_size for path in folder.glob("*.open")) < 2_500 * 3 * PAGES // 8
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    _, log = process.communicate()
    hold.end()
    assert was_half_way, log


@crawl_test
async def test_the_next_crawl_mends_what_a_dead_one_left(
    alone: dict[str, Any],
    settings: dict[str, Any],
    web: WebServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = alone["DEDUPE_STORE_URL"]
    kill_half_way(alone | {"DEDUPE_CRAWL_ID": "dead"}, web)
    folder = tmp_path / "warcs"
    (left,) = folder.glob("*.open")
    with left.open("ab") as file:
        file.write(b"\x1f\x8b half a member")
    web.page("/one", "<p>one")
    await crawl(LinkSpider, settings | {"DEDUPE_STORE_URL": store}, urls=web.url("/one"))
    assert "The crawl dead was interrupted" in caplog.text
    assert not list(folder.glob("*.open"))
    check(folder)
    with open_index(store) as index:
        states = {info.id: info.state for info in index.crawls()}
    assert states.pop("dead") == "uncommitted"
    assert set(states.values()) == {"committed"}

    assert main(["commit", "dead", "--store", store, "--warc-dir", str(folder), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    name = left.name.removesuffix(".open")
    for other in files_of(folder):
        if other.name != name:
            other.unlink()
    principals = [r for r in records_of(folder) if r.type in ("response", "revisit")]
    assert len(principals) > PAGES // 4
    assert counts["totalUrls"] == len(principals)


@crawl_test
async def test_files_of_a_running_crawl_are_left_alone(
    alone: dict[str, Any], settings: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    hold = Hold(web, 5)
    site(web)
    process = start_crawl(alone | {"DEDUPE_CRAWL_ID": "running"}, web.url("/"))
    try:
        assert hold.is_reached(process)
        running = open_files(tmp_path / "warcs")
        web.page("/one", "<p>one")
        web.at_request = lambda: None
        store = {"DEDUPE_STORE_URL": alone["DEDUPE_STORE_URL"]}
        await crawl(LinkSpider, settings | store, urls=web.url("/one"))
        assert open_files(tmp_path / "warcs") == running != []
        hold.end()
        _, log = process.communicate(timeout=240)
    finally:
        process.kill()
        hold.end()
    assert process.returncode == 0, log
    check(tmp_path / "warcs")
    with open_index(alone["DEDUPE_STORE_URL"]) as index:
        assert {info.state for info in index.crawls()} == {"committed"}


def test_a_full_disk_ends_the_crawl_and_leaves_whole_records(
    alone: dict[str, Any], web: WebServer, tmp_path: Path, redis_url: str
) -> None:
    # The index in Redis, so that it is the archive which runs out of room.
    alone |= {"DEDUPE_STORE_URL": redis_url, "DEDUPE_CRAWL_ID": "full", "DEDUPE_WACZ": True}
    alone["DEDUPE_URL_STORE_URL"] = "local"
    site(web)
    done = run_program("python", "-c", LIMITED, KILLED_CRAWL, json.dumps(alone), web.url("/"))
    log = done.stderr
    assert done.returncode == 0, log
    assert "Spider closed (dedupe_archive_error)" in log
    assert "cannot be written to" in log
    assert "Traceback" not in log, log
    check(tmp_path / "warcs")
    principals = [r for r in records_of(tmp_path / "warcs") if r.type in ("response", "revisit")]
    assert principals
    assert list((tmp_path / "wacz").iterdir()) == []
    with open_index(redis_url) as index:
        (info,) = index.crawls()
        assert info.state == "uncommitted"
        assert info.counts.total_urls == len(principals)
        assert (
            main(["commit", "full", "--store", redis_url, "--warc-dir", str(tmp_path / "warcs"), "--no-wacz"])
            == 0
        )


def test_a_file_that_cannot_be_mended_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, data in (("a", b"not ours"), ("b", gzip.compress(WHOLE)), ("c", gzip.compress(WHOLE)[:-5])):
        (tmp_path / f"{name}.warc.gz.open").write_bytes(data)
    (tmp_path / "notes.open").write_bytes(b"nor this")
    with open_index(f"sqlite:///{tmp_path}/index.sqlite") as index:
        mended = mend_others(index, tmp_path)
    assert [(crawl, salvaged.file, salvaged.records) for crawl, salvaged in mended] == [
        ("without a name", "b.warc.gz", 1)
    ]
    assert {path.name for path in tmp_path.glob("*.open")} == {
        "a.warc.gz.open",
        "c.warc.gz.open",
        "notes.open",
    }
    assert caplog.text.count("has no whole record") == 3
