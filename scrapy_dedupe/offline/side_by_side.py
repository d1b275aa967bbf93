"""Compare a file before and after: which records are the same, and which changed in an allowed way.

Each file is read once (`windows`). The file after is read record by record. If the stored bytes of a record are also the
next bytes of the file before, the record is the same, and the file before is not decompressed for it. If the bytes differ,
the record before is read too, and both are compared (`record_changes`). Bytes between records, damaged places and members
of several records are compared as bytes.

If two records do not match, the next 256 records of both files are searched for a match, so that a removed or added record
is reported as such and the comparison can continue. If this fails, one difference is reported for the rest of the file, and
only its payloads are read. Only such searches, and records of more than 2 MB that changed, read bytes again.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.offline.evidence import (
    AFTER,
    BEFORE,
    BOTH,
    PAYLOAD_TYPES,
    UNCHANGED,
    EvidenceWriter,
    algorithms_of,
)
from scrapy_dedupe.offline.findings import Difference, Findings
from scrapy_dedupe.offline.old_files import OldFile, stored_hash
from scrapy_dedupe.offline.record_changes import ChangeReader
from scrapy_dedupe.offline.record_keys import KeysAhead, key_of
from scrapy_dedupe.offline.windows import WindowedFile
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.warc.bodies import hashed_records
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_dedupe.offline.old_files import OldRecord
    from scrapy_dedupe.offline.record_keys import HashedRecord, RecordKey
    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE = 1 << 20
_FIRST_BYTES = 1 << 11
_MOST_SEARCHES = 500
_CONCURRENT_TO, _REFERS_TO = "WARC-Concurrent-To", "WARC-Refers-To"
# arc2warc writes new records of these types, which are not part of the converted data.
_OF_A_FILE = ("warcinfo", "metadata", "request")


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
    """The result of a comparison. ``counts`` counts records by kind of change; ``size_bytes`` is the size of both files."""

    counts: dict[str, int] = field(default_factory=dict)
    findings_count: int = 0
    findings: tuple[Difference, ...] = ()
    faults_count: int = 0
    faults: tuple[Fault, ...] = ()
    size_bytes: int = 0


def compare(task: PairComparison) -> Compared:
    """Compare a pair of files. Raises DamagedInput for damage that both have, unless the task is set to keep going."""
    writer = EvidenceWriter(task.evidence, task.number)
    try:
        walk = _Walk(task, writer)
        if task.is_original:
            for file in task.files:
                walk.index(file, BOTH)
        elif task.before is not None and task.after is not None:
            walk.compare(task.before, task.after, task.facts)
        elif task.after is not None:
            walk.index(task.after, AFTER)
        elif task.before is not None:
            walk.index(task.before, BEFORE)
    finally:
        writer.close()
    return Compared(
        walk.counts, walk.findings.count, tuple(walk.findings.first), walk.faults.count, tuple(walk.faults.first),
        walk.size_bytes,
    )  # fmt: skip


def place_of(file: ReadableFile, offset: int) -> str:
    """The text for a place in messages."""
    return f"{file}, offset {offset}"


class _Walk:
    def __init__(self, task: PairComparison, writer: EvidenceWriter) -> None:
        self.counts: dict[str, int] = {}
        self.findings = Findings()
        self.faults = Faults(keep_going=task.keep_going)
        self.size_bytes = 0
        self._writer = writer
        self._changes = ChangeReader(writer, self.findings, self.counts)
        self._searches = 0
        self._is_lost = self._is_one_file = False
        self._at = self._at_before = 0  # the ends of the compared ranges
        self._compared_to = 0  # the end of the bytes after `_at` that `_compare_forgotten` has compared
        self._differs = False  # whether it found a difference
        self._hasher = stored_hash()  # of the same bytes, if there are facts to compare with

    def index(self, file: ReadableFile, side: int) -> None:
        """Read the payloads of a file that has no matching file."""
        for record, digests in hashed_records(file, algorithms_of, on_damage=self.faults.add_damage):
            if side == AFTER:
                self._count("records")
            if side != BOTH:
                self._add_evidence(record, side, None, digests)
            elif record.type in PAYLOAD_TYPES:
                self._writer.add_capture(record, side, digests)
        self.size_bytes += _size(file)

    def compare(self, before: ReadableFile, after: ReadableFile, facts: Iterable[OldRecord] | None) -> None:
        """Compare both files."""
        self._is_one_file = before == after
        with ExitStack() as stack:
            self._old = stack.enter_context(OldFile(before, facts))
            self._before = self._old.window
            self._after = stack.enter_context(WindowedFile(after, on_forget=self._compare_forgotten))
            self.size_bytes += self._before.size_bytes + self._after.size_bytes
            if not self._before.size_bytes and not self._after.size_bytes:
                self.faults.add(str(after), "the file is empty")
                return
            self._ahead_before, self._ahead_after = KeysAhead(before), KeysAhead(after)
            self._changes.open(self._before, self._after)
            if _is_arc(self._before) and not _is_arc(self._after):
                self._compare_conversion()
                return
            is_gzip = self._after.is_gzip_at(0)
            if is_gzip != self._before.is_gzip_at(0) and self._before.size_bytes and self._after.size_bytes:
                reason = "it is compressed, but was not" if is_gzip else "it is no longer compressed"
                self.findings.add("file", str(before), str(after), reason)
            self._compare_records()
            self._compare_rest()

    def _compare_records(self) -> None:
        damages: list[Damage] = []
        for record, digests in hashed_records(self._after, algorithms_of, on_damage=damages.append):
            self._pass_damages(damages)
            self._count("records")
            if not record.length:
                # It shares a gzip member, whose bytes are compared with the bytes between records.
                self._count("unchanged")
                self._add_evidence(record, AFTER if self._is_lost else BOTH, record.offset, digests)
                continue
            self._compare_bytes(record.offset)
            self._compare_record(record, digests)
            self._at = record.offset + record.length
            self._differs = False
        self._pass_damages(damages)
        self._compare_bytes(self._after.size_bytes)

    def _compare_record(self, record: StoredRecord, digests: Sequence[BodyDigest]) -> None:
        if self._is_lost:
            self._add_evidence(record, AFTER, None, digests)
            return
        if self._is_same(record.offset, record.length):
            self._count("unchanged")
            self._add_evidence(record, BOTH, self._at_before, digests)
            self._at_before += record.length
            return
        key = key_of(record)
        partner = self._record_before(is_now_revisit=record.type == "revisit")
        if partner is None or not key.is_of(key_of(partner[0])):
            partner = self._find_partner(key, partner)
        if partner is None:
            self._add_evidence(record, AFTER, None, digests)
            return
        before, digests_before = partner
        self._at_before = before.offset + before.length
        if self._changes.read(before, record, digests_before, digests):
            return
        self._add_evidence(before, BEFORE, None, digests_before)
        self._add_evidence(record, AFTER, None, digests)

    def _find_partner(self, key: RecordKey, expected: HashedRecord | None) -> HashedRecord | None:
        """Search the record before that matches a record after, and report the records between; *expected* is the next."""
        self._searches += 1
        if expected is None and self._at_before >= self._before.size_bytes:
            self._report("added", None, key.offset, f"there is no such {key.type} record before")
            return None
        if expected is None or self._searches > _MOST_SEARCHES:
            self._lose(key.offset)
            return None
        record, digests = expected
        ahead = list(self._ahead_before.at(record.offset))
        if any(key.is_of(other) for other in ahead):
            while not key.is_of(key_of(record)):
                self._add_evidence(record, BEFORE, None, digests)
                self._report_missing(key_of(record))
                following = self._old.record_at(
                    record.offset + record.length, is_now_revisit=key.type == "revisit"
                )
                assert following is not None
                record, digests = following
            return record, digests
        partner = key_of(record)
        if any(partner.is_of(other) for other in self._ahead_after.at(key.offset)):
            self._report(
                "added", None, key.offset, f"there is no such {key.type} record at this place before"
            )
            return None
        if key.looks_like(partner):
            return expected
        reason = f"a different record, of type {key.type}, is in its place"
        self._report("changed", partner.offset, key.offset, reason)
        self._add_evidence(record, BEFORE, None, digests)
        self._at_before = record.offset + record.length
        return None

    def _report_missing(self, key: RecordKey) -> None:
        subject = f"the {key.type} record {key.id or key.uri or ''}".rstrip()
        self.findings.add(
            "missing",
            place_of(self._before, key.offset),
            str(self._after),
            f"{subject} is no longer in its place",
        )

    def _report(self, kind: str, before: int | None, after: int, reason: str) -> None:
        was = None if before is None else place_of(self._before, before)
        self.findings.add(kind, was, place_of(self._after, after), reason)

    def _lose(self, offset: int) -> None:
        self._report("changed", self._at_before, offset, "the files differ from here on")
        self._is_lost = True

    def _record_before(self, *, is_now_revisit: bool = False) -> HashedRecord | None:
        """The next record of the file before, if it can be compared."""
        if self._old.facts_at(self._at_before) is None:
            self._at_before = _without_zeros(self._before, self._at_before)
        return self._old.record_at(self._at_before, is_now_revisit=is_now_revisit)

    def _pass_damages(self, damages: list[Damage]) -> None:
        for damage in damages:
            self._compare_bytes(damage.offset)
            if not self._is_lost:
                if self._is_same(damage.offset, damage.length):
                    self.faults.add_damage(damage)
                    self._at_before += damage.length
                else:
                    reason = f"a damaged place that differs from before ({damage.reason})"
                    self._report("bytes", self._at_before, damage.offset, reason)
            self._at = damage.offset + damage.length
            self._differs = False
        damages.clear()

    def _compare_bytes(self, end: int) -> None:
        """Compare bytes between records, up to *end*."""
        start = self._at
        if start >= end or self._is_lost:
            return
        if self._is_same(start, end - start):
            self._at_before += end - start
        elif _without_zeros(self._after, start) < end:
            self._report("bytes", self._at_before, start, f"{end - start} bytes between records differ")
        self._at = end

    def _compare_rest(self) -> None:
        """Report the records and bytes of the file before that are missing at the end of the file after."""
        size = self._before.size_bytes
        if self._is_lost:
            self._index_rest()
            return
        while (found := self._record_before()) is not None:
            record, digests = found
            self._report_missing(key_of(record))
            self._add_evidence(record, BEFORE, None, digests)
            self._at_before = record.offset + record.length
        if self._at_before < size:
            reason = f"{size - self._at_before} bytes are missing"
            self._report("bytes", self._at_before, self._after.size_bytes, reason)

    def _index_rest(self) -> None:
        rest = hashed_records(
            self._before, algorithms_of, on_damage=lambda damage: None, start=self._at_before
        )
        for record, digests in rest:
            self._add_evidence(record, BEFORE, None, digests)

    def _is_same(self, offset: int, length: int) -> bool:
        """Whether bytes of the file after are the next bytes of the file before."""
        if self._is_one_file:
            return True
        if (facts := self._old.facts_at(self._at_before)) is not None:
            return length == facts.length and self._stored_digest(offset, offset + length) == facts.stored
        if self._differs:
            return False
        end, at_before = offset + length, self._at_before
        if offset < self._compared_to < end:
            at_before += self._compared_to - offset
            offset = self._compared_to
        # Different records usually differ in the first bytes, so compare few bytes first.
        size = _FIRST_BYTES
        while offset < end:
            piece = self._after.read(offset, min(end - offset, size))
            if not piece or piece != self._before.read(at_before, len(piece)):
                return False
            offset += len(piece)
            at_before += len(piece)
            size = _PIECE
        return True

    def _stored_digest(self, offset: int, end: int) -> bytes:
        hasher = stored_hash()
        if offset == self._at < self._compared_to < end:
            hasher, offset = self._hasher, self._compared_to
        while offset < end and (piece := self._after.read(offset, min(end - offset, _PIECE))):
            hasher.update(piece)
            offset += len(piece)
        return hasher.digest()

    def _compare_forgotten(self, offset: int, data: bytes) -> None:
        """Compare or hash bytes of a long record before they leave the window on the file after."""
        begin = max(self._at, self._compared_to)
        if begin >= offset + len(data) or self._is_lost or self._is_one_file:
            return
        data = data[max(0, begin - offset) :]
        if self._old.facts_at(self._at_before) is not None:
            if begin == self._at:
                self._hasher = stored_hash()
            self._hasher.update(data)
        elif not self._differs:
            self._differs = data != self._before.read(self._at_before + begin - self._at, len(data))
        self._compared_to = begin + len(data)

    def _compare_conversion(self) -> None:
        """Compare an ARC file with the WARC file that it was converted to."""

        def records(window: WindowedFile) -> Iterator[StoredRecord]:
            read = read_records(window, on_damage=self.faults.add_damage)
            return (record for record in read if record.type not in _OF_A_FILE)

        for before, after in zip_longest(records(self._before), records(self._after)):
            if before is None:
                self._count("records")
                self._report("added", None, after.offset, f"there is no such {after.type} record before")
                self._add_evidence(after, AFTER, None)
            elif after is None:
                self._report_missing(key_of(before))
                self._add_evidence(before, BEFORE, None)
            else:
                self._count("records")
                if not self._changes.read_conversion(before, after):
                    self._add_evidence(before, BEFORE, None)
                    self._add_evidence(after, AFTER, None)

    def _add_evidence(
        self,
        record: StoredRecord,
        sides: int,
        before_offset: int | None,
        digests: Sequence[BodyDigest] = (),
    ) -> None:
        """Store the values of a record that did not change or has no match."""
        if record.type == "revisit":
            before = record if sides & BEFORE else None
            after = record if sides & AFTER else None
            self._writer.add_revisit(UNCHANGED, before, after, before_offset=before_offset)
        elif record.type in PAYLOAD_TYPES:
            self._writer.add_capture(record, sides, digests)
        else:
            self._writer.add_other(record)
        if sides == BEFORE:
            return
        for name in (_CONCURRENT_TO, _REFERS_TO):
            # Most records have none of them.
            if record.get(name) is not None and (name == _CONCURRENT_TO or record.type != "revisit"):
                for value in record.get_all(name):
                    self._writer.add_link(name, value, value, before_offset, record.offset)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


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


def _is_arc(file: ReadableFile) -> bool:
    for record in read_records(file, on_damage=lambda damage: None):
        return record.format == "arc"
    return False


def _size(file: ReadableFile) -> int:
    if isinstance(file, Path):
        return file.stat().st_size
    with file.open("rb") as raw:
        return raw.seek(0, 2)
