"""Compare a record before and after a change, and check whether the change is allowed.

This module checks what the two records show. The targets of references are recorded for a later check (`evidence`),
which needs all files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from scrapy_dedupe.warc.bodies import payload_digest, payload_pieces
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.windows import are_same

from .changes import (
    BLOCK_DIGEST,
    FORMER_ID,
    PAYLOAD_DIGEST,
    conversion_faults,
    digest_like,
    end_faults,
    foreign_restoration_faults,
    form_faults,
    former_response,
    head_of,
    is_undone,
    rechunked_faults,
    reference_faults,
)
from .evidence import CONVERTED, RECHUNKED, REPOINTED, UNCHANGED, UNDONE

if TYPE_CHECKING:
    from scrapy_dedupe.warc.reading import StoredRecord

    from .changes import Head

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
    if before.format == "arc" or after.format == "arc":
        return Change(None, ["a record of an ARC file changed"])
    types = (before.type, after.type)
    if before.type != after.type and set(types) != {"response", "revisit"}:
        return Change(None, [f"the {before.type} record became a {after.type} record"])
    old, new = head_of(before), head_of(after)
    if types == ("response", "revisit"):
        found = Change("converted", _conversion_faults(before, after, old, new), CONVERTED, "converted")
    elif types == ("revisit", "response"):
        found = Change("restored", _restoration_faults(before, after, old, new), UNDONE, "restored")
    elif _is_same_block(before, after):
        found = _with_same_block(old, new, is_revisit=before.type == "revisit")
    elif faults := _rechunked_faults(before, after, old, new):
        return Change(None, faults)
    else:
        found = Change("rechunked", [], RECHUNKED)
    if old.text != new.text:
        found.faults.extend(form_faults(new) + end_faults(after, is_gzip=is_gzip))
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
    if not _same_date(before.date, after.date):
        faults.append(f"the date is {after.date!r}, but was {before.date!r}")
    if is_revisit:
        new = head_of(after)
        # The response between a capture of an ARC file and a revisit is derived from the revisit.
        old = former_response(new)
        faults += _conversion_faults(before, after, old, new)
        if _block_digest(before, old) not in (None, old.value(BLOCK_DIGEST)):
            faults.append("Former-WARC-Block-Digest does not match the block in the ARC file")
        payload_digest_before = old.value(PAYLOAD_DIGEST)
        if digest_like(payload_digest_before, payload_pieces(before)) not in (None, payload_digest_before):
            faults.append("its former payload digest does not match the payload in the ARC file")
        faults += form_faults(new) + end_faults(after, is_gzip=is_gzip)
        return Change("converted", faults, CONVERTED, "converted")
    if not is_resource:
        faults += _http_faults(before, after)
    elif not _is_same_block(before, after):
        faults.append("the payload differs")
    return Change("from_arc", faults)


def _conversion_faults(response: StoredRecord, revisit: StoredRecord, old: Head, new: Head) -> list[str]:
    # Only an HTTP head is allowed in this block, and an HTTP head always fits into the kept bytes.
    block = revisit.frame.kept
    faults = conversion_faults(old, new, block)
    if response.http is None:
        faults.append("the response has no HTTP head")
    elif response.frame.kept[: response.http.length] != block or revisit.frame.block_length != len(block):
        faults.append("the HTTP head differs")
    if not response.is_whole:
        faults.append("the response was truncated or partial, so no other record may replace it")
    return faults


def _restoration_faults(revisit: StoredRecord, response: StoredRecord, old: Head, new: Head) -> list[str]:
    if FORMER_ID not in old.names:
        was = _with_digest_of_chunks(response, old.value(PAYLOAD_DIGEST), new)
        return _foreign_restoration_faults(revisit, response, old, was)
    # Check the earlier conversion in the other direction: from the restored response to the revisit.
    was = _with_former_digest(response, old, new)
    if response.http is not None and response.http.is_chunked:
        former = [text for name, text in old.former() if name == PAYLOAD_DIGEST]
        was = _with_digest_of_chunks(response, former[0] if former else old.value(PAYLOAD_DIGEST), was)
    return _conversion_faults(response, revisit, was, old)


def _with_same_block(old: Head, new: Head, *, is_revisit: bool) -> Change:
    """Compare the heads of two records, which may differ in their references."""
    if old.is_like(new):
        return Change("unchanged", [], UNCHANGED)
    if is_undone(old, new):
        return Change("repointed", reference_faults(new, old, is_revisit=is_revisit), UNDONE)
    return Change("repointed", reference_faults(old, new, is_revisit=is_revisit), REPOINTED)


def _rechunked_faults(before: StoredRecord, after: StoredRecord, old: Head, new: Head) -> list[str]:
    """Problems of two records with the same payload, only one of which stores it in chunks."""
    if before.type != "response" or before.http is None or not before.http.is_chunked:
        return ["the block differs"]
    was = _with_digest_of_chunks(after, old.value(PAYLOAD_DIGEST), new)
    return _http_faults(before, after) + rechunked_faults(old, was, _block_digest(after, new))


def _with_former_digest(response: StoredRecord, old: Head, new: Head) -> Head:
    """The head of a response that was restored without its chunks, with the block digest that it had with them.

    Its present block digest must match its present block, otherwise the head is returned unchanged.
    """
    former = next((text for name, text in old.former() if name == BLOCK_DIGEST), None)
    if former in (None, new.value(BLOCK_DIGEST)) or response.http is None or not response.http.is_chunked:
        return new
    return (
        new.replaced(BLOCK_DIGEST, former) if _block_digest(response, new) == new.value(BLOCK_DIGEST) else new
    )


def _with_digest_of_chunks(response: StoredRecord, former: bytes | None, new: Head) -> Head:
    """The head of a response whose chunks were removed or whose payload had chunks, with its former payload digest.

    Its present payload digest must match its payload, in the algorithm and notation of the former one; otherwise the
    head is returned unchanged.
    """
    value = new.value(PAYLOAD_DIGEST)
    if value is None or former in (None, value) or new.names.count(PAYLOAD_DIGEST) > 1:
        return new
    is_right = value == digest_like(former, payload_pieces(response))
    return new.replaced(PAYLOAD_DIGEST, former) if is_right else new


def _foreign_restoration_faults(
    revisit: StoredRecord, response: StoredRecord, old: Head, new: Head
) -> list[str]:
    """Problems of a response that was restored from a revisit of another program and its original."""
    faults = foreign_restoration_faults(old, new, _block_digest(response, new))
    old_head, new_head = _http_head(revisit), _http_head(response)
    if not old_head:
        faults.append("the revisit had no HTTP head, so the HTTP head of the response cannot be verified")
    elif not new_head.startswith(old_head) or new_head[len(old_head) :].strip(b"\r\n"):
        faults.append("the HTTP head differs")
    return faults


def _http_faults(before: StoredRecord, after: StoredRecord) -> list[str]:
    """Problems of a record that must have the HTTP head and the payload of another one."""
    faults = ["the HTTP head differs"] if _http_head(before) != _http_head(after) else []
    return faults if payload_digest(before) == payload_digest(after) else [*faults, "the payload differs"]


def _block_digest(record: StoredRecord, head: Head) -> bytes | None:
    """The digest of a block in the notation of the WARC-Block-Digest in *head*, as `digest_like` returns it."""
    return digest_like(head.value(BLOCK_DIGEST), open_block(record.path, record.frame))


def _is_same_uri(arc: str | None, warc: str | None) -> bool:
    """Whether a URI is the URI of an ARC record, unchanged or with bytes percent-encoded that a URI must not contain."""
    if arc == warc or arc is None:
        return arc == warc
    # A line that is not UTF-8 was decoded as Latin-1. The text does not show which encoding was used, so try both.
    encoded = [arc.encode("utf-8", "surrogateescape"), arc.encode("latin-1", "replace")]
    return warc in [quote_from_bytes(data, safe=_SAFE) for data in encoded]


def _is_same_block(one: StoredRecord, other: StoredRecord) -> bool:
    if one.frame.block_length != other.frame.block_length:
        return False
    if one.frame.kept != other.frame.kept:
        return False
    if len(one.frame.kept) == one.frame.block_length:
        return True
    return are_same(open_block(one.path, one.frame), open_block(other.path, other.frame))


def _http_head(record: StoredRecord) -> bytes:
    return record.frame.kept[: record.http.length] if record.http else b""


def _same_date(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return bool(one and other and parse_date(one) == parse_date(other))
    except ValueError:
        return False
