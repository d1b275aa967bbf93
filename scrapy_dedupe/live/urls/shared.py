"""The URL filter in Redis, as one of the processes that share it.

With JOBDIR, and unless the queue is in Redis too, the job keeps three files beside it, under ``dedupe/urls``:
``shared`` names the filter that it uses and tells whether it was left in good order
(:mod:`scrapy_dedupe.urls.attachment`), ``urls.done`` is the journal of requests that are done and brought
nothing new (:mod:`scrapy_dedupe.urls.journal`), and ``urls.forgotten`` that of those which were asked for again
since (they were forgotten, or the server was away or had lost the filter), and do not count as done. After a
kill the filter begins anew, if no other process uses it, with what the journals hold, and Scrapy's queue is set
aside, for the reasons told in :mod:`scrapy_dedupe.urls.folder`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.live.stores import away_at_start
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.urls.attachment import Kept
from scrapy_dedupe.urls.fallback import SteadySharedFilter
from scrapy_dedupe.urls.folder import (
    DONE_NAME,
    FORGOTTEN,
    FORGOTTEN_NAME,
    SCRAPY_QUEUE_NAME,
    SNAPSHOT_NAME,
    set_aside,
)
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import Journal
from scrapy_dedupe.urls.shared import SharedBloomFilter

from .done_requests import DoneRequests
from .local import lost_requests

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.urls.shared_layers import Description

logger = logging.getLogger(__name__)

# The event loop waits for the answer of a shared filter, so a silent server may not hold it up for long.
_LONGEST_WAIT_S = 1.0
_PART = 10_000
_MOST_FAILED = 1_000_000


class SharedUrls:
    """See :class:`~scrapy_dedupe.dupefilters.UrlFilter` for what the dupefilter asks of it.

    ``queue_is_shared``: the queue lies in Redis too, under scrapy-redis's scheduler, which says with ``clear()``
    when to delete.
    """

    def __init__(self, session: Session, fingerprinter: str, *, queue_is_shared: bool) -> None:
        self._session = session
        self._settings = session.settings.urls
        self._fingerprinter = fingerprinter
        self._queue_is_shared = queue_is_shared
        self._jobdir = None if queue_is_shared else session.jobdir
        self._filter: SteadySharedFilter | None = None
        self._kept = Kept()
        self._done: Journal | None = None
        self._done_before = 0
        self._again: Journal | None = None
        self._asked_again = Forgotten()
        self._settling = DoneRequests(session, self._record_done)
        self._failed: list[bytes] = []
        self._losses = 0
        self._is_closed = False
        self.keeps_done = self._jobdir is not None
        self.keeps_failed = self._settings.forget_failed

    def prepare(self) -> None:
        """What has to be done before the scheduler opens its queue."""
        if self._jobdir is None:
            return
        kept, queue = Kept.read(self._kept_path), self._jobdir / SCRAPY_QUEUE_NAME
        if kept.born and not kept.is_whole and queue.exists():
            logger.warning(
                "The last run of this job was cut. Scrapy's own queue may have lost requests; it was set aside in"
                " %s.",
                set_aside(queue),
            )

    def open(self) -> None:
        from scrapy_dedupe.stores.redis import connect  # of use to this way alone

        settings, url = self._settings, self._settings.store_url
        assert url is not None
        self._kept = kept = Kept() if self._jobdir is None else Kept.read(self._kept_path)
        shared = SharedBloomFilter(
            connect(parse_store_url(url), min(self._session.settings.store_timeout_s, _LONGEST_WAIT_S)),
            settings.key_for(self._session.spider_name),
            settings.capacity,
            settings.error_rate,
            url=parse_store_url(url).shown,
            fingerprinter=self._fingerprinter,
            # Scrapy-redis has its queue in Redis, where a killed process leaves it whole.
            keep="*" if self._queue_is_shared and settings.queue_persists else kept.born,
            gone=[kept.token],
        )
        with away_at_start():
            attachment = shared.attach()
        self._session.at_refusal(lambda: self._give_back(shared))
        for sentence in attachment.notes(shared.name):
            logger.info("%s", sentence)
        for sentence in attachment.warnings(shared.name):
            logger.warning("%s", sentence)
        if attachment.was_cut and self._queue_is_shared:
            logger.warning(
                "A request that it had taken from the queue is in the queue no more. To ask for everything again, begin"
                " filter and queue anew with SCHEDULER_FLUSH_ON_START = True."
            )
        if self._jobdir is not None:
            self._open_journal(shared)
        self._keep_name(shared)
        self._filter = SteadySharedFilter(
            shared,
            self._session.stores.breaker(url),
            self._session.worker.submit,
            # A shared queue is in the same store and is lost together with the filter.
            outlives_store=not self._queue_is_shared,
        )

    def add(self, fingerprint: bytes) -> bool:
        assert self._filter is not None
        is_new = self._filter.add(fingerprint)
        if is_new and self._again is not None:
            # At once, since after a kill it would count as done.
            self._record_again()
        return is_new

    def add_start(self, fingerprint: bytes) -> None:
        assert self._filter is not None
        # First, or another process could find it recorded by then, and its redirect would not pass.
        self._filter.note_start(fingerprint)
        self.add(fingerprint)

    def take_start(self, fingerprint: bytes) -> bool:
        return self._filter is not None and self._filter.take_start(fingerprint)

    def __contains__(self, fingerprint: bytes) -> bool:
        return self._filter is not None and fingerprint in self._filter

    def keep(self, done: list[bytes], failed: list[bytes]) -> None:
        if self._filter is None or self._is_closed:
            return
        self._filter.tick()
        self._report_loss()
        self._record_again()
        self._settling.take(done)
        # Told to the others at the end alone, or whoever finds such a URL would try it again and again.
        self._failed += failed[: _MOST_FAILED - len(self._failed)]

    async def close(self, done: list[bytes], failed: list[bytes], lost: int) -> None:
        if self._filter is None or self._is_closed:
            return
        self._is_closed = True
        # Before anything is waited for, since what settles meanwhile would be handed to a filter that is closed.
        done = self._settling.rest() + done
        await self._session.on_worker(lambda: None)
        is_lossy = bool(lost) and self._jobdir is not None
        if is_lossy:
            logger.warning("%s", lost_requests(lost))
        try:
            await self._session.on_worker(self._leave, self._filter, done, self._failed + failed, is_lossy)
        finally:
            self._report_loss()

    def clear(self, *, at_start: bool) -> None:
        if self._filter is not None:
            # The queue of all processes is deleted with it; what lay there must not count as seen.
            self._filter.clear(of_all=at_start)

    def figures(self) -> dict[str, float]:
        if self._filter is None:
            return {}
        shared = self._filter.shared
        found = shared.last_description
        if not self._filter.is_away:
            with suppress(StoreUnavailable):
                found = shared.describe()
        untold = self._filter.given_up
        return _figures(found) | ({"not_shared": untold} if untold else {})

    def known_figures(self) -> dict[str, float]:
        # Read every ten seconds or so.
        return {} if self._filter is None else _figures(self._filter.description)

    @property
    def capacity(self) -> int:
        return (
            self._settings.capacity if self._filter is None else self._filter.shared.last_description.capacity
        )

    @property
    def has_grown(self) -> bool:
        return self._filter is not None and len(self._filter.shared.last_description.layers) > 1

    @property
    def _kept_path(self) -> Path:
        assert self._jobdir is not None
        return self._jobdir / "dedupe" / "urls" / "shared"

    def _open_journal(self, shared: SharedBloomFilter) -> None:
        """Open the journal, and tell a filter that is not the one of the last run what it holds."""
        folder = self._kept_path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._done = journal = Journal(folder / DONE_NAME, self._fingerprinter)
            self._again = asked_again = Journal(folder / FORGOTTEN_NAME, self._fingerprinter, FORGOTTEN)
            for file in (journal, asked_again):
                file.lock()
                file.open()
            self._done_before = journal.size_bytes
            self._asked_again = Forgotten(asked_again.fingerprints())
            # It is out of date from now on, and a filter of this process alone must not go by it later.
            snapshot = folder / SNAPSHOT_NAME
            if snapshot.exists():
                snapshot.replace(snapshot.with_name(f"{SNAPSHOT_NAME}.unused"))
        except OSError as exc:
            raise StoreUnavailable(
                f"The folder {folder} of this job cannot be used: {exc}. Make it readable and writable."
            ) from exc
        if shared.born != self._kept.born:
            known = 0
            fingerprints = (item for item in journal.fingerprints() if item not in self._asked_again)
            while part := list(islice(fingerprints, _PART)):
                if shared.last_description.forgotten:
                    are_forgotten = shared.are_forgotten(part)
                    part = [item for item, is_one in zip(part, are_forgotten, strict=True) if not is_one]
                shared.add_many(part)
                known += len(part)
            if known:
                logger.info("The shared URL filter knows %d URLs that this job was done with.", known)

    def _keep_name(self, shared: SharedBloomFilter, *, is_whole: bool = False) -> None:
        """Keep in JOBDIR which filter this job uses; the server may have lost the one that it began with."""
        kept = Kept(shared.born or "", shared.token, is_whole)
        if self._jobdir is not None and kept.born:
            kept.write(self._kept_path)

    def _record_done(self, done: list[bytes]) -> None:
        if self._done is not None and not self._is_closed:
            self._watch(self._session.worker.submit(self._done.append, done))

    def _record_again(self) -> None:
        """Keep what was asked for again; on the thread that asks, and on the worker when nothing is asked any more."""
        assert self._filter is not None
        fingerprints = self._filter.take_asked_again()
        if fingerprints and self._again is not None:
            self._asked_again.add_many(fingerprints)
            try:
                self._again.append(fingerprints)
            except (OSError, StoreUnavailable) as error:
                self._session.counters.error("url", error, "The URL filter itself goes on.")

    def _report_loss(self) -> None:
        """Count each loss of the filter on the server, as after ``FLUSHALL``, and log the first one."""
        assert self._filter is not None
        shared, known = self._filter.shared, self._losses
        self._losses = shared.times_lost
        if self._losses == known:
            return
        self._session.counters.inc("dedupe/errors/url", self._losses - known)
        if known == 0:
            logger.error(
                "The shared URL filter %s was lost during the crawl: the store %s was emptied, or another process began "
                "the filter anew. %s Do not empty a store while crawls use it. Further losses are counted in "
                "dedupe/errors/url.",
                shared.name,
                shared.url,
                "Every page is requested again."
                if self._queue_is_shared
                else "This process keeps filtering its own requests; pages of other processes may be requested again.",
            )

    def _watch(self, future: Future[None]) -> None:
        self._session.counters.error_of(future, "url", "The URL filter itself goes on.")

    def _leave(
        self, filter_: SteadySharedFilter, done: list[bytes], failed: list[bytes], is_lossy: bool
    ) -> None:
        """End the run; on the worker."""
        is_cut = self._session.is_spoiled and self._jobdir is not None
        try:
            self._record_again()
            if self._done is not None and self._again is not None and not is_cut:
                self._done.append(done)
                self._done.sync()
                is_cut = self._done.is_broken or self._again.is_broken or is_lossy
                if not is_cut and len(self._asked_again):
                    # What was done before it was asked for again is not done.
                    self._done.rewrite(
                        item
                        for is_older, item in self._done.older(self._done_before)
                        if not (is_older and item in self._asked_again)
                    )
            if failed and (self._settings.persist or self._queue_is_shared):
                filter_.forget(failed)
            self._keep_name(filter_.shared, is_whole=not is_cut)
            filter_.leave(delete=not self._settings.persist and not self._queue_is_shared, cut=is_cut)
            if self._again is not None and not is_cut:
                self._again.clear()
        finally:
            self._close_journals()

    def _give_back(self, shared: SharedBloomFilter) -> None:
        """Undo a start that came to nothing."""
        self._is_closed = True
        try:
            # A first start leaves the queue as whole as it was.
            self._keep_name(shared, is_whole=self._kept.is_whole or not self._kept.born)
        finally:
            shared.detach(delete=not self._settings.persist)
            self._close_journals()

    def _close_journals(self) -> None:
        for journal in (self._done, self._again):
            if journal is not None:
                journal.close()


def _figures(found: Description) -> dict[str, float]:
    return {
        "seen": found.seen,
        "capacity": found.capacity,
        "layers": len(found.layers),
        "bytes": found.size_bytes,
        "fill_ratio": found.fill_ratio,
        "estimated_error": found.estimated_error,
        "expected_lost": found.expected_lost,
    }
