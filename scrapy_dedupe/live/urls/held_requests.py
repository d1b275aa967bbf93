"""Requests that URL rules filtered, which are held on disk and may be scheduled after all.

Filtered requests are written in batches (:meth:`HeldRequests.write`). Requests that become *due* in the records are
scheduled some at a time, while the crawl is running; at its end they stay on disk. If a batch cannot be written, its
requests are scheduled at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scrapy.utils.request import request_from_dict

from scrapy_dedupe.live.engine import engine_of, is_closing, wake_engine
from scrapy_dedupe.urls.rule_records import MOST_HELD, HeldRequest, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.urls.rule_records import RuleRecords

    from .identities import IdentityKeys

logger = logging.getLogger(__name__)

_WRITE_FROM: Final = 200
_AT_ONCE: Final = 500


class HeldRequests:
    """The held requests of one crawl, in *records*.

    ``is_answered`` says whether a request of an identity, given by its key, was answered. ``is_pumping``: whether
    requests are due. ``pending`` is the number of tasks that must end before the spider is closed, ``lost`` the number of
    requests that could not be stored at the end of the crawl.
    """

    def __init__(
        self,
        crawler: Crawler,
        session: Session,
        records: RuleRecords,
        is_answered: Callable[[bytes], bool],
    ) -> None:
        self._crawler = crawler
        self._session = session
        self._records = records
        self._is_answered = is_answered
        # Requests that are not on disk yet.
        self._to_hold: list[tuple[HeldRequest, Request]] = []
        # Fingerprints of held requests that are scheduled: those that rules may filter again, and the others.
        self._due: set[bytes] = set()
        self._released: set[bytes] = set()
        self._has_new = True
        # The last run may have ended before it scheduled all requests that were due.
        self.is_pumping = records.has_due
        self.is_closed = False
        self.pending = 0
        self.lost = 0

    @property
    def is_ending(self) -> bool:
        """Whether the crawl is ending: requests are no longer scheduled, and stay on disk."""
        return self.is_closed or is_closing(self._crawler)

    # Holding

    def hold(self, request: Request, fingerprint: bytes, keys: IdentityKeys, rules: Iterable[bytes]) -> bool:
        """Hold a request that these rules filtered; False if that is not possible."""
        if self._records.held + len(self._to_hold) >= MOST_HELD:
            return False
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
            return False
        held = HeldRequest(fingerprint, keys.answered, b"".join(sorted(rules)), text)
        self._to_hold.append((held, request))
        self._has_new = True
        if len(self._to_hold) >= _WRITE_FROM:
            self.write()
        return True

    def write(self) -> None:
        """Write the requests that were held since the last call."""
        if not self._to_hold:
            return
        batch, self._to_hold = self._to_hold, []
        future = self.submit(self._records.hold, [held for held, _ in batch])

        def ended(future: Future[object]) -> None:
            if future.exception() is not None:
                self._session.loop.call(self._not_held, batch)

        future.add_done_callback(ended)

    def _not_held(self, batch: Sequence[tuple[HeldRequest, Request]]) -> None:
        """Make requests that could not be stored."""
        if self.is_ending:
            self.lost += len(batch)
            return
        self._released.update(held.fingerprint for held, _ in batch)
        self._schedule([request for _, request in batch])

    # Scheduling

    def is_scheduled(self, fingerprint: bytes) -> bool:
        """Whether this is a held request that is scheduled now."""
        if fingerprint in self._due:
            self._due.discard(fingerprint)
            return True
        return fingerprint in self._released

    def take_released(self, fingerprint: bytes) -> bool:
        """Whether this is a held request that rules must not filter again. True only once."""
        if fingerprint in self._released:
            self._released.discard(fingerprint)
            return True
        return False

    def schedule_rule(self, rule: bytes) -> None:
        """Schedule all requests that a rule filtered, alone or with others."""
        self._schedule_due(self._records.make_due, rule)

    def schedule_identity(self, identity: bytes) -> None:
        """Schedule all held requests of an identity."""
        self._schedule_due(self._records.make_identity_due, identity)

    def _schedule_due(self, make_due: Callable[[bytes], object], of: bytes) -> None:
        self.write()
        self.submit(make_due, of)
        self.is_pumping = True
        self.pump()

    def pump(self) -> None:
        """Schedule requests that are due, some at a time."""
        self.start(self._records.due, self._pumped, _AT_ONCE)

    def _pumped(self, rows: list[HeldRequest]) -> None:
        if self.is_ending:
            return
        self.is_pumping = bool(rows)
        self._due.update(row.fingerprint for row in rows)
        self._make(rows)
        if rows:
            self.pump()
        else:
            wake_engine(self._crawler)

    def schedule_unanswered(self) -> None:
        """Schedule a request of each identity that was not answered, if requests were held since the last call."""
        if self._has_new:
            self._has_new = False
            self._find_unanswered(b"")

    def _find_unanswered(self, after: bytes) -> None:
        self.start(self._records.of_identities, self._found_identities, after, _AT_ONCE)

    def _found_identities(self, rows: list[HeldRequest]) -> None:
        if self.is_ending:
            return
        unanswered = [row for row in rows if not self._is_answered(row.identity)]
        if unanswered:
            # Another one, if this request is not answered either.
            self._has_new = True
            self.release(unanswered)
        if len(rows) == _AT_ONCE:
            self._find_unanswered(rows[-1].identity)
        elif not unanswered:
            wake_engine(self._crawler)

    def release(self, rows: Sequence[HeldRequest]) -> None:
        """Schedule these requests, so that rules do not filter them again."""
        self._released.update(row.fingerprint for row in rows)
        self._make(rows)

    def _make(self, rows: Sequence[HeldRequest]) -> None:
        if not rows:
            return
        requests = []
        for row in rows:
            try:
                requests.append(request_from_dict(from_json(row.request), spider=self._crawler.spider))
            except Exception as error:  # noqa: BLE001 - the spider may have other callbacks now
                self._session.counters.error("url", error, "This request, filtered by a URL rule, is lost.")
        self._schedule(requests)
        self.submit(self._records.remove, rows)

    def _schedule(self, requests: Sequence[Request]) -> None:
        engine = engine_of(self._crawler)
        if engine is None:
            return
        for request in requests:
            engine.crawl(request)
        if requests:
            self._session.counters.inc("dedupe/url/rules/released", len(requests))

    # Work on the worker

    def submit(self, action: Callable[..., object], *arguments: object) -> Future[object]:
        """Run *action*, which uses the records, on the worker."""
        future = self._session.worker.submit(action, *arguments)
        self._session.counters.error_of(future, "url", "Requests that URL rules filtered may be lost.")
        return future

    def start(self, action: Callable[..., object], then: Callable[..., None], *arguments: object) -> None:
        """Run *action* on the worker, then *then* with its result on the event loop. The spider is not closed meanwhile."""
        self.pending += 1
        future = self.submit(action, *arguments)

        def ended(future: Future[object]) -> None:
            self._session.loop.call(self._ended, future, then)

        future.add_done_callback(ended)

    def _ended(self, future: Future[object], then: Callable[..., None]) -> None:
        self.pending -= 1
        if future.exception() is None:
            then(future.result())
        elif then == self._pumped:
            # The records cannot be read.
            self.is_pumping = False

    async def close(self) -> None:
        """Write the held requests and close the records."""
        self.write()
        self.is_closed = True
        await self._session.on_worker(self._records.close)
