"""The payload of a record, in pieces: bodies of any size pass through memory that does not grow with them.

`payload_pieces` gives exactly the bytes of `StoredRecord.payload`: the block without its HTTP head and without
chunked transfer coding (RFC 9112, section 7.1). `decoded_pieces` undoes the content codings as well (RFC 9110,
section 8.4.1). `payload_digest` hashes one record, `hashed_records` a whole file while it is read.

Where a body stops being in chunks, the rest is kept as it is, from the size of the last chunk on. So the bytes of a
chunk cannot be given before its end was seen. A chunk of more than 1 MiB is not held until then: the block is read
once more, only to find the place where the chunks end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.coding_streams import decoded_stream
from scrapy_dedupe.warc.codings import codings_of
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.reading import CHUNK_SIZE, LINE, MAX_CHUNK_LINE, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

MAX_DECODED_BYTES = 16 << 30
"""A body that is larger when it is decoded is none that anybody meant to send."""

_PIECE = 1 << 20
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
        return
    head_bytes = _head_bytes(record)

    def body() -> Iterator[bytes]:
        return _behind(open_block(record.path, frame), head_bytes)

    if record.http is not None and record.http.is_chunked:
        yield from dechunked(body, frame.block_length - head_bytes)
    else:
        yield from body()


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


def dechunked(body: Callable[[], Iterator[bytes]], length: int) -> Iterator[bytes]:
    """Yield what `reading.without_chunks` returns for a body of *length* bytes, in pieces of bounded size.

    *body* opens the body at its beginning; it is called a second time only for a chunk of more than 1 MiB.
    """
    chunks_end: int | None = None  # once it was looked for
    stream = _Window(body())
    while (found := stream.chunk_size()) is not None:
        size, line_length = found
        if not size:
            return
        if stream.position + line_length + size >= length:  # the last chunk was cut
            stream.drop(line_length)
            break
        if size <= _PIECE:
            if not stream.has_line_end(line_length + size):
                break
        else:
            if chunks_end is None:
                chunks_end = _end_of_chunks(body(), length)
            if stream.position >= chunks_end:
                break
        stream.drop(line_length)
        yield from stream.pieces(size)
        stream.drop_line_end()
    yield from stream.rest()


def _end_of_chunks(body: Iterator[bytes], length: int) -> int:
    """Where the last chunk without a line end begins; the length of a body that has none."""
    stream = _Window(body)
    while (found := stream.chunk_size()) is not None:
        size, line_length = found
        begins = stream.position
        if not size or begins + line_length + size >= length:
            return length
        stream.drop(line_length)
        for _ in stream.pieces(size):
            pass
        if not stream.drop_line_end():
            return begins
    return length


class _Window:
    """The bytes of a stream that are at hand; `position` counts those that were taken."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._more = pieces
        self._held = b""
        self._index = 0
        self.position = 0

    def chunk_size(self) -> tuple[int, int] | None:
        """The size of the chunk that begins here, and the length of the line that says it."""
        for wanted in (64, MAX_CHUNK_LINE):
            is_at_hand = self._hold(wanted)
            if match := CHUNK_SIZE.match(self._held, self._index):
                return int(match[1], 16), match.end() - match.start()
            if not is_at_hand:
                break
        return None

    def has_line_end(self, ahead: int) -> bool:
        """Whether a line ends so many bytes from here."""
        self._hold(ahead + 2)
        return bool(LINE.match(self._held, self._index + ahead))

    def drop_line_end(self) -> bool:
        self._hold(2)
        match = LINE.match(self._held, self._index)
        self.drop(match.end() - match.start() if match else 0)
        return match is not None

    def drop(self, count: int) -> None:
        """Take bytes that are at hand."""
        self._index += count
        self.position += count

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
