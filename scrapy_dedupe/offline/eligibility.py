"""Which records may become a revisit, or be the original of one, and the bytes that revisits save.

The rules are the same as in a crawl: only whole bodies of GET responses. Replay programs do not find a POST by its URL
and may show a revisit of another status as 200, and a part of a body must never replace a whole one.
`warc.bodies.why_no_original` makes this decision for crawls and for archives.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_dedupe.warc.reading import StoredRecord

DEFAULT_MIN_SIZE = 1_024
DEFAULT_STATUSES = frozenset({200})
OTHERS = "(others)"
"""The name for all hosts or media types after the first 100,000."""

_MAX_NAMES = 100_000

REASONS = {
    "truncated": "truncated when it was captured",
    "partial": "a part of a body (206, or a segment)",
    "status": "its status is not among the selected ones",
    "small": "smaller than the minimum size",
    "empty": "without a payload",
    "method": "not the answer to a GET",
    "arc": "in an ARC file, which cannot hold revisits",
    "no-id": "without a record id",
    "no-http": "not an HTTP response",
    "cut-chunks": "stored in chunks that are truncated, or that hold more than the payload",
}
"""Why a record is not changed, by key."""

LEFT = REASONS | {
    "original": "no earlier record can be the original",
    "unreadable": "the URL, date, id or digest of the original cannot be read back exactly, or another record has its id",
    "no-gain": "not smaller as a revisit",
    "damaged": "damaged, or different from the manifest",
    "fields": "with fields of a revisit, or in a form that could not be restored byte for byte",
    "shared": "referred to by a record that cannot be changed",
    "chunks": "stored without transfer chunks, which a replay program would show from earlier records",
}
"""Why a copy is not changed, by key."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """``min_size`` counts bytes of the stored payload; ``statuses`` None means all but 206."""

    min_size: int = DEFAULT_MIN_SIZE
    statuses: frozenset[int] | None = DEFAULT_STATUSES

    def to_json(self) -> dict[str, Any]:
        """The values by their options."""
        return {
            "--min-size": self.min_size,
            "--status": "all" if self.statuses is None else sorted(self.statuses),
        }

    def reason_against(self, record: StoredRecord, *, size_bytes: int | None = None) -> str | None:
        """Why a record is not changed, a key of `REASONS`; None if it may be an original.

        The size is checked if it is given. Raises DamagedInput if a long block cannot be read again.
        """
        # The command line imports this module for its defaults, and `warc.bodies` is slow to import.
        from scrapy_dedupe.warc.bodies import why_no_original

        status = record.http_status
        is_other = self.statuses is not None and status is not None and status not in self.statuses
        if record.is_whole and is_other:
            return "status"
        if reason := why_no_original(record):
            return reason
        return None if size_bytes is None else self.reason_of_size(size_bytes)

    def reason_of_size(self, size_bytes: int) -> str | None:
        """Why a payload of this size is not replaced, a key of `REASONS`."""
        if size_bytes < self.min_size:
            return "small"
        return "empty" if size_bytes == 0 else None


@dataclass(frozen=True, slots=True)
class Saving:
    """The bytes that the copies of one host or media type save as revisits."""

    name: str
    records: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class Savings:
    """The totals, and the savings by host and media type, largest first."""

    records: int = 0
    saved_bytes: int = 0
    hosts: tuple[Saving, ...] = ()
    types: tuple[Saving, ...] = ()


def add_up(copies: Iterable[tuple[str, str, int]]) -> Savings:
    """Add up the savings of copies, given as tuples of URI, media type and saved bytes.

    >>> add_up([("http://example.com/a", "text/html", 10), ("http://example.com/b", "image/png", 5)]).hosts
    (Saving(name='example.com', records=2, saved_bytes=15),)
    """
    records = saved_bytes = 0
    hosts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    types: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for uri, mime, size in copies:
        records += 1
        saved_bytes += size
        for sums, name in ((hosts, _host(uri)), (types, mime or "(none)")):
            entry = sums[name if name in sums or len(sums) < _MAX_NAMES else OTHERS]
            entry[0] += 1
            entry[1] += size
    return Savings(records, saved_bytes, _ordered(hosts), _ordered(types))


def _ordered(sums: dict[str, list[int]]) -> tuple[Saving, ...]:
    found = [Saving(name, count, size) for name, (count, size) in sums.items()]
    return tuple(sorted(found, key=lambda saving: (-saving.saved_bytes, saving.name)))


def _host(uri: str) -> str:
    try:
        return urlsplit(uri).hostname or "(none)"
    except ValueError:  # an invalid address in brackets
        return "(none)"
