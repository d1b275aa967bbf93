"""Counters over time, in slots. When there are too many slots, their width is doubled.

The start of a slot is a multiple of its width since the epoch, so that the slots of several crawls match. Within a run,
there is a slot for all times, including those without events; between runs, there are no slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .parsing import count_of, dict_of, list_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SLOTS = 120
LAST_SECOND = 2**37 - 1
"""The latest time, in the year 6325: even the end of a slot that begins then can be converted to a date."""


class Timeline:
    """Counters in *columns* columns for at most 120 slots, whose initial width is one second."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._slots: dict[int, list[int]] = {}
        self._newest: int | None = None
        self.seconds = 1

    def count(self, now_s: float, counts: Iterable[tuple[int, int]] = ()) -> None:
        """Add to the counters at a time in seconds since the epoch; each pair is a column and a number.

        Without pairs, only record that the run is active.
        """
        second = int(min(max(now_s, 0), LAST_SECOND))
        slot = second // self.seconds
        if slot != self._newest:
            slot = self._go_to(second)
        row = self._slots[slot]
        for column, number in counts:
            row[column] += number

    def _go_to(self, second: int) -> int:
        slot = second // self.seconds
        if self._newest is None or slot < self._newest:
            # The first event of a run, or a clock that was set back.
            self._slots.setdefault(slot, [0] * self._columns)
            while len(self._slots) > MOST_SLOTS:
                self._double()
            slot = second // self.seconds
            if self._newest is None:
                self._newest = slot
            return slot
        while len(self._slots) + slot - self._newest > MOST_SLOTS:
            self._double()
            slot = second // self.seconds
        for number in range(self._newest + 1, slot + 1):
            self._slots.setdefault(number, [0] * self._columns)
        self._newest = slot
        return slot

    def _double(self) -> None:
        self.seconds *= 2
        narrower, self._slots = self._slots, {}
        for slot, row in narrower.items():
            self._add(slot // 2, row)
        if self._newest is not None:
            self._newest //= 2

    def merge(self, other: Timeline) -> None:
        """Add the counters of *other*."""
        while self.seconds < other.seconds:
            self._double()
        for slot, row in other._slots.items():
            self._add(slot * other.seconds // self.seconds, row)
        while len(self._slots) > MOST_SLOTS:
            self._double()

    def _add(self, slot: int, row: Iterable[int]) -> None:
        known = self._slots.get(slot, [0] * self._columns)
        self._slots[slot] = [a + b for a, b in zip(known, row, strict=True)]

    def slices(self) -> list[tuple[int, list[int]]]:
        """All slots in the order of time: the first second since the epoch, and the counters."""
        return [(slot * self.seconds, row) for slot, row in sorted(self._slots.items())]

    def as_dict(self) -> dict[str, Any]:
        """Return the slots as plain values."""
        return {"seconds": self.seconds, "slots": [[slot, *row] for slot, row in sorted(self._slots.items())]}

    def take(self, data: object) -> None:
        """Restore the result of :meth:`as_dict` in an empty object. Raises :class:`ValueError` for invalid data.

        Later counts belong to another run.
        """
        plain = dict_of(data)
        seconds = count_of(plain.get("seconds"))
        slots = list_of(plain.get("slots"))
        if not 1 <= seconds <= LAST_SECOND + 1 or seconds & (seconds - 1) or len(slots) > MOST_SLOTS:
            raise ValueError("not a timeline")
        self.seconds = seconds
        for item in slots:
            slot, *row = map(count_of, list_of(item))
            if len(row) != self._columns or slot * seconds > LAST_SECOND:
                raise ValueError("an invalid slot")
            self._slots[slot] = row
