"""Compute the digest of each record of a file that may have duplicates, and make a manifest line for it.

These are the ``response`` records with an HTTP response, and optionally the ``resource`` records. The digest is that
of the stored payload, without chunked transfer coding and with its content coding (``decoded-``: without it). If a
record has a WARC-Payload-Digest of the wanted algorithm, in any notation, it is used, unless the body was transferred
in chunks: many programs compute it from the chunks in this case. Other stored digests may be wrong as well, since
some programs compute them from the decoded body. This loses nothing, because payloads are compared byte by byte
before one is replaced.

Every record is read to its end, so that damage is found. A response without an HTTP status line, such as ``dns:`` or an
Icecast stream, gets no line and is counted.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.tasks.faults import KEPT, Fault, Faults
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.bodies import (
    body_pieces,
    decoded_pieces,
    has_digest,
    hasher_of,
    is_in_chunks,
    payload_digest,
    payload_digests,
    payload_pieces,
    usual_body,
)
from scrapy_dedupe.warc.codings import Undecodable, codings_of
from scrapy_dedupe.warc.dates import is_date
from scrapy_dedupe.warc.framing import frames
from scrapy_dedupe.warc.reading import KEPT_BYTES, bare_uri, says_http, stored_record

from .manifest_lines import DECODED, ManifestLine, why_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.capture import Digest
    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PROGRESS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DigestOptions:
    """How records are digested.

    ``algorithm`` is one of `manifest_lines.ALGORITHMS`. ``recompute``: ignore stored digests. ``verify``: compute stored
    digests again and compare them. ``skip_empty``: write no line for an empty payload. ``resources``: include
    ``resource`` records. ``decoded``: digest the payload without its content coding.
    """

    algorithm: str = "sha256"
    recompute: bool = False
    verify: bool = False
    skip_empty: bool = False
    resources: bool = False
    decoded: bool = False

    @property
    def label(self) -> str:
        """The label of the digest in a manifest."""
        return f"{DECODED}{self.algorithm}" if self.decoded else self.algorithm


@dataclass(slots=True)
class FileSums:
    """The results of one file.

    ``lines`` counts lines of the manifest: ``stored`` digests were taken from the records, ``computed`` ones were
    computed. ``empty`` and ``headless`` records (responses without an HTTP status line) were left out. ``verified``
    digests were compared with the payload; ``unverifiable`` ones have an unknown algorithm. ``mismatches`` are the
    first of ``mismatch_count``.
    """

    lines: int = 0
    stored: int = 0
    computed: int = 0
    hashed_bytes: int = 0
    empty: int = 0
    headless: int = 0
    verified: int = 0
    unverifiable: int = 0
    mismatch_count: int = 0
    mismatches: list[Fault] = field(default_factory=list)

    def add(self, other: FileSums) -> None:
        """Add the counters and mismatches of another file."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.mismatches += other.mismatches[: max(0, KEPT - len(self.mismatches))]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileSums:
        """The inverse of ``dataclasses.asdict``."""
        return cls(**{**value, "mismatches": [Fault(**item) for item in value["mismatches"]]})


_COUNTERS = [one.name for one in fields(FileSums) if one.name != "mismatches"]


class Digester:
    """Makes the manifest lines of one file; `sums` is complete after the last line.

    *advance* is called about every MiB with the number of bytes read. *faults* belongs to this file only.
    """

    def __init__(
        self,
        file: ReadableFile,
        name: str,
        options: DigestOptions,
        *,
        faults: Faults,
        advance: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self.sums = FileSums()
        self._file = file
        self._name = name
        self._options = options
        self._faults = faults
        self._advance = advance
        self._has_shared_member = False
        self._is_usual = not (options.verify or options.decoded)

    def lines(self) -> Iterator[ManifestLine]:
        """Yield the lines in file order. Raises ArchiveError if the file cannot be read."""
        for frame in self.frames():
            if (line := self.line(frame)) is not None:
                yield line

    def frames(
        self,
        on_damage: Callable[[Damage], None] | None = None,
        on_long_block: Callable[[Frame], Callable[[bytes], object] | None] | None = None,
    ) -> Iterator[Frame]:
        """Yield the records of the file. Damage is a fault; *on_damage* is called before it is added.

        *on_long_block* is that of `framing.frames`. Raises ArchiveError if the file cannot be read.
        """

        def met(damage: Damage) -> None:
            if on_damage is not None:
                on_damage(damage)
            self._faults.add_damage(damage)

        done = records = 0
        faults_before = self._faults.count
        with reading(self._file):
            for frame in frames(
                self._file, kept_bytes=KEPT_BYTES, on_damage=met, on_long_block=on_long_block
            ):
                records += 1
                if frame.offset - done >= _PROGRESS_BYTES:
                    self._advance(frame.offset - done)
                    done = frame.offset
                yield frame
        if not records and self._faults.count == faults_before:
            self._faults.add(str(self._file), "the file is empty")

    def line(self, frame: Frame, digest: str | None = None) -> ManifestLine | None:
        """The line of a record; None if it gets none. *digest*: the digest of its payload, if it is known."""
        kind = "arc" if frame.is_arc else (frame.first("warc-type") or "").lower()
        if kind == "request":
            return None
        line = None
        if kind == "response" and self._is_usual and frame.member:
            line = self._usual_line(frame, digest)
        if line is None:
            record = stored_record(self._file, frame)
            line = self._line(record, digest) if self._is_wanted(record) else None
        return line if line is not None and self.takes(line) else None

    def takes(self, line: ManifestLine) -> bool:
        """Count a line. It is a fault, and the result False, if a manifest cannot hold the line."""
        if (reason := why_unwritable(line)) is not None:
            self._add_fault(line, f"a manifest cannot hold its line: {reason}")
            return False
        self.sums.lines += 1
        return True

    def _usual_line(self, frame: Frame, digest: str | None) -> ManifestLine | None:
        """The line of an ordinary response; None if the frame does not suffice for it."""
        options = self._options
        if not options.recompute and frame.first("warc-payload-digest") is not None:
            return None
        uri, date = bare_uri(frame.first("warc-target-uri")), frame.first("warc-date")
        if not (uri and date and is_date(date) and says_http(frame.first("content-type"))):
            return None
        if digest is None:
            body = usual_body(frame)
            if not body:
                return None
            digest = f"{options.algorithm}:{hasher_of(options.algorithm, body).hexdigest()}"
            self.sums.computed += 1
            self.sums.hashed_bytes += len(body)
        return ManifestLine(self._name, frame.offset, frame.length, uri, date, digest)

    def _is_wanted(self, record: StoredRecord) -> bool:
        if record.type == "response":
            has_status = record.http_status is not None
            self.sums.headless += not has_status
            return has_status
        return self._options.resources and record.type == "resource"

    def _line(self, record: StoredRecord, digest: str | None) -> ManifestLine | None:
        frame = record.frame
        if not record.length:
            # Every record of such a file has this fault; report only the first.
            if not self._has_shared_member:
                self._add_fault(
                    frame,
                    "one gzip member holds several records, so that they cannot be reached by offset; recompress the file,"
                    " for example with warcio recompress",
                )
            self._has_shared_member = True
            return None
        if not record.target_uri or not record.date:
            self._add_fault(frame, "the record has no WARC-Target-URI or no WARC-Date")
            return None
        if not is_date(record.date):
            reason = f"{record.date[:80]!r} is not a valid WARC-Date, which is in UTC and ends in Z"
            self._add_fault(frame, reason)
            return None
        if self._options.skip_empty and not any(payload_pieces(record)):
            self.sums.empty += 1
            return None
        digest = digest or self._digest(record)
        if digest is None:
            return None
        return ManifestLine(self._name, record.offset, record.length, record.target_uri, record.date, digest)

    def _digest(self, record: StoredRecord) -> str | None:
        options = self._options
        # Parsing a stored digest takes time too.
        is_needed = options.verify or not (options.recompute or options.decoded)
        stored = record.payload_digest if is_needed else None
        computed: dict[str, str] = {}
        if options.verify and stored is not None:
            computed = self._verified(record, stored)
        if not options.decoded:
            is_trusted = not (options.recompute or options.verify or _says_chunked(record))
            if is_trusted and stored is not None and stored.label == options.algorithm:
                self.sums.stored += 1
                return f"{options.label}:{_hex(stored)}"
            if options.algorithm in computed:
                self.sums.computed += 1
                return f"{options.label}:{computed[options.algorithm]}"
        try:
            body = payload_digest(record, options.algorithm, decoded=options.decoded)
        except Undecodable as error:
            self._add_fault(record.frame, f"the body cannot be decoded: {error}")
            return None
        self.sums.computed += 1
        self.sums.hashed_bytes += body.size_bytes
        return f"{options.label}:{body.hex}"

    def _verified(self, record: StoredRecord, stored: Digest) -> dict[str, str]:
        """Compare a stored digest; return the digests that were computed for the comparison."""
        if stored.label not in hashlib.algorithms_available:
            self.sums.unverifiable += 1
            return {}
        names = tuple({stored.label, self._options.algorithm})
        bodies = payload_digests(record, names)
        computed = {name: body.hex for name, body in zip(names, bodies, strict=True)}
        self.sums.hashed_bytes += bodies[0].size_bytes
        self.sums.verified += 1
        if computed[stored.label] != _hex(stored):
            self.sums.mismatch_count += 1
            if len(self.sums.mismatches) < KEPT:
                hint = _mismatch_hint(record, stored)
                reason = f"WARC-Payload-Digest is {stored}, the payload has {stored.label}:{computed[stored.label]}"
                self.sums.mismatches.append(Fault(self._place(record.frame), reason + hint))
        return computed

    def _place(self, found: Frame | ManifestLine) -> str:
        return f"{self._file}, offset {found.offset}"

    def _add_fault(self, found: Frame | ManifestLine, reason: str) -> None:
        self._faults.add(self._place(found), reason)


def _mismatch_hint(record: StoredRecord, stored: Digest) -> str:
    """A hint if *stored* is the digest of other bytes of the record, which some programs use as the payload."""
    if _says_chunked(record) and has_digest(body_pieces(record), str(stored)):
        return "; it was computed from the body with its chunks"
    if codings_of(record.http_headers) and has_digest(decoded_pieces(record), str(stored)):
        return "; it was computed from the decoded body"
    if _says_chunked(record) and not is_in_chunks(record, sum(map(len, payload_pieces(record)))):
        return (
            "; the HTTP head announces chunks but the body is stored without them, as restore writes it, so the digest may"
            " have been computed from the chunks"
        )
    return ""


def _says_chunked(record: StoredRecord) -> bool:
    return record.http is not None and record.http.is_chunked


def _hex(digest: Digest) -> str:
    return base64.b32decode(digest.value).hex() if digest.label == "sha1" else digest.value
