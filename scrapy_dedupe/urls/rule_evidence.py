"""Evidence for URL rules: the pages of a crawl whose URLs a rule makes equal, and whether their texts are equal."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .rules import RuleEvidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from .rules import UrlRule, UrlRules

_MOST_EXAMPLES: Final = 3
# One-sided 95 %.
_ALPHA: Final = 0.05


@dataclass(frozen=True, slots=True)
class PageFact:
    """A page of a crawl: its URL, the key of its text, and its size in bytes.

    ``family`` is the key of the text that the page's text is near to, its own for a text that is near to none. It is
    empty if ``text`` is only the key of the payload: pages with other payloads may then have the same text.
    """

    url: str
    text: bytes
    family: bytes
    size_bytes: int = 0


def lower_bound(successes: int, trials: int, alpha: float = _ALPHA) -> float:
    """The one-sided lower confidence bound of a share, of Wilson (1927).

    >>> round(lower_bound(200, 200), 4), lower_bound(0, 0)
    (0.9867, 0.0)
    """
    if not trials:
        return 0.0
    z = _Z if alpha == _ALPHA else _quantile(1 - alpha)
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (share + z * z / (2 * trials) - spread) / (1 + z * z / trials))


def _quantile(share: float) -> float:
    from statistics import NormalDist  # imported when used: it is rarely needed

    return NormalDist().inv_cdf(share)


_Z: Final = _quantile(1 - _ALPHA)


@dataclass(slots=True)
class UrlPage:
    """A URL with its text. ``text`` is None if the page changes at every visit."""

    url: str
    text: bytes | None
    family: bytes
    size_bytes: int

    def has_text_of(self, other: UrlPage) -> bool | None:
        """Whether both pages have the same text; None if nothing can be said."""
        if self.text is None or other.text is None:
            return None
        if self.text == other.text:
            return True
        return False if self.family and other.family and self.family != other.family else None


def pages_of(facts: Iterable[PageFact]) -> dict[str, UrlPage]:
    """The pages by URL, in the order in which they were first seen."""
    pages: dict[str, UrlPage] = {}
    for fact in facts:
        known = pages.get(fact.url)
        if known is None:
            pages[fact.url] = UrlPage(fact.url, fact.text, fact.family, fact.size_bytes)
        elif known.text != fact.text:
            known.text = None
    return pages


@dataclass(slots=True)
class Tally:
    """The pairs for and against a rule, and what it would have saved."""

    pairs_for: int = 0
    pairs_against: int = 0
    downloads: int = 0
    size_bytes: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def is_enough(self, min_pairs: int, min_share: float) -> bool:
        return self.pairs_for >= min_pairs and self.bound >= min_share

    @property
    def bound(self) -> float:
        return lower_bound(self.pairs_for, self.pairs_for + self.pairs_against)

    def evidence(self) -> RuleEvidence:
        examples = tuple(self.examples)
        return RuleEvidence(
            self.pairs_for, self.pairs_against, self.bound, self.downloads, self.size_bytes, examples
        )

    @property
    def precision(self) -> float | None:
        """The share of pairs for the rule; None without any pair."""
        pairs = self.pairs_for + self.pairs_against
        return self.pairs_for / pairs if pairs else None

    def __iadd__(self, other: Tally) -> Self:
        self.pairs_for += other.pairs_for
        self.pairs_against += other.pairs_against
        self.downloads += other.downloads
        self.size_bytes += other.size_bytes
        self.examples = [*self.examples, *other.examples][:_MOST_EXAMPLES]
        return self

    def add(self, kept: UrlPage, other: UrlPage) -> None:
        is_same = kept.has_text_of(other)
        if is_same:
            self.pairs_for += 1
            self.downloads += 1
            self.size_bytes += other.size_bytes
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append((kept.url, other.url))
        elif is_same is False:
            self.pairs_against += 1


def evaluate(
    rules: UrlRules,
    pages: Iterable[UrlPage],
    known: dict[str, UrlPage],
    part: Callable[[str], str] | None = None,
) -> dict[str, Tally]:
    """The tally of *rules* as a whole, for each *part* of the URLs.

    ``known`` are all pages by URL: one of them may already have the URL after the rules.
    """
    kept: dict[tuple[str, str], UrlPage] = {}
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for page in pages:
        identity, applied = rules.identity(page.url)
        if not applied:
            continue
        name = "" if part is None else part(page.url)
        first = kept.get((name, identity)) or known.get(identity)
        if first is None or first is page:
            kept[name, identity] = page
        else:
            # A page that changes at every visit cannot be compared.
            if first.text is None:
                kept[name, identity] = page
            tallies[name].add(first, page)
    return tallies


def touched(rules: Sequence[UrlRule], pages: dict[str, UrlPage]) -> Iterator[UrlPage]:
    """The pages whose URLs may be changed by *rules*: a quick test."""
    names = [rule.name for rule in rules if rule.name and rule.name.isascii() and rule.name.isalnum()]
    if len(names) < len(rules):
        return iter(pages.values())
    return (page for page in pages.values() if any(name in page.url for name in names))
