"""Which changes of a record are allowed: a response that becomes a revisit, updated references, and the way back.

This is an independent check: the code that writes records uses nothing from this module. It compares two records only;
the targets of references are recorded for a later check (`evidence`), which needs all files.

If the old value of a changed field cannot be derived, it is kept in a field ``Former-NAME``; ``none`` means that the
field did not exist. A restoration needs these values to revert the change, so a missing one is a fault. A restored response
is checked as if it was the response before, and the revisit made from it.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from scrapy_dedupe.warc.bodies import payload_digest, payload_pieces
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.windows import are_same

from .evidence import CONVERTED, RECHUNKED, REPOINTED, UNCHANGED, UNDONE
from .heads import (
    CONCURRENT_TO,
    FORMER,
    LENGTH,
    NONE,
    Head,
    count_faults,
    digest_like,
    head_of,
    kept_faults,
    rest_faults,
    shown,
    title,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_dedupe.warc.reading import StoredRecord

    from .heads import Field

_TYPE, _ID = b"warc-type", b"warc-record-id"
_PAYLOAD_DIGEST, _BLOCK_DIGEST = b"warc-payload-digest", b"warc-block-digest"
_REFERS_TO = (b"warc-refers-to", b"warc-refers-to-target-uri", b"warc-refers-to-date")
_PROFILE, _TRUNCATED = b"warc-profile", b"warc-truncated"
_OF_REVISITS = (_PROFILE, _TRUNCATED, *_REFERS_TO)
_ONCE = (_TYPE, _ID, _PROFILE, _PAYLOAD_DIGEST, *_REFERS_TO[1:])
_AT_MOST_ONCE = (_REFERS_TO[0], _TRUNCATED, _BLOCK_DIGEST)
_CONVERTED = (_TYPE, _ID, _PAYLOAD_DIGEST, _BLOCK_DIGEST, LENGTH, CONCURRENT_TO, *_OF_REVISITS)
_IDENTICAL_PAYLOAD = b"http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
_RECORD_END = b"\r\n\r\n"
_RECORD_ID = re.compile(rb"<[^\s<>]+>")
# Characters that a URI may contain unescaped.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"<>')


class Change(NamedTuple):
    """The result of a comparison.

    ``counter`` names the counter of `verifying.Verification`, None if the change is not an allowed one. ``faults`` are reported
    as ``kind``. ``change`` is None if the evidence of both records is independent of each other.
    """

    counter: str | None
    faults: list[str]
    change: int | None = None
    kind: str = "changed"


def change_of(before: StoredRecord, after: StoredRecord, *, is_gzip: bool) -> Change:
    """Compare two records whose stored bytes differ. *is_gzip*: the record after is a gzip member."""
    if "arc" in (before.format, after.format):
        return Change(None, ["a record of an ARC file changed"])
    types = (before.type, after.type)
    if before.type != after.type and set(types) != {"response", "revisit"}:
        return Change(None, [f"the {before.type} record became a {after.type} record"])
    old, new = head_of(before), head_of(after)
    if types == ("response", "revisit"):
        found = Change("converted", _conversion_faults(before, after, old, new), CONVERTED, "converted")
    elif types == ("revisit", "response"):
        found = Change("restored", _restoration_faults(before, after, old, new), UNDONE, "restored")
    elif not _is_same_block(before, after):
        faults = _rechunked_faults(before, after, old, new)
        if faults:
            return Change(None, faults)
        found = Change("rechunked", [], RECHUNKED)
    elif old.version == new.version and old.fields == new.fields:
        found = Change("unchanged", [], UNCHANGED)
    elif _is_undone(old, new):
        faults = _reference_faults(new, old, is_revisit=before.type == "revisit")
        found = Change("repointed", faults, UNDONE)
    else:
        faults = _reference_faults(old, new, is_revisit=before.type == "revisit")
        found = Change("repointed", faults, REPOINTED)
    if old.text != new.text:
        found.faults.extend(_form_faults(after, new, is_gzip=is_gzip))
    return found


def conversion_of(before: StoredRecord, after: StoredRecord, *, is_gzip: bool) -> Change:
    """Compare a record of an ARC file with its converted record, which may have become a revisit since."""
    types = (before.type, after.type)
    is_revisit = types == ("response", "revisit")
    # A capture without a status line is converted to a resource.
    is_resource = types == ("response", "resource") and before.http_status is None
    faults = []
    if before.type != after.type and not (is_revisit or is_resource):
        faults.append(f"the {before.type} record became a {after.type} record")
    if not _is_same_uri(before.target_uri, after.target_uri):
        faults.append(f"the URI is {after.target_uri!r}, but was {before.target_uri!r}")
    if not _is_same_date(before.date, after.date):
        faults.append(f"the date is {after.date!r}, but was {before.date!r}")
    if is_revisit:
        new = head_of(after)
        # The response between a capture of an ARC file and a revisit is derived from the revisit.
        old = _former_response(new)
        faults += _conversion_faults(before, after, old, new)
        if _block_digest(before, old) not in (None, old.value(_BLOCK_DIGEST)):
            faults.append("Former-WARC-Block-Digest does not match the block in the ARC file")
        former = old.value(_PAYLOAD_DIGEST)
        if digest_like(former, payload_pieces(before)) not in (None, former):
            faults.append("its former payload digest does not match the payload in the ARC file")
        faults += _form_faults(after, new, is_gzip=is_gzip)
        return Change("converted", faults, CONVERTED, "converted")
    if not is_resource:
        faults += _http_faults(before, after)
    elif not _is_same_block(before, after):
        faults.append("the payload differs")
    return Change("from_arc", faults)


def _conversion_faults(response: StoredRecord, revisit: StoredRecord, old: Head, new: Head) -> list[str]:
    """Problems of a revisit that was made from a response; *old* and *new* are their heads."""
    faults = count_faults(new.names, _ONCE, 1) + count_faults(new.names, _AT_MOST_ONCE, 0)
    if old.value(_TYPE) != b"response" or new.value(_TYPE) != b"revisit":
        faults.append(f"WARC-Type is {shown(new.value(_TYPE))}, but was {shown(old.value(_TYPE))}")
    if new.value(_PROFILE) != _IDENTICAL_PAYLOAD:
        faults.append(f"WARC-Profile is {shown(new.value(_PROFILE))}")
    if new.value(_TRUNCATED) != b"length":
        faults.append("WARC-Truncated is not length")
    old_id, new_id = old.value(_ID), new.value(_ID)
    if old_id is None or new_id == old_id:
        faults.append("it has the record id of the response")
    if not _RECORD_ID.fullmatch(new_id or b""):
        faults.append(f"WARC-Record-ID is {shown(new_id)}, which is not an id in angle brackets")
    faults += _bracket_faults(new) + _irrevocable(old)
    # Only an HTTP head is allowed in this block, and an HTTP head always fits into the kept bytes.
    block = revisit.frame.kept
    digest = old.value(_BLOCK_DIGEST)
    faults += _block_digest_faults(old, new, digest_like(digest, (block,)) if digest else digest)
    changed = {_ID: [old_id or NONE], **_changed(old, new, (_PAYLOAD_DIGEST, _BLOCK_DIGEST))}
    # A record that already was a revisit has former references, which the response does not have.
    former = [pair for pair in new.former() if pair[0] not in _REFERS_TO]
    faults += kept_faults(old, new, _CONVERTED, changed, former)
    if response.http is None:
        faults.append("the response has no HTTP head")
    elif _http_head(response) != block or revisit.frame.block_length != len(block):
        faults.append("the HTTP head differs")
    if not response.is_whole:
        faults.append("the response was truncated or partial, so no other record may replace it")
    return faults


def _former_response(revisit: Head) -> Head:
    """The head of the response that a revisit was made from, except Content-Length."""
    former = dict(revisit.former())
    fields: list[Field] = []
    for name, (stored_name, value) in zip(revisit.names, revisit.fields, strict=True):
        old = b"response" if name == _TYPE else former.get(name, value)
        is_of_revisits = name in _OF_REVISITS or name.startswith(FORMER)
        if not is_of_revisits and (name, old) != (_PAYLOAD_DIGEST, NONE):
            fields.append((stored_name, old))
    return Head(revisit.version, [name for name, _ in fields], [value for _, value in fields])


def _irrevocable(response: Head) -> list[str]:
    """Fields and values of a response that could not be restored from a revisit."""
    nones = [
        name for name in (_PAYLOAD_DIGEST, _BLOCK_DIGEST, CONCURRENT_TO) if NONE in response.values(name)
    ]
    return [
        *(f"the response has a field {title(name)}" for name in _names_of_revisits(response.names)),
        *(f"{title(name)} of the response is none" for name in nones),
    ]


@lru_cache(256)
def _names_of_revisits(names: tuple[bytes, ...]) -> list[bytes]:
    refused = (_REFERS_TO[0], FORMER + b"warc-")
    return [name for name in dict.fromkeys(names) if name in _OF_REVISITS or name.startswith(refused)]


def _restoration_faults(revisit: StoredRecord, response: StoredRecord, old: Head, new: Head) -> list[str]:
    """Problems of a response that was restored from a revisit; *old* and *new* are their heads."""
    digest = old.value(_PAYLOAD_DIGEST)
    if FORMER + _ID not in old.names:
        was = _with_former_digest(new, _PAYLOAD_DIGEST, digest, digest, payload_pieces(response))
        return _foreign_restoration_faults(revisit, response, old, was)
    was = new
    if response.http is not None and response.http.is_chunked:
        # It may have been restored without its chunks.
        block_digest, block = new.value(_BLOCK_DIGEST), open_block(response.path, response.frame)
        former = old.value(FORMER + _BLOCK_DIGEST)
        was = _with_former_digest(was, _BLOCK_DIGEST, former, block_digest, block)
        former = old.value(FORMER + _PAYLOAD_DIGEST) if FORMER + _PAYLOAD_DIGEST in old.names else digest
        was = _with_former_digest(was, _PAYLOAD_DIGEST, former, former, payload_pieces(response))
    # Check the earlier conversion in the other direction: from the restored response to the revisit.
    return _conversion_faults(response, revisit, was, old)


def _foreign_restoration_faults(
    revisit: StoredRecord, response: StoredRecord, old: Head, new: Head
) -> list[str]:
    """Problems of a response that was restored from a revisit of another program; its id and digest must not change."""
    gone = {*_OF_REVISITS, *(name for name in old.names if name.startswith(_REFERS_TO[0]))}
    faults = rest_faults(old, new, (_TYPE, LENGTH, _BLOCK_DIGEST, b"content-type", *gone))
    faults += [f"{title(name)} is still there" for name in new.names if name in gone]
    if new.value(_BLOCK_DIGEST) not in (None, _block_digest(response, new)):
        faults.append("WARC-Block-Digest does not match its block")
    old_http, new_http = _http_head(revisit), _http_head(response)
    if not old_http:
        faults.append("the revisit had no HTTP head, so the HTTP head of the response cannot be verified")
    elif not new_http.startswith(old_http) or new_http[len(old_http) :].strip(b"\r\n"):
        faults.append("the HTTP head differs")
    return faults


def _rechunked_faults(before: StoredRecord, after: StoredRecord, old: Head, new: Head) -> list[str]:
    """Problems of two records with the same payload, only one of which stores it in chunks."""
    if before.type != "response" or before.http is None or not before.http.is_chunked:
        return ["the block differs"]
    digest = old.value(_PAYLOAD_DIGEST)
    was = _with_former_digest(new, _PAYLOAD_DIGEST, digest, digest, payload_pieces(after))
    faults = _http_faults(before, after) + rest_faults(old, was, (LENGTH, _BLOCK_DIGEST))
    right = _block_digest(after, new)
    return faults + _block_digest_faults(old, new, new.value(_BLOCK_DIGEST) if right is None else right)


def _with_former_digest(
    head: Head, name: bytes, former: bytes | None, form: bytes | None, data: Iterable[bytes]
) -> Head:
    """The head of a response without its chunks, with the digest *name* that it had with them.

    Its present digest must be that of *data* in the notation of *form*; otherwise the head is returned unchanged.
    """
    value = head.value(name)
    if value is None or former in (None, value) or head.names.count(name) > 1:
        return head
    return head.replaced(name, former or b"") if value == digest_like(form, data) else head


def _reference_faults(old: Head, new: Head, *, is_revisit: bool) -> list[str]:
    """Problems of a record in which only references may have changed."""
    single = (*_REFERS_TO, _PAYLOAD_DIGEST) if is_revisit else _REFERS_TO
    faults = [*count_faults(new.names, single, 0)]
    changed = _changed(old, new, single)
    for name in () if is_revisit else changed:
        if new.value(name) is None:
            faults.append(f"{title(name)} is gone")
        elif old.value(name) is None:
            faults.append(f"{title(name)} was not there before")
    if _REFERS_TO[1] in changed:
        faults += _bracket_faults(new)
    return faults + kept_faults(old, new, (CONCURRENT_TO, LENGTH, *single), changed, new.former())


def _is_undone(before: Head, after: Head) -> bool:
    """Whether a restoration made the change between two heads: former values were removed, and none was added."""
    if not before.former():
        return False
    had, has = Counter(before.former()), Counter(after.former())
    return bool(had - has and not has - had)


def _changed(old: Head, new: Head, names: tuple[bytes, ...]) -> dict[bytes, list[bytes]]:
    """The old values of the fields *names* that differ."""
    pairs = [(name, old.value(name)) for name in names]
    return {name: [NONE if was is None else was] for name, was in pairs if was != new.value(name)}


def _bracket_faults(head: Head) -> list[str]:
    is_wrong = (head.value(_REFERS_TO[1]) or b"").startswith(b"<")
    return [f"{title(_REFERS_TO[1])} is in angle brackets"] if is_wrong else []


def _block_digest_faults(old: Head, new: Head, right: bytes | None) -> list[str]:
    """Problems of the block digest in *new*, which must be there if *old* has one, and must be *right*."""
    was, now = old.value(_BLOCK_DIGEST), new.value(_BLOCK_DIGEST)
    if now is None:
        # A digest of an unknown algorithm cannot be computed again.
        return [] if digest_like(was, ()) is None else ["WARC-Block-Digest is gone"]
    if was is None:
        return ["WARC-Block-Digest was not there before"]
    return [] if now == right else ["WARC-Block-Digest does not match its block"]


def _form_faults(record: StoredRecord, head: Head, *, is_gzip: bool) -> list[str]:
    """Problems in the form of a rewritten record.

    Its head must have one line for each field, and lines must end in CRLF. CRLF CRLF and the end of the gzip member must
    follow its block.
    """
    faults = []
    if b"\r\n".join([head.version, *map(b": ".join, head.fields), b"", b""]) != head.text:
        faults.append("its head is not written as `NAME: VALUE` in lines that end in CRLF")
    faults += count_faults(head.names, (LENGTH,), 1)
    end = record.frame.block_end
    if not (end == _RECORD_END if is_gzip else end.startswith(_RECORD_END)):
        faults.append("its block is not followed by CRLF CRLF and the end of the record")
    return faults


def _http_faults(before: StoredRecord, after: StoredRecord) -> list[str]:
    """Problems of a record that must have the HTTP head and the payload of another one."""
    faults = ["the HTTP head differs"] if _http_head(before) != _http_head(after) else []
    return faults if payload_digest(before) == payload_digest(after) else [*faults, "the payload differs"]


def _http_head(record: StoredRecord) -> bytes:
    return record.frame.kept[: record.http.length] if record.http else b""


def _block_digest(record: StoredRecord, head: Head) -> bytes | None:
    """The digest of a block in the notation of the WARC-Block-Digest in *head*, as `digest_like` returns it."""
    return digest_like(head.value(_BLOCK_DIGEST), open_block(record.path, record.frame))


def _is_same_block(one: StoredRecord, other: StoredRecord) -> bool:
    if one.frame.block_length != other.frame.block_length or one.frame.kept != other.frame.kept:
        return False
    if len(one.frame.kept) == one.frame.block_length:
        return True
    return are_same(open_block(one.path, one.frame), open_block(other.path, other.frame))


def _is_same_uri(arc: str | None, warc: str | None) -> bool:
    """Whether a URI is the URI of an ARC record, unchanged or with bytes percent-encoded that a URI must not contain."""
    if arc == warc or arc is None:
        return arc == warc
    # A line that is not UTF-8 was decoded as Latin-1. The text does not show which encoding was used, so try both.
    encoded = [arc.encode("utf-8", "surrogateescape"), arc.encode("latin-1", "replace")]
    return warc in [quote_from_bytes(data, safe=_SAFE) for data in encoded]


def _is_same_date(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return bool(one and other and parse_date(one) == parse_date(other))
    except ValueError:
        return False
