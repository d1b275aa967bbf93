"""Content codings of HTTP (RFC 9110, section 8.4.1), undone for archives of decoded payloads.

A body is decoded completely or not at all. A body that is damaged or truncated, has bytes after its end, grows above
a limit or has an unknown coding is kept as received, since its payload cannot be determined. Supported are gzip,
x-gzip, deflate (with the zlib header or, as some servers send it, without), identity, and br and zstd if a package for
them is installed: brotli or brotlicffi from 1.2 on; compression.zstd of Python 3.14, backports.zstd or zstandard.

Decoding takes at most about twice the limit of memory, however large the decoded body claims to be. `coding_streams`
decodes bodies of any size.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

from .charsets import is_charset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .capture import Capture

CONTENT_ENCODING = b"content-encoding"
KEPT_AS = b"X-Orig-Content-Encoding"
"""The header of a decoded response that holds its original Content-Encoding."""

_NO_CODINGS = frozenset(("", "identity", "none", "null", "7bit", "8bit", "binary"))
# Real responses have at most a few; each coding takes time that does not depend on the length of the body.
MOST_CODINGS = 5
_NO_LIMIT = 2**62
_PIECE, _STEP = 1_048_576, 65_536
_GZIP, _ZLIB, _RAW = 31, 15, -15
# A block of Zstandard has at least 4 bytes and gives at most 128 KiB, so this gives at most 32 MiB at once.
_ZSTANDARD_STEP = 1_024
_ZSTD_PACKAGES = ("compression.zstd", "backports.zstd")
_BROTLI_PACKAGES = ("brotli", "brotlicffi")


class Undecodable(ValueError):
    """A body that cannot be decoded; the message is the reason, as the end of a sentence."""


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

    >>> decoded_body(zlib.compress(b"a lake"), ["deflate"])
    b'a lake'
    """
    if len(codings) > MOST_CODINGS:
        raise Undecodable(f"it has {len(codings)} content codings, and at most {MOST_CODINGS} are decoded")
    limit = max_bytes or _NO_LIMIT
    for coding in reversed(codings):
        undo = decoder_of(coding)
        if undo is None:
            raise Undecodable(unknown(coding))
        body = undo(body, limit)
        if len(body) > limit:
            raise Undecodable(f"it has more than {max_bytes} bytes when decoded")
    return body


def unknown(coding: str) -> str:
    package = {"br": "brotli", "zstd": "backports.zstd"}.get(coding)
    if package is None:
        return f"its content coding {coding[:40]!r} is not known"
    return f"its content coding is {coding}; install the package {package} to have such bodies decoded"


@cache
def decoder_of(coding: str) -> Callable[[bytes, int], bytes] | None:
    """The function that undoes a coding, given a body and a limit above which it may stop; None if unknown."""
    if coding in ("gzip", "x-gzip"):
        return _gunzip
    if coding == "deflate":
        return _inflate
    if coding == "br":
        return _unbrotli if brotli_package() is not None else None
    if coding == "zstd":
        return (
            _unzstd
            if zstd_package() is not None
            else (_unzstandard if zstandard_package() is not None else None)
        )
    return None


def _gunzip(body: bytes, limit: int) -> bytes:
    # RFC 1952, section 2.2: a file has one or more members. Zeros after the last one are padding.
    return _members(lambda: zlib.decompressobj(_GZIP), zlib.error, "gzip", body, limit, padding=b"\0")


def _inflate(body: bytes, limit: int) -> bytes:
    try:
        return _inflated(body, limit, _ZLIB)
    except Undecodable:
        return _inflated(body, limit, _RAW)


def _inflated(body: bytes, limit: int, kind: int) -> bytes:
    inflater = zlib.decompressobj(kind)
    try:
        whole = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise damaged("deflate") from error
    if len(whole) <= limit and (not inflater.eof or inflater.unused_data):
        raise damaged("deflate")
    return whole


def _unbrotli(body: bytes, limit: int) -> bytes:
    package = brotli_package()
    stream, whole = package.Decompressor(), BytesIO()
    try:
        piece = stream.process(body, output_buffer_limit=_PIECE)
        while piece:
            whole.write(piece)
            if whole.tell() > limit or stream.is_finished():
                break
            piece = stream.process(b"", output_buffer_limit=_PIECE)
    except package.error as error:
        raise damaged("br") from error
    if whole.tell() <= limit and not stream.is_finished():
        raise damaged("br")
    return whole.getvalue()


def _unzstd(body: bytes, limit: int) -> bytes:
    package = zstd_package()
    # RFC 8878, section 3: frames one after another.
    return _members(package.ZstdDecompressor, package.ZstdError, "zstd", body, limit)


def _unzstandard(body: bytes, limit: int) -> bytes:
    """As `_unzstd`. The package has no output limit, so it is fed small steps."""
    package = zstandard_package()
    whole, place = BytesIO(), 0
    frame = package.ZstdDecompressor().decompressobj()
    try:
        while place < len(body) and whole.tell() <= limit:
            if frame.eof:
                frame = package.ZstdDecompressor().decompressobj()
            step = body[place : place + _ZSTANDARD_STEP]
            whole.write(frame.decompress(step))
            place += len(step) - len(frame.unused_data)
    except package.ZstdError as error:
        raise damaged("zstd") from error
    if whole.tell() <= limit and not frame.eof:
        raise damaged("zstd")
    return whole.getvalue()


def _members(
    make: Callable[[], Any],
    fault: type[Exception],
    coding: str,
    body: bytes,
    limit: int,
    padding: bytes = b"",
) -> bytes:
    """The joined contents of members or frames, or a little more than the limit."""
    pieces, size, place, member = [], 0, 0, make()
    try:
        while place < len(body):
            # The bytes after a member are copied each time, so members are fed small steps.
            step = body[place : place + _STEP]
            pieces.append(member.decompress(step, limit + 1 - size))
            size += len(pieces[-1])
            if size > limit:
                return b"".join(pieces)
            place += len(step)
            if member.eof:
                place -= len(member.unused_data)
                if padding and not member.unused_data.strip(padding) and not body[place:].strip(padding):
                    break
                if place < len(body):
                    member = make()
    except fault as error:
        raise damaged(coding) from error
    if not member.eof:
        raise damaged(coding)
    return b"".join(pieces)


def damaged(coding: str) -> Undecodable:
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
