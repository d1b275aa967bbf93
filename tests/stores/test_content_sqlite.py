"""The texts in SQLite: room, other formats, full disks, locks, recent signatures."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from content_pages import (
    A,
    B,
    C,
    band,
    claim,
    claim_near,
    fill,
    find_near,
    page,
    seen,
    signature,
)

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import NearAnswer, Signature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores import Store


@pytest.mark.parametrize(
    ("version", "remedy"), [(3, "Move the file away and crawl again"), (6, "Upgrade scrapy-dedupe")]
)
def test_another_format_is_refused_and_left_alone(tmp_path: Path, version: int, remedy: str) -> None:
    path = tmp_path / "texts.sqlite"
    open_store(f"sqlite:///{path}").close()
    file = sqlite3.connect(path)
    file.execute(f"PRAGMA user_version={version}")
    file.close()
    before = path.read_bytes()
    message = f"has format {version}; this version of scrapy-dedupe reads format 5. {remedy}, or name another"
    with pytest.raises(StoreRefused, match=message):
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
        lambda: content.claim(pages),
        lambda: content.settle(pages),
        lambda: claim_near(content, [signature(it) for it in pages]),
        lambda: content.save_template("a", bytes(500_000)),
    ):
        with pytest.raises(StoreUnavailable, match="full"):
            attempt()
        assert not connection.in_transaction
        assert content.statistics() == before
    assert claim(content, page("meanwhile", A, "a new crawl")) is None
    connection.execute("PRAGMA max_page_count=1000000")
    # No text was claimed by what was rolled back, and the number of its crawl is no other's.
    assert content.claim(pages) == [None] * len(pages)
    assert content.find([page(5, B), page("before", B)]) == [
        seen(pages[5], pending=True),
        seen(page("before")),
    ]


def test_a_lock_that_others_hold_is_waited_for_and_then_told(sqlite_store: Store) -> None:
    content = sqlite_store.content
    claim(content, page(1, A), pending=False)
    other = sqlite3.connect(sqlite_store.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for attempt in (
        lambda: content.claim([page(2, B, "c2")]),
        lambda: claim_near(content, [signature(page(2, B))]),
        lambda: content.settle([page(2, B)]),
        lambda: content.forget(A),
        lambda: content.purge(),
    ):
        with pytest.raises(StoreUnavailable, match="locked"):
            attempt()
    # Whoever only reads need not wait.
    assert content.find([page(1, B)]) == [seen(page(1, A))]
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
        content.claim([page(1, A, "c9"), None])  # type: ignore[list-item]
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
        assert not any(store.content.claim(captures))
        store.content.settle(captures)
    store.close()
    assert (path.stat().st_size - sum(map(len, urls))) / len(urls) <= 40


def _rows_of(store: Store, table: str) -> int:
    file = sqlite3.connect(store.url.removeprefix("sqlite:///"))
    (rows,) = file.execute(f"SELECT count(*) FROM content_{table}").fetchone()
    file.close()
    return int(rows)


def test_processes_find_what_others_kept_and_moved(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [sqlite_store, *(open_store(sqlite_store.url) for _ in range(3))]
    monkeypatch.setattr("scrapy_dedupe.stores.sqlite_content_signatures._MOST", 10)
    chance = random.Random(1)
    texts = []
    for number in range(200):
        # A text that failed was the last row of the others, or was moved already.
        if number % 7 == 0 and texts:
            failed, _, _ = texts.pop(chance.choice([-1, 0]))
            chance.choice(stores).content.settle([], [failed])
        capture, rows = page(number, f"http://{number}/", ms=number), chance.randbytes(128)
        asked = Signature(capture, [band((number, place)) for place in range(16)], rows, 109)
        assert chance.choice(stores).content.claim([capture], [asked]) == [NearAnswer()]
        texts.append((capture, asked.bands, rows))
        if number % 5 == 0:
            for kept, bands, its_rows in texts:
                copy = Signature(page("copy", A), [band("other"), chance.choice(bands)], its_rows, 109)
                (answer,) = find_near(chance.choice(stores).content, [copy])
                assert answer == NearAnswer(seen(kept, pending=True))
    assert 0 < _rows_of(sqlite_store, "recent") < 10
    assert sqlite_store.content.statistics()["kept"] == len(texts)
    for store in stores[1:]:
        store.close()


def test_what_was_rolled_back_is_not_found(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    content: Any = sqlite_store.content
    pages = [page(1, A), page(2, B)]
    with pytest.raises(AttributeError):
        content.claim(pages, [signature(pages[0], "x"), signature(replace(pages[1], url=None), "x")])
    assert content.statistics() == {"texts": 0, "kept": 0, "pending": 0, "templates": 0}
    claim(content, page(1, A))
    assert find_near(content, [signature(page(3, C), "x")]) == [NearAnswer()]


def test_purging_leaves_no_buckets_or_notes_behind(sqlite_store: Store) -> None:
    fill(sqlite_store.content)
    sqlite_store.content.purge()
    tables = ("texts", "pending", "captures", "signatures", "bands", "recent", "templates")
    file = sqlite3.connect(sqlite_store.url.removeprefix("sqlite:///"))
    counts = [file.execute(f"SELECT count(*) FROM content_{table}").fetchone()[0] for table in tables]
    file.close()
    assert counts == [0] * len(tables)
