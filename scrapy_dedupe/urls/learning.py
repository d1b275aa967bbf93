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

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from .rules import KINDS, RuleEvidence, UrlRule, UrlRules, host_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

# Some texts, such as error pages with status 200, have very many URLs.
_MOST_PAIRS_PER_TEXT: Final = 50
_MOST_DIFFERENCES: Final = 4
_MOST_CANDIDATES: Final = 400
_MOST_VALUES: Final = 100
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


def learn(
    facts: Iterable[PageFact],
    nominated: Counter[tuple[UrlRule, ...]] | None = None,
    *,
    min_pairs: int = 10,
    min_share: float = 0.98,
) -> list[UrlRule]:
    """The rules that explain the pages, those that save most downloads first; then rules that are not enabled.

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
        hosts[_host(url)][url] = page
    accepted = _aliases(support, pages, hosts, min_pairs, min_share)
    if accepted:
        # The other rules are learnt on the hosts that remain.
        hosts, support = _merged(hosts, accepted), _renamed(support, accepted)
        nominated = _renamed(nominated, accepted)
    for host, members in hosts.items():
        accepted += _rules_of_host(host, members, support, min_pairs, min_share)
    rules = _without_conflicts(accepted, pages, min_share)
    return rules + list(_not_enabled(nominated, rules, pages, min_pairs))


def _not_enabled(
    nominated: Counter[tuple[UrlRule, ...]],
    accepted: list[UrlRule],
    pages: dict[str, UrlPage],
    min_pairs: int,
) -> Iterator[UrlRule]:
    """The nominated rules for which there are too few pairs, and none against them."""
    known = {(rule.kind, rule.host, rule.name) for rule in accepted}
    for rules, links in sorted(nominated.items(), key=lambda item: (-item[1], item[0][0].key())):
        rule = rules[0]
        if links < min_pairs or len(rules) > 1 or (rule.kind, rule.host, rule.name) in known:
            continue
        tally = evaluate(UrlRules(rules), touched(rules, pages), pages).get("", Tally())
        if not tally.pairs_against:
            yield replace(rule, enabled=False, evidence=replace(tally.evidence(), canonical_links=links))


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


def candidates(one: str, other: str) -> Iterator[tuple[UrlRule, ...]]:
    """The rules that two URLs of one page suggest, each by itself and all together."""
    rules = differences(one, other)
    if rules and len(rules) <= _MOST_DIFFERENCES:
        yield from ((rule,) for rule in rules)
        if len(rules) > 1:
            yield tuple(sorted(rules, key=UrlRule.key))


def differences(one: str, other: str) -> tuple[UrlRule, ...] | None:
    """The rules that together make two URLs equal; None if there are none.

    >>> [str(rule) for rule in differences("http://a.org/b/?sid=1", "https://a.org/b/index.html")]
    ['ignore-scheme on a.org', 'default-document index.html on a.org', 'ignore-parameter sid on a.org']
    """
    first, second = _split(one), _split(other)
    if first is None or second is None:
        return None
    rules: list[UrlRule] = []
    host = first.host
    if first.host != second.host:
        host, alias = sorted((first.host, second.host), key=lambda name: (len(name), name))
        rules.append(UrlRule("host-alias", alias, host))
    if first.scheme != second.scheme:
        if {first.scheme, second.scheme} != {"http", "https"}:
            return None
        rules.append(UrlRule("ignore-scheme", host))
    path_rules = _path_differences(first.path, second.path, host)
    query_rules = _query_differences(first.query, second.query, host)
    if path_rules is None or query_rules is None:
        return None
    return (*rules, *path_rules, *query_rules)


@dataclass(frozen=True, slots=True)
class _SplitUrl:
    scheme: str
    host: str
    path: str
    query: str


def _split(url: str) -> _SplitUrl | None:
    scheme, mark, rest = url.partition("#")[0].partition("://")
    if not mark:
        return None
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    return _SplitUrl(scheme, host_of(scheme, authority), slash + path or "/", query)


def _host(url: str) -> str:
    split = _split(url)
    return "" if split is None else split.host


def _path_differences(one: str, other: str, host: str) -> list[UrlRule] | None:
    rules: list[UrlRule] = []
    if one != other and (";" in one or ";" in other):
        names = _path_parameters(one) ^ _path_parameters(other)
        for name, _ in sorted(names):
            rule = UrlRule("ignore-path-parameter", host, name)
            if rule not in rules:
                rules.append(rule)
        one, other = _applied(one, rules), _applied(other, rules)
    if one != other and ("//" in one) != ("//" in other):
        rules.append(UrlRule("collapse-slashes", host))
        one, other = _applied(one, rules), _applied(other, rules)
    if one != other and one.lower() == other.lower():
        return [*rules, UrlRule("lowercase-path", host)]
    if one == other:
        return rules
    more, less = one.split("/"), other.split("/")
    if len(more) < len(less):
        more, less = less, more
    found = _segment_differences(more, less, host)
    return None if found is None else rules + found


def _segment_differences(more: list[str], less: list[str], host: str) -> list[UrlRule] | None:
    if len(more) == len(less):
        if more[:-1] != less[:-1]:
            return None
        longer, shorter = sorted((more[-1], less[-1]), key=len, reverse=True)
        if not shorter:
            return [UrlRule("default-document", host, longer)]
        stem, dot, suffix = longer.rpartition(".")
        if dot and shorter.startswith(stem) and stem:
            rest = shorter[len(stem) :]
            if not rest or rest.startswith("."):
                return [UrlRule("replace-suffix", host, dot + suffix, to=rest)]
        return None
    if len(more) == len(less) + 1:
        place = next((place for place, part in enumerate(less) if more[place] != part), len(less))
        if more[place + 1 :] != less[place:]:
            return None
        if place < len(less):
            return [UrlRule("remove-segment", host, more[place])] if more[place] else None
        if not more[-1]:
            return [UrlRule("trailing-slash", host)]
        if not less[-1]:
            return None
        if "." in more[-1]:
            return [UrlRule("default-document", host, more[-1]), UrlRule("trailing-slash", host)]
        return [UrlRule("remove-segment", host, more[-1])]
    return None


def _query_differences(one: str, other: str, host: str) -> list[UrlRule] | None:
    if one == other:
        return []
    first = [pair[:2] for pair in parameters_of(one)] if one else []
    second = [pair[:2] for pair in parameters_of(other)] if other else []
    if sorted(first) == sorted(second):
        return [UrlRule("sort-parameters", host)]
    rules = []
    filled_first, filled_second = ([pair for pair in pairs if pair[1]] for pairs in (first, second))
    if (filled_first, filled_second) != (first, second):
        rules.append(UrlRule("ignore-empty-parameters", host))
        first, second = filled_first, filled_second
    distinct_first, distinct_second = list(dict.fromkeys(first)), list(dict.fromkeys(second))
    if first != second and (distinct_first, distinct_second) != (first, second):
        rules.append(UrlRule("ignore-repeated-parameters", host))
        first, second = distinct_first, distinct_second
    for name in dict.fromkeys(name for name, _ in (*first, *second)):
        values, others = ([value for its, value in pairs if its == name] for pairs in (first, second))
        if values == others:
            continue
        if len(values) != len(others) and values and others:
            kind = "keep-first-value" if values[0] == others[0] else "keep-last-value"
            if kind == "keep-last-value" and values[-1] != others[-1]:
                return None
            rules.append(UrlRule(kind, host, name))
        else:
            rules.append(UrlRule("ignore-parameter", host, name))
    names = [
        [name for name, _ in pairs if (name,) not in {(r.name,) for r in rules}] for pairs in (first, second)
    ]
    if names[0] != names[1]:
        rules.append(UrlRule("sort-parameters", host))
    return rules


def _path_parameters(path: str) -> set[tuple[str, str]]:
    found = (part.partition("=") for segment in path.split("/") for part in segment.split(";")[1:])
    return {(name, value) for name, _, value in found}


def _applied(path: str, rules: Sequence[UrlRule]) -> str:
    # The host does not matter here.
    plain = UrlRules(replace(rule, host="*") for rule in rules)
    return plain.identity(f"http://-{path}")[0].removeprefix("http://-")


# Evaluation


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


def _rules_of_host(
    host: str,
    pages: dict[str, UrlPage],
    support: Counter[tuple[UrlRule, ...]],
    min_pairs: int,
    min_share: float,
) -> list[UrlRule]:
    found = [
        (count, rules)
        for rules, count in support.items()
        if count >= min_pairs and rules[0].host == host and rules[0].kind != "host-alias"
    ]
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


def touched(rules: Sequence[UrlRule], pages: dict[str, UrlPage]) -> Iterator[UrlPage]:
    """The pages whose URLs may be changed by *rules*: a quick test."""
    names = [rule.name for rule in rules if rule.name and rule.name.isascii() and rule.name.isalnum()]
    if len(names) < len(rules):
        return iter(pages.values())
    return (page for page in pages.values() if any(name in page.url for name in names))


def _narrowed(rule: UrlRule, pages: dict[str, UrlPage], min_pairs: int, min_share: float) -> list[UrlRule]:
    """The rule for those values of its parameter, or else for those parts of the site, where it holds."""
    members_of_rule = list(touched((rule,), pages))
    if rule.kind == "ignore-parameter":

        def value_of(url: str) -> str:
            query = url.partition("#")[0].partition("?")[2]
            return next((value for name, value, _ in parameters_of(query) if name == rule.name), "")

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
    split = _split(url)
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
    single = [(count, rules[0]) for rules, count in support.items() if len(rules) == 1]
    for _, rule in sorted(single, key=lambda item: (-item[0], item[1].key())):
        if rule.kind != "host-alias" or support[rule,] < min_pairs:
            continue
        # An alias of an alias becomes an alias of the host itself.
        target = accepted[rule.name].name if rule.name in accepted else rule.name
        if (
            rule.host in accepted
            or rule.host == target
            or any(r.name == rule.host for r in accepted.values())
        ):
            continue
        alias = replace(rule, name=target)
        tally = evaluate(UrlRules([alias]), hosts[rule.host].values(), pages).get("", Tally())
        if tally.is_enough(min_pairs, min_share):
            accepted[rule.host] = replace(alias, evidence=tally.evidence())
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


def _without_conflicts(accepted: list[UrlRule], pages: dict[str, UrlPage], min_share: float) -> list[UrlRule]:
    """Withdraw rules until no two pages with really different texts have the same identity, or only few of them."""
    rules = list(accepted)
    while rules:
        applied_rules = UrlRules(rules)
        kept: dict[str, tuple[UrlPage, tuple[UrlRule, ...]]] = {}
        pairs, blame = 0, Counter[tuple[object, ...]]()
        conflicts = 0
        for page in pages.values():
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
    order = list(KINDS)
    return sorted(
        rules,
        key=lambda rule: (
            -(rule.evidence.downloads if rule.evidence else 0),
            order.index(rule.kind),
            rule.key(),
        ),
    )
