"""What a URL filter keeps in a job's folder, and which of it counts after a clean stop and after a kill.

A clean stop and a kill leave different things behind. After a clean stop Scrapy's own queue is on disk, so
everything that was ever enqueued counts as seen. After a kill the queue may be gone, so only requests count as
seen that were *done*, whose callback has ended, and whose page brought nothing new. Pages that brought something
new are asked again and show the way to what was lost (:mod:`~scrapy_dedupe.urls.done`). A kill therefore costs
requests that are made twice, never a page that nobody asks for. A disk that refuses to take something makes any
stop a cut one, since Scrapy's queue on the same disk may lack requests too.

**The files**::

    urls.bloom      the snapshot (urls/snapshot.py), there between a clean stop and the next start alone
    urls.done       journal of requests that are done and brought nothing new: what a kill leaves
    urls.seen       journal of all that counts as seen; the filter can be made anew from it, and exported
    urls.forgotten  journal of what may be asked for once more (urls/forgotten.py)
    urls.started    journal of start requests: in each run one redirect to each of them passes
    urls.sqlite     the exact set, with DEDUPE_URL_CONFIRM (urls/exact.py)

The format of the four journals is that of :mod:`~scrapy_dedupe.urls.journal`.

**Which stop it was.** The snapshot is written at a clean stop alone and is removed by the next run once it is
read, before that run records anything. So at the start of a run: a snapshot means a clean stop; a journal of done
requests without one means a kill; neither means a new job. After a kill ``urls.seen`` begins anew with what
``urls.done`` holds.

Scrapy's own file, ``requests.seen``, is taken over by a new job's folder. It says what was enqueued, not what was
done, so it goes into the filter and not into the journal of done requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from scrapy_dedupe.errors import StoreError, StoreRefused, StoreUnavailable, folder_fault
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.confirmed import ConfirmedBloomFilter
from scrapy_dedupe.urls.exact import ExactSet
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import DONE, Journal, Kind, sync_folder
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

SEEN = Kind(b"sd-seen\n", "journal of seen requests", "this run will count as cut")
FORGOTTEN = Kind(b"sd-forg\n", "journal of forgotten requests", "this run will count as cut")
STARTED = Kind(b"sd-star\n", "journal of start requests", "this run will count as cut")

_PART = 10_000

LocalFilter: TypeAlias = GrowingBloomFilter | ConfirmedBloomFilter


class LastStop(Enum):
    """How the run before this one ended."""

    NONE = "none"
    CLEAN = "clean"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Opened:
    """A filter as a run finds it.

    ``taken_over`` is the number of fingerprints from Scrapy's own file, ``cut_bytes`` the size of a torn end
    of the journal of done requests. ``notes`` and ``warnings`` are sentences for the log. ``starts`` are the start
    requests of earlier runs.
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
    """The files of one job. One process at a time: the journals are locked while they are open.

    ``folder`` is made when needed; ``fingerprinter`` is the import path of the class that makes the
    fingerprints; ``scrapy_file`` is where Scrapy's own filter would have left its fingerprints, and
    ``scrapy_queue`` where its scheduler keeps its queue. With ``confirm`` the filter is one that confirms its
    hits; ``on_error`` is told what its exact set cannot answer.
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
        # Sizes at the start of the run.
        self._done_before = self._noted_before = 0
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
        """How the last run ended, as the files say; they are not opened."""
        if self.snapshot.exists():
            return LastStop.CLEAN
        done = self._done.path
        return LastStop.CUT if done.exists() and done.stat().st_size else LastStop.NONE

    def check_heads(self) -> None:
        """Read the heads of the journals, without a lock. Raises :class:`~scrapy_dedupe.errors.StoreRefused`."""
        for journal in self._journals:
            journal.check_head()

    def set_queue_aside(self) -> Path | None:
        """After a kill, and before the scheduler opens it, give Scrapy's queue another name; that name.

        Raises what :meth:`open` raises.
        """
        queue = self.scrapy_queue
        if queue is None or not queue.exists() or self.last_stop is not LastStop.CUT:
            return None
        try:
            self._done.lock()
            # A file that was just made is that of a new job.
            return None if self._done.is_new() else set_aside(queue)
        except OSError as exc:
            raise self.unusable(exc) from exc
        finally:
            self._done.close()

    def open(self, capacity: int, error_rate: float) -> Opened:
        """The filter of the last run, or a new one with these parameters; from here on this run owns it.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` when a file is damaged, is not Scrapy's, or was made with another
        fingerprinter, or with another error rate and cannot be made anew;
        :class:`~scrapy_dedupe.errors.StoreUnavailable` when it cannot be read or written;
        :class:`~scrapy_dedupe.errors.ArchiveError` when another process has it open. The snapshot is left then.
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
        """Append fingerprints that the filter found new; as :meth:`Journal.append`."""
        self._seen.append(fingerprints)

    def record_done(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints of requests that are done and brought nothing new; as :meth:`Journal.append`."""
        self._done.append(fingerprints)

    def record_failed(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints that the next run may ask for once more; as :meth:`Journal.append`."""
        self._forgotten_log.append(fingerprints)

    def record_starts(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints that start requests recorded; as :meth:`Journal.append`."""
        self._started.append(fingerprints)

    def close(self, filter_: LocalFilter) -> None:
        """End the run cleanly: write the snapshot and give the folder back. Safe to repeat.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when something of this run is not on disk; the next
        run then goes by the journal of done requests.
        """
        if not self._done.is_open:
            return
        try:
            if any(journal.is_broken for journal in self._journals):
                raise OSError("the disk did not take all of it during the run")
            # A kill before the snapshot is there leaves it forgotten, one after that makes one request more.
            self._leave_out_taken(self._done, self._done_before)
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
                f"The URL filter could not be saved to {self.snapshot}: {exc}. The next run counts this one as cut "
                "and asks again for pages that were not done or that brought new links. Make room on the disk."
            ) from exc
        else:
            self._leave_out_forgotten()
        finally:
            self.abandon()

    def give_back(self, opened: Opened) -> None:
        """End a run that came to nothing and recorded nothing: the next one finds what this one found.

        Raises what :meth:`close` raises.
        """
        if opened.last_stop is LastStop.CLEAN:
            self.close(opened.filter)
            return
        if opened.last_stop is LastStop.NONE:
            # Its head says that there was a run.
            self._done.unmake()
        self.abandon()

    def clear(self) -> None:
        """Forget everything in the journals; the exact set is cleared by who adds to it."""
        self._forgotten = Forgotten()
        for journal in self._journals:
            journal.clear()

    def abandon(self) -> None:
        """Give the folder back as a kill would leave it."""
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
        # First, since what lies behind these sizes never came to count.
        cut = self._done.open(snapshot.done_bytes)
        self._seen.open(snapshot.seen_bytes)
        if bloom.error_rate != error_rate:
            bloom = self._made_anew(snapshot, capacity, error_rate)
            notes.append(
                f"The URL filter in {self.snapshot} was made with an error rate of {snapshot.filter.error_rate!r}, "
                f"the setting DEDUPE_URL_ERROR_RATE is {error_rate!r}: it was made anew from {self._seen.path}."
            )
        elif bloom.capacity != capacity:
            notes.append(
                f"The URL filter in {self.snapshot} was made for {bloom.capacity:,} fingerprints, now "
                f"{capacity:,} are asked for. It keeps its size, and grows when it is full."
            )
        self._read_forgotten()
        self._started.open()
        starts = Forgotten(self._started.fingerprints())
        filter_ = self._confirming(bloom, snapshot.exact, notes)
        # From the next line on a kill counts as one. Nothing was recorded until here.
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
                    f"{self.scrapy_file} is torn or damaged at byte {damaged_at:,}. The rest of the file was not taken "
                    "over, and its pages are requested again."
                )
        filter_ = self._confirming(bloom, None)
        # Last, since a journal of done requests without a snapshot says that a run was cut.
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
        # Its start requests are made again.
        self._started.open()
        self._started.clear()
        self._read_forgotten()
        return Opened(self._confirming(bloom, None), LastStop.CUT, 0, cut, forgotten=self._forgotten)

    def _made_anew(self, snapshot: FilterSnapshot, capacity: int, error_rate: float) -> GrowingBloomFilter:
        """The filter with another error rate, from the journal of seen requests, if that has all of them."""
        stored = snapshot.filter
        bloom = GrowingBloomFilter(max(capacity, stored.capacity), error_rate)
        listed = 0
        for fingerprint in self._seen.fingerprints():
            bloom.add(fingerprint)
            listed += 1
        if listed < len(stored):
            raise StoreRefused(
                f"The URL filter {self.snapshot} was made with an error rate of {stored.error_rate!r}, the setting "
                f"DEDUPE_URL_ERROR_RATE is {error_rate!r}, and {self._seen.path} lists {listed:,} of its "
                f"{len(stored):,} fingerprints, too few to make it anew. Use {stored.error_rate!r}, or another JOBDIR."
            )
        return bloom

    def _confirming(
        self, bloom: GrowingBloomFilter, count: int | None, notes: list[str] | None = None
    ) -> LocalFilter:
        """The filter with its exact set, if one is wanted; ``count`` is what that held at a clean stop."""
        if not self.confirm:
            return bloom
        path = self.folder / EXACT_NAME
        # After a cut stop the file may be anything, and is not looked at.
        self._exact = exact = ExactSet.open(path, self.fingerprinter, anew=count is None)
        if count is None or exact.count != count:
            if count is not None:
                exact.close()
                self._exact = exact = ExactSet.open(path, self.fingerprinter, anew=True)
            exact.add_all(self._seen.fingerprints())
            missing = len(bloom) - len(exact)
            if notes is not None:
                notes.append(
                    f"The exact set {path} was made anew from {self._seen.path}."
                    + (
                        f" It lacks {missing:,} fingerprints, which are asked for again."
                        if missing > 0
                        else ""
                    )
                )
        return ConfirmedBloomFilter(bloom, exact, self._on_error)

    def _read_forgotten(self) -> None:
        self._forgotten_log.open()
        self._done_before, self._noted_before = self._done.size_bytes, self._forgotten_log.size_bytes
        self._forgotten = Forgotten(self._forgotten_log.fingerprints())

    def _leave_out_forgotten(self) -> None:
        try:
            self._leave_out_taken(self._forgotten_log, self._noted_before)
        except (OSError, StoreError) as exc:
            raise StoreUnavailable(
                f"The URL filter is saved, but {self._forgotten_log.path} does not take what was asked for again: {exc}. "
                "The next run asks for it once more. Make room on the disk."
            ) from exc

    def _leave_out_taken(self, journal: Journal, size_before: int) -> None:
        """Leave out what was asked for again in this run; what was done or failed in it stays.

        A page that is asked for again is not done, whatever an earlier run said of it: the next run may be cut
        before it is fetched.
        """
        if self._forgotten.has_taken:
            journal.rewrite(
                fingerprint
                for is_older, fingerprint in journal.older(size_before)
                if not (is_older and self._forgotten.was_taken(fingerprint))
            )


def set_aside(queue: Path) -> Path:
    """Give Scrapy's queue, which a kill may have torn, another name; that name.

    Scrapy tries to read torn files without end. What was in them is found again from the start requests on.
    Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """
    number = 1
    while (aside := queue.with_name(f"{queue.name}.cut-{number}")).exists():
        number += 1
    try:
        return queue.rename(aside)
    except OSError as exc:
        raise StoreUnavailable(
            f"Scrapy's queue {queue} may be torn by a kill and could not be set aside: {exc}. Move it away."
        ) from exc


def _parts(fingerprints: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(fingerprints)
    while part := list(islice(rest, _PART)):
        yield part
