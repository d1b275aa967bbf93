"""Read a file once and make its rows (see `rows`).

The payload of every response is hashed, and every record is searched for references. In a file that is not compressed, all
records after a damaged place are treated as damaged: they may be inside the block of a damaged record.

Nearly all records have a usual head (`warc.raw_heads`), which is not parsed field by field, and nearly all responses are
whole HTTP messages without chunks. For such records, parsing gives the same rows.
"""

from __future__ import annotations

import base64
import re
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.offline.digests import Digester, DigestOptions
from scrapy_dedupe.offline.manifest_lines import ManifestLine
from scrapy_dedupe.offline.reference_changes import digest_key
from scrapy_dedupe.offline.revisits import (
    RECORD_END,
    bare,
    can_change_references,
    could_be_undone,
    could_be_written,
)
from scrapy_dedupe.offline.rows import RecordRow, RowsTask, write_rows
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.bodies import (
    BodyDigest,
    PassingHashes,
    has_more_than_payload,
    hasher_of,
    is_in_chunks,
    payload_digests,
    usual_body,
)
from scrapy_dedupe.warc.dates import is_date, valid_date_key
from scrapy_dedupe.warc.framing import is_compressed
from scrapy_dedupe.warc.raw_heads import RawHead, UsualHead, raw_head, stored_uri, usual_head
from scrapy_dedupe.warc.reading import says_http, stored_record
from scrapy_dedupe.warc.records import can_be_referred_to
from scrapy_dedupe.warc.references import bare_id
from scrapy_dedupe.warc.windows import WindowedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.reading import StoredRecord

CAPTURES: Final = ("response", "resource")
# Of a longer record, the bytes might have left the window.
_LONG_BYTES: Final = 1 << 20
_SHORT_BYTES: Final = 1 << 12
_GET: Final = re.compile(rb"\s*GET ", re.IGNORECASE)
_HEAD_END: Final = (b"\r\n\r\n", b"\n\n")
_MIME: Final = re.compile(rb"\nContent-Type:[ \t]*([^\r\n;]*)[^\r\n]*\r\n(?![ \t])", re.IGNORECASE)
_REFERRED_ID: Final = re.compile(rb"<[^\s<>]+>|[^\s<>]+")

Values = dict[str, Any]


def make_rows(task: RowsTask, faults: Faults, advance: Advance = lambda size_bytes: None) -> None:
    """Make the rows of a file, for `WorkFolder.run`.

    *advance* is called about every MiB with the number of bytes read. Raises ArchiveError if a file cannot be read or
    written, SettingError if DuckDB is not installed, and the exceptions of `Faults.add`.
    """
    write_rows(task.target, RowScan(task, faults, advance).rows())


class RowScan:
    """Makes the rows of one file."""

    def __init__(self, task: RowsTask, faults: Faults, advance: Advance = lambda size_bytes: None) -> None:
        self._task = task
        self._file = task.file
        self._advance = advance
        self._faults = faults
        self._digester: Digester | None = None
        self._statuses: dict[int, tuple[str | None, bool]] = {}
        self._hashes = PassingHashes(partial(_algorithms_for, task.algorithms))
        self._is_gzip = False
        self._is_lost = False  # what follows is copied unchanged

    def rows(self) -> Iterator[RecordRow]:
        """Yield the rows in file order."""
        task = self._task
        with reading(task.file):
            self._file = window = WindowedFile(task.file)
        self._digester = Digester(
            window,
            task.name,
            DigestOptions(algorithm=task.algorithms[0], recompute=True),
            faults=self._faults if task.is_summed else Faults(keep_going=True),
            advance=self._advance,
        )
        with window, reading(task.file):
            self._is_gzip = is_compressed(window)
            for frame in self._digester.frames(self._met_damage, self._on_long_block):
                values = None if self._is_lost else self.usual_values(frame)
                if values is None:
                    values = self._parsed_values(frame)
                if 0 < frame.length <= _LONG_BYTES:
                    stored = window.read(frame.offset, frame.length)
                    values["stored"] = blake2b(stored, digest_size=32).digest()
                yield RecordRow(**values)

    def captured(self, record: StoredRecord, digests: Mapping[str, BodyDigest]) -> RecordRow:
        """The row of a response or resource without a line; *digests*: of its payload, by algorithm."""
        return RecordRow(**self._capture_values(record, digests, is_listed=False))

    def _on_long_block(self, frame: Frame) -> Callable[[bytes], object] | None:
        return self._hashes.on_long_block(stored_record(self._file, frame))

    def _met_damage(self, damage: Damage) -> None:
        self._is_lost = not self._is_gzip
        if not self._task.is_summed:
            self._faults.add(
                f"{damage.path}, offset {damage.offset}",
                f"{damage.reason} ({damage.length} bytes are copied unchanged)",
            )

    def usual_values(self, frame: Frame) -> Values | None:
        """The values of the row of a usual record; None for any other record."""
        if not frame.length or frame.block_end != RECORD_END:
            return None
        head = usual_head(frame)
        if head is None or head.get(b"content-length") != b"%d" % frame.block_length:
            return None
        kind = head.get(b"warc-type") or b""
        if kind == b"response":
            return self._usual_response(frame, head)
        kind = kind.lower()
        if kind in (b"response", b"resource", b"revisit"):
            return None
        return self._described(frame, kind.decode("ascii"), head)

    def _usual_response(self, frame: Frame, head: UsualHead) -> Values | None:
        record_id, uri = head.get(b"warc-record-id"), head.get(b"warc-target-uri")
        date, content_type = head.get(b"warc-date"), head.get(b"content-type")
        # Within angle brackets, there may be white space.
        if not (frame.member and record_id and uri and date) or uri.startswith(b"<"):
            return None
        if not _REFERRED_ID.fullmatch(record_id):
            return None
        body = usual_body(frame)
        if body is None or not says_http(None if content_type is None else content_type.decode("ascii")):
            return None
        if b"none" in head.values:  # reserved for reverting a conversion
            return None
        values = self._described(frame, "response", head)
        digests = {name: hasher_of(name, body).digest() for name in self._task.algorithms}
        if values["digest"] is None and "sha1" not in digests:
            digests["sha1"] = hasher_of("sha1", body).digest()
        member, begin = frame.member, frame.block_position
        reason, is_whole = self._of_status(int(member[begin + 9 : begin + 12]), frame)
        reason = reason or self._task.eligibility.reason_of_size(len(body))
        date_text = date.decode("ascii")
        digits = digests[self._task.algorithms[0]].hex()
        is_listed = self._has_line(frame, digits, usual=(uri.decode("ascii"), date_text))
        values |= {"target_uri": uri, "target_date": date_text, "is_listed": is_listed}
        self._add_payload(values, digests, len(body), is_alone=not is_whole, is_chunked=False)
        # Printable ASCII is read back unchanged, so only the forms matter (`records.can_be_referred_to`).
        is_readable = values["date_key"] is not None
        values |= {"reason": reason, "unfit": reason or (None if is_readable else "unreadable")}
        if reason is None:
            heads_bytes = begin + frame.block_length - len(body)
            named = _MIME.search(member, begin, heads_bytes)
            mime = named[1].strip().lower().decode("latin-1") if named else ""
            self._add_heads(values, frame, bytes(member[:heads_bytes]), heads_bytes, mime)
        return values

    def _of_status(self, status: int, frame: Frame) -> tuple[str | None, bool]:
        """Why a response with this status is not eligible, regardless of its size, and whether it is whole."""
        if status not in self._statuses:
            record = stored_record(self._task.file, frame)
            self._statuses[status] = (self._task.eligibility.reason_against(record), record.is_whole)
        return self._statuses[status]

    def _has_line(self, frame: Frame, digits: str | None, usual: tuple[str, str] | None = None) -> bool:
        """Whether a record gets a line of the manifest, if lines are made.

        *digits* is the digest of its payload. *usual*: its URI and date, if it is usual.
        """
        if not self._task.is_summed or self._digester is None:
            return False
        digest = f"{self._task.algorithms[0]}:{digits}" if digits else None
        if digest is not None and usual is not None and is_date(usual[1]):
            line = ManifestLine(self._task.name, frame.offset, frame.length, *usual, digest)
            return self._digester.takes(line)
        return self._digester.line(frame, digest) is not None

    def _parsed_values(self, frame: Frame) -> Values:
        """The values of the row of a record of any form."""
        record = stored_record(self._file, frame)
        digests: dict[str, BodyDigest] = {}
        if record.length and (names := _algorithms_for(self._task.algorithms, record)):
            digests = dict(zip(names, self._hashes.digests(record), strict=True))
        is_listed = self._has_line(frame, digests[self._task.algorithms[0]].hex if digests else None)
        if record.type in CAPTURES and record.length:
            return self._capture_values(record, digests, is_listed=is_listed)
        return self._described(frame, record.type, None if frame.is_arc else raw_head(record), record)

    def _described(
        self, frame: Frame, kind: str, head: RawHead | UsualHead | None, record: StoredRecord | None = None
    ) -> Values:
        """The values of a record of any type; a head that is not usual needs its *record*."""
        values: Values = {"offset": frame.offset, "length": frame.length, "kind": kind}
        if head is None:
            return values
        record_id = head.get(b"warc-record-id") or None
        values["id_key"] = None if record_id is None else bare(record_id)
        values["is_gzip"] = self._is_gzip
        if kind == "request":
            block = frame.member or frame.kept
            values["is_other_method"] = not _GET.match(block, frame.block_position if frame.member else 0)
        elif kind in (*CAPTURES, "revisit"):
            uri, date = head.get(b"warc-target-uri"), head.get(b"warc-date") or None
            digest = head.get(b"warc-payload-digest") or None
            values |= {
                "id": record_id,
                "uri": None if uri is None else bare(uri),
                "date": date,
                "date_key": None if date is None else valid_date_key(date.decode("latin-1")),
                "digest": digest,
                "digest_key": None if digest is None else digest_key(digest.decode("latin-1")),
            }
        concurrent, refers_to = head.get_all(b"warc-concurrent-to"), head.get_all(b"warc-refers-to")
        if not (concurrent or refers_to or kind == "revisit"):
            return values
        is_fixed = self._is_lost or not frame.length
        if isinstance(head, RawHead) and not is_fixed:
            assert record is not None
            is_fixed = not (could_be_written(record, head) and can_change_references(head))
        refers_date = head.get(b"warc-refers-to-date")
        values |= {
            "concurrent_to": [bare(value) for value in concurrent] or None,
            "refers_to": [bare(value) for value in refers_to] or None,
            "refers_uris": [bare(value) for value in head.get_all(b"warc-refers-to-target-uri")] or None,
            "refers_date_key": valid_date_key(refers_date.decode("latin-1")) if refers_date else None,
            "is_fixed": is_fixed,
        }
        if not is_fixed and kind not in CAPTURES:
            values |= _start_of(frame)
        return values

    def _capture_values(
        self, record: StoredRecord, digests: Mapping[str, BodyDigest], *, is_listed: bool
    ) -> Values:
        """The values of a response or resource; *digests*: of its payload, by algorithm."""
        head = None if record.format == "arc" else raw_head(record)
        values = self._described(record.frame, record.type, head, record)
        stored = stored_uri(record, head)
        values |= {
            "target_uri": (record.target_uri or "").encode("utf-8", "surrogatepass"),
            "target_date": record.date,
            "is_listed": is_listed,
        }
        if head is None:
            date = (record.date or "").encode("ascii", "replace") or None
            values |= {"uri": stored, "date": date, "date_key": valid_date_key(record.date)}
        if self._is_lost:
            values |= {"reason": "damaged", "unfit": "damaged"}
        if not digests:
            return values
        known = {name: bytes.fromhex(digest.hex) for name, digest in digests.items()}
        if values.get("digest") is None and "sha1" not in known:
            known["sha1"] = bytes.fromhex(payload_digests(record, ("sha1",))[0].hex)
        size_bytes = digests[self._task.algorithms[0]].size_bytes
        can_be_original = _can_be_original(record, stored, values)
        self._add_payload(
            values,
            known,
            size_bytes,
            is_alone=not record.is_whole or has_more_than_payload(record),
            is_chunked=is_in_chunks(record, size_bytes),
        )
        if self._is_lost:
            return values
        reason = self._task.eligibility.reason_against(record, size_bytes=size_bytes)
        if reason in (None, "small", "empty") and record.type != "response":
            reason = "no-http"
        # All records of a payload have the same size, so a small one is never an original.
        values["unfit"] = reason or (None if can_be_original else "unreadable")
        reason = values["reason"] = reason or _hindrance(record, head)
        if reason is None:
            assert record.http is not None
            assert head is not None
            heads_bytes = record.frame.block_position + record.http.length
            start = head.to_bytes(record.frame.block_length) + record.frame.part(0, record.http.length)
            self._add_heads(values, record.frame, start, heads_bytes, _mime(record))
        return values

    def _add_payload(
        self,
        values: Values,
        digests: Mapping[str, bytes],
        size_bytes: int,
        *,
        is_alone: bool,
        is_chunked: bool,
    ) -> None:
        for name in self._task.algorithms:
            values[name] = digests[name]
        values |= {
            "size_bytes": size_bytes,
            "is_alone": is_alone,
            "is_chunked": is_chunked,
        }
        if values.get("digest") is None:
            # The digest that replay indexers compute: revisits of this original have it, and older ones may.
            sha1 = b"sha1:" + base64.b32encode(digests["sha1"])
            values |= {"digest": sha1, "digest_key": digest_key(sha1.decode("ascii"))}

    def _add_heads(self, values: Values, frame: Frame, start: bytes, heads_bytes: int, mime: str) -> None:
        """Add the values of a response that may become a revisit; *start* has the WARC head and the HTTP head."""
        values |= {
            "mime": mime,
            "heads_bytes": heads_bytes,
            "start": start,
            "head_bytes": frame.block_position,
            "block_bytes": frame.block_length,
        }


def _algorithms_for(names: tuple[str, ...], record: StoredRecord) -> tuple[str, ...]:
    """The algorithms for the payload of a response, with SHA-1 if it has no digest; none for any other record."""
    if record.type != "response" or record.http_status is None:
        return ()
    return names if record.get("WARC-Payload-Digest") or "sha1" in names else (*names, "sha1")


def _start_of(frame: Frame) -> Values:
    """The values ``start``, ``head_bytes`` and ``block_bytes`` of a record whose block is short; else empty."""
    head = frame.head[1].group() if frame.head is not None else frame.member[: frame.block_position]
    if not head or frame.head_position or frame.block_length > _SHORT_BYTES:
        return {}
    return {
        "start": bytes(head) + frame.kept,
        "head_bytes": frame.block_position,
        "block_bytes": frame.block_length,
    }


def _can_be_original(record: StoredRecord, uri: bytes | None, values: Values) -> bool:
    """Whether a revisit can refer to a record by these fields, and a reader gets the values of the record from them."""
    fields = (values.get(name) for name in ("date", "id", "digest"))
    if uri is None or not can_be_referred_to(uri, *fields):
        return False
    # A field that is folded or repeated is interpreted differently by different readers.
    return uri.decode("utf-8") == record.target_uri


def _hindrance(record: StoredRecord, head: RawHead | None) -> str | None:
    """Why a copy cannot become a revisit, for reasons that `Eligibility` does not check."""
    if head is None:
        return "arc"
    if bare_id(record.id) is None:
        return "no-id"
    if not could_be_undone(head) or not could_be_written(record, head):
        return "fields"
    assert record.http is not None
    return None if record.frame.part(0, record.http.length).endswith(_HEAD_END) else "no-http"


def _mime(record: StoredRecord) -> str:
    assert record.http is not None
    value = record.http.get(b"Content-Type") or b""
    return value.partition(b";")[0].strip().lower().decode("latin-1")
