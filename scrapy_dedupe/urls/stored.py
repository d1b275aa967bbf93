"""The URL filter of a job between two runs: asked, told to forget, exported and filled by tools.

The files are those of :mod:`~scrapy_dedupe.urls.folder`, and what counts is what the next run would go by: after a
clean stop the snapshot and ``urls.seen``, after a cut one ``urls.done``. They are locked while a tool has them, so
a running crawl is refused, and a crawl that starts meanwhile is. To look changes nothing: a torn end stays, and
a file that is not there is not made.

**Changes** leave the old state or the new one, whenever the process is killed. After a clean stop new fingerprints
go to the end of ``urls.seen``, behind the size that the snapshot names, where they do not count; with the new
snapshot, which takes the place of the old one at once, they do. After a cut stop a snapshot may not be written,
since it would say that Scrapy's queue is whole: new fingerprints go to ``urls.done``, and count from then on. An
exact set gets them before the snapshot does; one that has another count than the snapshot says is made anew by the
next run, and stands in a temporary file here, 29 bytes a fingerprint. What was forgotten and is added again is taken out of ``urls.forgotten`` last.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypeAlias

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.confirmed import ConfirmedBloomFilter
from scrapy_dedupe.urls.exact import ExactSet
from scrapy_dedupe.urls.folder import (
    DONE_NAME,
    EXACT_NAME,
    FORGOTTEN,
    FORGOTTEN_NAME,
    SEEN,
    SEEN_NAME,
    LastStop,
)
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import DONE, MAX_FINGERPRINT_BYTES, Journal, read_records
from scrapy_dedupe.urls.scrapy_file import read_requests_seen, unread_from
from scrapy_dedupe.urls.snapshot import FilterSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from scrapy_dedupe.urls.folder import FilterFolder, LocalFilter
    from scrapy_dedupe.urls.journal import Kind

State: TypeAlias = Literal["seen", "new", "forgotten"]

_PART = 10_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The filter in numbers. ``listed`` is the number of fingerprints that can be exported, without a look at
    which are forgotten; ``exact`` that of the exact set, None if there is none that fits the filter.
    """

    fingerprints: int
    capacity: int
    layers: int
    size_bytes: int
    fill_ratio: float
    estimated_error: float
    expected_lost: float
    error_rate: float
    forgotten: int | None
    listed: int | None
    exact: int | None


@dataclass(frozen=True, slots=True)
class AddedFingerprints:
    """How many fingerprints were new, how many count as seen again that were forgotten, how many were known.

    ``taken_over`` are those of Scrapy's own file, which a filter that is made takes over; ``damaged`` is that file and
    the offset in it from which on it was torn or damaged, and left out.
    """

    new: int = 0
    again: int = 0
    known: int = 0
    taken_over: int = 0
    damaged: tuple[Path, int] | None = None


class StoredFilter:
    """A context manager over the files in ``folder``.

    ``capacity`` and ``error_rate`` are those of a filter that has to be made: after a cut stop, as the next run
    makes it, and with ``create`` where there is none. To enter raises
    :class:`~scrapy_dedupe.errors.StoreUnavailable` when there is none, or it cannot be read or written;
    :class:`~scrapy_dedupe.errors.StoreRefused` when it is damaged or was made with another fingerprinter;
    :class:`~scrapy_dedupe.errors.ArchiveError` when another process has it open. Every call may raise the first
    two.
    """

    def __init__(
        self, folder: FilterFolder, capacity: int, error_rate: float, *, create: bool = False
    ) -> None:
        self.folder = folder
        self.fingerprinter = folder.fingerprinter
        self.last_stop = LastStop.NONE
        self._capacity = capacity
        self._error_rate = error_rate
        self._create = create
        self._done = _Journal.of(folder, DONE_NAME, DONE)
        self._seen = _Journal.of(folder, SEEN_NAME, SEEN)
        self._forgotten_log = _Journal.of(folder, FORGOTTEN_NAME, FORGOTTEN)
        self._forgotten = Forgotten()
        self._snapshot: FilterSnapshot | None = None
        self._filter: LocalFilter | None = None
        self._exact: ExactSet | None = None

    def __enter__(self) -> Self:
        try:
            with self._faults():
                self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._close()
            return
        # What went wrong first is what matters.
        with suppress(StoreError):
            self._close()

    # Looking

    @property
    def filter(self) -> LocalFilter:
        """The filter as the next run will have it, without what is forgotten."""
        if self._filter is None:
            with self._faults():
                self._filter = self._load()
        return self._filter

    @property
    def is_exact(self) -> bool:
        """Whether every answer is looked up in an exact set."""
        return isinstance(self.filter, ConfirmedBloomFilter)

    def state(self, fingerprint: bytes) -> State:
        """What the next run will say of the fingerprint; a forgotten one may be asked for once more."""
        if fingerprint not in self.filter:
            return "new"
        return "forgotten" if fingerprint in self._forgotten else "seen"

    def __contains__(self, fingerprint: bytes) -> bool:
        return self.state(fingerprint) == "seen"

    def __len__(self) -> int:
        """Distinct fingerprints recorded, forgotten ones included."""
        return len(self.filter)

    def figures(self, on_count: Callable[[int], None] | None = None) -> Figures:
        """The numbers; *on_count* is told of the fingerprints that are counted meanwhile, so many at a time."""
        filter_ = self.filter
        return Figures(
            fingerprints=len(filter_),
            capacity=filter_.capacity,
            layers=filter_.layers,
            size_bytes=filter_.size_bytes,
            fill_ratio=filter_.fill_ratio,
            estimated_error=filter_.estimated_error,
            expected_lost=filter_.expected_lost,
            error_rate=filter_.error_rate,
            forgotten=len(self._forgotten),
            listed=self.listed(on_count),
            exact=len(filter_) if self._has_stored_set else None,
        )

    # Exporting

    def fingerprints(self) -> Iterator[bytes]:
        """Every fingerprint that counts as seen, in the order in which they were recorded."""
        return (fingerprint for fingerprint in self._list() if fingerprint not in self._forgotten)

    def listed(self, on_count: Callable[[int], None] | None = None) -> int:
        """How many fingerprints the list has, forgotten ones included; reads it through."""
        count = 0
        for part in _parts(self._list()):
            count += len(part)
            if on_count is not None:
                on_count(len(part))
        return count

    def lacking(self, on_count: Callable[[int], None] | None = None) -> int:
        """How many fingerprints of the filter the list lacks, because its file was damaged; reads it through."""
        # After a cut stop the filter is what the list holds.
        if self._snapshot is None:
            return 0
        held = max(len(self.filter), len(self._snapshot.filter))
        return max(0, held - self.listed(on_count))

    # Changing

    def forget(self, fingerprints: Iterable[bytes]) -> int:
        """Let each of these be asked for once more; how many counted as seen until now."""
        count = 0
        with self._faults():
            log = self._forgotten_log
            if not log.is_open:
                log.lock()
            log.open()
            for part in _parts(fingerprints):
                wanted = list(dict.fromkeys(item for item in part if item in self))
                log.append(wanted)
                self._forgotten.add_many(wanted)
                count += len(wanted)
            log.sync()
        return count

    def add_many(self, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        """Record fingerprints of 1 to 65,535 bytes; those that were forgotten count as seen again.

        The memory that is needed is that of the filter. What ``fingerprints`` raises goes through, and leaves
        the filter as it was after a clean stop.
        """
        try:
            with self._faults():
                return self._add_many(fingerprints)
        except BaseException:
            # In memory is what the files may lack.
            with suppress(StoreError), self._faults():
                self._read_again()
            raise

    # Opening and closing

    @property
    def _journals(self) -> tuple[_Journal, _Journal, _Journal]:
        return self._done, self._seen, self._forgotten_log

    def _open(self) -> None:
        folder = self.folder
        if self._create:
            folder.folder.mkdir(parents=True, exist_ok=True)
        for journal in self._journals:
            if self._create or journal.path.exists():
                journal.lock()
        if folder.snapshot.exists():
            self.last_stop = LastStop.CLEAN
            self._snapshot = FilterSnapshot.read(folder.snapshot, self.fingerprinter)
            self._seen.look(self._snapshot.seen_bytes)
        elif self._done.has_head():
            self.last_stop = LastStop.CUT
            self._done.look()
        elif not self._create:
            raise StoreUnavailable(self._nothing_there())
        self._forgotten_log.look()
        self._read_forgotten()

    def _read_again(self) -> None:
        exact, self._exact, self._filter, self._snapshot = self._exact, None, None, None
        if exact is not None:
            exact.close()
        if self.folder.snapshot.exists():
            self.last_stop = LastStop.CLEAN
            self._snapshot = FilterSnapshot.read(self.folder.snapshot, self.fingerprinter)
            self._seen.look(self._snapshot.seen_bytes)
        self._read_forgotten()

    def _nothing_there(self) -> str:
        theirs = self.folder.scrapy_file
        if theirs is not None and theirs.exists():
            return (
                f"There is no URL filter in {self.folder.folder}, but Scrapy's own file {theirs}, which the next run "
                "or an import takes over."
            )
        return f"There is no URL filter in {self.folder.folder}. Run a crawl with this JOBDIR, or name another one."

    def _close(self) -> None:
        for journal in self._journals:
            journal.close()
        exact, self._exact = self._exact, None
        self._filter = None
        if exact is not None:
            exact.close()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise self.folder.unusable(exc) from exc

    def _load(self) -> LocalFilter:
        if self._snapshot is not None:
            bloom, path = self._snapshot.filter, self.folder.folder / EXACT_NAME
            if self._snapshot.exact is not None and path.exists():
                exact = ExactSet.open(path, self.fingerprinter)
                if exact.count == self._snapshot.exact:
                    self._exact = exact
                    return ConfirmedBloomFilter(bloom, exact, _raise)
                exact.close()
        else:
            bloom = GrowingBloomFilter(self._capacity, self._error_rate)
            if self.last_stop is LastStop.CUT:
                for fingerprint in self._done.fingerprints():
                    bloom.add(fingerprint)
        if not self.folder.confirm:
            return bloom
        # The next run makes its set anew from the same list.
        self._exact = exact = ExactSet.open(None, self.fingerprinter)
        exact.add_all(self._list())
        return ConfirmedBloomFilter(bloom, exact, _raise)

    @property
    def _has_stored_set(self) -> bool:
        return self._exact is not None and self._exact.path == self.folder.folder / EXACT_NAME

    def _list(self) -> Iterator[bytes]:
        return (self._done if self.last_stop is LastStop.CUT else self._seen).fingerprints()

    def _read_forgotten(self) -> None:
        self._forgotten = Forgotten(self._forgotten_log.fingerprints())

    # Writing

    def _list_to_write(self) -> _Journal:
        """The journal that new fingerprints go to, cut to what counts."""
        if self.last_stop is LastStop.CUT:
            self._done.open()
            return self._done
        if not self._seen.is_open:
            self._seen.lock()
        self._seen.open(None if self._snapshot is None else self._snapshot.seen_bytes)
        if self._snapshot is None:
            self._seen.clear()
        return self._seen

    def _add_many(self, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        list_ = self._list_to_write()
        theirs = AddedFingerprints()
        if self.last_stop is LastStop.NONE:
            theirs = self._take_over(list_)
        added = self._record(list_, fingerprints)
        list_.sync()
        if self.last_stop is not LastStop.CUT:
            self._write_snapshot()
        if self._forgotten.has_taken:
            self._rewrite_forgotten()
        return AddedFingerprints(added.new, added.again, added.known, theirs.new, theirs.damaged)

    def _take_over(self, list_: _Journal) -> AddedFingerprints:
        theirs = self.folder.scrapy_file
        if theirs is None or not theirs.exists():
            return AddedFingerprints()
        with theirs.open("rb") as file:
            added = self._record(list_, read_requests_seen(file))
            end = unread_from(file)
        return added if end is None else replace(added, damaged=(theirs, end))

    def _record(self, list_: _Journal, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        filter_ = self.filter
        total = new = again = 0
        for part in _parts(fingerprints):
            found = []
            for fingerprint in part:
                if not 0 < len(fingerprint) <= MAX_FINGERPRINT_BYTES:
                    raise ValueError(f"a fingerprint of {len(fingerprint)} bytes")
                is_new = filter_.add(fingerprint)
                if is_new:
                    found.append(fingerprint)
                if self._forgotten.take(fingerprint) and not is_new:
                    again += 1
            try:
                list_.append(found)
            except StoreUnavailable as error:
                self._not_taken(list_, error)
            if isinstance(filter_, ConfirmedBloomFilter) and filter_.exact.wants_writing:
                filter_.exact.write_pending()
            total += len(part)
            new += len(found)
        return AddedFingerprints(new, again, total - new - again)

    def _not_taken(self, list_: _Journal, error: StoreUnavailable) -> NoReturn:
        left = "has what was added so far" if self.last_stop is LastStop.CUT else "is as it was"
        raise StoreUnavailable(
            f"{list_.path} does not take more: {error.__cause__}. The URL filter {left}. Make room on the disk."
        ) from error

    def _write_snapshot(self) -> None:
        filter_, old, count = self.filter, self._snapshot, None
        bloom = filter_.bloom if isinstance(filter_, ConfirmedBloomFilter) else filter_
        is_stored, exact, self._exact = self._has_stored_set, self._exact, None
        if exact is not None:
            # Which makes it durable, and its count one that can be told.
            exact.close()
            count = exact.count if is_stored else None
        # The journal of done requests of a new job is empty, and gets its head from the run that begins.
        done_bytes = 0 if old is None else old.done_bytes
        self._snapshot = FilterSnapshot(bloom, self.fingerprinter, done_bytes, self._seen.size_bytes, count)
        self._snapshot.write(self.folder.snapshot)
        self._seen.look(self._snapshot.seen_bytes)
        self._filter = None
        self.last_stop = LastStop.CLEAN

    def _rewrite_forgotten(self) -> None:
        """Leave out what was taken."""
        log = self._forgotten_log
        log.rewrite(item for item in log.fingerprints() if not self._forgotten.was_taken(item))
        self._read_forgotten()


class _Journal(Journal):
    """A journal that can be read without a change. One that is not locked, or has no head, is empty."""

    _end: int | None = None

    @classmethod
    def of(cls, folder: FilterFolder, name: str, kind: Kind) -> _Journal:
        return cls(folder.folder / name, folder.fingerprinter, kind)

    def has_head(self) -> bool:
        return self.is_open and not self.is_new()

    def look(self, known_bytes: int | None = None) -> None:
        """Check the head; of a file that had this size at a clean stop the rest does not count."""
        if self.has_head():
            self._check_head()
        self._end = known_bytes

    def open(self, known_bytes: int | None = None) -> int:
        self._end = None
        return super().open(known_bytes)

    def fingerprints(self) -> Iterator[bytes]:
        if not self.has_head():
            return
        for end, records in self._blocks():
            if self._end is not None and end > self._end:
                return
            yield from read_records(records)


def _parts(fingerprints: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(fingerprints)
    while part := list(islice(rest, _PART)):
        yield part


def _raise(error: BaseException) -> NoReturn:
    raise error
