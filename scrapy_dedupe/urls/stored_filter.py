"""The URL filter of a job between two runs, for command-line tools.

Tools use the state that the next run would use: after a clean stop the snapshot and ``urls.seen``, after an unclean
stop ``urls.done``. Reading changes no file, not even an interrupted write at its end. A kill of a tool leaves the old
state or the new one. After a clean stop new fingerprints are appended to ``urls.seen``, after the size that the
snapshot names, and only count once the new snapshot has replaced the old one. After an unclean stop no snapshot may
be written, since it would mean that Scrapy's queue is complete. New fingerprints are then appended to ``urls.done``
and count immediately. An exact set is written before the snapshot. If its count differs from the snapshot, the next
run rebuilds it; the tool uses a temporary one instead, which takes 29 bytes a fingerprint. Forgotten fingerprints
that are added again are removed from ``urls.forgotten`` last.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.urls.exact import ConfirmedBloomFilter
from scrapy_dedupe.urls.folder import AddedFingerprints, FilterFolder, LastStop, bloom_of
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.urls.folder import LocalFilter

State: TypeAlias = Literal["seen", "new", "forgotten"]


class StoredFilter(FilterFolder):
    """The filter of one job and its files, for a tool (:meth:`between_runs`). The parameters are those of the base class."""

    @contextmanager
    def between_runs(self, capacity: int, error_rate: float, *, create: bool = False) -> Iterator[Self]:
        """Lock the filter for a tool, which uses the following methods. They may raise StoreError.

        ``capacity`` and ``error_rate`` apply only when a filter is created: after an unclean stop, as the next run would
        do, or with ``create=True`` if the job has none. Raises the same exceptions as :meth:`open`, and
        :class:`~scrapy_dedupe.errors.StoreUnavailable` if there is no filter.
        """
        self._parameters, self._filter = (capacity, error_rate), None
        try:
            with self._faults():
                if create:
                    self.folder.mkdir(parents=True, exist_ok=True)
                for journal in (self.done_journal, self.seen_journal, self.forgotten_journal):
                    if create or journal.path.exists():
                        journal.lock()
                self._read()
            if self.last_stop is LastStop.NONE and not create:
                raise StoreUnavailable(self._missing_message())
            yield self
        except BaseException:
            # Report the first error, not one from closing.
            with suppress(StoreError):
                self.abandon()
            raise
        self.abandon()

    @property
    def filter(self) -> LocalFilter:
        """The filter that the next run will use, including forgotten fingerprints."""
        if self._filter is None:
            with self._faults():
                self._filter = self._load()
        return self._filter

    @property
    def error_rate(self) -> float:
        """The error rate of the Bloom filter."""
        return bloom_of(self.filter).error_rate

    @property
    def is_exact(self) -> bool:
        """Whether hits are confirmed in an exact set."""
        return isinstance(self.filter, ConfirmedBloomFilter)

    @property
    def has_stored_set(self) -> bool:
        """Whether there is an exact set on disk that matches the filter."""
        return self.is_exact and self._exact is not None and not self._exact.is_temporary

    def state(self, fingerprint: bytes) -> State:
        """The state of the fingerprint in the next run. A forgotten one may be requested again once."""
        if fingerprint not in self.filter:
            return "new"
        return "forgotten" if fingerprint in self.forgotten else "seen"

    def fingerprints(self) -> Iterator[bytes]:
        """All fingerprints that count as seen, in the order in which they were recorded."""
        return (fingerprint for fingerprint in self._list.fingerprints() if fingerprint not in self.forgotten)

    def listed(self, on_count: Callable[[int], None] = lambda _: None) -> int:
        """Number of fingerprints that can be exported, including forgotten ones. Reads the whole list.

        *on_count* is called with the number of fingerprints counted since its last call.
        """
        count = 0
        for part in in_parts(self._list.fingerprints()):
            count += len(part)
            on_count(len(part))
        return count

    def unlisted(self, on_count: Callable[[int], None] = lambda _: None) -> int:
        """Number of fingerprints of the filter that the list lacks because its file is damaged. Reads the whole list."""
        # After an unclean stop the filter is built from the list.
        if self._stored is None:
            return 0
        held = max(len(self.filter), len(self._stored.filter))
        return max(0, held - self.listed(on_count))

    def forget(self, fingerprints: Iterable[bytes]) -> int:
        """Allow each fingerprint to be requested again once; return how many of them counted as seen before."""
        journal, count = self.forgotten_journal, 0
        with self._faults():
            journal.open()
            for part in in_parts(fingerprints):
                wanted = list(dict.fromkeys(item for item in part if self.state(item) == "seen"))
                journal.write(wanted)
                self.forgotten.add_many(wanted)
                count += len(wanted)
            journal.sync()
        return count

    def add_many(self, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        """Record fingerprints of 1 to 65,535 bytes. Forgotten ones count as seen again.

        Needs only the memory of the filter. Exceptions raised by ``fingerprints`` are passed on; after a clean stop the
        filter is then unchanged.
        """
        try:
            with self._faults():
                return self._add_many(fingerprints)
        except BaseException:
            # The filter in memory may have fingerprints that the files lack.
            with suppress(StoreError), self._faults():
                exact, self._exact, self._filter = self._exact, None, None
                if exact is not None:
                    exact.close()
                self._read()
            raise

    def _missing_message(self) -> str:
        if self.scrapy_file.exists():
            return (
                f"There is no URL filter in {self.folder}, only Scrapy's own file {self.scrapy_file}. The next run, "
                "or scrapy dedupe urls import, imports that file."
            )
        return (
            f"There is no URL filter in {self.folder}. Run a crawl with this JOBDIR, or use another JOBDIR."
        )

    def _load(self) -> LocalFilter:
        bloom, exact = self._load_bloom(), self._stored_set()
        if exact is None and self.confirm:
            # The next run rebuilds its set from the same list.
            exact = self._rebuilt_set(None)
        return bloom if exact is None else ConfirmedBloomFilter(bloom, exact, self._on_error)

    def _add_many(self, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        journal, imported = self._list, AddedFingerprints()
        # Removes data that was never committed.
        journal.open(None if self._stored is None else self._stored.seen_bytes)
        with self._clearing_a_new_job():
            if self.last_stop is LastStop.NONE:
                journal.clear()
                imported = self._import_scrapy_file(journal)
            added = self._record(journal, fingerprints)
            journal.sync()
            if self.last_stop is not LastStop.CUT:
                # The journal of done requests of a new job stays empty; the next run writes its header.
                done_bytes = 0 if self._stored is None else self._stored.done_bytes
                self._stored = self._write_snapshot(self.filter, done_bytes)
                self.seen_journal.check(self._stored.seen_bytes)
                self._filter, self.last_stop = None, LastStop.CLEAN
        if self.forgotten.has_taken:
            items = self.forgotten_journal.fingerprints()
            self.forgotten_journal.rewrite(item for item in items if not self.forgotten.was_taken(item))
            self.forgotten = Forgotten(self.forgotten_journal.fingerprints())
        return replace(added, taken_over=imported.new, damaged=imported.damaged)
