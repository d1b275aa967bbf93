"""What was decided about a page, and what its original is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import TextMatch

KINDS: Final = ("unique", "unchanged", "exact", "near", "unknown")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one page.

    ``kind``
        ``unique``: the text is new. ``unchanged``: this URL had this very text before. ``exact``: another URL
        had it. ``near``: a kept text is similar. ``unknown``: the page was not judged, and ``reason`` says
        why.
    ``original_url``, ``original_crawl``, ``original_seen``
        The first capture of the original text: its URL, the id of its crawl, and its time (an aware
        ``datetime`` in UTC). None for ``unique`` and ``unknown``.
    ``same_url``
        Whether this page's own URL had the original text in an earlier capture.
    ``similarity``
        The estimated Jaccard similarity to the original: 1.0 for ``unchanged`` and ``exact``, None for
        ``unique`` and ``unknown``.
    ``pending``
        Whether the page with the original text has not gone through yet, and may still fail.
    """

    kind: str
    original_url: str | None = None
    original_crawl: str | None = None
    original_seen: datetime | None = None
    same_url: bool = False
    similarity: float | None = None
    reason: str | None = None
    pending: bool = False

    @classmethod
    def of(cls, kind: str, seen: TextMatch, similarity: float) -> Verdict:
        """A verdict about a text whose original is *seen*."""
        return cls(
            kind=kind,
            original_url=seen.url,
            original_crawl=seen.crawl,
            original_seen=datetime.fromtimestamp(seen.seen_ms / 1000, tz=UTC),
            same_url=seen.had_this_url,
            similarity=similarity,
            pending=seen.pending,
        )

    @property
    def is_duplicate(self) -> bool:
        """Whether the text, or nearly the same text, was read before by a page that went through.

        While the original is pending this is False: it may fail, and then this page is all there is.
        """
        return self.kind in ("unchanged", "exact", "near") and not self.pending

    def as_dict(self) -> dict[str, Any]:
        """A plain form for logs and JSON; the time as ISO 8601 in UTC with milliseconds."""
        seen = self.original_seen
        return {
            "kind": self.kind,
            "original_url": self.original_url,
            "original_crawl": self.original_crawl,
            "original_seen": None
            if seen is None
            else f"{seen:%Y-%m-%dT%H:%M:%S}.{seen.microsecond // 1000:03}Z",
            "same_url": self.same_url,
            "similarity": None if self.similarity is None else round(self.similarity, 4),
            "reason": self.reason,
            "pending": self.pending,
        }
