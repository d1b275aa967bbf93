"""Which payloads may become a revisit record, or serve as the original of one.

Only complete bodies of GET responses: a replayer answers a POST with nothing (pywb#762), shows some other
statuses as 200, and half a body must never stand for a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_dedupe.warc.capture import Capture


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
        if not (is_complete and method == "GET" and status in self.statuses and status != 206):
            return False
        if size_bytes < max(1, self.min_size):
            return False
        mime_type = content_type.partition(";")[0].strip().lower()
        return not self.mime_types or mime_type in self.mime_types

    def admit_capture(self, capture: Capture) -> bool:
        """As :meth:`admit`."""
        content_types = (value for name, value in capture.response_headers if name.lower() == b"content-type")
        return self.admit(
            method=capture.method,
            status=capture.status,
            content_type=next(content_types, b"").decode("latin-1"),
            size_bytes=len(capture.body),
            is_complete=capture.is_complete,
        )
