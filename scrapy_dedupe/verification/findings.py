"""The differences that a verification finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy_dedupe.warc.sources import ReadableFile

KEPT_FINDINGS: Final = 1_000

KINDS: Final = {
    "file": "files that are missing or were added",
    "missing": "records that are gone",
    "added": "records that were added or moved",
    "bytes": "bytes between records that differ",
    "changed": "records that changed in a way that is not allowed",
    "converted": "revisits that were made incorrectly",
    "restored": "responses that were restored incorrectly",
    "reference": "references that lead to another record than before",
    "replay": "revisits that do not replay",
}
"""The kinds of findings, with their descriptions."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference. A place is ``FILE, offset N`` or only a file; None if that side has no such record or file."""

    kind: str
    before: str | None
    after: str | None
    reason: str

    def __str__(self) -> str:
        places = " -> ".join(place for place in (self.before, self.after) if place)
        return f"{places}: {self.reason}"


class Findings:
    """Counts differences, and keeps the first `KEPT_FINDINGS`."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Difference] = []

    def add(self, kind: str, before: str | None, after: str | None, reason: str) -> None:
        """Add a difference of one of `KINDS`."""
        self.count += 1
        if len(self.first) < KEPT_FINDINGS:
            self.first.append(Difference(kind, before, after, reason))

    def take(self, other: Findings) -> None:
        """Add the differences that another process found."""
        self.count += other.count
        self.first += other.first[: KEPT_FINDINGS - len(self.first)]


def place_of(file: ReadableFile, offset: int) -> str:
    """The text for a place in messages."""
    return f"{file}, offset {offset}"
