"""What was seen during a crawl, in bounded memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Observations:
    """What was seen during a crawl, over all runs of its job. ``now`` gives the time in seconds since the epoch.

    Every method may be called from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.time, *, spider: str | None = None) -> None:
        self._now = now
        self.spider = spider

    def filtered(self, url: str) -> None:
        """Note a request that was filtered as seen."""
        raise NotImplementedError

    def judged(
        self,
        url: str,
        mime: str,
        status: int,
        kind: str,
        original_url: str | None = None,
        similarity: float | None = None,
        dropped: bool = False,
        size_bytes: int = 0,
        *,
        same_url: bool = False,
    ) -> None:
        """Note a page with its verdict (``same_url``: as the verdict says). ``size_bytes`` is that of its body."""
        raise NotImplementedError

    def recorded(self, url: str, mime: str, status: int, kind: str, written: int, conserved: int) -> None:
        """Note an exchange that the archive took. ``kind`` is that of the record, the sizes are in bytes."""
        raise NotImplementedError

    def set_stats(self, stats: Mapping[str, object]) -> None:
        """Keep the numbers among the stats of the crawl, those of the URL filter first of all."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON; below 400 kB."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: object, now: Callable[[], float] = time.time) -> Observations:
        """What :meth:`as_dict` gave, to go on with.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` for anything else, and for a newer format.
        """
        raise NotImplementedError
