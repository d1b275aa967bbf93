"""HTTP content codings undone as a stream: memory use does not depend on the size of the body.

The rules of `codings` apply here too, but a damaged body is noticed only after some pieces were yielded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from zlib_ng import zlib_ng

from .codings import (
    MOST_CODINGS,
    Undecodable,
    brotli_package,
    damaged,
    decoder_of,
    unknown,
    zstandard_package,
    zstd_package,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_PIECE, _STEP = 1_048_576, 65_536
_GZIP, _ZLIB, _RAW = 31, 15, -15
# A block of Zstandard has at least 4 bytes and gives at most 128 KiB, so this gives at most 32 MiB at once.
_ZSTANDARD_STEP = 1_024


def decoded_stream(
    open_body: Callable[[], Iterator[bytes]], codings: Sequence[str], max_bytes: int = 0
) -> Iterator[bytes]:
    """Undo *codings* as `decoded_body` does, in pieces of about 1 MiB. Raises Undecodable, maybe after some pieces.

    *open_body* yields the body in pieces, from its beginning at each call: the meaning of ``deflate`` is known only
    after the whole body was read. An empty body has nothing to decode.
    """
    if len(codings) > MOST_CODINGS:
        raise Undecodable(f"it has {len(codings)} content codings, and at most {MOST_CODINGS} are decoded")
    if not codings or next(open_body(), None) is None:
        yield from open_body()
        return
    opened = open_body
    for coding in reversed(codings):
        if decoder_of(coding) is None:
            raise Undecodable(unknown(coding))
        opened = partial(_undone, opened, coding, max_bytes)
    yield from opened()


def _undone(open_body: Callable[[], Iterator[bytes]], coding: str, max_bytes: int) -> Iterator[bytes]:
    if coding == "deflate":
        kind = _ZLIB if _is_whole(_limited(_inflating(open_body(), _ZLIB), max_bytes)) else _RAW
        stream = _inflating(open_body(), kind)
    elif coding == "br":
        stream = _unbrotling(open_body())
    elif coding == "zstd":
        stream = _unzstding(open_body()) if zstd_package() is not None else _unzstandarding(open_body())
    else:
        stream = _gunzipping(open_body())
    return _limited(stream, max_bytes)


def _is_whole(stream: Iterator[bytes]) -> bool:
    try:
        for _ in stream:
            pass
    except Undecodable:
        return False
    return True


def _limited(stream: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    size = 0
    for piece in stream:
        size += len(piece)
        if max_bytes and size > max_bytes:
            raise Undecodable(f"it has more than {max_bytes} bytes when decoded")
        yield piece


def _steps(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    # An inflater copies the input that it does not consume, so feed it small steps.
    for piece in pieces:
        for begin in range(0, len(piece), size):
            yield piece[begin : begin + size]


def _gunzipping(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """As `codings._gunzip`."""
    member, is_padding = zlib_ng.decompressobj(_GZIP), False
    try:
        for step in _steps(pieces, _STEP):
            data = step
            while data:
                if member.eof:
                    is_padding = is_padding or data.startswith(b"\0")
                    if is_padding:
                        if data.strip(b"\0"):
                            raise damaged("gzip")
                        break
                    member = zlib_ng.decompressobj(_GZIP)
                if piece := member.decompress(data, _PIECE):
                    yield piece
                data = member.unused_data if member.eof else member.unconsumed_tail
    except zlib_ng.error as error:  # type: ignore[misc]
        raise damaged("gzip") from error
    if not member.eof:
        raise damaged("gzip")


def _inflating(pieces: Iterator[bytes], kind: int) -> Iterator[bytes]:
    """As `codings._inflated`."""
    inflater = zlib_ng.decompressobj(kind)
    try:
        for step in _steps(pieces, _STEP):
            if inflater.eof:
                raise damaged("deflate")
            data = step
            while data:
                if piece := inflater.decompress(data, _PIECE):
                    yield piece
                data = inflater.unconsumed_tail
        # Output for input that was already taken: raw data has no checksum at its end.
        while not inflater.eof and (piece := inflater.decompress(b"", _PIECE)):
            yield piece
    except zlib_ng.error as error:  # type: ignore[misc]
        raise damaged("deflate") from error
    if not inflater.eof or inflater.unused_data:
        raise damaged("deflate")


def _unbrotling(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """As `codings._unbrotli`."""
    package = brotli_package()
    stream = package.Decompressor()
    try:
        for step in pieces:
            if stream.is_finished():
                raise damaged("br")
            data = step
            while True:
                if piece := stream.process(data, output_buffer_limit=_PIECE):
                    yield piece
                if stream.is_finished() or stream.can_accept_more_data():
                    break
                data = b""
    except package.error as error:
        raise damaged("br") from error
    if not stream.is_finished():
        raise damaged("br")


def _unzstding(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """As `codings._unzstd`."""
    package = zstd_package()
    frame = package.ZstdDecompressor()
    try:
        for step in _steps(pieces, _STEP):
            data = step
            while data or not (frame.eof or frame.needs_input):
                if frame.eof:
                    frame = package.ZstdDecompressor()
                if piece := frame.decompress(data, _PIECE):
                    yield piece
                data = frame.unused_data if frame.eof else b""
    except package.ZstdError as error:
        raise damaged("zstd") from error
    if not frame.eof:
        raise damaged("zstd")


def _unzstandarding(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """As `codings._unzstandard`."""
    package = zstandard_package()
    frame = package.ZstdDecompressor().decompressobj()
    try:
        for step in _steps(pieces, _ZSTANDARD_STEP):
            data = step
            while data:
                if frame.eof:
                    frame = package.ZstdDecompressor().decompressobj()
                if piece := frame.decompress(data):
                    yield piece
                data = frame.unused_data if frame.eof else b""
    except package.ZstdError as error:
        raise damaged("zstd") from error
    if not frame.eof:
        raise damaged("zstd")
