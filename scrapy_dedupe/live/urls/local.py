"""The URL filter of a single process, in memory, and stored in JOBDIR if that is set.

Lookups run on the event loop, file access on the worker. The files are described in :mod:`scrapy_dedupe.urls.folder`.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.forgotten import Forgotten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.urls.exact import ExactSet
    from scrapy_dedupe.urls.folder import FilterFolder, LocalFilter
    from scrapy_dedupe.urls.journal import Journal

    from .identities import RecordedKeys

logger = logging.getLogger(__name__)

CONTINUES: Final = "The URL filter continues."


class LocalUrls:
    """Implements :class:`~scrapy_dedupe.dupefilters.UrlFilter`."""

    def __init__(self, session: Session, fingerprinter: str) -> None:
        self._session = session
        self._settings = settings = session.settings.urls
        self._fingerprinter = fingerprinter
        self._filter: LocalFilter | None = None
        self._exact: ExactSet | None = None
        self._exact_write: Future[None] | None = None
        self._forgotten = Forgotten()
        # Fingerprints of start requests; the first redirect to each of them passes.
        self._starts = Forgotten()
        # New fingerprints that are not in the journals of seen requests and start requests yet.
        self._found: list[bytes] = []
        self._started: list[bytes] = []
        self._asked_again = 0
        self._is_closed = False
        self._folder: FilterFolder | None = None
        if session.jobdir is not None:
            from scrapy_dedupe.urls.folder import FilterFolder

            self._folder = FilterFolder(
                session.jobdir, fingerprinter, confirm=settings.confirm, on_error=self._not_confirmed
            )
        self._done_requests = DoneRequests(
            session, None if self._folder is None else self._folder.done_journal
        )
        self.keeps_done = self._folder is not None
        self.keeps_failed = self._folder is not None and settings.forget_failed

    def prepare(self) -> None:
        """After a kill, rename Scrapy's queue before the scheduler opens it."""
        if self._folder is not None:
            aside = self._folder.set_queue_aside()
            if aside is not None:
                logger.info("Scrapy's own queue may have lost requests. It was renamed to %s.", aside)

    def open(self) -> None:
        settings, folder = self._settings, self._folder
        if folder is None:
            if settings.confirm:
                from scrapy_dedupe.urls.exact import ExactSet

                self._exact = ExactSet(None, self._fingerprinter)
                self._session.at_refusal(self._exact.close)
            self._filter = self._empty_filter()
        else:
            from scrapy_dedupe.urls.exact import ConfirmedBloomFilter
            from scrapy_dedupe.urls.folder import LastStop

            folder.open(settings.capacity, settings.error_rate)
            self._filter, self._forgotten, self._starts = folder.filter, folder.forgotten, folder.starts
            for note in folder.notes:
                logger.info("%s", note)
            for warning in folder.warnings:
                logger.warning("%s", warning)
                self._session.counters.inc("dedupe/errors/url")
            if folder.last_stop is LastStop.CUT:
                logger.warning(
                    "The last run of this job did not end cleanly, and Scrapy's own queue may have lost requests. %d "
                    "URLs that were done and had no new links count as seen. Other pages are requested again.",
                    len(folder.filter),
                )
            # Opening removed the snapshot. If the start fails, it must be written again.
            self._session.at_refusal(self._undo_open)
            if isinstance(self._filter, ConfirmedBloomFilter):
                self._exact = self._filter.exact

    def add(self, fingerprint: bytes) -> bool:
        assert self._filter is not None
        if self._filter.add(fingerprint):
            if self._folder is not None:
                self._found.append(fingerprint)
            if self._exact is not None and self._exact.wants_writing:
                self._write_exact()
            # After a kill a new fingerprint may still be in the list of forgotten ones.
            self._forgotten.take(fingerprint)
            return True
        if not self._forgotten.take(fingerprint):
            return False
        self._asked_again += 1
        return True

    def add_all_unless(self, known: bytes, fingerprints: list[bytes]) -> bool:
        filter_ = self._filter
        if not isinstance(filter_, GrowingBloomFilter) or self._forgotten:
            return add_each_unless(self, known, fingerprints)
        is_new = filter_.add_all_unless(known, fingerprints)
        if is_new and self._folder is not None:
            self._found += fingerprints
        return is_new

    def add_start(self, fingerprint: bytes) -> None:
        if self.add(fingerprint) and self._folder is not None:
            self._started.append(fingerprint)
        self._starts.add_many((fingerprint,))

    def take_start(self, fingerprint: bytes) -> bool:
        return self._starts.take(fingerprint)

    def __contains__(self, fingerprint: bytes) -> bool:
        return self._filter is not None and fingerprint in self._filter and fingerprint not in self._forgotten

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        return [fingerprint in self for fingerprint in fingerprints]

    def keep(self, done: list[bytes], failed: list[bytes]) -> None:
        folder, session = self._folder, self._session
        if self._is_closed:
            return
        if self._exact is not None:
            self._write_exact()
        if folder is None:
            return
        append_on_worker(session, folder.seen_journal, self._found)
        append_on_worker(session, folder.started_journal, self._started)
        append_on_worker(session, folder.forgotten_journal, failed)
        self._found, self._started = [], []
        self._done_requests.take(done)

    async def close(self, done: list[bytes], failed: list[bytes], lost: int) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # Take the rest before the first await: later it would be passed to a closed filter.
        done = self._done_requests.rest() + done
        session = self._session
        # Wait for the worker, so that all write errors of the archive are known.
        await session.on_worker(lambda: None)
        if self._folder is None:
            if self._exact is not None:
                await session.on_worker(self._exact.close)
        elif session.is_spoiled:
            logger.warning(
                "The archive lacks pages of this run, so the URL filter treats the run as unclean. The next run with "
                "this JOBDIR requests them again."
            )
            await session.on_worker(self._folder.abandon)
        elif lost:
            logger.warning("%s", lost_requests(lost))
            # Requests that are done still count as done.
            await session.on_worker(self._close_unclean, self._folder, done)
        else:
            # All callbacks have ended: the engine waits for them before it closes the scheduler.
            await session.on_worker(self._save, self._folder, done, failed)

    def clear(self, *, at_start: bool) -> None:
        self._filter = self._empty_filter()
        self._found, self._started = [], []
        self._forgotten, self._starts = Forgotten(), Forgotten()
        self._done_requests.rest()
        if self._exact is not None:
            # Not on the worker: it would also remove fingerprints that are recorded before the worker runs.
            try:
                self._exact.clear()
            except StoreError as error:
                self._not_confirmed(error)
        if self._folder is not None:
            self._session.worker.submit(self._folder.clear)

    def _empty_filter(self) -> LocalFilter:
        bloom = GrowingBloomFilter(self._settings.capacity, self._settings.error_rate)
        if self._exact is None:
            return bloom
        from scrapy_dedupe.urls.exact import ConfirmedBloomFilter

        return ConfirmedBloomFilter(bloom, self._exact, self._not_confirmed)

    @property
    def layers(self) -> int:
        return 0 if self._filter is None else self._filter.layers

    @property
    def has_fingerprints(self) -> bool:
        return self._filter is not None and len(self._filter) > 0

    def figures(self) -> dict[str, float]:
        if self._filter is None:
            return {}
        figures = asdict(self._filter.figures())
        return (
            figures
            | ({"asked_again": self._asked_again} if self._asked_again else {})
            | self._confirmations()
        )

    def known_figures(self) -> dict[str, float]:
        if self._filter is None:
            return {}
        return asdict(self._filter.expected_figures()) | self._confirmations()

    def _confirmations(self) -> dict[str, float]:
        if self._exact is None:
            return {}
        from scrapy_dedupe.urls.exact import ConfirmedBloomFilter

        assert isinstance(self._filter, ConfirmedBloomFilter)
        return {"confirmed": self._filter.confirmed, "false_positives": self._filter.false_positives}

    def _save(self, folder: FilterFolder, done: list[bytes], failed: list[bytes]) -> None:
        assert self._filter is not None
        try:
            folder.done_journal.append(done)
            folder.forgotten_journal.append(failed)
            folder.seen_journal.append(self._found)
            folder.started_journal.append(self._started)
        finally:
            folder.close(self._filter)

    @staticmethod
    def _close_unclean(folder: FilterFolder, done: list[bytes]) -> None:
        try:
            folder.done_journal.append(done)
        finally:
            folder.abandon()

    def _write_exact(self) -> None:
        if self._exact is not None and (self._exact_write is None or self._exact_write.done()):
            self._exact_write = self._session.worker.submit(self._exact.write_pending)
            self._session.counters.error_of(self._exact_write, "url", CONTINUES)

    def _not_confirmed(self, error: BaseException) -> None:
        self._session.counters.error("url", error, "Requests whose hits cannot be confirmed pass.")

    def _undo_open(self) -> None:
        self._is_closed = True
        if self._folder is not None:
            self._folder.undo_open()


class DoneRequests:
    """Holds back the fingerprints of done requests until the archive has written their pages.

    A page that the archive could not write must be requested again. The fingerprints are therefore appended to
    ``journal`` when the worker has finished all earlier jobs and the archive has no write error.
    """

    def __init__(self, session: Session, journal: Journal | None = None) -> None:
        self.journal = journal
        self._session = session
        self._waiting: list[bytes] = []

    def take(self, done: list[bytes]) -> None:
        """Add the fingerprints of done requests."""
        if not done:
            return
        self._waiting += done
        count = len(done)
        future = self._session.worker.submit(lambda: None)
        future.add_done_callback(lambda _: self._session.loop.call(self._archived, count))

    def rest(self) -> list[bytes]:
        """Remove and return the fingerprints that still wait."""
        rest, self._waiting = self._waiting, []
        return rest

    def _archived(self, count: int) -> None:
        done, self._waiting = self._waiting[:count], self._waiting[count:]
        if self.journal is not None and not self._session.is_spoiled:
            append_on_worker(self._session, self.journal, done)


def add_each_unless(urls: RecordedKeys, known: bytes, fingerprints: Sequence[bytes]) -> bool:
    """Implements :meth:`~scrapy_dedupe.dupefilters.UrlFilter.add_all_unless` with single calls."""
    if known in urls or not urls.add(fingerprints[0]):
        return False
    for fingerprint in fingerprints[1:]:
        urls.add(fingerprint)
    return True


def append_on_worker(session: Session, journal: Journal, fingerprints: list[bytes]) -> None:
    """Append to a journal on the worker. An error is counted."""
    if fingerprints:
        future = session.worker.submit(journal.append, fingerprints)
        session.counters.error_of(future, "url", CONTINUES)


def lost_requests(count: int) -> str:
    """The warning for a stop with requests that Scrapy could not write to its queue."""
    return (
        f"{count:,} requests are lost, because Scrapy could not write them to its queue (for example, because their "
        "callback is not a method of the spider). The URL filter treats this run as unclean, and the next run with "
        "this JOBDIR requests the missing pages. Set SCHEDULER_DEBUG = True to log these requests."
    )
