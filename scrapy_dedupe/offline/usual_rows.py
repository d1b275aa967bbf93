"""Rows of usual records, made without parsing their heads field by field.

A usual record has a head in the form in which we write heads, with printable ASCII and each field once, and refers to others
only by WARC-Concurrent-To; a usual response is a whole HTTP message without chunks. Nearly all records are usual. All
others are left to `row_scan`, which gives the same rows for usual records as well.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.offline.ordering import moment
from scrapy_dedupe.offline.reference_changes import date_key, digest_key
from scrapy_dedupe.offline.revisits import RECORD_END, bare
from scrapy_dedupe.offline.rows import RecordRow
from scrapy_dedupe.warc.bodies import hasher_of, usual_body
from scrapy_dedupe.warc.reading import says_http, stored_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy_dedupe.offline.digests import Digester
    from scrapy_dedupe.offline.rows import RowsTask
    from scrapy_dedupe.warc.framing import Frame, _Layout

ADDED_BYTES: Final = 2_048
"""More than a revisit adds to the heads of its response and the place of its original: four other ids, and digests."""

# A reference of this size to the original is expected, when it is decided whether the heads are kept.
_REFERENCE_BYTES: Final = 1_200
_MAX_BYTES: Final = 1 << 15
_SHORT_BYTES: Final = 1 << 12
# Fields of revisits, segments and converted records, and references that need more than a look at the id.
_UNUSUAL: Final = ("former-", "warc-refers-to", "warc-profile", "warc-truncated", "warc-segment-")
_ONCE: Final = (
    "content-length",
    "content-type",
    "warc-block-digest",
    "warc-date",
    "warc-payload-digest",
    "warc-record-id",
    "warc-target-uri",
    "warc-type",
)
_GET: Final = re.compile(rb"\s*GET ", re.IGNORECASE)
_REFERRED_ID: Final = re.compile(rb"<[^\s<>]+>|[^\s<>]+")
_MIME: Final = re.compile(rb"\nContent-Type:[ \t]*([^\r\n;]*)[^\r\n]*\r\n(?![ \t])", re.IGNORECASE)


class UsualRows:
    """Makes the rows of the usual records of a file. *digester* makes the lines of its manifest."""

    def __init__(self, task: RowsTask, digester: Digester, *, is_gzip: bool) -> None:
        self._task = task
        self._algorithms = task.algorithms
        self._digester = digester
        self._is_gzip = is_gzip
        self._forms: dict[object, _Form] = {}
        self._statuses: dict[int, tuple[str | None, bool]] = {}

    def row(self, frame: Frame) -> RecordRow | None:
        """The row of a record; None if it is not usual."""
        if frame.head is None or not frame.length or frame.head_position or frame.block_end != RECORD_END:
            return None
        layout, head = frame.head
        form = self._forms.get(layout)
        if form is None:
            form = self._forms[layout] = _Form(layout)
        if not form.is_usual or head.end() - head.start() > _MAX_BYTES:
            return None
        found = form.match(head.string, head.start(), head.end())
        if found is None or found[form.length] != b"%d" % frame.block_length:
            return None
        kind = found[form.type]
        if kind == b"response":
            return self._response(frame, form, found)
        kind = kind.lower()
        if kind in (b"response", b"resource", b"revisit"):
            return None
        is_other_method = False
        if kind == b"request":
            block = frame.member or frame.kept
            is_other_method = not _GET.match(block, frame.block_position if frame.member else 0)
        return RecordRow(
            frame.offset,
            frame.length,
            kind.decode("ascii"),
            id_key=bare(found[form.id]) if form.id else None,
            concurrent_to=[bare(found[place]) for place in form.concurrent] or None,
            is_gzip=self._is_gzip,
            is_other_method=is_other_method,
            **(start_of(frame) if form.concurrent else {}),
        )

    def _response(self, frame: Frame, form: _Form, found: re.Match[bytes]) -> RecordRow | None:
        if not frame.member or not (form.id and form.uri and form.date):
            return None
        if found[form.uri].startswith(b"<"):
            return None  # there may be white space within the brackets
        kind = found[form.content].decode("ascii") if form.content else None
        body = usual_body(frame)
        if body is None or not says_http(kind) or b"none" in found.groups():
            return None
        record_id, uri, date = found[form.id], found[form.uri], found[form.date]
        digest = found[form.digest] if form.digest else None
        date_text = date.decode("ascii")
        key, order = _of_date(date_text)
        # Printable ASCII is read back unchanged, so only the forms matter (`records.can_be_referred_to`).
        is_readable = key is not None and _REFERRED_ID.fullmatch(record_id)
        if digest is None:
            # The digest that replay indexers compute: revisits of this original have it, and older ones may.
            digest = b"sha1:" + base64.b32encode(hasher_of("sha1", body).digest())
        member, begin = frame.member, frame.block_position
        heads_bytes = begin + frame.block_length - len(body)
        digests = {name: hasher_of(name, body).digest() for name in self._algorithms}
        reason, is_whole = self._of_status(int(member[begin + 9 : begin + 12]), frame)
        reason = reason or self._task.eligibility.reason_of_size(len(body))
        is_listed = self._is_listed(frame, uri.decode("ascii"), date_text, digests)
        mime = start = None
        if reason is None:
            start = bytes(member[:heads_bytes])
            named = _MIME.search(member, begin, heads_bytes)
            mime = named[1].strip().lower().decode("latin-1") if named else ""
        return RecordRow(
            frame.offset,
            frame.length,
            "response",
            record_id,
            bare(record_id),
            uri,
            date,
            key,
            digest,
            digest_key(digest.decode("ascii")),
            concurrent_to=[bare(found[place]) for place in form.concurrent] or None,
            is_gzip=self._is_gzip,
            is_listed=is_listed,
            target_uri=uri,
            target_date=date_text,
            moment=order if is_listed else None,
            size_bytes=len(body),
            is_alone=not is_whole,
            reason=reason,
            unfit=reason or (None if is_readable else "unreadable"),
            is_chunked=False,
            mime=mime,
            heads_bytes=None if reason else heads_bytes,
            heads=start if start and keeps_heads(self._task, heads_bytes, frame.length) else None,
            start=start,
            head_bytes=None if reason else begin,
            block_bytes=None if reason else frame.block_length,
            **digests,
        )

    def _of_status(self, status: int, frame: Frame) -> tuple[str | None, bool]:
        """Why a response with this status is not eligible, regardless of its size, and whether it is whole."""
        if status not in self._statuses:
            record = stored_record(self._task.file, frame)
            self._statuses[status] = (self._task.eligibility.reason_against(record), record.is_whole)
        return self._statuses[status]

    def _is_listed(self, frame: Frame, uri: str, date: str, digests: Mapping[str, bytes]) -> bool:
        """Whether a response gets a line of the manifest."""
        if not self._task.is_summed:
            return False
        if self._digester.count_usual(uri, date):
            return True
        algorithm = self._algorithms[0]
        return self._digester.line(frame, f"{algorithm}:{digests[algorithm].hex()}") is not None


def keeps_heads(task: RowsTask, heads_bytes: int, length: int) -> bool:
    """Whether a revisit might not be smaller than its record, so that its size must be computed from the heads."""
    return task.has_heads or heads_bytes + ADDED_BYTES + _REFERENCE_BYTES >= length


def start_of(frame: Frame) -> dict[str, Any]:
    """The values ``start``, ``head_bytes`` and ``block_bytes`` of a record whose block is short; else empty."""
    head = frame.head[1].group() if frame.head is not None else frame.member[: frame.block_position]
    if not head or frame.head_position or frame.block_length > _SHORT_BYTES:
        return {}
    return {
        "start": bytes(head) + frame.kept,
        "head_bytes": frame.block_position,
        "block_bytes": frame.block_length,
    }


class _Form:
    """A pattern for heads with the same fields in the same order, and the numbers of its groups; 0: no such field."""

    def __init__(self, layout: _Layout) -> None:
        counts = {name: len(places) for name, places in layout.all_places.items()}
        self.is_usual = (
            counts.get("content-length") == counts.get("warc-type") == 1
            and all(counts.get(name, 0) <= 1 for name in _ONCE)
            and not any(name.startswith(_UNUSUAL) for name in counts)
        )
        fields = b"".join(
            re.escape(name.encode("ascii")) + rb": ([!-~](?:[\t -~]*[!-~])?)\r\n" for name in layout.names
        )
        self.match = re.compile(rb"WARC/\d[^\r\n]*\r\n" + fields + rb"\r\n").fullmatch
        place = layout.places.get
        self.length, self.type = place("content-length", 0), place("warc-type", 0)
        self.id, self.uri = place("warc-record-id", 0), place("warc-target-uri", 0)
        self.date, self.digest = place("warc-date", 0), place("warc-payload-digest", 0)
        self.content = place("content-type", 0)
        self.concurrent = layout.all_places.get("warc-concurrent-to", [])


@lru_cache(1_024)
def _of_date(text: str) -> tuple[str | None, str | None]:
    """The key of a date and its digits for sorting; None if it is not valid."""
    key = date_key(text)
    return key, None if key is None else moment(text)
