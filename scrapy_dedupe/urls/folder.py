"""The files of a URL filter in a job's folder, and which of them count after a clean stop and after a kill.

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

The format of the four journals is described in :mod:`~scrapy_dedupe.urls.journal`.

**How the last run stopped.** The snapshot is written only at a clean stop. The next run removes it after reading it
and before recording anything. So if there is a snapshot, the last stop was clean; if there is a journal of
done requests without a snapshot, the run was killed; if there is neither, the job is new. After a kill ``urls.seen``
is replaced by the content of ``urls.done``.

In a new job the fingerprints of Scrapy's own file, ``requests.seen``, are imported. It lists enqueued requests, not
done ones, so its fingerprints are added to the filter but not to the journal of done requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from scrapy_dedupe.errors import StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import folder_fault, sync_folder
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.confirmed import ConfirmedBloomFilter
from scrapy_dedupe.urls.exact import ExactSet
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import DONE, Journal, Kind
from scrapy_dedupe.urls.scrapy_file import SCRAPY_NAME, read_requests_seen, unread_from
from scrapy_dedupe.urls.snapshot import FilterSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SNAPSHOT_NAME = "urls.bloom"
DONE_NAME = "urls.done"
SEEN_NAME = "urls.seen"
FORGOTTEN_NAME = "urls.forgotten"
STARTED_NAME = "urls.started"
EXACT_NAME = "urls.sqlite"
SCRAPY_QUEUE_NAME = "requests.queue"

SEEN = Kind(b"sd-seen\n", "journal of seen requests", "this run will count as unclean")
FORGOTTEN = Kind(b"sd-forg\n", "journal of forgotten requests", "this run will count as unclean")
STARTED = Kind(b"sd-star\n", "journal of start requests", "this run will count as unclean")

_PART = 10_000

LocalFilter: TypeAlias = GrowingBloomFilter | ConfirmedBloomFilter


class LastStop(Enum):
    """How the previous run ended: not at all (a new job), cleanly, or not cleanly."""

    NONE = "none"
    CLEAN = "clean"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of opening the folder at the start of a run.

    ``taken_over`` is the number of fingerprints imported from Scrapy's own file, ``cut_bytes`` the size of an
    incomplete write that was removed from the end of the journal of done requests. ``starts`` are the start requests
    of earlier runs. ``notes`` and ``warnings`` are sentences for the log.
    """

    filter: LocalFilter
    last_stop: LastStop
    taken_over: int = 0
    cut_bytes: int = 0
    notes: tuple[str, ...] = ()
    forgotten: Forgotten = field(default_factory=Forgotten)
    starts: Forgotten = field(default_factory=Forgotten)
    warnings: tuple[str, ...] = ()


class FilterFolder:
    """The files of one job. The journals are locked while they are open, so only one process can use them.

    ``folder`` is created when needed. ``fingerprinter`` is the import path of the class that makes the fingerprints.
    ``scrapy_file`` is the path of the file of Scrapy's own filter, ``scrapy_queue`` that of the scheduler's queue.
    With ``confirm`` the hits of the filter are confirmed in an exact set, whose errors are passed to ``on_error``.
    """

    def __init__(
        self,
        folder: Path,
        fingerprinter: str,
        scrapy_file: Path | None = None,
        scrapy_queue: Path | None = None,
        *,
        confirm: bool = False,
        on_error: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.fingerprinter = fingerprinter
        self.scrapy_file = scrapy_file
        self.scrapy_queue = scrapy_queue
        self.confirm = confirm
        self.snapshot = folder / SNAPSHOT_NAME
        self._on_error = on_error
        self._done = Journal(folder / DONE_NAME, fingerprinter, DONE)
        self._seen = Journal(folder / SEEN_NAME, fingerprinter, SEEN)
        self._forgotten_log = Journal(folder / FORGOTTEN_NAME, fingerprinter, FORGOTTEN)
        self._started = Journal(folder / STARTED_NAME, fingerprinter, STARTED)
        self._forgotten = Forgotten()
        # Sizes of the journals at the start of the run.
        self._done_before = self._forgotten_before = 0
        self._exact: ExactSet | None = None

    @classmethod
    def in_job(
        cls,
        jobdir: Path,
        fingerprinter: str,
        *,
        confirm: bool = False,
        on_error: Callable[[BaseException], None] = lambda _: None,
    ) -> FilterFolder:
        """The folder of the job in Scrapy's ``JOBDIR``."""
        return cls(
            jobdir / "dedupe" / "urls",
            fingerprinter,
            jobdir / SCRAPY_NAME,
            jobdir / SCRAPY_QUEUE_NAME,
            confirm=confirm,
            on_error=on_error,
        )

    @property
    def last_stop(self) -> LastStop:
        """How the last run ended. Only looks at which files exist."""
        if self.snapshot.exists():
            return LastStop.CLEAN
        done = self._done.path
        return LastStop.CUT if done.exists() and done.stat().st_size else LastStop.NONE

    def check_heads(self) -> None:
        """Check the headers of the journals without locking them.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused`.
        """
        for journal in self._journals:
            journal.check_head()

    def set_queue_aside(self) -> Path | None:
        """Rename Scrapy's queue after a kill and return its new path; None if there was nothing to rename.

        Must be called before the scheduler opens the queue. Raises the same exceptions as :meth:`open`.
        """
        queue = self.scrapy_queue
        if queue is None or not queue.exists() or self.last_stop is not LastStop.CUT:
            return None
        try:
            self._done.lock()
            # An empty journal belongs to a new job.
            return None if self._done.is_new() else set_aside(queue)
        except OSError as exc:
            raise self.unusable(exc) from exc
        finally:
            self._done.close()

    def open(self, capacity: int, error_rate: float) -> Opened:
        """Open the filter of the last run, or create one with these parameters, and lock it.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if a file is damaged, has an unknown format or another
        fingerprinter, or if it has another error rate and cannot be rebuilt;
        :class:`~scrapy_dedupe.errors.StoreUnavailable` if a file cannot be read or written;
        :class:`~scrapy_dedupe.errors.ArchiveError` if another process has the filter open. In these cases the
        snapshot is kept.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                for journal in self._journals:
                    journal.lock()
                return self._open(capacity, error_rate)
            except BaseException:
                self.abandon()
                raise
        except OSError as exc:
            raise self.unusable(exc) from exc

    def unusable(self, exc: OSError) -> StoreUnavailable:
        reason, remedy = folder_fault(self.folder, exc, "another folder in JOBDIR")
        return StoreUnavailable(f"The URL filter in {self.folder} cannot be used: {reason}. {remedy}")

    def record_seen(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints that were new to the filter; see :meth:`Journal.append`."""
        self._seen.append(fingerprints)

    def record_done(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints of done leaves; see :meth:`Journal.append`."""
        self._done.append(fingerprints)

    def record_failed(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints that the next run may request again; see :meth:`Journal.append`."""
        self._forgotten_log.append(fingerprints)

    def record_starts(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints of start requests; see :meth:`Journal.append`."""
        self._started.append(fingerprints)

    def close(self, filter_: LocalFilter) -> None:
        """End the run cleanly: write the snapshot and unlock the files. Can be called repeatedly.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if any data of this run could not be written. The next
        run then uses the journal of done requests, as after a kill.
        """
        if not self._done.is_open:
            return
        try:
            if any(journal.is_broken for journal in self._journals):
                raise OSError("a write failed during the run")
            # After a kill before the snapshot is written, these pages stay forgotten; after a later kill they are
            # requested one more time.
            self._drop_requested_again(self._done, self._done_before)
            count = None
            if self._exact is not None:
                self._exact.close()
                count = self._exact.count
            for journal in self._journals:
                journal.sync()
            bloom = filter_.bloom if isinstance(filter_, ConfirmedBloomFilter) else filter_
            FilterSnapshot(
                bloom, self.fingerprinter, self._done.size_bytes, self._seen.size_bytes, count
            ).write(self.snapshot)
        except (OSError, StoreError) as exc:
            raise StoreUnavailable(
                f"The URL filter could not be saved to {self.snapshot}: {exc}. The next run treats this one as "
                "unclean: it requests pages again that were not done or had new links. Free disk space."
            ) from exc
        else:
            self._shorten_forgotten_log()
        finally:
            self.abandon()

    def undo_open(self, opened: Opened) -> None:
        """Restore the state before :meth:`open`, after a start that failed and recorded nothing.

        Raises the same exceptions as :meth:`close`.
        """
        if opened.last_stop is LastStop.CLEAN:
            self.close(opened.filter)
            return
        if opened.last_stop is LastStop.NONE:
            # A journal with a header would count as an unclean run.
            self._done.truncate()
        self.abandon()

    def clear(self) -> None:
        """Clear the journals. The caller clears the exact set, on the thread that adds to it."""
        self._forgotten = Forgotten()
        for journal in self._journals:
            journal.clear()

    def abandon(self) -> None:
        """Unlock the files without a snapshot, as after a kill."""
        for journal in self._journals:
            journal.close()
        exact, self._exact = self._exact, None
        if exact is not None:
            exact.close()

    @property
    def _journals(self) -> tuple[Journal, ...]:
        return self._done, self._seen, self._forgotten_log, self._started

    def _open(self, capacity: int, error_rate: float) -> Opened:
        if self.snapshot.exists():
            return self._open_clean(capacity, error_rate)
        if self._done.is_new():
            return self._open_new(capacity, error_rate)
        return self._open_cut(capacity, error_rate)

    def _open_clean(self, capacity: int, error_rate: float) -> Opened:
        snapshot = FilterSnapshot.read(self.snapshot, self.fingerprinter)
        bloom, notes = snapshot.filter, []
        # Open the journals first: data after these sizes was never committed and must be removed.
        cut = self._done.open(snapshot.done_bytes)
        self._seen.open(snapshot.seen_bytes)
        if bloom.error_rate != error_rate:
            bloom = self._rebuilt(snapshot, capacity, error_rate)
            notes.append(
                f"The URL filter in {self.snapshot} has an error rate of {snapshot.filter.error_rate!r}, but the "
                f"setting DEDUPE_URL_ERROR_RATE is {error_rate!r}. It was rebuilt from {self._seen.path}."
            )
        elif bloom.capacity != capacity:
            notes.append(
                f"The URL filter in {self.snapshot} has a capacity of {bloom.capacity:,} fingerprints, but this run "
                f"is configured for {capacity:,}. It keeps its capacity and grows when it is full."
            )
        self._read_forgotten()
        self._started.open()
        starts = Forgotten(self._started.fingerprints())
        filter_ = self._with_exact_set(bloom, snapshot.exact, notes)
        # Without the snapshot the run counts as unclean if it is killed. Nothing has been recorded before this line.
        self.snapshot.unlink()
        sync_folder(self.folder)
        return Opened(filter_, LastStop.CLEAN, 0, cut, tuple(notes), self._forgotten, starts)

    def _open_new(self, capacity: int, error_rate: float) -> Opened:
        bloom = GrowingBloomFilter(capacity, error_rate)
        for journal in (self._seen, self._started):
            journal.open()
            journal.clear()
        self._read_forgotten()
        taken_over, warnings = 0, []
        if self.scrapy_file is not None and self.scrapy_file.exists():
            with self.scrapy_file.open("rb") as file:
                for part in _parts(read_requests_seen(file)):
                    new = [fingerprint for fingerprint in part if bloom.add(fingerprint)]
                    self._seen.append(new)
                    taken_over += len(new)
                damaged_at = unread_from(file)
            if damaged_at is not None:
                warnings.append(
                    f"{self.scrapy_file} is truncated or damaged at byte {damaged_at:,}. The rest of the file was not "
                    "imported, so its pages are requested again."
                )
        filter_ = self._with_exact_set(bloom, None)
        # Create this journal last: without a snapshot it means that a run was killed.
        self._done.open()
        self._done_before = self._done.size_bytes
        return Opened(filter_, LastStop.NONE, taken_over, forgotten=self._forgotten, warnings=tuple(warnings))

    def _open_cut(self, capacity: int, error_rate: float) -> Opened:
        bloom = GrowingBloomFilter(capacity, error_rate)
        cut = self._done.open()
        for fingerprint in self._done.fingerprints():
            bloom.add(fingerprint)
        self._seen.open()
        self._seen.copy_from(self._done)
        # This run makes the start requests again.
        self._started.open()
        self._started.clear()
        self._read_forgotten()
        return Opened(self._with_exact_set(bloom, None), LastStop.CUT, 0, cut, forgotten=self._forgotten)

    def _rebuilt(self, snapshot: FilterSnapshot, capacity: int, error_rate: float) -> GrowingBloomFilter:
        """The filter rebuilt with another error rate from the journal of seen requests.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the journal lacks fingerprints of the filter.
        """
        stored = snapshot.filter
        bloom = GrowingBloomFilter(max(capacity, stored.capacity), error_rate)
        listed = 0
        for fingerprint in self._seen.fingerprints():
            bloom.add(fingerprint)
            listed += 1
        if listed < len(stored):
            raise StoreRefused(
                f"The URL filter {self.snapshot} has an error rate of {stored.error_rate!r}, but the setting "
                f"DEDUPE_URL_ERROR_RATE is {error_rate!r}. It cannot be rebuilt, because {self._seen.path} lists only "
                f"{listed:,} of its {len(stored):,} fingerprints. Use {stored.error_rate!r}, or another JOBDIR."
            )
        return bloom

    def _with_exact_set(
        self, bloom: GrowingBloomFilter, count: int | None, notes: list[str] | None = None
    ) -> LocalFilter:
        """The filter with its exact set if ``confirm`` is set; ``count`` is the size of the set at a clean stop."""
        if not self.confirm:
            return bloom
        path = self.folder / EXACT_NAME
        # After an unclean stop the file is not trusted.
        self._exact = exact = ExactSet.open(path, self.fingerprinter, recreate=count is None)
        if count is None or exact.count != count:
            if count is not None:
                exact.close()
                self._exact = exact = ExactSet.open(path, self.fingerprinter, recreate=True)
            exact.add_all(self._seen.fingerprints())
            missing = len(bloom) - len(exact)
            if notes is not None:
                notes.append(
                    f"The exact set {path} was rebuilt from {self._seen.path}."
                    + (
                        f" It lacks {missing:,} fingerprints, which are requested again."
                        if missing > 0
                        else ""
                    )
                )
        return ConfirmedBloomFilter(bloom, exact, self._on_error)

    def _read_forgotten(self) -> None:
        self._forgotten_log.open()
        self._done_before, self._forgotten_before = self._done.size_bytes, self._forgotten_log.size_bytes
        self._forgotten = Forgotten(self._forgotten_log.fingerprints())

    def _shorten_forgotten_log(self) -> None:
        try:
            self._drop_requested_again(self._forgotten_log, self._forgotten_before)
        except (OSError, StoreError) as exc:
            raise StoreUnavailable(
                f"The URL filter was saved, but {self._forgotten_log.path} cannot be written: {exc}. The next run "
                "requests some pages again. Free disk space."
            ) from exc

    def _drop_requested_again(self, journal: Journal, size_before: int) -> None:
        """Remove fingerprints of earlier runs that were requested again in this run from the journal.

        Fingerprints that were added in this run stay. A page that is requested again is not done, even if an earlier
        run recorded it as done: the next run may be killed before the page is fetched.
        """
        if self._forgotten.has_taken:
            journal.rewrite(
                fingerprint
                for is_older, fingerprint in journal.older(size_before)
                if not (is_older and self._forgotten.was_taken(fingerprint))
            )


def set_aside(queue: Path) -> Path:
    """Rename Scrapy's queue, which a kill may have damaged, and return its new path.

    Scrapy would try to read a damaged queue in an endless loop. The requests in it are found again from the start
    requests. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """
    number = 1
    while (aside := queue.with_name(f"{queue.name}.cut-{number}")).exists():
        number += 1
    try:
        return queue.rename(aside)
    except OSError as exc:
        raise StoreUnavailable(
            f"Scrapy's queue {queue} may be damaged by a kill and could not be renamed: {exc}. Move it away."
        ) from exc


def _parts(fingerprints: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(fingerprints)
    while part := list(islice(rest, _PART)):
        yield part
