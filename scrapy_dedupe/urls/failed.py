"""Which requests failed: they were sent, and ended without an answer that reached a callback.

Scrapy sends no signal when a request ends in its errback, so that is told by what is missing: a request that was
handed to the downloader, was not answered, was not replaced by another one (a retry, a redirect), and is no longer
in progress. One that was answered, but in a way that goes to the errback (an HTTP error), is told by the caller.
Nothing is kept of a request that ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

R = TypeVar("R")


class FailedWatch(Generic[R]):
    """Tells which requests failed. Requests are told apart as the keys of a dict are."""

    def __init__(self) -> None:
        self._sent: dict[R, None] = {}
        self._failed: list[R] = []

    def sent(self, request: R) -> None:
        """The request was handed to the downloader."""
        self._sent[request] = None

    def ended(self, request: R, *, failed: bool = False) -> None:
        """The request was answered, well or not, or another one took its place."""
        self._sent.pop(request, None)
        if failed:
            self._failed.append(request)

    def take(self, busy: Collection[R]) -> list[R]:
        """The requests that failed since the last call; ``busy`` are those that are in progress."""
        failed, self._failed = self._failed, []
        gone = [request for request in self._sent if request not in busy]
        for request in gone:
            del self._sent[request]
        return failed + gone
