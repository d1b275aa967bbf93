"""Records read from WARC and ARC files, gzip or plain, intact or damaged.

`read_records` yields every whole record with its place in the file. Damaged places are skipped and reported: to the
callback if there is one, else by one DamagedInput after the last record, so that a damaged file is never mistaken for
an intact one. `framing` defines what counts as damage.

Blocks up to 8 MiB are held with the record; the payload of a longer one is read from the file again.

ARC records are mapped to WARC types: the version block is a ``warcinfo``, an HTTP capture a ``response``, anything
else (DNS) a ``resource``. They have no record id and no digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.capture import Digest, Headers, parse_digest
from scrapy_dedupe.warc.chunks import without_chunks
from scrapy_dedupe.warc.framing import Damage, Frame, frames, open_block, unfolded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.framing import Layouts
    from scrapy_dedupe.warc.sources import ReadableFile

KEPT_BYTES = 8 << 20

_USUAL_HEAD_BYTES = 4_096

_STATUS_LINE = re.compile(rb"\s*(?P<line>HTTP/\d(?:\.\d)?\s+(?P<status>\d{3}))(?:\s|\Z)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"[!-~]+ [^\r\n]* HTTP/\d", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True, slots=True)
class HttpHead:
    """The HTTP head of a block; `status` is None in a request; `length` counts its bytes.

    `text` is everything between the first line and the blank line. Headers are parsed on first access, since most
    readers of a file need them for few records.
    """

    first_line: bytes
    status: int | None
    text: bytes
    length: int
    _headers: Headers = field(init=False, repr=False, compare=False)

    @property
    def headers(self) -> Headers:
        """The headers in order, folded ones in one line."""
        try:
            return self._headers
        except AttributeError:
            headers = _headers(self.text)
            object.__setattr__(self, "_headers", headers)
            return headers

    @property
    def is_chunked(self) -> bool:
        """Whether the head declares a chunked body."""
        if b"chunked" not in self.text.lower():
            return False
        codings = b",".join(self.get_all(b"Transfer-Encoding")).lower()
        return codings.strip().endswith(b"chunked")

    def get(self, name: bytes) -> bytes | None:
        """Return the first header of that name."""
        name = name.lower()
        return next((value for header, value in self.headers if header.lower() == name), None)

    def get_all(self, name: bytes) -> list[bytes]:
        """Return every header of that name, in order."""
        name = name.lower()
        return [value for header, value in self.headers if header.lower() == name]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A whole record of a file.

    `offset` and `length` are bytes as stored, blank lines after the record included; `length` is 0 for a
    record that shares a gzip member with others. `type` is in lower case; `date` is the text of WARC-Date.
    """

    path: ReadableFile
    offset: int
    length: int
    format: str
    type: str
    id: str | None
    target_uri: str | None
    date: str | None
    frame: Frame
    _holds_http: bool = field(repr=False, compare=False)
    _http: HttpHead | None = field(init=False, repr=False, compare=False)

    @property
    def http(self) -> HttpHead | None:
        """The HTTP head in the block, if there is one; parsed on first access."""
        try:
            return self._http
        except AttributeError:
            http = self._read_http() if self._holds_http else None
            object.__setattr__(self, "_http", http)
            return http

    def _read_http(self) -> HttpHead | None:
        # A body can be a thousand times longer than its head.
        beginning = self.frame.part(0, _USUAL_HEAD_BYTES)
        is_enough = len(beginning) < _USUAL_HEAD_BYTES or b"\r\n\r\n" in beginning.lstrip()
        return _http_head(beginning if is_enough else self.frame.kept)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The named fields in order, as they were read."""
        return self.frame.fields

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.path.name

    def get(self, name: str) -> str | None:
        """Return the first named field of that name."""
        return self.frame.first(name.lower())

    def get_all(self, name: str) -> list[str]:
        """Return every named field of that name, in order."""
        return self.frame.all(name.lower())

    @property
    def http_status(self) -> int | None:
        """The status in the block, if it is an HTTP response."""
        return self.http.status if self.http else None

    @property
    def http_headers(self) -> Headers:
        """The HTTP headers in the block, as bytes and in order."""
        return self.http.headers if self.http else ()

    @property
    def payload_digest(self) -> Digest | None:
        """WARC-Payload-Digest in normalized form; None if there is none or its form is unknown."""
        text = self.get("WARC-Payload-Digest")
        try:
            return parse_digest(text) if text else None
        except ValueError:
            return None

    @property
    def concurrent_to(self) -> str | None:
        """WARC-Concurrent-To."""
        return self.get("WARC-Concurrent-To")

    @property
    def profile(self) -> str | None:
        """WARC-Profile of a revisit."""
        return bare_uri(self.get("WARC-Profile"))

    @property
    def refers_to(self) -> str | None:
        """WARC-Refers-To: the record id of the original."""
        return self.get("WARC-Refers-To")

    @property
    def refers_to_uri(self) -> str | None:
        """WARC-Refers-To-Target-URI, without the angle brackets that some writers put around it."""
        return bare_uri(self.get("WARC-Refers-To-Target-URI"))

    @property
    def refers_to_date(self) -> str | None:
        """WARC-Refers-To-Date."""
        return self.get("WARC-Refers-To-Date")

    @property
    def truncated(self) -> str | None:
        """WARC-Truncated. Revisits have ``length`` here, since their body is left out on purpose."""
        return self.get("WARC-Truncated")

    @property
    def is_truncated(self) -> bool:
        """Whether the payload was truncated when it was captured."""
        return self.truncated is not None and self.type != "revisit"

    @property
    def is_whole(self) -> bool:
        """Whether the payload is complete: neither truncated nor a part of it (206, or a segment)."""
        return not self.is_truncated and self.http_status != 206 and self.get("WARC-Segment-Number") is None

    def block(self) -> bytes:
        """Return the block as stored. Raises DamagedInput if it cannot be read again."""
        if self.frame.is_held:
            return self.frame.kept
        return b"".join(open_block(self.path, self.frame))

    def payload(self) -> bytes:
        """Return the stored entity body: the block without its HTTP head and chunked transfer coding.

        A content coding (gzip, br) is left as it is; a revisit has an empty payload. Raises DamagedInput
        if a long block cannot be read again.
        """
        if self.type == "revisit":
            return b""
        http = self.http
        if http is None:
            return self.block()
        body = self.frame.part(http.length) if self.frame.is_held else self.block()[http.length :]
        return without_chunks(body) if http.is_chunked else body

    def info(self) -> dict[str, str]:
        """Return the fields in the block of a ``warcinfo``, names in lower case."""
        fields: dict[str, str] = {}
        for line in self.block().decode("utf-8", "replace").splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip().lower(), value.strip())
        return fields


def read_records(
    path: ReadableFile | str,
    *,
    on_damage: Callable[[Damage], None] | None = None,
    on_long_block: Callable[[StoredRecord], Callable[[bytes], object] | None] | None = None,
    start: int = 0,
    layouts: Layouts | None = None,
) -> Iterator[StoredRecord]:
    """Yield the whole records of a WARC or ARC file, from the offset *start* on.

    *on_damage* is called for every damaged place when reading passes it. Without it, DamagedInput is
    raised after the last record, with the first damaged place and the number of others. Raises OSError if
    the file cannot be opened or read.

    If a block is too long to be held, *on_long_block* is called with the record before the rest of the block is read
    (`length` is 0 then). It may return a function that is called with the rest of the block in pieces, so that the
    block need not be read twice. The record is known to be whole only once it is yielded. *layouts* is for callers that
    read few records at a time; see `framing.frames`.
    """
    path = Path(path) if isinstance(path, str) else path
    damages: list[Damage] = []

    def on_long(frame: Frame) -> Callable[[bytes], object] | None:
        assert on_long_block is not None
        return on_long_block(stored_record(path, frame))

    for frame in frames(
        path,
        kept_bytes=KEPT_BYTES,
        on_damage=on_damage or damages.append,
        on_long_block=on_long if on_long_block else None,
        start=start,
        layouts=layouts,
    ):
        yield stored_record(path, frame)
    _raise_for(damages)


def read_record(path: ReadableFile | str, offset: int, *, block_position: int | None = None) -> StoredRecord:
    """Return the record that begins at *offset*. Raises DamagedInput if no whole record does.

    Records that share a gzip member have the same offset; *block_position* (see `Frame`) selects one.
    """
    path = Path(path) if isinstance(path, str) else path
    damages: list[Damage] = []
    for frame in frames(path, kept_bytes=KEPT_BYTES, on_damage=damages.append, start=offset):
        if frame.offset != offset:
            break
        if block_position in (None, frame.block_position):
            return stored_record(path, frame)
    _raise_for(damages[:1])
    raise DamagedInput(f"{path}, offset {offset}: the file ends before this offset, there is no record.")


def _raise_for(damages: list[Damage]) -> None:
    if damages:
        more = len(damages) - 1
        others = f" {more} other {'place is' if more == 1 else 'places are'} damaged too." if more else ""
        raise DamagedInput(f"{damages[0]}.{others}")


def stored_record(path: ReadableFile, frame: Frame) -> StoredRecord:
    """The record that a frame of *path* contains."""
    if frame.is_arc:
        fields = {name.lower(): value for name, value in reversed(frame.fields)}
        uri = fields["url"]
        record_type = "resource"
        if uri.startswith("filedesc:"):
            record_type = "warcinfo"
        elif uri.lower().startswith(("http:", "https:")):
            record_type = "response"
        date = _arc_date(fields["archive-date"])
        is_http = record_type == "response"
        return StoredRecord(
            path, frame.offset, frame.length, "arc", record_type, None, uri, date, frame, is_http
        )
    first = frame.first
    record_type = (first("warc-type") or "").lower()
    return StoredRecord(
        path,
        frame.offset,
        frame.length,
        "warc",
        record_type,
        first("warc-record-id"),
        bare_uri(first("warc-target-uri")),
        first("warc-date"),
        frame,
        record_type in ("response", "request", "revisit") and says_http(first("content-type")),
    )


def says_http(content_type: str | None) -> bool:
    """Whether the Content-Type of a record declares an HTTP message."""
    # GNU wget and the example in the standard use message/http for a revisit.
    return content_type is None or content_type.lower().startswith(("application/http", "message/http"))


def _http_head(block: bytes) -> HttpHead | None:
    begin = 0
    if block.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) and block[12:13] == b" " and block[9:12].isdigit():
        status: int | None = int(block[9:12])
    elif match := _STATUS_LINE.match(block):
        # Blank lines before the status line do not end the head.
        status, begin = int(match["status"]), match.start("line")
    elif _REQUEST_LINE.match(block):
        status = None
    else:
        return None
    end = block.find(b"\r\n\r\n", begin)
    if end >= 0 and block.count(b"\n", begin, end) == block.count(b"\r\n", begin, end):
        length = end + 4
    else:  # some line ends are bare LFs
        match = _HEAD_END.search(block, begin)
        end, length = match.span() if match else (len(block), len(block))
    first, _, text = block[begin:end].partition(b"\n")
    return HttpHead(first.removesuffix(b"\r"), status, text, length)


def _headers(text: bytes) -> Headers:
    text = unfolded(text)
    is_usual = text.count(b"\n") == text.count(b"\r\n")
    lines = text.split(b"\r\n") if is_usual else _LINE_END.split(text)
    fields = [line.partition(b":") for line in lines]
    return tuple([(name.strip(), value.strip(b" \t")) for name, colon, value in fields if colon])


def bare_uri(uri: str | None) -> str | None:
    """A URI without the angle brackets that some writers put around it."""
    if uri and uri.startswith("<") and uri.endswith(">"):
        return uri[1:-1]
    return uri


def _arc_date(digits: str) -> str:
    digits = (digits + "00000101000000"[len(digits) :])[:14]
    d = digits
    return f"{d[:4]}-{d[4:6]}-{d[6:8]}T{d[8:10]}:{d[10:12]}:{d[12:14]}Z"
