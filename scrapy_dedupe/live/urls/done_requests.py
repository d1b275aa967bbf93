"""Holds back the fingerprints of done requests until the archive has written their pages.

A page that the archive could not write must be requested again. A request therefore counts as done only when the worker
has finished all earlier jobs and the archive has no write error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.live.session import Session


class DoneRequests:
    """Passes fingerprints to ``record``, on the event loop, when the worker has finished all earlier jobs."""

    def __init__(self, session: Session, record: Callable[[list[bytes]], None]) -> None:
        self._session = session
        self._record = record
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
        if done and not self._session.is_spoiled:
            self._record(done)
