"""Seen texts in SQLite; :mod:`.sqlite_content_tables` describes the tables.

The connection is in autocommit mode. Related statements share one transaction; a writing transaction takes the write
lock first, so that several processes can share a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .base import SeenText, TextMatch
from .content_values import (
    CapturesByUrl,
    joined_url,
    kept_text,
    refuse_other_parameters,
    split_url,
    url_key,
    with_originals,
)
from .sqlite_content_signatures import KeptSignatures
from .sqlite_file import rows_of, sqlite_faults, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .base import NearAnswer, OnForgotten, Signature

# Scheme, rest, number of the crawl, milliseconds, and whether it is pending.
_First: TypeAlias = tuple[int, str | bytes, int, int, int]

_RECALL = """
SELECT source, first.digest, scheme, rest, crawl, seen_ms, pending
FROM content_sources JOIN content_first AS first ON first.digest = content_sources.digest WHERE source IN ({})
"""

# Inserts a text unless it is in one of the two tables.
_CLAIM = """
INSERT INTO {} SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM {} WHERE digest = ?1) ON CONFLICT DO NOTHING
"""
_CLAIM_PENDING = _CLAIM.format("content_pending", "content_texts")
_CLAIM_CONFIRMED = _CLAIM.format("content_texts", "content_pending")

# The number of rows that one transaction of a purge deletes; larger ones would block other processes for too long.
_PURGE_AT_ONCE = 10_000

_WITHOUT_TEXT = "NOT EXISTS (SELECT 1 FROM content_first AS first WHERE first.digest = {}.digest)"


class SqliteContent:
    """The :class:`~.base.ContentStore` of an open SQLite store."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._signatures = KeptSignatures(connection, self._first_capture)
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._lifetime_ms: int | None = None
        self._on_forgotten: OnForgotten | None = None

    def parameters(self) -> dict[str, str]:
        with sqlite_faults(self._url):
            return dict(self._connection.execute("SELECT name, value FROM content_parameters"))

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        with self._writing():
            self._connection.executemany(
                "INSERT INTO content_parameters VALUES (?, ?) ON CONFLICT DO NOTHING",
                list(parameters.items()),
            )
        refuse_other_parameters(self._url, self.parameters(), parameters)

    def remember_for(self, seconds: float | None) -> None:
        self._lifetime_ms = None if seconds is None else round(seconds * 1000)

    def claim(
        self,
        captures: Sequence[SeenText],
        signatures: Sequence[Signature | None] = (),
        *,
        pending: bool = True,
    ) -> list[TextMatch | NearAnswer | None]:
        if not captures:
            return []
        with self._writing():
            return self._compared(self._claim(captures, pending), signatures, keep=True)

    def find(
        self, captures: Sequence[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        with self._reading():
            first = self._first([capture.digest for capture in captures])
            found = [self._answer(capture.digest, first.get(capture.digest), capture) for capture in captures]
            return self._compared(found, signatures, keep=False)

    def has_sources(self) -> bool:
        with self._reading():
            return self._connection.execute("SELECT 1 FROM content_sources LIMIT 1").fetchone() is not None

    def recall(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        with sqlite_faults(self._url):
            rows = rows_of(self._connection, _RECALL, [capture.source for capture in captures])
            first: dict[bytes, tuple[bytes, _First]] = {row[0]: (row[1], row[2:]) for row in rows}
            known = [(capture, *first.get(capture.source, (b"", None))) for capture in captures]
            return [self._answer(digest, row, capture) for capture, digest, row in known]

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        if passed or failed or dropped:
            with self._writing():
                self._settle(passed, (*failed, *dropped), dropped)

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        with self._reading():
            texts = self._connection.execute(
                "SELECT digest, crawl, seen_ms FROM content_first WHERE scheme = ? AND rest = ?",
                split_url(url),
            ).fetchall()
            noted = self._connection.execute(
                "SELECT digest, crawl, seen_ms, kind, original, similarity FROM content_captures WHERE url_key = ?",
                (url_key(url),),
            ).fetchall()
            captures = CapturesByUrl()
            for row in texts:
                captures.add_first(self._capture(url, *row))
            for row in noted:
                captures.add_noted(self._capture(url, *row))
            return with_originals(captures.in_order().get(url, ()), self._original)

    def captures_of(self, urls: Iterable[str]) -> dict[str, list[SeenText]]:
        by_place, by_key = {}, {}
        for url in urls:
            by_place[split_url(url)], by_key[url_key(url)] = url, url
        captures = CapturesByUrl()
        with self._reading():
            for scheme, rest, *row in self._connection.execute(
                "SELECT scheme, rest, digest, crawl, seen_ms FROM content_first"
            ):
                if (its_url := by_place.get((scheme, rest))) is not None:
                    captures.add_first(self._capture(its_url, *row))
            for key, *row in self._connection.execute(
                "SELECT url_key, digest, crawl, seen_ms, kind, original, similarity FROM content_captures"
            ):
                if (its_url := by_key.get(key)) is not None:
                    captures.add_noted(self._capture(its_url, *row))
        return captures.in_order()

    def forget(self, url: str) -> int:
        place = split_url(url)
        with sqlite_faults(self._url):
            digests = self._connection.execute(
                "SELECT digest FROM content_first WHERE scheme = ? AND rest = ?", place
            ).fetchall()
        rows = [(digest, *place) for (digest,) in digests]
        forgotten = 0
        with self._writing():
            many = self._connection.executemany
            for table in ("content_pending", "content_texts"):
                forgotten += many(
                    f"DELETE FROM {table} WHERE digest = ? AND scheme = ? AND rest = ?",  # noqa: S608
                    rows,
                ).rowcount
            self._signatures.drop(
                {digest for (digest,) in digests} - self._first([digest for (digest,) in digests]).keys()
            )
            self._connection.execute("DELETE FROM content_captures WHERE url_key = ?", (url_key(url),))
        return max(forgotten, 0)

    def purge(
        self,
        *,
        before_ms: int | None = None,
        crawl: str | None = None,
        on_forgotten: OnForgotten | None = None,
    ) -> int:
        self._on_forgotten = on_forgotten
        with self._writing():
            self._signatures.move()
        where, values = _first_captures(before_ms, crawl)
        # The order matters: a text that is confirmed meanwhile moves from the first table to the second.
        purged = self._sweep("content_pending", ["digest"], where, values)
        purged += self._sweep("content_texts", ["digest"], where, values)
        self._sweep("content_signatures", ["ref"], _WITHOUT_TEXT.format("content_signatures"))
        self._sweep(
            "content_captures",
            ["url_key", "digest"],
            f"({where} OR {_WITHOUT_TEXT.format('content_captures')})",
            values,
        )
        self._sweep("content_sources", ["source"], _WITHOUT_TEXT.format("content_sources"))
        self._sweep(
            "content_bands",
            ["hash"],
            "NOT EXISTS (SELECT 1 FROM content_signatures AS kept WHERE kept.ref = content_bands.ref)",
        )
        if before_ms is None and crawl is None:
            self._sweep("content_templates", ["host"], "1")
            self._sweep("content_parameters", ["name"], "1")
        return purged

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        where, values = _first_captures(before_ms, crawl)
        with sqlite_faults(self._url):
            statement = f"SELECT count(*) FROM content_first WHERE {where}"  # noqa: S608 - question marks
            return int(self._connection.execute(statement, values).fetchone()[0])

    def load_template(self, host: str) -> bytes | None:
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT template FROM content_templates WHERE host = ?", (kept_text(host),)
            ).fetchone()
        return row[0] if row else None

    def save_template(self, host: str, template: bytes) -> None:
        with self._writing():
            self._connection.execute(
                "INSERT INTO content_templates VALUES (?, ?) ON CONFLICT DO UPDATE SET template = excluded.template",
                (kept_text(host), template),
            )

    def statistics(self) -> dict[str, int]:
        tables = {
            "texts": "content_first",
            "kept": "(SELECT digest FROM content_signatures UNION SELECT digest FROM content_recent)",
            "pending": "content_pending",
            "templates": "content_templates",
        }
        with self._reading():
            return {
                name: self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
                for name, table in tables.items()
            }

    def flush(self) -> None:
        """Copy everything from the write-ahead log into the file and sync it."""
        with sqlite_faults(self._url):
            self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()

    # Transactions

    def _writing(self) -> AbstractContextManager[None]:
        return transaction(self._connection, self._url, on_failure=self._clear)

    def _clear(self) -> None:
        # What was not written must not be in memory: crawl numbers may be assigned again.
        self._signatures.clear()
        self._numbers.clear()
        self._ids.clear()

    def _reading(self) -> AbstractContextManager[None]:
        return transaction(self._connection, self._url, "BEGIN")

    def _sweep(self, table: str, key: list[str], condition: str, values: Sequence[Any] = ()) -> int:
        """Delete the rows for which *condition* is true, in small transactions. Return their number."""
        columns, places = ", ".join(key), ", ".join("?" * len(key))
        select = f"SELECT {columns} FROM {table} WHERE {condition}"  # noqa: S608
        delete = f"DELETE FROM {table} WHERE ({columns}) = ({places}) AND {condition}"  # noqa: S608
        end = f" ORDER BY {columns} LIMIT {_PURGE_AT_ONCE}"
        after, last = "", ()
        deleted = 0
        while True:
            with sqlite_faults(self._url):
                rows = self._connection.execute(select + after + end, (*values, *last)).fetchall()
            if rows:
                with self._writing():
                    deleted += self._connection.executemany(
                        delete, [(*row, *values) for row in rows]
                    ).rowcount
            if self._on_forgotten is not None:
                what = "texts" if table == "content_pending" else table.removeprefix("content_")
                self._on_forgotten(what, len(rows))
            if len(rows) < _PURGE_AT_ONCE:
                return deleted
            after, last = f" AND ({columns}) > ({places})", rows[-1]

    # Texts

    def _first(self, digests: Sequence[bytes]) -> dict[bytes, _First]:
        rows = rows_of(
            self._connection,
            "SELECT digest, scheme, rest, crawl, seen_ms, pending FROM content_first WHERE digest IN ({})",
            digests,
        )
        return {row[0]: row[1:] for row in rows}

    def _answer(
        self, digest: bytes, first: _First | None, capture: SeenText, similarity: float = 1.0
    ) -> TextMatch | None:
        """The first capture of the text *digest*, unless it has expired or is this page in an earlier attempt."""
        if first is None or self._is_forgotten(first[3], capture):
            return None
        if first[4] and first[:2] == split_url(capture.url):
            return None
        return self._seen(digest, first, capture, similarity)

    def _first_capture(self, digest: bytes, capture: SeenText, similarity: float) -> TextMatch | None:
        return self._answer(digest, self._first([digest]).get(digest), capture, similarity)

    def _seen(self, digest: bytes, first: _First, capture: SeenText, similarity: float) -> TextMatch:
        scheme, rest, crawl, seen_ms, pending = first
        had_this_url = (scheme, rest) == split_url(capture.url) or self._had(digest, capture)
        url = joined_url(scheme, rest)
        return TextMatch(digest, url, self._crawl_id(crawl), seen_ms, had_this_url, similarity, bool(pending))

    def _had(self, digest: bytes, capture: SeenText) -> bool:
        row = self._connection.execute(
            "SELECT seen_ms FROM content_captures WHERE url_key = ? AND digest = ?",
            (url_key(capture.url), digest),
        ).fetchone()
        return row is not None and not self._is_forgotten(row[0], capture)

    def _is_forgotten(self, seen_ms: int, capture: SeenText) -> bool:
        return self._lifetime_ms is not None and seen_ms + self._lifetime_ms <= capture.seen_ms

    def _capture(self, url: str, digest: bytes, crawl: int, seen_ms: int, *decided: Any) -> SeenText:
        return SeenText(digest, url, self._crawl_id(crawl), seen_ms, *decided)

    def _original(self, capture: SeenText) -> TextMatch | None:
        digest = capture.original or capture.digest
        first = self._first([digest]).get(digest)
        return None if first is None else self._seen(digest, first, capture, 1.0)

    def _compared(
        self, texts: Sequence[TextMatch | None], signatures: Sequence[Signature | None], *, keep: bool
    ) -> list[TextMatch | NearAnswer | None]:
        """The answers for texts, with those of the near layer for the new ones that have a signature."""
        answers: list[TextMatch | NearAnswer | None] = [*texts]
        new = {number: it for number, it in enumerate(signatures) if it is not None and texts[number] is None}
        if new:
            near = self._signatures.near([*new.values()], keep=keep)
            for number, answer in zip(new, near, strict=True):
                answers[number] = answer
        return answers

    def _claim(self, captures: Sequence[SeenText], pending: bool) -> list[TextMatch | None]:
        # Most texts are new: nothing is read unless a text cannot be inserted.
        statement = _CLAIM_PENDING if pending else _CLAIM_CONFIRMED
        execute, many = self._connection.execute, self._connection.executemany
        sources: list[tuple[bytes, bytes]] = []
        answers: list[TextMatch | None] = []
        for capture in captures:
            digest = capture.digest
            row = (digest, *self._row(capture, pending)[:4])
            answer = None
            if not execute(statement, row).rowcount:
                answer = self._first_capture(digest, capture, 1.0)
                if answer is None:
                    # It has expired, or is an earlier attempt of this page.
                    for table in ("content_pending", "content_texts"):
                        execute(f"DELETE FROM {table} WHERE digest = ?", (digest,))  # noqa: S608
                    execute(statement, row)
            if answer is None and capture.source:
                sources.append((capture.source, digest))
            answers.append(answer)
        many("INSERT OR REPLACE INTO content_sources VALUES (?, ?)", sources)
        return answers

    def _row(self, capture: SeenText, pending: bool) -> _First:
        return (*split_url(capture.url), self._crawl_number(capture.crawl), capture.seen_ms, int(pending))

    def _settle(
        self, passed: Sequence[SeenText], failed: Sequence[SeenText], dropped: Sequence[SeenText]
    ) -> None:
        first = self._first([capture.digest for capture in (*passed, *failed)])
        were_pending = {digest for digest, row in first.items() if row[4]}
        confirmed: dict[bytes, _First] = {}
        notes = []
        for number, capture in enumerate((*passed, *dropped)):
            digest = capture.digest
            known, row = first.get(digest), self._row(capture, False)
            is_confirmed = known is not None and not known[4]
            if number < len(passed) and not is_confirmed:
                first[digest] = confirmed[digest] = row
            is_of_another = capture.kind == "near" or capture.original not in (None, digest)
            if is_of_another or (known is not None and is_confirmed and known[:2] != row[:2]):
                notes.append(_noted_row(capture, row[2]))
        released = [
            capture.digest
            for capture in failed
            if (known := first.get(capture.digest)) is not None and known == self._row(capture, True)
        ]
        gone = [(digest,) for digest in {*were_pending.intersection(confirmed), *released}]
        self._connection.executemany("DELETE FROM content_pending WHERE digest = ?", gone)
        self._signatures.drop(released)
        # In the order of the digests, since neighbours share a page.
        self._connection.executemany(
            "INSERT INTO content_texts VALUES (?, ?, ?, ?, ?)",
            [(digest, *row[:4]) for digest, row in sorted(confirmed.items())],
        )
        statement = "INSERT INTO content_captures VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO "
        if self._lifetime_ms is None:
            statement += "NOTHING"
        else:
            statement += f"""UPDATE SET kind = excluded.kind, original = excluded.original,
                similarity = excluded.similarity, crawl = excluded.crawl, seen_ms = excluded.seen_ms
                WHERE seen_ms + {self._lifetime_ms} <= excluded.seen_ms"""
        self._connection.executemany(statement, notes)

    # Crawls

    def _crawl_number(self, crawl: str) -> int:
        number = self._numbers.get(crawl)
        if number is None:
            execute = self._connection.execute
            execute("INSERT INTO content_crawls (id) VALUES (?) ON CONFLICT DO NOTHING", (crawl,))
            number = int(execute("SELECT number FROM content_crawls WHERE id = ?", (crawl,)).fetchone()[0])
            self._numbers[crawl] = number
        return number

    def _crawl_id(self, number: int) -> str:
        crawl = self._ids.get(number)
        if crawl is None:
            (crawl,) = self._connection.execute(
                "SELECT id FROM content_crawls WHERE number = ?", (number,)
            ).fetchone()
            self._ids[number] = crawl
        return crawl


def _first_captures(before_ms: int | None, crawl: str | None) -> tuple[str, list[Any]]:
    """An SQL condition on first captures, and its values."""
    conditions, values = ["1"], list[Any]()
    if before_ms is not None:
        conditions.append("seen_ms < ?")
        values.append(before_ms)
    if crawl is not None:
        conditions.append("crawl = (SELECT number FROM content_crawls WHERE id = ?)")
        values.append(crawl)
    return " AND ".join(conditions), values


def _noted_row(capture: SeenText, crawl: int) -> tuple[Any, ...]:
    """A row of ``content_captures``."""
    original = None if capture.original == capture.digest else capture.original
    decided = (capture.kind, original, capture.similarity)
    return (url_key(capture.url), capture.digest, *decided, crawl, capture.seen_ms)
