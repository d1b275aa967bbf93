"""Counters by name. Names without a row share one row, so that sums stay exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .heavy_hitters import HeavyHitters, Row
from .parsing import count_of, dict_of, list_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class Tally(Row):
    """The counters of one name, one per column."""

    __slots__ = ("counts",)

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.counts = [0] * columns

    def add(self, other: Tally) -> None:
        """Add the counters of *other*."""
        self.calls += other.calls
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]


class Tallies(HeavyHitters[Tally]):
    """Counters in *columns* columns for each name, with the limits of :class:`.heavy_hitters.HeavyHitters`."""

    def __init__(self, columns: int, most_rows: int, most_bytes: int) -> None:
        super().__init__(most_rows, most_bytes)
        self._columns = columns
        self.others = Tally(columns)

    def count(self, name: str, counts: Iterable[tuple[int, int]]) -> None:
        """Add to the counters of *name*; each pair is a column and a non-negative number."""
        row = self._row(name)
        for column, number in counts:
            row.counts[column] += number

    def sums(self) -> list[int]:
        """The sum of each column over all names, including those that no longer have a row."""
        rows = [self.others, *self._rows.values()]
        return [sum(row.counts[column] for row in rows) for column in range(self._columns)]

    def merge(self, other: Tallies) -> None:
        """Add the counters of *other*. The result may exceed the limits until the next :meth:`cut`."""
        for name, row in self._rows.items():
            if name not in other._rows:
                row.missed += other.floor
        for name, row in other:
            ours = self._rows.get(name)
            if ours is None:
                ours = self._make(name)
                ours.missed = self.floor
                self._put(name, ours)
            ours.missed += row.missed
            ours.add(row)
        self.floor += other.floor
        self.others.add(other.others)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain values, cut to the row and byte limits."""
        self.cut()
        return {
            "rows": [[name, row.calls, row.missed, *row.counts] for name, row in self],
            "others": [self.others.calls, 0, *self.others.counts],
            "floor": self.floor,
        }

    def take(self, data: object) -> None:
        """Restore the result of :meth:`as_dict` in an empty object. Raises :class:`ValueError` for invalid data."""
        plain = dict_of(data)
        for item in list_of(plain.get("rows")):
            name, *numbers = list_of(item)
            self._take(name, self._read(numbers))
        self.others = self._read(list_of(plain.get("others")))
        self.floor = count_of(plain.get("floor"))
        self.cut()

    def _read(self, numbers: list[Any]) -> Tally:
        calls, missed, *counts = map(count_of, numbers)
        if len(counts) != self._columns:
            raise ValueError("a row with a wrong number of columns")
        row = Tally(self._columns)
        row.calls, row.missed, row.counts = calls, missed, counts
        return row

    def _make(self, name: str) -> Tally:
        return Tally(self._columns)

    def _on_removed(self, row: Tally) -> None:
        self.others.add(row)
