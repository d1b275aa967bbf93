"""Restore revisits to responses, and verify that a record is the original of a revisit.

A restored record has its former head (`restored_heads`), the revisit's own HTTP head, and the payload of the
original, which is streamed in bounded memory. If its HTTP head announces chunks, the payload is stored without them,
or in one chunk if it could be mistaken for chunks itself. Head and payload are guaranteed to be the former ones; a
digest that does not match after this is computed again, in its algorithm and notation. Many programs compute
WARC-Payload-Digest from the body with its chunks, which cannot match without them; it is replaced by the digest of
the payload. A digest of the decoded body is kept, since chunks do not affect it.

An original is verified by its bytes: by the digest of the revisit, or by the former digest of the revisit's payload
or block. Programs compute WARC-Payload-Digest from different data, so digests of the body with its chunks and of the
decoded body are accepted too. If the archive had a wrong digest from the start, the original is accepted if it has
the same digest in its own head and a WARC-Block-Digest that matches its block.

The digest of a decoded body does not show its content coding. For revisits made by this project, the stored bytes were
compared. If the HTTP head of another program's revisit names other codings than the head of its original, the revisit
gets the payload only if the payload is in these codings, or if the head names none and the digest is of the stored
bytes.

Originals are read in the order of their files, each once, and the records restored from the originals of one file are
written to one file in the work folder (`make_records`), from which the new files are assembled (`restored_files`).
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.bodies import MAX_DECODED_BYTES, decoded_pieces, payload_pieces
from scrapy_dedupe.warc.chunks import MAX_CHUNK_LINE
from scrapy_dedupe.warc.codings import Undecodable, codings_of, decoded_stream
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import raw_head
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.references import bare_id, milliseconds, reference_of, uri_key
from scrapy_dedupe.warc.remote import place_file

from .file_rewriting import RecordFile
from .restoration_plan import Made, RestorationPlan
from .restored_heads import (
    BLOCK_DIGEST,
    PAYLOAD_DIGEST,
    algorithm_of,
    as_response,
    as_response_of_others,
    digest_of,
    former,
    in_form_of,
    is_own_revisit,
)
from .windows import HeldFile, WindowedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .restoration_plan import Candidate

_MADE: Final = "made"
_LIKE_A_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*[;\r\n]")
_CHUNK_END: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class OriginalsTask:
    """The candidates of one rank in one file, which has this number in the plan."""

    plan: Path
    rank: int
    number: int
    file: ReadableFile

    @property
    def results(self) -> Path:
        """The file with the results, one JSON array for each candidate. It exists when all records are made."""
        return self.plan.parent / _MADE / f"{self.rank}-{self.number}.results"

    @property
    def made(self) -> Iterator[Made]:
        """The results."""
        with reading(self.results), self.results.open("rb") as lines:
            for line in lines:
                yield Made(*json.loads(line))


def made_path(plan: Path, rank: int, file: int, *, is_gzip: bool) -> Path:
    """The file with the restored records of a task, as gzip members or uncompressed."""
    return plan.parent / _MADE / f"{rank}-{file}{'.gz' if is_gzip else ''}"


def make_records(task: OriginalsTask) -> None:
    """Verify the candidates, and write the records that are restored from them.

    Raises ArchiveError, and DamagedInput if an original cannot be read again.
    """
    targets: dict[int, RecordFile] = {}
    with ExitStack() as stack:
        plan = stack.enter_context(RestorationPlan(task.plan, read_only=True))
        with reading(task.file):
            file = stack.enter_context(WindowedFile(task.file))
        with writing(task.results):
            task.results.parent.mkdir(exist_ok=True)
            results = stack.enter_context(whole_file.replacing(task.results, suffix=".new"))

        def target(is_gzip: int) -> RecordFile:
            if is_gzip not in targets:
                path = made_path(task.plan, task.rank, task.number, is_gzip=bool(is_gzip))
                targets[is_gzip] = stack.enter_context(RecordFile(path, gzip=bool(is_gzip)))
            return targets[is_gzip]

        rows = plan.candidates(task.rank, task.number)
        by_place = groupby(rows, key=lambda one: (one.offset, one.position))
        for (offset, position), candidates in by_place:
            original = OriginalRecord(read_record(file, offset, block_position=position))
            for candidate in candidates:
                made = _made(original, candidate, plan, target)
                with writing(task.results):
                    results.write(json.dumps(made).encode() + b"\n")
        for one in targets.values():
            one.finish()


def _made(
    original: OriginalRecord,
    candidate: Candidate,
    plan: RestorationPlan,
    target_of: Callable[[int], RecordFile],
) -> Made:
    place = candidate.revisit_file, candidate.revisit_offset
    if candidate.record is None:
        revisit = read_record(place_file(plan.place(candidate.revisit_file)), candidate.revisit_offset)
    else:
        revisit = read_record(HeldFile(candidate.record, plan.place(candidate.revisit_file)), 0)
    if (reason := original.reason_against(revisit)) is not None:
        return Made(*place, reason, 0, 0)
    head, pieces, length = restored_record(
        revisit, original.record, original.size_bytes, is_named=plan.is_named
    )
    target = target_of(candidate.is_gzip)
    begin = target.size
    target.write(head.to_bytes(length), pieces(), length)
    return Made(*place, None, begin, target.size - begin)


class OriginalRecord:
    """A possible original of revisits. Each of its digests is computed only once."""

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
        """Why this is not the original of *revisit*; None if it is verified."""
        wanted = revisit.get("WARC-Payload-Digest")
        texts = [text for text in (wanted, former(revisit, "WARC-Payload-Digest")) if text]
        where = f"{self.record.path}, offset {self.record.offset}"
        is_sure = (is_own_revisit(revisit) and self._is_named_by(revisit)) or _codings(revisit) == _codings(
            self.record
        )
        if not is_sure and (
            not self._is_in_codings_of(revisit) or any(self._has(text, "decoded") for text in texts)
        ):
            return (
                f"the content coding in its HTTP head is {_shown(_codings(revisit))}, but {_shown(_codings(self.record))}"
                f" in its original in {where}"
            )
        if any(self._has(text) for text in texts):
            return None
        before = former(revisit, "WARC-Block-Digest")
        if before and revisit.http is not None and self._makes_block(revisit, before):
            return None
        if is_sure and wanted and self.record.get("WARC-Payload-Digest") == wanted and self._is_sound():
            return None
        if not wanted:
            # Early versions of warcprox wrote no digest. Then all readers accept the record that the revisit names.
            return None
        label = algorithm_of(wanted)
        if label is None:
            return f"its digest {wanted} has an unknown algorithm"
        found = in_form_of(wanted, self._digest(label, "payload") or b"").decode("latin-1")
        return f"its original in {where} has the payload digest {found}, but the revisit has {wanted}"

    def _is_named_by(self, revisit: StoredRecord) -> bool:
        """Whether *revisit* refers to this record by id or by URI and date, not only by digest."""
        reference, record = reference_of(revisit), self.record
        if reference.id is not None and reference.id == bare_id(record.id):
            return True
        return (
            reference.uri is not None
            and uri_key(reference.uri) == uri_key(record.target_uri or "")
            and reference.date == milliseconds(record.date)
        )

    def _has(self, text: str, *only: str) -> bool:
        algorithm = algorithm_of(text)
        if algorithm is None:
            return False
        digests = (self._digest(algorithm, what) for what in only or ("payload", "chunks", "decoded"))
        return any(raw is not None and _is_same(text, raw) for raw in digests)

    def _is_in_codings_of(self, revisit: StoredRecord) -> bool:
        """Whether the stored payload has the content codings in the HTTP head of *revisit*."""
        try:
            for _ in decoded_stream(payload_pieces(self.record), _codings(revisit), MAX_DECODED_BYTES):
                pass
        except Undecodable:
            return False
        return True

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
            return decoded_pieces(record) if _codings(record) else None
        return _after_head(record) if record.http is not None and record.http.is_chunked else None

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
    """The block of a restored record; *size_bytes* is the size of the payload, ``length`` that of the whole block."""

    def __init__(self, revisit: StoredRecord, original: StoredRecord, size_bytes: int) -> None:
        assert revisit.http is not None
        # The HTTP head always fits into the kept bytes, regardless of the size of the block.
        head = revisit.frame.kept[: revisit.http.length]
        self._revisit = revisit
        self._original = original
        self.is_chunked = revisit.http.is_chunked
        self._head = head if head.endswith((b"\r\n\r\n", b"\n\n")) else head + _blank_line(head)
        self._tail = b""
        if self.is_chunked and size_bytes and _LIKE_A_CHUNK.match(_first_bytes(original)):
            self._head += b"%x\r\n" % size_bytes
            self._tail = _CHUNK_END
        self.length = len(self._head) + size_bytes + len(self._tail)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the block."""
        yield self._head
        yield from payload_pieces(self._original)
        if self._tail:
            yield self._tail

    def right_payload_digest(self, text: bytes) -> bytes:
        """The payload digest *text*; if it is of chunks that are missing, the payload's digest in the same notation."""
        right = digest_of(text, payload_pieces(self._original))
        if right is None or _is_same_digest(text, right) or self._decodes_to(text):
            return text
        return right

    def _decodes_to(self, text: bytes) -> bool:
        codings = _codings(self._revisit)
        if not codings:
            return False
        decoded = decoded_stream(payload_pieces(self._original), codings, MAX_DECODED_BYTES)
        try:
            return _is_same_digest(text, digest_of(text, decoded))
        except Undecodable:
            return False


def restored_record(
    revisit: StoredRecord,
    original: StoredRecord,
    size_bytes: int,
    *,
    is_named: Callable[[str], bool] = lambda _: False,
) -> tuple[RawHead, Callable[[], Iterator[bytes]], int]:
    """The head of the restored response, a function that yields its block, and the length of the block.

    *size_bytes* is the length of the original's payload. *is_named* returns whether another revisit is identified by a
    payload digest, which is not changed then. Raises DamagedInput if a record cannot be read again.
    """
    block = RestoredBlock(revisit, original, size_bytes)
    head = raw_head(revisit)
    if is_own_revisit(revisit):
        head = as_response(head)
        # A digest that does not match a block without chunks was wrong before the conversion; keep it.
        had_chunks = block.is_chunked
        digest = head.get(BLOCK_DIGEST)
        if digest is not None and had_chunks:
            right = digest_of(digest, block.pieces())
            # If the digest matches, the block is restored exactly: it never had chunks, only announced them.
            had_chunks = not _is_same_digest(digest, right)
            head = head.replaced(BLOCK_DIGEST, right or digest)
    else:
        head = as_response_of_others(head)
        had_chunks = block.is_chunked or (original.http is not None and original.http.is_chunked)
        digest = head.get(BLOCK_DIGEST)
        if digest is not None:
            right = digest_of(digest, block.pieces())
            head = head.without([BLOCK_DIGEST]) if right is None else head.replaced(BLOCK_DIGEST, right)
    digest = head.get(PAYLOAD_DIGEST)
    # Replay programs search for the original of a revisit by the text of its digest.
    if digest is not None and had_chunks and not is_named(digest.decode("latin-1")):
        head = head.replaced(PAYLOAD_DIGEST, block.right_payload_digest(digest))
    return head, block.pieces, block.length


def _first_bytes(record: StoredRecord) -> bytes:
    """The start of a payload, as long as the longest chunk line. A single piece can be smaller."""
    first = b""
    for piece in payload_pieces(record):
        first += piece
        if len(first) >= MAX_CHUNK_LINE:
            break
    return first


def _codings(record: StoredRecord) -> list[str]:
    return codings_of(record.http_headers)


def _shown(codings: list[str]) -> str:
    return ", ".join(codings) or "none"


def _after_head(record: StoredRecord) -> Iterator[bytes]:
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


def _is_same_digest(text: bytes, right: bytes | None) -> bool:
    return right is not None and right == text.strip()


def _blank_line(head: bytes) -> bytes:
    return b"\r\n" if head.endswith(b"\n") else b"\r\n\r\n"
