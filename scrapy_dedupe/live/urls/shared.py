"""The URL filter in Redis, used by one of the processes that share it.

With JOBDIR, unless the queue is in Redis too, the job has three files in ``dedupe/urls``. ``shared`` is a line of text
about the filter that the job uses: its generation, the token of the last attachment, and the word "whole" if the run
ended cleanly, separated by spaces. When the job starts again, the process of that token no longer runs, even if it ran
on another machine. ``urls.done`` is the journal of done leaves (:mod:`scrapy_dedupe.urls.journal`). ``urls.forgotten``
is the journal of requests that were requested again since and no longer count as done: they were forgotten, or the
server was unavailable or had lost the filter. After a kill, if no other process uses the filter, it is recreated with the content of the journals, and
Scrapy's queue is renamed. :mod:`scrapy_dedupe.urls.folder` explains why.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.stores import explain_unavailable
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.urls.fallback import FallbackSharedFilter
from scrapy_dedupe.urls.folder import SNAPSHOT_NAME
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.journal import DONE, FORGOTTEN, Journal, in_parts
from scrapy_dedupe.urls.scrapy_file import SCRAPY_QUEUE_NAME, set_aside
from scrapy_dedupe.urls.shared import SharedBloomFilter

from .local import CONTINUES, DoneRequests, add_each_unless, lost_requests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.live.session import Session

logger = logging.getLogger(__name__)

# The event loop waits for the answers of a shared filter, so a server that does not answer must not block it for long.
_MAX_TIMEOUT_S = 1.0
_MAX_FAILED = 1_000_000
_WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class LastAttachment:
    """The data that a job stores about the shared filter that it used.

    ``generation`` and ``token`` are empty for a new job. ``is_clean``: the run that wrote the file ended cleanly.
    """

    generation: str = ""
    token: str = ""
    is_clean: bool = False

    @classmethod
    def read(cls, path: Path) -> LastAttachment:
        """Read the file; empty values if it does not exist.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if the file cannot be read.
        """
        try:
            words = path.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as exc:
            raise StoreUnavailable(
                f"{path} cannot be read: {exc}. It names the shared URL filter of this job. Delete it to recreate "
                "that filter."
            ) from exc
        generation, token, whole = (*words, "", "", "")[:3]
        return cls(generation, token, whole == _WHOLE)

    def write(self, path: Path) -> None:
        """Write the file. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            words = [self.generation, self.token, *([_WHOLE] if self.is_clean else [])]
            whole_file.replace(path, f"{' '.join(words)}\n".encode(), suffix=".tmp", durable=False)
        except OSError as exc:
            raise StoreUnavailable(
                f"{path} cannot be written: {exc}. Make the job's folder writable."
            ) from exc


class SharedUrls:
    """Implements :class:`~scrapy_dedupe.dupefilters.UrlFilter`.

    ``queue_is_shared``: the queue is in Redis too, and scrapy-redis's scheduler calls ``clear()`` to delete the filter.
    """

    def __init__(self, session: Session, fingerprinter: str, *, queue_is_shared: bool) -> None:
        self._session = session
        self._settings = session.settings.urls
        self._fingerprinter = fingerprinter
        self._queue_is_shared = queue_is_shared
        self._jobdir = None if queue_is_shared else session.jobdir
        self._filter: FallbackSharedFilter | None = None
        self._last_attachment = LastAttachment()
        self._done: Journal | None = None
        self._again: Journal | None = None
        self._asked_again = Forgotten()
        self._done_requests = DoneRequests(session)
        self._failed: list[bytes] = []
        self._reported_losses = 0
        self._is_closed = False
        self.keeps_done = self._jobdir is not None
        self.keeps_failed = self._settings.forget_failed

    def prepare(self) -> None:
        """After a kill, rename Scrapy's queue before the scheduler opens it."""
        if self._jobdir is None:
            return
        last, queue = LastAttachment.read(self._attachment_path), self._jobdir / SCRAPY_QUEUE_NAME
        if last.generation and not last.is_clean and queue.exists():
            logger.warning(
                "The last run of this job did not end cleanly, and Scrapy's own queue may have lost requests. It was"
                " renamed to %s.",
                set_aside(queue),
            )

    def open(self) -> None:
        from scrapy_dedupe.stores.redis import open_client  # only imported if needed

        settings, url = self._settings, self._settings.store_url
        assert url is not None
        location = parse_store_url(url)
        last = LastAttachment() if self._jobdir is None else LastAttachment.read(self._attachment_path)
        self._last_attachment = last
        timeout_s = min(self._session.settings.store_timeout_s, _MAX_TIMEOUT_S)
        with explain_unavailable():
            client = open_client(location, timeout_s)
        shared = SharedBloomFilter(
            client,
            settings.key_for(self._session.spider_name),
            settings.capacity,
            settings.error_rate,
            url=location.shown,
            fingerprinter=self._fingerprinter,
            # The queue of scrapy-redis is in Redis and survives a killed process.
            keep="*" if self._queue_is_shared and settings.queue_persists else last.generation,
            gone=[last.token],
        )
        with explain_unavailable():
            attachment = shared.attach()
        self._session.at_refusal(lambda: self._undo_open(shared))
        for sentence in attachment.notes():
            logger.info("%s", sentence)
        for sentence in attachment.warnings():
            logger.warning("%s", sentence)
        if attachment.was_cut and self._queue_is_shared:
            logger.warning(
                "Requests that it had taken from the queue are lost. To request everything again, clear filter and queue"
                " with SCHEDULER_FLUSH_ON_START = True."
            )
        if self._jobdir is not None:
            self._open_journals(shared)
        self._write_attachment(shared)
        self._filter = FallbackSharedFilter(
            shared,
            self._session.stores.breaker(url),
            self._session.worker.submit,
            # A shared queue is in the same store and is lost together with the filter.
            survives_loss=not self._queue_is_shared,
        )

    def add(self, fingerprint: bytes) -> bool:
        assert self._filter is not None
        is_new = self._filter.add(fingerprint)
        if is_new and self._again is not None:
            # Without delay: if the process were killed first, the request would count as done.
            self._record_again()
        return is_new

    def add_all_unless(self, known: bytes, fingerprints: list[bytes]) -> bool:
        return add_each_unless(self, known, fingerprints)

    def add_start(self, fingerprint: bytes) -> None:
        assert self._filter is not None
        # Note the start first. Otherwise another process could find the fingerprint recorded and filter a redirect.
        self._filter.note_start(fingerprint)
        self.add(fingerprint)

    def take_start(self, fingerprint: bytes) -> bool:
        return self._filter is not None and self._filter.take_start(fingerprint)

    def __contains__(self, fingerprint: bytes) -> bool:
        return self._filter is not None and fingerprint in self._filter

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        assert self._filter is not None
        return self._filter.contains_many(fingerprints)

    def keep(self, done: list[bytes], failed: list[bytes]) -> None:
        if self._filter is None or self._is_closed:
            return
        self._filter.tick()
        self._report_loss()
        self._record_again()
        self._done_requests.take(done)
        # Forget failed requests only at the end; otherwise other processes would request them repeatedly.
        self._failed += failed[: _MAX_FAILED - len(self._failed)]

    async def close(self, done: list[bytes], failed: list[bytes], lost: int) -> None:
        if self._filter is None or self._is_closed:
            return
        self._is_closed = True
        # Take the rest before the first await: later it would be passed to a closed filter.
        done = self._done_requests.rest() + done
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
            # The queue of all processes is deleted too; its requests must not count as seen.
            self._filter.clear(of_all=at_start)

    @property
    def has_fingerprints(self) -> bool:
        # Other processes add fingerprints at any time.
        return True

    @property
    def layers(self) -> int:
        return 0 if self._filter is None else len(self._filter.shared.last_description.layers)

    def figures(self) -> dict[str, float]:
        if self._filter is None:
            return {}
        shared = self._filter.shared
        found = shared.last_description
        if not self._filter.is_offline:
            with suppress(StoreUnavailable):
                found = shared.describe()
        dropped = self._filter.dropped
        return asdict(found.figures()) | ({"not_shared": dropped} if dropped else {})

    def known_figures(self) -> dict[str, float]:
        # The description is read about every ten seconds.
        return {} if self._filter is None else asdict(self._filter.shared.last_description.figures())

    @property
    def _attachment_path(self) -> Path:
        assert self._jobdir is not None
        return self._jobdir / "dedupe" / "urls" / "shared"

    def _open_journals(self, shared: SharedBloomFilter) -> None:
        """Open the journals. If the filter is not that of the last run, add the content of the journals to it."""
        folder = self._attachment_path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._done = journal = Journal(folder / DONE.file_name, self._fingerprinter)
            self._done_requests.journal = journal
            self._again = asked_again = Journal(folder / FORGOTTEN.file_name, self._fingerprinter, FORGOTTEN)
            journal.open()
            asked_again.open()
            self._asked_again = Forgotten(asked_again.fingerprints())
            # The snapshot is out of date from now on and must not be used if a later run has a local filter again.
            snapshot = folder / SNAPSHOT_NAME
            if snapshot.exists():
                whole_file.put_in_place(
                    snapshot, snapshot.with_name(f"{SNAPSHOT_NAME}.unused"), durable=False
                )
        except OSError as exc:
            raise StoreUnavailable(
                f"The folder {folder} of this job cannot be used: {exc}. Make it readable and writable."
            ) from exc
        if shared.generation != self._last_attachment.generation:
            known = 0
            fingerprints = (item for item in journal.fingerprints() if item not in self._asked_again)
            for part in in_parts(fingerprints):
                if shared.last_description.forgotten:
                    are_forgotten = shared.are_forgotten(part)
                    part = [item for item, is_one in zip(part, are_forgotten, strict=True) if not is_one]
                shared.add_many(part)
                known += len(part)
            if known:
                logger.info("Added %d completed URLs of this job to the shared URL filter.", known)

    def _write_attachment(self, shared: SharedBloomFilter, *, is_clean: bool = False) -> None:
        """Store in JOBDIR which filter this job uses. It may have changed during the run, if the server lost it."""
        attachment = LastAttachment(shared.generation or "", shared.token, is_clean)
        if self._jobdir is not None and attachment.generation:
            attachment.write(self._attachment_path)

    def _record_again(self) -> None:
        """Record requests that were made again. Runs on the event loop, and at the end of the crawl on the worker."""
        assert self._filter is not None
        fingerprints = self._filter.take_asked_again()
        if fingerprints and self._again is not None:
            self._asked_again.add_many(fingerprints)
            try:
                self._again.append(fingerprints)
            except StoreUnavailable as error:
                self._session.counters.error("url", error, CONTINUES)

    def _report_loss(self) -> None:
        """Count each loss of the filter on the server, as after ``FLUSHALL``, and log the first one."""
        assert self._filter is not None
        shared, known = self._filter.shared, self._reported_losses
        self._reported_losses = shared.times_lost
        if self._reported_losses == known:
            return
        self._session.counters.inc("dedupe/errors/url", self._reported_losses - known)
        if known == 0:
            logger.error(
                "The shared URL filter %s was lost during the crawl: the store %s was emptied, or another process "
                "recreated the filter. %s Do not empty a store while crawls use it. Further losses are only counted, in "
                "dedupe/errors/url.",
                shared.name,
                shared.url,
                "Every page is requested again."
                if self._queue_is_shared
                else "This process keeps filtering its own requests; pages of other processes may be requested again.",
            )

    def _leave(
        self, filter_: FallbackSharedFilter, done: list[bytes], failed: list[bytes], is_lossy: bool
    ) -> None:
        """End the run. Runs on the worker."""
        is_cut = self._session.is_spoiled and self._jobdir is not None
        try:
            self._record_again()
            if self._done is not None and self._again is not None and not is_cut:
                self._done.append(done)
                self._done.sync()
                is_cut = self._done.is_broken or self._again.is_broken or is_lossy
                if not is_cut and len(self._asked_again):
                    # Requests of earlier runs that were made again in this run no longer count as done.
                    self._done.remove_older(self._asked_again.__contains__)
            self._write_attachment(filter_.shared, is_clean=not is_cut)
            is_kept = self._settings.persist or self._queue_is_shared
            filter_.leave(delete=not is_kept, cut=is_cut, failed=failed if is_kept else ())
            if self._again is not None and not is_cut:
                self._again.clear()
        finally:
            self._close_journals()

    def _undo_open(self, shared: SharedBloomFilter) -> None:
        """Undo :meth:`open` after a failed start."""
        self._is_closed = True
        last = self._last_attachment
        try:
            # A failed first start does not damage the queue, so it counts as clean.
            self._write_attachment(shared, is_clean=last.is_clean or not last.generation)
        finally:
            shared.detach(delete=not self._settings.persist)
            self._close_journals()

    def _close_journals(self) -> None:
        for journal in (self._done, self._again):
            if journal is not None:
                journal.close()
