"""Read a file once and make its rows (see `rows`).

The payload of every response is hashed, and every record is searched for references. In a file that is not compressed, all
records after a damaged place are treated as damaged: they may be inside the block of a damaged record.
"""

from __future__ import annotations

import base64
import re
from dataclasses import asdict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.offline.digests import Digester, DigestOptions, FileSums
from scrapy_dedupe.offline.ordering import moment
from scrapy_dedupe.offline.reference_changes import date_key, digest_key
from scrapy_dedupe.offline.revisits import bare, can_change_references, could_be_undone, could_be_written
from scrapy_dedupe.offline.rows import RecordRow, RowsTask, write_rows
from scrapy_dedupe.offline.usual_rows import UsualRows, keeps_heads, start_of
from scrapy_dedupe.offline.windows import WindowedFile
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.bodies import BodyDigest, BodyHashes, has_more_than_payload, payload_digests
from scrapy_dedupe.warc.framing import is_gzip_file
from scrapy_dedupe.warc.raw_heads import raw_head, stored_uri
from scrapy_dedupe.warc.reading import stored_record
from scrapy_dedupe.warc.records import can_be_referred_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord

CAPTURES: Final = ("response", "resource")
# Of a longer record, the bytes might have left the window.
_LONG_BYTES: Final = 1 << 20
_START_BYTES: Final = 4_096  # enough of a file to detect its format
_GET: Final = re.compile(rb"\s*GET ", re.IGNORECASE)
_HEAD_END: Final = (b"\r\n\r\n", b"\n\n")


def make_rows(task: RowsTask, faults: Faults, advance: Advance = lambda size_bytes: None) -> object:
    """Make the rows of a file, for `WorkFolder.run`. The result is the JSON form of `FileSums`.

    *advance* is called about every MiB with the number of bytes read. Raises ArchiveError if a file cannot be read or
    written, SettingError if DuckDB is not installed, and the exceptions of `Faults.add`.
    """
    scan = RowScan(task, faults, advance)
    write_rows(task.target, scan.rows())
    return asdict(scan.sums)


class RowScan:
    """Makes the rows of one file."""

    def __init__(self, task: RowsTask, faults: Faults, advance: Advance = lambda size_bytes: None) -> None:
        self._task = task
        self._file = task.file
        self._window: WindowedFile | None = None  # on the file, while all its records are read
        self._advance = advance
        self._faults = faults
        self._digester: Digester | None = None
        self._usual: UsualRows | None = None
        self._long: tuple[Frame, BodyHashes] | None = None
        self._is_gzip = False
        self._is_lost = False  # what follows is copied unchanged

    @property
    def sums(self) -> FileSums:
        """The results so far for the lines of the manifest, if any are made."""
        return self._digester.sums if self._task.is_summed and self._digester is not None else FileSums()

    def rows(self) -> Iterator[RecordRow]:
        """Yield the rows in file order."""
        task = self._task
        with reading(task.file):
            self._file = self._window = WindowedFile(task.file)
        self._digester = Digester(
            self._window,
            task.name,
            DigestOptions(algorithm=task.algorithms[0], recompute=True),
            faults=self._faults if task.is_summed else Faults(keep_going=True),
            advance=self._advance,
        )
        with self._window as window, reading(task.file):
            self._is_gzip = is_gzip_file(window, window.read(0, _START_BYTES))
            self._usual = UsualRows(task, self._digester, is_gzip=self._is_gzip)
            for frame in self._digester.frames(self._met_damage, self._on_long_block):
                row = self.row(frame)
                yield row._replace(stored=self._stored(row.offset, row.length))

    def _stored(self, offset: int, length: int) -> bytes | None:
        """The digest of the stored bytes of a record, which the window still holds; None for a long one."""
        if not 0 < length <= _LONG_BYTES:
            return None
        assert self._window is not None
        return blake2b(self._window.read(offset, length), digest_size=32).digest()

    def _on_long_block(self, frame: Frame) -> Callable[[bytes], object] | None:
        """Hash a long body while it is read. Chunks are removed later, when the whole body is known."""
        self._long = None
        record = stored_record(self._file, frame)
        if record.type != "response" or record.http is None or record.http_status is None:
            return None
        if record.http.is_chunked:
            return None
        hashes = BodyHashes(self._algorithms_for(record))
        hashes.update(memoryview(frame.kept)[record.http.length :])
        self._long = (frame, hashes)
        return hashes.update

    def _met_damage(self, damage: Damage) -> None:
        self._is_lost = not self._is_gzip
        if not self._task.is_summed:
            self._faults.add(
                f"{damage.path}, offset {damage.offset}",
                f"{damage.reason} ({damage.length} bytes are copied unchanged)",
            )

    def row(self, frame: Frame) -> RecordRow:
        """The row of a record."""
        row = None if self._is_lost or self._usual is None else self._usual.row(frame)
        return self.unusual_row(frame) if row is None else row

    def unusual_row(self, frame: Frame) -> RecordRow:
        """The row of a record of any form."""
        record = stored_record(self._file, frame)
        digests: dict[str, BodyDigest] = {}
        if record.type == "response" and record.length and record.http_status is not None:
            digests = self._digests(frame, record)
        line = None
        if self._task.is_summed and self._digester is not None:
            algorithm = self._task.algorithms[0]
            line = self._digester.line(frame, f"{algorithm}:{digests[algorithm].hex}" if digests else None)
        if record.type in CAPTURES and record.length:
            return self.captured(record, digests, is_listed=line is not None)
        return self._described(record, None if frame.is_arc else raw_head(record))

    def _digests(self, frame: Frame, record: StoredRecord) -> dict[str, BodyDigest]:
        names = self._algorithms_for(record)
        if self._long is not None and self._long[0] is frame:
            found = self._long[1].digests()
        else:
            found = payload_digests(record, names)
        return dict(zip(names, found, strict=True))

    def _algorithms_for(self, record: StoredRecord) -> tuple[str, ...]:
        """The algorithms for a payload; with SHA-1 if the record has no digest."""
        names = self._task.algorithms
        return names if record.get("WARC-Payload-Digest") or "sha1" in names else (*names, "sha1")

    def _described(self, record: StoredRecord, head: RawHead | None) -> RecordRow:
        """The values of a record of any type."""
        if head is None:
            return RecordRow(record.offset, record.length, record.type)
        record_id = head.get(b"WARC-Record-ID") or None
        row = RecordRow(
            record.offset,
            record.length,
            record.type,
            id_key=None if record_id is None else bare(record_id),
            is_gzip=self._is_gzip,
            is_other_method=record.type == "request" and not _GET.match(record.frame.kept),
        )
        if record.type in (*CAPTURES, "revisit"):
            uri, date = head.get(b"WARC-Target-URI"), head.get(b"WARC-Date") or None
            digest = head.get(b"WARC-Payload-Digest") or None
            row = row._replace(
                id=record_id,
                uri=None if uri is None else bare(uri),
                date=date,
                date_key=None if date is None else date_key(date.decode("latin-1")),
                digest=digest,
                digest_key=None if digest is None else digest_key(digest.decode("latin-1")),
            )
        concurrent, refers_to = head.get_all(b"WARC-Concurrent-To"), head.get_all(b"WARC-Refers-To")
        if not (concurrent or refers_to or record.type == "revisit"):
            return row
        can_be_changed = could_be_written(record, head) and can_change_references(head)
        is_fixed = self._is_lost or not record.length or not can_be_changed
        refers_date = head.get(b"WARC-Refers-To-Date")
        return row._replace(
            concurrent_to=[bare(value) for value in concurrent] or None,
            refers_to=[bare(value) for value in refers_to] or None,
            refers_uris=[bare(value) for value in head.get_all(b"WARC-Refers-To-Target-URI")] or None,
            refers_date_key=date_key(refers_date.decode("latin-1")) if refers_date else None,
            is_fixed=is_fixed,
            **({} if is_fixed or record.type in CAPTURES else start_of(record.frame)),
        )

    def captured(
        self, record: StoredRecord, digests: Mapping[str, BodyDigest], *, is_listed: bool = False
    ) -> RecordRow:
        """The row of a response or resource; *digests*: of its payload, by algorithm."""
        head = None if record.format == "arc" else raw_head(record)
        row = self._described(record, head)
        values: dict[str, Any] = {
            "target_uri": (record.target_uri or "").encode("utf-8", "surrogatepass"),
            "target_date": record.date,
            "is_listed": is_listed,
        }
        stored = stored_uri(record, head)
        if head is None:
            date = (record.date or "").encode("ascii", "replace") or None
            values |= {"uri": stored, "date": date, "date_key": date_key(record.date)}
            row = row._replace(**values)
        if self._is_lost:
            values |= {"reason": "damaged", "unfit": "damaged"}
        if not digests:
            return row._replace(**values)
        for name in self._task.algorithms:
            values[name] = bytes.fromhex(digests[name].hex)
        size_bytes = digests[self._task.algorithms[0]].size_bytes
        values |= {
            "size_bytes": size_bytes,
            "moment": moment(record.date) if is_listed and record.date else None,
            "is_alone": not record.is_whole or has_more_than_payload(record),
            "is_chunked": _is_in_chunks(record, size_bytes),
        }
        if row.digest is None:
            # The digest that replay indexers compute: revisits of this original have it, and older ones may.
            found = digests.get("sha1") or payload_digests(record, ("sha1",))[0]
            sha1 = b"sha1:" + base64.b32encode(bytes.fromhex(found.hex))
            values |= {"digest": sha1, "digest_key": digest_key(sha1.decode("latin-1"))}
        if self._is_lost:
            return row._replace(**values)
        reason = self._task.eligibility.reason_against(record, size_bytes=size_bytes)
        if reason in (None, "small", "empty") and record.type != "response":
            reason = "no-http"
        # All records of a payload have the same size, so a small one is never an original.
        unfit = reason
        if reason is None:
            reason = _hindrance(record, head)
        if unfit is None and not _can_be_original(record, stored, row):
            unfit = "unreadable"
        values |= {"reason": reason, "unfit": unfit}
        if reason is None:
            values |= self._sizes(record, head)
        return row._replace(**values)

    def _sizes(self, record: StoredRecord, head: RawHead | None) -> dict[str, Any]:
        """The values from which the size of a revisit is estimated."""
        assert record.http is not None
        assert head is not None
        heads_bytes = record.frame.block_position + record.http.length
        block_bytes = record.frame.block_length
        start = head.to_bytes(block_bytes) + record.frame.kept[: record.http.length]
        return {
            "heads_bytes": heads_bytes,
            "mime": _mime(record),
            "heads": start if keeps_heads(self._task, heads_bytes, record.length) else None,
            "start": start,
            "head_bytes": record.frame.block_position,
            "block_bytes": block_bytes,
        }


def _can_be_original(record: StoredRecord, uri: bytes | None, row: RecordRow) -> bool:
    """Whether a revisit can refer to a record by these fields, and a reader gets the values of the record from them."""
    if uri is None or not can_be_referred_to(uri, row.date, row.id, row.digest):
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
