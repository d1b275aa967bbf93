"""The findings of a check of the crawl index, as sentences that name crawl, file and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .dependencies import Needed

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


def missing_needs(crawl: str, needs: Iterable[Needed]) -> Iterator[IndexFinding]:
    """The missing needs of a crawl: one finding for each crawl that the index lacks, and each file that is gone."""
    absent: dict[str, list[Needed]] = {}
    for needed in needs:
        if not needed.is_in_index:
            absent.setdefault(needed.crawl, []).append(needed)
        elif needed.is_missing:
            text = (
                f"Revisits of the crawl {crawl} refer to records of {needed.crawl} in {needed.place or needed.name},"
                " which is gone."
            )
            yield IndexFinding("missing", crawl, text, needed.place)
    for other, of_other in absent.items():
        text = (
            f"Revisits of the crawl {crawl} refer to records of {other}, which the index does not have."
            f"{_presence_text(of_other)}"
        )
        yield IndexFinding(
            "missing", crawl, text, next((needed.place for needed in of_other if needed.place), None)
        )


def _presence_text(needs: Sequence[Needed]) -> str:
    """Which files exist of a crawl that is not in the index."""
    known = [needed for needed in needs if needed.is_present is not None]
    if len(known) == 1:
        return f" {known[0].place} {'exists' if known[0].is_present else 'is gone'}."
    there = sum(bool(needed.is_present) for needed in known)
    return f" Of its files {there} of {len(known)} {'exists' if there == 1 else 'exist'}." if known else ""
