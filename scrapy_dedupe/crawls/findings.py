"""What a check of the crawl index finds, in sentences that name crawl, file and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = {
    "incomplete": "crawls whose records are not all entered",
    "lost": "crawls whose files are there and which the index does not know",
    "file": "WARC files that are not where the index says",
    "damage": "damaged places in WARC files",
    "entry": "entries that name no such record",
    "record": "records that the index lacks",
    "counts": "counts that differ from a recount",
    "revisit": "revisits without an original",
    "waiting": "revisits whose original is not in the index",
    "needs": "needs of other crawls that the index lacks",
    "missing": "what crawls need and is not there",
    "container": "WACZ files that differ from what the index says",
    "unreadable": "values of the index that cannot be read",
    "empty": "committed crawls of which the index has nothing",
    "merged": "faults of the merged index",
    "unfinished": "imports, removals and repairs that were cut off",
}
"""What can be found, in the order in which it is shown."""

REBUILT_KINDS: Final = frozenset(
    {"incomplete", "lost", "file", "entry", "record", "counts", "needs", "unreadable"}
)
"""What reading the entries of a crawl anew can mend."""


@dataclass(frozen=True, slots=True)
class IndexFinding:
    """Something that is not as it should be. ``kind`` is one of :data:`KINDS`.

    ``crawl``, ``file`` and ``offset`` (in bytes) say where, as far as it is at one place.
    """

    kind: str
    crawl: str | None
    sentence: str
    file: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """How thoroughly a check looks.

    With ``has_payloads`` every payload and container is hashed. With ``sample`` only so many entries of each crawl are
    compared, drawn with ``seed``; their records alone are read then.
    """

    has_payloads: bool = False
    sample: int | None = None
    seed: int = 0
