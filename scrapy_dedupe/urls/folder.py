"""The URL filter in a job's folder: its files, and which of them count after a clean stop and after a kill.

After a clean stop Scrapy's queue is on disk, so all requests that were ever enqueued count as seen. After a kill the
queue may be lost, so only done leaves count as seen: requests whose callback has ended and whose page found no new
request. Pages that found new requests are requested again and lead to the lost ones (:mod:`~scrapy_dedupe.urls.done`).
A kill therefore costs repeated requests, but no page is lost. If the disk refuses a write, the stop counts as
unclean, since Scrapy's queue on the same disk may lack requests too.

**The files**::

    urls.bloom      the snapshot (urls/snapshot.py); exists only from a clean stop until the next start
    urls.done       journal of done leaves; used after a kill
    urls.seen       journal of all seen fingerprints; the filter can be rebuilt and exported from it
    urls.forgotten  journal of fingerprints that may be requested again once (urls/forgotten.py)
    urls.started    journal of start requests; in each run one redirect to each of them passes
    urls.sqlite     the exact set, with DEDUPE_URL_CONFIRM (urls/exact.py)
    rules.sqlite    the requests filtered by URL rules, with DEDUPE_URL_RULES (urls/rule_records.py)

The format of the four journals is described in :mod:`~scrapy_dedupe.urls.journal`. They are locked while a run or a
command-line tool uses the filter.

**How the last run stopped.** The snapshot is written only at a clean stop. The next run removes it after reading it
and before recording anything. So if there is a snapshot, the last stop was clean; if there is a journal of
done requests without a snapshot, the run was killed; if there is neither, the job is new. After a kill ``urls.seen``
is replaced by the content of ``urls.done``.

In a new job the fingerprints of Scrapy's own file, ``requests.seen``, are imported. It lists enqueued requests, not
done ones, so its fingerprints are added to the filter but not to the journal of done requests.

Between two runs, command-line tools read and change the files (:mod:`~scrapy_dedupe.urls.stored_filter`).
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias

from scrapy_dedupe.errors import StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import job_fault, sync_folder
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.exact import ConfirmedBloomFilter, ExactSet
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import (
    DONE,
    FORGOTTEN,
    MAX_FINGERPRINT_BYTES,
    SEEN,
    STARTED,
    Journal,
    in_parts,
)
from scrapy_dedupe.urls.scrapy_file import (
    SCRAPY_NAME,
    SCRAPY_QUEUE_NAME,
    read_requests_seen,
    set_aside,
    unread_from,
)
from scrapy_dedupe.urls.snapshot import FilterSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SNAPSHOT_NAME = "urls.bloom"
EXACT_NAME = "urls.sqlite"
RECORDS_NAME = "rules.sqlite"

LocalFilter: TypeAlias = GrowingBloomFilter | ConfirmedBloomFilter


class LastStop(Enum):
    """How the previous run ended: not at all (a new job), cleanly, or not cleanly."""

    NONE = "none"
    CLEAN = "clean"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class AddedFingerprints:
    """Counts of added fingerprints: ``new``, ``again`` (were forgotten and count as seen again), and already ``known``.

    ``taken_over`` is the number of fingerprints imported from Scrapy's own file when the filter was created.
    ``damaged`` is the path of that file and the offset from which it was truncated or damaged and not imported.
    """

    new: int = 0
    again: int = 0
    known: int = 0
    taken_over: int = 0
    damaged: tuple[Path, int] | None = None


def _raise(error: BaseException) -> NoReturn:
    raise error


class FilterFolder:
    """The filter of one job and its files, for a run.

    ``jobdir`` is Scrapy's folder of the job. The folder ``dedupe/urls`` in it is created when needed. ``fingerprinter`` is
    the import path of the class that makes the fingerprints. With ``confirm`` the hits of the filter are confirmed in an
    exact set, whose errors are passed to ``on_error``.

    Opening sets ``last_stop``, ``forgotten``, ``starts`` (the start requests of earlier runs), and ``notes`` and
    ``warnings``, sentences for the log.
    """

    def __init__(
        self,
        jobdir: Path,
        fingerprinter: str,
        *,
        confirm: bool = False,
        on_error: Callable[[BaseException], None] = _raise,
    ) -> None:
        self.folder = folder = jobdir / "dedupe" / "urls"
        self.fingerprinter = fingerprinter
        self.scrapy_file = jobdir / SCRAPY_NAME
        self._queue = jobdir / SCRAPY_QUEUE_NAME
        self.confirm = confirm
        self.snapshot = folder / SNAPSHOT_NAME
        self.last_stop = LastStop.NONE
        self.forgotten, self.starts = Forgotten(), Forgotten()
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self._on_error = on_error
        self._journals = [
            Journal(folder / kind.file_name, fingerprinter, kind) for kind in (DONE, SEEN, FORGOTTEN, STARTED)
        ]
        self.done_journal, self.seen_journal, self.forgotten_journal, self.started_journal = self._journals
        # The parameters of a filter that is created, and the snapshot of the last run.
        self._parameters: tuple[int, float] = (1, 0.5)
        self._stored: FilterSnapshot | None = None
        self._filter: LocalFilter | None = None
        self._exact: ExactSet | None = None

    def check_unlocked(self) -> None:
        """Check the files without locking them. Raises :class:`~scrapy_dedupe.errors.StoreRefused` or OSError."""
        for journal in self._journals:
            journal.check_unlocked()
        # The file does not exist in a new, an interrupted or a running job.
        with suppress(FileNotFoundError):
            FilterSnapshot.read(self.snapshot, self.fingerprinter)

    def set_queue_aside(self) -> Path | None:
        """Rename Scrapy's queue after a kill and return its new path; None if there was nothing to rename.

        Must be called before the scheduler opens the queue. Raises the same exceptions as :meth:`open`.
        """
        queue, done = self._queue, self.done_journal
        if not queue.exists() or self.snapshot.exists() or not done.path.exists():
            return None
        with self._faults():
            try:
                done.lock()
                # An empty journal belongs to a new job.
                return set_aside(queue) if done.has_head() else None
            finally:
                done.close()

    def open(self, capacity: int, error_rate: float) -> Self:
        """Open the filter of the last run, or create one with these parameters, and lock it.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if a file is damaged, has an unknown format or another
        fingerprinter, or if it has another error rate and cannot be rebuilt;
        :class:`~scrapy_dedupe.errors.StoreUnavailable` if a file cannot be read or written;
        :class:`~scrapy_dedupe.errors.ArchiveError` if another process has the filter open. In these cases the
        snapshot is kept.
        """
        self._parameters = capacity, error_rate
        with self._faults():
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                for journal in self._journals:
                    journal.lock()
                self._read()
                self._open()
            except BaseException:
                self.abandon()
                raise
        return self

    def close(self, filter_: LocalFilter) -> None:
        """End the run cleanly: write the snapshot and unlock the files. Can be called repeatedly.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if any data of this run could not be written. The next
        run then uses the journal of done requests, as after a kill.
        """
        if not self.done_journal.is_open:
            return
        try:
            if any(journal.is_broken for journal in self._journals):
                raise OSError("a write failed during the run")
            if self.forgotten.has_taken:
                # A page that is requested again is not done: the next run may be killed before the page is fetched. After
                # a kill before the snapshot is written, these pages stay forgotten; after a later kill they are requested
                # one more time.
                self.done_journal.remove_older(self.forgotten.was_taken)
            for journal in self._journals:
                journal.sync()
            self._write_snapshot(filter_, self.done_journal.size_bytes)
        except (OSError, StoreError) as exc:
            raise StoreUnavailable(
                f"The URL filter could not be saved to {self.snapshot}: {exc}. The next run treats this one as "
                "unclean: it requests pages again that were not done or had new links. Free disk space."
            ) from exc
        else:
            self._shorten_forgotten_journal()
        finally:
            self.abandon()

    def undo_open(self) -> None:
        """Restore the state before :meth:`open`, after a start that failed and recorded nothing.

        Raises the same exceptions as :meth:`close`.
        """
        if self.last_stop is LastStop.CLEAN:
            self.close(self.filter)
            return
        if self.last_stop is LastStop.NONE:
            # A journal with a header would count as an unclean run, and one of seen requests as an earlier run.
            self.seen_journal.clear()
            self.done_journal.truncate()
        self.abandon()

    def clear(self) -> None:
        """Clear the journals. The caller clears the exact set, on the thread that adds to it."""
        self.forgotten = Forgotten()
        for journal in self._journals:
            journal.clear()

    def abandon(self) -> None:
        """Unlock the files without a snapshot, as after a kill."""
        for journal in self._journals:
            journal.close()
        exact, self._exact = self._exact, None
        if exact is not None:
            exact.close()

    def _shorten_forgotten_journal(self) -> None:
        try:
            if self.forgotten.has_taken:
                self.forgotten_journal.remove_older(self.forgotten.was_taken)
        except OSError as exc:
            raise StoreUnavailable(
                f"The URL filter was saved, but {self.forgotten_journal.path} cannot be written: {exc}. The next run "
                "requests some pages again. Free disk space."
            ) from exc

    def _open(self) -> None:
        stored, done, seen = self._stored, self.done_journal, self.seen_journal
        if self.last_stop is LastStop.NONE and done.path.exists() and any(seen.fingerprints()):
            self.warnings.append(
                f"{done.path} is empty, but {seen.path} lists requests of an earlier run, or of an import that was stopped. They"
                " do not count as seen and are made again. Repeat the import, if there was one."
            )
        # Open the journals first: data after these sizes was never committed and must be removed.
        if self.last_stop is not LastStop.NONE:
            done.open(None if stored is None else stored.done_bytes)
        seen.open(None if stored is None else stored.seen_bytes)
        self._warn_of_lost_bytes()
        self.started_journal.open()
        if stored is None:
            seen.clear()
            # This run makes the start requests again.
            self.started_journal.clear()
        self.starts = Forgotten(self.started_journal.fingerprints())
        self.forgotten_journal.open()
        bloom = self._load_bloom()
        if self.last_stop is LastStop.CUT:
            for part in in_parts(done.fingerprints()):
                seen.write(part)
        if stored is not None:
            bloom = self._with_settings(bloom)
        self._filter = self._with_exact_set(bloom) if self.confirm else bloom
        if self.last_stop is LastStop.NONE:
            with self._clearing_a_new_job():
                self._take_over()
                # Create this journal last: without a snapshot it means that a run was killed.
                done.open()
        if self.last_stop is LastStop.CLEAN:
            # Without the snapshot the run counts as unclean if it is killed. Nothing was recorded before this line.
            self.snapshot.unlink()
            sync_folder(self.folder)
        self._stored = None

    @contextmanager
    def _clearing_a_new_job(self) -> Iterator[None]:
        """Clear the journal of seen requests of a new job after an error, since it would count as that of an earlier run."""
        try:
            yield
        except BaseException:
            if self.last_stop is LastStop.NONE and not self.snapshot.exists():
                self.seen_journal.clear()
            raise

    def _warn_of_lost_bytes(self) -> None:
        done, seen = self.done_journal, self.seen_journal
        if done.missing_bytes:
            self.warnings.append(
                f"{done.path} is truncated or damaged: {done.missing_bytes:,} bytes are missing. If this run is killed, the "
                "pages that they listed are requested again."
            )
        elif done.removed_bytes:
            self.warnings.append(
                f"The last {done.removed_bytes:,} bytes of {done.path} were incomplete or damaged and have been removed. The "
                "pages that they listed are requested again."
            )
        if seen.missing_bytes:
            self.warnings.append(
                f"{seen.path} is truncated or damaged: {seen.missing_bytes:,} bytes are missing. The filter itself is "
                "complete, but it cannot be rebuilt with another error rate, and urls export lacks these requests."
            )

    def _take_over(self) -> None:
        """Import Scrapy's own file into the filter of a new job."""
        # A request that failed may be requested again although Scrapy's file lists it.
        added = self._import_scrapy_file(self.seen_journal, ends_forgetting=False)
        if added.new:
            self.notes.append(
                f"Imported {added.new} fingerprints from {self.scrapy_file} into the URL filter."
            )
        if added.damaged is not None:
            self.warnings.append(
                f"{self.scrapy_file} is truncated or damaged at byte {added.damaged[1]:,}. The rest of the file was not "
                "imported, so its pages are requested again."
            )

    def _with_settings(self, stored: GrowingBloomFilter) -> GrowingBloomFilter:
        """The stored filter, or the filter rebuilt from the journal of seen requests if the error rate was changed.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the journal lacks fingerprints of the filter.
        """
        capacity, error_rate = self._parameters
        what = (
            f"The URL filter in {self.snapshot} has an error rate of {stored.error_rate!r}, but the setting "
            f"DEDUPE_URL_ERROR_RATE is {error_rate!r}. It"
        )
        if stored.error_rate == error_rate:
            if stored.capacity != capacity:
                self.notes.append(
                    f"The URL filter in {self.snapshot} has a capacity of {stored.capacity:,} fingerprints, but this run "
                    f"is configured for {capacity:,}. It keeps its capacity and grows when it is full."
                )
            return stored
        bloom = GrowingBloomFilter(max(capacity, stored.capacity), error_rate)
        listed = 0
        for part in in_parts(self.seen_journal.fingerprints()):
            bloom.add_many(part)
            listed += len(part)
        if listed < len(stored):
            raise StoreRefused(
                f"{what} cannot be rebuilt, because {self.seen_journal.path} lists only {listed:,} of its "
                f"{len(stored):,} fingerprints. Use {stored.error_rate!r}, or another JOBDIR."
            )
        self.notes.append(f"{what} was rebuilt from {self.seen_journal.path}.")
        return bloom

    def _with_exact_set(self, bloom: GrowingBloomFilter) -> ConfirmedBloomFilter:
        exact = self._stored_set()
        if exact is None:
            path = self.folder / EXACT_NAME
            exact = self._rebuilt_set(path)
            if self.last_stop is LastStop.CLEAN:
                sentence = f"The exact set {path} was rebuilt from {self.seen_journal.path}."
                if (missing := len(bloom) - len(exact)) > 0:
                    self.warnings.append(
                        f"{sentence} It lacks {missing:,} fingerprints, which are requested again."
                    )
                else:
                    self.notes.append(sentence)
        return ConfirmedBloomFilter(bloom, exact, self._on_error)

    # Files

    @property
    def filter(self) -> LocalFilter:
        """The filter, including forgotten fingerprints."""
        assert self._filter is not None
        return self._filter

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise StoreUnavailable(job_fault(self.scrapy_file.parent, exc, self.folder)) from exc

    def _read(self) -> None:
        """Read how the last run stopped, its snapshot, and the forgotten fingerprints."""
        self._stored = None
        if self.snapshot.exists():
            self.last_stop = LastStop.CLEAN
            self._stored = FilterSnapshot.read(self.snapshot, self.fingerprinter)
            self.seen_journal.check(self._stored.seen_bytes)
        elif self.done_journal.has_head():
            self.last_stop = LastStop.CUT
            self.done_journal.check()
        else:
            self.last_stop = LastStop.NONE
        self.forgotten_journal.check()
        self.forgotten = Forgotten(self.forgotten_journal.fingerprints())

    def _load_bloom(self) -> GrowingBloomFilter:
        if self._stored is not None:
            return self._stored.filter
        bloom = GrowingBloomFilter(*self._parameters)
        if self.last_stop is LastStop.CUT:
            for part in in_parts(self.done_journal.fingerprints()):
                bloom.add_many(part)
        return bloom

    def _stored_set(self) -> ExactSet | None:
        """The exact set on disk, if its number of fingerprints is that of the snapshot."""
        path, stored = self.folder / EXACT_NAME, self._stored
        if stored is not None and stored.exact is not None and path.exists():
            exact = ExactSet(path, self.fingerprinter)
            if exact.count == stored.exact:
                self._exact = exact
            else:
                exact.close()
        return self._exact

    def _rebuilt_set(self, path: Path | None) -> ExactSet:
        self._exact = exact = ExactSet(path, self.fingerprinter, recreate=path is not None)
        exact.add_all(self._list.fingerprints())
        return exact

    @property
    def _list(self) -> Journal:
        """The journal that lists the fingerprints that count as seen."""
        return self.done_journal if self.last_stop is LastStop.CUT else self.seen_journal

    def _write_snapshot(self, filter_: LocalFilter, done_bytes: int) -> FilterSnapshot:
        exact, self._exact = self._exact, None
        count = None
        if exact is not None:
            # Closing makes the set durable and its count final.
            exact.close()
            count = None if exact.is_temporary else exact.count
        bloom = bloom_of(filter_)
        snapshot = FilterSnapshot(bloom, self.fingerprinter, done_bytes, self.seen_journal.size_bytes, count)
        snapshot.write(self.snapshot)
        return snapshot

    def _import_scrapy_file(self, journal: Journal, *, ends_forgetting: bool = True) -> AddedFingerprints:
        if not self.scrapy_file.exists():
            return AddedFingerprints()
        with self.scrapy_file.open("rb") as file:
            added = self._record(journal, read_requests_seen(file), ends_forgetting=ends_forgetting)
            end = unread_from(file)
        return added if end is None else replace(added, damaged=(self.scrapy_file, end))

    def _record(
        self, journal: Journal, fingerprints: Iterable[bytes], *, ends_forgetting: bool = True
    ) -> AddedFingerprints:
        filter_ = self.filter
        total = new = again = 0
        for part in in_parts(fingerprints):
            found = []
            for fingerprint in part:
                if not 0 < len(fingerprint) <= MAX_FINGERPRINT_BYTES:
                    raise ValueError(f"a fingerprint of {len(fingerprint)} bytes")
                is_new = filter_.add(fingerprint)
                if is_new:
                    found.append(fingerprint)
                if ends_forgetting and self.forgotten.take(fingerprint) and not is_new:
                    again += 1
            try:
                journal.write(found)
            except OSError as error:
                is_cut = self.last_stop is LastStop.CUT
                state = "has the fingerprints added so far" if is_cut else "is unchanged"
                raise StoreUnavailable(
                    f"{journal.path} cannot be written: {error}. The URL filter {state}. Free disk space."
                ) from error
            if isinstance(filter_, ConfirmedBloomFilter) and filter_.exact.wants_writing:
                filter_.exact.write_pending()
            total += len(part)
            new += len(found)
        return AddedFingerprints(new, again, total - new - again)


def bloom_of(filter_: LocalFilter) -> GrowingBloomFilter:
    """The Bloom filter itself."""
    return filter_.bloom if isinstance(filter_, ConfirmedBloomFilter) else filter_
