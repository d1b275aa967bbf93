"""URL patterns, and which of them have little new content on most of their pages.

A pattern is a form that the URLs of many pages of one kind have in common. ``{n}`` replaces a number, ``{id}`` a long
hexadecimal number or a UUID, ``{token}`` another long random string, ``{value}`` the value of a parameter, ``{repeated}``
parts of the path that are repeated, and ``{name}`` any page of a folder.

Pages with little new content duplicate others, or have hardly any text besides the template of their host. Their pattern
may be a trap: an endless calendar, a session in the URL, filters in any combination, growing relative links. It may also
be harmless, such as printer versions, or empty pages of generated manuals.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from .tallies import HeavyHitters, Row
from .wording import harmless, host_and_rest, shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .figures import Trap

LEAST_PAGES = 20

# The columns of a row.
_EXACT, _NEAR, _UNCHANGED, _BARE = range(4)
_MOST_PATTERNS = 400
_MOST_BYTES = 40_000
_EXAMPLE_CHARS = 500
# A wider pattern is reported instead of a narrower one only if it has this many times more such pages.
_WIDER = 1.2

_READ_CHARS = 1_000
_MOST_PARTS = 12
_MOST_PART_CHARS = 60
_MOST_NAMES = 8
_MOST_PAIRS = 20
_REPEATED = "{repeated}"
_NAME = "{name}"

_SEPARATORS = re.compile(r"[&;]")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.,:-][0-9]+)*")
_HEX = re.compile(
    r"(?=[^0-9]*[0-9])(?=[^a-f]*[a-f])[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)
_TOKEN = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_~%+=.()-]{24,}")
# One to four parts of a path, not only numbers, that are repeated immediately.
_REPETITIONS = re.compile(r"(?<![^/])((?:[0-9]*+/){0,3}?[0-9]*+[^/0-9][^/]*+/(?:[^/]*+/){0,3}?)\1+")
_WORDS = re.compile(r"[a-z]+(?:[-_][a-z0-9]+)+", re.IGNORECASE)


class Pattern(Row):
    """The pages of one pattern.

    ``exact`` and ``near`` count copies of pages at other URLs, ``bare`` new pages that have hardly any text besides the
    template of their host. ``examples`` are URLs of these three kinds.
    """

    __slots__ = ()

    most_examples = 3

    exact = property(lambda self: self.counts[_EXACT])
    near = property(lambda self: self.counts[_NEAR])
    bare = property(lambda self: self.counts[_BARE])

    def __init__(self) -> None:
        super().__init__(4)

    @property
    def different(self) -> int:
        """The number of pages without unchanged ones, which an earlier visit has already judged."""
        return self.calls - self.counts[_UNCHANGED]

    @property
    def fruitless(self) -> int:
        """The number of pages with little new content."""
        return sum(self.counts) - self.counts[_UNCHANGED]

    def is_suspect(self, name: str) -> bool:
        """Whether most pages had little new content.

        Short pages in one folder are common, so for a doubtful folder three quarters of the pages are required.
        """
        if self.different < LEAST_PAGES or 2 * self.fruitless <= self.different:
            return False
        return not self.is_doubtful(name) or 4 * self.fruitless >= 3 * self.different

    def is_doubtful(self, name: str) -> bool:
        """Whether it is a folder in which most pages are not copies."""
        return is_folder(name) and 2 * (self.exact + self.near) <= self.different


class UrlPatterns(HeavyHitters[Pattern]):
    """Counts, for each URL pattern, the pages and those with little new content, in bounded memory."""

    def __init__(self) -> None:
        super().__init__(Pattern, _MOST_PATTERNS, _MOST_BYTES)

    def count(self, url: str, kind: str, original_url: str | None = None, *, is_bare: bool = False) -> None:
        """Record a page. ``original_url`` is the URL of the page that it duplicates, None if there is none.

        ``is_bare``: the page has hardly any text besides the template of its host; this counts only if it is ``unique``.
        The order in which two equal pages are read is random. If a page without parameters duplicates the same page with
        parameters, the one with parameters therefore counts as the copy.
        """
        copied = original_url if kind in ("exact", "near") else None
        is_plain = copied is not None and _is_plain(url, copied)
        column: int | None = None
        if kind == "unchanged":
            column = _UNCHANGED
        elif copied is not None and not is_plain:
            column = _EXACT if kind == "exact" else _NEAR
        elif is_bare and kind == "unique":
            column = _BARE
        for name in _all_patterns(url):
            row = self._row(name)
            if column is not None:
                self._count(row, column, url)
        if copied is None or not is_plain:
            return
        for name in _all_patterns(copied):
            known = self._rows.get(name)
            if known is None:
                continue
            # It may have been counted as bare; a page must not count twice.
            known.counts[_BARE] -= known.bare > 0
            # If the row was removed and created again meanwhile, the page itself may not be counted.
            if sum(known.counts) < known.calls:
                self._count(known, _EXACT if kind == "exact" else _NEAR, copied)

    def _count(self, row: Pattern, column: int, url: str) -> None:
        row.counts[column] += 1
        if column != _UNCHANGED and len(row.examples) < row.most_examples:
            self._add_example(row, shown_url(url, _EXAMPLE_CHARS))

    def traps(self, most: int) -> list[Trap]:
        """Patterns of at least 20 pages, most of which had little new content; those with the most such pages first.

        If one pattern includes another, only the narrower one is reported, unless the wider one has many more such pages.
        Folders whose pages are short but not copies come last.
        """
        from .figures import Trap

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
                pattern=name,
                pages=row.different,
                exact=row.exact,
                near=row.near,
                template=row.bare,
                share=round(row.fruitless / row.different, 4),
                examples=list(row.examples),
            )
            for name, row in ranked[:most]
        ]

    def _read(self, values: list[Any]) -> tuple[str, Pattern, list[list[Any]]]:
        name, row, examples = super()._read(values)
        if sum(row.counts) > row.calls:
            raise ValueError("a pattern with more copies than pages")
        return name, row, examples


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


class Patterns(NamedTuple):
    """The patterns of a URL: its path with the names of its parameters, and wider patterns.

    ``path``: all pages at the path, with any parameters; None if the URL has fewer than three. ``folder``: all pages in the
    same folder; None if the URL has parameters. ``wide``: for each parameter, all pages of the host that have it, at any
    path; and all pages whose path has a repeated part.
    """

    whole: str
    path: str | None
    folder: str | None
    wide: tuple[str, ...]


def patterns_of(url: str) -> Patterns:
    """The patterns of a URL. Only the first 1,000 characters after the host are used.

    >>> patterns_of("https://example.com/calendar/2026/11?month=12").whole
    'example.com/calendar/{n}/{n}?month={n}'
    >>> patterns_of("https://example.com/a?x=1").wide
    ('example.com/…?x={n}',)
    >>> patterns_of("https://example.com/a/b/a/c").folder, patterns_of("https://example.com/a/b/a/c").wide
    ('example.com/a/b/a/{name}', ('example.com/…/{repeated}/…',))
    """
    host, rest = host_and_rest(url)
    path, _, query = rest[:_READ_CHARS].partition("#")[0].partition("?")
    # The part after a semicolon is a parameter, too: ;jsessionid=12AB.
    path, _, path_parameters = path.partition(";")
    path, wide = path[1:], []
    parts = path.split("/")
    if len(set(parts)) < len(parts):
        # Equal numbers are ignored: they may be a day and a month.
        words = [part for part in parts if part and not part.isdigit()]
        if len(set(words)) < len(words):
            wide.append(f"{host}/…/{_REPEATED}/…")
        parts = _REPETITIONS.sub(rf"\1{_REPEATED}/", f"{path}/")[:-1].split("/")
    shown_parts = [*map(_part, parts[:_MOST_PARTS]), *(["…"] if len(parts) > _MOST_PARTS else [])]
    place = f"{host}/{'/'.join(shown_parts)}"
    pairs = [*_pairs(query, ""), *_pairs(path_parameters, ";")]
    if not pairs:
        return Patterns(place, None, _folder(host, shown_parts), tuple(wide))
    kinds: dict[str, str] = {}
    for name, value in pairs:
        kind = "{n}" if _NUMBER.fullmatch(value) else "{value}"
        kinds[name] = kind if kinds.get(name, kind) == kind else "{value}"
    # Sorted, since generated links may have any order of parameters.
    names = sorted(kinds)
    shown = list(dict.fromkeys(_parameter(name, kinds[name]) for name in names[:_MOST_NAMES]))
    more = "&…" if len(names) > _MOST_NAMES else ""
    whole = f"{place}?{'&'.join(shown)}{more}"
    return Patterns(
        whole,
        f"{place}?…" if len(names) > 2 else None,
        None,
        (*(f"{host}/…?{parameter}" for parameter in shown), *wide),
    )


def _pairs(query: str, mark: str) -> list[tuple[str, str]]:
    found = []
    for item in _SEPARATORS.split(query, _MOST_PAIRS)[:_MOST_PAIRS]:
        name, _, value = item.partition("=")
        if item:
            found.append((mark + name, value))
    return found


def _parameter(name: str, kind: str) -> str:
    if not name.isalpha():
        name = _DIGITS.sub("{n}", harmless(name, _MOST_PART_CHARS))
    return f"{name[:_MOST_PART_CHARS]}={kind}"


def is_folder(pattern: str) -> bool:
    """Whether a pattern means the pages of a folder.

    >>> is_folder("example.com/a/{name}"), is_folder("example.com/{n}")
    (True, False)
    """
    return pattern.endswith((_NAME, f"{_NAME}/"))


def _folder(host: str, parts: Sequence[str]) -> str | None:
    # The path may end with a slash.
    end = 1 if parts[-1] or len(parts) == 1 else 2
    if parts[-end] in ("", "…", _REPEATED):
        return None
    return "/".join([host, *parts[:-end], _NAME, *([""] if end == 2 else [])])


def _part(part: str) -> str:
    """One part of a path, with numbers and random strings replaced.

    >>> [_part(part) for part in ("news", "page12.html", "3f2a90bc77", "2026-11-28", "ten-years-after-9-11-and-more-of-it")]
    ['news', 'page{n}.html', '{id}', '{n}-{n}-{n}', 'ten-years-after-{n}-{n}-and-more-of-it']
    """
    if not part or (part.isalpha() and len(part) <= _MOST_PART_CHARS and part.isascii()):
        return part
    if _HEX.fullmatch(part) and not part.isdigit():
        return "{id}"
    if len(part) >= 24 and not _WORDS.match(part) and _TOKEN.fullmatch(part):
        return "{token}"
    return _DIGITS.sub("{n}", harmless(part, _MOST_PART_CHARS))
