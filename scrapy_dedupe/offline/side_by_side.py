"""Compare a file before and after: which records are the same, and which changed in an allowed way.

The file after is read record by record (`windows`). If the stored bytes of a record are also the next bytes of the file
before, the record is the same, and the file before is not decompressed for it. If the bytes differ, the record before is
read too, and both are compared (`record_changes`). Bytes between records, damaged places and members of several records are
compared as bytes. With facts about the file before (`old_files`), an unchanged record is recognized by the digest of its
bytes, mostly without decompressing it.

If two records do not match, the next 256 records of both files are searched for a match, so that a removed or added record
is reported as such and the comparison can continue. If this fails, one difference is reported for the rest of the file, and
only its payloads are read. Such searches read bytes again, and so does the comparison of records of more than 2 MB.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.offline.evidence import (
    AFTER,
    BEFORE,
    BOTH,
    PAYLOAD_TYPES,
    UNCHANGED,
    EvidenceWriter,
    Findings,
    algorithms_of,
)
from scrapy_dedupe.offline.old_files import (
    OldFile,
    record_in,
    records_from,
    stored_digest,
    usual_record,
)
from scrapy_dedupe.offline.record_changes import ChangeReader
from scrapy_dedupe.offline.windows import WindowedFile
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.bodies import hashed_records
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_dedupe.offline.old_files import HashedRecord, OldRecord
    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.framing import Damage, Layouts
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE: Final = 1 << 20
_FIRST_BYTES: Final = 1 << 11
_MOST_SEARCHES: Final = 500
_AHEAD: Final = 256
# Of 256 unchanged payloads.
_HASHED_AGAIN: Final = 16
_CONCURRENT_TO, _REFERS_TO = "WARC-Concurrent-To", "WARC-Refers-To"
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
    former_id = _former_id(record)
    return RecordKey(record.type, record.id, former_id, record.target_uri, record.date, record.offset)


def _former_id(record: StoredRecord) -> str | None:
    return record.get("Former-WARC-Record-ID")


def keys_from(file: ReadableFile, offset: int) -> Iterator[RecordKey]:
    """The keys of the records from *offset*, at most 256, up to the next place that is not a record."""
    return (key_of(record) for record, _ in islice(records_from(file, offset), _AHEAD))


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
    writer = EvidenceWriter(task.evidence, task.number)
    found = Compared(faults=Faults(keep_going=task.keep_going))
    try:
        walk = _Walk(found, writer)
        if task.is_original:
            for file in task.files:
                walk.index(file, BOTH)
        elif task.before is not None and task.after is not None:
            walk.compare(task.before, task.after, task.facts)
        elif task.after is not None:
            found.findings.add("file", None, str(task.after), "there is no such file before")
            walk.index(task.after, AFTER)
        elif task.before is not None:
            found.findings.add("file", str(task.before), None, "there is no such file after")
            walk.index(task.before, BEFORE)
    finally:
        writer.close()
    return found


def place_of(file: ReadableFile, offset: int) -> str:
    """The text for a place in messages."""
    return f"{file}, offset {offset}"


class _Walk:
    def __init__(self, found: Compared, writer: EvidenceWriter) -> None:
        self._found = found
        self._counts = found.counts
        self._findings = found.findings
        self._faults = found.faults
        self._writer = writer
        self._searches = 0
        self._layouts: Layouts = {}
        self._is_lost = self._is_one_file = False
        self._at = self._at_before = 0  # the ends of the compared ranges

    def index(self, file: ReadableFile, side: int) -> None:
        """Read the payloads of a file that has no matching file."""
        for record, digests in hashed_records(file, algorithms_of, on_damage=self._faults.add_damage):
            if side == AFTER:
                self._counts["records"] += 1
            if side != BOTH:
                self._add_evidence(record, side, None, digests)
            elif record.type in PAYLOAD_TYPES:
                self._writer.add_capture(record, side, digests)
        self._found.size_bytes += _size(file)

    def compare(self, before: ReadableFile, after: ReadableFile, facts: Iterable[OldRecord] | None) -> None:
        """Compare both files."""
        self._is_one_file = before == after
        with OldFile(before, facts) as self._old, WindowedFile(after) as self._after:
            self._before = self._old.window
            self._found.size_bytes += self._before.size_bytes + self._after.size_bytes
            if not self._before.size_bytes and not self._after.size_bytes:
                self._faults.add(str(after), "the file is empty")
                return
            self._changes = ChangeReader(
                self._writer, self._findings, self._counts, self._before, self._after
            )
            if _is_arc(self._before) and not _is_arc(self._after):
                self._compare_conversion()
                return
            is_gzip = self._after.is_gzip_at(0)
            if is_gzip != self._before.is_gzip_at(0) and self._before.size_bytes and self._after.size_bytes:
                reason = "it is compressed, but was not" if is_gzip else "it is no longer compressed"
                self._findings.add("file", str(before), str(after), reason)
            self._compare_records()
            self._compare_rest()

    def _compare_records(self) -> None:
        damages: list[Damage] = []
        reader: Iterator[HashedRecord] | None = None
        while True:
            found = None
            if self._old.has_facts and not self._is_lost:
                if self._pass_unchanged():
                    reader = None
                    continue
                # Also the shortest way to read the records between two unchanged ones.
                found = usual_record(self._after, self._at, None, self._layouts)
            if found is not None:
                reader = None
            else:
                if reader is None:
                    reader = hashed_records(
                        self._after, algorithms_of, on_damage=damages.append, start=self._at
                    )
                found = next(reader, None)
            self._pass_damages(damages)
            if found is None:
                break
            record, digests = found
            self._counts["records"] += 1
            if not record.length:
                # It shares a gzip member, whose bytes are compared with the bytes between records.
                self._counts["unchanged"] += 1
                self._add_evidence(record, AFTER if self._is_lost else BOTH, record.offset, digests)
                continue
            self._compare_bytes(record.offset)
            self._compare_record(record, digests)
            self._at = record.offset + record.length
        self._compare_bytes(self._after.size_bytes)

    def _pass_unchanged(self) -> bool:
        """Pass the next record if it has the digest in the facts and can be known from them; return whether it was."""
        at, facts = self._at, self._old.facts_at(self._at_before)
        if facts is None:
            return False
        # This rules out most of the changed records without computing a digest.
        following = self._after.read(at, min(facts.length + len(GZIP_MAGIC), _PIECE))[facts.length :]
        if following not in (GZIP_MAGIC, b"WAR", b""):
            return False
        if stored_digest(self._after, at, facts.length) != facts.stored:
            return False
        found = None
        # A share of the payloads is hashed again, so that wrong facts are noticed.
        if facts.payload_sha256 is None or facts.stored[0] >= _HASHED_AGAIN:
            found = self._old.known(facts, self._after, at, needs_body=False)
        found = found or record_in(self._after, at, facts.length, self._layouts)
        if found is None:
            return False
        self._counts["records"] += 1
        self._counts["unchanged"] += 1
        self._add_evidence(found[0], BOTH, self._at_before, found[1])
        self._at += facts.length
        self._at_before += facts.length
        return True

    def _compare_record(self, record: StoredRecord, digests: Sequence[BodyDigest]) -> None:
        if self._is_lost:
            self._add_evidence(record, AFTER, None, digests)
            return
        if self._is_same(record.offset, record.length):
            self._counts["unchanged"] += 1
            self._add_evidence(record, BOTH, self._at_before, digests)
            self._at_before += record.length
            return
        partner = self._record_before(needs_body=record.type != "revisit")
        # Mostly the ids show that it is the same record.
        if partner is None or partner[0].id is None or partner[0].id not in (record.id, _former_id(record)):
            partner = self._find_partner(key_of(record), partner)
        if partner is None:
            self._add_evidence(record, AFTER, None, digests)
            return
        before, digests_before = partner
        self._at_before = before.offset + before.length
        if not self._changes.read(before, record, digests_before, digests):
            self._add_evidence(before, BEFORE, None, digests_before)
            self._add_evidence(record, AFTER, None, digests)

    def _find_partner(self, key: RecordKey, expected: HashedRecord | None) -> HashedRecord | None:
        """Search the record before that matches a record after, and report the records between; *expected* is the next."""
        if expected is not None and key.is_of(key_of(expected[0])):
            return expected
        self._searches += 1
        if expected is None and self._at_before >= self._before.size_bytes:
            self._report("added", None, key.offset, f"there is no such {key.type} record before")
            return None
        if expected is None or self._searches > _MOST_SEARCHES:
            self._report("changed", self._at_before, key.offset, "the files differ from here on")
            self._is_lost = True
            return None
        record, digests = expected
        if any(key.is_of(other) for other in keys_from(self._before, record.offset)):
            while not key.is_of(key_of(record)):
                self._add_evidence(record, BEFORE, None, digests)
                self._report_missing(key_of(record))
                following = self._old.record_at(
                    record.offset + record.length, needs_body=key.type != "revisit"
                )
                assert following is not None
                record, digests = following
            return record, digests
        partner = key_of(record)
        if any(partner.is_of(other) for other in keys_from(self._after, key.offset)):
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
        self._findings.add(
            "missing",
            place_of(self._before, key.offset),
            str(self._after),
            f"{subject} is no longer in its place",
        )

    def _report(self, kind: str, before: int | None, after: int, reason: str) -> None:
        was = None if before is None else place_of(self._before, before)
        self._findings.add(kind, was, place_of(self._after, after), reason)

    def _record_before(self, *, needs_body: bool = True) -> HashedRecord | None:
        """The next record of the file before, if it can be compared."""
        if self._old.facts_at(self._at_before) is None:
            self._at_before = _without_zeros(self._before, self._at_before)
        return self._old.record_at(self._at_before, needs_body=needs_body)

    def _pass_damages(self, damages: list[Damage]) -> None:
        for damage in damages:
            self._compare_bytes(damage.offset)
            if not self._is_lost:
                if self._is_same(damage.offset, damage.length):
                    self._faults.add_damage(damage)
                    self._at_before += damage.length
                else:
                    reason = f"a damaged place that differs from before ({damage.reason})"
                    self._report("bytes", self._at_before, damage.offset, reason)
            self._at = damage.offset + damage.length
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
        if self._is_lost:
            rest = hashed_records(
                self._before, algorithms_of, on_damage=lambda damage: None, start=self._at_before
            )
            for record, digests in rest:
                self._add_evidence(record, BEFORE, None, digests)
            return
        while (found := self._record_before()) is not None:
            self._report_missing(key_of(found[0]))
            self._add_evidence(found[0], BEFORE, None, found[1])
            self._at_before = found[0].offset + found[0].length
        if missing := max(0, self._before.size_bytes - self._at_before):
            self._report("bytes", self._at_before, self._after.size_bytes, f"{missing} bytes are missing")

    def _is_same(self, offset: int, length: int) -> bool:
        """Whether bytes of the file after are the next bytes of the file before."""
        if self._is_one_file:
            return True
        if (facts := self._old.facts_at(self._at_before)) is not None:
            return length == facts.length and stored_digest(self._after, offset, length) == facts.stored
        # Different records usually differ in the first bytes, so compare few bytes first.
        at, end, size = offset, offset + length, _FIRST_BYTES
        while at < end:
            piece = self._after.read(at, min(end - at, size))
            if not piece or piece != self._before.read(self._at_before + at - offset, len(piece)):
                return False
            at += len(piece)
            size = _PIECE
        return True

    def _compare_conversion(self) -> None:
        """Compare an ARC file with the WARC file that it was converted to."""

        def records(window: WindowedFile) -> Iterator[StoredRecord]:
            read = read_records(window, on_damage=self._faults.add_damage)
            return (record for record in read if record.type not in _OF_A_FILE)

        for before, after in zip_longest(records(self._before), records(self._after)):
            if before is None:
                self._counts["records"] += 1
                self._report("added", None, after.offset, f"there is no such {after.type} record before")
                self._add_evidence(after, AFTER, None)
            elif after is None:
                self._report_missing(key_of(before))
                self._add_evidence(before, BEFORE, None)
            else:
                self._counts["records"] += 1
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
        for name in (_CONCURRENT_TO, _REFERS_TO) if record.type != "revisit" else (_CONCURRENT_TO,):
            for value in record.get_all(name):
                self._writer.add_link(name, value, value, before_offset, record.offset)


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
