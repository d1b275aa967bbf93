"""Compare a file before and after: which records are the same, and which changed in an allowed way.

The file after is read record by record. If the stored bytes of a record are also the next bytes of the file before, the
record is the same, and the file before is not decompressed for it. If the bytes differ, the record before is read too, and
both are compared (`record_changes`). Bytes between records, damaged places and members of several records are compared
as bytes.

If two records do not match, the next 256 records of both files are searched for a match, so that a removed or added record
is reported as such and the comparison can continue. If this fails, one difference is reported for the rest of the file, and
only its payloads are read.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.offline.changes import is_gzip_at
from scrapy_dedupe.offline.evidence import AFTER, BEFORE, BOTH, UNCHANGED, EvidenceWriter, stored_digest
from scrapy_dedupe.offline.findings import Difference, Findings
from scrapy_dedupe.offline.record_changes import ChangeReader
from scrapy_dedupe.offline.record_keys import KeysAhead, RecordsInOrder, key_of
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.warc.bodies import hashed_records, payload_digest
from scrapy_dedupe.warc.reading import read_record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader

    from scrapy_dedupe.offline.record_keys import RecordKey
    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE = 1 << 20
_FIRST_BYTES = 1 << 11
_MOST_SEARCHES = 500
_PAYLOAD_TYPES = ("response", "resource")
_CONCURRENT_TO, _REFERS_TO = "warc-concurrent-to", "warc-refers-to"
_LINKS = {_CONCURRENT_TO: "WARC-Concurrent-To", _REFERS_TO: "WARC-Refers-To"}
# arc2warc writes new records of these types, which are not part of the converted data.
_OF_A_FILE = ("warcinfo", "metadata", "request")


@dataclass(frozen=True, slots=True)
class PairComparison:
    """The task of one process: the files of pair *number*, one of which may be None, and the file for the evidence.

    ``is_original``: both are the same file, which belongs to neither archive and is only read for its payloads.
    """

    number: int
    before: ReadableFile | None
    after: ReadableFile | None
    evidence: Path
    is_original: bool
    keep_going: bool

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
            walk.compare(task.before, task.after)
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
        self._is_lost = False

    def index(self, file: ReadableFile, side: int) -> None:
        """Read the payloads of a file that has no matching file."""
        for record, digests in hashed_records(file, _algorithms, on_damage=self.faults.add_damage):
            if side == AFTER:
                self._count("records")
            if side != BOTH:
                self._add_evidence(record, side, None, digests)
            elif record.type in _PAYLOAD_TYPES:
                self._add_payload(record, side, digests)
        self.size_bytes += _size(file)

    def compare(self, before: ReadableFile, after: ReadableFile) -> None:
        """Compare both files."""
        self._before, self._after = before, after
        self._records_before = RecordsInOrder(before)
        self._ahead_before, self._ahead_after = KeysAhead(before), KeysAhead(after)
        self.size_bytes += _size(before) + _size(after)
        if not _size(before) and not _size(after):
            self.faults.add(str(after), "the file is empty")
            return
        with ExitStack() as stack:
            self._raw_before: BufferedReader = stack.enter_context(before.open("rb"))
            self._raw_after: BufferedReader = stack.enter_context(after.open("rb"))
            self._changes.open(self._raw_before, self._raw_after)
            if _is_arc(before) and not _is_arc(after):
                self._compare_conversion()
                return
            is_gzip = is_gzip_at(self._raw_after, 0)
            if is_gzip != is_gzip_at(self._raw_before, 0) and _size(before) and _size(after):
                self.findings.add(
                    "file", str(before), str(after),
                    "it is compressed, but was not" if is_gzip else "it is no longer compressed",
                )  # fmt: skip
            self._at_before = 0
            self._compare_records()
            self._compare_rest()

    def _compare_records(self) -> None:
        damages: list[Damage] = []
        at = 0
        for record, digests in hashed_records(self._after, _algorithms, on_damage=damages.append):
            at = self._pass_damages(at, damages)
            self._count("records")
            if not record.length:
                # It shares a gzip member, whose bytes are compared with the bytes between records.
                self._count("unchanged")
                self._add_evidence(record, AFTER if self._is_lost else BOTH, record.offset, digests)
                continue
            self._compare_bytes(at, record.offset)
            self._compare_record(record, digests)
            at = record.offset + record.length
        at = self._pass_damages(at, damages)
        self._compare_bytes(at, _size(self._after))

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
        partner = self._record_before()
        if partner is None or not key.is_of(key_of(partner)):
            partner = self._find_partner(key, partner)
        if partner is None:
            self._add_evidence(record, AFTER, None, digests)
            return
        self._at_before = partner.offset + partner.length
        if self._changes.read(partner, record, _raw(digests, 0)):
            return
        self._add_evidence(partner, BEFORE, None)
        self._add_evidence(record, AFTER, None, digests)

    def _find_partner(self, key: RecordKey, expected: StoredRecord | None) -> StoredRecord | None:
        """Search the record before that matches a record after, and report the records between; *expected* is the next."""
        self._searches += 1
        where = place_of(self._after, key.offset)
        if expected is None and self._at_before >= _size(self._before):
            self.findings.add("added", None, where, f"there is no such {key.type} record before")
            return None
        if expected is None or self._searches > _MOST_SEARCHES:
            self._lose(key.offset)
            return None
        ahead = list(self._ahead_before.at(expected.offset))
        found = next((index for index, other in enumerate(ahead) if key.is_of(other)), None)
        if found is not None:
            for other in ahead[:found]:
                missing = read_record(self._before, other.offset)
                self._add_evidence(missing, BEFORE, None)
                self._report_missing(other)
            return read_record(self._before, ahead[found].offset)
        partner = key_of(expected)
        if any(partner.is_of(other) for other in self._ahead_after.at(key.offset)):
            self.findings.add(
                "added", None, where, f"there is no such {key.type} record at this place before"
            )
            return None
        if key.looks_like(partner):
            return expected
        self.findings.add(
            "changed",
            place_of(self._before, partner.offset),
            where,
            f"a different record, of type {key.type}, is in its place",
        )
        self._add_evidence(expected, BEFORE, None)
        self._at_before = expected.offset + expected.length
        return None

    def _report_missing(self, key: RecordKey) -> None:
        subject = f"the {key.type} record {key.id or key.uri or ''}".rstrip()
        self.findings.add(
            "missing",
            place_of(self._before, key.offset),
            str(self._after),
            f"{subject} is no longer in its place",
        )

    def _lose(self, offset: int) -> None:
        self.findings.add(
            "changed", place_of(self._before, self._at_before), place_of(self._after, offset),
            "the files differ from here on",
        )  # fmt: skip
        self._is_lost = True

    def _record_before(self) -> StoredRecord | None:
        """The next record of the file before, if it can be compared."""
        self._at_before = _without_zeros(self._raw_before, self._at_before)
        return self._records_before.at(self._at_before)

    def _pass_damages(self, at: int, damages: list[Damage]) -> int:
        for damage in damages:
            self._compare_bytes(at, damage.offset)
            at = damage.offset + damage.length
            if self._is_lost:
                continue
            if self._is_same(damage.offset, damage.length):
                self.faults.add_damage(damage)
                self._at_before += damage.length
            else:
                self.findings.add(
                    "bytes", place_of(self._before, self._at_before), place_of(self._after, damage.offset),
                    f"a damaged place that differs from before ({damage.reason})",
                )  # fmt: skip
        damages.clear()
        return at

    def _compare_bytes(self, start: int, end: int) -> None:
        """Compare bytes between records."""
        if start >= end or self._is_lost:
            return
        if self._is_same(start, end - start):
            self._at_before += end - start
        elif _without_zeros(self._raw_after, start) < end:
            self.findings.add(
                "bytes", place_of(self._before, self._at_before), place_of(self._after, start),
                f"{end - start} bytes between records differ",
            )  # fmt: skip

    def _compare_rest(self) -> None:
        """Report the records and bytes of the file before that are missing at the end of the file after."""
        size = _size(self._before)
        if self._is_lost:
            self._index_rest()
            return
        while (record := self._record_before()) is not None:
            self._report_missing(key_of(record))
            self._add_evidence(record, BEFORE, None)
            self._at_before = record.offset + record.length
        if self._at_before < size:
            self.findings.add(
                "bytes", place_of(self._before, self._at_before), place_of(self._after, _size(self._after)),
                f"{size - self._at_before} bytes are missing",
            )  # fmt: skip

    def _index_rest(self) -> None:
        for record in read_records(self._before, on_damage=lambda damage: None):
            if record.offset >= self._at_before:
                self._add_evidence(record, BEFORE, None)

    def _is_same(self, offset: int, length: int) -> bool:
        """Whether bytes of the file after are the next bytes of the file before."""
        before, after = self._raw_before, self._raw_after
        before.seek(self._at_before)
        after.seek(offset)
        # Different records usually differ in the first bytes, so read few bytes first.
        size = _FIRST_BYTES
        while length:
            piece = after.read(min(length, size))
            if not piece or piece != before.read(len(piece)):
                return False
            length -= len(piece)
            size = _PIECE
        return True

    def _compare_conversion(self) -> None:
        """Compare an ARC file with the WARC file that it was converted to."""

        def records(file: ReadableFile) -> Iterator[StoredRecord]:
            read = read_records(file, on_damage=self.faults.add_damage)
            return (record for record in read if record.type not in _OF_A_FILE)

        for before, after in zip_longest(records(self._before), records(self._after)):
            if before is None:
                self._count("records")
                self.findings.add(
                    "added",
                    None,
                    place_of(self._after, after.offset),
                    f"there is no such {after.type} record before",
                )
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
        elif record.type in _PAYLOAD_TYPES:
            self._add_payload(record, sides, digests)
        else:
            self._writer.add_other(record)
        if sides == BEFORE:
            return
        for name, value in record.headers:
            lower = name.lower()
            if lower == _CONCURRENT_TO or (lower == _REFERS_TO and record.type != "revisit"):
                self._writer.add_link(_LINKS[lower], value, value, before_offset, record.offset)

    def _add_payload(self, record: StoredRecord, sides: int, digests: Sequence[BodyDigest]) -> None:
        sha = _raw(digests, 0) or bytes.fromhex(payload_digest(record).hex)
        self._writer.add_capture(record, sha, sides, sha1=_raw(digests, 1))

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def _algorithms(record: StoredRecord) -> tuple[str, ...]:
    if record.type not in _PAYLOAD_TYPES:
        return ()
    # Replay programs compute a SHA-1 if no digest is stored.
    return ("sha256",) if stored_digest(record) else ("sha256", "sha1")


def _raw(digests: Sequence[BodyDigest], index: int) -> bytes | None:
    return bytes.fromhex(digests[index].hex) if index < len(digests) else None


def _without_zeros(raw: BufferedReader, offset: int) -> int:
    """The offset of the next byte that is not NUL: some writers fill up blocks with NUL bytes."""
    raw.seek(offset)
    # Usually there are none; avoid reading a whole piece to find out.
    if raw.peek(1)[:1] != b"\0":
        return offset
    while piece := raw.read(_PIECE):
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
