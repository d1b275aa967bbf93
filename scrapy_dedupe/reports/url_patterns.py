"""Patterns of URLs, and those most of whose pages brought little that was new.

Such pages repeat others, or have hardly a word besides what their host puts on many pages. The pattern may be a trap: a
calendar without end, a session in the URL, filters in any combination, relative links that grow. It may as well be
printer versions, or what a generator of manuals makes of nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .figures import Trap
from .heavy_hitters import HeavyHitters, Row
from .parsing import count_of, dict_of, list_of, text_of
from .texts import shown_url
from .url_forms import is_folder, patterns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_PAGES = 20
MOST_EXAMPLES = 3

_MOST_PATTERNS = 400
_MOST_BYTES = 40_000
_EXAMPLE_CHARS = 500
# A wider pattern stands for a narrower one only if it says more.
_WIDER = 1.2


class Pattern(Row):
    """The pages of one pattern.

    ``exact`` and ``near`` have the text of pages at other URLs, ``bare`` ones are new and hardly have any of their own.
    The ``examples`` are of these three.
    """

    __slots__ = ("bare", "exact", "examples", "near", "unchanged")

    def __init__(self) -> None:
        super().__init__()
        self.bare = self.exact = self.near = self.unchanged = 0
        self.examples: list[str] = []

    @property
    def different(self) -> int:
        """The pages without those that are as they were: what was found out of them was found out earlier."""
        return self.calls - self.unchanged

    @property
    def fruitless(self) -> int:
        """The pages that brought little that was new."""
        return self.exact + self.near + self.bare

    def is_suspect(self, name: str) -> bool:
        """Whether most pages brought little.

        That pages of one folder are short says little, so it has to be three quarters of them then.
        """
        if self.different < LEAST_PAGES:
            return False
        if 2 * self.fruitless <= self.different:
            return False
        return not self.is_doubtful(name) or 4 * self.fruitless >= 3 * self.different

    def is_doubtful(self, name: str) -> bool:
        """Whether it is a folder most of whose pages repeat no others."""
        return is_folder(name) and 2 * (self.exact + self.near) <= self.different


class UrlPatterns(HeavyHitters[Pattern]):
    """How many pages each pattern of URLs has, and how many of them brought little, in bounded memory."""

    def __init__(self) -> None:
        super().__init__(_MOST_PATTERNS, _MOST_BYTES)

    def count(self, url: str, kind: str, original_url: str | None = None, *, is_bare: bool = False) -> None:
        """Note a page. ``original_url`` is that of the page at another URL that it repeats, None if it repeats none.

        ``is_bare``: it has hardly a word besides what its host puts on many pages; that counts if it is ``unique``.
        Which of two equal pages comes first is chance. So a page without parameters that repeats the same one with
        parameters is no copy; the other one is.
        """
        is_copy = original_url is not None and kind in ("exact", "near")
        is_plain = is_copy and original_url is not None and _is_plain(url, original_url)
        for name in _all_patterns(url):
            row = self._row(name)
            if kind == "unchanged":
                row.unchanged += 1
            elif is_copy and not is_plain:
                self._add_copy(row, kind, url)
            elif is_bare and kind == "unique":
                row.bare += 1
                self._add_example(row, url)
        if is_plain and original_url is not None:
            for name in _all_patterns(original_url):
                known = self._rows.get(name)
                if known is None:
                    continue
                # It may have been counted as bare. No page counts twice.
                known.bare -= known.bare > 0
                # Of a row that was given up meanwhile the page itself may not be counted.
                if known.fruitless + known.unchanged < known.calls:
                    self._add_copy(known, kind, original_url)

    def _add_copy(self, row: Pattern, kind: str, url: str) -> None:
        if kind == "exact":
            row.exact += 1
        else:
            row.near += 1
        self._add_example(row, url)

    def _add_example(self, row: Pattern, url: str) -> None:
        if len(row.examples) < MOST_EXAMPLES:
            shown = shown_url(url, _EXAMPLE_CHARS)
            if shown not in row.examples:
                row.examples.append(shown)
                self._add_text(row, shown)

    def _make(self, name: str) -> Pattern:
        return Pattern()

    def merge(self, other: UrlPatterns) -> None:
        """Add what another one counted, over the bounds if need be."""
        for name, row in other:
            ours = self._rows.get(name)
            if ours is None:
                ours = Pattern()
                self._put(name, ours)
            ours.calls += row.calls
            ours.exact += row.exact
            ours.near += row.near
            ours.bare += row.bare
            ours.unchanged += row.unchanged
            new = [example for example in row.examples if example not in ours.examples]
            ours.examples = (ours.examples + new)[:MOST_EXAMPLES]

    def traps(self, most: int) -> list[Trap]:
        """Patterns of at least 20 pages, more than half of which brought little; those with most of them first.

        Where one pattern is part of another, the narrower one is told, unless the wider one has many more such pages.
        Folders whose pages are short and no copies come last.
        """
        found = {name: row for name, row in self if row.is_suspect(name)}
        above = {name: _above(name, row, found) for name, row in found.items()}
        dropped = {
            wider
            for name, row in found.items()
            for wider in above[name]
            if found[wider].fruitless <= _WIDER * row.fruitless
        }
        dropped |= {name for name in found if any(wider not in dropped for wider in above[name])}
        ranked = sorted(
            (item for item in found.items() if item[0] not in dropped),
            key=lambda item: (item[1].is_doubtful(item[0]), -item[1].fruitless, item[0]),
        )
        return [
            Trap(
                name,
                row.different,
                row.exact,
                row.near,
                row.bare,
                round(row.fruitless / row.different, 4),
                list(row.examples),
            )
            for name, row in ranked[:most]
        ]

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, within the bounds."""
        self.cut()
        rows = [
            [name, row.calls, row.missed, row.exact, row.near, row.unchanged, row.bare, *row.examples]
            for name, row in self
        ]
        return {"floor": self.floor, "rows": rows}

    def take(self, data: object) -> None:
        """Fill this empty one with what :meth:`as_dict` gave. Raises :class:`ValueError` for anything else."""
        plain = dict_of(data)
        for item in list_of(plain.get("rows")):
            name, calls, missed, exact, near, unchanged, *rest = list_of(item)
            row = Pattern()
            row.calls, row.missed = count_of(calls), count_of(missed)
            row.exact, row.near, row.unchanged = map(count_of, (exact, near, unchanged))
            if rest and not isinstance(rest[0], str):
                row.bare = count_of(rest.pop(0))
            if row.fruitless + row.unchanged > row.calls:
                raise ValueError("a pattern with more copies than pages")
            self._take(name, row)
            for example in rest[:MOST_EXAMPLES]:
                self._add_example(row, text_of(example))
        self.floor = count_of(plain.get("floor"))
        self.cut()


def _is_plain(url: str, original_url: str) -> bool:
    """Whether a URL is another one without its parameters.

    >>> _is_plain("http://a/b", "http://a/b?sid=1"), _is_plain("http://a/b", "http://a/c?sid=1")
    (True, False)
    """
    rest = original_url[len(url) : len(url) + 1]
    return rest in ("?", ";") and original_url.startswith(url) and "?" not in url and ";" not in url


def _all_patterns(url: str) -> tuple[str, ...]:
    """The patterns of a URL, the narrowest one first."""
    whole, path, folder, wide = patterns_of(url)
    # A URL may look like the pattern of others, and counts once all the same.
    return tuple(dict.fromkeys(one for one in (whole, path, folder, *wide) if one is not None))


def _above(name: str, row: Pattern, known: Mapping[str, Pattern]) -> list[str]:
    """The wider ones of the known patterns that a pattern is part of, as its examples show."""
    found = [patterns_of(example) for example in row.examples]
    if not found:
        return []
    whole, path, folder, wide = found[0]
    wider: list[str | None] = []
    if name == whole:
        wider = [path, folder, *wide]
    elif name in (path, folder):
        wider = [one for one in wide if one in known and known[one].fruitless > row.fruitless]
    elif (
        path is not None
        and path in known
        and all(one.path == path for one in found)
        and known[path].fruitless >= row.fruitless
    ):
        # A parameter of one path alone.
        wider = [path]
    return [one for one in wider if one is not None and one in known]
