"""What is wrong with an input, and whether the work goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput

if TYPE_CHECKING:
    from scrapy_dedupe.warc.framing import Damage

_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A place in an input, and what is wrong with it.

    ``place`` is the name of the file, with the offset in bytes or the number of the line where one is known:
    ``a.warc.gz, offset 512`` or ``manifest.txt, line 3``.
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class Faults:
    """Collects faults; raises DamagedInput for the first one, unless the work is to go on (``--keep-going``).

    `count` counts all of them; `first` keeps a thousand at most. *advice* is what that error tells the user to do.
    """

    def __init__(
        self, *, keep_going: bool = False, advice: str = "--keep-going passes over it and goes on."
    ) -> None:
        self.keep_going = keep_going
        self.advice = advice
        self.count = 0
        self.first: list[Fault] = []

    def add(self, place: str, reason: str) -> None:
        """Note a fault. Raises DamagedInput unless the work is to go on."""
        fault = Fault(place, reason.rstrip("."))
        if not self.keep_going:
            raise DamagedInput(f"{fault}. {self.advice}")
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(fault)

    def add_damage(self, damage: Damage) -> None:
        """As `add`, for a damaged place that a reader of WARC files tells of."""
        self.add(
            f"{damage.path}, offset {damage.offset}", f"{damage.reason} ({damage.length} bytes passed over)"
        )

    def take(self, count: int, first: tuple[Fault, ...]) -> None:
        """Add what another process has collected."""
        self.count += count
        self.first += first[: max(0, _KEPT - len(self.first))]
