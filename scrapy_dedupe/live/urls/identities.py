"""The identities of requests under URL rules, and what the URL filter knows about them.

For each URL the URL filter has its fingerprint, as without rules. If rules change the URL, it also has a key of its
*identity*, made from the fingerprint of the URL after the rules. A request is filtered by rules if its identity was
requested, as a plain URL or under another URL. Each rule that changed a requested URL leaves a mark on its identity.
Identities with the mark of a suspended rule do not count as requested. The keys contain an id of the rules that can lead
to the identity, so rules of another run or process do not match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from scrapy_dedupe.urls.rules import GROUP_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy import Request

    from scrapy_dedupe.urls.rules import RuleGroup, UrlRule, UrlRules

    from .fingerprints import Fingerprints


class RecordedKeys(Protocol):
    """The part of a URL filter that is used here."""

    @property
    def has_fingerprints(self) -> bool: ...

    def add(self, fingerprint: bytes) -> bool: ...
    def add_all_unless(self, known: bytes, fingerprints: list[bytes]) -> bool: ...
    def add_start(self, fingerprint: bytes) -> None: ...
    def take_start(self, fingerprint: bytes) -> bool: ...
    def __contains__(self, fingerprint: bytes) -> bool: ...
    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]: ...


class IdentityKeys(NamedTuple):
    """The keys of a request's identity in the URL filter.

    ``plain`` is the fingerprint of the identity. ``requested`` is recorded for a request to another URL of the identity,
    with a mark for each of the rules that changed the URL; ``answered`` when a request of the identity was answered.
    ``group`` are all rules of the crawl that can lead to the identity, ``active`` is the id of those not suspended.
    """

    plain: bytes
    group: RuleGroup
    applied: tuple[UrlRule, ...]
    active: bytes

    @property
    def requested(self) -> bytes:
        return b"p" + self.group.id + self.plain

    @property
    def requested_since(self) -> bytes:
        """Recorded like ``requested``, for requests since the last suspension of a rule of the group."""
        return b"p" + self.active + self.plain

    @property
    def answered(self) -> bytes:
        return b"a" + self.group.id + self.plain

    @property
    def split(self) -> bytes:
        """Recorded when pages of the identity have different texts."""
        return b"s" + self.plain

    def marks(self, rules: Iterable[UrlRule]) -> list[bytes]:
        """The marks of rules that changed the URL of a request."""
        return _marks(self.group.id, rules, self.plain)

    def of_request(self) -> list[bytes]:
        """The keys to record for the request."""
        group, plain = self.group.id, self.plain
        return [b"p" + group + plain, *_marks(group, self.applied, plain)] if self.applied else []


class Identities:
    """The identities of requests. ``urls`` is the URL filter, with fingerprints from *fingerprints*.

    ``has_earlier``: whether it has fingerprints that were recorded without rules.
    """

    def __init__(self, rules: UrlRules, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._all_rules = rules
        # Without the suspended ones.
        self._rules = rules
        # By their ids.
        self._suspended: dict[bytes, UrlRule] = {}

    def open(self, urls: RecordedKeys, *, has_earlier: bool) -> None:
        """Use the URL filter *urls*."""
        self.urls = urls
        self._has_earlier = has_earlier

    def suspend(self, *rules: UrlRule) -> None:
        """Apply these rules no longer. Identities that they may have led to no longer count as requested."""
        self._suspended |= {rule.id: rule for rule in rules}
        self._rules = self._all_rules.without(self._suspended.values())

    def identity(self, url: str) -> str:
        """The identity of a URL."""
        return self._rules.identity(url)[0]

    def keys(self, request: Request, fingerprint: bytes) -> IdentityKeys | None:
        """The keys of a request; None if no rule can concern it."""
        if request.method != "GET":
            return None
        identity, applied, active = self._rules.resolve(request.url)
        if active is None:
            return None
        group = (self._all_rules.group(identity) if self._suspended else None) or active
        if applied:
            plain = self._fingerprints.of_identity(request, identity)
            # The fingerprinter may ignore the difference too, such as the order of parameters.
            if plain != fingerprint:
                return IdentityKeys(plain, group, applied, active.id)
        return IdentityKeys(fingerprint, group, (), active.id)

    def own_keys(self, request: Request) -> IdentityKeys | None:
        """Like :meth:`keys`, for a request whose fingerprint is not at hand."""
        return self.keys(request, self._fingerprints.of(request))

    def chain(self, request: Request) -> Iterator[tuple[str, IdentityKeys]]:
        """The URLs and keys of the requests that were redirected to this one."""
        for url in request.meta.get("redirect_urls", ()):
            keys = self.own_keys(request.replace(url=url))
            if keys is not None:
                yield url, keys

    def equating_rules(self, keys: IdentityKeys) -> set[bytes]:
        """The ids of the rules that changed this request, or a request of its identity that was made."""
        rules = [rule for rule in keys.group.rules if rule.id not in self._suspended]
        are_marked = self.urls.contains_many(keys.marks(rules))
        marked = (rule for rule, is_marked in zip(rules, are_marked, strict=True) if is_marked)
        return {rule.id for rule in (*keys.applied, *marked)}

    # Requested

    def is_first(self, keys: IdentityKeys) -> bool:
        """Record the identity of a request; False, without recording it, if its page was requested under another URL."""
        if self._suspended and self._was_requested(keys):
            return False
        if not keys.applied:
            if keys.requested_since in self.urls:
                return False
            self.record(keys)
            return True
        recorded = keys.of_request()
        if self._suspended:
            recorded.insert(0, keys.requested_since)
        return self.urls.add_all_unless(keys.plain, recorded)

    def _was_requested(self, keys: IdentityKeys) -> bool:
        """Whether the page of a request was requested before the last suspension, and it is known which page that was."""
        # With the mark of a suspended rule, another page may have been requested.
        return keys.requested in self.urls and not self._has_suspended_mark(keys.group.id, keys.plain)

    def record(self, keys: IdentityKeys, *, is_start: bool = False) -> None:
        """Record the identity of a request that is made."""
        add = self.urls.add_start if is_start else self.urls.add
        if self._has_earlier or keys.applied:
            add(keys.requested)
            if keys.active != keys.group.id:
                add(keys.requested_since)
        for mark in keys.marks(keys.applied):
            add(mark)

    def take_start(self, keys: IdentityKeys) -> bool:
        """Use up the redirect to an identity that a start request allowed."""
        return self.urls.take_start(keys.plain) or self.urls.take_start(keys.requested)

    def has_earlier_plain(self, keys: IdentityKeys) -> bool:
        """Whether the plain URL of an identity may have been requested without rules, or by another process."""
        return self._has_earlier and bool(keys.applied) and keys.plain in self.urls

    # Answered

    def answered(self, *keys: IdentityKeys) -> None:
        """Record that requests of these identities were answered."""
        for each in keys:
            self.urls.add(each.answered)

    def is_answered(self, key: bytes) -> bool:
        """Whether a request of an identity, given by its key, was answered, or was made before there were rules."""
        urls, rest = self.urls, key[1:]
        if self._has_suspended_mark(rest[:GROUP_ID_BYTES], rest[GROUP_ID_BYTES:]):
            # Perhaps another page was answered.
            return False
        return key in urls or (
            self._has_earlier and rest[GROUP_ID_BYTES:] in urls and b"p" + rest not in urls
        )

    def _has_suspended_mark(self, group: bytes, plain: bytes) -> bool:
        if not self._suspended:
            return False
        known = self._all_rules.known_groups.get(group)
        rules = (
            self._suspended.values() if known is None else [r for r in known.rules if r.id in self._suspended]
        )
        return any(self.urls.contains_many(_marks(group, rules, plain)))


def _marks(group: bytes, rules: Iterable[UrlRule], plain: bytes) -> list[bytes]:
    return [b"".join((b"r", group, rule.id, plain)) for rule in rules]
