"""Compare a file before and after: which records are the same, and which changed in an allowed way.

Both files are read from place to place (`old_files`). If the stored bytes of the next record before are also the next bytes
of the file after, the record is the same, and is decompressed in one of the files at most. If not, the next record of the file
after is read, and both are compared (`record_changes`). Bytes between records, damaged places and members of several records
are compared as bytes; NUL bytes between records do not matter.

If two records do not match, the next 256 records of both files are searched for a match, so that a removed or added record
is reported as such. Such searches read bytes again, and so does the comparison of records of more than 2 MB.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.work import size_of
from scrapy_dedupe.warc.bodies import hashed_records
from scrapy_dedupe.warc.framing import is_compressed
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.windows import WindowedFile

from .changes import change_of, conversion_of
from .evidence import (
    AFTER,
    BEFORE,
    BOTH,
    ELSEWHERE,
    PAYLOAD_TYPES,
    algorithms_of,
)
from .evidence_writer import evidence_file
from .findings import Findings, place_of
from .old_files import OldFile, RecordReader, is_arc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .changes import Change
    from .evidence import HashedRecord
    from .evidence_writer import EvidenceWriter
    from .old_files import OldRecord

_PIECE: Final = 1 << 20
_AHEAD: Final = 256
_FORMER_ID: Final = "Former-WARC-Record-ID"
_COMPRESSION: Final = ("it is no longer compressed", "it is compressed, but was not")
# arc2warc writes new records of these types, which are not part of the converted data.
_OF_A_FILE: Final = ("warcinfo", "metadata", "request")


class RecordKey(NamedTuple):
    """Identifies the same record in two files."""

    type: str
    id: str | None
    former_id: str | None
    uri: str | None
    date: str | None
    offset: int

    def is_of(self, other: RecordKey) -> bool:
        """Whether both are the same record, by its present or former id."""
        if self.id is None or other.id is None:
            return self[:2] == other[:2] and self[3:5] == other[3:5]
        return self.id == other.id or self.former_id == other.id or self.id == other.former_id

    def looks_like(self, other: RecordKey) -> bool:
        """Whether both could be the same record with a wrong id."""
        return self.uri is not None and self[3:5] == other[3:5] and (
            self.type == other.type or {self.type, other.type} == {"response", "revisit"}
        )  # fmt: skip


def key_of(record: StoredRecord) -> RecordKey:
    """The key of a record."""
    former_id = record.get(_FORMER_ID)
    return RecordKey(record.type, record.id, former_id, record.target_uri, record.date, record.offset)


class KeysAhead:
    """The keys of the next records of a file, at most 256, up to a place that is not a record. Each record is read once."""

    def __init__(self, window: WindowedFile) -> None:
        self._window = window
        self._keys: deque[RecordKey] = deque()
        self._records: Iterator[StoredRecord] = iter(())

    def from_(self, offset: int) -> deque[RecordKey]:
        """The keys of the records from *offset*, which must not decrease."""
        while self._keys and self._keys[0].offset < offset:
            self._keys.popleft()
        if not self._keys or self._keys[0].offset != offset:
            self._keys.clear()
            self._records = self._adjacent(offset)
        self._keys.extend(map(key_of, islice(self._records, _AHEAD - len(self._keys))))
        return self._keys

    def _adjacent(self, offset: int) -> Iterator[StoredRecord]:
        for record in read_records(self._window, on_damage=lambda _: None, start=offset):
            if record.offset != offset or not record.length:
                return
            yield record
            offset += record.length


@dataclass(frozen=True, slots=True)
class PairComparison:
    """The task of one process: the files of pair *number*, one of which may be None, and the file for the evidence.

    ``is_original``: both are the same file, which belongs to neither archive and is only read for its payloads. ``facts``
    are facts about the file before (`old_files`).
    """

    number: int
    before: ReadableFile | None
    after: ReadableFile | None
    evidence: Path
    is_original: bool
    keep_going: bool
    facts: Iterable[OldRecord] | None = None

    @property
    def files(self) -> list[ReadableFile]:
        """The files that are read."""
        if self.is_original and self.after is not None:
            return [self.after]
        return [file for file in (self.before, self.after) if file is not None]


@dataclass(slots=True)
class Compared:
    """The result of comparisons. ``counts`` counts records by kind of change; ``size_bytes`` is the size of both files."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    faults: Faults = field(default_factory=Faults)
    size_bytes: int = 0

    def add(self, other: Compared) -> None:
        """Add another result, except for its faults."""
        self.counts += other.counts
        self.findings.take(other.findings)
        self.size_bytes += other.size_bytes


def compare(task: PairComparison) -> Compared:
    """Compare a pair of files. Raises DamagedInput for damage that both have, unless the task is set to keep going."""
    found = Compared(faults=Faults(keep_going=task.keep_going), size_bytes=sum(map(size_of, task.files)))
    before, after = task.before, task.after
    with evidence_file(task.evidence, task.number) as writer:
        walk = _Walk(found, writer)
        if task.is_original and after is not None:
            walk.index(after, ELSEWHERE)
        elif before is not None and after is not None:
            walk.compare(before, after, task.facts)
        elif after is not None:
            found.findings.add("file", None, str(after), "there is no such file before")
            walk.index(after, AFTER)
        elif before is not None:
            found.findings.add("file", str(before), None, "there is no such file after")
            walk.index(before, BEFORE)
    return found


class _Walk:
    def __init__(self, found: Compared, writer: EvidenceWriter) -> None:
        self._counts = found.counts
        self._findings = found.findings
        self._faults = found.faults
        self._writer = writer
        self._at = self._at_before = 0  # the ends of the compared ranges

    def index(self, file: ReadableFile, sides: int) -> None:
        """Read the records of a file that is compared with no other; *sides* are the archives that contain it."""
        for found in hashed_records(file, algorithms_of, on_damage=self._faults.add_damage):
            if sides == BOTH:
                self._add_unchanged(found)
            elif sides == AFTER:
                self._counts["records"] += 1
                self._writer.add(None, found)
            elif sides == BEFORE:
                self._writer.add(found, None)
            elif found[0].type in PAYLOAD_TYPES:
                self._writer.add_record(found, sides)

    def compare(self, before: ReadableFile, after: ReadableFile, facts: Iterable[OldRecord] | None) -> None:
        """Compare both files."""
        with (
            WindowedFile(before, reads_ahead=facts is None) as self._before,
            WindowedFile(after) as self._after,
        ):
            if not self._before.size_bytes and not self._after.size_bytes:
                self._faults.add(str(after), "the file is empty")
            elif before == after and facts is None:
                self.index(self._after, BOTH)
            else:
                self._compare_windows(facts)

    def _compare_windows(self, facts: Iterable[OldRecord] | None) -> None:
        self._old = OldFile(self._before, facts)
        if self._old.is_arc and not is_arc(self._after):
            self._compare_conversion()
            return
        self._ahead_before, self._ahead = KeysAhead(self._before), KeysAhead(self._after)
        was_gzip, is_gzip = is_compressed(self._before), is_compressed(self._after)
        if was_gzip != is_gzip and self._before.size_bytes and self._after.size_bytes:
            self._findings.add("file", str(self._before), str(self._after), _COMPRESSION[is_gzip])
        self._compare_records()
        while (missing := self._next_before(needs_body=True)) is not None:
            self._pass_missing(missing)

    def _compare_records(self) -> None:
        reader = RecordReader(self._after)
        while True:
            if self._pass_unchanged():
                continue
            start = self._at
            found, damages = reader.next_from(start)
            for damage in damages:
                self._pass_damage(damage)
            if found is None:
                break
            record = found[0]
            if not record.length and self._at == start:
                # The record shares a gzip member, whose bytes are compared like the bytes between records. After a
                # damaged place, the member is read again from its beginning.
                self._add_unchanged(found)
            elif self._at < record.offset or damages:
                self._compare_bytes(record.offset)
            else:
                self._counts["records"] += 1
                self._compare_record(found)
                self._at = record.offset + record.length
        self._compare_bytes(self._after.size_bytes)

    def _pass_unchanged(self) -> bool:
        """Pass the next record of both files if it is the same; return whether it was passed."""
        found = self._old.unchanged(self._at_before, self._after, self._at)
        if found is None:
            return False
        self._add_unchanged(found, (self._at_before, self._at))
        self._at += found[0].length
        self._at_before += found[0].length
        return True

    def _add_unchanged(self, found: HashedRecord, places: tuple[int, int] | None = None) -> None:
        self._counts["records"] += 1
        self._counts["unchanged"] += 1
        self._writer.add(found, found, places=places)

    def _compare_record(self, found: HashedRecord) -> None:
        record = found[0]
        partner = self._find_partner(record)
        if partner is None:
            self._writer.add(None, found)
            return
        before = partner[0]
        self._at_before = before.offset + before.length
        self._take(partner, found, change_of(before, record, is_gzip=self._after.is_gzip_at(record.offset)))

    def _find_partner(self, record: StoredRecord) -> HashedRecord | None:
        """The record before that matches the next record after; reports the records before it that are missing."""
        while (expected := self._next_before(needs_body=record.type != "revisit")) is not None:
            key, was = key_of(record), key_of(expected[0])
            if key.is_of(was):
                return expected
            if any(key.is_of(other) for other in self._ahead_before.from_(was.offset)):
                self._pass_missing(expected)
                continue
            if any(was.is_of(other) for other in self._ahead.from_(key.offset)):
                reason = f"there is no such {key.type} record at this place before"
                self._report("added", None, key.offset, reason)
                return None
            if key.looks_like(was):
                return expected
            reason = f"a different record, of type {key.type}, is in its place"
            self._report("changed", was.offset, key.offset, reason)
            self._pass_before(expected)
            return None
        self._report("added", None, record.offset, f"there is no such {record.type} record before")
        return None

    def _next_before(self, *, needs_body: bool) -> HashedRecord | None:
        """The next record of the file before; reports bytes before it, which have no counterpart after."""
        while (found := self._old.record_at(self._at_before, needs_body=needs_body)) is None:
            if self._at_before >= self._before.size_bytes:
                return None
            if count := self._pass_gap_before():
                self._report("bytes", self._at_before - count, self._at, f"{count} bytes are missing")
        return found

    def _pass_missing(self, found: HashedRecord) -> None:
        key = key_of(found[0])
        subject = f"the {key.type} record {key.id or key.uri or ''}".rstrip()
        reason = f"{subject} is no longer in its place"
        self._findings.add("missing", place_of(self._before, key.offset), str(self._after), reason)
        self._pass_before(found)

    def _pass_before(self, found: HashedRecord) -> None:
        self._writer.add(found, None)
        self._at_before = found[0].offset + found[0].length

    def _report(self, kind: str, before: int | None, after: int, reason: str) -> None:
        was = None if before is None else place_of(self._before, before)
        self._findings.add(kind, was, place_of(self._after, after), reason)

    def _pass_damage(self, damage: Damage) -> None:
        self._compare_bytes(damage.offset)
        if self._old.has_bytes(self._at_before, damage.length, self._after, damage.offset):
            self._faults.add_damage(damage)
            self._at_before += damage.length
        else:
            reason = f"a damaged place that differs from before ({damage.reason})"
            self._report("bytes", self._at_before, damage.offset, reason)
        self._at = damage.offset + damage.length

    def _compare_bytes(self, end: int) -> None:
        """Compare bytes between records, up to *end*."""
        if self._at >= end:
            return
        start = min(_without_zeros(self._after, self._at), end)
        self._at = end
        self._at_before = _without_zeros(self._before, self._at_before)
        if start == end:
            return
        if self._old.has_bytes(self._at_before, end - start, self._after, start):
            self._at_before += end - start
        else:
            self._report("bytes", self._at_before, start, f"{end - start} bytes between records differ")
            self._pass_gap_before()

    def _pass_gap_before(self) -> int:
        """Pass bytes of the file before that are not a record; return their number without leading NUL bytes."""
        start = end = self._at_before = _without_zeros(self._before, self._at_before)
        if self._old.record_at(start) is None:
            rest = hashed_records(self._before, algorithms_of, on_damage=lambda _: None, start=start)
            end = self._before.size_bytes
            for found in rest:
                if found[0].length:
                    end = found[0].offset
                    break
                self._writer.add(found, None)
            self._at_before = end
        return end - start

    def _compare_conversion(self) -> None:
        """Compare an ARC file with the WARC file that it was converted to."""

        def records(window: WindowedFile) -> Iterator[HashedRecord]:
            read = hashed_records(window, algorithms_of, on_damage=self._faults.add_damage)
            return (found for found in read if found[0].type not in _OF_A_FILE)

        for before, after in zip_longest(records(self._before), records(self._after)):
            self._counts["records"] += after is not None
            if before is None:
                key = key_of(after[0])
                self._report("added", None, key.offset, f"there is no such {key.type} record before")
                self._writer.add(None, after)
            elif after is None:
                self._pass_missing(before)
            else:
                is_gzip = self._after.is_gzip_at(after[0].offset)
                self._take(before, after, conversion_of(before[0], after[0], is_gzip=is_gzip))

    def _take(self, before: HashedRecord, after: HashedRecord, change: Change) -> None:
        """Count and report a change, and add its evidence."""
        if change.counter is not None:
            self._counts[change.counter] += 1
        for fault in change.faults:
            self._report(change.kind, before[0].offset, after[0].offset, fault)
        if change.change is None:
            self._writer.add(before, None)
            self._writer.add(None, after)
        else:
            self._writer.add(before, after, change.change)


def _without_zeros(file: WindowedFile, offset: int) -> int:
    """The offset of the next byte that is not NUL: some writers fill up blocks with NUL bytes."""
    # Usually there are none; avoid reading a whole piece to find out.
    if file.read(offset, 1) != b"\0":
        return offset
    while piece := file.read(offset, _PIECE):
        stripped = len(piece) - len(piece.lstrip(b"\0"))
        offset += stripped
        if stripped < len(piece):
            break
    return offset
