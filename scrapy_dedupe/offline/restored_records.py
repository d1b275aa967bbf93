"""Records before a deduplication: their heads, the verification of originals, and responses made from revisits.

A rewritten record keeps the former value of its field NAME in a field ``Former-NAME: VALUE``; ``none`` means that the
field did not exist. So the former head can be computed from the present one: every former value is moved back to its field
(or stays in its place, if the field is gone), ``none`` removes the field, and a revisit loses the fields that only
revisits have. It loses these regardless of their ``Former-`` values: a response that has such a field is never converted,
so such a value must come from a time when the record already was a revisit.

Other programs may write such fields too. A record counts as rewritten by this project only if all its ``Former-`` fields
could come from it: a revisit that was a response has the id that `revisits.revisit_id` computes from its former id, and
so does a changed WARC-Concurrent-To. A change that cannot be reverted with certainty is not reverted.

A restored record has its former head, the revisit's own HTTP head, and the payload of the original, which is streamed in
bounded memory. If its HTTP head announces chunks, the payload is stored without them, or in one chunk if it could be
mistaken for chunks itself. Head and payload are guaranteed to be the former ones; a digest that does not match after this
is computed again, in its algorithm and notation. Many programs compute WARC-Payload-Digest from the body with its chunks,
which cannot match without them; it is replaced by the digest of the payload. A digest of the decoded body is kept, since
chunks do not affect it.

An original is verified by its bytes: by the digest of the revisit, or by the former digest of the revisit's payload
or block. Programs compute WARC-Payload-Digest from different data, so digests of the body with its chunks and of the
decoded body are accepted too. If the archive had a wrong digest from the start, the original is accepted if it has
the same digest in its own head and a WARC-Block-Digest that matches its block.

The digest of a decoded body does not show its content coding. For revisits made by this project, the stored bytes were
compared. If the HTTP head of another program's revisit names other codings than the head of its original, the revisit
gets the payload only if the payload is in these codings, or if the head names none and the digest is of the stored
bytes.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.offline.revisits import NONE, revisit_id
from scrapy_dedupe.warc.bodies import (
    MAX_DECODED_BYTES,
    body_forms,
    decoded_pieces,
    has_digest,
    payload_pieces,
)
from scrapy_dedupe.warc.capture import digest_in_form_of
from scrapy_dedupe.warc.chunks import MAX_CHUNK_LINE
from scrapy_dedupe.warc.codings import Undecodable, codings_of, decoded_stream
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import RawHead, raw_head
from scrapy_dedupe.warc.records import IDENTICAL_PAYLOAD
from scrapy_dedupe.warc.references import bare_id, milliseconds, reference_of, uri_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord

FORMER: Final = "Former-"
FORMER_ID: Final = "Former-WARC-Record-ID"
BLOCK_DIGEST: Final = b"WARC-Block-Digest"
PAYLOAD_DIGEST: Final = b"WARC-Payload-Digest"
_FORMER: Final = b"former-"
_OURS: Final = b"former-warc-"
_FORMER_DIGEST: Final = b"Former-WARC-Payload-Digest"
_ONLY_IN_REVISITS: Final = (b"warc-profile", b"warc-truncated")
_REFERENCE: Final = b"warc-refers-to"
_CONCURRENT: Final = "WARC-Concurrent-To"
_REFERENCES: Final = ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date")
_LIKE_A_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*[;\r\n]")
_CHUNK_END: Final = b"\r\n0\r\n\r\n"


def is_changed(record: StoredRecord) -> bool:
    """Whether a record has the former value of any field."""
    return bool(_former_names(record))


def is_own_revisit(record: StoredRecord) -> bool:
    """Whether a record is a revisit that this project made from a response."""
    ids = record.get_all(FORMER_ID)
    return (
        record.type == "revisit"
        and record.profile == IDENTICAL_PAYLOAD
        and record.truncated == "length"
        and len(ids) == 1
        and _is_made_of(record.id, ids[0])
    )


def pointed_fields(record: StoredRecord) -> frozenset[str]:
    """The fields, in lower case, that this project changed in a record whose original became a revisit.

    Empty if there are none. The record may also have Former- fields of other programs.
    """
    names = _former_names(record)
    fields = [_CONCURRENT] if _has_new_ids(record) else []
    references = [name for name in _REFERENCES if f"{FORMER}{name}".lower() in names]
    if record.type == "revisit":
        if record.refers_to_uri is not None and record.refers_to_date is not None:
            fields += references
            if references or names == {_FORMER_DIGEST.decode().lower()}:
                fields.append(PAYLOAD_DIGEST.decode())
    elif record.type != "response":
        # In records other than revisits, no reference field is added.
        fields += [
            name for name in references if record.get(name) is not None and former(record, name) is not None
        ]
    return frozenset(name.lower() for name in fields if f"{FORMER}{name}".lower() in names)


def has_others(record: StoredRecord) -> bool:
    """Whether a record has Former- fields that this project did not write when it updated references."""
    return _former_names(record) != {FORMER.lower() + name for name in pointed_fields(record)}


def _former_names(record: StoredRecord) -> set[str]:
    return {name.lower() for name, _ in record.headers if name.lower().startswith(_OURS.decode())}


def _has_new_ids(record: StoredRecord) -> bool:
    """Whether each WARC-Concurrent-To has its former value, or the id of the revisit that replaced the former record."""
    present, before = record.get_all(_CONCURRENT), record.get_all(FORMER + _CONCURRENT)
    return (
        len(present) == len(before)
        and present != before
        and all(new == old or _is_made_of(new, old) for new, old in zip(present, before, strict=True))
    )


def _is_made_of(new_id: str | None, old_id: str) -> bool:
    # Text that is not UTF-8 was decoded as Latin-1.
    read = (old_id.encode(codec, "replace") for codec in ("utf-8", "latin-1"))
    return any(revisit_id(one).decode("ascii") == new_id for one in read)


def former(record: StoredRecord, name: str) -> str | None:
    """The former value of a field; None if it did not change or did not exist."""
    value = record.get(FORMER + name)
    return None if value == NONE.decode() else value


def pointed_back(head: RawHead, only: frozenset[str] | None = None) -> RawHead:
    """The head with the former values of its fields, or only of the fields *only*, in lower case."""
    wanted = None if only is None else {name.encode("ascii") for name in only}

    def is_undone(lower: bytes) -> bool:
        return lower.startswith(_OURS) and (wanted is None or lower.removeprefix(_FORMER) in wanted)

    former: dict[bytes, list[bytes]] = {}
    for name, value in head.fields:
        if is_undone(name.lower()):
            former.setdefault(name.lower().removeprefix(_FORMER), []).append(value)
    present = {name.lower() for name, _ in head.fields}
    left = {name: iter(values) for name, values in former.items()}
    fields = []
    for name, value in head.fields:
        lower = name.lower()
        if not is_undone(lower):
            before = next(left.get(lower, iter(())), None)
            if before != NONE:
                fields.append((name, value if before is None else before))
        elif lower.removeprefix(_FORMER) not in present and value != NONE:
            fields.append((name[len(_FORMER) :], value))
    return RawHead(head.version, tuple(fields))


def as_response(head: RawHead) -> RawHead:
    """The head of the response from which this project made a revisit."""
    back = pointed_back(head).replaced(b"WARC-Type", b"response")
    return RawHead(back.version, tuple(pair for pair in back.fields if not _is_of_revisit(pair[0])))


def as_response_of_others(head: RawHead) -> RawHead:
    """The head of a response made from a revisit of another program. Its id and digest do not change.

    ``Former-`` fields of updated references are removed: a later restoration would treat them as changes of a response.
    """
    # Its digest is already that of the original, in the original's notation.
    back = as_response(head.without([_FORMER_DIGEST]))
    if (back.get(b"Content-Type") or b"").lower().startswith(b"message/http"):
        back = back.replaced(b"Content-Type", b"application/http; msgtype=response")
    return back


def _is_of_revisit(name: bytes) -> bool:
    lower = name.lower()
    return lower in _ONLY_IN_REVISITS or lower.startswith(_REFERENCE)


class OriginalRecord:
    """A possible original of revisits. The size of its payload and each of its digests are computed only once."""

    def __init__(self, record: StoredRecord) -> None:
        self.record = record
        self._codings = codings_of(record.http_headers)
        self._known: dict[str, bool] = {}

    @cached_property
    def size_bytes(self) -> int:
        """The length of its payload."""
        return sum(map(len, payload_pieces(self.record)))

    def reason_against(self, revisit: StoredRecord) -> str | None:
        """Why this is not the original of *revisit*; None if it is verified."""
        wanted = revisit.get("WARC-Payload-Digest")
        texts = [text for text in (wanted, former(revisit, "WARC-Payload-Digest")) if text]
        where = f"{self.record.path}, offset {self.record.offset}"
        codings = codings_of(revisit.http_headers)
        is_sure = codings == self._codings or (is_own_revisit(revisit) and self._is_named_by(revisit))
        if not is_sure and (not self._is_in(codings) or any(map(self._has_decoded, texts))):
            return (
                f"the content coding in its HTTP head is {_shown(codings)}, but {_shown(self._codings)} in its original in"
                f" {where}"
            )
        if any(map(self._has_body, texts)):
            return None
        block_digest = former(revisit, "WARC-Block-Digest")
        if block_digest and has_digest(RestoredBlock(revisit, self.record, 0).pieces(), block_digest):
            return None
        if is_sure and wanted and self.record.get("WARC-Payload-Digest") == wanted and self._is_sound:
            return None
        if not wanted:
            # Early versions of warcprox wrote no digest. Then all readers accept the record that the revisit names.
            return None
        found = digest_in_form_of(wanted, payload_pieces(self.record))
        if found is None:
            return f"its digest {wanted} has an unknown algorithm"
        found_text = found.decode("latin-1")
        return f"its original in {where} has the payload digest {found_text}, but the revisit has {wanted}"

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

    def _is_in(self, codings: list[str]) -> bool:
        """Whether the stored payload has these content codings."""
        try:
            for _ in decoded_stream(payload_pieces(self.record), codings, MAX_DECODED_BYTES):
                pass
        except Undecodable:
            return False
        return True

    def _has_body(self, digest: str) -> bool:
        """Whether a digest is of the body: without its transfer chunks, with them, or decoded."""
        if digest not in self._known:
            forms = body_forms(self.record)
            self._known[digest] = any(has_digest(pieces_of(self.record), digest) for pieces_of in forms)
        return self._known[digest]

    def _has_decoded(self, digest: str) -> bool:
        return bool(self._codings) and has_digest(decoded_pieces(self.record), digest)

    @cached_property
    def _is_sound(self) -> bool:
        """Whether the record has a digest of its block, and it is right."""
        digest = self.record.get("WARC-Block-Digest")
        return digest is not None and has_digest(open_block(self.record.path, self.record.frame), digest)


class RestoredBlock:
    """The block of a restored record; *size_bytes* is the size of the payload, ``length`` that of the whole block."""

    def __init__(self, revisit: StoredRecord, original: StoredRecord, size_bytes: int) -> None:
        assert revisit.http is not None
        # The HTTP head always fits into the kept bytes, regardless of the size of the block.
        head = revisit.frame.kept[: revisit.http.length]
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


def restored_record(
    revisit: StoredRecord, original: OriginalRecord, is_named: Callable[[str], bool]
) -> tuple[RawHead, RestoredBlock]:
    """The head of the restored response, and its block.

    *is_named* returns whether another revisit is identified by a payload digest, which is not changed then. Raises
    DamagedInput if a record cannot be read again.
    """
    http = original.record.http
    block = RestoredBlock(revisit, original.record, original.size_bytes)
    is_own, had_chunks = is_own_revisit(revisit), block.is_chunked
    head = as_response(raw_head(revisit)) if is_own else as_response_of_others(raw_head(revisit))
    digest = head.get(BLOCK_DIGEST)
    # A digest that does not match a block without chunks was wrong before the conversion; keep it.
    if digest is not None and (had_chunks or not is_own):
        right = digest_in_form_of(digest, block.pieces())
        if is_own:
            # If the digest matches, the block is restored exactly: it never had chunks, only announced them.
            had_chunks = right != digest.strip()
            head = head.replaced(BLOCK_DIGEST, right or digest)
        else:
            head = head.without([BLOCK_DIGEST]) if right is None else head.replaced(BLOCK_DIGEST, right)
    had_chunks = had_chunks or (not is_own and http is not None and http.is_chunked)
    digest = head.get(PAYLOAD_DIGEST)
    # Replay programs search for the original of a revisit by the text of its digest.
    if digest is not None and had_chunks and not is_named(digest.decode("latin-1")):
        head = head.replaced(PAYLOAD_DIGEST, _right_payload_digest(digest, revisit, original.record))
    return head, block


def _right_payload_digest(text: bytes, revisit: StoredRecord, original: StoredRecord) -> bytes:
    """The payload digest *text*; if it is of chunks that are missing, the payload's digest in the same notation."""
    right = digest_in_form_of(text, payload_pieces(original))
    if right is None or right == text.strip():
        return text
    codings = codings_of(revisit.http_headers)
    decoded = decoded_stream(payload_pieces(original), codings, MAX_DECODED_BYTES)
    return text if codings and has_digest(decoded, text) else right


def _first_bytes(record: StoredRecord) -> bytes:
    """The start of a payload, as long as the longest chunk line. A single piece can be smaller."""
    first = b""
    for piece in payload_pieces(record):
        first += piece
        if len(first) >= MAX_CHUNK_LINE:
            break
    return first


def _shown(codings: list[str]) -> str:
    return ", ".join(codings) or "none"


def _blank_line(head: bytes) -> bytes:
    return b"\r\n" if head.endswith(b"\n") else b"\r\n\r\n"
