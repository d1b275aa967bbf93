"""The head of a record when a response becomes a revisit, or when a record that it refers to has become one.

A revisit keeps the version line, all fields of the response with their order and bytes, and its HTTP head. The fields
WARC-Type, WARC-Record-ID (computed from the old id), WARC-Payload-Digest (spelled as in the original, since pywb
compares texts), WARC-Block-Digest (of the HTTP head, in the old notation) and Content-Length change. The fields
WARC-Profile, WARC-Refers-To, WARC-Refers-To-Target-URI, WARC-Refers-To-Date and ``WARC-Truncated: length`` are added
(WARC 1.1, section 6.7.2).

Former values are kept in extension fields, so that all changes can be reverted:

- ``Former-NAME: VALUE`` directly after the field NAME that had this value; ``none`` if the field did not exist;
- in the place of NAME if the field was removed: a WARC-Refers-To whose original has no id, a WARC-Block-Digest of an
  unavailable algorithm;
- if one of several WARC-Concurrent-To is changed, each of them gets a Former- field, in the same order.

A field that is changed a second time keeps its first Former- value. A revisit with Former-WARC-Record-ID was made by this
project.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.warc.capture import digest_in_form_of
from scrapy_dedupe.warc.files import gzip_member
from scrapy_dedupe.warc.framing import open_head
from scrapy_dedupe.warc.raw_heads import RawHead, parsed_head
from scrapy_dedupe.warc.records import IDENTICAL_PAYLOAD, reads_back
from scrapy_dedupe.warc.sources import MAX_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy_dedupe.warc.reading import StoredRecord

FORMER: Final = b"Former-"
NONE: Final = b"none"
RECORD_END: Final = b"\r\n\r\n"

_TYPE: Final = b"warc-type"
_ID: Final = b"warc-record-id"
_PAYLOAD_DIGEST: Final = b"warc-payload-digest"
_BLOCK_DIGEST: Final = b"warc-block-digest"
_CONCURRENT: Final = b"warc-concurrent-to"
_REFERS_TO: Final = b"WARC-Refers-To"
_REFERS_URI: Final = b"WARC-Refers-To-Target-URI"
_REFERS_DATE: Final = b"WARC-Refers-To-Date"
_REFERENCE: Final = b"warc-refers-to"
_FORMER_WARC: Final = b"former-warc-"
_OF_REVISITS: Final = (b"warc-profile", b"warc-truncated", _REFERENCE)
# Fields whose old value is kept in Former-NAME: in a response that becomes a revisit, and in a record that refers to one.
_OF_RESPONSES: Final = (_ID, _PAYLOAD_DIGEST, _BLOCK_DIGEST)
_OF_REFERENCES: Final = (
    _CONCURRENT, _PAYLOAD_DIGEST, *(name.lower() for name in (_REFERS_TO, _REFERS_URI, _REFERS_DATE))
)  # fmt: skip
# A Former-NAME field may be added for each field, and a reference may be added.
_MAX_CHANGED_BYTES: Final = MAX_HEAD_BYTES // 3

# ASCII white space of texts, which readers strip; `bytes.strip` leaves the separators.
_WHITE_SPACE: Final = b" \t\n\r\v\f\x1c\x1d\x1e\x1f"

_NAMESPACE: Final = uuid.UUID("5d8a3a4e-6f0b-4b57-9a53-0c7d41b2f6ce")  # of ids of revisits
# Placeholders that compress no better than a real id and digest.
_SOME_ID: Final = b"<urn:uuid:7d4f1b0a-93c6-4e5d-8a2f-6b1c9e0d3f58>"
_SOME_DIGEST: Final = b"sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"

Field = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class RevisitTarget:
    """The original to which a revisit refers, with the bytes of its record; ``uri`` has no angle brackets.

    ``digest`` is the text of its WARC-Payload-Digest, or the digest that replay programs compute if it has none. ``id``
    is None for a record of an ARC file.
    """

    id: bytes | None
    uri: bytes
    date: bytes
    digest: bytes


# The records of an exchange refer to the same record, and are next to each other.
@lru_cache(64)
def revisit_id(old_id: bytes) -> bytes:
    """The id of the revisit that replaces a record: UUID version 5 (RFC 9562, section 5.5) of the record's id.

    >>> revisit_id(b"<urn:uuid:0b8b1c1e-4f4e-4b3c-9d6a-3f1a2b3c4d5e>")
    b'<urn:uuid:a40a39f4-df9d-54e8-a5db-09b1e1a247b8>'
    """
    name = hashlib.sha1(_NAMESPACE.bytes + bare(old_id), usedforsecurity=False).digest()
    return f"<urn:uuid:{uuid.UUID(bytes=name[:16], version=5)}>".encode("ascii")


def bare(value: bytes) -> bytes:
    """An id or URI without surrounding angle brackets, and without the white space that readers strip."""
    value = value.strip(_WHITE_SPACE) if value.isascii() else _stripped(value)
    return value[1:-1] if value.startswith(b"<") and value.endswith(b">") else value


def _stripped(value: bytes) -> bytes:
    """A value without surrounding Unicode white space, decoded as readers do."""
    try:
        return value.decode("utf-8").strip().encode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1").strip().encode("latin-1")


def could_be_written(record: StoredRecord, head: RawHead) -> bool:
    """Whether the parsed head of a record has the form in which we write heads, and the record ends as ours do.

    Any other record would lose folded lines, white space or line ends. A long head might become too long for readers when its
    fields are changed.
    """
    frame = record.frame
    if frame.block_end != RECORD_END or frame.head_position:
        return False
    usual = frame.head[1].group() if frame.head is not None else frame.member[: frame.block_position]
    stored = bytes(usual) or open_head(record.path, frame)
    length = head.get(b"Content-Length") or b""
    return len(stored) <= _MAX_CHANGED_BYTES and length.isdigit() and head.to_bytes(int(length)) == stored


def can_change_references(head: RawHead) -> bool:
    """Whether the references of a record can be changed, and the change can be reverted.

    All its Former- fields must be ours: a changed field keeps its existing former value, so a value of another program
    would be restored later. Values that change must be read back unchanged.
    """
    if not _are_read_back(head, _OF_REFERENCES):
        return False
    former: dict[bytes, list[bytes]] = {}
    for name, value in head.fields:
        if name.lower().startswith(_FORMER_WARC):
            former.setdefault(name.lower().removeprefix(FORMER.lower()), []).append(value)
    kind = (head.get(_TYPE) or b"").lower()
    for name, values in former.items():
        present = head.get_all(name)
        if name in (_ID, _CONCURRENT):
            if len(present) != len(values) or (name == _ID and kind != b"revisit"):
                return False
            pairs = zip(present, values, strict=True)
            if any(new not in (old, revisit_id(old)) for new, old in pairs):
                return False
        elif name.startswith(_REFERENCE):
            if len(values) > 1 or kind in (b"request", b"response", b"resource"):
                return False
        elif name not in (_PAYLOAD_DIGEST, _BLOCK_DIGEST) or len(values) > 1 or kind != b"revisit":
            return False
    return True


def could_be_undone(head: RawHead) -> bool:
    """Whether a response has none of the fields and values that are reserved for reverting a conversion."""
    if head.get(_TYPE) != b"response":
        return False
    for name, value in head.fields:
        lower = name.lower()
        if lower.startswith((*_OF_REVISITS, _FORMER_WARC)) or (lower.startswith(b"warc-") and value == NONE):
            return False
    if not _are_read_back(head, _OF_RESPONSES):
        return False
    return all(len(head.get_all(name)) <= 1 for name in (_TYPE, _ID, _PAYLOAD_DIGEST, _BLOCK_DIGEST))


def _are_read_back(head: RawHead, names: tuple[bytes, ...]) -> bool:
    """Whether readers get the values of these fields unchanged; empty fields are ignored."""
    return all(reads_back(value) for name, value in head.fields if value and name.lower() in names)


def as_revisit(head: RawHead, target: RevisitTarget, block: bytes) -> RawHead:
    """The head of the revisit that replaces a response with this head.

    *block* is its HTTP head with the blank line. The response must have a record id and pass `could_be_undone`.
    """
    fields: list[Field] = []
    has_payload_digest = False
    for name, value in head.fields:
        lower = name.lower()
        if lower == _TYPE:
            fields.append((name, b"revisit"))
        elif lower == _ID:
            fields += _changed(name, value, revisit_id(value))
        elif lower == _PAYLOAD_DIGEST:
            has_payload_digest = True
            fields += _changed(name, value, target.digest)
        elif lower == _BLOCK_DIGEST:
            fields += _changed(name, value, digest_in_form_of(value, [block]))
        else:
            fields.append((name, value))
    fields.append((b"WARC-Profile", IDENTICAL_PAYLOAD.encode("ascii")))
    if target.id is not None:
        fields.append((_REFERS_TO, target.id))
    fields += [(_REFERS_URI, target.uri), (_REFERS_DATE, target.date)]
    if not has_payload_digest:
        fields += [(b"WARC-Payload-Digest", target.digest), (FORMER + b"WARC-Payload-Digest", NONE)]
    fields.append((b"WARC-Truncated", b"length"))
    return RawHead(head.version, tuple(fields))


def with_concurrent(head: RawHead, new_id: Callable[[bytes], bytes | None]) -> RawHead:
    """The head with the ids of *new_id* in WARC-Concurrent-To (None: unchanged); the same object if nothing changes."""
    new = [new_id(value) for value in head.get_all(_CONCURRENT)]
    if not any(new):
        return head
    ids = iter(new)
    fields: list[Field] = []
    former = _followed_by_former(head.fields)
    for index, (name, value) in enumerate(head.fields):
        fields.append((name, value))
        if name.lower() == _CONCURRENT:
            fields[-1] = (name, next(ids) or value)
            if index not in former:
                fields.append((FORMER + name, value))
    return RawHead(head.version, tuple(fields))


def pointed_to(
    head: RawHead, target: RevisitTarget, *, is_revisit: bool, takes_digest: bool, new_id: bytes
) -> RawHead:
    """The head of a record that referred to a response which became a revisit, with a reference to its original.

    A revisit gets all three reference fields, and with *takes_digest* the digest of the original. In a record of another
    type, only existing fields change; if the original has no id, the field gets *new_id*, the id of the revisit.
    """
    record_id = target.id if is_revisit else target.id or new_id
    if is_revisit or head.get(_REFERS_TO) is not None:
        head = _with_field(head, _REFERS_TO, record_id)
    for name, value in ((_REFERS_URI, target.uri), (_REFERS_DATE, target.date)):
        if is_revisit or head.get(name) is not None:
            head = _with_field(head, name, value)
    if takes_digest:
        head = _with_field(head, b"WARC-Payload-Digest", target.digest)
    return head


def record_bytes(head: RawHead, block: bytes) -> bytes:
    """The bytes of the record in an uncompressed file."""
    return head.to_bytes(len(block)) + block + RECORD_END


def revisit_bytes(heads: bytes, uri: bytes, date: bytes, *, is_gzip: bool) -> int:
    """The approximate size of the revisit of a record with these heads, which refers to an original by *uri* and *date*."""
    end = heads.index(b"\r\n\r\n") + 4
    head, block = parsed_head(heads[:end]), heads[end:]
    assert head is not None
    digest = head.get(b"WARC-Payload-Digest") or _SOME_DIGEST
    # Placeholders: the real id and digest are known only when the original is chosen.
    target = RevisitTarget(_SOME_ID, uri, date, digest[:8] + digest[:7:-1])
    for _ in head.get_all(b"WARC-Concurrent-To"):
        head = head.added((b"Former-WARC-Concurrent-To", _SOME_ID))
    data = record_bytes(as_revisit(head, target, block), block)
    return len(gzip_member(data)) if is_gzip else len(data)


def _changed(name: bytes, old: bytes, new: bytes | None) -> Iterable[Field]:
    if new == old:
        return [(name, old)]
    return [(FORMER + name, old)] if new is None else [(name, new), (FORMER + name, old)]


def _with_field(head: RawHead, name: bytes, value: bytes | None) -> RawHead:
    """The head with a new value for a field, or without the field, and with its former value."""
    old = head.get(name)
    if old == value or (old is not None and value is not None and bare(old) == value):
        return head
    lower = name.lower()
    has_former = head.get(FORMER + name) is not None
    if old is None:
        more = [] if has_former else [(FORMER + name, NONE)]
        return RawHead(head.version, (*head.fields, (name, value or b""), *more))
    fields: list[Field] = []
    for field, present in head.fields:
        if field.lower() != lower:
            fields.append((field, present))
        elif has_former:
            fields += [] if value is None else [(field, value)]
        else:
            fields += _changed(field, present, value)
    return RawHead(head.version, tuple(fields))


def _followed_by_former(fields: Sequence[Field]) -> set[int]:
    """The indexes of the fields that are directly followed by their former value."""
    return {
        index
        for index, (field, following) in enumerate(itertools.pairwise(fields))
        if following[0].lower() == FORMER.lower() + field[0].lower()
    }
