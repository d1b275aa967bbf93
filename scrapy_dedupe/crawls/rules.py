"""Which payloads may become a revisit record, or serve as the original of one.

Only complete bodies of GET responses: a replayer answers a POST with nothing (pywb#762), shows some other
statuses as 200, and half a body must never stand for a whole one.

Everything that enters a stored record in the index, or asks whether the record should be there, calls
:func:`may_be_original`: import, rebuild, check and repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.bodies import has_payload, has_whole_page, why_no_original
from scrapy_dedupe.warc.dates import date_digits

from .values import EMPTY_PAYLOADS, known_digest

if TYPE_CHECKING:
    from scrapy_dedupe.warc.capture import Capture
    from scrapy_dedupe.warc.reading import StoredRecord


@dataclass(frozen=True, slots=True)
class RevisitRules:
    """``min_size`` in bytes of the stored body; empty ``mime_types`` means all."""

    enabled: bool = True
    min_size: int = 1_024
    statuses: frozenset[int] = frozenset({200})
    mime_types: frozenset[str] = frozenset()

    def admit(
        self, *, method: str, status: int, content_type: str, size_bytes: int, is_complete: bool
    ) -> bool:
        """True if this payload may be an original or a revisit.

        >>> RevisitRules().admit(
        ...     method="GET", status=200, content_type="text/html", size_bytes=2_000, is_complete=True
        ... )
        True
        """
        if not (is_complete and method == "GET" and status in self.statuses and has_whole_page(status)):
            return False
        if size_bytes < max(1, self.min_size):
            return False
        mime_type = content_type.partition(";")[0].strip().lower()
        return not self.mime_types or mime_type in self.mime_types

    def admit_capture(self, capture: Capture) -> bool:
        """As :meth:`admit`; False for a body that is not as the server sent it."""
        return capture.rendering is None and self.admit(
            method=capture.method,
            status=capture.status,
            content_type=(capture.content_type or b"").decode("latin-1"),
            size_bytes=len(capture.body),
            is_complete=capture.is_complete,
        )


def may_be_original(record: StoredRecord, method: str, rules: RevisitRules | None = None) -> bool:
    """Whether others may refer to the payload of a stored record, whose request had this method.

    ``rules`` are those of the crawl that wrote the record, None for an imported one. Raises
    :class:`~scrapy_dedupe.errors.DamagedInput` if a long block cannot be read again.
    """
    if method != "GET" or not is_whole_original(record):
        return False
    if rules is None:
        return True
    http = record.http
    return (
        http is not None
        and record.id is not None
        and rules.admit(
            method=method,
            status=http.status or 0,
            content_type=(http.get(b"Content-Type") or b"").decode("latin-1"),
            size_bytes=record.frame.block_length - http.length,
            is_complete=not record.is_truncated,
        )
    )


def is_whole_original(record: StoredRecord) -> bool:
    """As :func:`may_be_original`, of a record whose request is not known.

    An index that was imported without its WARC files may name records of which nobody has looked at the body.
    """
    return (
        is_http(record)
        and bool(record.target_uri)
        and _is_date(record.date)
        and why_no_original(record) is None
        and has_payload(record)
        and known_digest(record) not in EMPTY_PAYLOADS
    )


def is_http(record: StoredRecord) -> bool:
    """Whether a record is one of an exchange over HTTP; others are DNS answers and the like."""
    return (record.target_uri or "http:").lower().startswith(("http:", "https:"))


def line_may_be_original(digest: str | None, method: str, status: int | None) -> bool:
    """As :func:`may_be_original`, as far as the line of a CDXJ tells."""
    return digest is not None and digest not in EMPTY_PAYLOADS and method == "GET" and has_whole_page(status)


def _is_date(text: str | None) -> bool:
    try:
        return bool(date_digits(text or ""))
    except ValueError:
        return False
