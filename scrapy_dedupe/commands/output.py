"""Results of verbs as JSON, and the parts of lines that many verbs print."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

from scrapy_dedupe.reports.wording import number
from scrapy_dedupe.stores.base import Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SHOWN = 20
# Browsertrix's names.
_NAMES_OF_COUNTS = {
    "total_urls": "totalUrls",
    "dupe_urls": "dupeUrls",
    "conserved_size": "conservedSize",
    "total_crawl_size": "totalCrawlSize",
}


def as_json(value: Any) -> Any:
    """Return *value* with dataclasses as dicts.

    >>> as_json([Counts(4, 3, 20, 10)])
    [{'totalUrls': 4, 'dupeUrls': 3, 'conservedSize': 20, 'totalCrawlSize': 10}]
    """
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if not is_dataclass(value):
        return value
    names = {field.name: field.name for field in fields(value)}
    if isinstance(value, Counts):
        names = _NAMES_OF_COUNTS
    return {key: as_json(getattr(value, name)) for name, key in names.items()}


def picked(value: object, names: str) -> dict[str, Any]:
    """Return these attributes of an object, by their names."""
    return {name: getattr(value, name) for name in names.split()}


def first(items: Sequence[object], count: int | None = None, *, indent: str = "") -> Iterator[str]:
    """Yield a line for each of the first 20 items, and one with the number of others, of *count* in all.

    >>> list(first(range(100), 2_000))[18:]
    ['18', '19', '... and 1,980 more; see --json.']
    """
    yield from (f"{indent}{item}" for item in items[:_SHOWN])
    more = (len(items) if count is None else count) - _SHOWN
    if more > 0:
        yield f"{indent}... and {number(more)} more; see --json."


def listed(names: Sequence[str], shown: int = _SHOWN) -> str:
    """Return the first names, and the number of others.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {number(more)} more" if more > 0 else "")


def encodable(text: str, file: TextIO) -> str:
    """Escape characters that the file cannot encode, as Python does on stderr: file names may contain any bytes."""
    encoding = file.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def by_kind(
    findings: Sequence[Any], kinds: Mapping[str, str], sentence: Callable[[Any], str] = str
) -> Iterator[str]:
    """Yield the title and the first findings of each kind that has some, in the order of *kinds*."""
    for kind, title in kinds.items():
        if found := [sentence(finding) for finding in findings if finding.kind == kind]:
            yield f"{title[0].upper()}{title[1:]}: {number(len(found))}"
            yield from first(found, indent="  ")
