"""Faults in an input, and whether to continue after one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.warc.framing import Damage

KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in an input.

    ``place`` is the name of the file, with the offset in bytes or the line number if known:
    ``a.warc.gz, offset 512`` or ``manifest.txt, line 3``.
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class Faults:
    """Collects faults. Raises DamagedInput for the first one unless *keep_going* (``--keep-going``) is set.

    `count` counts all faults; `first` has at most the first thousand. *advice* ends the error message.
    """

    def __init__(
        self, *, keep_going: bool = False, advice: str = "--keep-going skips it and continues."
    ) -> None:
        self.keep_going = keep_going
        self.advice = advice
        self.count = 0
        self.first: list[Fault] = []

    def add(self, place: str, reason: str) -> None:
        """Record a fault. Raises DamagedInput unless *keep_going* is set."""
        fault = Fault(place, reason.rstrip("."))
        if not self.keep_going:
            raise DamagedInput(f"{fault}. {self.advice}")
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(fault)

    def add_damage(self, damage: Damage) -> None:
        """Record damage that a reader of WARC files reports. Raises the exceptions of `add`."""
        self.add(f"{damage.path}, offset {damage.offset}", f"{damage.reason} ({damage.length} bytes skipped)")

    def replay(self, count: int, first: Sequence[Fault]) -> None:
        """Add the faults of an earlier run or another process. Raises the exceptions of `add`."""
        if self.keep_going:
            self.take(count, tuple(first))
            return
        for fault in first:
            self.add(fault.place, fault.reason)

    def take(self, count: int, first: tuple[Fault, ...]) -> None:
        """Add the faults that another process has collected."""
        self.count += count
        self.first += first[: max(0, KEPT - len(self.first))]
