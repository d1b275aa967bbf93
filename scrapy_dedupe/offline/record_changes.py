"""Compare a record before and after a change, and check whether the change is allowed.

This module checks what the two records show. The targets of references are recorded for a later check (`evidence`),
which needs all files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

from scrapy_dedupe.offline.changes import (
    BLOCK_DIGEST,
    FORMER_ID,
    PAYLOAD_DIGEST,
    concurrent_changes,
    conversion_faults,
    decoded,
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
from scrapy_dedupe.offline.evidence import (
    AFTER,
    BEFORE,
    BOTH,
    CONVERTED,
    PAYLOAD_TYPES,
    REPOINTED,
    UNCHANGED,
    UNDONE,
    algorithms_of,
)
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.warc.bodies import payload_digest, payload_digests, payload_pieces
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.framing import open_block

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from scrapy_dedupe.offline.changes import Head
    from scrapy_dedupe.offline.evidence import EvidenceWriter, Findings
    from scrapy_dedupe.offline.windows import WindowedFile
    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.reading import StoredRecord

# Characters that a URI may contain unescaped.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"<>')


class ChangeReader:
    """Compares pairs of records whose stored bytes differ, and records differences, evidence and counts."""

    def __init__(
        self,
        writer: EvidenceWriter,
        findings: Findings,
        counts: Counter[str],
        before: WindowedFile,
        after: WindowedFile,
    ) -> None:
        self._writer = writer
        self._findings = findings
        self._counts = counts
        self._before, self._after = before, after
        self._is_gzip = before.is_gzip_at(0)
        self._is_like_before = self._is_gzip == after.is_gzip_at(0)

    def read(
        self,
        before: StoredRecord,
        after: StoredRecord,
        payload_before: Sequence[BodyDigest],
        payload_after: Sequence[BodyDigest],
    ) -> bool:
        """Compare a pair; the payloads are digests as for `EvidenceWriter.add_capture`.

        Return False if the change is not an allowed one; then no evidence is recorded.
        """
        if before.format == "arc" or after.format == "arc":
            self._report("changed", before, after, ["a record of an ARC file changed"])
            return False
        types = (before.type, after.type)
        if types == ("response", "revisit"):
            self._read_converted(before, after, payload_before)
        elif types == ("revisit", "response"):
            self._read_restored(before, after, payload_after)
        elif before.type == after.type:
            return self._read_same_type(before, after, payload_after)
        else:
            self._report("changed", before, after, [f"the {before.type} record became a {after.type} record"])
            return False
        return True

    def read_conversion(self, before: StoredRecord, after: StoredRecord) -> bool:
        """Compare a record of an ARC file with its converted record, which may have become a revisit since.

        Return False if it has not; then no evidence is recorded.
        """
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
            self._report("converted", before, after, faults)
            self._read_converted(before, after, payload_digests(before, algorithms_of(before)))
            return True
        if not is_resource:
            faults += _http_faults(before, after)
        elif not _is_same_block(before, after):
            faults.append("the payload differs")
        self._report("changed", before, after, faults)
        self._counts["from_arc"] += 1
        return False

    def _read_converted(
        self, capture: StoredRecord, revisit: StoredRecord, payload: Sequence[BodyDigest]
    ) -> None:
        self._counts["converted"] += 1
        new, is_arc = head_of(revisit), capture.format == "arc"
        # The response between a capture of an ARC file and a revisit is derived from the revisit.
        old = former_response(new) if is_arc else head_of(capture)
        faults = self._conversion_faults(capture, revisit, old, new)
        if is_arc:
            former = old.value(BLOCK_DIGEST)
            if former and not _has_digest(former, open_block(capture.path, capture.frame)):
                faults.append("Former-WARC-Block-Digest does not match the block in the ARC file")
            former = old.value(PAYLOAD_DIGEST)
            if former and not _has_digest(former, payload_pieces(capture)):
                faults.append("its former payload digest does not match the payload in the ARC file")
        self._writer.add_capture(capture, BEFORE, payload)
        self._writer.add_revisit(CONVERTED, capture, revisit, payload=payload)
        self._finish("converted", capture, revisit, old, new, faults)

    def _read_restored(
        self, revisit: StoredRecord, response: StoredRecord, payload: Sequence[BodyDigest]
    ) -> None:
        self._counts["restored"] += 1
        old, new = head_of(revisit), head_of(response)
        if FORMER_ID in old.names:
            # Check the earlier conversion in the other direction: from the restored response to the revisit.
            was = _with_former_digest(response, old, new)
            if response.http is not None and response.http.is_chunked:
                former = [text for name, text in old.former() if name == PAYLOAD_DIGEST]
                was = _with_digest_of_chunks(
                    response, former[0] if former else old.value(PAYLOAD_DIGEST), was
                )
            faults = self._conversion_faults(response, revisit, was, old)
        else:
            was = _with_digest_of_chunks(response, old.value(PAYLOAD_DIGEST), new)
            faults = _foreign_restoration_faults(revisit, response, old, was)
        self._writer.add_capture(response, AFTER, payload)
        self._writer.add_revisit(UNDONE, revisit, response, payload=payload)
        self._finish("restored", revisit, response, old, new, faults)

    @staticmethod
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

    def _read_same_type(
        self, before: StoredRecord, after: StoredRecord, payload: Sequence[BodyDigest]
    ) -> bool:
        old, new = head_of(before), head_of(after)
        if _is_same_block(before, after):
            self._read_same_block(before, after, old, new, payload)
            return True
        if before.type != "response" or before.http is None or not before.http.is_chunked:
            faults = ["the block differs"]
        else:
            was = _with_digest_of_chunks(after, old.value(PAYLOAD_DIGEST), new)
            faults = _http_faults(before, after) + rechunked_faults(old, was, _block_digest(after, new))
        if faults:
            self._report("changed", before, after, faults)
            return False
        self._counts["rechunked"] += 1
        # The payload is the same, but only one of the records stores it in chunks.
        self._writer.add_capture(before, BEFORE)
        self._writer.add_capture(after, AFTER, payload)
        self._finish("changed", before, after, old, new, [])
        return True

    def _read_same_block(
        self, before: StoredRecord, after: StoredRecord, old: Head, new: Head, payload: Sequence[BodyDigest]
    ) -> None:
        """Compare two records whose heads may differ in their references."""
        change, faults = UNCHANGED, []
        if old.is_like(new):
            self._counts["unchanged"] += 1
        else:
            self._counts["repointed"] += 1
            is_back = is_undone(old, new)
            change = UNDONE if is_back else REPOINTED
            first, second = (new, old) if is_back else (old, new)
            faults = reference_faults(first, second, is_revisit=before.type == "revisit")
        if before.type == "revisit":
            self._writer.add_revisit(change, before, after)
        elif before.type in PAYLOAD_TYPES:
            # Id, URI, date and payload have been compared and are the same on both sides.
            self._writer.add_capture(after, BOTH, payload)
        else:
            self._writer.add_other(after)
        self._finish("changed", before, after, old, new, faults, is_rewritten=old.text != new.text)

    def _finish(
        self,
        kind: str,
        before: StoredRecord,
        after: StoredRecord,
        old: Head,
        new: Head,
        faults: list[str],
        *,
        is_rewritten: bool = True,
    ) -> None:
        """Report the faults of a changed record, and those of its form; store its links as evidence."""
        if is_rewritten:
            is_gzip = self._after.is_gzip_at(after.offset)
            faults = faults + form_faults(new) + end_faults(after, is_gzip=is_gzip)
            if (
                self._is_like_before
                and is_gzip != self._is_gzip
                and is_gzip != self._before.is_gzip_at(before.offset)
            ):
                faults.append("it is compressed, but was not" if is_gzip else "it is no longer compressed")
        self._report(kind, before, after, faults)
        for was, value in concurrent_changes(old, new):
            self._writer.add_link(
                "WARC-Concurrent-To", decoded(was), decoded(value), before.offset, after.offset
            )
        if after.type != "revisit" and before.type != "revisit":
            was_named, named = before.refers_to, after.refers_to
            if was_named or named:
                self._writer.add_link("WARC-Refers-To", was_named, named, before.offset, after.offset)
            self._writer.add_place(before, after)

    def _report(self, kind: str, before: StoredRecord, after: StoredRecord, faults: list[str]) -> None:
        for fault in faults:
            was, now = (f"{record.path}, offset {record.offset}" for record in (before, after))
            self._findings.add(kind, was, now, fault)


def _with_former_digest(response: StoredRecord, old: Head, new: Head) -> Head:
    """The head of a response that was restored without its chunks, with the block digest that it had with them.

    Its present block digest must match its present block, otherwise the head is returned unchanged.
    """
    former = next((text for name, text in old.former() if name == BLOCK_DIGEST), None)
    if former in (None, new.value(BLOCK_DIGEST)) or response.http is None or not response.http.is_chunked:
        return new
    return (
        new.replaced(BLOCK_DIGEST, former)
        if _block_digest(response, new) == new.text_of(BLOCK_DIGEST)
        else new
    )


def _with_digest_of_chunks(response: StoredRecord, former: bytes | None, new: Head) -> Head:
    """The head of a response whose chunks were removed or whose payload had chunks, with its former payload digest.

    Its present payload digest must match its payload, in the algorithm and notation of the former one; otherwise the
    head is returned unchanged.
    """
    value = new.value(PAYLOAD_DIGEST)
    if value is None or former in (None, value) or new.names.count(PAYLOAD_DIGEST) > 1:
        return new
    right = digest_like(former.decode("latin-1"), payload_pieces(response))
    return new.replaced(PAYLOAD_DIGEST, former) if value.decode("latin-1") == right else new


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


def _block_digest(record: StoredRecord, head: Head) -> str | None:
    """The digest of a block in the notation of the WARC-Block-Digest in *head*; None if that is missing or unknown."""
    form = head.text_of(BLOCK_DIGEST)
    return None if form is None else digest_like(form, open_block(record.path, record.frame))


def _has_digest(text: bytes, data: Iterable[bytes]) -> bool:
    """Whether a digest matches *data*; true for an unknown algorithm."""
    value = text.decode("latin-1")
    return digest_like(value, data) in (None, value)


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
