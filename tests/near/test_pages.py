"""Which records are pages, and the rows of a file."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from listed_archives import ListedFile
from near.made_crawls import HTML, html

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.near.pages import CAPTURES, PAGES, FileCounts, PageOptions, read_file
from scrapy_dedupe.tasks.faults import Faults

if TYPE_CHECKING:
    from pathlib import Path

LONG = ["word"] * 60


def read(path: Path, faults: Faults | None = None, **options: Any) -> tuple[FileCounts, list[dict[str, Any]]]:
    pages, captures = path.parent / "pages.parquet", path.parent / "captures.parquet"
    counts = read_file(
        path.name, path, pages, captures, PageOptions(decoded_page, **options), faults=faults or Faults()
    )
    rows = []
    with duckdb.connect() as engine:
        for file, columns in ((captures, CAPTURES), (pages, PAGES)):
            cursor = engine.execute("SELECT * FROM read_parquet(?)", [str(file)])
            names = [column[0] for column in cursor.description]
            assert {column[0]: str(column[1]) for column in cursor.description} == columns
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return counts, sorted(rows, key=lambda row: row["offset"])


@pytest.fixture
def file(tmp_path: Path) -> ListedFile:
    return ListedFile(tmp_path / "a.warc.gz", "a.warc.gz")


def test_the_rows_of_a_file(file: ListedFile) -> None:
    file.add(html("T 1", LONG), "http://A.example/1", "2024-01-02T03:04:05.678Z", headers=HTML)
    second = file.add(html("T 1", LONG), "http://a.example/2", headers=HTML)
    file.add(b"<p>short", "http://a.example/3", headers=HTML)
    counts, rows = read(file.path)
    assert (counts.documents, counts.revisits, counts.skipped) == (3, 0, {})
    text = f"T 1 T 1 {' '.join(LONG)}"
    assert rows[0] == {
        "file": "a.warc.gz",
        "offset": 0,
        "position": rows[0]["position"],
        "uri": "http://A.example/1",
        "date": "2024-01-02T03:04:05.678Z",
        "date_ms": 1_704_164_645_678,
        "text_key": rows[0]["text_key"],
        "chars": len(text),
        "mime": "text/html",
        "host": "a.example",
        "is_compared": True,
        "names": ["T", "T"],
        "text": rows[0]["text"],
        "has_text": True,
        "reference": None,
        "reference_digest": None,
        "reference_keys": None,
    }
    assert zlib.decompress(rows[0]["text"]).decode() == text
    assert (rows[1]["offset"], rows[1]["text_key"]) == (second.offset, rows[0]["text_key"])
    # An equal text is stored once, and a short one is only compared exactly.
    assert [(row["is_compared"], row["text"] is not None, row["has_text"]) for row in rows[1:]] == [
        (True, False, False),
        (False, False, False),
    ]


def test_records_that_are_not_pages_are_counted(file: ListedFile) -> None:
    body = html("T", LONG)
    for status in (404, 206, 301):
        file.add(body, status=status, headers=HTML)
    file.add(b"\x89PNG", headers=("Content-Type: image/png",))
    file.add(body, headers=HTML, fields=("WARC-Truncated: time",))
    file.add(b"User-agent: *", "http://a.example/robots.txt?x#y", headers=("Content-Type: text/plain",))
    file.add(b"<title>App</title><div id=root></div>", headers=HTML)
    file.add(body, headers=(*HTML, "Content-Encoding: compress"))
    file.add(body, headers=("Content-Type: text/html; charset=punycode",))
    file.add(b"<div>" * 100_000, headers=HTML)
    file.add(b"<p>" + b"x" * 5_000_000, headers=HTML)
    file.add(gzip.compress(b"<p>" + b"x" * 5_000_000), headers=(*HTML, "Content-Encoding: gzip"))
    file.add(body, headers=HTML)
    counts, rows = read(file.path)
    assert counts.skipped == Counter(
        {
            "status": 3,
            "type": 1,
            "truncated": 1,
            "robots": 1,
            "no text": 1,
            "coding": 1,
            "encoding": 1,
            "markup": 1,
            "size": 2,
        }
    )
    assert len(counts.named) == 5
    assert counts.named[0].place.startswith("a.warc.gz, offset ")
    assert counts.documents == len(rows) == 1


def test_only_the_wanted_types_are_read(file: ListedFile) -> None:
    file.add(html("T", LONG), headers=HTML)
    file.add(b"a plain text", headers=("Content-Type: text/plain",))
    counts, rows = read(file.path, mimes=frozenset({"text/plain"}))
    assert [row["mime"] for row in rows] == ["text/plain"]
    assert counts.skipped == {"type": 1}


def test_the_answer_to_a_head_request_is_not_a_page(tmp_path: Path) -> None:
    file = ListedFile(tmp_path / "a.warc", "", is_packed=False)
    file.add(html("T", LONG), headers=HTML)
    block = b"HEAD / HTTP/1.1\r\n\r\n"
    head = (
        "WARC/1.1\r\nWARC-Type: request\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2020-01-01T00:00:00Z\r\n"
        "WARC-Target-URI: http://example.org/\r\nContent-Type: application/http; msgtype=request\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    with file.path.open("ab") as stream:
        stream.write(head.encode() + block + b"\r\n\r\n")
    assert read(file.path)[0].skipped == {"method": 1}


def test_names_and_uris_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    file = ListedFile(tmp_path / "a\udce9.warc.gz", "")
    file.add(html("T", LONG), "http://a.example/caf\u00e9", headers=HTML)
    _, rows = read(file.path)
    assert (rows[0]["file"], rows[0]["uri"]) == ("a\\udce9.warc.gz", "http://a.example/caf\u00e9")


def test_damage_stops_the_reading_or_is_a_fault(file: ListedFile) -> None:
    file.add(html("T", LONG), headers=HTML)
    middle = file.path.stat().st_size
    file.add(html("U", LONG), headers=HTML)
    file.add(html("V", LONG), headers=HTML)
    data = bytearray(file.path.read_bytes())
    data[middle + 30 : middle + 60] = bytes(30)
    file.path.write_bytes(data)
    with pytest.raises(DamagedInput, match=rf"offset {middle}"):
        read(file.path)
    assert not (file.path.parent / "pages.parquet").exists()
    faults = Faults(keep_going=True)
    _, rows = read(file.path, faults)
    assert (faults.count, len(rows)) == (1, 2)


def test_an_empty_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"")
    with pytest.raises(DamagedInput, match=r"a\.warc\.gz: the file is empty"):
        read(path)
    faults = Faults(keep_going=True)
    _, rows = read(path, faults)
    assert (faults.count, rows) == (1, [])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"a\.warc\.gz cannot be read"):
        read(tmp_path / "a.warc.gz")
