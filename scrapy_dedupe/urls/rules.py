"""URL rules: differences between URLs that do not change the page.

A rule applies to one host, or to a host and its subdomains, and there to paths that begin with ``path``. The *identity*
of a URL is the URL after all rules. Two URLs with the same identity lead to the same page, so only one of them needs to
be requested. The identity is only compared: nobody requests it.

==============================  ========================================================================================
kind                            URLs with the same identity
==============================  ========================================================================================
``host-alias``                  on the host and on the host ``to``
``ignore-scheme``               with ``http`` and with ``https``
``lowercase-path``              whose paths differ in letter case
``ignore-path-parameter``       with and without ``;parameter=…`` in the path, such as ``;jsessionid=…``
``collapse-slashes``            with one and with several slashes in a row
``remove-segment``              with and without this segment of the path, such as ``/print/``
``default-document``            of a folder, and of this document in it, such as ``index.html``
``trailing-slash``              with and without a slash at the end of the path
``replace-suffix``              whose paths end with ``suffix`` and with ``to``, which may be empty
``ignore-parameter``            with and without this parameter of the query, or with one of its ``values``
``ignore-empty-parameters``     with and without parameters that have no value
``ignore-repeated-parameters``  with and without repetitions of the same parameter and value
``keep-first-value``            whose first value of a repeated parameter is the same
``keep-last-value``             whose last value of a repeated parameter is the same
``sort-parameters``             whose parameters have another order
==============================  ========================================================================================

Rules apply in the order of this table, wherever they are in a file, and again until the URL no longer changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KINDS: Final = {
    "host-alias": "to",
    "ignore-scheme": "",
    "lowercase-path": "",
    "ignore-path-parameter": "parameter",
    "collapse-slashes": "",
    "remove-segment": "segment",
    "default-document": "document",
    "trailing-slash": "",
    "replace-suffix": "suffix",
    "ignore-parameter": "parameter",
    "ignore-empty-parameters": "",
    "ignore-repeated-parameters": "",
    "keep-first-value": "parameter",
    "keep-last-value": "parameter",
    "sort-parameters": "",
}
"""The kinds of rules, in the order in which they apply, each with what its ``name`` is; empty for none."""

RULE_ID_BYTES: Final = 8
GROUP_ID_BYTES: Final = 4

_ORIGIN: Final = re.compile(r"([^:/?#]+)://([^/?#]*)")
_KEEPING: Final = ("keep-first-value", "keep-last-value")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_SLASHES: Final = re.compile("//+")
# Enough for any sensible file; a bound, since two rules could undo each other.
_MOST_ROUNDS: Final = 8
_MOST_HOSTS: Final = 10_000
# No rule applies to longer ones. Servers accept URLs of 8,000 characters at most, and the name of a host has 253.
_MOST_URL_CHARS: Final = 16_384
_MOST_AUTHORITY_CHARS: Final = 512


@dataclass(frozen=True, slots=True)
class RuleEvidence:
    """The pairs of URLs that a rule was learnt from.

    ``pairs_for`` had the same text, ``pairs_against`` different texts. ``lower_bound`` is the one-sided 95 % lower bound
    of the share of pairs with the same text. ``downloads`` and ``size_bytes`` would have been saved in the crawls that
    the rule was learnt from. ``examples`` are pairs of URLs. ``canonical_links`` are links with ``rel=canonical`` that
    suggest the rule; they are counted only for a rule that is proposed because of them.
    """

    pairs_for: int
    pairs_against: int
    lower_bound: float
    downloads: int
    size_bytes: int
    examples: tuple[tuple[str, str], ...] = ()
    canonical_links: int = 0


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """All rules that can lead to an identity on a host. ``id`` is different for different rules."""

    id: bytes
    rules: tuple[UrlRule, ...]


@dataclass(frozen=True)
class UrlRule:
    """One rule; see the module.

    ``host`` is in lower case, with its port unless it is the default one; ``*.example.org`` also applies to
    subdomains, ``*`` to all hosts. ``name`` is the parameter, segment, document, suffix or other host. ``values`` limits
    ``ignore-parameter`` to these values; empty means all. ``to`` is the replacement for a suffix.
    """

    kind: str
    host: str
    name: str = ""
    path: str = "/"
    values: tuple[str, ...] = ()
    to: str = ""
    enabled: bool = True
    evidence: RuleEvidence | None = None

    def __hash__(self) -> int:
        # All fields would take four times as long.
        return hash((self.kind, self.host, self.name, self.path))

    def __str__(self) -> str:
        where = self.host if self.path == "/" else f"{self.host}{self.path}"
        what = f" {self.name}" if self.name else ""
        if self.kind == "replace-suffix":
            what += f" by {self.to or 'nothing'}"
        only = (
            f" ({', '.join(self.values[:3])}{', …' if len(self.values) > 3 else ''})" if self.values else ""
        )
        return f"{self.kind}{what}{only} on {where}"

    def key(self) -> tuple[object, ...]:
        """What the rule does, without its evidence."""
        return self.kind, self.host, self.name, self.path, self.values, self.to

    @cached_property
    def id(self) -> bytes:
        """An 8-byte hash of :meth:`key`."""
        return blake2b(repr(self.key()).encode(), digest_size=RULE_ID_BYTES).digest()


class UrlRules:
    """Applies rules to URLs. Raises :class:`~scrapy_dedupe.errors.SettingError` for rules that contradict each other.

    Rules that are not ``enabled`` do not apply. ``known_groups`` are the groups of the known hosts, by id.
    """

    def __init__(self, rules: Iterable[UrlRule]) -> None:
        self.rules = tuple(rules)
        self._by_host: dict[str, list[UrlRule]] = {}
        for rule in self.rules:
            if rule.enabled:
                self._by_host.setdefault(rule.host, []).append(rule)
        _refuse_contradictions(self._by_host)
        # By the part of a URL before its path: the rules to apply, and those that can lead to such an identity.
        self._hosts: dict[str, tuple[_HostRules | None, RuleGroup | None]] = {}
        self.known_groups: dict[bytes, RuleGroup] = {}
        # By the host patterns that have rules: many hosts have the same.
        self._of_patterns: dict[tuple[str, ...], _HostRules] = {}
        self._aliases: dict[str, list[str]] = {}
        for on_host in self._by_host.values():
            for rule in on_host:
                if rule.kind == "host-alias":
                    self._aliases.setdefault(rule.name, []).append(rule.host)

    def __len__(self) -> int:
        return sum(map(len, self._by_host.values()))

    def without(self, suspended: Iterable[UrlRule]) -> UrlRules:
        """These rules without some of them."""
        keys = {rule.key() for rule in suspended}
        return UrlRules(rule for rule in self.rules if rule.key() not in keys)

    def identity(self, url: str) -> tuple[str, tuple[UrlRule, ...]]:
        """The identity of a URL, and the rules that changed it. Never raises.

        >>> rules = UrlRules([UrlRule("ignore-parameter", "a.org", "sid"), UrlRule("trailing-slash", "*")])
        >>> rules.identity("http://a.org/b/?sid=1&c=2")[0]
        'http://a.org/b?c=2'
        """
        identity, applied, _ = self.resolve(url)
        return identity, applied

    def resolve(self, url: str) -> tuple[str, tuple[UrlRule, ...], RuleGroup | None]:
        """Like :meth:`identity`, with the result of :meth:`group` for the identity."""
        # This runs for each link of a crawl, so it avoids calls.
        if len(url) > _MOST_URL_CHARS:
            return url, (), self.group(url)
        applied: list[UrlRule] = []
        for _ in range(_MOST_ROUNDS):
            # Usually the part before the path is known. In http://a/ the path begins at the 9th character.
            end = url.find("/", 8)
            origin = url[:end] if end > 0 else ""
            known = self._hosts.get(origin)
            if known is None:
                match = _ORIGIN.match(url)
                if match is None:
                    group = None
                    break
                origin = match[0]
                known = self._hosts.get(origin) or self._of_host(match)
            rules, group = known
            if rules is None or not (rules.changes_path or rules.changes_origin or "?" in url):
                break
            rest, number_sign, fragment = url.partition("#")
            start, _, query = rest.partition("?")
            path = start[len(origin) :]
            count = len(applied)
            new_path, new_query, new_origin = path, query, origin
            if rules.changes_path:
                new_path = rules.changed_path(path or "/", applied)
            if query and rules.changes_query:
                new_query = rules.changed_query(query, path or "/", applied)
            if rules.changes_origin:
                scheme, _, authority = origin.partition("://")
                new_origin = rules.changed_origin(scheme, authority, path or "/", applied)
            if len(applied) == count:
                break
            # The rules depend on the host and the path.
            is_final = new_path == path and new_origin == origin
            if not is_final:
                start = f"{new_origin}{new_path}"
            url = f"{start}?{new_query}" if new_query else start
            if number_sign:
                url = f"{url}#{fragment}"
            if is_final:
                break
        else:
            group = self.group(url)
        return url, tuple(dict.fromkeys(applied) if len(applied) > 1 else applied), group

    @property
    def id(self) -> str:
        """A short hash of all enabled rules, in hexadecimal."""
        enabled = {rule.id for rules in self._by_host.values() for rule in rules}
        return blake2b(b"".join(sorted(enabled)), digest_size=4).hexdigest()

    def group(self, identity: str) -> RuleGroup | None:
        """The rules that can lead to an identity; None if there are none."""
        match = _ORIGIN.match(identity)
        if match is None:
            return None
        return (self._hosts.get(match[0]) or self._of_host(match))[1]

    def _of_host(self, match: re.Match[str]) -> tuple[_HostRules | None, RuleGroup | None]:
        """The rules of a host; cached by its spelling in URLs."""
        scheme, authority = match.groups()
        if len(authority) > _MOST_AUTHORITY_CHARS:
            return None, None
        if len(self._hosts) >= _MOST_HOSTS:
            self._hosts.clear()
        host = host_of(scheme, authority)
        found = self._hosts[match[0]] = self._compiled(host), self._group(host)
        return found

    def _compiled(self, host: str) -> _HostRules | None:
        patterns = self._patterns(host)
        if not patterns:
            return None
        if patterns not in self._of_patterns:
            self._of_patterns[patterns] = _HostRules(
                rule for pattern in patterns for rule in self._by_host[pattern]
            )
        return self._of_patterns[patterns]

    def _group(self, host: str) -> RuleGroup | None:
        patterns = [
            pattern for name in (host, *self._aliases.get(host, ())) for pattern in self._patterns(name)
        ]
        rules = dict.fromkeys(rule for pattern in patterns for rule in self._by_host[pattern])
        if not rules:
            return None
        group_id = blake2b(b"".join(sorted(rule.id for rule in rules)), digest_size=GROUP_ID_BYTES).digest()
        return self.known_groups.setdefault(group_id, RuleGroup(group_id, tuple(rules)))

    def _patterns(self, host: str) -> tuple[str, ...]:
        """The patterns with rules that a host matches."""
        return tuple(pattern for pattern in _patterns(host) if pattern in self._by_host)


class _HostRules:
    """The rules of one host, by kind and name."""

    def __init__(self, rules: Iterable[UrlRule]) -> None:
        named: dict[str, dict[str, list[UrlRule]]] = {kind: {} for kind in KINDS}
        for rule in rules:
            named[rule.kind].setdefault(rule.name, []).append(rule)
        self.changes_path = any(named[kind] for kind in _PATH_KINDS)
        self.changes_query = any(named[kind] for kind in _QUERY_KINDS)
        self.changes_origin = any(named[kind] for kind in ("host-alias", "ignore-scheme"))
        self._aliases = [rule for rules in named["host-alias"].values() for rule in rules]
        self._scheme = named["ignore-scheme"].get("", ())
        self._lowercase = named["lowercase-path"].get("", ())
        self._path_parameters = named["ignore-path-parameter"]
        self._slashes = named["collapse-slashes"].get("", ())
        self._segments = named["remove-segment"]
        self._documents = named["default-document"]
        self._last_slash = named["trailing-slash"].get("", ())
        self._suffixes = named["replace-suffix"]
        self._endings = tuple(self._suffixes)
        # By name: the path and the values to which each rule applies.
        self._parameters = {
            name: [(rule.path, frozenset(rule.values), rule) for rule in rules]
            for name, rules in named["ignore-parameter"].items()
        }
        self._empty = named["ignore-empty-parameters"].get("", ())
        self._repeated = named["ignore-repeated-parameters"].get("", ())
        self._is_general = bool(self._empty or self._repeated)
        self._kept: dict[str, list[UrlRule]] = {}
        for kind in _KEEPING:
            for name, its_rules in named[kind].items():
                self._kept.setdefault(name, []).extend(its_rules)
        self._order = named["sort-parameters"].get("", ())

    def changed_origin(self, scheme: str, authority: str, path: str, applied: list[UrlRule]) -> str:
        if self._aliases:
            user, mark, _ = authority.rpartition("@")
            authority = f"{user}{mark}{self._aliases[0].name}"
            applied.append(self._aliases[0])
        if scheme == "http" and self._scheme and (rule := _for_path(self._scheme, path)):
            scheme, authority = "https", authority.removesuffix(_DEFAULT_PORTS["http"])
            applied.append(rule)
        return f"{scheme}://{authority}"

    def changed_path(self, path: str, applied: list[UrlRule]) -> str:
        original = path
        if self._lowercase and (lower := path.lower()) != path and (rule := _for_path(self._lowercase, path)):
            path = lower
            applied.append(rule)
        if self._path_parameters and ";" in path:
            path = "/".join(
                self._without_parameters(part, original, applied) if ";" in part else part
                for part in path.split("/")
            )
        if "//" in path and self._slashes and (rule := _for_path(self._slashes, original)):
            path = _SLASHES.sub("/", path)
            applied.append(rule)
        if self._segments:
            parts = path.split("/")
            if not self._segments.keys().isdisjoint(parts):
                kept = []
                for part in parts:
                    if part in self._segments and (rule := _for_path(self._segments[part], original)):
                        applied.append(rule)
                    else:
                        kept.append(part)
                path = "/".join(kept)
        if self._documents:
            folder, _, last = path.rpartition("/")
            if last in self._documents and (rule := _for_path(self._documents[last], original)):
                path = f"{folder}/"
                applied.append(rule)
        if len(path) > 1 and path[-1] == "/" and (rule := _for_path(self._last_slash, original)):
            path = path.rstrip("/") or "/"
            applied.append(rule)
        if self._endings and path.endswith(self._endings):
            ending = next(ending for ending in self._endings if path.endswith(ending))
            stem = path.removesuffix(ending)
            if not stem.endswith("/") and (rule := _for_path(self._suffixes[ending], original)):
                path = stem + rule.to
                applied.append(rule)
        return path if path[:1] == "/" else f"/{path}"

    def _without_parameters(self, segment: str, path: str, applied: list[UrlRule]) -> str:
        first, *parameters = segment.split(";")
        kept = [first]
        for parameter in parameters:
            rule = _for_path(self._path_parameters.get(parameter.partition("=")[0], ()), path)
            if rule is None:
                kept.append(parameter)
            else:
                applied.append(rule)
        return ";".join(kept)

    def changed_query(self, query: str, path: str, applied: list[UrlRule]) -> str:
        # This runs for each link of a crawl with a query, so it avoids calls.
        count = len(applied)
        parameters = self._parameters
        empty = repeated = None
        if is_general := self._is_general:
            empty, repeated = _for_path(self._empty, path), _for_path(self._repeated, path)
        is_encoded = "%" in query or "+" in query
        known: set[tuple[str, str]] = set()
        kept: list[str] = []
        for text in query.split("&"):
            name, _, value = text.partition("=")
            if is_encoded:
                name, value = decoded(name), decoded(value)
            rule = None
            if name in parameters:
                for start, values, its_rule in parameters[name]:
                    if (not values or value in values) and path.startswith(start):
                        rule = its_rule
                        break
            if rule is None and is_general:
                if not value:
                    rule = empty
                if rule is None and repeated is not None:
                    if (name, value) in known:
                        rule = repeated
                    known.add((name, value))
            if rule is None:
                kept.append(text)
            else:
                applied.append(rule)
        if self._kept and len(kept) > 1:
            kept = self._one_value_each(kept, path, applied)
        if self._order and len(kept) > 1 and (rule := _for_path(self._order, path)):
            in_order = sorted(kept, key=_name_of)
            if in_order != kept:
                kept = in_order
                applied.append(rule)
        return query if len(applied) == count else "&".join(kept)

    def _one_value_each(self, parameters: list[str], path: str, applied: list[UrlRule]) -> list[str]:
        """The parameters; of each whose first or last value matters, this value at the place of the first."""
        repeated: dict[str, list[str]] = {}
        for text in parameters:
            if (name := _name_of(text)) in self._kept:
                repeated.setdefault(name, []).append(text)
        chosen: dict[str, str | None] = {}
        for name, texts in repeated.items():
            if len(texts) > 1 and (rule := _for_path(self._kept[name], path)):
                chosen[name] = texts[0 if rule.kind == "keep-first-value" else -1]
                applied.append(rule)
        kept = []
        for text in parameters:
            name = _name_of(text)
            value = chosen.get(name, text)
            if value is not None:
                kept.append(value)
            if name in chosen:
                chosen[name] = None
        return kept


def _name_of(parameter: str) -> str:
    return decoded(parameter.partition("=")[0])


def _for_path(rules: Iterable[UrlRule], path: str) -> UrlRule | None:
    """The first rule that applies to a path."""
    for rule in rules:
        if path.startswith(rule.path):
            return rule
    return None


_PATH_KINDS: Final = frozenset(list(KINDS)[2:9])
_QUERY_KINDS: Final = frozenset(list(KINDS)[9:])


def decoded(text: str) -> str:
    """A name or value of a query, decoded."""
    return unquote_plus(text) if "%" in text or "+" in text else text


def host_of(scheme: str, authority: str) -> str:
    """The host and port of a URL in lower case, without user and default port.

    >>> host_of("http", "user@Example.org:80")
    'example.org'
    """
    host = authority.rpartition("@")[2].lower()
    return host.removesuffix(_DEFAULT_PORTS.get(scheme, " "))


def _patterns(host: str) -> Iterator[str]:
    """The host patterns that a host matches, the most specific first.

    >>> list(_patterns("a.b.org"))
    ['a.b.org', '*.a.b.org', '*.b.org', '*.org', '*']
    """
    yield host
    parts = host.split(".")
    for place in range(len(parts)):
        yield f"*.{'.'.join(parts[place:])}"
    yield "*"


def _refuse_contradictions(by_host: dict[str, list[UrlRule]]) -> None:
    aliases = {host: rule for host, rules in by_host.items() for rule in rules if rule.kind == "host-alias"}
    for host, rule in aliases.items():
        if rule.name in aliases:
            raise SettingError(
                f"The rules make {host} an alias of {rule.name}, and that an alias of {aliases[rule.name].name}."
                f" Make {host} an alias of {aliases[rule.name].name}."
            )
    for rules in by_host.values():
        suffixes = {rule.name: rule for rule in rules if rule.kind == "replace-suffix"}
        for one in (rule for rule in rules if rule.kind == "replace-suffix"):
            for place in range(len(one.to)):
                other = suffixes.get(one.to[place:])
                if other is not None:
                    raise SettingError(
                        f"The rules replace the suffix {one.name} by {one.to}, and {other.name} by"
                        f" {other.to or 'nothing'}, on {one.host}. Replace {one.name} by {other.to or 'nothing'}."
                    )
