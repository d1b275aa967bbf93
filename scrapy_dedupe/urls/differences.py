"""The URL rules that two URLs of the same page suggest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from .rules import UrlRule, UrlRules, decoded, host_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_DIFFERENCES: Final = 4


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
    first, second = split_url(one), split_url(other)
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
class SplitUrl:
    """The parts of a URL, without the fragment. ``host`` is as in rules."""

    scheme: str
    host: str
    path: str
    query: str


def split_url(url: str) -> SplitUrl | None:
    """The parts of a URL; None for text without a scheme."""
    scheme, mark, rest = url.partition("#")[0].partition("://")
    if not mark:
        return None
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    return SplitUrl(scheme, host_of(scheme, authority), slash + path or "/", query)


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
    first, second = parameters_of(one), parameters_of(other)
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
    first_values, second_values = _values_by_name(first), _values_by_name(second)
    explained = set()
    for name in {**first_values, **second_values}:
        values, others = first_values.get(name, []), second_values.get(name, [])
        if values == others:
            continue
        if len(values) != len(others) and values and others:
            kind = "keep-first-value" if values[0] == others[0] else "keep-last-value"
            if kind == "keep-last-value" and values[-1] != others[-1]:
                return None
            rules.append(UrlRule(kind, host, name))
        else:
            rules.append(UrlRule("ignore-parameter", host, name))
        explained.add(name)
    if [name for name, _ in first if name not in explained] != [
        name for name, _ in second if name not in explained
    ]:
        rules.append(UrlRule("sort-parameters", host))
    return rules


def parameters_of(query: str) -> list[tuple[str, str]]:
    """The decoded names and values of the parameters of a query.

    >>> parameters_of("a=1&b%20c")
    [('a', '1'), ('b c', '')]
    """
    pairs = (text.partition("=") for text in query.split("&")) if query else ()
    return [(decoded(name), decoded(value)) for name, _, value in pairs]


def _values_by_name(parameters: list[tuple[str, str]]) -> dict[str, list[str]]:
    values: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in parameters:
        values[name].append(value)
    return values


def _path_parameters(path: str) -> set[tuple[str, str]]:
    found = (part.partition("=") for segment in path.split("/") for part in segment.split(";")[1:])
    return {(name, value) for name, _, value in found}


def _applied(path: str, rules: Sequence[UrlRule]) -> str:
    # The host does not matter here.
    plain = UrlRules(replace(rule, host="*") for rule in rules)
    return plain.identity(f"http://-{path}")[0].removeprefix("http://-")
