"""Watches URL rules during a crawl: whether pages that rules equate really have the same text.

Some of the requests that only rules would filter are made nevertheless (probes). The texts of all pages of an identity
are compared with that of its first page, in the order of the answers. If a text really differs, the page is downloaded
again. If it then has a third text, the page changes at every visit and cannot be compared. Otherwise the pair counts
against the rules that equated the two URLs, except for rules that other pages have proved right. Requests of this
identity are no longer filtered, and its held requests are scheduled. A rule is suspended for the rest of the crawl if the
share of pairs for it falls below 0.98.

If the first page was requested in an earlier run or by another process, its text is unknown here, so the plain URL is
downloaded again.

The probes of a rule during the crawl are its first three filtered requests, the 8th, 16th, 32nd and so on, and a share of
the others. The first ones may be neighbours that tell little about the others. So when the spider is idle, a rule of
which fewer than 20 pairs were compared gets further probes: a random sample of its held requests. If still fewer than
three pairs could be compared, all requests that the rule filtered are made.
"""

from __future__ import annotations

import logging
from collections import Counter
from copy import copy
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.live.engine import download, wake_engine
from scrapy_dedupe.urls.rule_records import RequestedPage, RuleTally, ids_in

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.urls.rule_records import HeldRequest, RuleRecords
    from scrapy_dedupe.urls.rules import UrlRule, UrlRules

    from .held_requests import HeldRequests
    from .identities import Identities, IdentityKeys

logger = logging.getLogger(__name__)

MIN_SHARE: Final = 0.98
_MIN_PROBES: Final = 3
# If 30 % of the pairs of a rule differ, 20 random pairs are all equal in 0.08 % of the crawls.
_MIN_PAIRS: Final = 20
# Some probes of the sample fail or cannot be compared.
_MOST_SAMPLED: Final = 2 * _MIN_PAIRS
_AT_ONCE: Final = 500
_MOST_UNCOMPARED: Final = 1_000
# A rule may be right on the whole and wrong for one page with many URLs. So these filtered requests of each identity
# are probed, counted from 1.
_PROBED_VARIANTS: Final = frozenset(8 * 4**power for power in range(12))
_MOST_COUNTED: Final = 200_000


class RuleWatch:
    """The figures of the rules of one crawl, and the decisions on probes and suspension.

    The figures of earlier runs of the job come from *records*.
    """

    def __init__(
        self,
        crawler: Crawler,
        session: Session,
        rules: UrlRules,
        records: RuleRecords,
        identities: Identities,
        held: HeldRequests,
    ) -> None:
        self._crawler = crawler
        self._session = session
        self._records = records
        self._identities = identities
        self._held = held
        self._share = session.settings.urls.probe_share
        self._rules = {rule.id: rule for rule in rules.rules if rule.enabled}
        self._candidates = [rule for rule in rules.rules if not rule.enabled]
        known = records.tallies()
        self._tallies = {rule: known.get(rule, RuleTally()) for rule in self._rules}
        for tally in self._tallies.values():
            # Probes of the last run that were not answered may not be answered in this run either.
            tally.compared = max(tally.compared, tally.probes)
        # The number of filtered requests of an identity.
        self._variants: dict[bytes, int] = {}
        # Repeated downloads, with the key of the text when it is known.
        self._again: dict[Request, tuple[bytes, bytes] | None] = {}
        # Pages with different texts of which one is downloaded again.
        self._revisited: dict[Request, tuple[RequestedPage, IdentityKeys, RequestedPage]] = {}
        # Pairs of pages with different texts that several rules may have equated.
        self._ambiguous: list[tuple[RequestedPage, RequestedPage]] = []
        # First pages whose plain URL was requested earlier, by the key of the identity.
        self._uncompared: dict[bytes, tuple[Request, RequestedPage, IdentityKeys]] = {}
        # Suspects that were probed while the spider was idle.
        self._probed: set[bytes] = set()
        # The number of probes of each rule that were made while the spider was idle.
        self._sampled: Counter[bytes] = Counter()
        # Rules without held requests, with the number of requests that they had filtered by then.
        self._emptied: dict[bytes, int] = {}
        suspended = [self._rules[rule] for rule, tally in self._tallies.items() if tally.suspended]
        if suspended:
            identities.suspend(*suspended)

    # Probes

    def is_probe(self, identity: bytes, rules: Iterable[bytes]) -> bool:
        """Count a request that these rules filter. Whether it is made nevertheless, as a probe."""
        tallies = [self._tallies[rule] for rule in rules]
        for tally in tallies:
            tally.filtered += 1
        if not self._is_probed_variant(identity) and not any(map(self._needs_probe, tallies)):
            return False
        for tally in tallies:
            tally.probes += 1
        self._count("probes")
        return True

    def _is_probed_variant(self, identity: bytes) -> bool:
        count = self._variants[identity] = self._variants.get(identity, 0) + 1
        if len(self._variants) > _MOST_COUNTED:
            many = {key: known for key, known in self._variants.items() if known >= min(_PROBED_VARIANTS)}
            self._variants = many if len(many) < _MOST_COUNTED // 2 else {}
        return count in _PROBED_VARIANTS

    def _needs_probe(self, tally: RuleTally) -> bool:
        known = tally.pairs_for + tally.pairs_against
        unanswered = tally.probes - tally.compared
        if known + max(0, unanswered) < _MIN_PROBES:
            return True
        # One more at each power of two from 8.
        doublings = max(0, tally.filtered.bit_length() - 3)
        due = _MIN_PROBES + doublings + self._share * (tally.filtered - _MIN_PROBES)
        return tally.probes < due

    def decide(self) -> None:
        """Probe the rules about which too little is known. Then make the requests that the rules filtered about which
        still too little is known, and blame rules for pairs that several may have equated.

        Called when the spider is idle.
        """
        unproved = {
            rule
            for page, first in self._ambiguous
            for rule in self._equating(page, first)
            if not self._is_proved(self._tallies[rule])
        }
        if new := unproved - self._probed:
            self._probed |= new
            self._for_held_by(sorted(new), lambda rule: self._records.held_by(rule, _MIN_PROBES), self._probe)
            return
        lacking = [rule for rule in self._compared_less(_MIN_PAIRS) if self._sampled[rule] < _MOST_SAMPLED]
        if lacking:
            self._sample(lacking)
            return
        unchecked = self._compared_less(_MIN_PROBES)
        self._expect_empty(unchecked)
        self._for_held_by(unchecked, lambda rule: self._records.held_by(rule, _AT_ONCE), self._release)
        ambiguous, self._ambiguous = self._ambiguous, []
        for page, first in ambiguous:
            self._blame(page, first, is_last=True)

    def _compared_less(self, pairs: int) -> list[bytes]:
        """The rules of which fewer than *pairs* pairs were compared, and which may have held requests."""
        return [
            rule
            for rule, tally in self._tallies.items()
            if not tally.suspended
            and tally.pairs_for + tally.pairs_against < pairs
            and self._emptied.get(rule, 0) != tally.filtered
        ]

    def _expect_empty(self, rules: list[bytes]) -> None:
        """Count these rules as emptied until their held requests are found.

        If the records cannot be read, the spider would otherwise never be closed.
        """
        self._emptied |= {rule: self._tallies[rule].filtered for rule in rules}

    def _sample(self, rules: list[bytes]) -> None:
        """Probe random held requests of these rules. A request counts for each rule that filtered it."""
        wanted: Counter[bytes] = Counter()
        for rule in rules:
            tally = self._tallies[rule]
            missing = _MIN_PAIRS - tally.pairs_for - tally.pairs_against
            wanted[rule] = min(missing, _MOST_SAMPLED - self._sampled[rule])
        seed = self._session.crawl_id.encode()

        def probe(rule: bytes, rows: list[HeldRequest]) -> None:
            if rows or wanted[rule] <= 0:
                self._emptied.pop(rule, None)
            self._sampled[rule] += len(rows)
            for row in rows:
                wanted.subtract(ids_in(row.rules))
            self._probe(rule, rows)

        self._expect_empty(rules)
        # The requests of a large rule are often also those of smaller ones, which then need fewer of their own.
        rules = sorted(rules, key=lambda rule: self._tallies[rule].filtered, reverse=True)
        self._for_held_by(rules, lambda rule: self._records.sample(rule, max(0, wanted[rule]), seed), probe)

    def _for_held_by(
        self,
        rules: list[bytes],
        find: Callable[[bytes], list[HeldRequest]],
        then: Callable[[bytes, list[HeldRequest]], None],
    ) -> None:
        """Call *then* with each rule and the requests that *find* finds for it.

        One rule after the other, since a request may be filtered by several.
        """
        left = iter(rules)

        def find_next() -> None:
            rule = next(left, None)
            if rule is not None:
                self._held.start(find, partial(found, rule), rule)

        def found(rule: bytes, rows: list[HeldRequest]) -> None:
            if not self._held.is_ending:
                then(rule, rows)
                find_next()
                wake_engine(self._crawler)

        find_next()

    def _probe(self, rule: bytes, rows: list[HeldRequest]) -> None:
        for row in rows:
            for each in ids_in(row.rules) & self._tallies.keys():
                self._tallies[each].probes += 1
        self._count("probes", len(rows))
        self._held.release(rows)

    def _release(self, rule: bytes, rows: list[HeldRequest]) -> None:
        if rows:
            self._emptied.pop(rule, None)
        self._held.release(rows)

    # Comparison

    def page_judged(self, page: JudgedPage) -> None:
        """Compare a page with the first page of its identity."""
        request, response = page.request, page.response
        if self._held.is_closed or not 200 <= response.status < 300:
            return
        text = _text_of(page)
        if request in self._again:
            self._again[request] = text
            return
        # A URL that redirects leads to the page at the end.
        named = list(self._identities.chain(request))
        own = self._identities.own_keys(request)
        if own is not None:
            named.append((request.url, own))
        for url, keys in named:
            self._identities.answered(keys)
            if text is not None:
                found = RequestedPage(url, *text, b"".join(rule.id for rule in keys.applied))
                then = partial(self._compared, request, found, keys)
                self._held.start(self._records.compare, then, keys.requested, found)

    def _compared(
        self, request: Request, page: RequestedPage, keys: IdentityKeys, first: RequestedPage | None
    ) -> None:
        if first is None:
            # The plain URL may redirect to this page, and would then be downloaded again and again.
            if (
                page.url == request.url
                and not request.meta.get("redirect_urls")
                and len(self._uncompared) < _MOST_UNCOMPARED
                and self._identities.has_earlier_plain(keys)
            ):
                self._uncompared[keys.requested] = request, page, keys
            return
        if not page.rules:
            self._uncompared.pop(keys.requested, None)
        tallies = [self._tallies[rule] for rule in self._equating(page, first)]
        for tally in tallies:
            tally.compared += 1
        if page.text == first.text:
            for tally in tallies:
                tally.pairs_for += 1
        elif any(tally.suspended for tally in tallies):
            # That rule explains the difference.
            return
        elif page.family and first.family and page.family != first.family:
            if page.url != request.url:
                # A repeated download would end at another request, so redirects are not repeated.
                self._differ(page, keys, first)
                return
            self._start_download(self._visit_again(request, page, keys, first))

    def compare_earlier(self) -> None:
        """Compare pages with the plain URLs of their identities, which were requested in an earlier run or elsewhere."""
        uncompared, self._uncompared = self._uncompared, {}
        for each in uncompared.values():
            self._start_download(self._compare_plain(*each))

    async def _compare_plain(self, request: Request, page: RequestedPage, keys: IdentityKeys) -> None:
        url = self._identities.identity(request.url)
        if url == request.url:
            # The rule has been suspended meanwhile.
            return
        text = await self._download(request.replace(url=url))
        if text is not None and not self._held.is_ending:
            self._compared(request, page, keys, RequestedPage(url, *text, b""))

    async def _visit_again(
        self, request: Request, page: RequestedPage, keys: IdentityKeys, first: RequestedPage
    ) -> None:
        """Find out whether a page changes at every visit; if not, it counts against the rules."""
        self._revisited[request] = page, keys, first
        text = await self._download(request)
        if self._held.is_ending:
            return
        self._revisited.pop(request, None)
        if text is None or text[0] == page.text or text[1] == page.family:
            self._differ(page, keys, first)
        else:
            self._count("unstable")

    def _start_download(self, work: Coroutine[Any, Any, None]) -> None:
        """Start *work*, which downloads a page to compare it. The spider is not closed meanwhile."""

        async def run() -> None:
            try:
                await work
            finally:
                self._held.pending -= 1
                wake_engine(self._crawler)

        self._held.pending += 1
        self._session.loop.start(run())

    async def _download(self, request: Request) -> tuple[bytes, bytes] | None:
        """The keys of the text of a page that is downloaded only to compare it; None without an answer."""
        again = request.replace(dont_filter=True, meta={**request.meta, "dont_cache": True})
        self._again[again] = None
        try:
            if not self._held.is_ending:
                await download(self._crawler, again)
        except Exception as error:  # noqa: BLE001 - the page then counts
            logger.debug("%s could not be downloaded again: %s", request, error)
        return self._again.pop(again)

    def _differ(self, page: RequestedPage, keys: IdentityKeys, first: RequestedPage) -> None:
        self._split(page, keys, first)
        self._blame(page, first)

    def _split(self, page: RequestedPage, keys: IdentityKeys, first: RequestedPage) -> None:
        """Schedule the held requests of an identity with different texts, and filter no more of its requests."""
        if not self._identities.urls.add(keys.split):
            return
        self._count("split")
        if self._session.counters.is_first("url rules split"):
            logger.warning(
                "The URL rules equate %s and %s, which are different pages. All requests of such pages are made. Further"
                " ones are counted in dedupe/url/rules/split.",
                first.url,
                page.url,
            )
        self._held.schedule_identity(keys.answered)

    def _blame(self, page: RequestedPage, first: RequestedPage, *, is_last: bool = False) -> None:
        """Count two pages with different texts against the rules that equated them.

        If several rules may be wrong, the decision is postponed until the spider is idle: meanwhile, other pages may
        prove some of them right.
        """
        rules = self._equating(page, first)
        if any(self._tallies[rule].suspended for rule in rules):
            # That rule explains the difference.
            return
        suspects = {rule for rule in rules if not self._is_proved(self._tallies[rule])} or rules
        if len(suspects) > 1 and not is_last:
            if len(self._ambiguous) < _MOST_UNCOMPARED:
                self._ambiguous.append((page, first))
            return
        for rule in suspects:
            tally = self._tallies[rule]
            tally.pairs_against += 1
            if tally.pairs_for < MIN_SHARE * (tally.pairs_for + tally.pairs_against):
                self._suspend(rule, page, first)

    def _equating(self, page: RequestedPage, first: RequestedPage) -> set[bytes]:
        return ids_in(page.rules + first.rules) & self._tallies.keys()

    @staticmethod
    def _is_proved(tally: RuleTally) -> bool:
        return tally.pairs_for >= _MIN_PROBES and not tally.pairs_against

    def _suspend(self, rule: bytes, page: RequestedPage, first: RequestedPage) -> None:
        self._tallies[rule].suspended = 1
        self._identities.suspend(self._rules[rule])
        self._count("suspended")
        self.save()
        logger.warning(
            "The URL rule %s is suspended for the rest of the crawl: %s and %s have different texts. The requests that it"
            " filtered are scheduled.",
            self._rules[rule],
            first.url,
            page.url,
        )
        self._held.schedule_rule(rule)

    def end(self) -> None:
        """Treat pages of which it is not known whether they change at every visit as different: the crawl ends."""
        revisited, self._revisited = self._revisited, {}
        for each in revisited.values():
            self._split(*each)

    # Figures

    def save(self) -> None:
        """Write the figures to the records."""
        known = [
            (rule, copy(tally)) for rule, tally in self._tallies.items() if tally.filtered or tally.compared
        ]
        self._held.submit(self._records.save_tallies, known)

    def set_stats(self) -> None:
        """Set the stats of each rule, also of those that are not enabled."""
        for rule, tally in self._tallies.items():
            for name in ("filtered", "probes", "pairs_for", "pairs_against", "suspended"):
                if value := getattr(tally, name):
                    self._set_stat(self._rules[rule], name, value)
        for candidate in self._candidates:
            evidence = candidate.evidence
            self._set_stat(candidate, "candidate", 0 if evidence is None else evidence.downloads)
            if evidence is not None:
                self._set_stat(candidate, "pairs_for", evidence.pairs_for)
                self._set_stat(candidate, "pairs_against", evidence.pairs_against)

    def _set_stat(self, rule: UrlRule, name: str, value: int) -> None:
        self._session.counters.set(f"dedupe/url/rule/{rule}/{name}", value)

    def _count(self, what: str, count: int = 1) -> None:
        if count:
            self._session.counters.inc(f"dedupe/url/rules/{what}", count)


def _text_of(page: JudgedPage) -> tuple[bytes, bytes] | None:
    """The keys of the text of a page and of its family. A page without text is compared by its body."""
    capture = page.judgement.capture
    if capture is not None:
        return capture.digest, capture.original or capture.digest
    if page.is_skipped or page.verdict.reason in ("no text", "markup"):
        key = b"body:" + sha256(page.response.body).digest()[:16]
        return key, key
    return None
