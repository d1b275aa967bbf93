"""Revisits as the responses that they were, and the proof that a record is the original of a revisit.

A restored record has the head of before (`restored_heads`), the revisit's own HTTP head, and the payload of the
original, which passes through bounded memory. If its HTTP head speaks of chunks, the payload comes without them, or
in one chunk where it could be taken for chunks itself: what is promised is that head and payload are those of before,
and a WARC-Block-Digest that does not fit then is made anew.

An original is proved by its bytes: by the digest of the revisit, or by the digest that the payload or the block of the
revisit had before. Programs differ in what they make WARC-Payload-Digest of, so the body with its chunks and the
decoded body count too. Where an archive held a false digest from the beginning, the original is proved by having the
same one in its own head and a WARC-Block-Digest that its block still fits.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.warc.bodies import decoded_pieces, payload_pieces
from scrapy_dedupe.warc.codings import Undecodable, codings_of
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import raw_head

from .restored_heads import (
    algorithm_of,
    as_response,
    as_response_of_others,
    block_digest_of,
    digest_of,
    former,
    in_form_of,
    with_block_digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord

_LIKE_A_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*[;\r\n]")
_CHUNK_END: Final = b"\r\n0\r\n\r\n"


class Original:
    """A record that may be the original of revisits. Every digest of it is computed once."""

    def __init__(self, record: StoredRecord) -> None:
        self.record = record
        self._digests: dict[tuple[str, str], bytes | None] = {}
        self._size: int | None = None

    @property
    def size_bytes(self) -> int:
        """The length of its payload."""
        if self._size is None:
            self._size = sum(map(len, payload_pieces(self.record)))
        return self._size

    def reason_against(self, revisit: StoredRecord) -> str | None:
        """Why this is not the original of *revisit*; None if it is proved to be."""
        wanted = revisit.get("WARC-Payload-Digest")
        texts = [text for text in (wanted, former(revisit, "WARC-Payload-Digest")) if text]
        if any(self._has(text) for text in texts):
            return None
        before = former(revisit, "WARC-Block-Digest")
        if before and revisit.http is not None and self._makes_block(revisit, before):
            return None
        if wanted and self.record.get("WARC-Payload-Digest") == wanted and self._is_sound():
            return None
        where = f"{self.record.path}, offset {self.record.offset}"
        if not wanted:
            return (
                f"the revisit has no WARC-Payload-Digest, so that {where} cannot be proved to be its original"
            )
        label = algorithm_of(wanted)
        if label is None:
            return f"its digest {wanted} is of an algorithm that is not known here"
        found = in_form_of(wanted, self._digest(label, "payload") or b"").decode("latin-1")
        return f"its original in {where} has the payload digest {found}, the revisit says {wanted}"

    def _has(self, text: str) -> bool:
        algorithm = algorithm_of(text)
        if algorithm is None:
            return False
        return any(
            raw is not None and _is_same(text, raw)
            for raw in (self._digest(algorithm, what) for what in ("payload", "chunks", "decoded"))
        )

    def _digest(self, algorithm: str, what: str) -> bytes | None:
        if (algorithm, what) not in self._digests:
            pieces = self._pieces(what)
            try:
                self._digests[algorithm, what] = None if pieces is None else _raw_digest(algorithm, pieces)
            except Undecodable:
                self._digests[algorithm, what] = None
        return self._digests[algorithm, what]

    def _pieces(self, what: str) -> Iterator[bytes] | None:
        record = self.record
        if what == "payload":
            return payload_pieces(record)
        if what == "decoded":
            return decoded_pieces(record) if codings_of(record.http_headers) else None
        return _behind_head(record) if record.http is not None and record.http.is_chunked else None

    def _makes_block(self, revisit: StoredRecord, digest: str) -> bool:
        algorithm = algorithm_of(digest)
        if algorithm is None:
            return False
        return _is_same(digest, _raw_digest(algorithm, RestoredBlock(revisit, self.record, 0).pieces()))

    def _is_sound(self) -> bool:
        digest = self.record.get("WARC-Block-Digest")
        algorithm = algorithm_of(digest)
        if digest is None or algorithm is None:
            return False
        return _is_same(digest, _raw_digest(algorithm, open_block(self.record.path, self.record.frame)))


class RestoredBlock:
    """The block of a restored record; ``length`` counts its bytes if *size_bytes* are those of the payload."""

    def __init__(self, revisit: StoredRecord, original: StoredRecord, size_bytes: int) -> None:
        assert revisit.http is not None
        head = revisit.block()[: revisit.http.length]
        self._original = original
        self.is_chunked = revisit.http.is_chunked
        self._head = head if head.endswith((b"\r\n\r\n", b"\n\n")) else head + _blank_line(head)
        self._tail = b""
        if self.is_chunked and size_bytes and _LIKE_A_CHUNK.match(next(payload_pieces(original), b"")):
            self._head += b"%x\r\n" % size_bytes
            self._tail = _CHUNK_END
        self.length = len(self._head) + size_bytes + len(self._tail)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the block."""
        yield self._head
        yield from payload_pieces(self._original)
        if self._tail:
            yield self._tail


def restored_record(
    revisit: StoredRecord, original: StoredRecord, size_bytes: int, *, is_ours: bool
) -> tuple[RawHead, Callable[[], Iterator[bytes]], int]:
    """The head of the response that a revisit becomes, and its block with its length.

    *size_bytes* is the length of the original's payload. Raises DamagedInput if a record cannot be read again.
    """
    block = RestoredBlock(revisit, original, size_bytes)
    head = raw_head(revisit)
    if is_ours:
        head = as_response(head)
        digest = block_digest_of(head)
        # A digest that a block without chunks does not fit was false before; it is not for us to mend.
        if digest is not None and block.is_chunked:
            head = with_block_digest(head, digest_of(digest, block.pieces()) or digest)
    else:
        head = as_response_of_others(head)
        digest = block_digest_of(head)
        if digest is not None:
            head = with_block_digest(head, digest_of(digest, block.pieces()))
    return head, block.pieces, block.length


def _behind_head(record: StoredRecord) -> Iterator[bytes]:
    skipped = record.http.length if record.http else 0
    for piece in open_block(record.path, record.frame):
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def _raw_digest(algorithm: str, pieces: Iterator[bytes]) -> bytes:
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def _is_same(text: str, raw: bytes) -> bool:
    return in_form_of(text, raw) == text.strip().encode("latin-1", "replace")


def _blank_line(head: bytes) -> bytes:
    return b"\r\n" if head.endswith(b"\n") else b"\r\n\r\n"
