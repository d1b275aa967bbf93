r"""CDXJ files of other programs, read line by line.

A line is ``KEY TIMESTAMP JSON``; `cdxj` describes the form that this package writes. The values of the JSON object are
strings, or numbers for counts; unknown values are missing, null, empty or ``-``. The key is ignored, since every
program has its own form; empty lines and lines that begin with ``!``, the head of a ZipNum index, are skipped.

A line that does not parse, or lacks a value that is needed to find the capture, becomes a `CdxFault`; other lines are
not affected. Lines are UTF-8 and end with ``\n`` or ``\r\n``; a byte order mark before the first one is skipped. A file
is plain text or any number of gzip members; its first bytes decide, not its name.
"""

from __future__ import annotations

import itertools
import json
import re
import reprlib
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.codings import Incomplete, Undecodable, gunzipped, split_pieces
from scrapy_dedupe.warc.remote import open_in_order, read_errors, shown
from scrapy_dedupe.warc.sources import GZIP_MAGIC
from scrapy_dedupe.warc.zip_members import swollen_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.sources import ReadableFile

MAX_LINE_BYTES = 1 << 20

_REVISIT = "warc/revisit"
_BOM = b"\xef\xbb\xbf"
_DATE = re.compile(
    r"(?!0000)\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])[0-5]\d[0-5]\d(?:\d{3})?",
    re.ASCII,
)
_LARGEST = 2**40 - 2  # file size in bytes: the limit of a record's location in the index
_LARGEST_DIGITS = 13
_PIECE_BYTES = 1 << 16
_parse = json.JSONDecoder().raw_decode  # json.loads takes 50 % longer
_cut = reprlib.repr  # a value can be nested so deeply that plain repr fails
_OLD_CDX = re.compile(rb" ?CDX [A-Za-z] ")


class CdxCapture(NamedTuple):
    """A line of an index. ``date`` has 14 or 17 digits, ``digest`` is as written, with its label."""

    url: str
    date: str
    mime: str
    status: int | None
    digest: str | None
    length: int
    offset: int | None
    filename: str | None
    method: str = "GET"

    @property
    def is_revisit(self) -> bool:
        """Whether the record is a ``revisit``."""
        return self.mime == _REVISIT

    @property
    def is_exchange(self) -> bool:
        """Whether it is a ``response`` or ``revisit`` over HTTP, and no ``resource`` or ``metadata``."""
        if self.status is None and self.mime != _REVISIT:
            return False
        return self.url[:8].lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class CdxFault:
    """A line that is skipped; ``line`` counts from 1, ``reason`` completes "the line …"."""

    line: int
    reason: str


class _Fault(Exception):
    """Why a line is skipped."""


def read_cdxj(lines: Iterable[bytes]) -> Iterator[CdxCapture | CdxFault]:
    """Yield the capture or fault of each line; line ends are optional."""
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if len(line) > MAX_LINE_BYTES:
            yield CdxFault(number, f"is longer than {MAX_LINE_BYTES} bytes")
            continue
        if line.startswith(b"!") or not line.strip():
            continue
        try:
            yield _capture(line)
        except _Fault as fault:
            yield CdxFault(number, str(fault))


def cdxj_lines(file: ReadableFile) -> Iterator[bytes]:
    """Yield the lines of a file, plain or gzip, without their ends; of a line that is too long, the beginning.

    Raises ArchiveError if the file cannot be read, DamagedInput if it does not unpack to its end or is a CDX with
    columns.
    """
    where = shown(str(file))
    for number, line in enumerate(lines_of(unpacked(_pieces(file), where))):
        if number == 0 and _OLD_CDX.match(line):
            raise DamagedInput(
                f"{where} is a CDX with columns, which is not supported. Make a CDXJ of the WARC files, with"
                " cdxj-indexer."
            )
        yield line


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield the lines in *pieces* without ``\n``, in bounded memory.

    A line longer than `MAX_LINE_BYTES` is cut to one byte more than that.
    """
    begun = bytearray()  # the line that continues in the next piece
    for piece in pieces:
        first, *others = piece.split(b"\n")
        begun += first[: MAX_LINE_BYTES + 1 - len(begun)]
        if others:
            yield bytes(begun)
            *whole, last = others
            yield from whole
            begun = bytearray(last)
    if begun:
        yield bytes(begun)


def unpacked(pieces: Iterable[bytes], where: str, stored_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of *pieces*, unpacked if they are gzip members; *where* names the file in errors.

    Raises DamagedInput if they do not unpack to their end, or unpack to far more than *stored_bytes*, by default
    their own number.
    """
    pieces = split_pieces(pieces, _PIECE_BYTES)
    first = next(pieces, b"")
    pieces = itertools.chain([first], pieces)
    if not first.startswith(GZIP_MAGIC):
        yield from pieces
        return
    taken = given = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces:
            taken += len(piece)
            yield piece

    try:
        for out in gunzipped(counted()):
            given += len(out)
            limit = swollen_limit(taken if stored_bytes is None else stored_bytes)
            if given > limit:
                raise DamagedInput(
                    f"{where} unpacks to more than {limit} bytes and is refused. Store it uncompressed, or pack it"
                    " with less repetition."
                )
            yield out
    except Incomplete:
        raise DamagedInput(
            f"{where} is truncated: it ends inside a gzip member, at byte {taken}. Copy the file again."
        ) from None
    except Undecodable as error:
        raise DamagedInput(
            f"{where} does not unpack: a gzip member that ends before byte {taken} is damaged ({error.__cause__})."
            " Copy the file again."
        ) from error


def _pieces(file: ReadableFile) -> Iterator[bytes]:
    with read_errors(file), open_in_order(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _capture(line: bytes) -> CdxCapture:
    start = line.find(b" {")
    if start < 0:
        raise _Fault("has no JSON object after its key and date")
    date = line[:start].rpartition(b" ")[2].decode("latin-1")
    try:
        text = line[start + 1 :].decode("utf-8")
        fields, end = _parse(text)
    except UnicodeDecodeError:
        raise _Fault("is not UTF-8") from None
    except (ValueError, RecursionError):
        raise _Fault("has JSON that does not parse") from None
    if end < len(text) and not text[end:].isspace():
        raise _Fault("has more than one JSON object")
    get = fields.get
    url = get("url")
    if not isinstance(url, str) or url in ("", "<>"):
        raise _Fault(
            "has no URL" if url in (None, "", "<>") else f"has a URL that is not a string: {_cut(url)}"
        )
    if url.startswith("<") and url.endswith(">"):
        url = url[1:-1]  # GNU Wget writes WARC-Target-URI this way, and some indexers copy it
    length = _number(get("length"), "length")
    if length is None:
        raise _Fault("has no length")
    filename = _optional(get("filename"), "file name")
    if filename is not None and "\0" in filename:
        raise _Fault(f"has the file name {_cut(filename)}")
    return CdxCapture(
        _text(url, "URL"),
        _date(date),
        _optional(get("mime"), "mime") or "",
        _status(get("status")),
        _optional(get("digest"), "digest"),
        length,
        _number(get("offset"), "offset"),
        filename,
        (_optional(get("method"), "method") or "GET").upper(),
    )


def _date(digits: str) -> str:
    if not _DATE.fullmatch(digits):
        raise _Fault(f"has the date {_cut(digits)}, but 14 or 17 digits are expected")
    if digits[6:8] > "28":
        try:
            datetime(int(digits[:4]), int(digits[4:6]), int(digits[6:8]))
        except ValueError:
            raise _Fault(f"has the date {_cut(digits)}, which does not exist") from None
    return digits


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit() and value >= "100":
        return int(value)
    if value in (None, "", "-", "0", 0) and value is not False:
        return None
    if type(value) is int and 100 <= value <= 999:
        return value
    raise _Fault(f"has the status {_cut(value)}")


def _number(value: object, what: str) -> int | None:
    if isinstance(value, str):
        # Check the length first: int() is slow for numbers of many digits.
        if len(value) <= _LARGEST_DIGITS and value.isascii() and value.isdigit():
            number = int(value)
            if number <= _LARGEST:
                return number
        if value in ("", "-"):
            return None
    elif value is None:
        return None
    elif type(value) is int and 0 <= value <= _LARGEST:
        return value
    raise _Fault(f"has the {what} {_cut(value)}, which is not a number of bytes")


def _optional(value: object, what: str) -> str | None:
    if value is None or value in ("", "-"):
        return None
    if not isinstance(value, str):
        raise _Fault(f"has a {what} that is not a string: {_cut(value)}")
    return value if value.isascii() else _text(value, what)


def _text(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can encode a lone surrogate, which no file or store can hold.
        raise _Fault(f"has a {what} that is not valid text: {_cut(value)}") from None
    return value
