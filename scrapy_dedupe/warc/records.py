r"""WARC 1.1 records, written strictly (ISO 28500:2017).

A record is ``WARC/1.1``, its named fields, a blank line, the block and two more line ends. An exchange is its
principal record (``response`` or ``revisit``) followed by its ``request``, which names the principal's id in
WARC-Concurrent-To; both carry the date of the capture.

WARC-Payload-Digest is the digest of the stored body. It is written only if it identifies a payload: never for an empty
body, nor for a body that could not be decoded. WARC-Block-Digest uses the same algorithm. A ``revisit`` keeps the HTTP
head as its block and has WARC-Truncated for that reason; ``server-not-modified`` has no block at all, because replay
programs show a 304 status line in a block as an empty page. A ``resource`` holds a page that a browser rendered, or a
decoded body, without an HTTP head and without a request, since both are unknown.

Fields are safe by construction: URIs are percent-encoded, and `Record.to_bytes` rejects a field with a line end. The
URI of an original is written exactly as in its own record, since replay programs compare the two;
`can_be_referred_to` decides which records can be an original.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapy_dedupe.warc.capture import Capture, digest_text, parse_digest, target_uri
from scrapy_dedupe.warc.dates import format_date, parse_date

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

IDENTICAL_PAYLOAD = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
SERVER_NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

_PROTOCOLS = {"http/2": "h2", "http/2.0": "h2", "http/3": "h3", "http/3.0": "h3"}
_PROTOCOL = re.compile(r"[a-z0-9][a-z0-9./-]*")
_LINE_ENDS = str.maketrans("\r\n", "  ")
_RECORD_ID = re.compile(r"<[!#-;=?-~]+>")  # in brackets, the characters that `target_uri` leaves unchanged
_OUR_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_MAX_READ_BACK_BYTES = 1 << 16
_GRAPHIC = re.compile(rb"[!-~]+")
# Control characters except the tab, and characters that readers may treat as line ends.
_NOT_READ_BACK = re.compile(r"[\x00-\x08\x0a-\x1f\x85\u2028\u2029]")
_REFERRED_ID = re.compile(r"<[^\s<>]+>|[^\s<>]+")

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record that can be written: its named fields without Content-Length, and its block in one or two pieces."""

    headers: Fields
    head: bytes
    body: bytes = b""

    @property
    def block(self) -> bytes:
        """The whole block."""
        return self.head + self.body

    def get(self, name: str) -> str | None:
        """Return the first field of that name."""
        name = name.lower()
        for field, value in self.headers:
            if field.lower() == name:
                return value
        return None

    @property
    def type(self) -> str:
        """WARC-Type."""
        return self.get("WARC-Type") or ""

    @property
    def id(self) -> str:
        """WARC-Record-ID with its angle brackets."""
        return self.get("WARC-Record-ID") or ""

    @property
    def target_uri(self) -> str | None:
        """WARC-Target-URI."""
        return self.get("WARC-Target-URI")

    @property
    def date(self) -> str:
        """The text of WARC-Date."""
        return self.get("WARC-Date") or ""

    def to_bytes(self) -> bytes:
        """Return the record as stored in an uncompressed file. Raises ValueError on an unsafe field."""
        lines = ["WARC/1.1", *map(": ".join, self.headers)]
        lines.append(f"Content-Length: {len(self.head) + len(self.body)}\r\n\r\n")
        head = "\r\n".join(lines)
        line_ends = len(lines) + 1
        if head.count("\n") != line_ends or head.count("\r") != line_ends:
            raise ValueError(f"A field of the {self.type} record {self.id} contains a line end.")
        return b"".join((head.encode("utf-8"), self.head, self.body, b"\r\n\r\n"))


def reads_back(value: bytes) -> bool:
    """Whether every reader of a named field gets exactly *value*.

    Readers differ in what they strip, where they split lines and how they decode bytes that are not UTF-8, so such
    values are rejected, as are empty values and values of more than 64 KiB.

    >>> reads_back("http://example.org/\u00e9".encode()), reads_back("http://example.org/\u00a0".encode())
    (True, False)
    """
    if not 0 < len(value) <= _MAX_READ_BACK_BYTES:
        return False
    if _GRAPHIC.fullmatch(value):
        return True
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    # JavaScript's trim() strips the byte order mark as well.
    return text == text.strip().strip("\ufeff") and not _NOT_READ_BACK.search(text)


def can_be_referred_to(
    uri: bytes | None, date: bytes | None, record_id: bytes | None = None, digest: bytes | None = None
) -> bool:
    """Whether a revisit can refer to a record such that every reader gets the exact values of that record.

    The values are its WARC-Target-URI (without angle brackets), WARC-Date, WARC-Record-ID and WARC-Payload-Digest, as
    bytes. URI and date are required.
    """
    if uri is None or date is None or not all(reads_back(value) for value in (uri, date)):
        return False
    if uri[:1] == b"<":
        # Readers remove angle brackets.
        return False
    try:
        parse_date(date.decode("utf-8"))
    except ValueError:
        return False
    if record_id is not None and not (
        reads_back(record_id) and _REFERRED_ID.fullmatch(record_id.decode("utf-8"))
    ):
        return False
    return digest is None or reads_back(digest)


def new_record_id() -> str:
    """Return a new ``<urn:uuid:…>`` of version 4 (RFC 9562, section 5.4)."""
    # uuid.uuid4() creates an object first, which takes five times as long.
    h = os.urandom(16).hex()
    variant = "89ab"[int(h[16], 16) & 3]
    return f"<urn:uuid:{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}>"


def warcinfo(
    filename: str,
    info: Mapping[str, str],
    date: datetime,
    *,
    record_id: str | None = None,
    algorithm: str = "sha256",
) -> Record:
    """Return the record that opens a file: *info* as ``application/warc-fields``, in the given order."""
    block = "".join(f"{_one_line(name)}: {_one_line(value)}\r\n" for name, value in info.items())
    encoded = block.encode("utf-8")
    return Record(
        (
            ("WARC-Type", "warcinfo"),
            ("WARC-Record-ID", record_id or new_record_id()),
            ("WARC-Date", format_date(date)),
            ("WARC-Filename", _one_line(filename)),
            ("WARC-Block-Digest", f"{algorithm}:{digest_text(encoded, algorithm)}"),
            ("Content-Type", "application/warc-fields"),
        ),
        encoded,
    )


def response(
    capture: Capture, *, digest: str, has_payload_digest: bool = True, warcinfo_id: str | None = None
) -> Record:
    """Return the record that holds the body; *digest* is `Capture.payload_digest`, with or without label.

    Without *has_payload_digest* WARC-Payload-Digest is left out, so that no other record refers to this body. This is
    used for bodies that could not be decoded in an archive of decoded payloads.
    """
    digest_field, algorithm = _labelled(digest)
    fields = _common("response", capture, warcinfo_id)
    if capture.body and has_payload_digest:
        fields.append(("WARC-Payload-Digest", digest_field))
    if capture.truncated:
        fields.append(("WARC-Truncated", capture.truncated))
    return _http_record(fields, capture.response_head(), capture.body, algorithm, "response")


def revisit(
    capture: Capture,
    *,
    digest: str,
    refers_to: str | None = None,
    refers_to_uri: str,
    refers_to_date: str,
    container: str | None = None,
    original_digest: str | None = None,
    warcinfo_id: str | None = None,
) -> Record:
    """Return the record of a payload that the original already holds (WARC 1.1, section 6.7.2).

    *refers_to* is the record id of the original (a ``response``), *refers_to_uri* its WARC-Target-URI and
    *refers_to_date* the text of its WARC-Date. *container* is the name of the WACZ with the original, if it is in
    another WACZ; it becomes ``WARC-Refers-To-Container: file://NAME``, which Browsertrix writes and wabac.js reads
    (iipc/warc-specifications#111). *original_digest* is the text of the original's WARC-Payload-Digest, if it is not
    in the usual form: pywb compares texts. Raises ValueError for an empty or incomplete body, which cannot be matched
    to another record, and for an original that cannot be referred to.
    """
    if not capture.body or not capture.is_complete:
        raise ValueError(f"{capture.url}: an empty or incomplete body cannot be a revisit.")
    digest_field, algorithm = _labelled(digest)
    fields = _common("revisit", capture, warcinfo_id)
    fields.append(("WARC-Profile", IDENTICAL_PAYLOAD))
    fields += _reference(refers_to, refers_to_uri, refers_to_date, container)
    fields.append(("WARC-Payload-Digest", original_digest or digest_field))
    fields.append(("WARC-Truncated", "length"))
    return _http_record(fields, capture.response_head(), b"", algorithm, "response")


def not_modified(
    capture: Capture,
    *,
    refers_to: str | None = None,
    refers_to_uri: str,
    refers_to_date: str,
    digest: str | None = None,
    container: str | None = None,
    original_digest: str | None = None,
    warcinfo_id: str | None = None,
) -> Record:
    """Return the record of a 304 whose original is known, without a block (WARC 1.1, section 6.7.3).

    *digest*, if given, is the original's payload digest, and *original_digest* its text, as for `revisit`.
    Raises ValueError if the status is not 304, and for an original that cannot be referred to.
    """
    if capture.status != 304:
        raise ValueError(f"{capture.url}: status {capture.status} is not 304 (Not Modified).")
    fields = _common("revisit", capture, warcinfo_id)
    fields.append(("WARC-Profile", SERVER_NOT_MODIFIED))
    fields += _reference(refers_to, refers_to_uri, refers_to_date, container)
    if digest:
        fields.append(("WARC-Payload-Digest", original_digest or _labelled(digest)[0]))
    return Record(tuple(fields), b"")


def request(
    capture: Capture, *, concurrent_to: str, warcinfo_id: str | None = None, algorithm: str = "sha256"
) -> Record:
    """Return the request of an exchange; *concurrent_to* is the id of its principal record."""
    fields = _common("request", capture, warcinfo_id)
    fields.append(("WARC-Concurrent-To", _bracketed(concurrent_to)))
    if capture.request_body:
        digest = digest_text(capture.request_body, algorithm)
        fields.append(("WARC-Payload-Digest", f"{algorithm}:{digest}"))
    return _http_record(fields, capture.request_head(), capture.request_body, algorithm, "request")


def resource(capture: Capture, *, digest: str, warcinfo_id: str | None = None) -> Record:
    """Return the record of a body that no server sent in this form (WARC 1.1, section 6.3); see `Capture.rendering`."""
    digest_field, algorithm = _labelled(digest)
    fields = _common("resource", capture, warcinfo_id)
    fields.append(("WARC-Payload-Digest", digest_field))
    fields.append(("WARC-Block-Digest", f"{algorithm}:{digest_text(capture.body, algorithm)}"))
    fields.append(("Content-Type", _one_line(_resource_type(capture))))
    return Record(tuple(fields), b"", capture.body)


def _resource_type(capture: Capture) -> str:
    """Return the media type of a body: that of the response, unless the body is the HTML of a browser."""
    declared = (capture.content_type or b"").decode("latin-1").strip()
    if capture.rendering is None or not capture.rendering.is_html:
        return declared or "application/octet-stream"
    media_type, semicolon, parameters = declared.partition(";")
    if "html" not in media_type.lower():
        media_type = "text/html"
    try:
        capture.body.decode()
    except UnicodeDecodeError:
        is_utf8 = False
    else:
        # The rendered text may not fit into the charset of the response; then it is encoded as UTF-8.
        is_utf8 = not capture.body.isascii()
    return f"{media_type}; charset=utf-8" if is_utf8 else f"{media_type}{semicolon}{parameters}"


def _common(record_type: str, capture: Capture, warcinfo_id: str | None) -> list[tuple[str, str]]:
    return [
        ("WARC-Type", record_type),
        ("WARC-Record-ID", new_record_id()),
        ("WARC-Date", capture.warc_date),
        ("WARC-Target-URI", capture.target_uri),
        *_connection(warcinfo_id, capture.ip_address, capture.protocol),
    ]


# The same for all exchanges with a server.
@lru_cache(1024)
def _connection(warcinfo_id: str | None, ip_address: str | None, protocol: str | None) -> Fields:
    """Return the id of the warcinfo, the address, and WARC-Protocol with names from the registry of its proposal."""
    fields = [("WARC-Warcinfo-ID", _bracketed(warcinfo_id))] if warcinfo_id else []
    if ip_address:
        fields.append(("WARC-IP-Address", _one_line(ip_address)))
    protocols = [name.strip().lower() for name in (protocol or "").split(",")]
    fields += [("WARC-Protocol", _PROTOCOLS.get(p, p)) for p in protocols if _PROTOCOL.fullmatch(p)]
    return tuple(fields)


def _reference(refers_to: str | None, uri: str, date: str, container: str | None) -> list[tuple[str, str]]:
    if not can_be_referred_to(uri.encode("utf-8", "surrogatepass"), date.encode("utf-8", "surrogatepass")):
        raise ValueError(f"A revisit cannot refer to the record of {uri[:200]!r}, {date!r}.")
    fields = [("WARC-Refers-To", _bracketed(refers_to))] if refers_to else []
    fields += [("WARC-Refers-To-Target-URI", uri), ("WARC-Refers-To-Date", date)]
    if container:
        fields.append(("WARC-Refers-To-Container", f"file://{quote(container)}"))
    return fields


def _http_record(
    fields: list[tuple[str, str]], head: bytes, body: bytes, algorithm: str, message: str
) -> Record:
    fields.append(("WARC-Block-Digest", f"{algorithm}:{digest_text(head, algorithm, body)}"))
    fields.append(("Content-Type", f"application/http; msgtype={message}"))
    return Record(tuple(fields), head, body)


def _labelled(digest: str) -> tuple[str, str]:
    """Return the digest as a field, and the algorithm for the digest of the block."""
    if ours := _OUR_SHA256.fullmatch(digest):
        return f"sha256:{ours[1]}", "sha256"
    parsed = parse_digest(digest)
    return str(parsed), parsed.label if parsed.label in ("sha1", "sha256") else "sha256"


def _bracketed(record_id: str) -> str:
    if _RECORD_ID.fullmatch(record_id):
        return record_id
    return f"<{target_uri(record_id.strip().strip('<>'))}>"


def _one_line(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_LINE_ENDS).encode("utf-8", "replace").decode("utf-8")
