"""URL rules in a crawl: which requests they filter, and whether their pages really have the same text.

For each URL the URL filter has its fingerprint, as without rules. If rules change the URL, it also has a key of its
*identity*, made from the fingerprint of the URL after the rules. A request is filtered by rules if its identity was
requested, as a plain URL or under another URL. Each rule that changed a requested URL leaves a mark on its identity.
Identities with the mark of a suspended rule do not count as requested. The keys contain an id of the rules that can lead
to the identity, so rules of another run or process do not match.

**No page is lost silently.** Filtered requests are held on disk. They are scheduled after all if

*   a rule that filtered them is suspended, or
*   no request of their identity has been answered when the spider is idle: it failed, a middleware dropped it, or it was
    redirected to another page. Then one held request of the identity is scheduled.

A request that cannot be held is not filtered.

**Watching.** Some of the requests that only rules would filter are made nevertheless (probes). The texts of all pages of
an identity are compared with that of its first page, in the order of the answers. If a text really differs, the page is
downloaded once more. If it then has a third text, the page changes at every visit, and says nothing. Otherwise the pair
counts against the rules that equated the two URLs, except for rules that other pages have proved right. Requests of this
identity are no longer filtered, and its held requests are scheduled. A rule is suspended for the rest of the crawl if the
share of pairs for it falls below 0.98.
"""

from __future__ import annotations

import logging
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.request import request_from_dict

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.live.engine import download, engine_of, is_closing, wake_engine
from scrapy_dedupe.urls.rule_file import read_rules
from scrapy_dedupe.urls.rule_records import (
    MOST_HELD,
    HeldRequest,
    RequestedPage,
    RuleRecords,
    RuleTally,
    from_json,
    ids_in,
    records_path,
    to_json,
)
from scrapy_dedupe.urls.rules import GROUP_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.urls.rules import RuleGroup, UrlRule, UrlRules

logger = logging.getLogger(__name__)

MIN_SHARE: Final = 0.98
_MIN_PROBES: Final = 3
_WRITE_FROM: Final = 200
_AT_ONCE: Final = 500
# A rule may be right on the whole and wrong for one page with many URLs. So these filtered requests of each identity
# are probed, counted from 1.
_PROBED_VARIANTS: Final = frozenset(8 * 4**power for power in range(12))
_MOST_COUNTED: Final = 200_000


class RecordedKeys(Protocol):
    """The part of a URL filter that is used here."""

    @property
    def has_fingerprints(self) -> bool: ...

    def add(self, fingerprint: bytes) -> bool: ...
    def add_start(self, fingerprint: bytes) -> None: ...
    def take_start(self, fingerprint: bytes) -> bool: ...
    def __contains__(self, fingerprint: bytes) -> bool: ...


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

    def mark(self, rule: UrlRule) -> bytes:
        return _mark(self.group.id, rule, self.plain)

    def of_request(self) -> list[bytes]:
        """The keys to record for the request."""
        return [self.requested, *map(self.mark, self.applied)] if self.applied else []


class AppliedRules:
    """The rules of one crawl. ``fingerprint`` makes the fingerprints of requests."""

    def __init__(
        self, crawler: Crawler, session: Session, path: Path, fingerprint: Callable[[Request], bytes]
    ) -> None:
        self._crawler = crawler
        self._session = session
        self._path = path
        self._share = session.settings.urls.probe_share
        self._fingerprint = fingerprint
        self._all_rules: UrlRules = read_rules(path)
        # Without the suspended ones.
        self._rules = self._all_rules
        self._suspended: list[UrlRule] = []
        self._tallies: dict[bytes, RuleTally] = {}
        self._by_id = {rule.id: rule for rule in self._rules.rules if rule.enabled}
        # Filtered requests that are not on disk yet.
        self._to_hold: list[tuple[HeldRequest, Request]] = []
        # Fingerprints of held requests that are scheduled: those that rules may filter again, and the others.
        self._due: set[bytes] = set()
        self._released: set[bytes] = set()
        # The number of filtered requests of an identity.
        self._variants: dict[bytes, int] = {}
        # Repeated downloads, with the key of the text when it is known.
        self._again: dict[Request, tuple[bytes, bytes] | None] = {}
        # Pairs of pages with different texts that several rules may have equated.
        self._ambiguous: list[tuple[RequestedPage, RequestedPage]] = []
        # Rules that were probed while the spider was idle.
        self._probed: set[bytes] = set()
        # Held requests that could not be stored at the end of the crawl.
        self._lost = 0
        # Work that must end before the spider is closed.
        self._pending = 0
        self._has_new_held = True
        self._is_pumping = self._is_closed = False

    def open(self, urls: RecordedKeys) -> None:
        """Open the records, after the filter *urls*. Raises :class:`~scrapy_dedupe.errors.DedupeError`."""
        session = self._session
        if session.is_crawl and "content" not in session.layers:
            raise SettingError(
                "The setting DEDUPE_URL_RULES needs the content layer, which finds out whether pages that rules equate"
                " have the same text. Set DEDUPE_CONTENT_ENABLED = True, or remove DEDUPE_URL_RULES."
            )
        self._urls = urls
        path = None if session.jobdir is None else records_path(session.jobdir)
        self._records = RuleRecords(path, self._rules.id, str(self._path), has_earlier=urls.has_fingerprints)
        # Whether the filter has fingerprints that were recorded without rules.
        self._has_earlier = self._records.has_earlier
        session.at_refusal(self._records.close)
        known = self._records.tallies()
        self._tallies = {rule: known.get(rule, RuleTally()) for rule in self._by_id}
        for tally in self._tallies.values():
            # Probes of the last run that were not answered may not be answered in this run either.
            tally.compared = max(tally.compared, tally.probes)
        self._suspended = [self._by_id[rule] for rule, tally in self._tallies.items() if tally.suspended]
        if self._suspended:
            self._rules = self._all_rules.without(self._suspended)
            self._is_pumping = True
        session.events.listen(self._page_judged)
        self._crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)

    # On the event loop: requests

    def keys(self, request: Request, fingerprint: bytes) -> IdentityKeys | None:
        """The keys of a request; None if no rule can concern it."""
        if request.method != "GET":
            return None
        identity, applied = self._rules.identity(request.url)
        active = self._rules.group(identity)
        if active is None:
            return None
        group = (self._all_rules.group(identity) if self._suspended else None) or active
        if applied:
            plain = self._fingerprint(request.replace(url=identity))
            # The fingerprinter may ignore the difference too, such as the order of parameters.
            if plain != fingerprint:
                return IdentityKeys(plain, group, applied, active.id)
        return IdentityKeys(fingerprint, group, (), active.id)

    def is_scheduled(self, fingerprint: bytes) -> bool:
        """Whether this is a held request that is scheduled now."""
        if fingerprint in self._due:
            self._due.discard(fingerprint)
            return True
        return fingerprint in self._released

    def is_requested(self, keys: IdentityKeys, fingerprint: bytes) -> bool:
        """Whether the page of a request was requested under another URL."""
        if fingerprint in self._released:
            self._released.discard(fingerprint)
            return False
        urls = self._urls
        if keys.requested_since in urls or (keys.applied and keys.plain in urls):
            return True
        # With the mark of a suspended rule, another page may have been requested.
        return (
            bool(self._suspended)
            and keys.requested in urls
            and not self._has_suspended_mark(keys.group.id, keys.plain)
        )

    def record(self, keys: IdentityKeys, *, is_start: bool = False) -> None:
        """Record the identity of a request that is made."""
        add = self._urls.add_start if is_start else self._urls.add
        if self._has_earlier or keys.applied:
            add(keys.requested)
            if keys.active != keys.group.id:
                add(keys.requested_since)
        for rule in keys.applied:
            add(keys.mark(rule))

    def take_start(self, keys: IdentityKeys) -> bool:
        """Use up the redirect to an identity that a start request allowed."""
        return self._urls.take_start(keys.plain) or self._urls.take_start(keys.requested)

    def is_filtered(self, request: Request, fingerprint: bytes, keys: IdentityKeys) -> bool:
        """Whether a request is filtered; its page was requested under another URL. A filtered request is held."""
        if keys.split in self._urls:
            return False
        group = self._rules.group(self._rules.identity(request.url)[0])
        assert group is not None
        involved = {rule.id for rule in keys.applied}
        involved |= {
            rule.id for rule in group.rules if rule not in keys.applied and keys.mark(rule) in self._urls
        }
        tallies = [self._tallies[rule] for rule in involved]
        if not involved:
            # The rules that changed the other URL are unknown, so nothing could be blamed.
            return False
        for tally in tallies:
            tally.filtered += 1
        if self._is_probed_variant(keys.plain) or any(self._needs_probe(tally) for tally in tallies):
            for tally in tallies:
                tally.probes += 1
            self._count("probes")
            return False
        held = self._held(request, fingerprint, keys, involved)
        if held is None:
            self._count("not_held")
            return False
        self._to_hold.append((held, request))
        self._has_new_held = True
        if len(self._to_hold) >= _WRITE_FROM:
            self._write_held()
        self._count("filtered")
        return True

    def _is_probed_variant(self, identity: bytes) -> bool:
        count = self._variants[identity] = self._variants.get(identity, 0) + 1
        if len(self._variants) > _MOST_COUNTED:
            self._variants = {
                key: known for key, known in self._variants.items() if known >= min(_PROBED_VARIANTS)
            }
        return count in _PROBED_VARIANTS

    def _needs_probe(self, tally: RuleTally) -> bool:
        known = tally.pairs_for + tally.pairs_against
        unanswered = tally.probes - tally.compared
        return known + max(0, unanswered) < _MIN_PROBES or tally.probes < self._share * tally.filtered

    def _held(
        self, request: Request, fingerprint: bytes, keys: IdentityKeys, involved: Iterable[bytes]
    ) -> HeldRequest | None:
        if self._records.held + len(self._to_hold) >= MOST_HELD:
            return None
        try:
            text = to_json(request.to_dict(spider=self._crawler.spider))
        except (TypeError, ValueError):
            # For example, the callback is not a method of the spider.
            if self._session.counters.is_first("url rules not held"):
                logger.warning(
                    "%s cannot be stored, so URL rules do not filter it. The callback must be a method of the spider, and"
                    " meta and cb_kwargs must only have simple values. Further requests are counted in"
                    " dedupe/url/rules/not_held.",
                    request,
                )
            return None
        return HeldRequest(fingerprint, keys.answered, b"".join(sorted(involved)), text)

    def chain(self, request: Request) -> Iterator[IdentityKeys]:
        """The keys of the requests that were redirected to this one."""
        return (keys for _, keys in self._chain(request))

    def _chain(self, request: Request) -> Iterator[tuple[str, IdentityKeys]]:
        for url in request.meta.get("redirect_urls", ()):
            earlier = request.replace(url=url)
            keys = self.keys(earlier, self._fingerprint(earlier))
            if keys is not None:
                yield url, keys

    def answered(self, *keys: IdentityKeys) -> None:
        """Record that requests of these identities were answered."""
        for each in keys:
            self._urls.add(each.answered)

    # Held requests

    @property
    def _is_ending(self) -> bool:
        """Whether the crawl is ending: requests are no longer scheduled, and stay on disk."""
        return self._is_closed or is_closing(self._crawler)

    def tick(self) -> None:
        """Write what was recorded since the last call, and schedule requests that are due."""
        if self._is_closed:
            return
        self._write_held()
        self._save_tallies()
        if self._is_pumping and not self._pending and not self._is_ending:
            self._pump()

    def _write_held(self) -> None:
        if not self._to_hold:
            return
        batch, self._to_hold = self._to_hold, []
        future = self._submit(self._records.hold, [held for held, _ in batch])

        def ended(future: Future[object]) -> None:
            if future.exception() is not None:
                self._session.loop.call(self._not_held, batch)

        future.add_done_callback(ended)

    def _not_held(self, batch: Sequence[tuple[HeldRequest, Request]]) -> None:
        """Make requests that could not be stored."""
        if self._is_ending:
            self._lost += len(batch)
            return
        self._released.update(held.fingerprint for held, _ in batch)
        self._schedule([request for _, request in batch])

    def _save_tallies(self) -> None:
        self._submit(self._records.save_tallies, list(self._tallies.items()))

    def _pump(self) -> None:
        """Schedule requests that are due, some at a time."""
        self._start(self._records.due, self._pumped, _AT_ONCE)

    def _pumped(self, rows: list[HeldRequest]) -> None:
        if self._is_ending:
            return
        self._is_pumping = bool(rows)
        self._due.update(row.fingerprint for row in rows)
        self._release(rows)
        if rows:
            self._pump()
        else:
            wake_engine(self._crawler)

    def _release(self, rows: Sequence[HeldRequest]) -> None:
        if not rows:
            return
        requests = []
        for row in rows:
            try:
                requests.append(request_from_dict(from_json(row.request), spider=self._crawler.spider))
            except Exception as error:  # noqa: BLE001 - the spider may have other callbacks now
                self._session.counters.error("url", error, "This request, filtered by a URL rule, is lost.")
        self._schedule(requests)
        self._submit(self._records.remove, [row.fingerprint for row in rows])

    def _schedule(self, requests: Sequence[Request]) -> None:
        engine = engine_of(self._crawler)
        if engine is None:
            return
        for request in requests:
            engine.crawl(request)
        self._count("released", len(requests))

    def _spider_idle(self) -> None:
        if self._is_closed:
            return
        self._write_held()
        if not self._pending and not self._is_pumping and self._has_new_held:
            self._has_new_held = False
            self._release_unanswered(b"")
        if not self._pending and not self._is_pumping:
            self._decide()
        if self._pending or self._is_pumping:
            if self._is_pumping and not self._pending:
                self._pump()
            raise DontCloseSpider

    def _decide(self) -> None:
        """Probe the rules about which too little is known, once. Then blame rules for pairs that several may have equated."""
        unproved = {
            rule
            for page, first in self._ambiguous
            for rule in ids_in(page.rules + first.rules)
            if rule in self._tallies and not self._is_proved(self._tallies[rule])
        }
        unproved |= {
            rule
            for rule, tally in self._tallies.items()
            if tally.filtered and not tally.suspended and tally.pairs_for + tally.pairs_against < _MIN_PROBES
        }
        if new := unproved - self._probed:
            self._probed |= new
            for rule in new:
                self._start(
                    self._records.held_by, lambda rows, rule=rule: self._probe(rule, rows), rule, _MIN_PROBES
                )
            return
        ambiguous, self._ambiguous = self._ambiguous, []
        for page, first in ambiguous:
            self._blame(page, first, is_last=True)

    def _probe(self, rule: bytes, rows: list[HeldRequest]) -> None:
        if self._is_ending:
            return
        self._tallies[rule].probes += len(rows)
        self._released.update(row.fingerprint for row in rows)
        self._count("probes", len(rows))
        self._release(rows)
        wake_engine(self._crawler)

    def _release_unanswered(self, after: bytes) -> None:
        """Schedule a request of each identity that was not answered."""
        self._start(self._records.of_identities, self._found_identities, after, _AT_ONCE)

    def _found_identities(self, rows: list[HeldRequest]) -> None:
        if self._is_ending:
            return
        unanswered = [row for row in rows if not self._is_answered(row.identity)]
        if unanswered:
            # Another one, if this request is not answered either.
            self._has_new_held = True
            self._released.update(row.fingerprint for row in unanswered)
            self._release(unanswered)
        if len(rows) == _AT_ONCE:
            self._release_unanswered(rows[-1].identity)
        elif not unanswered:
            wake_engine(self._crawler)

    def _is_answered(self, key: bytes) -> bool:
        """Whether a request of an identity, given by its key, was answered, or was made before there were rules."""
        urls, rest = self._urls, key[1:]
        if self._has_suspended_mark(rest[:GROUP_ID_BYTES], rest[GROUP_ID_BYTES:]):
            # Perhaps another page was answered.
            return False
        return key in urls or (
            self._has_earlier and rest[GROUP_ID_BYTES:] in urls and b"p" + rest not in urls
        )

    def _has_suspended_mark(self, group: bytes, plain: bytes) -> bool:
        return any(_mark(group, rule, plain) in self._urls for rule in self._suspended)

    # Watching

    def _page_judged(self, page: JudgedPage) -> None:
        request, response = page.request, page.response
        if self._is_closed or not 200 <= response.status < 300:
            return
        text = _text_of(page)
        if request in self._again:
            self._again[request] = text
            return
        # A URL that redirects leads to the page at the end.
        named = list(self._chain(request))
        own = self.keys(request, self._fingerprint(request))
        if own is not None:
            named.append((request.url, own))
        for url, keys in named:
            self.answered(keys)
            if text is not None:
                found = RequestedPage(url, *text, b"".join(rule.id for rule in keys.applied))
                self._start(
                    self._records.compare,
                    partial(self._compared, request, found, keys),
                    keys.requested,
                    found,
                )

    def _compared(
        self, request: Request, page: RequestedPage, keys: IdentityKeys, first: RequestedPage | None
    ) -> None:
        if first is None:
            return
        tallies = {
            rule: self._tallies[rule] for rule in ids_in(page.rules + first.rules) if rule in self._tallies
        }
        for tally in tallies.values():
            tally.compared += 1
        if page.text == first.text:
            for tally in tallies.values():
                tally.pairs_for += 1
        elif any(tally.suspended for tally in tallies.values()):
            # That rule explains the difference.
            return
        elif page.family and first.family and page.family != first.family:
            if page.url != request.url:
                # A repeated download would end at another request, so redirects are not repeated.
                self._split(keys, page, first)
                self._blame(page, first)
                return
            self._pending += 1
            self._session.loop.start(self._visit_again(request, page, keys, first))

    async def _visit_again(
        self, request: Request, page: RequestedPage, keys: IdentityKeys, first: RequestedPage
    ) -> None:
        """Find out whether a page changes at every visit; if not, it counts against the rules."""
        again = request.replace(dont_filter=True, meta={**request.meta, "dont_cache": True})
        self._again[again] = None
        try:
            if not self._is_ending:
                await download(self._crawler, again)
        except Exception as error:  # noqa: BLE001 - the page then counts
            logger.debug("%s could not be downloaded again: %s", request, error)
        finally:
            self._pending -= 1
            text = self._again.pop(again)
        if self._is_ending:
            return
        if text is None or text[0] == page.text or text[1] == page.family:
            self._split(keys, page, first)
            self._blame(page, first)
        else:
            self._count("unstable")
        wake_engine(self._crawler)

    def _split(self, keys: IdentityKeys, page: RequestedPage, first: RequestedPage) -> None:
        """Schedule the held requests of an identity with different texts, and filter no more of its requests."""
        if keys.split in self._urls:
            return
        self._urls.add(keys.split)
        self._count("split")
        if self._session.counters.is_first("url rules split"):
            logger.warning(
                "The URL rules equate %s and %s, which are different pages. All requests of such pages are made. Further"
                " ones are counted in dedupe/url/rules/split.",
                first.url,
                page.url,
            )
        self._write_held()
        self._submit(self._records.make_identity_due, keys.answered)
        self._is_pumping = True
        self._pump()

    def _blame(self, page: RequestedPage, first: RequestedPage, *, is_last: bool = False) -> None:
        """Count two pages with different texts against the rules that equated them.

        If several rules may be wrong, the decision is postponed until the spider is idle: meanwhile, other pages may
        prove some of them right.
        """
        rules = {rule for rule in ids_in(page.rules + first.rules) if rule in self._tallies}
        if any(self._tallies[rule].suspended for rule in rules):
            # That rule explains the difference.
            return
        suspects = {rule for rule in rules if not self._is_proved(self._tallies[rule])} or rules
        if len(suspects) > 1 and not is_last:
            self._ambiguous.append((page, first))
            return
        for rule in suspects:
            tally = self._tallies[rule]
            tally.pairs_against += 1
            if tally.pairs_for < MIN_SHARE * (tally.pairs_for + tally.pairs_against):
                self._suspend(rule, page, first)

    @staticmethod
    def _is_proved(tally: RuleTally) -> bool:
        return tally.pairs_for >= _MIN_PROBES and not tally.pairs_against

    def _suspend(self, rule: bytes, page: RequestedPage, first: RequestedPage) -> None:
        self._tallies[rule].suspended = 1
        self._suspended.append(self._by_id[rule])
        self._rules = self._all_rules.without(self._suspended)
        self._count("suspended")
        self._write_held()
        self._save_tallies()
        logger.warning(
            "The URL rule %s is suspended for the rest of the crawl: %s and %s have different texts. The requests that it"
            " filtered are scheduled.",
            self._by_id[rule],
            first.url,
            page.url,
        )
        self._submit(self._records.make_due, rule)
        self._is_pumping = True
        self._pump()

    # Work on the worker

    def _submit(self, action: Callable[..., object], *arguments: object) -> Future[object]:
        future = self._session.worker.submit(action, *arguments)
        self._session.counters.error_of(future, "url", "Requests that URL rules filtered may be lost.")
        return future

    def _start(self, action: Callable[..., object], then: Callable[..., None], *arguments: object) -> None:
        """Run *action* on the worker, then *then* with its result on the event loop. The spider is not closed meanwhile."""
        self._pending += 1
        future = self._submit(action, *arguments)

        def ended(future: Future[object]) -> None:
            self._session.loop.call(self._ended, future, then)

        future.add_done_callback(ended)

    def _ended(self, future: Future[object], then: Callable[..., None]) -> None:
        self._pending -= 1
        if future.exception() is None:
            then(future.result())
        elif then == self._pumped:
            # The records cannot be read.
            self._is_pumping = False

    def _count(self, what: str, count: int = 1) -> None:
        if count:
            self._session.counters.inc(f"dedupe/url/rules/{what}", count)

    async def close(self) -> int:
        """Write the records and close them. Return the number of held requests that could not be written."""
        if self._is_closed:
            return 0
        self._write_held()
        self._save_tallies()
        self._is_closed = True
        for rule, tally in self._tallies.items():
            for name in ("filtered", "probes", "pairs_for", "pairs_against", "suspended"):
                if value := getattr(tally, name):
                    self._session.counters.set(f"dedupe/url/rule/{self._by_id[rule]}/{name}", value)
        await self._session.on_worker(self._records.close)
        return self._lost


def _mark(group: bytes, rule: UrlRule, plain: bytes) -> bytes:
    return b"r" + group + rule.id + plain


def _text_of(page: JudgedPage) -> tuple[bytes, bytes] | None:
    """The keys of the text of a page and of its family. A page without text is compared by its body."""
    capture = page.judgement.capture
    if capture is not None:
        return capture.digest, capture.original or capture.digest
    if page.is_skipped or page.verdict.reason in ("no text", "markup"):
        key = b"body:" + sha256(page.response.body).digest()[:16]
        return key, key
    return None
