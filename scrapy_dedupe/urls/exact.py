"""An exact set of fingerprints on disk, which confirms what a Bloom filter says.

``in`` never misses a fingerprint that is there: at each moment it is either still in memory or readable from the
committed file. One thread (the event loop's) adds, removes and asks; :meth:`ExactSet.add`,
:meth:`~ExactSet.discard` and :meth:`~ExactSet.clear` only remember what is to be done. Another one (the
worker's) writes it with :meth:`~ExactSet.write_pending`. Neither waits for the other.

The file is described in :mod:`~scrapy_dedupe.urls.exact_file`. It does not tell whether the run that wrote it
ended well. So its owner keeps :attr:`ExactSet.count` elsewhere at a clean stop, compares it at the next start, and
opens with ``anew=True`` where the last run was cut.
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

# Pending fingerprints from which on it is worth to write before the next flush.
WRITE_FROM = 5_000
# A million of 20 bytes; see _weight(). Only a disk that takes nothing lets them come to that.
MAX_PENDING_BYTES = 160_000_000

# Those of one transaction. In a large set nearly each of them is on a page of its own, and the WAL file grows
# to the pages of one transaction.
_TRANSACTION_FINGERPRINTS = 20_000
_RETRY_S = 30.0
_CACHE_FINGERPRINTS = 16_384
_CACHE_BYTES = 2 << 20


class ExactSet:
    """A set of fingerprints, bytes of 1 to 65,535; made by :meth:`open`.

    What a full or failing disk does not take stays in memory, up to ``max_pending_bytes``. New fingerprints
    beyond that are not recorded, and counted in ``forgotten``; the set says of them that it does not know them.
    """

    def __init__(self, file: ExactFile, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self.forgotten = 0
        self._file = file
        self._max_pending_bytes = max_pending_bytes
        # The first is held while a batch is written, the second for a few operations in memory.
        self._writing_lock = threading.RLock()
        self._memory_lock = threading.Lock()
        # True is to be in the file, False is not to be there. What is being written is still answered from memory.
        self._pending: dict[bytes, bool] = {}
        self._being_written: dict[bytes, bool] = {}
        self._pending_bytes = 0
        self._being_written_bytes = 0
        self._is_cleared = False
        self._clearings = 0
        # Grows with each removal: an answer from before it is not to be remembered.
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
        anew: bool = False,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> ExactSet:
        """The set in the file *path*, an empty one where there is none, or with ``anew`` in any case.

        Without a path the file is a temporary one. It loses its name as soon as it is open, so that the system
        frees its space when the process ends in whatever way; where open files keep their names (Windows), it is
        deleted by :meth:`close`, and a kill leaves it in the folder for temporary files (``TMPDIR``).

        Checked are the kind of file, its version, its fingerprinter, that it has its full size, and the way to
        its first and last fingerprint. Raises :class:`~scrapy_dedupe.errors.StoreRefused` for what is not ours
        or is damaged, :class:`~scrapy_dedupe.errors.StoreUnavailable` when it cannot be read or written.
        """
        return cls(ExactFile.open(path, fingerprinter, anew=anew), max_pending_bytes)

    @property
    def path(self) -> Path:
        return self._file.path

    # On the event loop

    def add(self, fingerprint: bytes) -> None:
        """Remember to record the fingerprint. It is in the set from here on."""
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
        """Remember to remove the fingerprints. They are not in the set from here on."""
        self._check_open()
        with self._memory_lock:
            for fingerprint in fingerprints:
                # There is no bound for these: a removal that is forgotten would be a page that nobody asks for.
                self._set(fingerprint, False)
                self._cache.discard(fingerprint)
            self._removals += 1

    def clear(self) -> None:
        """Remember to remove everything. The set is empty from here on."""
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
        """Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the file does not answer at once."""
        with self._memory_lock:
            remembered = self._remembered(fingerprint)
            if remembered is not None:
                return remembered
            removals = self._removals
        # Only here: what leaves memory is committed by then, so that a file that is asked later has it.
        is_there = self._file.has(fingerprint)
        if is_there:
            with self._memory_lock:
                if removals == self._removals:
                    self._cache.add(fingerprint)
        return is_there

    @property
    def pending(self) -> int:
        """Fingerprints that wait to be written or removed."""
        return len(self._pending) + len(self._being_written)

    @property
    def wants_writing(self) -> bool:
        """Whether so much is pending that :meth:`write_pending` is due before the next flush."""
        return self._failed_at is None and len(self._pending) >= WRITE_FROM

    def __len__(self) -> int:
        """The exact number, pending ones included, each of which is looked up: for reports, not for each page.

        Raises what ``in`` raises.
        """
        pending, is_cleared = self._changes()
        if is_cleared:
            return sum(pending.values())
        return self._file.count_with(pending.items())

    @property
    def count(self) -> int:
        """Fingerprints in the committed file. After :meth:`close` they are durable."""
        return self._file.count

    # On the worker

    def write_pending(self) -> None:
        """Write what is pending, sorted and in one transaction (several when it is a lot).

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the disk does not take it: once, until it
        does again; it is tried again every 30 seconds, and by :meth:`close`.
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
        """Add many at once, in bounded memory; each is in the set when its transaction is committed.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the disk does not take them.
        """
        self._check_open()
        rest = iter(fingerprints)
        while part := list(islice(rest, _TRANSACTION_FINGERPRINTS)):
            with self._writing_lock:
                # What was removed before these were added has to be removed before.
                self._write_pending()
                self._file.write([(fingerprint, True) for fingerprint in part], clear=False)

    def fingerprints(self) -> Iterator[bytes]:
        """Everything in the set when the iteration begins, pending ones included, in bounded memory.

        What is added or removed meanwhile may or may not be met; nothing is met twice. Raises what ``in`` raises.
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
        """Write what is pending, make the one file that remains durable, and close it. Safe to repeat.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when that fails; the file is closed then too, and
        the fingerprints that it lacks will be asked for again. A file from which something could not be removed
        is deleted, since it would go on to say seen of it.
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

    # In memory, under its lock

    def _remembered(self, fingerprint: bytes) -> bool | None:
        for changes in (self._pending, self._being_written):
            is_wanted = changes.get(fingerprint)
            if is_wanted is not None:
                return is_wanted
        if self._is_cleared:
            return False
        return True if fingerprint in self._cache else None

    def _set(self, fingerprint: bytes, is_wanted: bool) -> None:
        if fingerprint not in self._pending:
            self._pending_bytes += _weight(fingerprint)
        self._pending[fingerprint] = is_wanted

    def _changes(self) -> tuple[dict[bytes, bool], bool]:
        """All that is not in the file yet, and whether what is there does not count any more."""
        with self._memory_lock:
            return {**self._being_written, **self._pending}, self._is_cleared

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"The exact URL set {self.path} is closed. Open it again.")

    # On the disk, under the lock of who writes

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
                        # Cleared once more meanwhile: what was just written is to go, too.
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
            # Cleared meanwhile: nothing of the batch is left, and what is pending is younger.
            if self._clearings != clearings:
                return
            for fingerprint, is_wanted in unwritten.items():
                if fingerprint not in self._pending:
                    self._set(fingerprint, is_wanted)
            self._being_written, self._being_written_bytes = {}, 0


class _Recent:
    """Recent positive answers, in two generations: when the young one is full, the old one is dropped."""

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


def _weight(fingerprint: bytes) -> int:
    """Bytes of memory of a pending fingerprint: the object and its place in the dictionary, about."""
    return len(fingerprint) + 140
