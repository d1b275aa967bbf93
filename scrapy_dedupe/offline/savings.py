"""Bytes that revisits save, by host and by media type, for the report of a dry run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_NAMES = 100_000
OTHERS = "(others)"
"""The name for all names after the first 100,000."""


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
