"""Tracks which requests failed: they were sent, and no response reached their callback.

Scrapy sends no signal when a request ends in its errback. A request counts as failed if it was passed to the
downloader, got no response, was not replaced by another request (a retry or redirect), and is no longer in progress.
The caller reports responses that go to the errback (HTTP errors). No state is kept for a request that ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

R = TypeVar("R")


class FailedTracker(Generic[R]):
    """Reports the requests that failed. Requests are compared as dict keys."""

    def __init__(self) -> None:
        self._sent: dict[R, None] = {}
        self._failed: list[R] = []

    def sent(self, request: R) -> None:
        """Note that the request was passed to the downloader."""
        self._sent[request] = None

    def ended(self, request: R, *, failed: bool = False) -> None:
        """Note that the request got a response or was replaced; ``failed`` if the response goes to the errback."""
        self._sent.pop(request, None)
        if failed:
            self._failed.append(request)

    def take(self, busy: Collection[R]) -> list[R]:
        """The requests that failed since the last call; ``busy`` are the requests in progress."""
        failed, self._failed = self._failed, []
        gone = [request for request in self._sent if request not in busy]
        for request in gone:
            del self._sent[request]
        return failed + gone
