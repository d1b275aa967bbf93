"""Learns URL rules from the pages of a crawl: which differences between URLs did not change the text.

Bar-Yossef, Keidar and Schonfeld (WWW 2007) call such pairs DUST: different URLs with similar text. The method here has
three steps, each linear in the number of URLs:

1.  Candidates: URLs with the same text are compared with one another, and their differences are candidates for rules.
2.  Evaluation: each candidate is applied to all URLs of its host. URLs that become equal are a pair for the rule if
    their texts are equal, and a pair against it if the texts really differ. A pair is no evidence if one of its pages
    changes at every visit, or if the texts are near.
3.  Narrowing: a candidate with too many pairs against it is evaluated again for each value of its parameter, and for
    each first segment of the path.

A rule is proposed if it has enough pairs, and if the lower bound of the share of pairs for it is high enough. At the end
all proposed rules are applied together; if they make URLs with different texts equal, rules are withdrawn.

Links with ``rel=canonical`` only nominate candidates: sites often set them wrongly, for example from each page of a list to
its first page. A candidate with enough such links, but too few pairs, is proposed as a rule that is not enabled, unless
there is a pair against it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from .differences import candidates, parameters_of, split_url
from .rule_evidence import Tally, evaluate, lower_bound, pages_of, touched
from .rules import KINDS, UrlRule, UrlRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .rule_evidence import PageFact, UrlPage

# Some texts, such as error pages with status 200, have very many URLs.
_MOST_PAIRS_PER_TEXT: Final = 50
_MOST_CANDIDATES: Final = 400
_MOST_VALUES: Final = 100


def learn(
    facts: Iterable[PageFact],
    nominated: Counter[tuple[UrlRule, ...]] | None = None,
    *,
    min_pairs: int = 10,
    min_share: float = 0.98,
) -> list[UrlRule]:
    """The rules that explain the pages, sorted by the downloads that they save; then rules that are not enabled.

    ``nominated`` are the candidates of ``rel=canonical`` links (:func:`candidates`), with the number of links.
    """
    nominated = Counter() if nominated is None else nominated
    pages = pages_of(facts)
    by_text: defaultdict[bytes, list[str]] = defaultdict(list)
    for page in pages.values():
        if page.text is not None:
            by_text[page.text].append(page.url)
    support = Counter(_candidates(urls for urls in by_text.values() if len(urls) > 1))
    del by_text
    support.update(nominated)
    hosts: defaultdict[str, dict[str, UrlPage]] = defaultdict(dict)
    for url, page in pages.items():
        split = split_url(url)
        hosts["" if split is None else split.host][url] = page
    all_hosts = dict(hosts)
    accepted = _aliases(support, pages, hosts, min_pairs, min_share)
    if accepted:
        # The other rules are learnt on the hosts that remain.
        hosts, support = _merged(hosts, accepted), _renamed(support, accepted)
        nominated = _renamed(nominated, accepted)
    support_of: defaultdict[str, list[tuple[int, tuple[UrlRule, ...]]]] = defaultdict(list)
    for rules, count in support.items():
        if count >= min_pairs and rules[0].kind != "host-alias":
            support_of[rules[0].host].append((count, rules))
    for host, members in hosts.items():
        accepted += _rules_of_host(members, support_of[host], min_pairs, min_share)
    found = _without_conflicts(accepted, all_hosts, min_share)
    return found + list(_not_enabled(nominated, found, hosts, pages, min_pairs))


def _not_enabled(
    nominated: Counter[tuple[UrlRule, ...]],
    accepted: list[UrlRule],
    hosts: dict[str, dict[str, UrlPage]],
    pages: dict[str, UrlPage],
    min_pairs: int,
) -> Iterator[UrlRule]:
    """The nominated rules for which there are too few pairs, and none against them."""
    known = {(rule.kind, rule.host, rule.name) for rule in accepted}
    for rules, links in sorted(nominated.items(), key=lambda item: (-item[1], item[0][0].key())):
        rule = rules[0]
        if links < min_pairs or len(rules) > 1 or (rule.kind, rule.host, rule.name) in known:
            continue
        members = hosts.get(rule.host, {})
        known_pages = pages if rule.kind == "host-alias" else members
        tally = evaluate(UrlRules(rules), touched(rules, members), known_pages).get("", Tally())
        if not tally.pairs_against:
            yield replace(rule, enabled=False, evidence=replace(tally.evidence(), canonical_links=links))


def _candidates(groups: Iterable[Sequence[str]]) -> Iterator[tuple[UrlRule, ...]]:
    """The differences between URLs of the same text."""
    for urls in groups:
        # Neighbours in this order differ in little.
        in_order = sorted(urls)[: _MOST_PAIRS_PER_TEXT + 1]
        for one, other in pairwise(in_order):
            yield from candidates(one, other)
        if len(in_order) > 2:
            shortest = min(in_order, key=lambda url: (len(url), url))
            for other in in_order:
                if other != shortest:
                    yield from candidates(shortest, other)


def _rules_of_host(
    pages: dict[str, UrlPage],
    found: list[tuple[int, tuple[UrlRule, ...]]],
    min_pairs: int,
    min_share: float,
) -> list[UrlRule]:
    """The rules of a host. *found* are its candidates with the number of pairs that suggest them."""
    # The best supported first; single rules before sets of rules.
    found.sort(key=lambda item: (len(item[1]), -item[0], [rule.key() for rule in item[1]]))
    candidates = [rules for _, rules in found[:_MOST_CANDIDATES]]
    accepted: list[UrlRule] = []
    rejected: set[UrlRule] = set()
    # Rules that are replaced by rules for some values or paths.
    narrowed: set[UrlRule] = set()
    while candidates:
        new: list[UrlRule] = []
        left: dict[tuple[UrlRule, ...], None] = {}
        for rules in candidates:
            known = {rule.key() for rule in (*accepted, *new)}
            rules = tuple(rule for rule in rules if rule.key() not in known and rule not in narrowed)
            if not rules or not rejected.isdisjoint(rules):
                continue
            tally = evaluate(UrlRules(rules), touched(rules, pages), pages).get("", Tally())
            if tally.is_enough(min_pairs, min_share):
                new += [replace(rule, evidence=tally.evidence()) for rule in rules]
            elif tally.pairs_against and len(rules) == 1:
                parts = _narrowed(rules[0], pages, min_pairs, min_share)
                (narrowed if parts else rejected).update(rules)
                new += parts
            else:
                left[rules] = None
        if not new:
            break
        accepted += new
        # Under the rules so far, URLs that also differ in something else become pairs for other rules.
        pages, candidates = _reduced(pages, new), list(left)
    return accepted


def _reduced(pages: dict[str, UrlPage], rules: Sequence[UrlRule]) -> dict[str, UrlPage]:
    """The pages by their identity under *rules*; of several with one identity, the first that does not change."""
    compiled = UrlRules(rules)
    reduced: dict[str, UrlPage] = {}
    for page in pages.values():
        identity = compiled.identity(page.url)[0]
        if identity not in reduced or reduced[identity].text is None:
            reduced[identity] = page if identity == page.url else replace(page, url=identity)
    return reduced


def _narrowed(rule: UrlRule, pages: dict[str, UrlPage], min_pairs: int, min_share: float) -> list[UrlRule]:
    """The rule for those values of its parameter, or else for those parts of the site, where it holds."""
    members_of_rule = list(touched((rule,), pages))
    if rule.kind == "ignore-parameter":

        def value_of(url: str) -> str:
            query = url.partition("#")[0].partition("?")[2]
            return next((value for name, value in parameters_of(query) if name == rule.name), "")

        by_value: defaultdict[str, list[UrlPage]] = defaultdict(list)
        for page in members_of_rule:
            by_value[value_of(page.url)].append(page)
        tallies = {
            value: evaluate(UrlRules([replace(rule, values=(value,))]), members, pages).get("", Tally())
            for value, members in sorted(by_value.items(), key=lambda item: -len(item[1]))[:_MOST_VALUES]
        }
        good, total = _pooled(tallies, min_pairs, min_share)
        if good:
            return [replace(rule, values=tuple(good), evidence=total.evidence())]
    tallies = evaluate(UrlRules([rule]), members_of_rule, pages, _first_segment)
    tallies.pop("/", None)
    good, total = _pooled(tallies, min_pairs, min_share)
    return [replace(rule, path=path, evidence=tallies[path].evidence()) for path in good]


def _pooled(tallies: dict[str, Tally], min_pairs: int, min_share: float) -> tuple[list[str], Tally]:
    """The parts in which a rule holds, if their pairs together are enough; and the sum of their tallies."""
    good, total = [], Tally()
    for name, tally in sorted(tallies.items()):
        pairs = tally.pairs_for + tally.pairs_against
        if tally.pairs_for >= min_pairs and tally.pairs_for >= min_share * pairs:
            good.append(name)
            total += tally
    return (good, total) if total.bound >= min_share else ([], total)


def _first_segment(url: str) -> str:
    split = split_url(url)
    first = "" if split is None else split.path[1:].partition("/")
    return f"/{first[0]}/" if first and first[1] else "/"


# Aliases of hosts


def _aliases(
    support: Counter[tuple[UrlRule, ...]],
    pages: dict[str, UrlPage],
    hosts: dict[str, dict[str, UrlPage]],
    min_pairs: int,
    min_share: float,
) -> list[UrlRule]:
    accepted: dict[str, UrlRule] = {}
    targets: set[str] = set()
    single = [(count, rules[0]) for rules, count in support.items() if len(rules) == 1]
    for _, rule in sorted(single, key=lambda item: (-item[0], item[1].key())):
        if rule.kind != "host-alias" or support[rule,] < min_pairs:
            continue
        # An alias of an alias becomes an alias of the host itself.
        target = accepted[rule.name].name if rule.name in accepted else rule.name
        if rule.host in accepted or rule.host in targets or rule.host == target:
            continue
        alias = replace(rule, name=target)
        tally = evaluate(UrlRules([alias]), hosts[rule.host].values(), pages).get("", Tally())
        if tally.is_enough(min_pairs, min_share):
            accepted[rule.host] = replace(alias, evidence=tally.evidence())
            targets.add(target)
    return list(accepted.values())


def _merged(
    hosts: dict[str, dict[str, UrlPage]], aliases: Sequence[UrlRule]
) -> defaultdict[str, dict[str, UrlPage]]:
    names = {rule.host: rule.name for rule in aliases}
    rules = UrlRules(aliases)
    merged: defaultdict[str, dict[str, UrlPage]] = defaultdict(dict)
    for host, pages in hosts.items():
        if host not in names:
            merged[host].update(pages)
    for host, pages in hosts.items():
        if host in names:
            for url, page in pages.items():
                moved = rules.identity(url)[0]
                merged[names[host]].setdefault(moved, replace(page, url=moved))
    return merged


def _renamed(
    support: Counter[tuple[UrlRule, ...]], aliases: Sequence[UrlRule]
) -> Counter[tuple[UrlRule, ...]]:
    names = {rule.host: rule.name for rule in aliases}
    renamed: Counter[tuple[UrlRule, ...]] = Counter()
    for rules, count in support.items():
        left = tuple(
            replace(rule, host=names.get(rule.host, rule.host)) for rule in rules if rule.kind != "host-alias"
        )
        if left:
            renamed[left] += count
    return renamed


# All rules together


def _without_conflicts(
    accepted: list[UrlRule], hosts: dict[str, dict[str, UrlPage]], min_share: float
) -> list[UrlRule]:
    """The rules without conflicts on their hosts, sorted by the downloads that they save."""
    aliases = {rule.host: rule.name for rule in accepted if rule.kind == "host-alias"}
    rules_of: defaultdict[str, list[UrlRule]] = defaultdict(list)
    for rule in accepted:
        rules_of[aliases.get(rule.host, rule.host)].append(rule)
    pages_of_rules: defaultdict[str, list[UrlPage]] = defaultdict(list)
    for host, pages in hosts.items():
        pages_of_rules[aliases.get(host, host)] += pages.values()
    kept = [
        rule
        for host, rules in rules_of.items()
        for rule in _without_worst(rules, pages_of_rules[host], min_share)
    ]
    order = list(KINDS)
    return sorted(
        kept,
        key=lambda rule: (
            -(rule.evidence.downloads if rule.evidence else 0),
            order.index(rule.kind),
            rule.key(),
        ),
    )


def _without_worst(rules: list[UrlRule], pages: list[UrlPage], min_share: float) -> list[UrlRule]:
    """Withdraw rules until no two pages with really different texts have the same identity, or only few of them."""
    while rules:
        applied_rules = UrlRules(rules)
        kept: dict[str, tuple[UrlPage, tuple[UrlRule, ...]]] = {}
        pairs, blame = 0, Counter[tuple[object, ...]]()
        conflicts = 0
        for page in pages:
            identity, applied = applied_rules.identity(page.url)
            first = kept.setdefault(identity, (page, applied))
            is_same = None if first[0] is page else page.has_text_of(first[0])
            if is_same is None:
                continue
            pairs += 1
            if not is_same:
                conflicts += 1
                blame.update({rule.key() for rule in (*applied, *first[1])})
        if not conflicts or lower_bound(pairs - conflicts, pairs) >= min_share or not blame:
            break
        worst = max(blame.items(), key=lambda item: (item[1], repr(item[0])))[0]
        rules = [rule for rule in rules if rule.key() != worst]
    return rules
