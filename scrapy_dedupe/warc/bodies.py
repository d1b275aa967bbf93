"""Payloads of records, read in pieces, so that memory use does not depend on the size of a body.

`payload_pieces` yields exactly the bytes of `StoredRecord.payload`: the block without its HTTP head and without chunks
(see `chunks`). `decoded_pieces` also undoes the content codings (see `codings`). `payload_digest` hashes one record,
`hashed_records` a whole file while it is read.

All functions that take a record raise DamagedInput if a long block cannot be read again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.warc.capture import digest_in_form_of, has_whole_page
from scrapy_dedupe.warc.chunks import dechunked, has_extra_framing
from scrapy_dedupe.warc.codings import Undecodable, codings_of, decoded_stream, split_pieces
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.warc.framing import Damage, Frame
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

MAX_DECODED_BYTES = 16 << 30
"""Larger decoded bodies are refused: they are decompression bombs."""

_PIECE = 1 << 20
_HTTP_STARTS = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "md5": hashlib.md5,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "blake2b": partial(hashlib.blake2b, digest_size=32),
}


@dataclass(frozen=True, slots=True)
class BodyDigest:
    """The digest of a payload in lower-case hex, and how many bytes were hashed."""

    hex: str
    size_bytes: int


def payload_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the stored entity body in pieces of at most 1 MiB, the bytes of ``record.payload()``."""
    if record.type == "revisit":
        return
    frame = record.frame
    if len(frame.kept) == frame.block_length:
        yield from split_pieces([record.payload()], _PIECE)
    elif record.http is not None and record.http.is_chunked:
        yield from dechunked(lambda: body_pieces(record))
    else:
        yield from body_pieces(record)


def body_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the block after its HTTP head as it is stored, chunks included, in pieces of at most 1 MiB."""
    frame = record.frame
    is_held = len(frame.kept) == frame.block_length
    return _after(iter((frame.kept,)) if is_held else open_block(record.path, frame), _head_bytes(record))


def decoded_pieces(record: StoredRecord) -> Iterator[bytes]:
    """Yield the entity body without its content codings, in pieces of bounded size.

    Raises codings.Undecodable if the body turns out to be damaged, possibly after some pieces.
    """
    codings = codings_of(record.http_headers)
    return decoded_stream(payload_pieces(record), codings, MAX_DECODED_BYTES)


def body_forms(record: StoredRecord) -> Sequence[Callable[[StoredRecord], Iterator[bytes]]]:
    """The functions for the forms of a stored body that programs hash: without its transfer chunks, with them, or decoded."""
    forms = [payload_pieces]
    if record.http is not None and record.http.is_chunked:
        forms.append(body_pieces)
    if codings_of(record.http_headers):
        forms.append(decoded_pieces)
    return forms


def payload_digest(record: StoredRecord, algorithm: str = "sha256", *, decoded: bool = False) -> BodyDigest:
    """Hash the stored entity body of a record, or with *decoded* the body without its content codings.

    *algorithm* is a name of hashlib. Raises codings.Undecodable.
    """
    return payload_digests(record, (algorithm,), decoded=decoded)[0]


def payload_digests(
    record: StoredRecord, algorithms: Sequence[str], *, decoded: bool = False
) -> tuple[BodyDigest, ...]:
    """Several digests of a payload, which is read once. See `payload_digest`."""
    hashes = BodyHashes(algorithms)
    held = _held_body(record, decoded=decoded)
    pieces_of = decoded_pieces if decoded else payload_pieces
    for piece in pieces_of(record) if held is None else (held,):
        hashes.update(piece)
    return hashes.digests()


def hashed_records(
    path: ReadableFile | str,
    wanted: Callable[[StoredRecord], Sequence[str]],
    *,
    on_damage: Callable[[Damage], None] | None = None,
    start: int = 0,
) -> Iterator[tuple[StoredRecord, tuple[BodyDigest, ...]]]:
    """Yield the records of a file as `reading.read_records` does, each with the digests of its stored payload.

    *wanted* returns the algorithms for a record, none if it need not be hashed. For a record with a long block it is
    called before the rest of the block is read, when the length of the record is not yet known. Long blocks are hashed
    while they are read and not read a second time, unless they are chunked. Raises the exceptions of `read_records`.
    """
    hashes = PassingHashes(wanted)
    for record in read_records(path, on_damage=on_damage, on_long_block=hashes.on_long_block, start=start):
        yield record, hashes.digests(record)


class PassingHashes:
    """Digests of the stored payloads of records in a file; see `hashed_records`."""

    def __init__(self, wanted: Callable[[StoredRecord], Sequence[str]]) -> None:
        self._wanted = wanted
        self._passing: tuple[tuple[int, int], BodyHashes] | None = None

    def on_long_block(self, record: StoredRecord) -> Callable[[bytes | memoryview], None] | None:
        """The function for the rest of the block of a record, as for `reading.read_records`."""
        self._passing = None
        if record.type == "revisit" or (record.http is not None and record.http.is_chunked):
            return None
        if not (algorithms := self._wanted(record)):
            return None
        hashes = BodyHashes(algorithms)
        self._passing = (_place(record), hashes)
        hashes.update(memoryview(record.frame.kept)[_head_bytes(record) :])
        return hashes.update

    def digests(self, record: StoredRecord) -> tuple[BodyDigest, ...]:
        """The digests of a record that has been read to its end."""
        passing, self._passing = self._passing, None
        if passing is not None and passing[0] == _place(record):
            return passing[1].digests()
        algorithms = self._wanted(record)
        return payload_digests(record, algorithms) if algorithms else ()


class BodyHashes:
    """Several digests of one body, which is given in pieces."""

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
    """The payload, if the held part of the block contains it unmodified; else None."""
    frame, http = record.frame, record.http
    if len(frame.kept) != frame.block_length or record.type == "revisit":
        return None
    if http is None:
        return memoryview(frame.kept)
    if http.is_chunked or (decoded and codings_of(http.headers)):
        return None
    return memoryview(frame.kept)[http.length :]


def usual_body(frame: Frame) -> memoryview | None:
    """The payload, without a copy, of an HTTP response in the usual form that is whole in its member and not chunked.

    None for any other record; use `payload_digest` for those.
    """
    member, begin = frame.member, frame.block_position
    end = begin + frame.block_length
    # "HTTP/1.1 200 " with a trailing space: status lines without a reason phrase have it as well.
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
    # More LFs than CRLFs: some line ends are bare LFs.
    if head.count(b"\n") != head.count(b"\r\n") or b"chunked" in head.lower():
        return None
    return memoryview(member)[head_end + 4 : end]


def hasher_of(algorithm: str, data: bytes | memoryview = b"") -> Any:
    """A hash object of hashlib, started with *data*; ``blake2b`` has 32 bytes."""
    # The constructors of hashlib are much faster than hashlib.new, which matters for small bodies.
    make = _CONSTRUCTORS.get(algorithm)
    return make(data, usedforsecurity=False) if make else hashlib.new(algorithm, data, usedforsecurity=False)


def _head_bytes(record: StoredRecord) -> int:
    return record.http.length if record.http else 0


def _place(record: StoredRecord) -> tuple[int, int]:
    return record.offset, record.frame.block_position


def why_no_original(record: StoredRecord) -> str | None:
    """Why no record may refer to the payload of this record, regardless of options; None if records may.

    The result is a key of `offline.eligibility.REASONS`. The request method and an empty payload
    (`has_payload`) are not checked.
    """
    if not record.is_whole:
        return "truncated" if record.is_truncated else "partial"
    if record.type != "response" or record.http is None or record.http.status is None:
        return "no-http"
    if not has_whole_page(record.http.status):
        return "status"
    return "cut-chunks" if has_more_than_payload(record) else None


def has_payload(record: StoredRecord) -> bool:
    """Whether the payload of a record with an HTTP head has any byte."""
    if record.http is not None and record.http.is_chunked:
        return any(payload_pieces(record))
    return record.type != "revisit" and record.frame.block_length > _head_bytes(record)


def has_digest(pieces: Iterable[bytes], digest: bytes | str) -> bool:
    """Whether *digest*, in its algorithm and notation, is that of *pieces*; False if they cannot be decoded."""
    text = digest.encode("latin-1", "replace") if isinstance(digest, str) else digest
    try:
        return digest_in_form_of(digest, pieces) == text.strip()
    except Undecodable:
        return False


def is_in_chunks(record: StoredRecord, payload_bytes: int) -> bool:
    """Whether a body with a payload of this size is really stored in chunks, not only announced as chunked."""
    if record.http is None or not record.http.is_chunked:
        return False
    return record.frame.block_length - record.http.length != payload_bytes


def has_more_than_payload(record: StoredRecord) -> bool:
    """Whether removing the chunk framing discards more than the framing of whole chunks.

    This is the case for chunk extensions, trailer fields, and truncated chunks, which may be a page that only looks
    chunked. Such a record must not be the original of a revisit, nor become a revisit.
    """
    if record.type == "revisit" or record.http is None or not record.http.is_chunked:
        return False
    return has_extra_framing(body_pieces(record))


def _after(pieces: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    for piece in pieces:
        if skipped < len(piece):
            yield from split_pieces([piece[skipped:]], _PIECE)
        skipped = max(0, skipped - len(piece))
