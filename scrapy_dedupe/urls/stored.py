"""Access to the URL filter of a job between two runs, for command-line tools.

The files are described in :mod:`~scrapy_dedupe.urls.folder`. The state is the one that the next run would use:
after a clean stop the snapshot and ``urls.seen``, after an unclean stop ``urls.done``. The files are locked while
a tool uses them: a tool refuses a job that is running, and a crawl refuses to start while a tool is running. Reading
changes nothing: an interrupted write at the end of a file stays, and no file is created.

**Changes.** A kill at any time leaves the old state or the new one. After a clean stop new fingerprints are appended
to ``urls.seen``, after the size that the snapshot names. They only count once the new snapshot has replaced the old
one. After an unclean stop no snapshot may be written, since it would mean that Scrapy's queue is complete. New
fingerprints are then appended to ``urls.done`` and count immediately. An exact set is written before the snapshot. An
exact set whose count differs from the snapshot is rebuilt by the next run; the tool uses a temporary one instead, which
takes 29 bytes a fingerprint. Forgotten fingerprints that are added again are removed from ``urls.forgotten`` last.
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
    """The figures of a filter.

    ``listed`` is the number of fingerprints that can be exported, including forgotten ones. ``exact`` is the number
    in the exact set; None if there is no exact set that matches the filter.
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
    """Counts of added fingerprints: ``new``, ``again`` (were forgotten and count as seen again), and already ``known``.

    ``taken_over`` is the number of fingerprints imported from Scrapy's own file when the filter was created.
    ``damaged`` is the path of that file and the offset from which it was truncated or damaged and not imported.
    """

    new: int = 0
    again: int = 0
    known: int = 0
    taken_over: int = 0
    damaged: tuple[Path, int] | None = None


class StoredFilter:
    """The filter in ``folder``, as a context manager.

    ``capacity`` and ``error_rate`` apply only when a filter is created: after an unclean stop, as the next run would do,
    or with ``create=True`` if the job has none. Entering the context raises
    :class:`~scrapy_dedupe.errors.StoreUnavailable` if there is no filter or it cannot be read or written;
    :class:`~scrapy_dedupe.errors.StoreRefused` if it is damaged or has another fingerprinter;
    :class:`~scrapy_dedupe.errors.ArchiveError` if another process has it open. All methods may raise the first two.
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
        # Report the first error, not one from closing.
        with suppress(StoreError):
            self._close()

    # Reading

    @property
    def filter(self) -> LocalFilter:
        """The filter that the next run will use, including forgotten fingerprints."""
        if self._filter is None:
            with self._faults():
                self._filter = self._load()
        return self._filter

    @property
    def is_exact(self) -> bool:
        """Whether hits are confirmed in an exact set."""
        return isinstance(self.filter, ConfirmedBloomFilter)

    def state(self, fingerprint: bytes) -> State:
        """The state of the fingerprint in the next run. A forgotten one may be requested again once."""
        if fingerprint not in self.filter:
            return "new"
        return "forgotten" if fingerprint in self._forgotten else "seen"

    def __contains__(self, fingerprint: bytes) -> bool:
        return self.state(fingerprint) == "seen"

    def __len__(self) -> int:
        """Number of distinct fingerprints recorded, including forgotten ones."""
        return len(self.filter)

    def figures(self, on_count: Callable[[int], None] | None = None) -> Figures:
        """The figures. *on_count* is called with the number of fingerprints counted since its last call."""
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
        """All fingerprints that count as seen, in the order in which they were recorded."""
        return (fingerprint for fingerprint in self._list() if fingerprint not in self._forgotten)

    def listed(self, on_count: Callable[[int], None] | None = None) -> int:
        """Number of fingerprints in the list, including forgotten ones. Reads the whole list."""
        count = 0
        for part in _parts(self._list()):
            count += len(part)
            if on_count is not None:
                on_count(len(part))
        return count

    def unlisted(self, on_count: Callable[[int], None] | None = None) -> int:
        """Number of fingerprints of the filter that the list lacks because its file is damaged. Reads the whole list."""
        # After an unclean stop the filter is built from the list.
        if self._snapshot is None:
            return 0
        held = max(len(self.filter), len(self._snapshot.filter))
        return max(0, held - self.listed(on_count))

    # Changing

    def forget(self, fingerprints: Iterable[bytes]) -> int:
        """Allow each fingerprint to be requested again once; return how many of them counted as seen before."""
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
            self._seen.check(self._snapshot.seen_bytes)
        elif self._done.has_head():
            self.last_stop = LastStop.CUT
            self._done.check()
        elif not self._create:
            raise StoreUnavailable(self._missing_message())
        self._forgotten_log.check()
        self._read_forgotten()

    def _read_again(self) -> None:
        exact, self._exact, self._filter, self._snapshot = self._exact, None, None, None
        if exact is not None:
            exact.close()
        if self.folder.snapshot.exists():
            self.last_stop = LastStop.CLEAN
            self._snapshot = FilterSnapshot.read(self.folder.snapshot, self.fingerprinter)
            self._seen.check(self._snapshot.seen_bytes)
        self._read_forgotten()

    def _missing_message(self) -> str:
        scrapy_file = self.folder.scrapy_file
        if scrapy_file is not None and scrapy_file.exists():
            return (
                f"There is no URL filter in {self.folder.folder}, only Scrapy's own file {scrapy_file}. The next run, "
                "or scrapy dedupe urls import, imports that file."
            )
        return f"There is no URL filter in {self.folder.folder}. Run a crawl with this JOBDIR, or use another JOBDIR."

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
        # The next run rebuilds its set from the same list.
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
        """The journal for new fingerprints, without data that was never committed."""
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
        from_scrapy = AddedFingerprints()
        if self.last_stop is LastStop.NONE:
            from_scrapy = self._import_scrapy_file(list_)
        added = self._record(list_, fingerprints)
        list_.sync()
        if self.last_stop is not LastStop.CUT:
            self._write_snapshot()
        if self._forgotten.has_taken:
            self._rewrite_forgotten()
        return AddedFingerprints(added.new, added.again, added.known, from_scrapy.new, from_scrapy.damaged)

    def _import_scrapy_file(self, list_: _Journal) -> AddedFingerprints:
        path = self.folder.scrapy_file
        if path is None or not path.exists():
            return AddedFingerprints()
        with path.open("rb") as file:
            added = self._record(list_, read_requests_seen(file))
            end = unread_from(file)
        return added if end is None else replace(added, damaged=(path, end))

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
                self._raise_write_error(list_, error)
            if isinstance(filter_, ConfirmedBloomFilter) and filter_.exact.wants_writing:
                filter_.exact.write_pending()
            total += len(part)
            new += len(found)
        return AddedFingerprints(new, again, total - new - again)

    def _raise_write_error(self, list_: _Journal, error: StoreUnavailable) -> NoReturn:
        state = "has the fingerprints added so far" if self.last_stop is LastStop.CUT else "is unchanged"
        raise StoreUnavailable(
            f"{list_.path} cannot be written: {error.__cause__}. The URL filter {state}. Free disk space."
        ) from error

    def _write_snapshot(self) -> None:
        filter_, old, count = self.filter, self._snapshot, None
        bloom = filter_.bloom if isinstance(filter_, ConfirmedBloomFilter) else filter_
        is_stored, exact, self._exact = self._has_stored_set, self._exact, None
        if exact is not None:
            # Closing makes the set durable and its count final.
            exact.close()
            count = exact.count if is_stored else None
        # The journal of done requests of a new job stays empty; the next run writes its header.
        done_bytes = 0 if old is None else old.done_bytes
        self._snapshot = FilterSnapshot(bloom, self.fingerprinter, done_bytes, self._seen.size_bytes, count)
        self._snapshot.write(self.folder.snapshot)
        self._seen.check(self._snapshot.seen_bytes)
        self._filter = None
        self.last_stop = LastStop.CLEAN

    def _rewrite_forgotten(self) -> None:
        """Remove the fingerprints that count as seen again."""
        log = self._forgotten_log
        log.rewrite(item for item in log.fingerprints() if not self._forgotten.was_taken(item))
        self._read_forgotten()


class _Journal(Journal):
    """A journal that can be read without changing it. It counts as empty if it is not locked or has no header."""

    _end: int | None = None

    @classmethod
    def of(cls, folder: FilterFolder, name: str, kind: Kind) -> _Journal:
        return cls(folder.folder / name, folder.fingerprinter, kind)

    def has_head(self) -> bool:
        return self.is_open and not self.is_new()

    def check(self, known_bytes: int | None = None) -> None:
        """Check the header. Data after ``known_bytes``, the size of the file at a clean stop, is ignored."""
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
