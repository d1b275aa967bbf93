"""Counters in bounded memory: by name, also with groups of duplicate pages, and over time.

Rows by name are for any number of names. As in Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of
Frequent and Top-k Elements in Data Streams, ICDT 2005), the rows with the lowest counts are removed to make room for new
ones. Here many are removed at once, when there are twice as many rows, or bytes of text, as the limit. A name that gets a
new row may have been counted before: ``missed`` of the row is an upper bound of these counts, and no name without a row
has been counted more than ``floor`` times.

A timeline has counters in slots. When there are too many slots, their width is doubled. The start of a slot is a multiple
of its width since the epoch, so that the slots of several crawls match. Within a run, there is a slot for all times,
including those without events; between runs, there are no slots.

Stored counters are plain values, which are checked when they are restored: the functions at the end raise
:class:`ValueError` for an unexpected value.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .wording import harmless, key_of, shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self, TypeGuard

    from .figures import DuplicateGroup

_MOST_GROUPS = 100
_MOST_GROUPS_BYTES = 40_000
_GROUP_KINDS = ("exact", "near")

MOST_SLOTS = 120
LAST_SECOND = 2**37 - 1
"""The latest time, in the year 6325: even the end of a slot that begins then can be converted to a date."""

MOST_PAGES = 2**50
"""A limit above any number of pages. The sum over thousands of crawls fits 64 bits, so that it can be drawn."""

MOST_BYTES = 2**50
"""A limit above the number of bytes that can be counted at once."""

_MOST_COUNT = 2**80
_MOST_CHARS = 3_000


class Row:
    """The data of one name.

    ``calls``: how often it was counted; ``counts``: one counter per column; ``text_bytes``: the size of its texts in
    UTF-8. ``examples`` are URLs, each with further data.
    """

    __slots__ = ("calls", "counts", "examples", "missed", "text_bytes")

    most_examples: ClassVar[int] = 0

    def __init__(self, columns: int) -> None:
        self.calls = 0
        self.missed = 0
        self.text_bytes = 0
        self.counts = [0] * columns
        self.examples: dict[str, Any] = {}

    def add(self, other: Self) -> None:
        """Add the counts and examples of *other*, a row of the same name."""
        self.calls += other.calls
        self.missed += other.missed
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        for url, details in other.examples.items():
            if len(self.examples) < self.most_examples:
                self.examples.setdefault(url, details)


RowT = TypeVar("RowT", bound=Row)


class HeavyHitters(Generic[RowT]):
    """At most 2 x ``most_rows`` rows with 2 x ``most_bytes`` bytes of text, plus one row."""

    def __init__(self, new_row: Callable[[], RowT], most_rows: int, most_bytes: int) -> None:
        self._new_row = new_row
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._rows: dict[str, RowT] = {}
        self._text_bytes = 0
        self.floor = 0

    def __iter__(self) -> Iterator[tuple[str, RowT]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

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

    def merge(self, other: Self) -> None:
        """Add the rows of *other*. The result may exceed the limits until the next :meth:`cut`."""
        for name, row in self:
            if name not in other._rows:
                row.missed += other.floor
        for name, row in other:
            if name not in self._rows:
                self._add_row(name)
            self._rows[name].add(row)
        self.floor += other.floor

    def as_dict(self) -> dict[str, Any]:
        """Return the rows as plain values, cut to the row and byte limits."""
        self.cut()
        return {"floor": self.floor, "rows": [self._plain(name, row) for name, row in self]}

    def take(self, data: object) -> None:
        """Restore the result of :meth:`as_dict` in an empty object. Raises :class:`ValueError` for invalid data."""
        plain = dict_of(data)
        for values in list_of(plain.get("rows")):
            name, row, examples = self._read(list_of(values))
            if name in self._rows:
                raise ValueError("a repeated name")
            self._put(name, row)
            for url, *details in examples:
                self._add_example(row, text_of(url), *details)
        self.floor = count_of(plain.get("floor"))
        self.cut()

    def _row(self, name: str) -> RowT:
        """Count a name; return its row, which is created if needed."""
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= 2 * self._most_rows or self._text_bytes >= 2 * self._most_bytes:
                self.cut()
            row = self._add_row(name)
        row.calls += 1
        return row

    def _add_row(self, name: str) -> RowT:
        row = self._new_row()
        row.missed = self.floor
        self._put(name, row)
        return row

    def _put(self, name: str, row: RowT) -> None:
        self._rows[name] = row
        self._add_text(row, name)

    def _add_example(self, row: RowT, url: str, *details: Any) -> None:
        if len(row.examples) < row.most_examples and url not in row.examples:
            row.examples[url] = details
            self._add_text(row, url)

    def _add_text(self, row: RowT, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        row.text_bytes += size
        self._text_bytes += size

    def _on_removed(self, row: RowT) -> None:
        """Called with a row that is removed, to keep its counts elsewhere."""

    def _plain(self, name: str, row: RowT) -> list[Any]:
        """A row as plain values."""
        return [name, row.calls, row.missed, *row.counts, *row.examples]

    def _read(self, values: list[Any]) -> tuple[str, RowT, list[list[Any]]]:
        """The name, row and examples of the result of :meth:`_plain`."""
        name, calls, missed, *rest = values
        row = self._new_row()
        row.calls, row.missed = count_of(calls), count_of(missed)
        columns = len(row.counts)
        row.counts = [count_of(count) for count in rest[:columns]]
        if len(row.counts) < columns:
            raise ValueError("a row with too few columns")
        return text_of(name), row, [[url] for url in rest[columns:]]


class Tallies(HeavyHitters[Row]):
    """Counters in *columns* columns for each name.

    One more row, ``others``, sums up the counters of all names without a row, so that sums stay exact.
    """

    def __init__(self, columns: int, most_rows: int, most_bytes: int) -> None:
        super().__init__(partial(Row, columns), most_rows, most_bytes)
        self.others = Row(columns)

    def count(self, name: str, counts: Iterable[tuple[int, int]]) -> None:
        """Add to the counters of *name*; each pair is a column and a non-negative number."""
        row = self._row(name)
        for column, number in counts:
            row.counts[column] += number

    def sums(self) -> list[int]:
        """The sum of each column over all names, including those that no longer have a row."""
        rows = [self.others, *self._rows.values()]
        return [sum(column) for column in zip(*(row.counts for row in rows), strict=True)]

    def merge(self, other: Tallies) -> None:
        super().merge(other)
        self.others.add(other.others)

    def as_dict(self) -> dict[str, Any]:
        plain = super().as_dict()
        # `missed` has no meaning for the sum of all other names.
        others = [self.others.calls, 0, *self.others.counts]
        return {"rows": plain["rows"], "others": others, "floor": plain["floor"]}

    def take(self, data: object) -> None:
        # Before the rows, because rows that exceed the limits are added to it.
        _, self.others, _ = self._read(["", *list_of(dict_of(data).get("others"))])
        super().take(data)

    def _on_removed(self, row: Row) -> None:
        self.others.add(row)


class Group(Row):
    """Pages that duplicate the page at ``url``. The columns are the kinds of duplicates."""

    __slots__ = ("least", "url")

    most_examples = 5

    def __init__(self) -> None:
        super().__init__(len(_GROUP_KINDS))
        self.url = ""
        self.least = 1.0

    def add(self, other: Self) -> None:
        super().add(other)
        self.url = other.url
        self.least = min(self.least, other.least)


class Groups(HeavyHitters[Group]):
    """The largest groups of pages with the same text, named by the URL of the page that was read first.

    Pages that are unchanged since an earlier visit are excluded: otherwise a repeated crawl would count the whole site.
    """

    def __init__(self) -> None:
        super().__init__(Group, _MOST_GROUPS, _MOST_GROUPS_BYTES)

    def count(self, original_url: str, url: str, kind: str, similarity: float | None) -> None:
        """Record that the page at *url* duplicates the one at *original_url*; *kind*: ``exact`` or ``near``."""
        shown = shown_url(original_url)
        key = key_of(original_url, shown)
        group = self._row(key)
        if group.calls == 1:
            group.url = shown
            if shown != key:
                self._add_text(group, shown)
        group.counts[_GROUP_KINDS.index(kind)] += 1
        if similarity is not None:
            group.least = min(group.least, similarity)
        if len(group.examples) < group.most_examples:
            self._add_example(group, shown_url(url), kind, similarity)

    def largest(self, most: int) -> list[DuplicateGroup]:
        """The largest groups, by number of pages."""
        from .figures import DuplicateGroup, Example

        found = sorted(self._rows.values(), key=lambda group: (-group.calls, group.url))
        return [
            DuplicateGroup(
                group.url,
                group.calls,
                **dict(zip(_GROUP_KINDS, group.counts, strict=True)),
                least_similarity=round(group.least, 4),
                examples=[Example(url, *details) for url, details in group.examples.items()],
                is_bound=group.missed > 0,
            )
            for group in found[:most]
        ]

    def _plain(self, name: str, row: Group) -> list[Any]:
        key = None if name == row.url else name
        examples = [[url, *details] for url, details in row.examples.items()]
        return [key, row.url, row.missed, row.least, *row.counts, *examples]

    def _read(self, values: list[Any]) -> tuple[str, Group, list[list[Any]]]:
        key, url, missed, least, exact, near, *examples = values
        _, group, _ = super()._read(["", 0, missed, exact, near])
        group.url, group.least, group.calls = text_of(url), share_of(least), sum(group.counts)
        if key:
            self._add_text(group, group.url)
        for _, kind, similarity in examples:
            if kind not in _GROUP_KINDS or not (similarity is None or share_of(similarity) >= 0):
                raise ValueError("not an example")
        return text_of(key or url), group, examples


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


def dict_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a dict")  # noqa: TRY004
    return value


def list_of(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")  # noqa: TRY004
    return value


def text_of(value: object) -> str:
    """A string of at most 3,000 characters, cleaned by `harmless`, since other programs may write to a shared store."""
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise ValueError("not a short string")
    return harmless(value, _MOST_CHARS)


def count_of(value: object, most: int = _MOST_COUNT) -> int:
    """An integer from 0 to *most*."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("not a count")
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number.

    >>> is_number(10**400), is_number(float("nan")), is_number(True)
    (True, False, False)
    """
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def number_of(value: object) -> int | float:
    """A finite number."""
    if not is_number(value):
        raise ValueError("not a number")
    return max(-_MOST_COUNT, min(value, _MOST_COUNT)) if isinstance(value, int) else value


def share_of(value: object) -> float:
    """A number from 0 to 1."""
    number = float(number_of(value))
    if not 0 <= number <= 1:
        raise ValueError("not a share")
    return number
