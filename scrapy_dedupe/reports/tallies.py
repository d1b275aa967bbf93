"""Counters and other rows by name, for any number of names in bounded memory.

As in Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams,
ICDT 2005), the rows with the lowest counts are removed to make room for new ones. Here many are removed at once, when
there are twice as many rows, or bytes of text, as the limit. A name that gets a new row may have been counted before:
``missed`` of the row is an upper bound of these counts, and no name without a row has been counted more than ``floor``
times.
:class:`Tallies` sums up the counters of all names without a row in one more row, so that sums stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .parsing import count_of, dict_of, list_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Row:
    """The data of one name. ``calls``: how often it was counted; ``text_bytes``: the size of its texts in UTF-8."""

    __slots__ = ("calls", "missed", "text_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.missed = 0
        self.text_bytes = 0


RowT = TypeVar("RowT", bound=Row)


class HeavyHitters(Generic[RowT]):
    """At most 2 x ``most_rows`` rows with 2 x ``most_bytes`` bytes of text, plus one row."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._rows: dict[str, RowT] = {}
        self._text_bytes = 0
        self.floor = 0

    def _make(self, name: str) -> RowT:
        """Create a row."""
        raise NotImplementedError

    def _on_removed(self, row: RowT) -> None:
        """Called with a row that is removed, to keep its counts elsewhere."""

    def __iter__(self) -> Iterator[tuple[str, RowT]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

    def _row(self, name: str) -> RowT:
        """The row of a name, created if needed."""
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= 2 * self._most_rows or self._text_bytes >= 2 * self._most_bytes:
                self.cut()
            row = self._make(name)
            row.missed = self.floor
            self._put(name, row)
        row.calls += 1
        return row

    def _take(self, name: object, row: RowT) -> None:
        """Add a stored row. Raises :class:`ValueError` for an invalid or repeated name."""
        text = text_of(name)
        if text in self._rows:
            raise ValueError("a repeated name")
        self._put(text, row)

    def _put(self, name: str, row: RowT) -> None:
        self._rows[name] = row
        self._add_text(row, name)

    def _add_text(self, row: RowT, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        row.text_bytes += size
        self._text_bytes += size

    def cut(self) -> None:
        """Remove rows until the limits are met. The rows with the highest counts are kept."""
        if len(self._rows) <= self._most_rows and self._text_bytes <= self._most_bytes:
            return
        kept: dict[str, RowT] = {}
        text_bytes = 0
        for name, row in sorted(self._rows.items(), key=lambda item: -(item[1].calls + item[1].missed)):
            if len(kept) < self._most_rows and text_bytes + row.text_bytes <= self._most_bytes:
                kept[name] = row
                text_bytes += row.text_bytes
            else:
                self.floor = max(self.floor, row.calls + row.missed)
                self._on_removed(row)
        self._rows, self._text_bytes = kept, text_bytes


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
    """Counters in *columns* columns for each name, with the limits of :class:`.tallies.HeavyHitters`."""

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
