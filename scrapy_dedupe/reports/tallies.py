"""Rows by name, for any number of names in bounded memory: counters, and groups of duplicate pages.

As in Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams,
ICDT 2005), the rows with the lowest counts are removed to make room for new ones. Here many are removed at once, when
there are twice as many rows, or bytes of text, as the limit. A name that gets a new row may have been counted before:
``missed`` of the row is an upper bound of these counts, and no name without a row has been counted more than ``floor``
times.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .parsing import count_of, dict_of, list_of, share_of, text_of
from .texts import key_of, shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from .figures import DuplicateGroup, Example

MOST_EXAMPLES = 5

_MOST_GROUPS = 100
_MOST_GROUPS_BYTES = 40_000
_GROUP_KINDS = ("exact", "near")


class Row:
    """The data of one name. ``calls``: how often it was counted; ``text_bytes``: the size of its texts in UTF-8."""

    __slots__ = ("calls", "missed", "text_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.missed = 0
        self.text_bytes = 0

    def add(self, other: Self) -> None:
        """Add the counts of *other*, a row of the same name."""
        self.calls += other.calls
        self.missed += other.missed


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
        for item in list_of(plain.get("rows")):
            self._take_row(list_of(item))
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

    def _put_stored(self, name: object, row: RowT) -> None:
        """Add a stored row. Raises :class:`ValueError` for an invalid or repeated name."""
        text = text_of(name)
        if text in self._rows:
            raise ValueError("a repeated name")
        self._put(text, row)

    def _add_text(self, row: RowT, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        row.text_bytes += size
        self._text_bytes += size

    def _on_removed(self, row: RowT) -> None:
        """Called with a row that is removed, to keep its counts elsewhere."""

    def _plain(self, name: str, row: RowT) -> list[Any]:
        """A row as plain values."""
        raise NotImplementedError

    def _take_row(self, values: list[Any]) -> None:
        """Restore the result of :meth:`_plain`."""
        raise NotImplementedError


class Tally(Row):
    """The counters of one name, one per column."""

    __slots__ = ("counts",)

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.counts = [0] * columns

    def add(self, other: Tally) -> None:
        super().add(other)
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]


class Tallies(HeavyHitters[Tally]):
    """Counters in *columns* columns for each name.

    One more row, ``others``, sums up the counters of all names without a row, so that sums stay exact.
    """

    def __init__(self, columns: int, most_rows: int, most_bytes: int) -> None:
        super().__init__(partial(Tally, columns), most_rows, most_bytes)
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
        super().merge(other)
        self.others.add(other.others)

    def as_dict(self) -> dict[str, Any]:
        plain = super().as_dict()
        # `missed` has no meaning for the sum of all other names.
        others = [self.others.calls, 0, *self.others.counts]
        return {"rows": plain["rows"], "others": others, "floor": plain["floor"]}

    def take(self, data: object) -> None:
        # Before the rows, because rows that exceed the limits are added to it.
        self.others = self._read(list_of(dict_of(data).get("others")))
        super().take(data)

    def _on_removed(self, row: Tally) -> None:
        self.others.add(row)

    def _plain(self, name: str, row: Tally) -> list[Any]:
        return [name, row.calls, row.missed, *row.counts]

    def _take_row(self, values: list[Any]) -> None:
        name, *numbers = values
        self._put_stored(name, self._read(numbers))

    def _read(self, numbers: list[Any]) -> Tally:
        calls, missed, *counts = map(count_of, numbers)
        if len(counts) != self._columns:
            raise ValueError("a row with a wrong number of columns")
        row = Tally(self._columns)
        row.calls, row.missed, row.counts = calls, missed, counts
        return row


class Group(Row):
    """Pages that duplicate the page at ``url``."""

    __slots__ = ("examples", "kinds", "least", "url")

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.kinds = dict.fromkeys(_GROUP_KINDS, 0)
        self.least = 1.0
        self.examples: list[Example] = []

    def add(self, other: Group) -> None:
        super().add(other)
        self.url = other.url
        self.least = min(self.least, other.least)
        for kind, pages in other.kinds.items():
            self.kinds[kind] += pages
        known = {example.url for example in self.examples}
        new = [example for example in other.examples if example.url not in known]
        self.examples = (self.examples + new)[:MOST_EXAMPLES]


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
        group.kinds[kind] += 1
        if similarity is not None:
            group.least = min(group.least, similarity)
        if len(group.examples) < MOST_EXAMPLES:
            shown = shown_url(url)
            if all(example.url != shown for example in group.examples):
                group.examples.append(_example(shown, kind, similarity))
                self._add_text(group, shown)

    def largest(self, most: int) -> list[DuplicateGroup]:
        """The largest groups, by number of pages."""
        from .figures import DuplicateGroup

        found = sorted(self._rows.values(), key=lambda group: (-group.calls, group.url))
        return [
            DuplicateGroup(
                url=group.url,
                pages=group.calls,
                **group.kinds,
                least_similarity=round(group.least, 4),
                examples=list(group.examples),
                is_bound=group.missed > 0,
            )
            for group in found[:most]
        ]

    def _plain(self, name: str, row: Group) -> list[Any]:
        key = None if name == row.url else name
        examples = [[example.url, example.kind, example.similarity] for example in row.examples]
        return [key, row.url, row.missed, row.least, *row.kinds.values(), *examples]

    def _take_row(self, values: list[Any]) -> None:
        key, url, missed, least, *rest = values
        examples = [value for value in rest if isinstance(value, list)]
        # Older data may have a count of unchanged pages before these two.
        *_, exact, near = (value for value in rest if not isinstance(value, list))
        group = Group()
        group.url, group.missed, group.least = text_of(url), count_of(missed), share_of(least)
        group.kinds = dict(zip(_GROUP_KINDS, map(count_of, (exact, near)), strict=True))
        group.calls = sum(group.kinds.values())
        if not group.calls:
            return
        for example in examples[:MOST_EXAMPLES]:
            group.examples.append(_read_example(example))
            self._add_text(group, group.examples[-1].url)
        self._put_stored(key or url, group)
        if key:
            self._add_text(group, group.url)


def _example(url: str, kind: str, similarity: float | None) -> Example:
    # Most crawls never need the other classes of this module.
    from .figures import Example

    return Example(url, kind, similarity)


def _read_example(values: list[Any]) -> Example:
    url, kind, similarity = values
    if kind not in _GROUP_KINDS:
        raise ValueError("not a kind of duplicate")
    return _example(text_of(url), kind, None if similarity is None else share_of(similarity))
