"""The largest groups of pages with the same text, identified by the URL of the page that was read first.

Pages that are unchanged since an earlier visit are excluded: otherwise a repeated crawl would count the whole site.
"""

from __future__ import annotations

from typing import Any

from .figures import DuplicateGroup, Example
from .parsing import count_of, dict_of, list_of, share_of, text_of
from .tallies import HeavyHitters, Row
from .texts import key_of, shown_url

MOST_EXAMPLES = 5

_MOST_GROUPS = 100
_MOST_BYTES = 40_000
_KINDS = ("exact", "near")


class Group(Row):
    """Pages that duplicate the page at ``url``."""

    __slots__ = ("examples", "kinds", "least", "url")

    def __init__(self, url: str = "") -> None:
        super().__init__()
        self.url = url
        self.kinds = dict.fromkeys(_KINDS, 0)
        self.least = 1.0
        self.examples: list[Example] = []


class Groups(HeavyHitters[Group]):
    """Groups of duplicates, in bounded memory."""

    def __init__(self) -> None:
        super().__init__(_MOST_GROUPS, _MOST_BYTES)

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
                group.examples.append(Example(shown, kind, similarity))
                self._add_text(group, shown)

    def _make(self, name: str) -> Group:
        return Group()

    def merge(self, other: Groups) -> None:
        """Add the groups of *other*. The result may exceed the limits."""
        for name, group in self._rows.items():
            if name not in other._rows:
                group.missed += other.floor
        for name, group in other:
            ours = self._rows.get(name)
            if ours is None:
                ours = Group(group.url)
                ours.missed = self.floor
                self._put(name, ours)
            ours.calls += group.calls
            ours.missed += group.missed
            ours.least = min(ours.least, group.least)
            for kind, pages in group.kinds.items():
                ours.kinds[kind] += pages
            known = {example.url for example in ours.examples}
            new = [example for example in group.examples if example.url not in known]
            ours.examples = (ours.examples + new)[:MOST_EXAMPLES]
        self.floor += other.floor

    def largest(self, most: int) -> list[DuplicateGroup]:
        """The largest groups, by number of pages."""
        found = sorted(self._rows.values(), key=lambda group: (-group.calls, group.url))
        return [
            DuplicateGroup(
                url=group.url,
                pages=group.calls,
                exact=group.kinds["exact"],
                near=group.kinds["near"],
                least_similarity=round(group.least, 4),
                examples=list(group.examples),
                is_bound=group.missed > 0,
            )
            for group in found[:most]
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the groups as plain values, cut to the row and byte limits."""
        self.cut()
        return {"floor": self.floor, "rows": [_plain(name, group) for name, group in self]}

    def take(self, data: object) -> None:
        """Restore the result of :meth:`as_dict` in an empty object. Raises :class:`ValueError` for invalid data."""
        plain = dict_of(data)
        for item in list_of(plain.get("rows")):
            key, url, missed, least, *rest = list_of(item)
            examples = [value for value in rest if isinstance(value, list)]
            # Older data may have a count of unchanged pages before these two.
            *_, exact, near = (value for value in rest if not isinstance(value, list))
            group = Group(text_of(url))
            group.missed, group.least = count_of(missed), share_of(least)
            group.kinds = dict(zip(_KINDS, map(count_of, (exact, near)), strict=True))
            group.calls = sum(group.kinds.values())
            if not group.calls:
                continue
            for example in examples[:MOST_EXAMPLES]:
                group.examples.append(_example(list_of(example)))
                self._add_text(group, group.examples[-1].url)
            self._take(key or url, group)
            if key:
                self._add_text(group, group.url)
        self.floor = count_of(plain.get("floor"))
        self.cut()


def _plain(name: str, group: Group) -> list[Any]:
    key = None if name == group.url else name
    examples = [[example.url, example.kind, example.similarity] for example in group.examples]
    return [key, group.url, group.missed, group.least, *group.kinds.values(), *examples]


def _example(values: list[Any]) -> Example:
    url, kind, similarity = values
    if kind not in _KINDS:
        raise ValueError("not a kind of duplicate")
    return Example(text_of(url), kind, None if similarity is None else share_of(similarity))
