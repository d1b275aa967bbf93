"""The findings of a check of the crawl index, as sentences that name crawl, file and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = {
    "incomplete": "crawls with records that are not in the index",
    "lost": "crawls whose files exist but which are not in the index",
    "file": "WARC files that are not where the index says",
    "damage": "damaged places in WARC files",
    "entry": "entries that name no such record",
    "record": "records that are missing from the index",
    "counts": "counts that differ from a recount",
    "revisit": "revisits without an original",
    "waiting": "revisits whose original is not in the index",
    "needs": "needs of other crawls that are missing from the index",
    "missing": "needed crawls and files that are missing",
    "container": "WACZ files that differ from what the index says",
    "unreadable": "values of the index that cannot be read",
    "empty": "committed crawls without files and records in the index",
    "merged": "faults of the merged index",
    "unfinished": "imports, removals and repairs that were interrupted",
}
"""The kinds of findings, in the order in which they are shown."""

REBUILT_KINDS: Final = frozenset(
    {"incomplete", "lost", "file", "entry", "record", "counts", "needs", "unreadable"}
)
"""Findings that reading the entries of a crawl again can repair."""


@dataclass(frozen=True, slots=True)
class IndexFinding:
    """A problem. ``kind`` is one of :data:`KINDS`.

    ``crawl``, ``file`` and ``offset`` (in bytes) give its location, if it has one.
    """

    kind: str
    crawl: str | None
    sentence: str
    file: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """How thorough a check is.

    With ``has_payloads`` every payload and container is hashed. With ``sample`` only this many entries of each crawl
    are compared, drawn with ``seed``, and only their records are read.
    """

    has_payloads: bool = False
    sample: int | None = None
    seed: int = 0


def number_of(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> number_of(1, "entry", "entries"), number_of(2, "place")
    ('1 entry', '2 places')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
