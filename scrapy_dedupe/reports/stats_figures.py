"""Reads figures from the stats of a crawl, whose values may have any type."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .figures import UrlFilterFigures
from .parsing import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 2**63 - 1


def count(stats: Mapping[str, object], key: str) -> int:
    """A count; 0 if it is missing or not a number.

    >>> count({"a": 3}, "a"), count({"a": "3"}, "a"), count({}, "a")
    (3, 0, 0)
    """
    return _count(stats.get(key)) or 0


def time(stats: Mapping[str, object], key: str) -> str | None:
    """A time as ISO 8601 in UTC; None if it is missing or invalid.

    >>> time({"finish_time": "2026-11-28T10:00:00+00:00"}, "finish_time")
    '2026-11-28T10:00:00.000Z'
    """
    value = stats.get(key)
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is None:
            return None
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def url_filter(crawl: str, stats: Mapping[str, object]) -> UrlFilterFigures | None:
    """The URL filter of a crawl; None if the crawl did not use one of this project."""
    if _count(stats.get("dedupe/url/capacity")) is None:
        return None
    counts = {
        name: _count(stats.get(f"dedupe/url/{name}"))
        for name in ("seen", "capacity", "layers", "bytes", "confirmed", "false_positives")
    }
    numbers = {
        name: _number(stats.get(f"dedupe/url/{name}"))
        for name in ("fill_ratio", "estimated_error", "expected_lost")
    }
    return UrlFilterFigures(
        crawl=crawl,
        seen=counts["seen"],
        capacity=counts["capacity"],
        layers=counts["layers"],
        bytes=counts["bytes"],
        fill_ratio=numbers["fill_ratio"],
        estimated_error=numbers["estimated_error"],
        expected_lost=numbers["expected_lost"],
        confirmed=counts["confirmed"],
        false_positives=counts["false_positives"],
    )


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return min(value, _MOST)


def _number(value: object) -> float | None:
    return float(min(value, _MOST)) if is_number(value) and value >= 0 else None
