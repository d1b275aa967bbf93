r"""The chunked transfer coding (RFC 9112, section 7.1), removed from bodies of any size.

A body may be truncated anywhere after its first chunk. A body that is not chunked from its first byte to its last, or to
the point where it was truncated, is returned unchanged: many archives keep the Transfer-Encoding header but not the
chunk framing, and text that looks like a chunk, such as a first line of digits, is then part of the page. This is known
only at the end of a body, so a long body is read twice.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_TRAILER_BYTES = 1 << 16

# The length of a chunk extension is limited so that the next chunk can be found without reading a whole body.
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]{0,256}(;[^\r\n]{0,16384})?\r\n")
MAX_CHUNK_LINE = 16 + 256 + 1 + 16_384 + 2
# The trailer fields after the last chunk and the blank line that ends them.
_TRAILER = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*\r\n)*\r\n")
# The same when truncated: any beginning of them.
_CUT_CHUNK_LINE = re.compile(rb"(?:[0-9A-Fa-f]{1,16}[ \t]{0,256}(?:;[^\r\n]{0,16384})?\r?)?")
_CUT_TRAILER = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*\r\n)*(?:\r|[!-9;-~]+(?::[^\r\n]*\r?)?)?")
_LINE_END = b"\r\n"
_PIECE = 1 << 20


def without_chunks(body: bytes) -> bytes:
    r"""Return *body* without the framing of its chunks.

    >>> without_chunks(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), without_chunks(b"3\r\nabc\r\n9\r\nde")
    (b'abcde', b'abcde')
    >>> without_chunks(b"9\r\nabc"), without_chunks(b"3\r\nabc\r\nand more")
    (b'9\r\nabc', b'3\r\nabc\r\nand more')
    """
    return b"".join(dechunked(lambda: iter((body,))))


def dechunked(body: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield a body without the framing of its chunks, in pieces of at most 1 MiB.

    *body* opens the body at its beginning; it is called a second time if the body begins like a chunk.
    """
    stream = _Window(body())
    if stream.chunk_line() is None or _extra_framing(body()) is None:
        yield from stream.pieces()
        return
    while (line := stream.chunk_line()) is not None and (size := int(line[1], 16)):
        stream.index = line.end()
        yield from stream.pieces(size)
        stream.drop_line_end()


def has_extra_framing(body: Iterator[bytes]) -> bool:
    """Whether a body is chunked and has extensions or trailers, or is truncated after a chunk."""
    return bool(_extra_framing(body))


def _extra_framing(body: Iterator[bytes]) -> bool | None:
    """As `has_extra_framing`, but None if the body is not chunked."""
    stream = _Window(body)
    has_extensions = has_chunk = False
    while (line := stream.chunk_line()) is not None:
        size = int(line[1], 16)
        has_extensions = has_extensions or line[2] is not None
        if not size:
            stream.index = line.end()
            trailer = stream.at_most(MAX_TRAILER_BYTES)
            if trailer is None:
                return None
            if _TRAILER.fullmatch(trailer):
                return has_extensions or len(trailer) > len(_LINE_END)
            return True if has_chunk and _CUT_TRAILER.fullmatch(trailer) else None
        if not stream.skip_chunk(line.end(), size):
            return True if has_chunk and stream.at_most(1) in (b"", b"\r") else None
        has_chunk = True
    rest = stream.at_most(MAX_CHUNK_LINE)
    return True if has_chunk and rest is not None and _CUT_CHUNK_LINE.fullmatch(rest) else None


class _Window:
    """A stream with lookahead; `index` is the position in its held bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._more = pieces
        self._held = next(pieces, b"")
        self.index = 0

    def chunk_line(self) -> re.Match[bytes] | None:
        """The line of the chunk that begins here, without taking it; None if there is none."""
        line = _CHUNK_LINE.match(self._held, self.index)
        if line is None and len(self._held) - self.index < MAX_CHUNK_LINE:
            self._hold(MAX_CHUNK_LINE)
            line = _CHUNK_LINE.match(self._held, self.index)
        return line

    def drop_line_end(self) -> bool:
        """Take the next CRLF; False if there is none."""
        self._hold(len(_LINE_END))
        if not self._held.startswith(_LINE_END, self.index):
            return False
        self.index += len(_LINE_END)
        return True

    def skip_chunk(self, begin: int, size: int) -> bool:
        """Take the chunk that begins at *begin*, and its CRLF. False if either is missing."""
        # True for nearly all chunks; the general case takes twice as long.
        if self._held.startswith(_LINE_END, begin + size):
            self.index = begin + size + len(_LINE_END)
            return True
        self.index = begin
        return sum(map(len, self.pieces(size))) == size and self.drop_line_end()

    def at_most(self, count: int) -> bytes | None:
        """All remaining bytes, if there are at most *count*; else None."""
        return None if self._hold(count + 1) else self._held[self.index :]

    def pieces(self, count: int = sys.maxsize) -> Iterator[bytes]:
        """Take *count* bytes, by default all; fewer if the stream ends before."""
        while count and self._hold(1):
            piece = self._held[self.index : self.index + min(count, _PIECE)]
            self.index += len(piece)
            count -= len(piece)
            yield piece

    def _hold(self, count: int) -> bool:
        """Read until *count* bytes, or all that remain, are held; return whether there are *count*."""
        missing = count - (len(self._held) - self.index)
        if missing <= 0:
            return True
        parts = [self._held[self.index :]] if self.index < len(self._held) else []
        while missing > 0 and (piece := next(self._more, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        self._held, self.index = b"".join(parts), 0
        return missing <= 0
