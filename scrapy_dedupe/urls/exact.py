"""An exact set of fingerprints on disk, and a Bloom filter whose hits are confirmed in it.

No fingerprint is lost to a false positive of :class:`ConfirmedBloomFilter`. The Bloom filter answers from memory for new
fingerprints; an exact set would have to read a page of its file for each of them. A hit of the Bloom filter is looked up
in the exact set. If the set does not have the fingerprint, the hit was a false positive: the fingerprint counts as new
and is added to the set.

**Two threads.** ``in`` never misses a fingerprint of the set: at any time it is either in memory or readable from the
committed file. One thread (the event loop) adds and looks up fingerprints; :meth:`ExactSet.add` and
:meth:`~ExactSet.clear` only change the memory. Another thread (the worker) writes the changes with
:meth:`~ExactSet.write_pending`. Neither thread waits for the other.

**The file.** Its format is described in :mod:`~scrapy_dedupe.urls.exact_file`. It does not record whether the run that
wrote it stopped cleanly. Its owner therefore stores :attr:`ExactSet.count` elsewhere at a clean stop, compares it
at the next start, and opens the set with ``recreate=True`` after an unclean stop.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.exact_file import ExactFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scrapy_dedupe.urls.bloom import Figures

# With this many pending fingerprints they are written before the next flush.
WRITE_FROM = 5_000
# One million fingerprints of 20 bytes; see _memory_bytes(). Reached only if the disk accepts no writes.
MAX_PENDING_BYTES = 160_000_000

# In a large set nearly every fingerprint of a transaction changes a page of its own, and the WAL file grows to
# the changed pages of one transaction.
_TRANSACTION_FINGERPRINTS = 20_000
_RETRY_S = 30.0
_CACHE_FINGERPRINTS = 16_384
_CACHE_BYTES = 2 << 20
_PASSED_CAPACITY = 10_000
_PASSED_ERROR_RATE = 1e-6


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
    """A set of fingerprints of 1 to 65,535 bytes; created by :meth:`open`.

    Fingerprints that a full or failing disk does not accept stay in memory, up to ``max_pending_bytes``. Further new
    fingerprints are not added to the set; ``forgotten`` counts them. All methods may raise
    :class:`~scrapy_dedupe.errors.StoreUnavailable` if the file cannot be read without waiting, or cannot be written.
    """

    def __init__(self, file: ExactFile, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self.forgotten = 0
        self._file = file
        self._max_pending_bytes = max_pending_bytes
        # _writing_lock is held while a batch is written, _memory_lock only for short operations in memory.
        self._writing_lock = threading.RLock()
        self._memory_lock = threading.Lock()
        # Lookups use both sets until the batch is committed.
        self._pending: set[bytes] = set()
        self._being_written: set[bytes] = set()
        self._pending_bytes = 0
        self._being_written_bytes = 0
        # Whether the content of the file is to be removed.
        self._is_cleared = False
        # An answer that was read from the file before a clearing must not be cached after it.
        self._clearings = 0
        self._cache = _Recent()
        self._failed_at: float | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: Path | None,
        fingerprinter: str,
        *,
        recreate: bool = False,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> ExactSet:
        """Open the set in the file *path*. It is empty if the file does not exist or with ``recreate``.

        Without a path a temporary file is used. It is unlinked as soon as it is open, so that the system frees its
        space even if the process is killed. On Windows, where open files cannot be unlinked, :meth:`close` deletes it,
        and a kill leaves it in the folder for temporary files (``TMPDIR``).

        Checks the type of the file, its version, its fingerprinter, its size, and the search for its first and last
        fingerprint. Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the file is damaged or no exact set of this
        package.
        """
        return cls(ExactFile.open(path, fingerprinter, recreate=recreate), max_pending_bytes)

    @classmethod
    def open_if(cls, path: Path, fingerprinter: str, count: int) -> ExactSet | None:
        """Open the set if it has ``count`` fingerprints; None if it has another number. See :meth:`open`."""
        exact = cls.open(path, fingerprinter)
        if exact.count == count:
            return exact
        exact.close()
        return None

    @property
    def is_temporary(self) -> bool:
        return self._file.is_temporary

    # On the event loop

    def add(self, fingerprint: bytes) -> None:
        """Add the fingerprint. It is in the set immediately and is written later."""
        self._check_open()
        with self._memory_lock:
            if fingerprint in self._pending or fingerprint in self._being_written:
                return
            if self._pending_bytes + self._being_written_bytes >= self._max_pending_bytes:
                self.forgotten += 1
                return
            self._pending.add(fingerprint)
            self._pending_bytes += _memory_bytes(fingerprint)

    def clear(self) -> None:
        """Remove everything. The set is empty immediately; the file is changed later."""
        self._check_open()
        with self._memory_lock:
            self._pending, self._being_written = set(), set()
            self._pending_bytes = self._being_written_bytes = 0
            self._cache = _Recent()
            self._is_cleared = True
            self._clearings += 1

    def __contains__(self, fingerprint: bytes) -> bool:
        with self._memory_lock:
            if fingerprint in self._pending or fingerprint in self._being_written:
                return True
            if self._is_cleared:
                return False
            if fingerprint in self._cache:
                return True
            clearings = self._clearings
        # Read the file after the memory: fingerprints leave the memory only when they are committed.
        is_there = self._file.has(fingerprint)
        if is_there:
            with self._memory_lock:
                if clearings == self._clearings:
                    self._cache.add(fingerprint)
        return is_there

    @property
    def pending(self) -> int:
        """Number of fingerprints that are still to be written."""
        return len(self._pending) + len(self._being_written)

    @property
    def wants_writing(self) -> bool:
        """Whether :meth:`write_pending` should be called before the next flush."""
        return self._failed_at is None and len(self._pending) >= WRITE_FROM

    def __len__(self) -> int:
        """The exact number, including pending fingerprints. Each of them is looked up, so this is slow."""
        with self._memory_lock:
            pending, is_cleared = self._being_written | self._pending, self._is_cleared
        return len(pending) if is_cleared else self._file.count_with(pending)

    @property
    def count(self) -> int:
        """Number of fingerprints in the committed file. After :meth:`close` they are durable."""
        return self._file.count

    # On the worker

    def write_pending(self) -> None:
        """Write the pending changes, sorted, in one or more transactions.

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
                # An earlier clearing would remove fingerprints that are added now.
                self._write_pending()
                self._file.write(part)

    def close(self) -> None:
        """Write the pending changes, make the file durable and close it. Can be called repeatedly.

        The file is closed even if that fails; the fingerprints that it lacks will be requested again. If a clearing could
        not be written, the file is deleted, because it would still contain the removed fingerprints.
        """
        with self._writing_lock:
            if self._is_closed:
                return
            try:
                if not self.is_temporary:
                    self._write_pending()
            finally:
                self._is_closed = True
                self._file.close(remove=self._is_cleared)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The exact URL set {self._file.path} is closed. Open it again.")

    # With _writing_lock held

    def _write_pending(self) -> None:
        with self._memory_lock:
            batch = self._being_written = self._pending
            self._being_written_bytes = self._pending_bytes
            self._pending, self._pending_bytes = set(), 0
            clearings, is_cleared = self._clearings, self._is_cleared
        todo = sorted(batch)
        try:
            for start in range(0, max(len(todo), int(is_cleared)), _TRANSACTION_FINGERPRINTS):
                self._file.write(todo[start : start + _TRANSACTION_FINGERPRINTS], clear=is_cleared)
                if is_cleared:
                    with self._memory_lock:
                        # If clear() was called again meanwhile, the next write must clear the file again.
                        self._is_cleared = self._clearings != clearings
                    is_cleared = False
        except BaseException:
            self._failed_at = time.monotonic()
            self._end_batch(clearings, unwritten=batch)
            raise
        self._failed_at = None
        self._end_batch(clearings, unwritten=set())

    def _end_batch(self, clearings: int, unwritten: set[bytes]) -> None:
        with self._memory_lock:
            # clear() was called meanwhile: the batch is obsolete, and pending fingerprints are newer.
            if self._clearings != clearings:
                return
            # add() skips a fingerprint that is being written, so none is in both sets.
            self._pending |= unwritten
            if unwritten:
                self._pending_bytes += self._being_written_bytes
            self._being_written, self._being_written_bytes = set(), 0


class _Recent:
    """Cache of recent positive answers in two generations: when the young one is full, the old one is dropped."""

    __slots__ = ("_bytes", "_old", "_young")

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self._bytes = 0

    def __contains__(self, fingerprint: bytes) -> bool:
        if fingerprint in self._young:
            return True
        if fingerprint not in self._old:
            return False
        self.add(fingerprint)
        return True

    def add(self, fingerprint: bytes) -> None:
        if len(self._young) >= _CACHE_FINGERPRINTS // 2 or self._bytes >= _CACHE_BYTES // 2:
            self._old, self._young, self._bytes = self._young, set(), 0
        self._young.add(fingerprint)
        self._bytes += len(fingerprint)


def _memory_bytes(fingerprint: bytes) -> int:
    """Approximate memory of a pending fingerprint: the object and its entry in a set."""
    return len(fingerprint) + 140
