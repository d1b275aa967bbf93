"""How a body is encoded: content codings of HTTP (RFC 9110, section 8.4.1), and charsets of pages.

A body is decoded completely or not at all. A body that is damaged or truncated, has bytes after its end, grows above
a limit or has an unknown coding is kept as received, since its payload cannot be determined. Supported are gzip,
x-gzip, deflate (with the zlib header or, as some servers send it, without), identity, and br and zstd if a package for
them is installed: brotli or brotlicffi from 1.2 on; compression.zstd of Python 3.14, backports.zstd or zstandard.

`decoded_body` takes at most about twice the limit of memory, however large the decoded body claims to be.
`decoded_stream` decodes bodies of any size in bounded memory, but notices damage only after some pieces were yielded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, resolve_encoding
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .capture import Capture

CONTENT_ENCODING = b"content-encoding"
KEPT_AS = b"X-Orig-Content-Encoding"
"""The header of a decoded response that holds its original Content-Encoding."""

STORED = "stored"
DECODED = "decoded"
"""Which body a payload digest is computed from: the body as the server sent it, or without its content coding."""

_NO_CODINGS = frozenset(("", "identity", "none", "null", "7bit", "8bit", "binary"))
# Real responses have at most a few; each coding takes time that does not depend on the length of the body.
_MOST_CODINGS = 5
_PIECE, _STEP = 1_048_576, 65_536
_GZIP, _ZLIB, _RAW = 31, 15, -15
_ZLIB_HEAD_BYTES = 2
# A Zstandard block has at least 4 bytes and decodes to at most 128 KiB, so a step decodes to at most 32 MiB.
_ZSTANDARD_STEP = 1_024
# The names that Python's codecs report for charsets. Other codecs are refused: Punycode takes quadratic time, escape
# codecs turn any bytes into text, UTF-7 hides markup, and packages may register more of them.
_CHARSET = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|kz1048|ptcp154|tis-620|hp-roman8"
    r"|palmos|big5(hkscs)?|gb(2312|k|18030)|hz|iso2022_(jp|kr)\w*|euc_\w+|shift_jis\w*|johab"
)
# The first match decides. Programs that drive a browser come first, since they also name the libraries that they use.
_WRITERS = (
    # The Webrecorder server recorded through a proxy; it is unknown from which body it computed its digests.
    (re.compile(r"webrecorder (platform|player)", re.IGNORECASE), None),
    (
        re.compile(
            r"browsertrix|archiveweb\.?page|express\.archiveweb|webrecorder|warcio\.js|wabac", re.IGNORECASE
        ),
        DECODED,
    ),
    (
        re.compile(
            r"scrapy-dedupe|heritrix|\bwget\b|wget-(at|lua)|wpull|grab-site|warcprox|brozzler|\bzeno\b|gowarc"
            r"|httrack|netarchivesuite",
            re.IGNORECASE,
        ),
        STORED,
    ),
)
_ZSTD_PACKAGES = ("compression.zstd", "backports.zstd")
_BROTLI_PACKAGES = ("brotli", "brotlicffi")


class Undecodable(ValueError):
    """A body that cannot be decoded; the message is the reason, as the end of a sentence."""


class Incomplete(Undecodable):
    """The body ends too soon."""


class Oversized(Undecodable):
    """The decoded body is larger than the limit."""


def decoded(capture: Capture, max_bytes: int = 0) -> Capture:
    """Return the capture with its body decoded and its Content-Encoding renamed to `KEPT_AS`.

    *max_bytes* limits the size of the body after each step, 0 for no limit. A capture without a coding or without a
    body is returned unchanged. Raises Undecodable.
    """
    if not has_coding(capture):
        return capture
    body = decoded_body(capture.body, codings_of(capture.response_headers), max_bytes)
    headers = tuple(
        (KEPT_AS if name.strip().lower() == CONTENT_ENCODING else name, value)
        for name, value in capture.response_headers
    )
    return replace(capture, body=body, response_headers=headers)


def has_coding(capture: Capture) -> bool:
    """Whether a capture has a body and a Content-Encoding header."""
    return bool(capture.body) and any(
        name.strip().lower() == CONTENT_ENCODING for name, _ in capture.response_headers
    )


def codings_of(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The content codings in lower case, in the order in which they were applied.

    Values that servers send although they are not content codings are left out: ``identity``, ``none``, empty
    values, MIME transfer encodings and names of charsets.

    >>> codings_of(((b"Content-Encoding", b"gzip, identity"), (b"content-encoding", b"BR")))
    ['gzip', 'br']
    >>> codings_of(((b"Content-Encoding", b"none, UTF-8"), (b"Content-Encoding", b"")))
    []
    """
    values = (value for name, value in headers if name.strip().lower() == CONTENT_ENCODING)
    names = (part.strip().lower().decode("latin-1") for value in values for part in value.split(b","))
    return [name for name in names if name not in _NO_CODINGS and not is_charset(name)]


def decoded_body(body: bytes, codings: Sequence[str], max_bytes: int = 0) -> bytes:
    """Undo *codings*, the last one first. Raises Undecodable.

    >>> decoded_body(zlib_ng.compress(b"a lake"), ["deflate"])
    b'a lake'
    """
    return b"".join(_undone(iter((body,)), codings, max_bytes))


def decoded_stream(body: Iterator[bytes], codings: Sequence[str], max_bytes: int = 0) -> Iterator[bytes]:
    """Undo *codings* as `decoded_body` does, in pieces of about 1 MiB. Raises Undecodable, maybe after some pieces.

    An empty body has nothing to decode.
    """
    first = next(body, None)
    if first is not None:
        yield from _undone(chain([first], body), codings, max_bytes)


def _undone(body: Iterator[bytes], codings: Sequence[str], max_bytes: int) -> Iterator[bytes]:
    if len(codings) > _MOST_CODINGS:
        raise Undecodable(f"it has {len(codings)} content codings, and at most {_MOST_CODINGS} are decoded")
    for coding in reversed(codings):
        decoder = decoder_of(coding)
        if decoder is None:
            raise Undecodable(_unknown(coding))
        body = _limited(decoder(body), max_bytes)
    return body


def _limited(pieces: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if max_bytes and size > max_bytes:
            raise Oversized(f"it has more than {max_bytes} bytes when decoded")
        yield piece


def _unknown(coding: str) -> str:
    package = {"br": "brotli", "zstd": "backports.zstd"}.get(coding)
    if package is None:
        return f"its content coding {coding[:40]!r} is not known"
    return f"its content coding is {coding}; install the package {package} to have such bodies decoded"


@cache
def decoder_of(coding: str) -> Callable[[Iterator[bytes]], Iterator[bytes]] | None:
    """The function that undoes a coding; None if unknown."""
    if coding in ("gzip", "x-gzip"):
        return gunzipped
    if coding == "deflate":
        return _inflate
    if coding == "br":
        return _unbrotli if brotli_package() is not None else None
    if coding == "zstd":
        return _unzstd if zstd_package() is not None or zstandard_package() is not None else None
    return None


def gunzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Undo gzip: one or more members (RFC 1952, section 2.2), with zeros after them as padding.

    Raises Undecodable, and Incomplete if the pieces end inside a member.
    """
    member = zlib_ng.decompressobj(_GZIP)
    try:
        for step in split_pieces(pieces, _STEP):
            data = step
            while data:
                if member.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    member = zlib_ng.decompressobj(_GZIP)
                if piece := member.decompress(data, _PIECE):
                    yield piece
                data = member.unused_data if member.eof else member.unconsumed_tail
    except zlib_ng.error as error:  # type: ignore[misc]
        raise _damaged("gzip") from error
    if not member.eof:
        raise Incomplete(str(_damaged("gzip")))


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    start = b""
    while len(start) < _ZLIB_HEAD_BYTES and (piece := next(pieces, b"")):
        start += piece
    # RFC 1950, section 2.2. Raw data would have to begin with a stored block whose padding is not zero.
    is_zlib = start[:1] and start[0] & 15 == 8 and int.from_bytes(start[:_ZLIB_HEAD_BYTES], "big") % 31 == 0
    inflater = zlib_ng.decompressobj(_ZLIB if is_zlib else _RAW)
    try:
        for step in split_pieces(chain([start], pieces), _STEP):
            if inflater.eof:
                raise _damaged("deflate")
            data = step
            while data:
                if piece := inflater.decompress(data, _PIECE):
                    yield piece
                data = inflater.unconsumed_tail
        # Output for input that was already taken: raw data has no checksum at its end.
        while not inflater.eof and (piece := inflater.decompress(b"", _PIECE)):
            yield piece
    except zlib_ng.error as error:  # type: ignore[misc]
        raise _damaged("deflate") from error
    if not inflater.eof or inflater.unused_data:
        raise _damaged("deflate")


def _unbrotli(pieces: Iterator[bytes]) -> Iterator[bytes]:
    package = brotli_package()
    stream = package.Decompressor()
    try:
        for step in pieces:
            if stream.is_finished():
                raise _damaged("br")
            data = step
            while True:
                if piece := stream.process(data, output_buffer_limit=_PIECE):
                    yield piece
                if stream.is_finished() or stream.can_accept_more_data():
                    break
                data = b""
    except package.error as error:
        raise _damaged("br") from error
    if not stream.is_finished():
        raise _damaged("br")


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    # RFC 8878, section 3: frames one after another.
    if (package := zstd_package()) is not None:
        new_frame, step_bytes, limit = package.ZstdDecompressor, _STEP, [_PIECE]
    else:  # zstandard has no output limit, so it is fed small steps
        package = zstandard_package()
        new_frame, step_bytes, limit = package.ZstdDecompressor().decompressobj, _ZSTANDARD_STEP, []
    frame = new_frame()
    try:
        for step in split_pieces(pieces, step_bytes):
            data = step
            # Without the attribute, a frame takes all of its input at once.
            while data or not (frame.eof or getattr(frame, "needs_input", True)):
                if frame.eof:
                    frame = new_frame()
                if piece := frame.decompress(data, *limit):
                    yield piece
                data = frame.unused_data if frame.eof else b""
    except package.ZstdError as error:
        raise _damaged("zstd") from error
    if not frame.eof:
        raise _damaged("zstd")


def split_pieces(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at most *size* bytes: an inflater copies the input that it does not consume."""
    for piece in pieces:
        for begin in range(0, len(piece), size):
            yield piece[begin : begin + size]


def _damaged(coding: str) -> Undecodable:
    return Undecodable(f"its {coding} data is damaged or incomplete")


@cache
def brotli_package() -> Any:
    """The brotli package, if it can limit its output; None otherwise."""
    for name in _BROTLI_PACKAGES:
        package = _module(name)
        if package is not None and hasattr(package.Decompressor, "can_accept_more_data"):
            return package
    return None


@cache
def zstd_package() -> Any:
    return next((package for name in _ZSTD_PACKAGES if (package := _module(name)) is not None), None)


@cache
def zstandard_package() -> Any:
    return _module("zstandard")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def payload_mode(software: str | None) -> str | None:
    """`STORED` or `DECODED`, from the software that a warcinfo or datapackage.json names; None if unknown.

    Programs that record through a browser see decoded bodies. A file of scrapy-dedupe with decoded bodies has its own
    field for this.

    >>> payload_mode("Browsertrix-Crawler 1.14.1 (with warcio.js 2.4.7)")
    'decoded'
    >>> payload_mode("Heritrix/3.4.0 http://archive.org")
    'stored'
    >>> payload_mode("py-wacz 0.6.0") is None
    True
    """
    if software is None:
        return None
    return next((mode for pattern, mode in _WRITERS if pattern.search(software)), None)


@dataclass(frozen=True, slots=True)
class DecodedPage:
    """The text of a page with its kind, the encoding it was decoded from, and its declared or assumed Content-Type."""

    text: str
    encoding: str
    kind: str
    content_type: str


def is_charset(name: str) -> bool:
    """Whether *name* is the name of a charset.

    >>> is_charset("Latin1"), is_charset("gb2312"), is_charset("punycode"), is_charset("no-such-thing")
    (True, True, False, False)
    """
    try:
        codec = resolve_encoding(name)
    except ValueError:  # a NUL in it
        return False
    return codec is not None and _CHARSET.fullmatch(codec) is not None


def declared_encodings(content_type: str | None, body: bytes) -> Iterator[str]:
    """Yield the encodings that HTTP and then the page itself declare, charsets or not."""
    if (declared := http_content_type_encoding(content_type)) is not None:
        yield declared
    # Callers that only need the first encoding do not search the page.
    if (declared := html_body_declared_encoding(body)) is not None:
        yield declared
