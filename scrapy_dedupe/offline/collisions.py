"""Compare records with the same digest byte by byte, and number their different payloads.

Each different payload of a digest has a number, the extension, from 1 in the order of (date, file, offset) of its first
record. Records with the same digest and extension have the same payload and may be deduplicated. The only record of a
digest gets extension 1 and is not read. A record gets an extension that no other record has if it must not replace
another one (it is truncated or partial, or its chunks are truncated or hold more than the payload), if it cannot be
read, or if the manifest lists it a second time. Such a record is never treated as a copy. No line is ever dropped.

Memory does not grow with the number of lines or the size of payloads, only with the number of different payloads of one
digest, since their lines and hashes are kept (`comparing`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.offline.comparing import DifferentPayloads
from scrapy_dedupe.offline.eligibility import is_whole
from scrapy_dedupe.offline.ordering import by_cluster, moment
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import job_count, run_jobs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.warc.bodies import has_more_than_payload
from scrapy_dedupe.warc.codings import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress

_AT_ONCE = 1_000  # lines of a digest that are read in the order of their places
# The size of a batch for another process.
_BATCH_LINES = 1_000
_BATCH_BYTES = 64 << 20
_LARGE_LINES = 5_000  # a digest with more lines is divided
_WAITING_LINES = 6_000  # for each process: lines that wait for earlier batches


@dataclass(slots=True)
class CollisionCounts:
    """The counts of a comparison.

    ``lines``: all lines. ``digests``: digests of several lines. ``compared``: the lines of these digests.
    ``collisions``: digests of different payloads. ``alone``: lines that must not replace others.
    """

    lines: int = 0
    digests: int = 0
    compared: int = 0
    collisions: int = 0
    alone: int = 0

    def add(self, other: CollisionCounts) -> None:
        self.lines += other.lines
        self.digests += other.digests
        self.compared += other.compared
        self.collisions += other.collisions
        self.alone += other.alone


def resolve_collisions(
    lines: Iterable[ManifestLine],
    places: Places,
    *,
    faults: Faults,
    watch: Progress | None = None,
    jobs: Jobs = 1,
    folder: Path | None = None,
    counts: CollisionCounts | None = None,
) -> Iterator[ManifestLine]:
    """Yield the lines with their extension, in order of cluster, without their values about copies.

    *lines* must be in the order of (digest, date, file, offset); their extensions are ignored. If a digest has very many
    lines, they are sorted with files in *folder* (default: the system's temporary folder). The results are added to
    *counts*.

    Raises DamagedInput for the first fault, unless *faults* is set to keep going; always if the lines are not sorted.
    """
    watch = watch or NoProgress()
    counts = counts if counts is not None else CollisionCounts()
    with _folder(folder) as work:
        if job_count(jobs) > 1:
            yield from _in_batches(lines, places, faults, watch, jobs, work, counts)
            return
        for _, group in _digests(lines):
            for line in _ordered(_resolved(group, places, faults, counts), work):
                watch.advance(line.length)
                yield line


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="scrapy-dedupe-") as name:
        yield Path(name)


def _digests(lines: Iterable[ManifestLine]) -> Iterator[tuple[str, Iterator[ManifestLine]]]:
    previous = ""
    for digest, group in groupby(lines, attrgetter("digest")):
        # Two groups of one digest would both begin with extension 1, and different records would be treated as copies.
        if digest < previous:
            raise DamagedInput(f"The manifest is not sorted: the digest {digest} comes after {previous}.")
        previous = digest
        yield digest, group


def _ordered(lines: Iterator[ManifestLine], folder: Path) -> Iterable[ManifestLine]:
    """The lines of one digest in the order of their extensions."""
    first = list(islice(lines, _AT_ONCE))
    if len(first) < _AT_ONCE:
        return sorted(first, key=lambda line: line.extension or 1)  # a stable sort
    return by_cluster(chain(first, lines), folder)


def _resolved(
    group: Iterator[ManifestLine], places: Places, faults: Faults, counts: CollisionCounts, jobs: Jobs = 1
) -> Iterator[ManifestLine]:
    """The lines of one digest with their extensions, in their order."""
    first = list(islice(group, 2))
    if len(first) == 1:
        counts.lines += 1
        yield _with_extension(first[0], 1)
        return
    counts.digests += 1
    extensions: dict[int, int] = {}  # of payloads by their number
    taken = 0
    for lines, numbers in _numbered(chain(first, group), places, faults, jobs):
        for line, number in zip(lines, numbers, strict=True):
            if number is None:
                counts.alone += 1
                extension = taken = taken + 1
            else:
                extension = extensions.setdefault(number, taken + 1)
                taken = max(taken, extension)
            yield _with_extension(line, extension)
        counts.lines += len(lines)
        counts.compared += len(lines)
    counts.collisions += len(extensions) > 1


def _numbered(
    group: Iterator[ManifestLine], places: Places, faults: Faults, jobs: Jobs
) -> Iterator[tuple[Sequence[ManifestLine], list[int | None]]]:
    """The lines of one digest in parts, with the numbers of their payloads.

    With several jobs, each part is compared in another process. Then the first records of the payloads of all parts are
    compared here.
    """
    first = next(group)
    payloads = DifferentPayloads(places, is_decoded=first.is_decoded)
    parts = _parts(chain([first], group), places)
    processes = job_count(jobs)
    if processes == 1:
        for part in parts:
            yield part.lines, _numbers(part, payloads, places, faults)
        return
    work = partial(_compare_part, places=places, keep_going=faults.keep_going)
    while some := list(islice(parts, processes * max(1, _WAITING_LINES // _AT_ONCE))):
        compared = {part.number: result for part, result in run_jobs(work, some, jobs)}
        for part in some:
            result = compared[part.number]
            faults.take(result.fault_count, result.faults)
            numbers = [_number(part.lines[index], payloads, places, faults) for index in result.first]
            yield part.lines, [None if number is None else numbers[number] for number in result.numbers]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some lines of one digest. ``is_repeated`` says which of them list a record of an earlier line."""

    number: int
    lines: list[ManifestLine]
    is_repeated: list[bool]


@dataclass(frozen=True, slots=True)
class _PartResult:
    numbers: list[int | None]  # of the payloads of the lines, in this part
    first: list[int]  # for each payload, the index of its first line
    fault_count: int
    faults: tuple[Fault, ...]


def _parts(group: Iterator[ManifestLine], places: Places) -> Iterator[_Part]:
    repeated = _Repetitions(places)
    for number, lines in enumerate(iter(lambda: list(islice(group, _AT_ONCE)), [])):
        yield _Part(number, lines, [repeated.is_repeated(line) for line in lines])


def _compare_part(part: _Part, places: Places, keep_going: bool) -> _PartResult:
    faults = Faults(keep_going=keep_going)
    payloads = DifferentPayloads(places, is_decoded=part.lines[0].is_decoded)
    numbers = _numbers(part, payloads, places, faults)
    first = {number: index for index, number in reversed(list(enumerate(numbers))) if number is not None}
    return _PartResult(
        numbers, [first[number] for number in sorted(first)], faults.count, tuple(faults.first)
    )


def _numbers(part: _Part, payloads: DifferentPayloads, places: Places, faults: Faults) -> list[int | None]:
    """The numbers of the payloads of all lines, which are read in the order of their places."""
    lines = part.lines
    numbers: list[int | None] = [None] * len(lines)
    for index in sorted(range(len(lines)), key=lambda index: (lines[index].file, lines[index].offset)):
        if part.is_repeated[index]:
            faults.add(_place(lines[index]), "the manifest lists this record twice")
        else:
            numbers[index] = _number(lines[index], payloads, places, faults)
    return numbers


def _number(line: ManifestLine, payloads: DifferentPayloads, places: Places, faults: Faults) -> int | None:
    """The number of a line's payload; None if the record must not replace another one."""
    try:
        record = places.record(line)
        # Chunks that hold more than the payload would be lost with the record. A truncated body of chunks may have no
        # payload at all.
        if record.type == "revisit" or not is_whole(record) or has_more_than_payload(record):
            return None
        return payloads.number_of(line, record)
    except Undecodable as error:
        faults.add(_place(line), f"the payload cannot be decoded: {error}")
    except (DamagedInput, ArchiveError) as error:
        faults.add(_place(line), _reason(error, line))
    return None


def _reason(error: Exception, line: ManifestLine) -> str:
    """The reason of an error, without the place if it is the line's own."""
    text = str(error)
    before, _, reason = text.partition(f", offset {line.offset}: ")
    return reason if reason and before.endswith(line.file) else text


def _place(line: ManifestLine) -> str:
    return f"{line.file}, offset {line.offset}"


def _with_extension(line: ManifestLine, extension: int) -> ManifestLine:
    return replace(line, extension=extension, copy=None, refers_to_uri=None, refers_to_date=None)


class _Repetitions:
    """Finds records that were listed before, even by another name of their file: no record is a copy of itself."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._date = ""
        self._seen: set[tuple[str, int]] = set()

    def is_repeated(self, line: ManifestLine) -> bool:
        # The same record has the same date, so only the records of one date must be remembered.
        date = moment(line.date)
        if date != self._date:
            self._date = date
            self._seen.clear()
        place = self._places.identity(line.file), line.offset
        if place in self._seen:
            return True
        self._seen.add(place)
        return False


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    digests: list[list[ManifestLine]]


@dataclass(frozen=True, slots=True)
class _BatchResult:
    extensions: list[list[int]]  # for the lines of each digest; the caller has the lines
    counts: CollisionCounts
    fault_count: int
    faults: tuple[Fault, ...]


def _in_batches(
    lines: Iterable[ManifestLine],
    places: Places,
    faults: Faults,
    watch: Progress,
    jobs: Jobs,
    folder: Path,
    counts: CollisionCounts,
) -> Iterator[ManifestLine]:
    """Resolve in batches of digests with few lines, in worker processes. All others are divided (`_numbered`)."""
    work = partial(_resolve_batch, places=places, keep_going=faults.keep_going)
    digests = _Digests(lines)
    while not digests.is_at_end:
        batches = _Batches(digests, job_count(jobs))
        resolved: dict[int, list[list[int]]] = {}
        number = 0
        for batch, result in run_jobs(work, batches, jobs):
            resolved[batch.number] = result.extensions
            counts.add(result.counts)
            faults.take(result.fault_count, result.faults)
            # Batches finish in any order, but lines are yielded in input order.
            while number in resolved:
                yield from _extended(batches.taken(number), resolved.pop(number), watch, counts)
                number += 1
        if (group := digests.large()) is not None:
            for line in _ordered(_resolved(group, places, faults, counts, jobs), folder):
                watch.advance(line.length)
                yield line


def _extended(
    digests: list[list[ManifestLine]], extensions: list[list[int]], watch: Progress, counts: CollisionCounts
) -> Iterator[ManifestLine]:
    """The lines of a batch in the order of cluster."""
    compared = iter(extensions)
    for digest in digests:
        watch.advance(sum(line.length for line in digest))
        if len(digest) > 1:
            yield from sorted(map(_with_extension, digest, next(compared)), key=attrgetter("extension"))
        else:
            counts.lines += 1
            yield _with_extension(digest[0], 1)


class _Digests:
    """The lines grouped by digest. Stops at a digest of more than `_LARGE_LINES` lines, see `large`."""

    def __init__(self, lines: Iterable[ManifestLine]) -> None:
        self._groups = _digests(lines)
        self._large: Iterator[ManifestLine] | None = None
        self.is_at_end = False

    def next_few(self) -> list[ManifestLine] | None:
        """The lines of the next digest; None if the next digest is large, or at the end."""
        if self._large is not None or self.is_at_end:
            return None
        for _, group in self._groups:
            first = list(islice(group, _LARGE_LINES + 1))
            if len(first) <= _LARGE_LINES:
                return first
            self._large = chain(first, group)
            return None
        self.is_at_end = True
        return None

    def large(self) -> Iterator[ManifestLine] | None:
        """The lines of the next digest if it is large, else None."""
        large, self._large = self._large, None
        return large


class _Batches(Sequence[_Batch]):
    """Batches of digests, made lazily; the first *jobs* of them at once, so that the length shows whether several exist.

    They end at a large digest, or when `_WAITING_LINES` for each job were made and not yet `taken`.
    """

    def __init__(self, digests: _Digests, jobs: int) -> None:
        self._digests = digests
        self._waiting: dict[int, list[list[ManifestLine]]] = {}
        self._waiting_lines = 0
        self._most_lines = jobs * _WAITING_LINES
        self._count = 0
        made = self._made()
        self._first = list(islice(made, jobs))
        self._rest = made

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[_Batch]:
        yield from self._first
        yield from self._rest

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("the batches can be iterated only once")

    def taken(self, number: int) -> list[list[ManifestLine]]:
        """All digests of a batch, including those of one line, which are not compared."""
        digests = self._waiting.pop(number)
        self._waiting_lines -= sum(map(len, digests))
        return digests

    def _made(self) -> Iterator[_Batch]:
        while self._waiting_lines < self._most_lines:
            digests: list[list[ManifestLine]] = []
            count = compared = size_bytes = 0
            while compared < _BATCH_LINES and count < 2 * _BATCH_LINES and size_bytes < _BATCH_BYTES:
                digest = self._digests.next_few()
                if digest is None:
                    break
                digests.append(digest)
                count += len(digest)
                if len(digest) > 1:
                    compared += len(digest)
                    size_bytes += sum(line.length for line in digest)
            if not digests:
                return
            number, self._count = self._count, self._count + 1
            self._waiting[number] = digests
            self._waiting_lines += count
            # The only record of a digest is not read.
            yield _Batch(number, [digest for digest in digests if len(digest) > 1])


def _resolve_batch(batch: _Batch, places: Places, keep_going: bool) -> _BatchResult:
    faults, counts = Faults(keep_going=keep_going), CollisionCounts()
    extensions = [
        [line.extension or 1 for line in _resolved(iter(digest), places, faults, counts)]
        for digest in batch.digests
    ]
    return _BatchResult(extensions, counts, faults.count, tuple(faults.first))
