"""The pattern of a URL: a form that many pages of one kind have in common.

``{n}`` replaces a number, ``{id}`` a long hexadecimal number or a UUID, ``{token}`` another long random string,
``{value}`` the value of a parameter, ``{repeated}`` parts of the path that are repeated, and ``{name}`` any page of a
folder.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from .texts import harmless, host_and_rest

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_CHARS = 1_000
_MOST_PARTS = 12
_MOST_PART_CHARS = 60
_MOST_NAMES = 8
_MOST_PAIRS = 20
_LONGEST_PERIOD = 4
_REPEATED = "{repeated}"
_NAME = "{name}"

_SEPARATORS = re.compile(r"[&;]")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.,:-][0-9]+)*")
_HEX = re.compile(
    r"(?=[^0-9]*[0-9])(?=[^a-f]*[a-f])[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)
_TOKEN = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_~%+=.()-]{24,}")
_WORDS = re.compile(r"[a-z]+(?:[-_][a-z0-9]+)+", re.IGNORECASE)


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
    path, _, beside = path.partition(";")
    parts = path[1:].split("/", 200)
    repeats = len(set(parts)) < len(parts)
    wide = [f"{host}/…/{{repeated}}/…"] if repeats and _has_repeated(parts) else []
    shown_parts = _path(_without_repeats(parts) if repeats else parts)
    place = f"{host}/{'/'.join(shown_parts)}"
    pairs = [*_pairs(query, ""), *_pairs(beside, ";")] if query or beside else []
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


def _path(parts: list[str]) -> list[str]:
    shown = [_part(part) for part in parts[:_MOST_PARTS]]
    return [*shown, "…"] if len(parts) > _MOST_PARTS else shown


def _has_repeated(parts: Sequence[str]) -> bool:
    # Equal numbers are ignored: they may be a day and a month.
    words = [part for part in parts if part and not part.isdigit()]
    return len(set(words)) < len(words)


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


def _without_repeats(parts: list[str]) -> list[str]:
    """The parts of a path, with {repeated} in place of immediate repetitions of up to four parts.

    >>> _without_repeats("a/b/a/b/a/b/c".split("/"))
    ['a', 'b', '{repeated}', 'c']
    """
    kept: list[str] = []
    place = 0
    while place < len(parts):
        period = _period(parts, place)
        kept += parts[place : place + max(period, 1)]
        place += max(period, 1)
        if period:
            block = parts[place - period : place]
            while parts[place : place + period] == block:
                place += period
            kept.append(_REPEATED)
    return kept


def _period(parts: Sequence[str], place: int) -> int:
    """How many parts from *place* on are repeated immediately after; 0 if none are."""
    for period in range(1, _LONGEST_PERIOD + 1):
        block = parts[place : place + period]
        # Empty parts do not count as a repetition, and two equal numbers may be a day and a month.
        if (
            block == parts[place + period : place + 2 * period]
            and any(block)
            and not all(part.isdigit() for part in block)
        ):
            return period
    return 0
