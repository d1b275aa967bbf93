"""The file before, as a verification reads it.

Without facts, its bytes are compared with the file after, so it is read completely.

With facts (`OldRecord`), which an earlier reading of the file has stored, it is hardly read at all. The file after is
compared with the digests of the stored bytes; a response that became a revisit is compared with its stored heads and the
SHA-256 of its payload, and a short record is in the facts itself. Any other record that changed is read, and so are bytes
between records. This finds the same differences, on the condition that the facts are those of the file. It does not find a
fault of the reading that computed the facts, nor a change to the file since then: the caller must check that size and
modification time are still the same.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.evidence import algorithms_of
from scrapy_dedupe.offline.record_keys import RecordsInOrder
from scrapy_dedupe.offline.windows import HeldFile, WindowedFile
from scrapy_dedupe.warc.bodies import BodyDigest, hashed_records, payload_digests
from scrapy_dedupe.warc.framing import Frame, known_head, open_head, split_fields
from scrapy_dedupe.warc.reading import read_record, stored_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from scrapy_dedupe.offline.record_keys import HashedRecord
    from scrapy_dedupe.warc.framing import Damage, Layouts
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE = 1 << 20
_SHORT_BYTES = 1 << 12


class OldRecord(NamedTuple):
    """Facts about one record that shares its gzip member with no other.

    ``offset`` and ``length`` count stored bytes, the blank lines after the record included (`StoredRecord`). ``stored`` is
    their digest (`stored_hash`). The other facts are None if they are not known. ``head`` has the bytes of the head with its
    blank line, ``block_start`` the HTTP head of a response, or the whole block of a short record of another type;
    ``block_length`` is the length of the block. ``payload_bytes`` and ``payload_sha256`` are size and digest of the stored
    payload of a response.
    """

    offset: int
    length: int
    stored: bytes
    head: bytes | None = None
    block_start: bytes | None = None
    block_length: int | None = None
    payload_bytes: int | None = None
    payload_sha256: bytes | None = None


def stored_hash(data: bytes = b"") -> blake2b:
    """The hash of stored bytes: BLAKE2b with a digest of 32 bytes."""
    return blake2b(data, digest_size=32)


class OldFile:
    """Context manager for the file before. *facts* are in the order of the file."""

    def __init__(self, file: ReadableFile, facts: Iterable[OldRecord] | None = None) -> None:
        self.window = WindowedFile(file, reads_ahead=facts is None)
        self._records = RecordsInOrder(self.window, algorithms_of)
        self._layouts: Layouts = {}
        self._facts = iter(facts or ())
        self._next = next(self._facts, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.window.__exit__(kind, error, trace)

    def facts_at(self, offset: int) -> OldRecord | None:
        """The facts about the record at *offset*, if there are any. Offsets must not decrease."""
        while self._next is not None and self._next.offset < offset:
            self._next = next(self._facts, None)
        return self._next if self._next is not None and self._next.offset == offset else None

    def record_at(self, offset: int, *, is_now_revisit: bool) -> HashedRecord | None:
        """The record that begins at *offset*, with its payload digests; see `RecordsInOrder`.

        *is_now_revisit*: it will be compared with a revisit, which needs its heads only.
        """
        facts = self.facts_at(offset)
        if facts is None:
            return self._records.at(offset)
        if (record := self._known(facts, is_now_revisit=is_now_revisit)) is not None:
            return record
        with suppress(DamagedInput):
            held = HeldFile(bytes(self.window.read(offset, facts.length)), str(self.window), offset)
            read = read_record(held, offset)
            return read, payload_digests(read, algorithms_of(read))
        return None

    def _known(self, facts: OldRecord, *, is_now_revisit: bool) -> HashedRecord | None:
        """A record from its facts; None if they do not suffice."""
        head, start, block_length = facts.head, facts.block_start, facts.block_length
        if head is None or start is None or block_length is None:
            return None
        is_whole = len(start) == block_length
        if not (is_whole or is_now_revisit):
            return None
        known, fields = known_head(head, self._layouts), None
        if known is None or known[1].end() != len(head):
            known = None
            fields = tuple(
                [(_text(name), _text(value)) for name, value in split_fields(head.partition(b"\n")[2])]
            )
        where = (facts.offset, facts.length, 0, len(head), block_length)
        record = stored_record(self.window, Frame(False, fields, *where, head + start, len(start), known))
        algorithms = algorithms_of(record)
        if is_whole:
            return record, payload_digests(record, algorithms)
        if algorithms != ("sha256",) or facts.payload_sha256 is None or facts.payload_bytes is None:
            return None
        return record, (BodyDigest(facts.payload_sha256.hex(), facts.payload_bytes),)


def old_records(
    file: ReadableFile, *, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[OldRecord]:
    """The facts about the records of *file*, which is read once, except for records of more than 2 MB.

    Damage is handled as by `read_records`.
    """
    with WindowedFile(file) as window:
        for record, payload in hashed_records(window, algorithms_of, on_damage=on_damage):
            if not record.length:
                continue
            hasher = stored_hash()
            for at in range(record.offset, record.offset + record.length, _PIECE):
                hasher.update(window.read(at, min(_PIECE, record.offset + record.length - at)))
            facts = OldRecord(record.offset, record.length, hasher.digest())
            frame, http = record.frame, record.http if record.type == "response" else None
            if record.format == "warc" and (http or frame.block_length <= _SHORT_BYTES):
                start = frame.kept[: http.length] if http else frame.kept
                facts = facts._replace(
                    head=open_head(window, frame), block_start=start, block_length=frame.block_length
                )
            if record.format == "warc" and http:
                sha256 = bytes.fromhex(payload[0].hex)
                facts = facts._replace(payload_bytes=payload[0].size_bytes, payload_sha256=sha256)
            yield facts


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        return data.decode("latin-1").strip()
