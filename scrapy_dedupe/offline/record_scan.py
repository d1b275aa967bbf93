"""Scan files for the originals and copies that the manifests list, before the plan is made.

Each copy and each original that has copies is read completely: it must be the record of its line and have the digest of
its line, since the payload of a copy is dropped. Other records are searched for requests with another method than GET,
and for references that could not be updated later.

The ids, URIs and dates of other responses and resources are stored too: a reference to one of them may have the same
values as a copy.

The scan of one file is one SQLite file with the tables `plan.SURVEYED`, table ``unlisted`` (id_key, file, uri, date_key)
for the other records, table ``fault`` (place, reason) and table ``faults`` with their number. It gets its name when it
is complete.
"""

from __future__ import annotations

import base64
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.plan import COPY, SINGLE, SURVEYED, PlannedLine, RewritePlan
from scrapy_dedupe.offline.planned_lines import file_name, name_bytes
from scrapy_dedupe.offline.record_ids import bare
from scrapy_dedupe.offline.record_ranges import START_BYTES, byte_ranges, exact_head, is_gzip_file
from scrapy_dedupe.offline.reference_changes import MENTION, date_key, digest_key
from scrapy_dedupe.offline.revisits import (
    RevisitTarget,
    as_revisit,
    can_change_references,
    could_be_undone,
    could_be_written,
    is_as_written,
    record_bytes,
)
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.bodies import payload_digest
from scrapy_dedupe.warc.files import gzip_member
from scrapy_dedupe.warc.raw_heads import RawHead, raw_head, stored_uri
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import can_be_referred_to
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.record_ranges import ByteRange
    from scrapy_dedupe.warc.reading import StoredRecord

_CAPTURE: Final = re.compile(rb"\nWARC-Type:[ \t]*(?:response|resource)[ \t]*\r", re.IGNORECASE)
_REVISIT: Final = re.compile(rb"\nWARC-Type:[ \t]*revisit[ \t]*\r", re.IGNORECASE)
_REFERRED_URI: Final = re.compile(rb"\nWARC-Refers-To-Target-URI:[ \t]*([^\r\n]*)", re.IGNORECASE)
_DATE: Final = re.compile(rb"\nWARC-Date:[ \t]*([^\r\n]*)", re.IGNORECASE)
_OWN_URI: Final = re.compile(rb"\nWARC-Target-URI:[ \t]*([^\r\n]*)", re.IGNORECASE)
_REQUEST: Final = re.compile(rb"\nWARC-Type:[ \t]*request[ \t]*\r", re.IGNORECASE)
_NAMES: Final = re.compile(rb"\nWARC-(?:Concurrent|Refers)-To:[ \t]*([^\r\n]*)", re.IGNORECASE)
_ID: Final = re.compile(rb"\nWARC-Record-ID:[ \t]*([^\r\n]*)", re.IGNORECASE)
_GET: Final = re.compile(rb"\s*GET ", re.IGNORECASE)
_BATCH: Final = 1_000
_HEAD_END: Final = (b"\r\n\r\n", b"\n\n")
# More than a revisit adds to the heads of its response and the place of its original: four other ids, and digests.
_ADDED_BYTES: Final = 2_048
# For the estimated size; it compresses as badly as a real id.
_SOME_ID: Final = b"<urn:uuid:7d4f1b0a-93c6-4e5d-8a2f-6b1c9e0d3f58>"


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A file to scan: its number in the plan in *folder*, its name, and the file for the result.

    If a remote file is not rewritten (``is_output``), only the records that are needed are fetched. For a dry run, the
    sizes of all revisits are estimated.
    """

    folder: Path
    file: int
    name: str
    part: Path
    places: Places
    eligibility: Eligibility
    keep_going: bool
    is_output: bool
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    role: int
    reason: str | None
    unfit: str | None
    listed_key: str
    id: bytes | None = None
    uri: bytes | None = None
    date: bytes | None = None
    digest: bytes | None = None
    digest_key: str | None = None
    mime: str | None = None
    revisit_bytes: int | None = None
    is_chunked: bool = False


def scan_file(task: ScanTask) -> None:
    """Scan a file. Raises ArchiveError, OSError, and DamagedInput for the first fault unless ``keep_going`` is set."""
    with writing(task.part), whole_file.replacing_from(task.part, suffix=".new") as temporary:
        connection = sqlite3.connect(temporary)
        try:
            connection.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000;"
                + SURVEYED.format(schema="")
                + "CREATE TABLE named_by (line INTEGER, id_key BLOB); CREATE TABLE not_get (id_key BLOB PRIMARY KEY);"
                "CREATE TABLE fault (place BLOB, reason BLOB); CREATE TABLE faults (number INTEGER);"
                "CREATE TABLE unlisted (id_key BLOB, file INTEGER, uri BLOB, date_key TEXT);"
            )
            with RewritePlan(task.folder) as plan:
                _RecordScan(task, plan, connection).run()
            connection.commit()
        except sqlite3.OperationalError as error:
            raise OSError(getattr(error, "sqlite_errorcode", 0), str(error)) from error
        finally:
            connection.close()


def take_faults(part: Path, faults: Faults) -> None:
    """Add the faults of a scan to *faults*."""
    connection = sqlite3.connect(part)
    try:
        number = connection.execute("SELECT number FROM faults").fetchone()[0]
        rows = connection.execute("SELECT place, reason FROM fault")
        faults.take(number, tuple(Fault(file_name(place), file_name(reason)) for place, reason in rows))
    finally:
        connection.close()


class _RecordScan:
    def __init__(self, task: ScanTask, plan: RewritePlan, connection: sqlite3.Connection) -> None:
        self._task = task
        self._plan = plan
        self._connection = connection
        self._file = task.places.file(task.name)
        self._is_gzip: bool | None = None
        self._has_members = False
        self._is_lost = False  # the rest of the file is copied unchanged
        self._rows: list[tuple[object, ...]] = []
        self._named: list[tuple[int, bytes]] = []
        self._unlisted: list[tuple[bytes | None, int, bytes | None, str | None]] = []
        self._faults = Faults(keep_going=task.keep_going)
        self._faulty: set[int] = set()

    def run(self) -> None:
        task, execute = self._task, self._connection.execute
        lines = self._plan.lines_of(task.file)
        if isinstance(self._file, Path) or task.is_output:
            try:
                with self._file.open("rb") as file:
                    self._has_members = is_gzip_file(self._file, file.read(START_BYTES))
                for span in byte_ranges(
                    self._file, lines, wants_head=_wants_head, on_damage=self._met_damage
                ):
                    self._scan_range(span)
            except OSError as error:
                raise ArchiveError(f"{self._file} cannot be read: {error.strerror or error}.") from error
        else:
            for line in lines:
                if line.role != SINGLE:
                    self._scan_record(line)
        self._flush()
        self._add_unread()
        for column in ("reason", "unfit"):
            execute(
                f"UPDATE surveyed SET {column} = 'method' WHERE {column} IS NULL AND ("  # noqa: S608 - constant names
                " id_key IN (SELECT id_key FROM not_get)"
                " OR line IN (SELECT line FROM named_by WHERE id_key IN (SELECT id_key FROM not_get)))"
            )
        execute("DROP TABLE named_by")
        execute("DROP TABLE not_get")
        self._connection.executemany(
            "INSERT INTO fault VALUES (?, ?)",
            [(name_bytes(fault.place), name_bytes(fault.reason)) for fault in self._faults.first],
        )
        execute("INSERT INTO faults VALUES (?)", (self._faults.count,))

    def _scan_range(self, span: ByteRange) -> None:
        head, listed, record = span.head, span.listed, None
        if isinstance(listed, PlannedLine) and listed.role != SINGLE and not self._is_lost:
            record = self._scan_record(listed, exact_head(span))
        elif listed is not None or _CAPTURE.search(head):
            self._note_unlisted(head)
        if MENTION.search(head):
            self._pin(span, record)
        if listed is not None:
            return
        if _REQUEST.search(head) and not _GET.match(span.start):
            self._note("INSERT OR IGNORE INTO not_get VALUES (?)", _NAMES.findall(head) + _ID.findall(head))

    def _pin(self, span: ByteRange, record: StoredRecord | None) -> None:
        """If a record cannot be changed, keep the records that it refers to unchanged.

        It may share a member, follow damage, be in a form that we do not write, or have former values that we did not
        write.
        """
        head, text = exact_head(span), span.head
        try:
            if span.length and (head is None or span.listed is not None):
                record = record or read_record(self._file, span.offset)
                if record.format == "arc":
                    return
                head = head or raw_head(record)
        except DamagedInput:
            record = None
        else:
            is_fixed = not span.length or self._is_lost
            if head is not None and not is_fixed and _could_be_changed(span, record, head):
                return
        if head is not None:
            text = b"\n" + b"".join(b"%b: %b\r\n" % field for field in head.fields)
        self._note("INSERT OR IGNORE INTO pinned VALUES (?)", _NAMES.findall(text))
        if _REVISIT.search(text):
            # A reference by date or digest may mean any of the captures of this URI.
            uris = _REFERRED_URI.findall(text) or _OWN_URI.findall(text)
            self._note("INSERT OR IGNORE INTO pinned_uri VALUES (?)", uris)

    def _note_unlisted(self, head: bytes) -> None:
        record_id, uri, date = _ID.search(head), _OWN_URI.search(head), _DATE.search(head)
        self._unlisted.append(
            (
                bare(record_id[1]) if record_id else None,
                self._task.file,
                bare(uri[1]) if uri else None,
                date_key(date[1].decode("latin-1")) if date else None,
            )
        )
        if len(self._unlisted) >= _BATCH:
            self._flush()

    def _note(self, statement: str, ids: list[bytes]) -> None:
        self._connection.executemany(statement, [(bare(record_id),) for record_id in ids])

    def _met_damage(self, offset: int, reason: str) -> None:
        """Handle damage between records. Without members, what follows may be inside the block of a damaged record."""
        self._is_lost = not self._has_members
        self._damaged(offset, reason)

    def _damaged(self, offset: int, reason: str) -> None:
        if offset not in self._faulty:
            self._faulty.add(offset)
            self._faults.add(f"{self._file}, offset {offset}", reason)

    def _add_unread(self) -> None:
        """Add a row for each record in a damaged place, which cannot be converted."""
        found = self._connection.execute("SELECT count(*) FROM surveyed").fetchone()[0]
        if found == self._plan.surveyed_count(self._task.file):
            return
        self._connection.executemany(
            "INSERT OR IGNORE INTO surveyed (line, file, role, reason, unfit, listed_key)"
            " VALUES (?, ?, ?, 'damaged', 'damaged', ?)",
            (
                (line.id, self._task.file, line.role, digest_key(line.digest) or line.digest)
                for line in self._plan.lines_of(self._task.file)
                if line.role != SINGLE
            ),
        )

    def _scan_record(self, line: PlannedLine, head: RawHead | None = None) -> StoredRecord | None:
        """Store the values of a record. Return it, unless it is damaged or does not match the line."""
        listed = ManifestLine(self._task.name, line.offset, line.length, line.uri, line.date, line.digest)
        try:
            record = self._task.places.record(listed)
            row = self._row(record, line, head)
        except DamagedInput as error:
            reason = str(error).removeprefix(f"{self._file}, offset {line.offset}: ")
            self._damaged(line.offset, reason)
            return None
        self._rows.append(
            (
                row.line,
                self._task.file,
                row.role,
                row.reason,
                row.unfit,
                row.id,
                bare(row.id) if row.id else None,
                row.uri,
                row.date,
                date_key(row.date.decode("latin-1")) if row.date else None,
                row.digest,
                row.digest_key,
                row.listed_key,
                row.mime,
                row.revisit_bytes,
                row.is_chunked,
            )
        )
        self._named += [
            (line.id, bare(name.encode("latin-1", "replace")))
            for name in record.get_all("WARC-Concurrent-To")
        ]
        if len(self._rows) >= _BATCH:
            self._flush()
        return record

    def _flush(self) -> None:
        """Write the rows of the current batch."""
        self._connection.executemany(
            "INSERT INTO surveyed (line, file, role, reason, unfit, id, id_key, uri, date, date_key, digest, digest_key,"
            " listed_key, mime, revisit_bytes, is_chunked) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._rows,
        )
        self._connection.executemany("INSERT INTO named_by VALUES (?, ?)", self._named)
        self._connection.executemany("INSERT INTO unlisted VALUES (?, ?, ?, ?)", self._unlisted)
        self._rows.clear()
        self._named.clear()
        self._unlisted.clear()

    def _row(self, record: StoredRecord, line: PlannedLine, head: RawHead | None) -> _Row:
        """The values of a record. Raises DamagedInput if its payload does not match the line."""
        is_copy = line.role == COPY
        algorithm, _, value = line.digest.partition(":")
        body = payload_digest(record, algorithm)
        if body.hex != value:
            raise DamagedInput(
                f"{record.path}, offset {line.offset}: the manifest does not match the file: the digest of the payload"
                " differs. Create the manifest again with warcsum --recompute."
            )
        if record.format != "arc":
            head = head or raw_head(record)
        reason = self._task.eligibility.reason_against(
            record, size_bytes=body.size_bytes if is_copy else None
        )
        if reason in (None, "small", "empty") and record.type != "response":
            reason = "no-http"
        # All records of a payload have the same size, so a small one is never an original.
        unfit = reason
        if reason is None and is_copy:
            reason = _hindrance(record, head)
        stored = stored_uri(record, head)
        if head is None:
            uri = stored
            date: bytes | None = (record.date or "").encode("ascii", "replace") or None
            record_id = digest = None
        else:
            found = head.get(b"WARC-Target-URI")
            uri = bare(found) if found else None
            # An empty field is treated as a missing one.
            date, record_id, digest = (
                head.get(b"WARC-Date") or None,
                head.get(b"WARC-Record-ID") or None,
                head.get(b"WARC-Payload-Digest") or None,
            )
        if unfit is None and not _can_be_original(record, stored, date, record_id, digest):
            unfit = "unreadable"
        if digest is None:
            # The digest that replay indexers compute: revisits of this original have it, and older ones may.
            digest = b"sha1:" + base64.b32encode(bytes.fromhex(payload_digest(record, "sha1").hex))
        is_candidate = is_copy and reason is None
        return _Row(
            line.id,
            line.role,
            reason,
            unfit,
            digest_key(line.digest) or line.digest,
            record_id,
            uri,
            date,
            digest,
            digest_key(digest.decode("latin-1")),
            _mime(record) if is_candidate else None,
            self._revisit_bytes(record, head, line) if is_candidate and head is not None else None,
            _is_in_chunks(record, body.size_bytes),
        )

    def _revisit_bytes(self, record: StoredRecord, head: RawHead, line: PlannedLine) -> int:
        """The approximate size of the revisit, with the manifest's reference to the original."""
        assert record.http is not None
        if not self._task.is_dry_run:
            refers = len(line.refers_uri or "") + len(line.refers_date or "")
            most = record.frame.block_position + record.http.length + refers + _ADDED_BYTES
            if most < line.length:
                # Smaller than the record, regardless of the compression and of the URI of the chosen original.
                return most - _ADDED_BYTES // 2
        block = record.frame.kept[: record.http.length]
        digest = head.get(b"WARC-Payload-Digest") or b"sha1:" + b"3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
        # Placeholders: the real id and digest are known only after every file has been scanned.
        target = RevisitTarget(
            _SOME_ID,
            (line.refers_uri or "").encode("utf-8", "surrogatepass"),
            (line.refers_date or "").encode("ascii", "replace"),
            digest[:8] + digest[:7:-1],
        )
        for _ in head.get_all(b"WARC-Concurrent-To"):
            head = head.added((b"Former-WARC-Concurrent-To", _SOME_ID))
        data = record_bytes(as_revisit(head, target, block), block)
        if self._is_gzip is None:
            with record.path.open("rb") as file:
                file.seek(record.offset)
                self._is_gzip = file.read(2) == GZIP_MAGIC[:2]
        return len(gzip_member(data)) if self._is_gzip else len(data)


def _could_be_changed(span: ByteRange, record: StoredRecord | None, head: RawHead) -> bool:
    is_own_form = could_be_written(record, head) if record else is_as_written(head, span.head)
    return is_own_form and can_change_references(head)


def _wants_head(_: PlannedLine) -> bool:
    """Always true: the head of every listed record is needed, at least for its id."""
    return True


def _can_be_original(
    record: StoredRecord, uri: bytes | None, date: bytes | None, record_id: bytes | None, digest: bytes | None
) -> bool:
    """Whether a revisit can refer to a record by these fields, and a reader gets the values of the record from them."""
    if uri is None or not can_be_referred_to(uri, date, record_id, digest):
        return False
    # A field that is folded or repeated is interpreted differently by different readers.
    return uri.decode("utf-8") == record.target_uri


def _is_in_chunks(record: StoredRecord, payload_bytes: int) -> bool:
    """Whether the body is really stored in chunks, not only announced as chunked."""
    if record.http is None or not record.http.is_chunked:
        return False
    return record.frame.block_length - record.http.length != payload_bytes


def _hindrance(record: StoredRecord, head: RawHead | None) -> str | None:
    """Why a copy cannot become a revisit, for reasons that `Eligibility` does not check."""
    if head is None:
        return "arc"
    if not record.id:
        return "no-id"
    if not could_be_undone(head) or not could_be_written(record, head):
        return "fields"
    assert record.http is not None
    return None if record.frame.kept[: record.http.length].endswith(_HEAD_END) else "no-http"


def _mime(record: StoredRecord) -> str:
    assert record.http is not None
    value = record.http.get(b"Content-Type") or b""
    return value.partition(b";")[0].strip().lower().decode("latin-1")
