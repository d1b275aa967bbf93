"""An exact set of fingerprints on disk, and a Bloom filter whose hits are confirmed in it.

No fingerprint is lost to a false positive of :class:`ConfirmedBloomFilter`. The Bloom filter answers from memory for new
fingerprints; an exact set would have to read a page of its file for each of them. A hit of the Bloom filter is looked up
in the exact set. If the set does not have the fingerprint, the hit was a false positive: the fingerprint counts as new
and is added to the set.

**Two threads.** ``in`` never misses a fingerprint of the set: at any time it is either in memory or readable from the
committed file. One thread (the event loop) adds and looks up fingerprints; :meth:`ExactSet.add` only changes the memory.
Another thread (the worker) writes the pending fingerprints with :meth:`~ExactSet.write_pending`. Neither thread waits
for the other, except in :meth:`~ExactSet.clear`.

**Format.** An SQLite database with ``application_id`` 0x64647531 ("ddu1"), ``user_version`` 1, pages of 1,024 bytes,
and two tables. ``seen`` has one column, the fingerprint, as its primary key. ``about`` has the rows
``fingerprinter`` (import path of the class that makes the fingerprints) and ``count`` (number of rows of ``seen``).
The count is updated in the same transaction as ``seen``, so that opening the file need not count rows.

**Durability.** The file is written with ``synchronous=OFF``, because after an unclean stop its content is not used:
after a kill it is intact but may have fingerprints of requests that were never made, and after a power failure it may
be damaged. :meth:`ExactSet.close` makes it durable. The file does not record whether the run that wrote it stopped
cleanly. Its owner therefore stores :attr:`ExactSet.count` elsewhere at a clean stop, compares it at the next start, and
opens the set with ``recreate=True`` after an unclean stop.

**Why this table.** In a large set nearly every fingerprint of a batch changes a page of its own, so the page size
decides how much is written. Pages of 1 KiB write a third of the bytes of pages of 4 KiB at the same rate. The measurements
are in ``docs/design/urls.rst``.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections import OrderedDict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.whole_file import sync_file
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.journal import other_fingerprinter, other_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.urls.bloom import Figures

APPLICATION_ID = 0x64647531
VERSION = 1
# With this many bytes of pending fingerprints they are written before the next flush.
WRITE_FROM_BYTES = 800_000
# Pending fingerprints. Reached only if the disk accepts no writes.
MAX_PENDING_BYTES = 160_000_000
# Python's memory for a pending fingerprint, besides its own bytes.
_OVERHEAD_BYTES = 140

# In a large set nearly every fingerprint of a transaction changes a page of its own, and the WAL file grows to
# the changed pages of one transaction.
_TRANSACTION_FINGERPRINTS = 20_000
# Rows of one INSERT. sqlite3 releases the GIL in each statement and, while the event loop is busy, waits for it
# after each statement.
_STATEMENT_ROWS = 100
_PAGE_BYTES = 1024
_WRITER_CACHE_KIB = 4096
_READER_CACHE_KIB = 2048
_WAL_BYTES = 4 << 20
_RETRY_S = 30.0
# Hits that are answered from memory.
_CACHE_FINGERPRINTS = 16_384
_CACHED_LENGTH = 128
_PASSED_CAPACITY = 10_000
_PASSED_ERROR_RATE = 1e-6

_MAGIC = b"SQLite format 3\0"
# sqlite3 raises the last two for damaged files: for a message with a damaged name, and for a record of absurd size.
_FAULTS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class ConfirmedBloomFilter:
    """A :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter` and an :class:`ExactSet` with the same fingerprints.

    ``confirmed`` counts the hits of the Bloom filter that the exact set confirmed, ``false_positives`` the hits that it
    did not. Errors of the exact set are passed to ``on_error`` and are not raised. Not thread-safe, except where the
    exact set is.

    When the exact set cannot answer, or had to drop fingerprints, an unconfirmed hit counts as new: a request may be made
    twice, but no page is lost. Each fingerprint passes this way only once; otherwise the links of every page would be
    requested repeatedly.
    """

    def __init__(
        self, bloom: GrowingBloomFilter, exact: ExactSet, on_error: Callable[[StoreError], object]
    ) -> None:
        self.bloom = bloom
        self.exact = exact
        self.confirmed = 0
        self.false_positives = 0
        self._on_error = on_error
        # Fingerprints that passed unconfirmed.
        self._passed = GrowingBloomFilter(_PASSED_CAPACITY, _PASSED_ERROR_RATE)

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new."""
        if not self.bloom.add(fingerprint):
            is_there = self._look_up(fingerprint)
            if is_there:
                self.confirmed += 1
                return False
            if is_there is not None:
                self.false_positives += 1
            if (is_there is None or self.exact.forgotten) and not self._passed.add(fingerprint):
                return False
        try:
            self.exact.add(fingerprint)
        except StoreError as error:
            self._on_error(error)
        return True

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; True for each that is new."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self.bloom and bool(self._look_up(fingerprint))

    def __len__(self) -> int:
        """Number of distinct fingerprints recorded; if the exact set fails, as far as is known without it."""
        try:
            return len(self.exact)
        except StoreError as error:
            self._on_error(error)
            return len(self.bloom) + self.false_positives

    @property
    def layers(self) -> int:
        return self.bloom.layers

    def figures(self) -> Figures:
        """The figures of the Bloom filter. ``estimated_error`` is the share of new fingerprints that are looked up on disk."""
        return replace(self.bloom.figures(), seen=len(self), expected_lost=0.0)

    def expected_figures(self) -> Figures:
        """Like :meth:`figures`, for any thread and without access to the exact set."""
        figures = self.bloom.expected_figures()
        return replace(figures, seen=figures.seen + self.false_positives, expected_lost=0.0)

    def _look_up(self, fingerprint: bytes) -> bool | None:
        try:
            return fingerprint in self.exact
        except StoreError as error:
            self._on_error(error)
            return None


class ExactSet:
    """A set of fingerprints of 1 to 65,535 bytes in the file *path*, which is empty if it does not exist or with *recreate*.

    Without a path a temporary file is used. It is unlinked as soon as it is open, so that the system frees its
    space even if the process is killed. On Windows, where open files cannot be unlinked, :meth:`close` deletes it,
    and a kill leaves it in the folder for temporary files (``TMPDIR``).

    Opening checks the type of the file, its version, its fingerprinter, its size, and the search for its first and last
    fingerprint. It raises :class:`~scrapy_dedupe.errors.StoreRefused` if the file is damaged or no exact set of this
    package. All methods may raise :class:`~scrapy_dedupe.errors.StoreUnavailable` if the file cannot be read without
    waiting, or cannot be written.

    Fingerprints that a full or failing disk does not accept stay in memory, up to *max_pending_bytes*. Further new
    fingerprints are not added to the set; ``forgotten`` counts them. ``count`` is the number of fingerprints in the
    committed file; after :meth:`close` they are durable.
    """

    def __init__(
        self,
        path: Path | None,
        fingerprinter: str,
        *,
        recreate: bool = False,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.forgotten = 0
        self.is_temporary = path is None
        self._fingerprinter = fingerprinter
        self._max_pending_bytes = max_pending_bytes
        self._writing_lock = threading.RLock()
        # Closing a connection while another thread runs a statement on it crashes sqlite3.
        self._reading_lock = threading.Lock()
        # Both threads use this set without a lock: each operation on it is atomic.
        self._pending: set[bytes] = set()
        # Each of these is changed by one thread only; their difference is the size of the pending fingerprints.
        self._added_bytes = self._written_bytes = 0
        self._recent: OrderedDict[bytes, None] = OrderedDict()
        self._failed_at: float | None = None
        self._is_closed = False
        self._open(path, recreate=recreate)

    # On the event loop

    def add(self, fingerprint: bytes) -> None:
        """Add the fingerprint. It is in the set immediately and is written later."""
        self._check_open()
        if fingerprint in self._pending:
            return
        size_bytes = len(fingerprint) + _OVERHEAD_BYTES
        if self.pending_bytes + size_bytes > self._max_pending_bytes:
            self.forgotten += 1
        else:
            self._pending.add(fingerprint)
            self._added_bytes += size_bytes

    def clear(self) -> None:
        """Remove everything. Waits for a running write, since this is done only at the start and the end of a crawl."""
        with self._writing_lock:
            self._check_open()
            self._pending.clear()
            self._added_bytes = self._written_bytes = 0
            self._recent.clear()
            self._is_closed = True
            self._close_connections()
            self._open(None if self.is_temporary else self.path, recreate=True)
            self._is_closed = False

    def __contains__(self, fingerprint: bytes) -> bool:
        if fingerprint in self._pending:
            return True
        recent = self._recent
        if fingerprint in recent:
            recent.move_to_end(fingerprint)
            return True
        # Read the file after the memory: fingerprints leave the memory only when they are committed.
        with self._reading() as reader:
            is_there = _is_in(reader, fingerprint)
        if is_there and len(fingerprint) <= _CACHED_LENGTH:
            recent[fingerprint] = None
            if len(recent) > _CACHE_FINGERPRINTS:
                recent.popitem(last=False)
        return is_there

    @property
    def pending(self) -> int:
        """Number of fingerprints that are still to be written."""
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Memory of the fingerprints that are still to be written."""
        return self._added_bytes - self._written_bytes

    @property
    def wants_writing(self) -> bool:
        """Whether :meth:`write_pending` should be called before the next flush."""
        return self._failed_at is None and self.pending_bytes >= WRITE_FROM_BYTES

    def __len__(self) -> int:
        """The exact number, including pending fingerprints. Each of them is looked up, so this is slow."""
        pending = self._pending.copy()
        with self._reading() as reader:
            # One snapshot of the file, unaffected by commits of the writer.
            reader.execute("BEGIN")
            try:
                return _count(reader) + sum(not _is_in(reader, fingerprint) for fingerprint in pending)
            finally:
                reader.execute("COMMIT")

    # On the worker

    def write_pending(self) -> None:
        """Write the pending fingerprints in one or more transactions.

        After a failure it retries at most every 30 seconds, does not raise again until a write has succeeded, and leaves
        the rest to :meth:`close`.
        """
        with self._writing_lock:
            if self._is_closed:
                return
            failed_at = self._failed_at
            if failed_at is not None and time.monotonic() < failed_at + _RETRY_S:
                return
            try:
                self._write_pending()
            except StoreUnavailable:
                if failed_at is None:
                    raise

    def add_all(self, fingerprints: Iterable[bytes]) -> None:
        """Add many fingerprints in bounded memory. Each is in the set once its transaction is committed."""
        self._check_open()
        rest = iter(fingerprints)
        while part := list(islice(rest, _TRANSACTION_FINGERPRINTS)):
            with self._writing_lock:
                self._write(part)

    def close(self) -> None:
        """Write the pending fingerprints, make the file durable and close it. Can be called repeatedly.

        The file is closed even if that fails; the fingerprints that it lacks will be requested again.
        """
        with self._writing_lock:
            if self._is_closed:
                return
            try:
                if not self.is_temporary:
                    self._write_pending()
                    with self._write_faults():
                        self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._is_closed = True
                self._close_connections()
            if self.is_temporary:
                return
            with self._write_faults():
                # Only now: closing a second descriptor would release the process's locks on an open file. The WAL file
                # still exists if another process has the set open.
                for file in (self.path.with_name(f"{self.path.name}-wal"), self.path):
                    if file.exists():
                        sync_file(file)
                sync_folder(self.path.parent)

    def _write_pending(self) -> None:
        batch = sorted(self._pending.copy())
        try:
            for start in range(0, len(batch), _TRANSACTION_FINGERPRINTS):
                part = batch[start : start + _TRANSACTION_FINGERPRINTS]
                self._write(part)
                self._pending.difference_update(part)
                self._written_bytes += sum(map(len, part)) + _OVERHEAD_BYTES * len(part)
        except BaseException:
            self._failed_at = time.monotonic()
            raise
        self._failed_at = None

    def _write(self, fingerprints: list[bytes]) -> None:
        """Add fingerprints in one transaction."""
        writer, rows = self._writer, sorted(fingerprints)
        with self._write_faults():
            try:
                writer.execute("BEGIN IMMEDIATE")
                count = _count(writer)
                for start in range(0, len(rows), _STATEMENT_ROWS):
                    part = rows[start : start + _STATEMENT_ROWS]
                    places = ",".join(["(?)"] * len(part))
                    count += writer.execute(f"INSERT OR IGNORE INTO seen VALUES {places}", part).rowcount  # noqa: S608
                writer.execute("UPDATE about SET value = ? WHERE name = 'count'", (count,))
                writer.execute("COMMIT")
            except BaseException:
                # SQLite may already have rolled back, and on a full disk the rollback may fail too.
                with suppress(*_FAULTS):
                    if writer.in_transaction:
                        writer.execute("ROLLBACK")
                raise
        self.count = count

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The exact URL set {self.path} is closed. Open it again.")

    @contextmanager
    def _write_faults(self) -> Iterator[None]:
        try:
            yield
        except (*_FAULTS, OSError) as error:
            raise StoreUnavailable(
                f"The exact URL set {self.path} cannot be written: {_reason(error)}. New URLs are kept in memory up to a "
                "limit, and are requested again in the next run. Free disk space."
            ) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._reading_lock:
                yield self._reader
        except _FAULTS as error:
            raise StoreUnavailable(
                f"The exact URL set {self.path} cannot be read: {_reason(error)}. URLs that cannot be looked up count as "
                "new. Check the disk for errors."
            ) from error

    # Opening and closing

    def _open(self, path: Path | None, *, recreate: bool) -> None:
        """Open the file with one connection for writing and one for reading."""
        with _opening_faults(path or "in the folder for temporary files"), ExitStack() as undo:
            self._folder = None
            if path is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="scrapy-dedupe-", ignore_cleanup_errors=True
                )
                undo.callback(self._folder.cleanup)
                path = Path(self._folder.name, "urls.exact")
            self.path = path
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_start(path, recreate=recreate)
            if recreate:
                for suffix in ("-wal", "-shm", "-journal", ""):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._writer = writer = _connect(path, timeout_s=5.0)
            undo.callback(writer.close)
            _prepare(writer, path, self._fingerprinter)
            # Lookups must not wait for a lock; in WAL mode the writer does not block readers.
            self._reader = reader = _connect(path, timeout_s=0.0)
            undo.callback(reader.close)
            reader.execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB}")
            reader.execute("PRAGMA query_only=1")
            # Also opens the -wal and -shm files, which is no longer possible after they are unlinked.
            self.count = _count(reader)
            if self._folder is not None and os.name != "nt":
                self._folder.cleanup()
            undo.pop_all()

    def _close_connections(self) -> None:
        with self._reading_lock:
            self._reader.close()
        self._writer.close()
        if self._folder is not None:
            self._folder.cleanup()


def _connect(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def _prepare(writer: sqlite3.Connection, path: Path, fingerprinter: str) -> None:
    writer.execute(f"PRAGMA cache_size=-{_WRITER_CACHE_KIB}")
    application, version = _pragma(writer, "application_id"), _pragma(writer, "user_version")
    has_tables = writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
    if application == 0 and version == 0 and not has_tables:
        _make_tables(writer, fingerprinter)
    elif application != APPLICATION_ID:
        raise StoreRefused(_other_file(path))
    elif version != VERSION:
        raise StoreRefused(other_version(path, version, VERSION))
    writer.execute("PRAGMA synchronous=OFF")
    mode = writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            f"The exact URL set {path} cannot be read and written at the same time: its file system does not support "
            "SQLite's WAL mode. Use a JOBDIR on a local disk, or set DEDUPE_URL_CONFIRM = False."
        )
    writer.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
    writer.execute(f"PRAGMA wal_autocheckpoint={_WAL_BYTES // _pragma(writer, 'page_size')}")
    # Moves what a killed process left in the WAL file into the main file, which then has its full size.
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = writer.execute("SELECT value FROM about WHERE name = 'fingerprinter'").fetchone()
    if stored is None:
        raise StoreRefused(_damaged(path, "its fingerprinter is missing"))
    if stored[0] != fingerprinter:
        raise StoreRefused(other_fingerprinter(path, str(stored[0]), fingerprinter))
    if path.stat().st_size < _pragma(writer, "page_count") * _pragma(writer, "page_size"):
        raise StoreRefused(_damaged(path, "it is truncated"))
    count = _count(writer)
    ends = writer.execute("SELECT min(fingerprint) FROM seen UNION ALL SELECT max(fingerprint) FROM seen")
    if [end is None for (end,) in ends] != [count == 0] * 2:
        raise StoreRefused(_damaged(path, "its count does not match its fingerprints"))


def _make_tables(writer: sqlite3.Connection, fingerprinter: str) -> None:
    writer.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID")
    writer.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID")
    writer.execute("INSERT INTO about VALUES ('count', 0), ('fingerprinter', ?)", (fingerprinter,))
    writer.execute(f"PRAGMA application_id={APPLICATION_ID}")
    writer.execute(f"PRAGMA user_version={VERSION}")
    writer.execute("COMMIT")


def _check_start(path: Path, *, recreate: bool) -> None:
    """Refuse another file before SQLite creates its -wal and -shm files; with *recreate* only another application's."""
    if path.is_dir():
        raise StoreRefused(f"The exact URL set {path} is a folder. Move it away, or use another JOBDIR.")
    start = b""
    if path.exists():
        with path.open("rb") as file:
            start = file.read(100)
    is_other = bool(start) and not start.startswith(_MAGIC)
    if recreate:
        application = int.from_bytes(start[68:72], "big")
        is_other = start.startswith(_MAGIC) and application not in (0, APPLICATION_ID)
    if is_other:
        raise StoreRefused(_other_file(path))


def _count(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM about WHERE name = 'count'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise sqlite3.DatabaseError('its table "about" has no count')
    return row[0]


def _is_in(connection: sqlite3.Connection, fingerprint: bytes) -> bool:
    return (
        connection.execute("SELECT 1 FROM seen WHERE fingerprint = ?", (fingerprint,)).fetchone() is not None
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


@contextmanager
def _opening_faults(place: Path | str) -> Iterator[None]:
    try:
        yield
    except (*_FAULTS, OSError) as error:
        # The low byte of an extended code is the primary code. Errors raised by this module have no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if not isinstance(error, OSError) and (code in _DAMAGE_CODES or "no such" in str(error)):
            raise StoreRefused(_damaged(place, _reason(error))) from error
        raise StoreUnavailable(
            f"The exact URL set {place} cannot be used: {_reason(error)}. Make its folder writable and free disk space, "
            "or set DEDUPE_URL_CONFIRM = False."
        ) from error


def _reason(error: BaseException) -> str:
    return str(error).rstrip(".")


def _damaged(path: Path | str, reason: str) -> str:
    return (
        f"The exact URL set {path} is damaged ({reason}). Delete it (its pages may then be requested again), or use "
        "another JOBDIR."
    )


def _other_file(path: Path) -> str:
    return f"{path} is not an exact URL set of scrapy-dedupe. Move it away, or use another JOBDIR."
