"""Decides which payloads may become a revisit record, or the original of one.

Only complete bodies of GET responses are allowed: a replay program does not find a POST (pywb#762) and shows some other
statuses as 200, and a partial body must never replace a whole one.

All code that adds a stored record to the index, or checks whether the record should be there, calls
:func:`may_be_original` through :func:`.entries.derive`: import, rebuild, check and repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.stores.normal_forms import EMPTY_PAYLOADS, known_digest
from scrapy_dedupe.warc.bodies import has_payload, has_whole_page, why_no_original

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
        """Whether this payload may be an original or a revisit.

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
        """Like :meth:`admit`, but False for a body that differs from what the server sent."""
        return capture.rendering is None and self.admit(
            method=capture.method,
            status=capture.status,
            content_type=(capture.content_type or b"").decode("latin-1"),
            size_bytes=len(capture.body),
            is_complete=capture.is_complete,
        )


def may_be_original(record: StoredRecord, method: str, rules: RevisitRules | None = None) -> bool:
    """Whether other records may refer to the payload of a stored record; *method* is the method of its request.

    ``rules`` are the rules of the crawl that wrote the record; None for an imported record. Raises
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
    """Like :func:`may_be_original`, for a record whose request is unknown.

    An index that was imported without its WARC files may name records whose body was never checked.
    """
    return (
        is_http(record)
        and why_no_original(record) is None
        and has_payload(record)
        and known_digest(record) not in EMPTY_PAYLOADS
    )


def is_http(record: StoredRecord) -> bool:
    """Whether a record belongs to an HTTP exchange; others are DNS answers, for example."""
    return (record.target_uri or "http:").lower().startswith(("http:", "https:"))


def line_may_be_original(digest: str | None, method: str, status: int | None) -> bool:
    """Like :func:`may_be_original`, but decided only from a line of a CDXJ."""
    return digest is not None and digest not in EMPTY_PAYLOADS and method == "GET" and has_whole_page(status)
