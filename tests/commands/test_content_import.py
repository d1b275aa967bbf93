"""``content import``: QuarryCore's table of hashes, into both stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, collecting, crawl, crawl_test

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from webserver import WebServer

TABLE = """
CREATE TABLE hash_dedup (
    hash TEXT PRIMARY KEY, url TEXT NOT NULL, timestamp REAL NOT NULL, created_at DATETIME DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX idx_hash_dedup_timestamp ON hash_dedup(timestamp);
CREATE INDEX idx_hash_dedup_url ON hash_dedup(url);
"""
PAGE = "<title>Title</title><p>One page\nwith <b>text</b>"
TEXTS = ("One page with text", "TitleOne page with text")
SEEN_S = 1_753_000_000.25


@pytest.fixture
def store_url(each_store_url: str) -> str:
    return each_store_url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dedup.db"


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def make(path: Path, rows: Iterable[tuple[Any, Any, Any]], *, wal: bool = True) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
        connection.executescript(TABLE)
        connection.executemany("INSERT INTO hash_dedup (hash, url, timestamp) VALUES (?, ?, ?)", rows)
        connection.commit()


def texts_of(store_url: str) -> int:
    store = open_store(store_url)
    try:
        return store.content.statistics()["texts"]
    finally:
        store.close()


@pytest.mark.parametrize("text", TEXTS)
@crawl_test
async def test_a_crawl_knows_what_quarrycore_had_read(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], path: Path, store_url: str, text: str
) -> None:
    web.page("/", PAGE)
    make(path, [(hash_of(text), web.url(), SEEN_S)])
    called = call("content", "import", "--store", store_url, str(path))
    assert (called.code, called.err) == (0, "")
    assert called.out == (
        f"1 text is new to {store_url}, 0 were known. New ones are stored under the crawl quarrycore.\n"
    )
    spider, items = collecting(LinkSpider)
    values = {**settings, "DEDUPE_STORE_URL": store_url, "DEDUPE_URL_STORE_URL": "local"}
    await crawl(spider, values, urls=web.url())
    assert [item["kind"] for item in items] == ["unchanged"]
    imported, own = call("content", "explain", "--store", store_url, web.url(), "--json").json["texts"]
    assert (imported["crawl"], imported["seen"]) == ("quarrycore", "2025-07-20T08:26:40.250Z")
    assert "imported from QuarryCore" in imported["why"][0]
    assert (own["kind"], own["original"]["crawl"]) == ("unchanged", "quarrycore")
    assert own["why"] == ["QuarryCore had read a page with the same text; its hash was imported."]


def test_the_verdict_names_the_imported_url_and_time(
    call: Callable[..., Any], path: Path, store_url: str, tmp_path: Path
) -> None:
    make(path, [(hash_of(TEXTS[0]), "http://old/", SEEN_S)])
    assert call("content", "import", "--store", store_url, str(path), "--crawl-id", "old").code == 0
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    checked = call("content", "check", "--store", store_url, str(page), "--json").json
    assert checked["verdict"]["kind"] == "exact"
    assert checked["why"] == ["QuarryCore had read a page with the same text; its hash was imported."]
    with Deduplicator(store_url) as dedupe:
        verdict = dedupe.check(Document("http://new/", PAGE))
    assert (verdict.kind, verdict.original_url, verdict.original_crawl) == ("exact", "http://old/", "old")
    assert verdict.original_seen == datetime.fromtimestamp(SEEN_S, UTC)
    stats = call("content", "stats", "--store", store_url, "--json").json
    assert stats["parameters"]["imported"] == "quarrycore/1"
    assert (stats["kept"], stats["pending"]) == (0, 0)


@pytest.mark.parametrize("wal", [True, False])
def test_an_import_may_be_repeated_and_changes_nothing_beside_the_store(
    call: Callable[..., Any], path: Path, store_url: str, wal: bool
) -> None:
    make(path, [(hash_of(str(number)), f"http://a/{number}", SEEN_S) for number in range(2_500)], wal=wal)
    before = path.read_bytes()
    for new, known in ((2_500, 0), (0, 2_500)):
        result = call("content", "import", "--store", store_url, str(path), "--json").json
        assert (result["new"], result["known"], result["skipped"]) == (new, known, 0)
    assert texts_of(store_url) == 2_500
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.glob("dedup.db*")] == ["dedup.db"]
    assert call("content", "purge", "--store", store_url, "--crawl", "quarrycore", "--yes").code == 0
    assert texts_of(store_url) == 0


def test_rows_that_are_in_the_log_alone_are_taken_over(
    call: Callable[..., Any], path: Path, store_url: str
) -> None:
    make(path, [(hash_of("a"), "http://a/", SEEN_S)])
    with closing(sqlite3.connect(path)) as running:
        running.execute(
            "INSERT INTO hash_dedup (hash, url, timestamp) VALUES (?, 'http://b/', 1)", (hash_of("b"),)
        )
        running.commit()
        assert call("content", "import", "--store", store_url, str(path), "--json").json["new"] == 2


def test_damaged_rows_are_counted_and_left_out(call: Callable[..., Any], path: Path, store_url: str) -> None:
    good = hash_of("good")
    make(
        path,
        [
            (good, "http://a/", SEEN_S),
            ("0" * 63, "http://a/", SEEN_S),
            ("g" * 64, "http://a/", SEEN_S),
            (b"\xff" * 64, "http://a/", SEEN_S),
            (None, "http://a/", SEEN_S),
            (hash_of("1"), "", SEEN_S),
            (hash_of("2"), b"http://\xff/", SEEN_S),
            (hash_of("3"), "http://a/", "yesterday"),
            (hash_of("4"), "http://a/", float("inf")),
            (hash_of("5"), "http://a/", -1),
            (hash_of("6"), "http://a/", 1e12),
        ],
    )
    called = call("content", "import", "--store", store_url, str(path))
    assert called.code == 4
    assert called.out.startswith("1 text is new to ")
    assert called.err == (
        f"scrapy-dedupe content import: 10 rows of {path} had no valid hash, URL or time and were skipped.\n"
    )
    assert texts_of(store_url) == 1


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (None, 3, "cannot be read: No such file"),
        (b"", 2, "is not an SQLite database"),
        (b"hash,url\n" * 100, 2, "is not an SQLite database"),
        (b"SQLite format 3\0" + bytes(4_096), 4, "is damaged"),
        ("CREATE TABLE other (hash)", 2, "no table hash_dedup"),
        ("CREATE TABLE hash_dedup (hash, url)", 2, "no column timestamp"),
    ],
)
def test_what_is_no_table_of_quarrycore_is_told_and_makes_no_store(
    call: Callable[..., Any],
    path: Path,
    tmp_path: Path,
    content: bytes | str | None,
    code: int,
    sentence: str,
) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(content)
    store = tmp_path / "new" / "texts.sqlite"
    called = call("content", "import", "--store", f"sqlite:///{store}", str(path))
    assert (called.code, called.out) == (code, "")
    assert sentence in called.err
    assert str(path) in called.err
    assert len(called.err.splitlines()) == 1
    assert not store.exists()


def test_a_database_that_ends_too_soon_is_told(call: Callable[..., Any], path: Path, store_url: str) -> None:
    make(path, [(hash_of(str(number)), f"http://a/{number}", SEEN_S) for number in range(5_000)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])
    called = call("content", "import", "--store", store_url, str(path))
    assert (called.code, called.out) == (4, "")
    assert f"The database {path} is damaged: " in called.err
    assert len(called.err.splitlines()) == 1
