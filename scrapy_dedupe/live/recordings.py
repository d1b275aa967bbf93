"""Records the exchanges of a crawl on the worker, and sets ``response.meta["warc"]`` to the location of the record.

If exchanges arrive faster than the index answers, waiting exchanges are looked up in the index together.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.dates import date_from_digits

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scrapy import Request

    from scrapy_dedupe.crawls.recorder import Recorded, Recorder
    from scrapy_dedupe.warc.capture import Capture
    from scrapy_dedupe.warc.playback import Playable

    from .session import Session

logger = logging.getLogger(__name__)

META_KEY: Final = "warc"

_STATS_INTERVAL_S: Final = 1.0
# Exchanges per lookup in the index.
_BATCH_SIZE: Final = 64
# Servers can send any number of unknown content codings; log only the first ones.
_MOST_REASONS: Final = 10


class Recordings:
    """The recordings of one crawl. After an error in writing a file, nothing more is recorded (``is_spoiled``)."""

    def __init__(self, session: Session, recorder: Recorder) -> None:
        self._session = session
        self._worker = session.worker
        self._recorder = recorder
        # Exchanges that wait: the capture and the limit for decoding; those of the batch also have the digest, if any.
        self._waiting: deque[tuple[Capture, int]] = deque()
        self._batch: deque[tuple[Capture, int, str]] = deque()
        # An entry is dropped when its request is garbage-collected.
        self._futures: WeakKeyDictionary[Request, Future[Recorded]] = WeakKeyDictionary()
        self._lock = Lock()
        self._tally: Counter[str] = Counter()
        self._reasons: set[str] = set()
        self._latency = session.live.latency("warc")
        session.run_every(_STATS_INTERVAL_S, self._update_stats, "warc")
        session.at_close(self._update_stats)

    def add(self, request: Request, capture: Capture, max_bytes: int) -> None:
        """Record the exchange of *request*. A body with more than *max_bytes* when decoded is not decoded; 0: no limit."""
        if self._session.is_spoiled:
            self._session.counters.inc("dedupe/warc/not_archived")
            return
        self._waiting.append((capture, max_bytes))
        self._futures[request] = self._worker.submit_weighing(capture.size_bytes, self._record_next)

    async def set_meta(self, request: Request) -> None:
        """Wait for the record and set ``request.meta["warc"]``. Does nothing if the exchange is not recorded."""
        future = self._futures.pop(request, None)
        if future is None:
            return
        try:
            recorded = await self._session.loop.wait_for(future)
        except Exception:  # noqa: BLE001 - it was counted and logged on the worker
            return
        if META_KEY in request.meta and recorded.kind != "revisit":
            # A cached page that answers instead of a server error, for example.
            return
        original = recorded.refers_to
        date = None if original is None else date_from_digits(original.date)
        request.meta[META_KEY] = provenance(recorded, recorded.kind, date)

    def fail(self, error: BaseException) -> None:
        """Count and log an exchange that is missing from the archive. Call only on the event loop."""
        session = self._session
        session.counters.inc("dedupe/warc/not_archived")
        if isinstance(error, ArchiveError):
            if not session.is_spoiled:
                session.is_spoiled = True
                session.close_spider("dedupe_archive_error")
            session.counters.error("warc", error, "The spider is closed; records written before are kept.")
        else:
            session.counters.error(
                "warc", error, "This exchange is missing from the archive; the crawl continues."
            )

    def _record_next(self) -> Recorded:
        """Record the next exchange, on the worker."""
        start = time.perf_counter()
        try:
            if not self._batch:
                self._take_batch()
            capture, max_bytes, digest = self._batch.popleft()
            recorded = self._recorder.record(capture, max_bytes, digest)
        except BaseException as error:
            self._session.loop.call(self.fail, error)
            raise
        self._latency.add(time.perf_counter() - start)
        # Waking the event loop for each record would be slow.
        with self._lock:
            tally = self._tally
            tally[recorded.kind] += 1
            tally["bytes_written"] += recorded.written
            tally["bytes_conserved"] += recorded.conserved_size
            tally["undecodable"] += recorded.undecodable is not None
        if recorded.undecodable is not None:
            self._session.loop.call(self._log_undecodable, recorded, recorded.undecodable)
        self._session.events.exchange_recorded(capture, recorded)
        return recorded

    def _take_batch(self) -> None:
        waiting = self._waiting
        exchanges = [waiting.popleft() for _ in range(min(len(waiting), _BATCH_SIZE))]
        captures = [capture for capture, _ in exchanges]
        try:
            digests = self._recorder.look_up(captures) if len(captures) > 1 else [""]
        except Exception:
            # Drop only the first exchange: each of the others is recorded by its own call.
            self._batch.extend((*exchange, "") for exchange in exchanges[1:])
            raise
        self._batch.extend((*exchange, digest) for exchange, digest in zip(exchanges, digests, strict=True))

    def _log_undecodable(self, recorded: Recorded, reason: str) -> None:
        if reason in self._reasons or len(self._reasons) >= _MOST_REASONS:
            return
        self._reasons.add(reason)
        logger.warning(
            "The body of the response in %s, offset %d, could not be decoded: %s. It is stored as received and"
            " is never the original of a revisit. Further ones are counted in dedupe/warc/undecodable.",
            recorded.file,
            recorded.offset,
            reason,
        )

    def _update_stats(self) -> None:
        """Add the counts since the last call to the stats."""
        with self._lock:
            tally, self._tally = self._tally, Counter()
        for key, count in tally.items():
            if count:
                self._session.counters.inc(f"dedupe/warc/{key}", count)


def provenance(record: Recorded | Playable, kind: str, original_date: str | None) -> dict[str, Any]:
    """Return the value of ``meta["warc"]``. All values can be serialised to a feed or a disk queue.

    For a revisit, ``refers_to`` has the ``record_id``, ``url``, ``date`` and ``crawl`` of the original; otherwise it is
    None.
    """
    original = record.refers_to
    return {
        "type": kind,
        "record_id": record.record_id or None,
        "file": record.file or None,
        "offset": record.offset if record.file else None,
        "date": record.date or None,
        "digest": record.digest or None,
        "refers_to": None
        if original is None
        else {
            "record_id": original.record_id,
            "url": original.url,
            "date": original_date,
            "crawl": original.crawl,
        },
    }
