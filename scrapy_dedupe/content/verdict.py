"""The verdict on a page, and its original."""

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
        ``unique``: the text is new. ``unchanged``: this URL had this text before. ``exact``: another URL had this
        text. ``near``: a kept text is similar. ``unknown``: the page was not judged; ``reason`` gives the cause.
    ``original_url``, ``original_crawl``, ``original_seen``
        The first capture of the original text: its URL, the id of its crawl, and its time (an aware
        ``datetime`` in UTC). None for ``unique`` and ``unknown``.
    ``same_url``
        Whether this URL had the original text in an earlier capture.
    ``similarity``
        The estimated Jaccard similarity to the original: 1.0 for ``unchanged`` and ``exact``, None for
        ``unique`` and ``unknown``.
    ``pending``
        Whether the page with the original text is still being processed, and may fail.
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
        """Create a verdict about a text whose original is *seen*."""
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
        """Whether a page that succeeded had the same or nearly the same text.

        False while the original is pending: it may fail, and then this page is the only one with the text.
        """
        return self.kind in ("unchanged", "exact", "near") and not self.pending

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for logs and JSON; the time is ISO 8601 in UTC with milliseconds."""
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
