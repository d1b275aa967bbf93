"""What verification finds: differences between an archive before and after, each with its places on both sides."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_FINDINGS = 1_000

KINDS = {
    "file": "files that are missing or were added",
    "missing": "records that are gone",
    "added": "records that were added or moved",
    "bytes": "stretches that are no records and differ",
    "changed": "records that changed in a way that nothing allows",
    "converted": "revisits that were made wrongly",
    "restored": "responses that were put back wrongly",
    "reference": "references that do not lead where they led before",
    "replay": "revisits that do not replay",
}
"""The kinds of findings, and what they are."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference. The places are ``FILE, offset N``, or a file alone; None where that side has nothing."""

    kind: str
    before: str | None
    after: str | None
    reason: str

    def __str__(self) -> str:
        places = " -> ".join(place for place in (self.before, self.after) if place)
        return f"{places}: {self.reason}"


class Findings:
    """Counts findings, and keeps the first thousand."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Difference] = []

    def add(self, kind: str, before: str | None, after: str | None, reason: str) -> None:
        """Note a finding of one of `KINDS`."""
        self.take(1, (Difference(kind, before, after, reason),))

    def take(self, count: int, first: tuple[Difference, ...]) -> None:
        """Add what another process has found."""
        self.count += count
        self.first += first[: max(0, KEPT_FINDINGS - len(self.first))]
