"""The records that are being written, by request, and what is told of them in ``response.meta["warc"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_dedupe.warc.dates import date_from_digits

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scrapy import Request

    from scrapy_dedupe.crawls.recorder import Recorded

    from .event_loop import EventLoop

META_KEY = "warc"


class Recordings:
    """Futures of records; each lives as long as its request does."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._futures: WeakKeyDictionary[Request, Future[Recorded]] = WeakKeyDictionary()

    def add(self, request: Request, future: Future[Recorded]) -> None:
        """Note that the exchange of *request* is being recorded."""
        self._futures[request] = future

    async def tell(self, request: Request) -> None:
        """Wait until the record is written and set ``request.meta["warc"]``; nothing if there will be none."""
        future = self._futures.pop(request, None)
        if future is None:
            return
        try:
            recorded = future.result() if future.done() else await self._loop.wait_for(future)
        except Exception:  # noqa: BLE001 - whoever gave the task to the worker counts and tells its errors
            return
        request.meta[META_KEY] = provenance(recorded)


def provenance(recorded: Recorded) -> dict[str, Any]:
    """What ``meta["warc"]`` says: plain values, which go into a feed or a queue as they are.

    ``refers_to`` is None, or has the ``record_id``, ``url``, ``date`` and ``crawl`` of the original of a revisit.
    """
    original = recorded.refers_to
    return {
        "type": recorded.kind,
        "record_id": recorded.record_id or None,
        "file": recorded.file or None,
        "offset": recorded.offset if recorded.file else None,
        "date": recorded.date or None,
        "digest": recorded.digest or None,
        "refers_to": None
        if original is None
        else {
            "record_id": original.record_id,
            "url": original.url,
            "date": date_from_digits(original.date),
            "crawl": original.crawl,
        },
    }
