"""The texts in SQLite: room, older and newer formats, full disks, locks."""

from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from content_pages import (
    ROWS,
    A,
    B,
    C,
    claim,
    digest,
    fill,
    page,
    seen,
    signature,
)

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores.base import Store


FORMAT_1 = """
CREATE TABLE content_parameters (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE content_crawls (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE content_texts (
    digest BLOB PRIMARY KEY, url TEXT NOT NULL, crawl INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE content_captures (pair BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE content_signatures (digest BLOB PRIMARY KEY, row_bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE content_bands (hash INTEGER PRIMARY KEY, digest BLOB NOT NULL);
INSERT INTO content_parameters VALUES ('near_bands', '16 x 8');
INSERT INTO content_crawls VALUES (1, 'c1'), (2, 'c2');
PRAGMA application_id=1684303921;
PRAGMA user_version=1;
"""
OLD_URLS = [A, "https://ä/?q=1 2", "http://", "https://a/\0b", "", "7", "HTTP://A/"]


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.sqlite"
    file = sqlite3.connect(path)
    file.executescript(FORMAT_1)
    for number, url in enumerate(OLD_URLS):
        row = (digest(number), url, 1 + number % 2, number)
        file.execute("INSERT INTO content_texts VALUES (?, ?, ?, ?)", row)
        file.execute("INSERT INTO content_captures VALUES (?)", (digest((number, "pair")),))
        file.execute("INSERT INTO content_signatures VALUES (?, ?)", (digest(number), ROWS))
        file.execute("INSERT INTO content_bands VALUES (?, ?)", (number, digest(number)))
    file.commit()
    file.close()
    return path


def _assert_migrated(store: Store) -> None:
    pages = [page(number, url, f"c{1 + number % 2}", number) for number, url in enumerate(OLD_URLS)]
    assert store.content.find_texts([replace(it, url="http://other/") for it in pages]) == [
        seen(it) for it in pages
    ]
    assert [store.content.captures(it.url) for it in pages] == [[(it, None)] for it in pages]
    assert store.content.statistics() == {"texts": len(OLD_URLS), "kept": 0, "pending": 0, "templates": 0}
    assert store.content.parameters() == {}


def test_the_texts_of_format_1_are_kept_and_confirmed(old_file: Path) -> None:
    for _ in range(2):
        store = open_store(f"sqlite:///{old_file}")
        _assert_migrated(store)
        store.close()


def _open(url: str, start: Any, results: Any) -> None:
    start.wait()
    store = open_store(url, timeout_s=240)
    _assert_migrated(store)
    store.close()
    results.put("migrated")


def test_two_processes_migrate_one_file_at_once(old_file: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    start, results = context.Barrier(2), context.Queue()
    url = f"sqlite:///{old_file}"
    processes = [context.Process(target=_open, args=(url, start, results)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0]
    assert [results.get(timeout=240) for _ in processes] == ["migrated", "migrated"]


def test_a_migration_that_cannot_end_changes_nothing(old_file: Path) -> None:
    file = sqlite3.connect(old_file)
    file.execute("ALTER TABLE content_bands RENAME TO elsewhere")
    before = list(file.iterdump())
    file.close()
    with pytest.raises(StoreUnavailable, match="content_bands"):
        open_store(f"sqlite:///{old_file}")
    file = sqlite3.connect(old_file)
    assert list(file.iterdump()) == before
    assert file.execute("PRAGMA user_version").fetchone() == (1,)
    file.close()


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "texts.sqlite"
    open_store(f"sqlite:///{path}").close()
    file = sqlite3.connect(path)
    file.execute("PRAGMA user_version=3")
    file.close()
    before = path.read_bytes()
    with pytest.raises(
        StoreRefused, match="has format 3; this version of scrapy-dedupe reads formats up to 2"
    ):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path / 'texts.sqlite'}", timeout_s=0.05)
    yield store
    store.close()


def test_a_full_disk_loses_nothing_and_ends(sqlite_store: Store) -> None:
    content, connection = sqlite_store.content, sqlite_store.content._connection  # type: ignore[attr-defined]
    claim(content, page("before"), pending=False)
    pages = [page(number, f"http://a/{'x' * 200}{number}", "a new crawl") for number in range(2000)]
    before = content.statistics()
    limit = connection.execute("PRAGMA page_count").fetchone()[0] + 20
    connection.execute(f"PRAGMA max_page_count={limit}")
    for attempt in (
        lambda: content.claim_texts(pages),
        lambda: content.settle(pages),
        lambda: content.claim_near([signature(it) for it in pages]),
        lambda: content.save_template("a", bytes(500_000)),
    ):
        with pytest.raises(StoreUnavailable, match="full"):
            attempt()
        assert not connection.in_transaction
        assert content.statistics() == before
    assert claim(content, page("meanwhile", A, "a new crawl")) is None
    connection.execute("PRAGMA max_page_count=1000000")
    # No text was claimed by what was rolled back, and the number of its crawl is no other's.
    assert content.claim_texts(pages) == [None] * len(pages)
    assert content.find_texts([page(5, B), page("before", B)]) == [
        seen(pages[5], pending=True),
        seen(page("before")),
    ]


def test_a_lock_that_others_hold_is_waited_for_and_then_told(sqlite_store: Store) -> None:
    content = sqlite_store.content
    claim(content, page(1, A), pending=False)
    other = sqlite3.connect(sqlite_store.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for attempt in (
        lambda: content.claim_texts([page(2, B, "c2")]),
        lambda: content.claim_near([signature(page(2, B))]),
        lambda: content.settle([page(2, B)]),
        lambda: content.forget(A),
        lambda: content.purge(),
    ):
        with pytest.raises(StoreUnavailable, match="locked"):
            attempt()
    # Whoever only reads need not wait.
    assert content.find_texts([page(1, B)]) == [seen(page(1, A))]
    other.execute("ROLLBACK")
    other.close()
    assert claim(content, page(2, B, "c2")) is None
    assert claim(content, page(2, C)) == seen(page(2, B, "c2"), pending=True)


def test_a_commit_that_fails_is_rolled_back(sqlite_store: Store) -> None:
    content, connection = sqlite_store.content, sqlite_store.content._connection  # type: ignore[attr-defined]
    # A foreign key that is looked at when the transaction ends makes COMMIT itself fail, with the transaction open.
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("CREATE TABLE parent (digest BLOB PRIMARY KEY)")
    connection.execute("CREATE TABLE child (digest REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    connection.execute(
        "CREATE TEMP TRIGGER spoil AFTER INSERT ON content_pending BEGIN INSERT INTO child VALUES (NEW.digest); END"
    )
    with pytest.raises(StoreUnavailable, match="FOREIGN KEY"):
        claim(content, page(1, A, "rolled back"))
    assert not connection.in_transaction
    connection.execute("DROP TRIGGER spoil")
    assert claim(content, page(1, A, "another crawl")) is None
    assert claim(content, page(1, B, "rolled back")) == seen(page(1, A, "another crawl"), pending=True)


def test_an_exception_within_a_batch_leaves_nothing_of_it(sqlite_store: Store) -> None:
    content = sqlite_store.content
    with pytest.raises(AttributeError):
        content.claim_texts([page(1, A, "c9"), None])  # type: ignore[list-item]
    assert content.statistics()["texts"] == 0
    assert claim(content, page(1, A, "c8")) is None
    assert claim(content, page(1, B, "c9")) == seen(page(1, A, "c8"), pending=True)


def test_a_text_takes_at_most_forty_bytes_beside_its_url(tmp_path: Path) -> None:
    path = tmp_path / "texts.sqlite"
    store = open_store(f"sqlite:///{path}")
    urls = [f"https://docs.example.org/manual/chapter-{n % 97}/page-{n}.html" for n in range(30_000)]
    for start in range(0, len(urls), 100):
        captures = [
            page(url, url, "c1", 1_700_000_000_000 + start + place)
            for place, url in enumerate(urls[start : start + 100])
        ]
        assert not any(store.content.claim_texts(captures))
        store.content.settle(captures)
    store.close()
    assert (path.stat().st_size - sum(map(len, urls))) / len(urls) <= 40


def test_purging_leaves_no_buckets_or_notes_behind(sqlite_store: Store) -> None:
    fill(sqlite_store.content)
    sqlite_store.content.purge()
    tables = ("texts", "pending", "captures", "signatures", "bands", "templates")
    file = sqlite3.connect(sqlite_store.url.removeprefix("sqlite:///"))
    counts = [file.execute(f"SELECT count(*) FROM content_{table}").fetchone()[0] for table in tables]
    file.close()
    assert counts == [0] * len(tables)
