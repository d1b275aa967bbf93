"""The records being written for each request, and their location in ``response.meta["warc"]``."""

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
    """The futures of records by request. An entry is dropped when its request is garbage-collected."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._futures: WeakKeyDictionary[Request, Future[Recorded]] = WeakKeyDictionary()

    def add(self, request: Request, future: Future[Recorded]) -> None:
        """Register the future of the record for *request*."""
        self._futures[request] = future

    async def set_meta(self, request: Request) -> None:
        """Wait for the record and set ``request.meta["warc"]``. Does nothing if the exchange is not recorded."""
        future = self._futures.pop(request, None)
        if future is None:
            return
        try:
            recorded = future.result() if future.done() else await self._loop.wait_for(future)
        except Exception:  # noqa: BLE001 - the pipeline that submitted the task counts and logs the error
            return
        request.meta[META_KEY] = provenance(recorded)


def provenance(recorded: Recorded) -> dict[str, Any]:
    """Return the value of ``meta["warc"]``. All values can be serialised to a feed or a disk queue.

    For a revisit, ``refers_to`` has the ``record_id``, ``url``, ``date`` and ``crawl`` of the original; otherwise it is
    None.
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
