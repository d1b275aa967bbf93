"""The rows of crawls in SQLite: beginning, removing and replacing crawls, adding their data, and deleting it.

The tables are described in :mod:`.sqlite_index_tables`. Nothing about a crawl is cached between two calls, since
another process may change or purge it meanwhile.

Readers find payloads only through the rows of crawls, so a purge takes effect in one small transaction: from then on a
payload is found in another crawl that has it too. The data of the purged crawl is deleted afterwards.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError

from .base import Counts, Original
from .crawl_index import CrawlIndex
from .index_values import (
    UNKNOWN_FILE,
    digest_start,
    is_date,
    packed_capture_start,
    packed_details,
    packed_digest,
    read_details,
    software,
    state_message,
    url_hash,
    utc_now,
)
from .sqlite_file import rows_of, sqlite_faults, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .base import Need, OnDone, UrlCapture, Waiting

COUNTS = "total_urls, dupe_urls, conserved_size, total_crawl_size"
_METADATA = "id, state, started, committed, commit_order, incomplete, software, stats, imported, concurrent"
NEXT_ORDER = "(SELECT coalesce(max(commit_order), 0) + 1 FROM crawl)"

_ADD = """
INSERT INTO original (id, digest, wacz_index, date, url, size, record, file, "offset")
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_ADDED_BEFORE = """
SELECT o.digest FROM original o CROSS JOIN crawl c ON c.number = o.id >> 32
WHERE (c.number = ? OR (coalesce(c.part_of, c.number) = ? AND c.commit_order IS NOT NULL))
AND substr(o.digest, 1, 8) IN ({})
"""

_ADD_URL = """
INSERT INTO crawl_url (hash, crawl, capture) VALUES (?, ?, ?)
ON CONFLICT (hash, crawl) DO UPDATE SET capture = excluded.capture
"""

_ADD_LATEST_URL = _ADD_URL.replace("= excluded.capture", "= max(capture, excluded.capture)")

# No packed digest of five bytes starts with this byte.
_REFERENCE = b"\x01"

_ADD_WAITING = """
INSERT INTO crawl_waiting (crawl, digest, size, revisits) VALUES (?, ?, ?, ?)
ON CONFLICT (crawl, digest, size) DO UPDATE SET revisits = revisits + excluded.revisits
"""

_FORGOTTEN_AT_ONCE = 1_000
_LONGEST_PAUSE_S = 0.02


class SqliteIndexBase(CrawlIndex):
    """The methods of :class:`~.crawl_index.CrawlIndex` for removal and repair, and shared helpers."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        super().__init__(url)
        self._connection = connection

    def _read(self, query: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        with sqlite_faults(self._url):
            return self._connection.execute(query, parameters).fetchall()

    def _value(self, query: str, *parameters: object) -> Any:
        """The first column of the first row of a query in a transaction; None if there is no row."""
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._connection, self._url)

    @contextmanager
    def _change(self, crawl: str, action: str, *, allow_committed: bool = False) -> Iterator[int]:
        """A transaction on an uncommitted crawl; yields its number."""
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state != "uncommitted" and not (allow_committed and state == "committed"):
                raise CrawlStateError(state_message(crawl, state, action, self._url))
            yield number

    def _row(self, crawl: str) -> tuple[int, str, bool]:
        """The number of a crawl (0 for an unknown one), its state, and whether it was imported.

        The state of an imported crawl is ``importing`` until its first source has ended.
        """
        row = self._connection.execute(
            "SELECT number, CASE WHEN state = 'uncommitted' AND imported THEN 'importing' ELSE state END, imported"
            " FROM crawl WHERE id = ?",
            (crawl,),
        ).fetchone()
        return (0, "unknown", False) if row is None else (int(row[0]), str(row[1]), bool(row[2]))

    def _mark(self, name: str) -> str | None:
        value: str | None = self._value("SELECT value FROM index_mark WHERE name = ?", name)
        return value

    def _set_mark(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO index_mark VALUES (?, ?)", (name, value))

    def _other_payload(self, payload: str) -> str | None:
        """Record the payload mode of an empty index; return its mode if it differs, otherwise None."""
        mode = self._mark("payload")
        if mode is None:
            self._set_mark("payload", payload)
        return None if mode in (None, payload) else mode

    def _begin(self, crawl: str, *, imported: bool = False, concurrent: bool = False) -> int:
        """Create a row for a crawl that is unknown or canceled; return its number."""
        # An interrupted purge of an earlier crawl with this id must not delete the new one.
        self._connection.execute(
            "UPDATE crawl SET state = 'waste' WHERE state = 'purging' AND id = ? || '/' || number", (crawl,)
        )
        self._connection.execute(
            "UPDATE crawl SET state = 'gone', id = id || '/' || number WHERE id = ?", (crawl,)
        )
        ((number,),) = self._connection.execute(
            "INSERT INTO crawl (id, state, started, software, imported, concurrent, commit_order)"  # noqa: S608
            f" VALUES (?1, 'uncommitted', ?2, ?3, ?4, ?5, CASE WHEN ?5 THEN {NEXT_ORDER} END) RETURNING number",
            (crawl, utc_now(), software(), int(imported), int(concurrent)),
        ).fetchall()
        return int(number)

    def _forget_payload(self) -> None:
        """Forget the payload mode of an index without crawls, so that its next crawl decides it."""
        self._connection.execute(
            "DELETE FROM index_mark WHERE name = 'payload' AND NOT EXISTS"
            " (SELECT 1 FROM crawl WHERE state IN ('uncommitted', 'committed'))"
        )

    # Adding data, in a transaction

    def _add_records(
        self,
        number: int,
        crawl: int,
        originals: Sequence[Original],
        urls: Sequence[UrlCapture],
        *,
        latest: bool = False,
    ) -> None:
        """Add records to a crawl or to a part of it, except those whose payload it has already; and captures of URLs.

        Records of another part of the crawl count only after that part has ended: until then it may still be forgotten.
        Of the captures of a URL the last one is used, or with ``latest`` the one with the latest date.
        """
        located: tuple[Original | UrlCapture, ...] = (*originals, *urls)
        names = dict.fromkeys(one.file for one in located if one.file is not None)
        files: dict[str | None, int] = {name: self._file_number(number, name) for name in names}
        first, last = id_range(number)
        highest = self._value("SELECT max(id) FROM original WHERE id BETWEEN ? AND ?", first, last)
        following = first if highest is None else highest + 1
        packed = {one.digest: packed_digest(one.digest) for one in located}
        beginnings = [packed[original.digest][:8] for original in originals]
        before = rows_of(self._connection, _ADDED_BEFORE, beginnings, number, crawl)
        known = {digest for (digest,) in before}
        # The running numbers of the added records.
        entered: dict[bytes, int] = {}
        rows = []
        for original in originals:
            digest = packed[original.digest]
            if digest in known or digest in entered:
                continue
            entered[digest] = following - first
            rows.append(
                (
                    following,
                    digest,
                    original.wacz_index,
                    int(original.date),
                    original.url,
                    original.size,
                    packed_details(original) or None,
                    files.get(original.file),
                    original.offset,
                )
            )
            following += 1
        self._connection.executemany(_ADD, rows)
        captures = []
        for capture in urls:
            start = packed_capture_start(capture, files.get(capture.file, UNKNOWN_FILE))
            digest = packed[capture.digest]
            if digest in entered:
                digest = _REFERENCE + entered[digest].to_bytes(4, "big")
            captures.append((url_hash(capture.url), number, start + digest))
        # In the order of the hashes, since neighbours share a page. A URL may occur twice: the order of its captures counts.
        captures.sort(key=itemgetter(0))
        self._connection.executemany(_ADD_LATEST_URL if latest else _ADD_URL, captures)

    def _add_waiting(self, number: int, waiting: Sequence[Waiting]) -> None:
        revisits = Counter((revisit.digest, revisit.size) for revisit in waiting)
        self._connection.executemany(
            _ADD_WAITING,
            [(number, packed_digest(digest), size, many) for (digest, size), many in revisits.items()],
        )

    def _add_counts(self, crawl: int, counts: Counts) -> None:
        if counts != Counts():
            self._connection.execute(
                "UPDATE crawl SET total_urls = total_urls + ?, dupe_urls = dupe_urls + ?,"
                " conserved_size = conserved_size + ?, total_crawl_size = total_crawl_size + ?"
                " WHERE number = ?",
                (*astuple(counts), crawl),
            )

    def _add_needs(self, crawl: int, needs: Sequence[Need]) -> None:
        self._connection.executemany(
            "INSERT OR IGNORE INTO crawl_need (crawl, other, wacz_index, file) VALUES (?, ?, ?, ?)",
            [(crawl, need.crawl, need.wacz_index, need.file or "") for need in needs],
        )

    def _file_number(self, crawl: int, name: str) -> int:
        """The number of a WARC file. The file is added if it is new."""
        return self._entered_number("crawl_file", "name", crawl, name)

    def _container_number(self, crawl: int, filename: str) -> int:
        """The number of a container. The container is added if it is new."""
        return self._entered_number("crawl_container", "filename", crawl, filename)

    def _entered_number(self, table: str, column: str, crawl: int, name: str) -> int:
        find = f"SELECT min(number) FROM {table} WHERE crawl = ? AND {column} = ?"  # noqa: S608 - constants
        number = self._value(find, crawl, name)
        if number is None:
            insert = (
                f"INSERT INTO {table} (crawl, number, {column}) SELECT ?1, coalesce(max(number) + 1, 0), ?2"  # noqa: S608
                f" FROM {table} WHERE crawl = ?1 RETURNING number"
            )
            ((number,),) = self._connection.execute(insert, (crawl, name)).fetchall()
        return int(number)

    def _fill_container(self, crawl: int, filename: str, sha256_hex: str | None, size: int) -> None:
        """Record hash and size of a container. The container is added if it is new."""
        self._connection.execute(
            "UPDATE crawl_container SET hash = ?, size = ? WHERE crawl = ? AND number = ?",
            (sha256_hex, size, crawl, self._container_number(crawl, filename)),
        )

    # Removing and replacing crawls

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        with self._transaction():
            rows = {crawl: self._row(crawl) for crawl in crawls}
            for crawl, (_, state, _) in rows.items():
                if state in ("uncommitted", "importing"):
                    raise CrawlStateError(state_message(crawl, state, "purged", self._url))
            for number, _, _ in rows.values():
                if number:
                    self._waste(number, "purging")
                    self._connection.execute("DELETE FROM source_done WHERE crawl = ?", (number,))
            self._connection.executemany("DELETE FROM report WHERE crawl = ?", [(crawl,) for crawl in rows])
            self._forget_payload()
            # The crawls that the last manifest did not name may be the purged ones.
            notes = replace(self.import_notes, removed_crawls=0, removed_size=0)
            self._set_mark("imports", json.dumps(asdict(notes)))
        self._clear(on_done=on_done)

    def forget_canceled(self, crawl: str) -> None:
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state == "canceled":
                self._waste(number)
        self._clear()

    def unfinished_purge(self) -> list[str]:
        rows = self._read("SELECT id FROM crawl WHERE state = 'purging' ORDER BY id")
        return [crawl.rpartition("/")[0] for (crawl,) in rows]

    def replace(self, crawl: str, by: str) -> None:
        action = f"used to replace {crawl}"
        with self._transaction():
            old, state, _ = self._row(crawl)
            new, new_state, _ = self._row(by)
            if state != "committed":
                raise CrawlStateError(state_message(crawl, state, f"replaced by {by}", self._url))
            if new_state == "uncommitted":
                if self._was_added_to(old, new):
                    raise CrawlStateError(state_message(crawl, "extended", f"replaced by {by}", self._url))
                self._replace(old, new, crawl, by)
            elif new_state != "unknown" or not self._was_replaced(by, crawl):
                raise CrawlStateError(state_message(by, new_state, action, self._url))
        self._clear()

    def _replace(self, old: int, new: int, crawl: str, by: str) -> None:
        self._connection.execute("DELETE FROM crawl_container WHERE crawl = ?", (new,))
        for table in ("crawl_container", "source_done"):
            self._connection.execute(f"UPDATE {table} SET crawl = ? WHERE crawl = ?", (new, old))  # noqa: S608
        self._take_place(new, old)
        # This id shows a repeated call that the replacement was already made.
        self._connection.execute(
            "UPDATE crawl SET id = ? || '/' || ? || '/' || number WHERE number = ?", (crawl, by, old)
        )

    def _was_added_to(self, crawl: int, since: int) -> bool:
        """Whether a source of a crawl has begun, or has ended after another crawl was started."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM source_begun WHERE crawl = ?1)"
            " OR EXISTS (SELECT 1 FROM source_done WHERE crawl = ?1 AND ended_after >= ?2)"
        )
        return bool(self._value(query, crawl, since))

    def _was_replaced(self, by: str, crawl: str) -> bool:
        query = "SELECT 1 FROM crawl WHERE state IN ('waste', 'gone') AND id = ? || '/' || ? || '/' || number"
        return bool(self._value(query, crawl, by))

    # Forgetting

    def _waste(self, number: int, state: str = "waste") -> None:
        """Hide a crawl or part and its parts from all readers. Its id can be used again."""
        self._connection.execute(
            "UPDATE crawl SET state = 'waste', commit_order = NULL, part_of = NULL WHERE part_of = ?",
            (number,),
        )
        self._connection.execute(
            "UPDATE crawl SET state = ?2, commit_order = NULL, part_of = NULL,"
            " id = CASE WHEN part_of IS NULL THEN id || '/' || number ELSE id END WHERE number = ?1",
            (number, state),
        )
        self._connection.execute("DELETE FROM source_begun WHERE crawl = ?1 OR part = ?1", (number,))

    def _renew(self, number: int) -> int:
        """Give a crawl a new row with only its metadata, and mark the old row as waste."""
        ((new,),) = self._connection.execute(
            "INSERT INTO crawl (id, state, started, software) VALUES ('/', 'hidden', '', '') RETURNING number"
        ).fetchall()
        self._take_place(new, number)
        return int(new)

    def _take_place(self, new: int, old: int) -> None:
        """Give a row the id and the metadata of another row, but not its counts, and mark the other row as waste."""
        select = f"SELECT {_METADATA} FROM crawl WHERE number = ?"  # noqa: S608 - constants
        values = self._connection.execute(select, (old,)).fetchone()
        self._waste(old)
        marks = ", ".join("?" * len(values))
        update = f"UPDATE crawl SET ({_METADATA}) = ({marks}) WHERE number = ?"  # noqa: S608 - constants
        self._connection.execute(update, (*values, new))

    def _clear(self, numbers: Sequence[int] | None = None, on_done: OnDone | None = None) -> None:
        """Delete the data of waste rows, in small transactions; without ``numbers``, of all waste rows.

        Waste rows and their numbers are never used again. Therefore several processes may do this at once, and
        the next process completes what was interrupted.
        """
        rows = self._read("SELECT number FROM crawl WHERE state IN ('waste', 'purging')")
        wasted = [number for (number,) in rows if numbers is None or number in numbers]
        if not wasted:
            return
        done = total = 0
        if on_done is not None:
            query = "SELECT count(*) FROM original WHERE id BETWEEN ? AND ?"
            total = sum(self._read(query, id_range(number))[0][0] for number in wasted)

        for number in wasted:
            for count in self._deleted("original", "id", "id BETWEEN ? AND ?", id_range(number)):
                done += count
                if on_done is not None:
                    on_done("records", done, total)
            for _ in self._deleted("crawl_waiting", "crawl, digest, size", "crawl = ?", (number,)):
                pass
        self._delete_urls(on_done)
        for number in wasted:
            with self._transaction():
                for table in ("crawl_file", "crawl_container", "crawl_need"):
                    self._connection.execute(f"DELETE FROM {table} WHERE crawl = ?", (number,))  # noqa: S608
                self._connection.execute("UPDATE crawl SET state = 'gone' WHERE number = ?", (number,))

    def _deleted(self, table: str, key: str, where: str, values: Sequence[object]) -> Iterator[int]:
        """Delete rows in small transactions; yield the number of each."""
        some = f"SELECT {key} FROM {table} WHERE {where} LIMIT {_FORGOTTEN_AT_ONCE}"  # noqa: S608 - constants
        delete = f"DELETE FROM {table} WHERE ({key}) IN ({some})"  # noqa: S608 - constants
        count = _FORGOTTEN_AT_ONCE
        while count == _FORGOTTEN_AT_ONCE:
            began = time.monotonic()
            with self._transaction():
                count = self._connection.execute(delete, values).rowcount
            yield count
            if count == _FORGOTTEN_AT_ONCE:
                let_others_write(began)

    def _delete_urls(self, on_done: OnDone | None) -> None:
        # No index leads from a crawl to its URLs: the table is read once for all waste rows, outside of transactions.
        last: tuple[bytes, int] = (b"", 0)
        done = 0
        query = (
            "SELECT hash, crawl FROM crawl_url WHERE (hash, crawl) > (?, ?) AND crawl IN"
            " (SELECT number FROM crawl WHERE state IN ('waste', 'purging')) ORDER BY hash, crawl LIMIT ?"
        )
        while rows := self._read(query, (*last, _FORGOTTEN_AT_ONCE)):
            last = rows[-1]
            began = time.monotonic()
            with self._transaction():
                self._connection.executemany("DELETE FROM crawl_url WHERE hash = ? AND crawl = ?", rows)
            done += len(rows)
            if on_done is not None:
                # The hashes are evenly distributed, so the last hash shows how much of the table is done.
                reached = (int.from_bytes(last[0][:4], "big") + 1) / (1 << 32)
                on_done("URLs", done, done if len(rows) < _FORGOTTEN_AT_ONCE else round(done / reached))
            let_others_write(began)

    # Reading

    def _original(self, digest: str, row: Sequence[Any]) -> Original | None:
        crawl, wacz_index, date, url, size, record, file, offset = row
        digits = str(date)
        if not (
            is_date(digits.encode("ascii", "replace"))
            and isinstance(url, str)
            and url
            and isinstance(size, int)
            and isinstance(wacz_index, int)
            and isinstance(offset, int | None)
        ):
            self.unreadable += 1
            return None
        record_id, status, form = read_details(record) if isinstance(record, bytes) else (None, None, "")
        return Original(digest, crawl, digits, url, size, wacz_index, record_id, file, offset, status, form)


def id_range(number: int) -> tuple[int, int]:
    """The first and the last id that an original of a crawl or part can have."""
    return number << 32, ((number + 1) << 32) - 1


def referenced_record(number: int, value: bytes) -> int | None:
    """The id of the record that replaces the digest in a packed capture of a crawl or part; None if none does."""
    end = digest_start(value)
    if end is None or len(value) - end != 5 or value[end : end + 1] != _REFERENCE:
        return None
    return id_range(number)[0] + int.from_bytes(value[end + 1 :], "big")


def let_others_write(began: float) -> None:
    """Pause as long as the lock was held since *began*, but not longer than a limit."""
    # SQLite does not queue writers: a waiting process only polls whether the lock is free.
    time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE_S))
