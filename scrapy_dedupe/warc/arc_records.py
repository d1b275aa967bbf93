"""Records of ARC files (versions 1 and 2) as records of WARC 1.1 (ISO 28500:2017).

- The version block and its header line become the block of a ``metadata`` record that refers to the warcinfo.
- A capture over HTTP becomes a ``response`` with an unchanged block. Any other capture, such as DNS or one without a
  status line (HTTP/0.9), becomes a ``resource`` with the media type from the ARC header line.
- Bytes that are not allowed in a URI are percent-encoded. WARC-Date is the date of the ARC, to the second.
  WARC-IP-Address is omitted if the address is invalid or 0.0.0.0. Digests are computed from the payload without chunked
  transfer coding, and of the block.
- Record ids are UUIDs of version 5 (RFC 9562, section 5.5) of the file name and the record's offset, so that
  converting a file again yields identical bytes.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes

from scrapy_dedupe.warc.bodies import BodyHashes, payload_digest
from scrapy_dedupe.warc.capture import SAFE_URI_CHARACTERS, parse_digest
from scrapy_dedupe.warc.framing import open_block, open_head
from scrapy_dedupe.warc.raw_heads import RawHead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord

_NAMESPACE: Final = uuid.UUID("8d4f3c62-0b7e-5a19-9c53-6e1f2a7d4b90")
_VERSION: Final = b"WARC/1.1"
_CONFORMS_TO: Final = "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
_MEDIA_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+[ -~]*")
_UNKNOWN_TYPE: Final = "application/octet-stream"
_NO_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - old crawlers wrote it for a missing address


class ConvertedRecord(NamedTuple):
    """A record of an ARC file, with the type, URI and date of its WARC record."""

    record: StoredRecord
    type: str
    uri: str
    date: str

    @property
    def block_length(self) -> int:
        """The length of the block of the WARC record."""
        frame = self.record.frame
        return frame.block_length + (frame.block_position - frame.head_position) * (self.type == "metadata")

    def block(self) -> Iterator[bytes]:
        """The block of the WARC record, in pieces. Raises DamagedInput if it cannot be read again."""
        record = self.record
        if self.type == "metadata":
            yield open_head(record.path, record.frame)
        if record.frame.is_held:
            yield record.frame.kept
        else:
            yield from open_block(record.path, record.frame)

    def head(self, file_name: str, algorithm: str) -> RawHead:
        """The head of the WARC record; *file_name* is the name of the ARC file, *algorithm* is for the digests."""
        record, info_id = self.record, warcinfo_id(file_name)
        place = str(record.offset) if record.length else f"{record.offset}#{record.frame.block_position}"
        fields = [
            ("WARC-Type", self.type),
            ("WARC-Record-ID", _record_id(file_name, place)),
            ("WARC-Date", self.date),
            ("WARC-Target-URI", self.uri),
            ("WARC-Warcinfo-ID", info_id),
        ]
        if self.type == "metadata":
            fields.append(("WARC-Refers-To", info_id))
        elif address := _address(record.get("ip-address")):
            fields.append(("WARC-IP-Address", address))
        block_digest = digest_of_pieces(self.block(), algorithm)
        if self.type == "response":
            payload = payload_digest(record, algorithm)
            if payload.size_bytes:
                fields.append(("WARC-Payload-Digest", _digest_text(algorithm, payload.hex)))
        elif self.type == "resource" and self.block_length:
            fields.append(("WARC-Payload-Digest", block_digest))
        fields += [("WARC-Block-Digest", block_digest), ("Content-Type", self._content_type())]
        return _head(fields)

    def _content_type(self) -> str:
        if self.type == "response":
            return "application/http; msgtype=response"
        given = self.record.get("content-type") or ""
        return given if _MEDIA_TYPE.fullmatch(given) else _UNKNOWN_TYPE


def converted_record(record: StoredRecord, first_date: str) -> ConvertedRecord:
    """The WARC record of an ARC record; *first_date* is the date of the version block, which may have none of its own."""
    uri = _uri(record)
    if record.type == "warcinfo":
        return ConvertedRecord(record, "metadata", uri, first_date)
    is_response = record.type == "response" and record.http_status is not None
    return ConvertedRecord(record, "response" if is_response else "resource", uri, record.date or "")


def converted_warcinfo(
    file_name: str, new_name: str, date: str, *, software: str, algorithm: str
) -> tuple[RawHead, bytes]:
    """The head and the block of the warcinfo of the WARC file *new_name*, which is made from the ARC file *file_name*."""
    lines = {
        "software": software,
        "format": "WARC File Format 1.1",
        "conformsTo": _CONFORMS_TO,
        "description": f"converted from the ARC file {_one_line(file_name)}",
    }
    block = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
    fields = [
        ("WARC-Type", "warcinfo"),
        ("WARC-Record-ID", warcinfo_id(file_name)),
        ("WARC-Date", date),
        ("WARC-Filename", _one_line(new_name)),
        ("WARC-Block-Digest", digest_of_pieces([block], algorithm)),
        ("Content-Type", "application/warc-fields"),
    ]
    return _head(fields), block


def warcinfo_id(file_name: str) -> str:
    """The id of the warcinfo of the WARC file that is made from the ARC file *file_name*."""
    return _record_id(file_name, "warcinfo")


def digest_of_pieces(pieces: Iterable[bytes], algorithm: str = "sha256") -> str:
    """The labelled digest of *pieces*, in the form of `capture.parse_digest`."""
    hashes = BodyHashes((algorithm,))
    for piece in pieces:
        hashes.update(piece)
    return _digest_text(algorithm, hashes.digests()[0].hex)


def _record_id(file_name: str, place: str) -> str:
    return f"<urn:uuid:{uuid.uuid5(_NAMESPACE, f'{file_name}#{place}')}>"


def _head(fields: Iterable[tuple[str, str]]) -> RawHead:
    return RawHead(_VERSION, tuple((name.encode(), value.encode()) for name, value in fields))


def _digest_text(algorithm: str, digits: str) -> str:
    return str(parse_digest(f"{algorithm}:{digits}"))


def _uri(record: StoredRecord) -> str:
    """The URL, with the bytes percent-encoded that a URI must not contain."""
    line, text = open_head(record.path, record.frame), record.target_uri or ""
    # A line that is not UTF-8 is decoded as Latin-1. The line cannot be split at spaces here: both the URL and the media
    # type may contain them, so only the reader knows where the URL ends.
    url = text.encode("utf-8")
    if not line.startswith(url + b" "):
        url = text.encode("latin-1")
    return quote_from_bytes(url, safe=SAFE_URI_CHARACTERS)


def _address(text: str | None) -> str | None:
    try:
        return None if not text or text == _NO_ADDRESS else str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ").encode("utf-8", "replace").decode("utf-8")
