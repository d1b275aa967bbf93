"""An exact set of fingerprints on disk, which confirms the hits of a Bloom filter.

``in`` never misses a fingerprint of the set: at any time it is either in memory or readable from the committed file.
One thread (the event loop) adds, removes and looks up fingerprints; :meth:`ExactSet.add`, :meth:`~ExactSet.discard`
and :meth:`~ExactSet.clear` only change the memory. Another thread (the worker) writes the changes with
:meth:`~ExactSet.write_pending`. Neither thread waits for the other.

The file format is described in :mod:`~scrapy_dedupe.urls.exact_file`. The file does not record whether the run that
wrote it stopped cleanly. Its owner therefore stores :attr:`ExactSet.count` elsewhere at a clean stop, compares it
at the next start, and opens the set with ``recreate=True`` after an unclean stop.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.urls.exact_file import ExactFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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


class ExactSet:
    """A set of fingerprints of 1 to 65,535 bytes; created by :meth:`open`.

    Changes that a full or failing disk does not accept stay in memory, up to ``max_pending_bytes``. Further new
    fingerprints are not added to the set; ``forgotten`` counts them.
    """

    def __init__(self, file: ExactFile, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self.forgotten = 0
        self._file = file
        self._max_pending_bytes = max_pending_bytes
        # _writing_lock is held while a batch is written, _memory_lock only for short operations in memory.
        self._writing_lock = threading.RLock()
        self._memory_lock = threading.Lock()
        # True: add to the file; False: remove from it. Lookups use both dictionaries until the batch is committed.
        self._pending: dict[bytes, bool] = {}
        self._being_written: dict[bytes, bool] = {}
        self._pending_bytes = 0
        self._being_written_bytes = 0
        self._is_cleared = False
        self._clearings = 0
        # Increases with each removal. An answer that was read before a removal must not be cached after it.
        self._removals = 0
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
        package, :class:`~scrapy_dedupe.errors.StoreUnavailable` if it cannot be read or written.
        """
        return cls(ExactFile.open(path, fingerprinter, recreate=recreate), max_pending_bytes)

    @property
    def path(self) -> Path:
        return self._file.path

    # On the event loop

    def add(self, fingerprint: bytes) -> None:
        """Add the fingerprint. It is in the set immediately and is written later."""
        self._check_open()
        with self._memory_lock:
            if self._pending.get(fingerprint, self._being_written.get(fingerprint)):
                return
            is_full = self._pending_bytes + self._being_written_bytes >= self._max_pending_bytes
            if is_full and fingerprint not in self._pending:
                self.forgotten += 1
                return
            self._set(fingerprint, True)

    def discard(self, fingerprints: Iterable[bytes]) -> None:
        """Remove the fingerprints. They are no longer in the set; the file is changed later."""
        self._check_open()
        with self._memory_lock:
            for fingerprint in fingerprints:
                # The number is not limited: a dropped removal would mean a page that is never requested.
                self._set(fingerprint, False)
                self._cache.discard(fingerprint)
            self._removals += 1

    def clear(self) -> None:
        """Remove everything. The set is empty immediately; the file is changed later."""
        self._check_open()
        with self._memory_lock:
            self._pending = {}
            self._being_written = {}
            self._pending_bytes = self._being_written_bytes = 0
            self._cache = _Recent()
            self._is_cleared = True
            self._clearings += 1
            self._removals += 1

    def __contains__(self, fingerprint: bytes) -> bool:
        """Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if the file cannot be read without waiting."""
        with self._memory_lock:
            in_memory = self._find_in_memory(fingerprint)
            if in_memory is not None:
                return in_memory
            removals = self._removals
        # Read the file after the memory: changes leave the memory only when they are committed.
        is_there = self._file.has(fingerprint)
        if is_there:
            with self._memory_lock:
                if removals == self._removals:
                    self._cache.add(fingerprint)
        return is_there

    @property
    def pending(self) -> int:
        """Number of fingerprints that are still to be written or removed."""
        return len(self._pending) + len(self._being_written)

    @property
    def wants_writing(self) -> bool:
        """Whether :meth:`write_pending` should be called before the next flush."""
        return self._failed_at is None and len(self._pending) >= WRITE_FROM

    def __len__(self) -> int:
        """The exact number, including pending changes. Each pending change is looked up, so this is slow.

        Raises the same exceptions as ``in``.
        """
        pending, is_cleared = self._changes()
        if is_cleared:
            return sum(pending.values())
        return self._file.count_with(pending.items())

    @property
    def count(self) -> int:
        """Number of fingerprints in the committed file. After :meth:`close` they are durable."""
        return self._file.count

    # On the worker

    def write_pending(self) -> None:
        """Write the pending changes, sorted, in one or more transactions.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if they cannot be written. After a failure it retries
        at most every 30 seconds, does not raise again until a write has succeeded, and leaves the rest to
        :meth:`close`.
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
        """Add many fingerprints in bounded memory. Each is in the set once its transaction is committed.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if they cannot be written.
        """
        self._check_open()
        rest = iter(fingerprints)
        while part := list(islice(rest, _TRANSACTION_FINGERPRINTS)):
            with self._writing_lock:
                # Write earlier removals first; otherwise they would remove fingerprints that are added now.
                self._write_pending()
                self._file.write([(fingerprint, True) for fingerprint in part], clear=False)

    def fingerprints(self) -> Iterator[bytes]:
        """Iterate over the fingerprints in bounded memory, including pending ones.

        Fingerprints that are added or removed during the iteration may or may not be included; none is yielded twice.
        Raises the same exceptions as ``in``.
        """
        self._check_open()
        pending, is_cleared = self._changes()
        last = b""
        while not is_cleared:
            with self._writing_lock:
                part = self._file.after(last)
            if not part:
                break
            for fingerprint in part:
                if pending.pop(fingerprint, True):
                    yield fingerprint
            last = part[-1]
        yield from (fingerprint for fingerprint, is_wanted in pending.items() if is_wanted)

    def close(self) -> None:
        """Write the pending changes, make the file durable and close it. Can be called repeatedly.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if that fails. The file is closed even then, and
        the fingerprints that it lacks will be requested again. If removals could not be written, the file is deleted,
        because it would still contain the removed fingerprints.
        """
        with self._writing_lock:
            if self._is_closed:
                return
            try:
                if not self._file.is_temporary:
                    self._write_pending()
            finally:
                self._is_closed = True
                lacks_removals = self._is_cleared or not all(self._pending.values())
                self._file.close(remove=lacks_removals)

    # In memory, with _memory_lock held

    def _find_in_memory(self, fingerprint: bytes) -> bool | None:
        for changes in (self._pending, self._being_written):
            is_wanted = changes.get(fingerprint)
            if is_wanted is not None:
                return is_wanted
        if self._is_cleared:
            return False
        return True if fingerprint in self._cache else None

    def _set(self, fingerprint: bytes, is_wanted: bool) -> None:
        if fingerprint not in self._pending:
            self._pending_bytes += _memory_bytes(fingerprint)
        self._pending[fingerprint] = is_wanted

    def _changes(self) -> tuple[dict[bytes, bool], bool]:
        """The changes that are not in the file yet, and whether the file's content is to be removed."""
        with self._memory_lock:
            return {**self._being_written, **self._pending}, self._is_cleared

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The exact URL set {self.path} is closed. Open it again.")

    # On disk, with _writing_lock held

    def _write_pending(self) -> None:
        with self._memory_lock:
            batch = self._being_written = self._pending
            self._being_written_bytes = self._pending_bytes
            self._pending, self._pending_bytes = {}, 0
            clearings, is_cleared = self._clearings, self._is_cleared
        try:
            todo = iter(sorted(batch.items()))
            part = list(islice(todo, _TRANSACTION_FINGERPRINTS))
            while part or is_cleared:
                self._file.write(part, clear=is_cleared)
                if is_cleared:
                    with self._memory_lock:
                        # If clear() was called again meanwhile, the next write must clear the file again.
                        self._is_cleared = self._clearings != clearings
                    is_cleared = False
                part = list(islice(todo, _TRANSACTION_FINGERPRINTS))
        except BaseException:
            self._failed_at = time.monotonic()
            self._end_of_batch(clearings, batch)
            raise
        self._failed_at = None
        self._end_of_batch(clearings, {})

    def _end_of_batch(self, clearings: int, unwritten: dict[bytes, bool]) -> None:
        with self._memory_lock:
            # clear() was called meanwhile: the batch is obsolete, and pending changes are newer.
            if self._clearings != clearings:
                return
            for fingerprint, is_wanted in unwritten.items():
                if fingerprint not in self._pending:
                    self._set(fingerprint, is_wanted)
            self._being_written, self._being_written_bytes = {}, 0


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

    def discard(self, fingerprint: bytes) -> None:
        self._young.discard(fingerprint)
        self._old.discard(fingerprint)


def _memory_bytes(fingerprint: bytes) -> int:
    """Approximate memory of a pending fingerprint: the object and its dictionary entry."""
    return len(fingerprint) + 140
