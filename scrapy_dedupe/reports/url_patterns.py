"""URL patterns, and which of them have little new content on most of their pages.

Such pages duplicate others, or have hardly any text besides the template of their host. The pattern may be a trap: an
endless calendar, a session in the URL, filters in any combination, growing relative links. It may also be harmless, such
as printer versions, or empty pages of generated manuals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .figures import Trap
from .parsing import count_of, dict_of, list_of, text_of
from .tallies import HeavyHitters, Row
from .texts import shown_url
from .url_forms import is_folder, patterns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_PAGES = 20
MOST_EXAMPLES = 3

_MOST_PATTERNS = 400
_MOST_BYTES = 40_000
_EXAMPLE_CHARS = 500
# A wider pattern is reported instead of a narrower one only if it has this many times more such pages.
_WIDER = 1.2


class Pattern(Row):
    """The pages of one pattern.

    ``exact`` and ``near`` count copies of pages at other URLs, ``bare`` new pages that have hardly any text besides the
    template of their host. ``examples`` are URLs of these three kinds.
    """

    __slots__ = ("bare", "exact", "examples", "near", "unchanged")

    def __init__(self) -> None:
        super().__init__()
        self.bare = self.exact = self.near = self.unchanged = 0
        self.examples: list[str] = []

    @property
    def different(self) -> int:
        """The number of pages without unchanged ones, which an earlier visit has already judged."""
        return self.calls - self.unchanged

    @property
    def fruitless(self) -> int:
        """The number of pages with little new content."""
        return self.exact + self.near + self.bare

    def is_suspect(self, name: str) -> bool:
        """Whether most pages had little new content.

        Short pages in one folder are common, so for a doubtful folder three quarters of the pages are required.
        """
        if self.different < LEAST_PAGES:
            return False
        if 2 * self.fruitless <= self.different:
            return False
        return not self.is_doubtful(name) or 4 * self.fruitless >= 3 * self.different

    def is_doubtful(self, name: str) -> bool:
        """Whether it is a folder in which most pages are not copies."""
        return is_folder(name) and 2 * (self.exact + self.near) <= self.different


class UrlPatterns(HeavyHitters[Pattern]):
    """Counts, for each URL pattern, the pages and those with little new content, in bounded memory."""

    def __init__(self) -> None:
        super().__init__(_MOST_PATTERNS, _MOST_BYTES)

    def count(self, url: str, kind: str, original_url: str | None = None, *, is_bare: bool = False) -> None:
        """Record a page. ``original_url`` is the URL of the page that it duplicates, None if there is none.

        ``is_bare``: the page has hardly any text besides the template of its host; this counts only if it is ``unique``.
        The order in which two equal pages are read is random. If a page without parameters duplicates the same page with
        parameters, the one with parameters therefore counts as the copy.
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
                # It may have been counted as bare; a page must not count twice.
                known.bare -= known.bare > 0
                # If the row was removed and created again meanwhile, the page itself may not be counted.
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
        """Add the counts of *other*. The result may exceed the limits."""
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
        """Patterns of at least 20 pages, most of which had little new content; those with the most such pages first.

        If one pattern includes another, only the narrower one is reported, unless the wider one has many more such pages.
        Folders whose pages are short but not copies come last.
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
        """Return the patterns as plain values, cut to the row and byte limits."""
        self.cut()
        rows = [
            [name, row.calls, row.missed, row.exact, row.near, row.unchanged, row.bare, *row.examples]
            for name, row in self
        ]
        return {"floor": self.floor, "rows": rows}

    def take(self, data: object) -> None:
        """Restore the result of :meth:`as_dict` in an empty object. Raises :class:`ValueError` for invalid data."""
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
    """Whether *url* is *original_url* without its parameters.

    >>> _is_plain("http://a/b", "http://a/b?sid=1"), _is_plain("http://a/b", "http://a/c?sid=1")
    (True, False)
    """
    rest = original_url[len(url) : len(url) + 1]
    return rest in ("?", ";") and original_url.startswith(url) and "?" not in url and ";" not in url


def _all_patterns(url: str) -> tuple[str, ...]:
    """The patterns of a URL, the narrowest one first."""
    whole, path, folder, wide = patterns_of(url)
    # A URL may look like a pattern, so the same name can occur twice; it must count once.
    return tuple(dict.fromkeys(one for one in (whole, path, folder, *wide) if one is not None))


def _above(name: str, row: Pattern, known: Mapping[str, Pattern]) -> list[str]:
    """The known patterns that are wider than this one and include it, according to its examples."""
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
        # The examples of a parameter pattern all have the same path.
        wider = [path]
    return [one for one in wider if one is not None and one in known]
