"""Distinguish the different payloads of one digest by their bytes.

The first record of each payload is its representative. Its payload is kept in memory if it has up to 4 MiB and there is
room, else only its manifest line, from which it is read again. A payload is compared with the representative that
matched last, then only with representatives of the same size and BLAKE2b hash (RFC 7693): ten thousand payloads with
one weak digest are not all compared with each other. The hash only selects candidates; payloads are equal only if their
bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.bodies import decoded_pieces, payload_pieces
from scrapy_dedupe.warc.reading import KEPT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.warc.reading import StoredRecord

HELD_BYTES = 4 << 20

_ROOM_BYTES = 32 << 20
_LONG_COST_BYTES = KEPT_BYTES + HELD_BYTES  # the start of the record, and a part of a remote file


@dataclass(slots=True, eq=False)
class _Representative:
    number: int
    line: ManifestLine
    key: tuple[int, bytes] | None  # size and hash, once they are needed


class DifferentPayloads:
    """Numbers the payloads of one digest, from 0, in the order of their first records."""

    def __init__(self, places: Places, *, is_decoded: bool) -> None:
        self._places = places
        self._is_decoded = is_decoded
        self._count = 0
        self._last: _Representative | None = None
        self._by_key: dict[tuple[int, bytes], list[_Representative]] = {}
        self._bodies: dict[int, _Body] = {}  # least recently used first
        self._room = _ROOM_BYTES

    def number_of(self, line: ManifestLine, record: StoredRecord) -> int:
        """The number of the payload of *record*, the record of *line*.

        Raises DamagedInput or ArchiveError if the payload, or one that it is compared with, cannot be read again;
        Undecodable for a digest of decoded payloads.
        """
        body = _Body(record, self._is_decoded)
        last = self._last
        if last is None:
            return self._add(line, body, None)
        if self._body_of(last).is_same(body):
            return last.number
        if last.key is None:
            last.key = self._body_of(last).key()
            self._by_key[last.key] = [last]
        key = body.key()
        for other in self._by_key.get(key, ()):
            if other is not last and self._body_of(other).is_same(body):
                self._last = other
                return other.number
        return self._add(line, body, key)

    def _add(self, line: ManifestLine, body: _Body, key: tuple[int, bytes] | None) -> int:
        self._last = new = _Representative(self._count, line, key)
        self._count += 1
        if key is not None:
            self._by_key.setdefault(key, []).append(new)
        self._keep(new, body)
        return new.number

    def _body_of(self, representative: _Representative) -> _Body:
        body = self._bodies.pop(representative.number, None)
        if body is None:
            body = _Body(self._places.record(representative.line), self._is_decoded)
        else:
            self._room += body.cost_bytes
        self._keep(representative, body)
        return body

    def _keep(self, representative: _Representative, body: _Body) -> None:
        self._bodies[representative.number] = body
        self._room -= body.cost_bytes
        while self._room < 0 and len(self._bodies) > 1:
            self._room += self._bodies.pop(next(iter(self._bodies))).cost_bytes


class _Body:
    """A payload: its bytes if they are few, else the record from which they are read in pieces."""

    __slots__ = ("_held", "_is_decoded", "_record")

    def __init__(self, record: StoredRecord, is_decoded: bool) -> None:
        self._is_decoded = is_decoded
        self._record: StoredRecord | None = record
        self._held: bytes | None = None
        if not is_decoded and record.frame.block_length > KEPT_BYTES:
            return
        pieces, size = [], 0
        for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > HELD_BYTES:
                return
        self._held, self._record = b"".join(pieces), None

    @property
    def cost_bytes(self) -> int:
        # For a small payload, the object needs more memory than the bytes.
        return _LONG_COST_BYTES if self._held is None else len(self._held) + 200

    def pieces(self) -> Iterator[bytes]:
        if self._held is not None:
            return iter((self._held,))
        assert self._record is not None
        return decoded_pieces(self._record) if self._is_decoded else payload_pieces(self._record)

    def is_same(self, other: _Body) -> bool:
        return (
            self._held == other._held
            if self._held is not None and other._held is not None
            else is_same(self.pieces(), other.pieces())
        )

    def key(self) -> tuple[int, bytes]:
        hasher, size = blake2b(digest_size=32), 0
        for piece in self.pieces():
            hasher.update(piece)
            size += len(piece)
        return size, hasher.digest()


def is_same(first: Iterator[bytes], second: Iterator[bytes]) -> bool:
    """Whether two streams have the same bytes, regardless of their division into pieces.

    >>> is_same(iter([b"a", b"bc"]), iter([b"ab", b"", b"c"]))
    True
    """
    left = right = b""
    while True:
        left = left or next(filter(None, first), b"")
        right = right or next(filter(None, second), b"")
        if not left or not right:
            return not left and not right
        size = min(len(left), len(right))
        if left[:size] != right[:size]:
            return False
        left, right = left[size:], right[size:]
