"""The heads of records as they were before a revisit took the place of a response.

A rewritten record says in fields ``Former-NAME: VALUE`` what its field NAME was before; the value ``none`` says that
it was not there. So the head that was is a pure function of the head that is: every such value goes back to the
place of its field (or stays in its own place, if the field has gone), ``none`` takes the field away, and a revisit
loses the fields that only revisits have. It loses them whatever it says of them: a response that has one of them does
not become a revisit, so such a value is of a time when it was a revisit already.

Any program may write such a field. A record was changed here only if all of them could come from here: a revisit that
was a response has the id which `record_ids.revisit_id` makes of its former one, as has what a WARC-Concurrent-To names
now. What is not sure to be undone rightly is left as it is.

A digest is written in the form of the one it replaces: label, base and case are kept.
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
_BLOCK_DIGEST: Final = b"WARC-Block-Digest"
_PAYLOAD_DIGEST: Final = b"WARC-Payload-Digest"
_FORMER_DIGEST: Final = b"Former-WARC-Payload-Digest"
_ONLY_IN_REVISITS: Final = (b"warc-profile", b"warc-truncated")
_REFERENCE: Final = b"warc-refers-to"
_CONCURRENT: Final = "WARC-Concurrent-To"
_REFERENCES: Final = ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date")


def is_changed(record: StoredRecord) -> bool:
    """Whether a record says what one of its fields was before."""
    return bool(_former_names(record))


def is_ours(record: StoredRecord) -> bool:
    """Whether a record is a revisit that took the place of a response here."""
    ids = record.get_all(FORMER_ID)
    return (
        record.type == "revisit"
        and record.profile == IDENTICAL_PAYLOAD
        and record.truncated == "length"
        and len(ids) == 1
        and _is_made_of(record.id, ids[0])
    )


def pointed_fields(record: StoredRecord) -> frozenset[str]:
    """The fields, in lower case, that were changed here in a record because what it referred to has become a revisit.

    Empty if there are none. Former- fields of others can stand beside theirs.
    """
    names = _former_names(record)
    fields = [_CONCURRENT] if _has_new_ids(record) else []
    references = [name for name in _REFERENCES if f"{FORMER}{name}".lower() in names]
    if record.type == "revisit":
        if record.refers_to_uri is not None and record.refers_to_date is not None:
            fields += references
            if references or names == {_FORMER_DIGEST.decode().lower()}:
                fields.append(_PAYLOAD_DIGEST.decode())
    elif record.type != "response":
        # Other records than revisits get no field that they did not have.
        fields += [
            name for name in references if record.get(name) is not None and former(record, name) is not None
        ]
    return frozenset(name.lower() for name in fields if f"{FORMER}{name}".lower() in names)


def has_others(record: StoredRecord) -> bool:
    """Whether a record has Former- fields that were not written here when it was pointed elsewhere."""
    return _former_names(record) != {FORMER.lower() + name for name in pointed_fields(record)}


def _former_names(record: StoredRecord) -> set[str]:
    return {name.lower() for name, _ in record.headers if name.lower().startswith(_OURS.decode())}


def _has_new_ids(record: StoredRecord) -> bool:
    """Whether what a WARC-Concurrent-To names is what it named before, or the revisit that took the place of that."""
    present, before = record.get_all(_CONCURRENT), record.get_all(FORMER + _CONCURRENT)
    return (
        len(present) == len(before)
        and present != before
        and all(new == old or _is_made_of(new, old) for new, old in zip(present, before, strict=True))
    )


def _is_made_of(new_id: str | None, old_id: str) -> bool:
    # Text that is no UTF-8 was read as Latin-1.
    read = (old_id.encode(codec, "replace") for codec in ("utf-8", "latin-1"))
    return any(revisit_id(one).decode("ascii") == new_id for one in read)


def former(record: StoredRecord, name: str) -> str | None:
    """What a field was before; None if it did not change, or was not there."""
    value = record.get(FORMER + name)
    return None if value == _NONE.decode() else value


def pointed_back(head: RawHead, only: frozenset[str] | None = None) -> RawHead:
    """The head with the former values of its fields, or of those that *only* names, in lower case."""
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
    """The head of the response that a revisit of ours was before."""
    back = pointed_back(head).replaced(b"WARC-Type", b"response")
    return RawHead(back.version, tuple(pair for pair in back.fields if not _is_of_revisit(pair[0])))


def as_response_of_others(head: RawHead) -> RawHead:
    """The head of a response with the payload of a revisit's original. Its id and digest stay.

    If it was pointed elsewhere, nothing of that is left: a later restoration would take it for a change of a response.
    """
    # Its digest is that of the original by now, in the original's own words.
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


def block_digest_of(head: RawHead) -> bytes | None:
    """The text of WARC-Block-Digest."""
    return head.get(_BLOCK_DIGEST)


def with_block_digest(head: RawHead, digest: bytes | None) -> RawHead:
    """The head with another block digest, or with none."""
    return head.without([_BLOCK_DIGEST]) if digest is None else head.replaced(_BLOCK_DIGEST, digest)


def payload_digest_of(head: RawHead) -> bytes | None:
    """The text of WARC-Payload-Digest."""
    return head.get(_PAYLOAD_DIGEST)


def with_payload_digest(head: RawHead, digest: bytes) -> RawHead:
    """The head with another payload digest."""
    return head.replaced(_PAYLOAD_DIGEST, digest)


def digest_of(text: bytes | str | None, pieces: Iterable[bytes]) -> bytes | None:
    """The digest of *pieces* in the algorithm and form of *text*; None if that is not one we can compute."""
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
    """The name that hashlib has for the algorithm of a digest; None if it has none."""
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
