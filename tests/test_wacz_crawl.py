"""Crawls that are packed as WACZ, and files that are moved elsewhere at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from archives import files_of, records_of, validate
from crawling import LinkSpider, crawl, crawl_test

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from webserver import WebServer


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name} &amp; birds</title><p>" + " ".join(
        f"{words.getrandbits(40):x}" for _ in range(300)
    )


def read_json(path: Path, member: str) -> Any:
    with zipfile.ZipFile(path) as container:
        return json.loads(container.read(member))


def pages_of(path: Path) -> list[dict[str, Any]]:
    with zipfile.ZipFile(path) as container:
        return [json.loads(line) for line in container.read("pages/pages.jsonl").splitlines()][1:]


@pytest.fixture
def packing(stored: dict[str, Any], web: WebServer) -> dict[str, Any]:
    """Settings of a crawl that is packed, and a site for it."""
    web.page("/", text("home") + '<a href="/a">a</a><a href="/copy">copy</a><a href="/gone">gone</a>')
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    web.page("/gone", "<title>Gone</title>", status=410)
    return stored | {"DEDUPE_WACZ": True}


@crawl_test
async def test_a_crawl_is_packed_with_what_it_depends_on(
    packing: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    folder = tmp_path / "wacz"
    await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "one"}, urls=web.url())
    crawler = await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "two"}, urls=web.url())
    one, two = folder / "one.wacz", folder / "two.wacz"
    for path in (one, two):
        validate(path)
    assert crawler.stats.get_value("dedupe/wacz/captures") == 4
    assert crawler.stats.get_value("dedupe/wacz/pages") == 3
    assert crawler.stats.get_value("dedupe/wacz/bytes_written") == two.stat().st_size
    assert "relation" not in read_json(one, "datapackage.json")
    needed = {
        "filename": "one.wacz",
        "hash": hashlib.sha256(one.read_bytes()).hexdigest(),
        "size": one.stat().st_size,
        "crawlId": "one",
    }
    assert read_json(two, "datapackage.json")["relation"] == {"requires": [needed]}
    manifest = json.loads((folder / "two.multi-wacz.json").read_bytes())
    for resource, path in zip(manifest["resources"], (two, one), strict=True):
        assert (folder / resource["path"]) == path
        assert resource["hash"] == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert resource["size"] == path.stat().st_size
        assert resource["crawlId"] == path.stem
    revisits = [r for file in files_in(two) for r in read_records(file) if r.type == "revisit"]
    assert {r.get("WARC-Refers-To-Container") for r in revisits} == {"file://one.wacz"}
    with open_index(packing["DEDUPE_STORE_URL"]) as index:
        assert index.containers("one") == [
            {name: needed[name] for name in ("filename", "hash", "size")},
        ]
        assert {info.id: info.counts.total_crawl_size for info in index.crawls()} == {
            "one": one.stat().st_size,
            "two": two.stat().st_size,
        }


@crawl_test
async def test_pages_have_titles_also_those_of_revisits(
    packing: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    packing["DEDUPE_WACZ_TEXT"] = True
    for crawl_id in ("one", "two"):
        await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": crawl_id}, urls=web.url())
        pages = {page["url"]: page for page in pages_of(tmp_path / "wacz" / f"{crawl_id}.wacz")}
        assert {url: page["title"] for url, page in pages.items()} == {
            web.url("/"): "home & birds",
            web.url("/a"): "a & birds",
            web.url("/copy"): "a & birds",
        }
        assert all(len(page["text"]) > 1_000 for page in pages.values())


@crawl_test
async def test_warc_files_that_are_not_kept_are_in_the_wacz_and_serve_as_originals(
    packing: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    packing["DEDUPE_WACZ_KEEP_WARC"] = False
    for crawl_id in ("one", "two"):
        crawler = await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": crawl_id}, urls=web.url())
        assert files_of(tmp_path / "warcs") == []
    assert crawler.stats.get_value("dedupe/warc/revisit") == 3
    pages = pages_of(tmp_path / "wacz" / "two.wacz")
    assert {page["title"] for page in pages} == {"home & birds", "a & birds"}


class Stopping(LinkSpider):
    """Stops as Ctrl-C does."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        raise scrapy.exceptions.CloseSpider("shutdown")


@crawl_test
async def test_a_crawl_that_is_not_committed_is_packed_when_it_is(
    packing: dict[str, Any], web: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = packing["DEDUPE_STORE_URL"]
    packing |= {"DEDUPE_CRAWL_ID": "one"}
    await crawl(Stopping, packing, urls=web.url())
    folder = tmp_path / "wacz"
    assert list(folder.iterdir()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["warc", "pack", "one", "--store", store, "--json"]) == 0
        packed = json.loads(capsys.readouterr().out)
        assert packed["captures"] >= 1
        validate(Path(packed["wacz"]))
        # Once more, since it is not committed yet.
        assert main(["commit", "one", "--store", store, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "committed"
        assert main(["warc", "pack", "one", "--store", store]) == 3
        assert "committed" in capsys.readouterr().err
    with open_index(store) as index:
        (container,) = index.containers("one")
    assert container["hash"] == hashlib.sha256((tmp_path / packed["wacz"]).read_bytes()).hexdigest()


@crawl_test
async def test_a_wacz_that_was_made_too_early_is_made_anew_with_all_of_the_crawl(
    packing: dict[str, Any], web: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = packing["DEDUPE_STORE_URL"]
    packing |= {"DEDUPE_CRAWL_ID": "one", "JOBDIR": str(tmp_path / "job"), "DEDUPE_URL_STORE_URL": "local"}
    await crawl(Stopping, packing, urls=web.url())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["warc", "pack", "one", "--store", store]) == 0
        await crawl(Stopping, packing | {"DEDUPE_WACZ": False}, urls=web.url("/a"))
        assert main(["commit", "one", "--store", store, "--json"]) == 0
    capsys.readouterr()
    packed = {file.name for file in files_in(tmp_path / "wacz" / "one.wacz")}
    assert packed == {path.name for path in files_of(tmp_path / "warcs")}
    assert len(packed) == 2


@crawl_test
async def test_a_wait_that_is_given_up_loses_no_record(
    settings: dict[str, Any], web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.page("/a", text("a"))
    write = WarcWriter.write
    is_asked, is_writing, goes_on = threading.Event(), threading.Event(), threading.Event()

    def slow(self: WarcWriter, records: Any) -> Any:
        if is_asked.is_set():
            is_writing.set()
            goes_on.wait(240)
        return write(self, records)

    monkeypatch.setattr(WarcWriter, "write", slow)

    class Impatient(LinkSpider):
        arrived = 0

        def arrive(self) -> None:
            self.arrived += 1

        async def parse(self, response: Any, **kwargs: Any) -> Any:
            download = getattr(self.crawler.engine, "download_async", None)
            if download is None:  # Scrapy 2.13
                return
            self.crawler.signals.connect(self.arrive, signal=scrapy.signals.response_downloaded)
            is_asked.set()
            loop = asyncio.get_running_loop()
            requests = [scrapy.Request(response.urljoin(path), dont_filter=True) for path in ("/b", "/c")]
            tasks = [loop.create_task(download(request)) for request in requests]
            # One of the two is being written then, the other one waits for that.
            deadline = time.monotonic() + 240
            while (  # noqa: ASYNC110 - the writing is another thread's
                self.arrived < 2 or not is_writing.is_set()
            ) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            goes_on.set()
            yield {"url": response.url}

    web.page("/b", text("b"))
    web.page("/c", text("c"))
    settings["DEDUPE_CONTENT_ENABLED"] = False
    crawler = await crawl(Impatient, settings, urls=web.url("/a"))
    recorded = [record.uri for record in records_of(tmp_path / "warcs") if record.type == "response"]
    assert sorted(recorded) == [web.url(path) for path in ("/a", "/b", "/c")[: len(web.paths)]]
    assert crawler.stats.get_value("dedupe/warc/response") == len(web.paths)


@crawl_test
async def test_a_wacz_refers_to_nothing_that_could_not_be_replayed_with_it(
    packing: dict[str, Any],
    web: WebServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "plain", "DEDUPE_WACZ": False}, urls=web.url())
    crawler = await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "one"}, urls=web.url())
    assert crawler.stats.get_value("dedupe/warc/revisit") == 1, "a copy within the crawl"
    assert "`scrapy dedupe warc pack plain` creates one" in caplog.text
    assert "relation" not in read_json(tmp_path / "wacz" / "one.wacz", "datapackage.json")

    web.page("/new", text("new"))
    await crawl(
        LinkSpider, packing | {"DEDUPE_CRAWL_ID": "plain-too", "DEDUPE_WACZ": False}, urls=web.url("/new")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        words = ["warc", "pack", "plain-too", "--store", packing["DEDUPE_STORE_URL"]]
        assert main(words) == 0
        assert "has 1 capture " in capsys.readouterr().out
    crawler = await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "two"}, urls=web.url("/new"))
    assert crawler.stats.get_value("dedupe/warc/revisit") == 1
    (needed,) = read_json(tmp_path / "wacz" / "two.wacz", "datapackage.json")["relation"]["requires"]
    assert needed["filename"] == "plain-too.wacz"


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "deflate"},
        {"Content-Encoding": "br"},
        {"Content-Encoding": "zstd"},
        {"Content-Type": "text/html; charset=zlib"},
        {"Content-Type": "text/html; charset=idna"},
        {"Content-Type": "text/html; charset=nothing"},
    ],
    ids=lambda headers: next(iter(headers.values())).rpartition("=")[2],
)
@crawl_test
async def test_a_page_that_nobody_can_decode_is_packed_without_a_title(
    headers: dict[str, str], settings: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    body = b"\x1f\x8b\x08\x00 <title>no such thing" + bytes(range(256)) * 8
    content_type = headers.pop("Content-Type", "text/html")
    web.page("/odd", body, content_type=content_type, headers=list(headers.items()))
    web.page("/good", text("good"))
    settings |= {"DEDUPE_WACZ": True, "DEDUPE_WACZ_TEXT": True, "DEDUPE_CRAWL_ID": "one"}
    await crawl(LinkSpider, settings, urls=f"{web.url('/odd')} {web.url('/good')}")
    validate(tmp_path / "wacz" / "one.wacz")
    titles = {page["url"]: page.get("title") for page in pages_of(tmp_path / "wacz" / "one.wacz")}
    assert titles[web.url("/good")] == "good & birds"
    assert set(titles) == {web.url("/odd"), web.url("/good")}
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["committed"]


@crawl_test
async def test_the_wacz_of_somebody_else_is_not_overwritten(
    packing: dict[str, Any], web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "wacz" / "one.wacz"
    other.parent.mkdir()
    other.write_bytes(b"not ours")
    packing |= {"DEDUPE_CRAWL_ID": "one"}
    await crawl(LinkSpider, packing, urls=web.url())
    assert other.read_bytes() == b"not ours"
    assert "Move it away" in caplog.text
    with open_index(packing["DEDUPE_STORE_URL"]) as index:
        assert [info.state for info in index.crawls()] == ["uncommitted"]


@crawl_test
async def test_finished_files_are_moved_and_still_serve_as_originals(
    stored: dict[str, Any], web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    names = [f"/{number}" for number in range(8)]
    for name in names:
        web.page(name, text(name))
    stored |= {"DEDUPE_WARC_UPLOAD_URL": storage.as_uri(), "DEDUPE_WARC_FILE_SIZE": 5_000}
    for _ in range(2):
        crawler = await crawl(LinkSpider, stored, urls=" ".join(map(web.url, names)))
    assert files_of(tmp_path / "warcs") == []
    assert "files moved to" in caplog.text
    assert len(files_of(storage)) >= 5
    assert crawler.stats.get_value("dedupe/warc/revisit") == len(names)
    with open_index(stored["DEDUPE_STORE_URL"]) as index:
        named = {Path(file) for info in index.crawls() for file in info.files}
        responses = [r for path in files_of(storage) for r in read_records(path) if r.type == "response"]
        found = index.find("another", [str(r.payload_digest) for r in responses])
    assert named == set(files_of(storage))
    assert [entry and entry.file for entry in found] == [str(r.path) for r in responses]


@crawl_test
async def test_a_job_that_goes_on_moves_what_its_last_run_had_no_time_to(
    settings: dict[str, Any], web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    settings |= {"DEDUPE_WARC_UPLOAD_URL": str(storage), "JOBDIR": str(tmp_path / "job")}
    for number, name in enumerate(("/a", "/b", "/c")):
        web.page(name, text(name))
        await crawl(Stopping, settings, urls=web.url(name))
        assert len(files_of(storage)) == number + 1
    left = files_of(storage)[1]
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
        index.rename_file(info.id, str(left), str(tmp_path / "warcs" / left.name))
    left.rename(tmp_path / "warcs" / left.name)
    crawler = await crawl(LinkSpider, settings, urls=web.url("/a"))
    assert len(files_of(storage)) == 4
    assert files_of(tmp_path / "warcs") == []
    assert not crawler.stats.get_value("dedupe/errors/upload")
    assert "NOT moved" not in caplog.text


@crawl_test
async def test_a_wacz_is_moved_with_its_manifest(
    packing: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    packing |= {"DEDUPE_WARC_UPLOAD_URL": storage.as_uri(), "DEDUPE_WACZ_KEEP_WARC": False}
    for crawl_id in ("one", "two"):
        crawler = await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": crawl_id}, urls=web.url())
    assert sorted(path.name for path in storage.iterdir()) == [
        "one.multi-wacz.json",
        "one.wacz",
        "two.multi-wacz.json",
        "two.wacz",
    ]
    assert list((tmp_path / "wacz").iterdir()) == []
    assert crawler.stats.get_value("dedupe/warc/revisit") == 3
    validate(storage / "two.wacz")


@crawl_test
async def test_names_by_serial_number_alone_are_not_used_again_for_files_that_were_moved(
    settings: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    settings |= {"DEDUPE_WARC_UPLOAD_URL": str(storage), "DEDUPE_WARC_NAME": "lake-{serial}"}
    for name in ("/a", "/b"):
        web.page(name, text(name))
        await crawl(LinkSpider, settings, urls=web.url(name))
    assert [path.name for path in files_of(storage)] == ["lake-00000.warc.gz", "lake-00001.warc.gz"]


@crawl_test
async def test_a_container_that_is_not_in_the_storage_is_told(
    packing: dict[str, Any], web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "one"}, urls=web.url())
    (tmp_path / "wacz").rename(tmp_path / "elsewhere")
    storage = tmp_path / "storage"
    storage.mkdir()
    packing["DEDUPE_WARC_UPLOAD_URL"] = str(storage)
    await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "two"}, urls=web.url())
    assert "refers to records in one.wacz, which is missing from its folder" in caplog.text
    caplog.clear()
    (tmp_path / "elsewhere" / "one.wacz").rename(storage / "one.wacz")
    await crawl(LinkSpider, packing | {"DEDUPE_CRAWL_ID": "three"}, urls=web.url())
    assert "which is missing from its folder" not in caplog.text


@crawl_test
async def test_files_are_not_moved_to_where_they_are_written(
    settings: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    (tmp_path / "warcs").mkdir()
    settings["DEDUPE_WARC_UPLOAD_URL"] = str(tmp_path / "warcs" / ".." / "warcs")
    with pytest.raises(Exception, match="the folder in which the files are written"):
        await crawl(LinkSpider, settings, urls=web.url())


@crawl_test
async def test_a_storage_that_is_not_there_is_refused_at_the_start(
    settings: dict[str, Any], web: WebServer, tmp_path: Path
) -> None:
    settings["DEDUPE_WARC_UPLOAD_URL"] = (tmp_path / "missing").as_uri()
    with pytest.raises(Exception, match=r"DEDUPE_WARC_UPLOAD_URL: .*missing"):
        await crawl(LinkSpider, settings, urls=web.url())
    assert web.paths == []


@crawl_test
async def test_files_that_cannot_be_moved_stay(
    settings: dict[str, Any], web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    web.page("/a", text("a"))
    settings |= {
        "DEDUPE_WARC_UPLOAD_URL": storage.as_uri(),
        "DEDUPE_WARC_NAME": "fixed-{serial}",
        "DEDUPE_CRAWL_ID": "one",
    }
    (storage / "fixed-00000.warc.gz").write_bytes(b"of another crawl")
    await crawl(LinkSpider, settings, urls=web.url("/a"))
    (stays,) = files_of(tmp_path / "warcs")
    assert stays.name == "fixed-00000.warc.gz"
    assert (storage / stays.name).read_bytes() == b"of another crawl"
    assert "NOT moved" in caplog.text
    with open_index(settings["DEDUPE_STORE_URL"]) as index:
        (info,) = index.crawls()
    assert (info.state, info.files) == ("committed", (str(stays),))
