"""Convert ARC files (versions 1 and 2) to WARC 1.1 (ISO 28500:2017), and verify that nothing was lost.

- The file begins with a ``warcinfo`` record, which has the date of the ARC's version block and names the source file.
- The version block and its header line become the block of a ``metadata`` record that refers to the warcinfo.
- A capture over HTTP becomes a ``response`` with an unchanged block. Any other capture, such as DNS or one without a
  status line (HTTP/0.9), becomes a ``resource`` with the media type from the ARC header line.
- Bytes that are not allowed in a URI are percent-encoded. WARC-Date is the date of the ARC, to the second.
  WARC-IP-Address is omitted if the address is invalid or 0.0.0.0. Digests are computed from the payload without chunked
  transfer coding, and of the block.
- Record ids are UUIDs of version 5 (RFC 9562, section 5.5) of the file name and the record's offset, so that
  converting a file again yields identical bytes.

Both files are then read again and compared record by record: URI, date, digests of payload and block, in order. The
new file gets its final name only after this comparison.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.bodies import hasher_of, payload_digest
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.framing import open_block, open_head
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import shown
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from .file_rewriting import RecordFile
from .manifest_lines import is_date

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_NAMESPACE: Final = uuid.UUID("8d4f3c62-0b7e-5a19-9c53-6e1f2a7d4b90")
_CONFORMS_TO: Final = "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
_SAFE_URI: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"<>')
_MEDIA_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+[ -~]*")
_UNKNOWN_TYPE: Final = "application/octet-stream"
_NO_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - old crawlers wrote it for a missing address
_PROGRESS_BYTES: Final = 1 << 20

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of a conversion.

    ``gzip`` None: compress the output if the input is compressed. ``software`` is written to the warcinfo.
    """

    algorithm: str = "sha256"
    gzip: bool | None = None
    force: bool = False
    software: str = "scrapy-dedupe"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result for one file. ``was_there``: an earlier run made the output, and it is correct."""

    responses: int
    resources: int
    metadata: int
    bytes_before: int
    bytes_after: int
    was_there: bool = False

    @property
    def records(self) -> int:
        """All records of the ARC file."""
        return self.responses + self.resources + self.metadata


class _Capture(NamedTuple):
    """A record of an ARC file with the type and fields of its WARC record."""

    record: StoredRecord
    type: str
    uri: str
    date: str


class _Line(NamedTuple):
    """The values that must be equal in both files."""

    type: str
    uri: str | None
    date: str | None
    payload: str
    block: str


def convert_arc(
    source: ReadableFile, output: Path, *, options: ConversionOptions, faults: Faults, watch: Progress
) -> Conversion | None:
    """Write the WARC file *output* from an ARC file; return None if *source* has no ARC record.

    A record that is damaged or has no date is a fault. If *output* exists, it is compared with the ARC file and
    accepted if it is correct. Raises ArchiveError if *output* differs and must not be replaced; DamagedInput for the
    first fault, unless *faults* is set to keep going, and if the files differ after the conversion.
    """
    if output.exists() and not options.force:
        return _found(source, output, faults)
    began = faults.count
    date = _first_date(source, faults)
    if date is None:
        if faults.count == began:
            faults.add(shown(str(source)), "it has no ARC record with a date")
        return None
    counts = Counter[str]()
    with RecordFile(output, gzip=is_gzip(source) if options.gzip is None else options.gzip) as target:
        info = _warcinfo(source, output, date, options)
        info_id = record_id(source.name, "warcinfo")
        target.write(*info)
        reported = 0
        for capture in _captures(source, date, faults):
            target.write(*_record(capture, source.name, info_id, options.algorithm))
            counts[capture.type] += 1
            if capture.record.offset - reported >= _PROGRESS_BYTES:
                watch.advance(capture.record.offset - reported)
                reported = capture.record.offset
        target.finish(check=lambda path: _refuse_difference(source, path, date))
    return _conversion(counts, source, output)


def is_gzip(source: ReadableFile) -> bool:
    """Whether a file begins as gzip. Raises ArchiveError if it cannot be read."""
    with reading(source), source.open("rb") as file:
        return file.read(2) == GZIP_MAGIC[:2]


def warc_name(name: str, *, gzip: bool) -> str:
    """The name of the WARC file for an ARC file.

    >>> warc_name("IA-000001.arc.gz", gzip=True), warc_name("old.ARC", gzip=False)
    ('IA-000001.warc.gz', 'old.warc')
    """
    stem = re.sub(r"(\.arc)?(\.gz)?\Z", "", name, flags=re.IGNORECASE)
    return f"{stem}.warc{'.gz' if gzip else ''}"


def record_id(name: str, place: str) -> str:
    """The id of the record made from a place (an offset, or ``warcinfo``) in a file."""
    return f"<urn:uuid:{uuid.uuid5(_NAMESPACE, f'{name}#{place}')}>"


def _found(source: ReadableFile, output: Path, faults: Faults) -> Conversion:
    try:
        first = next(read_records(output), None)
        if first is None or first.id != record_id(source.name, "warcinfo") or first.date is None:
            raise DamagedInput("it was made from a different file")
        counts = Counter(capture.type for capture in _captures(source, first.date, faults))
        _refuse_difference(source, output, first.date)
    except DamagedInput as error:
        if not faults.keep_going and faults.count:
            raise
        raise ArchiveError(
            f"{output} already exists ({error}). Choose another folder, or replace it with --force."
        ) from error
    return _conversion(counts, source, output, was_there=True)


def _conversion(
    counts: Counter[str], source: ReadableFile, output: Path, *, was_there: bool = False
) -> Conversion:
    with source.open("rb") as file:
        size_bytes = file.seek(0, 2)
    return Conversion(
        counts["response"],
        counts["resource"],
        counts["metadata"],
        size_bytes,
        output.stat().st_size,
        was_there,
    )


def _first_date(source: ReadableFile, faults: Faults) -> str | None:
    """The first valid date of an ARC file."""
    for record in _arc_records(source, lambda _: None):
        if record.format != "arc":
            faults.add(shown(str(source)), "it already holds WARC records; there is nothing to convert")
            return None
        if record.date and is_date(record.date):
            return record.date
    return None


def _captures(source: ReadableFile, first_date: str, faults: Faults | None) -> Iterator[_Capture]:
    """The records of an ARC file that can be converted. Others are faults; with *faults* None they are skipped."""
    on_damage = faults.add_damage if faults is not None else lambda _: None
    for record in _arc_records(source, on_damage):
        if record.format != "arc":
            if faults is not None:
                faults.add(_place(record), "a WARC record is in an ARC file")
            continue
        uri = _uri(record)
        if record.type == "warcinfo":
            yield _Capture(record, "metadata", uri, first_date)
            continue
        date = record.date or ""
        if not is_date(date):
            if faults is not None:
                faults.add(_place(record), f"the date {record.get('archive-date')!r} is invalid")
            continue
        is_response = record.type == "response" and record.http_status is not None
        yield _Capture(record, "response" if is_response else "resource", uri, date)


def _arc_records(source: ReadableFile, on_damage: Callable[[Damage], None]) -> Iterator[StoredRecord]:
    with reading(source):
        yield from read_records(source, on_damage=on_damage)


def _warcinfo(
    source: ReadableFile, output: Path, date: str, options: ConversionOptions
) -> tuple[bytes, list[bytes], int]:
    lines = {
        "software": options.software,
        "format": "WARC File Format 1.1",
        "conformsTo": _CONFORMS_TO,
        "description": f"converted from the ARC file {_one_line(source.name)}",
    }
    block = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
    fields = (
        ("WARC-Type", "warcinfo"),
        ("WARC-Record-ID", record_id(source.name, "warcinfo")),
        ("WARC-Date", date),
        ("WARC-Filename", _one_line(output.name)),
        ("WARC-Block-Digest", _as_text(options.algorithm, _digest([block], options.algorithm))),
        ("Content-Type", "application/warc-fields"),
    )
    return _head(fields, len(block)), [block], len(block)


def _record(capture: _Capture, name: str, info_id: str, algorithm: str) -> tuple[bytes, Iterable[bytes], int]:
    record = capture.record
    frame = record.frame
    place = str(record.offset) if record.length else f"{record.offset}#{frame.block_position}"
    fields = [
        ("WARC-Type", capture.type),
        ("WARC-Record-ID", record_id(name, place)),
        ("WARC-Date", capture.date),
        ("WARC-Target-URI", capture.uri),
        ("WARC-Warcinfo-ID", info_id),
    ]
    if capture.type == "metadata":
        fields.append(("WARC-Refers-To", info_id))
    elif address := _address(record.get("ip-address")):
        fields.append(("WARC-IP-Address", address))
    length = frame.block_length + (
        len(open_head(record.path, record.frame)) if capture.type == "metadata" else 0
    )
    block_digest = _as_text(algorithm, _digest(_block(capture), algorithm))
    if capture.type == "response":
        payload = payload_digest(record, algorithm)
        if payload.size_bytes:
            fields.append(("WARC-Payload-Digest", _as_text(algorithm, bytes.fromhex(payload.hex))))
    elif capture.type == "resource" and length:
        fields.append(("WARC-Payload-Digest", block_digest))
    fields.append(("WARC-Block-Digest", block_digest))
    fields.append(("Content-Type", _content_type(capture)))
    return _head(tuple(fields), length), _block(capture), length


def _head(fields: Fields, length: int) -> bytes:
    lines = ["WARC/1.1", *(f"{name}: {value}" for name, value in fields), f"Content-Length: {length}", "", ""]
    return "\r\n".join(lines).encode("utf-8")


def _block(capture: _Capture) -> Iterator[bytes]:
    record = capture.record
    if capture.type == "metadata":
        yield open_head(record.path, record.frame)
    if len(record.frame.kept) == record.frame.block_length:
        yield record.frame.kept
    else:
        yield from open_block(record.path, record.frame)


def _uri(record: StoredRecord) -> str:
    """The URL, with the bytes percent-encoded that a URI must not contain."""
    line, text = open_head(record.path, record.frame), record.target_uri or ""
    # A line that is not UTF-8 is decoded as Latin-1. The line cannot be split at spaces here: both the URL and the media
    # type may contain them, so only the reader knows where the URL ends.
    url = text.encode("utf-8")
    if not line.startswith(url + b" "):
        url = text.encode("latin-1")
    return quote_from_bytes(url, safe=_SAFE_URI)


def _content_type(capture: _Capture) -> str:
    if capture.type == "response":
        return "application/http; msgtype=response"
    given = capture.record.get("content-type") or ""
    return given if _MEDIA_TYPE.fullmatch(given) else _UNKNOWN_TYPE


def _address(text: str | None) -> str | None:
    try:
        return None if not text or text == _NO_ADDRESS else str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _refuse_difference(source: ReadableFile, path: Path, first_date: str) -> None:
    """Compare both files record by record. Raises DamagedInput for the first difference."""
    before = ((capture.record, _line_of_arc(capture)) for capture in _captures(source, first_date, None))
    after = ((record, _line_of_warc(record)) for record in read_records(path) if record.type != "warcinfo")
    for old, new in zip_longest(before, after):
        if old is None or new is None or old[1] != new[1]:
            there = f"{path}, offset {new[0].offset}" if new is not None else f"the end of {path}"
            here = _place(old[0]) if old is not None else f"the end of {shown(str(source))}"
            raise DamagedInput(
                f"{here} differs from {there}. The file has changed during the conversion; convert it again."
            )


def _line_of_arc(capture: _Capture) -> _Line:
    block = _digest(_block(capture)).hex()
    payload = payload_digest(capture.record).hex if capture.type == "response" else block
    return _Line(capture.type, capture.uri, capture.date, payload, block)


def _line_of_warc(record: StoredRecord) -> _Line:
    block = _digest(open_block(record.path, record.frame)).hex()
    return _Line(record.type, record.target_uri, record.date, payload_digest(record).hex, block)


def _digest(pieces: Iterable[bytes], algorithm: str = "sha256") -> bytes:
    hasher = hasher_of(algorithm)
    for piece in pieces:
        hasher.update(piece)
    found: bytes = hasher.digest()
    return found


def _as_text(algorithm: str, digest: bytes) -> str:
    return str(parse_digest(f"{algorithm}:{digest.hex()}"))


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).replace("\r", " ").encode("utf-8", "replace").decode("utf-8")


def _place(record: StoredRecord) -> str:
    return f"{shown(str(record.path))}, offset {record.offset}"
