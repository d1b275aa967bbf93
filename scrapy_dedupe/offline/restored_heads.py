"""The heads of records before a rewriting.

A rewritten record keeps the former value of its field NAME in a field ``Former-NAME: VALUE``; ``none`` means that the
field did not exist. So the former head can be computed from the present one: every former value is moved back to its field
(or stays in its place, if the field is gone), ``none`` removes the field, and a revisit loses the fields that only
revisits have. It loses these regardless of their ``Former-`` values: a response that has such a field is never converted,
so such a value must come from a time when the record already was a revisit.

Other programs may write such fields too. A record counts as rewritten by this project only if all its ``Former-`` fields
could come from it: a revisit that was a response has the id that `record_ids.revisit_id` computes from its former id, and
so does a changed WARC-Concurrent-To. A change that cannot be reverted with certainty is not reverted.

A digest is written in the notation of the digest that it replaces: label, base and case are kept.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.offline.record_ids import revisit_id
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.raw_heads import RawHead
from scrapy_dedupe.warc.records import IDENTICAL_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_dedupe.warc.reading import StoredRecord

FORMER: Final = "Former-"
FORMER_ID: Final = "Former-WARC-Record-ID"
_FORMER: Final = b"former-"
_OURS: Final = b"former-warc-"
_NONE: Final = b"none"
_ID: Final = b"WARC-Record-ID"
BLOCK_DIGEST: Final = b"WARC-Block-Digest"
PAYLOAD_DIGEST: Final = b"WARC-Payload-Digest"
_FORMER_DIGEST: Final = b"Former-WARC-Payload-Digest"
_ONLY_IN_REVISITS: Final = (b"warc-profile", b"warc-truncated")
_REFERENCE: Final = b"warc-refers-to"
_CONCURRENT: Final = "WARC-Concurrent-To"
_REFERENCES: Final = ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date")


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
    return None if value == _NONE.decode() else value


def pointed_back(head: RawHead, only: frozenset[str] | None = None) -> RawHead:
    """The head with the former values of its fields, or only of the fields *only*, in lower case."""
    wanted = None if only is None else {name.encode("ascii") for name in only}

    def is_undone(lower: bytes) -> bool:
        return lower.startswith(_OURS) and (wanted is None or lower.removeprefix(_FORMER) in wanted)

    changed: dict[bytes, list[bytes]] = {}
    for name, value in head.fields:
        if is_undone(name.lower()):
            changed.setdefault(name.lower().removeprefix(_FORMER), []).append(value)
    present = {name.lower() for name, _ in head.fields}
    seen: dict[bytes, int] = {}
    fields = []
    for name, value in head.fields:
        lower = name.lower()
        if is_undone(lower):
            if lower.removeprefix(_FORMER) not in present and value != _NONE:
                fields.append((name[len(_FORMER) :], value))
            continue
        values = changed.get(lower, [])
        index = seen.get(lower, 0)
        seen[lower] = index + 1
        before = values[index] if index < len(values) else value
        if not (before == _NONE and index < len(values)):
            fields.append((name, before))
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
    back = pointed_back(head.without([_FORMER_DIGEST]))
    fields = []
    for name, value in back.fields:
        lower = name.lower()
        if _is_of_revisit(name):
            continue
        if lower == b"warc-type":
            value = b"response"
        elif lower == b"content-type" and value.lower().startswith(b"message/http"):
            value = b"application/http; msgtype=response"
        fields.append((name, value))
    return RawHead(head.version, tuple(fields))


def digest_of(text: bytes | str | None, pieces: Iterable[bytes]) -> bytes | None:
    """The digest of *pieces* in the algorithm and notation of *text*; None if the algorithm is not available."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    algorithm = algorithm_of(text)
    if text is None or algorithm is None:
        return None
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    for piece in pieces:
        hasher.update(piece)
    return in_form_of(text, hasher.digest())


def algorithm_of(text: str | None) -> str | None:
    """The hashlib name for the algorithm of a digest; None if it is not available."""
    try:
        label = parse_digest(text).label if text else ""
    except ValueError:
        return None
    return label if label in hashlib.algorithms_available else None


def in_form_of(text: str, raw: bytes) -> bytes:
    """A digest as text with the label, base and case of *text*."""
    label, colon, value = text.strip().rpartition(":")
    bare = value.rstrip("=")
    if len(bare) == 2 * len(raw):
        shown = raw.hex()
        shown = shown.upper() if bare.isupper() else shown
    else:
        padded = base64.b32encode(raw).decode("ascii")
        shown = padded if bare != value else padded.rstrip("=")
        shown = shown.lower() if bare.islower() else shown
    return f"{label}{colon}{shown}".encode("latin-1")


def _is_of_revisit(name: bytes) -> bool:
    lower = name.lower()
    return lower in _ONLY_IN_REVISITS or lower.startswith(_REFERENCE)
