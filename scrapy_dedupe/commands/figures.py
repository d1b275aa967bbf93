"""How counts, numbers and sizes are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Counts


def counts_dict(counts: Counts) -> dict[str, int]:
    """The counts of a crawl under the names that Browsertrix gave them. Sizes in bytes."""
    return {
        "totalUrls": counts.total_urls,
        "dupeUrls": counts.dupe_urls,
        "conservedSize": counts.conserved_size,
        "totalCrawlSize": counts.total_crawl_size,
    }


def counts_text(counts: Counts) -> str:
    """The counts of a crawl in one sentence."""
    return (
        f"{counted(counts.total_urls, 'response')}, {number_text(counts.dupe_urls)} of them duplicates;"
        f" {size_text(counts.conserved_size)} saved, {size_text(counts.total_crawl_size)} on disk"
    )


def number_text(number: int) -> str:
    """A count with thousands separators.

    >>> number_text(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """How many there are of something.

    >>> counted(1, "document"), counted(1_200, "document"), counted(0, "copy", "copies")
    ('1 document', '1,200 documents', '0 copies')
    """
    return f"{number_text(count)} {noun if count == 1 else plural or f'{noun}s'}"


def size_text(size_bytes: int) -> str:
    """A size in the decimal unit that keeps it short.

    >>> size_text(999), size_text(1_500), size_text(2_340_000_000)
    ('999 B', '1.5 kB', '2.3 GB')
    """
    size, units = float(size_bytes), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    for larger in units:
        if size < 999.95:
            break
        size, unit = size / 1_000, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
