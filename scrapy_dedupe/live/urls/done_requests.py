"""Fingerprints of requests that are done, while the archive may still lack their pages.

What the archive could not write has to be asked for again, so a request counts as done once the worker has dealt
with all that was given to it before, unless that spoiled the archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.live.session import Session


class DoneRequests:
    """Hands fingerprints on to ``record``, on the event loop, once they are settled."""

    def __init__(self, session: Session, record: Callable[[list[bytes]], None]) -> None:
        self._session = session
        self._record = record
        self._waiting: list[bytes] = []

    def take(self, done: list[bytes]) -> None:
        """Wait for the archive of these requests."""
        if not done:
            return
        self._waiting += done
        count = len(done)
        future = self._session.worker.submit(lambda: None)
        future.add_done_callback(lambda _: self._session.loop.call(self._settled, count))

    def rest(self) -> list[bytes]:
        """What still waits; it waits no longer."""
        rest, self._waiting = self._waiting, []
        return rest

    def _settled(self, count: int) -> None:
        done, self._waiting = self._waiting[:count], self._waiting[count:]
        if done and not self._session.is_spoiled:
            self._record(done)
