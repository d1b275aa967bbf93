"""What URL rules would have done in a crawl: the downloads that they save, and the texts that they lose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .rule_evidence import Tally, evaluate, pages_of, touched
from .rules import UrlRules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .rule_evidence import PageFact, UrlPage
    from .rules import UrlRule


@dataclass(frozen=True, slots=True)
class LostPage:
    """A page whose text would have been lost, the page that would have been requested instead, and the rules."""

    url: str
    requested: str
    text: bytes
    rules: tuple[UrlRule, ...]


@dataclass(slots=True)
class RuleCheck:
    """``rules`` has the result of each rule by itself; the other fields are the result of all rules together.

    ``pages`` is the number of URLs, ``filtered`` that of those filtered. ``saved`` and ``saved_bytes`` are the filtered pages with the text of the page that would have been requested.
    """

    rules: list[tuple[UrlRule, Tally]]
    pages: int = 0
    filtered: int = 0
    saved: int = 0
    saved_bytes: int = 0
    lost: list[LostPage] = field(default_factory=list)


def check_rules(rules: UrlRules, crawls: Iterable[Iterable[PageFact]]) -> RuleCheck:
    """Apply rules to the pages of each crawl, in the order in which they were requested."""
    result = RuleCheck([(rule, Tally()) for rule in rules.rules if rule.enabled])
    for facts in crawls:
        pages = pages_of(facts)
        _check(rules, pages.values(), result)
        for rule, tally in result.rules:
            tally += evaluate(UrlRules([rule]), touched((rule,), pages), pages).get("", Tally())
    return result


def _check(rules: UrlRules, pages: Iterable[UrlPage], result: RuleCheck) -> None:
    requested: dict[str, tuple[UrlPage, tuple[UrlRule, ...]]] = {}
    filtered: list[tuple[UrlPage, UrlPage, tuple[UrlRule, ...]]] = []
    for page in pages:
        result.pages += 1
        identity, applied = rules.identity(page.url)
        first, its_rules = requested.setdefault(identity, (page, applied))
        if first is not page:
            filtered.append((page, first, tuple(dict.fromkeys((*applied, *its_rules)))))
    texts = {page.text for page, _ in requested.values()}
    result.filtered += len(filtered)
    for page, first, applied in filtered:
        is_same = page.has_text_of(first)
        if is_same:
            result.saved += 1
            result.saved_bytes += page.size_bytes
        elif is_same is False and page.text not in texts:
            assert page.text is not None
            result.lost.append(LostPage(page.url, first.url, page.text, applied))
            texts.add(page.text)
