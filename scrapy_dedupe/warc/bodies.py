"""The payload of a record, in pieces: bodies of any size pass through memory that does not grow with them.

`payload_pieces` gives exactly the bytes of `StoredRecord.payload`: the block without its HTTP head and without
chunked transfer coding (RFC 9112, section 7.1). `decoded_pieces` undoes the content codings as well (RFC 9110,
section 8.4.1). `payload_digest` hashes one record, `hashed_records` a whole file while it is read.

A body that is not in chunks from its beginning to its end, or to where it was cut, is kept as it is, whatever its HTTP
head says. So nothing of it can be given before its end was seen: a body in chunks that is too long to be held is read
twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.warc.coding_streams import decoded_stream
from scrapy_dedupe.warc.codings import codings_of
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.reading import (
    CHUNK_SIZE,
    CUT_CHUNK_LINE,
    CUT_TRAILER,
    MAX_CHUNK_LINE,
    MAX_TRAILER_BYTES,
    TRAILER,
    read_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

MAX_DECODED_BYTES = 16 << 30
"""A body that is larger when it is decoded is none that anybody meant to send."""

_PIECE = 1 << 20
_LINE_END = b"\r\n"
_HTTP_STARTS = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CONSTRUCTORS = {"md5": hashlib.md5, "sha1": hashlib.sha1, "sha256": hashlib.sha256, "sha512": hashlib.sha512}


@dataclass(frozen=True, slots=True)
class BodyDigest:
    """The digest of a payload in lower-case hex, and how many bytes were hashed."""

    hex: str
    size_bytes: int


def payload_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the stored entity body in pieces of at most 1 MiB, the bytes of ``record.payload()``.

    Raises DamagedInput if a long block cannot be read again.
    """
    if record.type == "revisit":
        return
    frame = record.frame
    if len(frame.kept) == frame.block_length:
        yield from _cut(record.payload())
    elif record.http is not None and record.http.is_chunked:
        yield from dechunked(lambda: body_pieces(record))
    else:
        yield from body_pieces(record)


def body_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the block behind its HTTP head as it is stored, chunks included, in pieces of at most 1 MiB.

    Raises DamagedInput if a long block cannot be read again.
    """
    frame = record.frame
    is_held = len(frame.kept) == frame.block_length
    return _behind(iter((frame.kept,)) if is_held else open_block(record.path, frame), _head_bytes(record))


def decoded_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the entity body without its content codings, in pieces of bounded size.

    Raises codings.Undecodable where the body turns out not to be whole, which may be after some pieces.
    """
    codings = codings_of(record.http_headers)
    return decoded_stream(lambda: payload_pieces(record), codings, MAX_DECODED_BYTES)


def payload_digest(record: StoredRecord, algorithm: str = "sha256", *, decoded: bool = False) -> BodyDigest:
    """Hash the stored entity body of a record, or with *decoded* the body without its content codings.

    *algorithm* is a name of hashlib. Raises codings.Undecodable, and DamagedInput if a long block cannot be read
    again.
    """
    hasher = hasher_of(algorithm)
    held = _held_body(record, decoded=decoded)
    if held is not None:
        hasher.update(held)
        return BodyDigest(hasher.hexdigest(), len(held))
    size = 0
    for piece in decoded_pieces(record) if decoded else payload_pieces(record):
        hasher.update(piece)
        size += len(piece)
    return BodyDigest(hasher.hexdigest(), size)


def hashed_records(
    path: ReadableFile | str,
    wanted: Callable[[StoredRecord], Sequence[str]],
    *,
    on_damage: Callable[[Damage], None] | None = None,
) -> Iterator[tuple[StoredRecord, tuple[BodyDigest, ...]]]:
    """Yield the records of a file as `reading.read_records` does, each with the digests of its stored payload.

    *wanted* tells the algorithms for a record, none if it need not be hashed. It is given a record of a long block
    before the rest of it is read, that is without its length. Long blocks are hashed in passing and not read a second
    time, unless they are in chunks. Raises as `read_records` does, and DamagedInput if one in chunks cannot be read
    again.
    """
    passing: tuple[Frame, _Hashes] | None = None

    def on_long_block(record: StoredRecord) -> Callable[[bytes], None] | None:
        nonlocal passing
        passing = None
        if record.type == "revisit" or (record.http is not None and record.http.is_chunked):
            return None
        if not (algorithms := wanted(record)):
            return None
        hashes = _Hashes(algorithms)
        passing = (record.frame, hashes)
        hashes.update(memoryview(record.frame.kept)[_head_bytes(record) :])
        return hashes.update

    for record in read_records(path, on_damage=on_damage, on_long_block=on_long_block):
        if passing is not None and _is_same(passing[0], record.frame):
            yield record, passing[1].digests()
        else:
            yield record, tuple([payload_digest(record, algorithm) for algorithm in wanted(record)])
        passing = None


class _Hashes:
    """Several digests of one body."""

    def __init__(self, algorithms: Sequence[str]) -> None:
        self._hashers = [hasher_of(algorithm) for algorithm in algorithms]
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        for hasher in self._hashers:
            hasher.update(data)
        self._size += len(data)

    def digests(self) -> tuple[BodyDigest, ...]:
        return tuple([BodyDigest(hasher.hexdigest(), self._size) for hasher in self._hashers])


def _held_body(record: StoredRecord, *, decoded: bool = False) -> memoryview | None:
    """The payload if it stands as it is in what is held of the block."""
    frame, http = record.frame, record.http
    if len(frame.kept) != frame.block_length or record.type == "revisit":
        return None
    if http is None:
        return memoryview(frame.kept)
    if http.is_chunked or (decoded and codings_of(http.headers)):
        return None
    return memoryview(frame.kept)[http.length :]


def usual_body(frame: Frame) -> memoryview | None:
    """The payload of an HTTP response that is whole in its member, in the usual form and not in chunks, uncopied.

    Of any other record it is None, and `payload_digest` finds out what its payload is.
    """
    member, begin = frame.member, frame.block_position
    end = begin + frame.block_length
    # "HTTP/1.1 200 " with a blank line: a status line without a phrase has it as well.
    if not (
        member.startswith(_HTTP_STARTS, begin)
        and member[begin + 9 : begin + 12].isdigit()
        and member[begin + 12 : begin + 13] == b" "
    ):
        return None
    head_end = member.find(b"\r\n\r\n", begin, end)
    if head_end < 0:
        return None
    head = member[begin:head_end]
    # More line feeds than lines: some line ends are bare ones.
    if head.count(b"\n") != head.count(b"\r\n") or b"chunked" in head.lower():
        return None
    return memoryview(member)[head_end + 4 : end]


def hasher_of(algorithm: str, data: bytes | memoryview = b"") -> hashlib._Hash:
    """A digest of hashlib, begun with *data*."""
    # The constructors of hashlib are much faster than its function `new`, which would be felt with small bodies.
    make = _CONSTRUCTORS.get(algorithm)
    return make(data, usedforsecurity=False) if make else hashlib.new(algorithm, data, usedforsecurity=False)


def _head_bytes(record: StoredRecord) -> int:
    return record.http.length if record.http else 0


def _is_same(begun: Frame, read: Frame) -> bool:
    return (begun.offset, begun.block_position) == (read.offset, read.block_position)


def dechunked(body: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield what `reading.without_chunks` returns for a body, in pieces of bounded size.

    *body* opens the body at its beginning; it is called a second time if that looks like a chunk.
    """
    stream = _Window(body())
    if stream.chunk_size() is None or _survey(_Window(body())) is None:
        yield from stream.rest()
        return
    while (found := stream.chunk_size()) is not None and found.size:
        stream.drop(found.line_length)
        yield from stream.pieces(found.size)
        stream.drop_line_end()


def why_no_original(record: StoredRecord) -> str | None:
    """Why no record may refer to the payload of this one, whatever a crawl or an option asks for; None if one may.

    The answer is a key of `afterwards.eligibility.REASONS`. The method of the request and an empty payload
    (`has_payload`) are not looked at. Raises DamagedInput if a long block cannot be read again.
    """
    if not record.is_whole:
        return "truncated" if record.is_truncated else "partial"
    if record.type != "response" or record.http is None or record.http.status is None:
        return "no-http"
    if not has_whole_page(record.http.status):
        return "status"
    return "cut-chunks" if has_more_than_payload(record) else None


def has_whole_page(status: int | None) -> bool:
    """Whether an answer of this status has all that its URL stands for: not 1xx, 206 or 304, nor an unknown one."""
    return status is not None and status >= 200 and status not in (206, 304)


def has_payload(record: StoredRecord) -> bool:
    """Whether the payload of a record with an HTTP head has any byte.

    Raises DamagedInput if a long block cannot be read again.
    """
    if record.http is not None and record.http.is_chunked:
        return any(payload_pieces(record))
    return record.type != "revisit" and record.frame.block_length > _head_bytes(record)


def has_more_than_payload(record: StoredRecord) -> bool:
    """Whether more was taken from a body than the framing of whole chunks.

    That are extensions of their sizes, fields behind the last one, or the framing of chunks that were cut, which may be
    a page that only looks so. Such a record must not stand for another one, nor another one for it.

    Raises DamagedInput if a long block cannot be read again.
    """
    if record.type == "revisit" or record.http is None or not record.http.is_chunked:
        return False
    return bool(_survey(_Window(body_pieces(record))))


def _survey(stream: _Window) -> bool | None:
    """None if a body is not in chunks; else whether they say something besides it, or were cut behind the first."""
    has_extensions = has_chunk = False
    while (found := stream.chunk_size()) is not None:
        has_extensions = has_extensions or found.has_extension
        stream.drop(found.line_length)
        if not found.size:
            trailer = stream.at_most(MAX_TRAILER_BYTES)
            if trailer is None:
                return None
            if TRAILER.fullmatch(trailer):
                return has_extensions or len(trailer) > len(_LINE_END)
            return True if has_chunk and CUT_TRAILER.fullmatch(trailer) else None
        if sum(map(len, stream.pieces(found.size))) < found.size or not stream.drop_line_end():
            return True if has_chunk and stream.at_most(1) in (b"", b"\r") else None
        has_chunk = True
    line = stream.at_most(MAX_CHUNK_LINE)
    return True if has_chunk and line is not None and CUT_CHUNK_LINE.fullmatch(line) else None


class _Chunk(NamedTuple):
    """What the line before a chunk says."""

    size: int
    line_length: int
    has_extension: bool


class _Window:
    """The bytes of a stream that are at hand."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._more = pieces
        self._held = b""
        self._index = 0

    def chunk_size(self) -> _Chunk | None:
        """The chunk that begins here, which is not taken; None if none does."""
        for wanted in (64, MAX_CHUNK_LINE):
            is_at_hand = self._hold(wanted)
            if match := CHUNK_SIZE.match(self._held, self._index):
                return _Chunk(int(match[1], 16), match.end() - match.start(), match[2] is not None)
            if not is_at_hand:
                break
        return None

    def drop_line_end(self) -> bool:
        """Take the line end that comes next; False if there is none."""
        self._hold(len(_LINE_END))
        if not self._held.startswith(_LINE_END, self._index):
            return False
        self.drop(len(_LINE_END))
        return True

    def drop(self, count: int) -> None:
        """Take bytes that are at hand."""
        self._index += count

    def at_most(self, count: int) -> bytes | None:
        """All that is left, if it is not more than *count* bytes."""
        return None if self._hold(count + 1) else self._held[self._index :]

    def pieces(self, count: int) -> Iterator[bytes]:
        while count and self._hold(1):
            piece = self._held[self._index : self._index + min(count, _PIECE)]
            self.drop(len(piece))
            count -= len(piece)
            yield piece

    def rest(self) -> Iterator[bytes]:
        while self._hold(1):
            piece = self._held[self._index : self._index + _PIECE]
            self.drop(len(piece))
            yield piece

    def _hold(self, count: int) -> bool:
        """Have *count* bytes at hand, or all that are left."""
        missing = count - (len(self._held) - self._index)
        if missing <= 0:
            return True
        parts = [self._held[self._index :]]
        while missing > 0 and (piece := next(self._more, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        self._held, self._index = b"".join(parts), 0
        return missing <= 0


def _behind(pieces: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    for piece in pieces:
        if skipped < len(piece):
            yield from _cut(piece[skipped:] if skipped else piece)
        skipped = max(0, skipped - len(piece))


def _cut(data: bytes) -> Iterator[bytes]:
    if len(data) <= _PIECE:
        if data:
            yield data
        return
    for begin in range(0, len(data), _PIECE):
        yield data[begin : begin + _PIECE]
