"""``DEDUPE_DUPLICATES_LOG``: a line of JSON for each duplicate, whatever happens to the file."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import records_of
from crawling import LinkSpider, crawl, crawl_test
from hypothesis import given
from hypothesis import strategies as st
from programs import Program
from webserver import Page

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.files.appended_lines import AppendedLines
from scrapy_dedupe.live.observers.duplicates_log import FIELDS, MAX_URL_CHARS
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from webserver import WebServer

DOCS = Path(__file__).parent.parent / "docs" / "reference" / "duplicates_log.rst"


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def logs_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.jsonl"))


@pytest.fixture
def logged(settings: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    settings["DEDUPE_DUPLICATES_LOG"] = tmp_path / "logs" / "duplicates.jsonl"
    settings["CONCURRENT_REQUESTS"] = 1
    return settings


@crawl_test
async def test_each_layer_says_what_repeats_what(
    web: WebServer, logged: dict[str, Any], tmp_path: Path
) -> None:
    near = text("a").replace("<p>", "<p>one more word ")
    web.page(
        "/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/near">3</a><a href="/a">4</a>'
    )
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    web.page("/near", near)
    logged.update(DEDUPE_ACTION_EXACT="drop", DEDUPE_CRAWL_ID="c1", DEPTH_PRIORITY=0)
    crawler = await crawl(LinkSpider, logged, urls=web.url())
    lines = lines_of(logged["DEDUPE_DUPLICATES_LOG"])
    assert [list(line) for line in lines] == [list(FIELDS)] * 4
    assert {(line["crawl"], line["spider"]) for line in lines} == {("c1", "links")}
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in lines)
    by_kind = {line["kind"]: line for line in lines}
    told = {name: value for name, value in by_kind["seen"].items() if value is not None}
    assert told.keys() == {"time", "crawl", "spider", "layer", "kind", "url"}
    assert (told["layer"], told["url"]) == ("url", web.url("/a"))
    # Which of the pages came first is Scrapy's affair.
    exact, alike = by_kind["exact"], by_kind["near"]
    assert {exact["url"], exact["original_url"]} == {web.url("/a"), web.url("/copy")}
    assert (exact["layer"], exact["original_crawl"], exact["similarity"], exact["dropped"]) == (
        "content",
        "c1",
        1.0,
        True,
    )
    assert (alike["layer"], alike["dropped"]) == ("content", False)
    assert 0.85 <= alike["similarity"] <= 1
    revisit = by_kind["revisit"]
    assert revisit["layer"] == "warc"
    record = read_record(tmp_path / "warcs" / revisit["file"], revisit["offset"])
    assert (record.type, record.id, record.target_uri) == ("revisit", revisit["record_id"], revisit["url"])
    headers = dict(record.headers)
    assert headers["WARC-Refers-To-Target-URI"] == revisit["original_url"]
    assert headers["WARC-Refers-To-Date"] == revisit["original_time"]
    assert str(record.payload_digest) == revisit["digest"]
    assert revisit["bytes_conserved"] == crawler.stats.get_value("dedupe/warc/bytes_conserved") > 0
    assert crawler.stats.get_value("dedupe/log/lines") == 4


@crawl_test
async def test_a_second_crawl_adds_what_is_unchanged_and_not_modified(
    web: WebServer, logged: dict[str, Any]
) -> None:
    tag = ("ETag", '"1"')

    def page(request: Any) -> Page:
        if request.headers.get("If-None-Match"):
            return Page(status=304, headers=[tag])
        return Page(text("a").encode(), headers=[tag])

    web.pages["/a"] = page

    class AskingAgain(LinkSpider):
        async def start(self) -> Any:
            async for request in super().start():
                yield request
                yield request.replace(headers={"If-None-Match": '"1"'})

        def parse(self, response: Any, **kwargs: Any) -> None:
            return None

    await crawl(LinkSpider, {**logged, "DEDUPE_CRAWL_ID": "first"}, urls=web.url("/a"))
    assert lines_of(logged["DEDUPE_DUPLICATES_LOG"]) == []
    await crawl(AskingAgain, {**logged, "DEDUPE_CRAWL_ID": "second"}, urls=web.url("/a"))
    lines = lines_of(logged["DEDUPE_DUPLICATES_LOG"])
    assert sorted((line["layer"], line["kind"], line["original_crawl"]) for line in lines) == [
        ("content", "unchanged", "first"),
        ("warc", "not-modified", "first"),
        ("warc", "revisit", "first"),
    ]


@pytest.mark.parametrize("layers", [["content", "warc"], "url"])
@crawl_test
async def test_layers_can_be_left_out(layers: Any, web: WebServer, logged: dict[str, Any]) -> None:
    web.page("/", text("home") + '<a href="/a">1</a><a href="/copy">2</a><a href="/a">3</a>')
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    logged["DEDUPE_DUPLICATES_LOG_LAYERS"] = layers
    crawler = await crawl(LinkSpider, logged, urls=web.url())
    lines = lines_of(logged["DEDUPE_DUPLICATES_LOG"])
    assert sorted(line["layer"] for line in lines) == ([layers] if layers == "url" else layers)
    assert crawler.stats.get_value("dupefilter/filtered") == 1
    assert crawler.stats.get_value("dedupe/log/lines") == len(lines)


@crawl_test
async def test_nothing_in_a_url_ends_a_line(web: WebServer, logged: dict[str, Any]) -> None:
    hostile = "/a?<script>\u2028\u0085" + "x" * 30_000
    web.page("/", "".join(f'<a href="{hostile}">{n}</a>' for n in range(2)))
    logged.update(DEDUPE_WARC_ENABLED=False, DEDUPE_CONTENT_ENABLED=False, URLLENGTH_LIMIT=100_000)
    await crawl(LinkSpider, logged, urls=web.url())
    (line,) = logged["DEDUPE_DUPLICATES_LOG"].read_text("ascii").splitlines()
    url = json.loads(line)["url"]
    assert (len(url), url[-1]) == (MAX_URL_CHARS, "…")


@crawl_test
async def test_a_password_in_a_url_is_left_out(web: WebServer, logged: dict[str, Any]) -> None:
    web.page("/", "<p>A page of its own.")
    url = web.url()
    with_password = url.replace("http://", "http://me:secret@")
    logged.update(DEDUPE_WARC_ENABLED=False, DEDUPE_CONTENT_ENABLED=False)
    web.page("/", f'<a href="{with_password}">a</a><a href="{with_password}">b</a>')
    await crawl(LinkSpider, logged, urls=url)
    lines = lines_of(logged["DEDUPE_DUPLICATES_LOG"])
    assert {line["url"] for line in lines} == {url}


@crawl_test
async def test_the_path_has_the_name_of_the_spider_in_it(
    web: WebServer, logged: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", "<p>x")
    logged["DEDUPE_DUPLICATES_LOG"] = str(tmp_path / "100% %(name)s %(time)s.jsonl")
    await crawl(LinkSpider, logged, urls=web.url())
    (path,) = logs_in(tmp_path)
    assert re.fullmatch(r"100% links \d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\+00-00\.jsonl", path.name)


@crawl_test
async def test_a_file_that_cannot_be_written_refuses_the_start(
    web: WebServer, logged: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged["DEDUPE_DUPLICATES_LOG"] = tmp_path
    with pytest.raises(
        SettingError,
        match=r"\(DEDUPE_DUPLICATES_LOG\) cannot be written: .*Is a directory.*name another file, or none\.$",
    ):
        await crawl(LinkSpider, logged, urls=web.url())
    assert "The crawl does not start. The duplicates log " in caplog.text
    assert web.paths == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@crawl_test
async def test_a_full_disk_is_told_once_and_the_crawl_goes_on(
    web: WebServer, logged: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", text("home") + '<a href="/a">1</a><a href="/a">2</a><a href="/a">3</a>')
    web.page("/a", text("a"))
    logged["DEDUPE_DUPLICATES_LOG"] = "/dev/full"
    crawler = await crawl(LinkSpider, logged, urls=web.url())
    stats = crawler.stats.get_stats()
    assert (stats["finish_reason"], stats["response_received_count"]) == ("finished", 2)
    assert stats["dedupe/errors/log"] >= 1
    assert (stats.get("dedupe/log/lines", 0), stats["dedupe/log/lost"]) == (0, 2)
    assert caplog.text.count("/dev/full cannot be written: No space left on device.") == 1
    assert "2 lines of the duplicates log /dev/full could not be written and are lost." in caplog.text
    assert len(records_of(tmp_path / "warcs")) > 2


@crawl_test
async def test_a_pipe_that_nobody_reads_holds_nobody_up(
    web: WebServer, logged: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/", text("home") + '<a href="/a">1</a><a href="/a">2</a>')
    web.page("/a", text("a"))
    logged["DEDUPE_DUPLICATES_LOG"] = tmp_path / "pipe"
    os.mkfifo(tmp_path / "pipe")
    crawler = await crawl(LinkSpider, logged, urls=web.url())
    stats = crawler.stats.get_stats()
    assert (stats["finish_reason"], stats["dedupe/log/lost"]) == ("finished", 1)
    assert stats["dedupe/errors/log"] >= 1


def test_a_pipe_gets_each_line_once_however_slow_its_reader_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    lines = AppendedLines(10_000_000)
    lines.add(b"first\n")
    with pytest.raises(OSError, match="No such device"):
        lines.write_to(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    expected = [b"first"]
    for number in range(40):
        expected.append(b"%d" % number * 7_000)
        lines.add(expected[-1] + b"\n")
    data = b""
    while lines:
        lines.write_to(tmp_path / "pipe")
        data += os.read(reader, 50_000)
    while more := os.read(reader, 1_000_000):
        data += more
    os.close(reader)
    # A line that was cut has an end, and is there once more as a whole.
    whole = [line for line in data.splitlines() if line in expected]
    assert whole == expected
    assert len(data.splitlines()) > len(expected)


def test_the_fields_are_documented_in_their_order() -> None:
    heads = re.findall(r"^(``\w+``(?:, ``\w+``)*)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [name for head in heads for name in re.findall(r"``(\w+)``", head)] == list(FIELDS)


# The lines on their way into the file


def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"a"')
    lines = AppendedLines(100)
    lines.add(b'{"b": 2}\n')
    assert lines.write_to(path) == 1
    assert path.read_bytes() == b'{"a": 1}\n{"a"\n{"b": 2}\n'
    assert not lines
    assert lines.write_to(path) == 0


def test_lines_wait_while_the_file_cannot_be_written(tmp_path: Path) -> None:
    lines, folder = AppendedLines(12), tmp_path / "away"
    for number in range(8):
        lines.add(b"%d\n" % number)
    with pytest.raises(FileNotFoundError):
        lines.write_to(folder / "log")
    folder.mkdir()
    assert lines.write_to(folder / "log") == 6
    assert (folder / "log").read_bytes() == b"0\n1\n2\n3\n4\n5\n"
    assert lines.give_up() == 2


@given(steps=st.lists(st.sampled_from(["add", "write", "move", "fail", "tear"]), max_size=40))
def test_every_line_comes_into_a_file_once_and_in_order(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, lines, added, moved = Path(place, "logs"), AppendedLines(10_000), 0, 0
        path = folder / "log"
        for step in (*steps, "write"):
            folder.mkdir(exist_ok=True)
            if step == "add":
                lines.add(b'{"n": %d}\n' % added)
                added += 1
            elif step == "write":
                lines.write_to(path)
            elif step == "move" and path.exists():
                path.rename(folder / f"log.{moved:03}")
                moved += 1
            elif step == "fail" and lines:
                with pytest.raises(IsADirectoryError):
                    lines.write_to(folder)
            elif step == "tear":
                with path.open("ab") as file:
                    file.write(b'{"n"')
        # The newest one is called "log", which sorts first.
        files = sorted(folder.iterdir(), key=lambda file: file.suffix or ".999")
        whole = [line for file in files for line in file.read_bytes().splitlines() if line.endswith(b"}")]
    assert [json.loads(line)["n"] for line in whole] == list(range(added))


ADDING = """
import sys
from pathlib import Path
from scrapy_dedupe.files.appended_lines import AppendedLines
lines = AppendedLines(8_000_000)
for _ in range(50):
    for _ in range(300):
        lines.add(b"x" * 2_000 + b"\\n")
    assert lines.write_to(Path(sys.argv[1])) == 300
"""


def test_several_processes_add_whole_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    processes = [Program("python", "-c", ADDING, path) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    with path.open("rb") as file:
        lengths = Counter(len(line) for line in file)
    assert lengths == {2_001: 3 * 50 * 300}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_nobody_who_holds_the_file_holds_up_the_crawl(tmp_path: Path) -> None:
    import fcntl

    path, lines = tmp_path / "x.jsonl", AppendedLines(1_000)
    path.write_bytes(b"whole\n")
    lines.add(b"next\n")
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert lines.write_to(path) == 1
    assert path.read_bytes() == b"whole\nnext\n"


def test_a_file_that_is_moved_away_is_made_again(tmp_path: Path) -> None:
    lines, path = AppendedLines(100), tmp_path / "log"
    lines.add(b"1\n")
    lines.write_to(path)
    path.rename(tmp_path / "log.1")
    lines.add(b"2\n")
    lines.write_to(path)
    assert [(tmp_path / name).read_bytes() for name in ("log.1", "log")] == [b"1\n", b"2\n"]


def test_lines_go_into_a_pipe_too(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    lines = AppendedLines(100)
    lines.add(b"1\n")
    while lines:
        # Its reader may not be there yet.
        with suppress(OSError):
            assert lines.write_to(pipe) == 1
    reader.join()
    assert read == [b"1\n"]
