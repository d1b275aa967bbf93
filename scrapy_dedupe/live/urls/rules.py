"""URL rules in a crawl: which requests they filter.

A request is filtered if its page was requested under another URL (:mod:`.identities`). **No page is lost silently.**
Filtered requests are held on disk (:mod:`.held_requests`). They are scheduled after all if

*   a rule that filtered them is suspended (:mod:`.rule_watch`), or
*   no request of their identity has been answered when the spider is idle: it failed, a middleware dropped it, or it was
    redirected to another page. Then one held request of the identity is scheduled.

A request that cannot be held is not filtered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import DontCloseSpider

from scrapy_dedupe.errors import SettingError, naming
from scrapy_dedupe.urls.rule_file import read_rules
from scrapy_dedupe.urls.rule_records import RuleRecords, records_path

from .held_requests import HeldRequests
from .identities import Identities
from .rule_watch import RuleWatch

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_dedupe.live.session import Session

    from .fingerprints import Fingerprints
    from .identities import IdentityKeys, RecordedKeys


class AppliedRules:
    """The rules of one crawl, from the file *path*."""

    def __init__(self, crawler: Crawler, session: Session, path: Path, fingerprints: Fingerprints) -> None:
        self._crawler = crawler
        self._session = session
        self._path = path
        with naming("DEDUPE_URL_RULES"):
            self._rules = read_rules(path)
        self.identities = Identities(self._rules, fingerprints)

    def open(self, urls: RecordedKeys) -> None:
        """Open the records, after the filter *urls*. Raises :class:`~scrapy_dedupe.errors.DedupeError`."""
        session, crawler = self._session, self._crawler
        if session.is_crawl and "content" not in session.layers:
            raise SettingError(
                "The setting DEDUPE_URL_RULES needs the content layer, which finds out whether pages that rules equate"
                " have the same text. Set DEDUPE_CONTENT_ENABLED = True, or remove DEDUPE_URL_RULES."
            )
        path = None if session.jobdir is None else records_path(session.jobdir)
        records = RuleRecords(path, self._rules.id, str(self._path), has_earlier=urls.has_fingerprints)
        session.at_refusal(records.close)
        self.identities.open(urls, has_earlier=records.has_earlier)
        self.held = HeldRequests(crawler, session, records, self.identities.is_answered)
        self._watch = RuleWatch(crawler, session, self._rules, records, self.identities, self.held)
        session.events.listen(self._watch.page_judged)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)

    def may_filter(self, keys: IdentityKeys, fingerprint: bytes) -> bool:
        """Whether the page of a request was requested under another URL. Otherwise its identity is recorded."""
        if self.held.take_released(fingerprint):
            self.identities.record(keys)
            return False
        return not self.identities.is_first(keys)

    def is_filtered(self, request: Request, fingerprint: bytes, keys: IdentityKeys) -> bool:
        """Whether a request is filtered; its page was requested under another URL. A filtered request is held."""
        if keys.split in self.identities.urls:
            return False
        involved = self.identities.equating_rules(keys)
        # If the rules that changed the other URL are unknown, nothing could be blamed.
        if not involved or self._watch.is_probe(keys.plain, involved):
            return False
        is_held = self.held.hold(request, fingerprint, keys, involved)
        self._session.counters.inc(f"dedupe/url/rules/{'filtered' if is_held else 'not_held'}")
        return is_held

    def tick(self) -> None:
        """Write what was recorded since the last call, and schedule requests that are due."""
        held = self.held
        if held.is_closed:
            return
        held.write()
        self._watch.save()
        if held.is_pumping and not held.pending and not held.is_ending:
            held.pump()

    def _spider_idle(self) -> None:
        held = self.held
        if held.is_closed:
            return
        held.write()
        if not held.pending and not held.is_pumping:
            held.schedule_unanswered()
        if not held.pending and not held.is_pumping:
            self._watch.compare_earlier()
        if not held.pending and not held.is_pumping:
            self._watch.decide()
        if held.pending or held.is_pumping:
            if not held.pending:
                held.pump()
            raise DontCloseSpider

    async def close(self) -> int:
        """Write the records and close them. Return the number of held requests that could not be written."""
        held = self.held
        if not held.is_closed:
            self._watch.end()
            self._watch.set_stats()
            self._watch.save()
            await held.close()
        return held.lost
