"""The figures of one crawl: its stats, and live figures with histograms of durations for metrics and the report.

Errors are counted in the stats under ``dedupe/errors/``; the first error of each layer is logged.

Live figures can be read at any time on any thread, without access to a store or a file and without blocking the crawl.
A histogram has a fixed size. Its buckets start at a microsecond and grow by at most a tenth, so a quantile is off by at
most 5 %. The bounds that are exported to monitoring systems, :data:`BOUNDS_S`, are also edges of buckets, so the counts
at them are exact.
"""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import DedupeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from scrapy.crawler import Crawler

    from .threads import EventLoop

logger = logging.getLogger(__name__)

BOUNDS_S: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

_SMALLEST_S: Final = 1e-6
_GROWTH: Final = 1.1
_STEPS: Final = 256  # up to ten hours
# A bucket counts durations above the edge below it and up to its own edge; the last bucket counts all longer ones.
_EDGES_S: Final = sorted({*(_SMALLEST_S * _GROWTH**step for step in range(_STEPS)), *BOUNDS_S})
_AT_BOUNDS: Final = tuple(_EDGES_S.index(bound) for bound in BOUNDS_S)


class Counters:
    """Updates the stats of *crawler*, and keeps a copy in case its ``STATS_CLASS`` discards them."""

    def __init__(self, crawler: Crawler, loop: EventLoop) -> None:
        self._crawler = crawler
        self._loop = loop
        self._counted: dict[str, float] = {}
        self._logged: set[str] = set()

    def inc(self, key: str, count: int = 1) -> None:
        """Add *count* to a stat. Call only on the event loop."""
        self._counted[key] = self._counted.get(key, 0) + count
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(key, count)

    def set(self, key: str, value: float) -> None:
        """Set a stat. Call only on the event loop."""
        self._counted[key] = value
        if self._crawler.stats is not None:
            self._crawler.stats.set_value(key, value)

    def all(self) -> dict[str, Any]:
        """Return a copy of all stats, including those of this package that ``STATS_CLASS`` discards. Thread-safe."""
        stats = self._crawler.stats
        # Copying is a single step, so the crawl may add stats at the same time.
        return {**self._counted, **((stats.get_stats() if stats is not None else None) or {})}

    def error(self, layer: str, error: BaseException, remedy: str) -> None:
        """Count an error under ``dedupe/errors/LAYER``; log the first one with *remedy*. Thread-safe."""
        self._loop.call(self._add_error, layer, error, remedy)

    def error_of(self, future: Future[Any], layer: str, remedy: str) -> None:
        """Call :meth:`error` with the exception of *future* if it raises one."""

        def ended(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self.error(layer, error, remedy)

        future.add_done_callback(ended)

    def is_first(self, event: str) -> bool:
        """Return True on the first call for *event*. Used for messages that are logged once."""
        if event in self._logged:
            return False
        self._logged.add(event)
        return True

    def _add_error(self, layer: str, error: BaseException, remedy: str) -> None:
        self.inc(f"dedupe/errors/{layer}")
        if not self.is_first(layer):
            return
        expected = isinstance(error, DedupeError)
        logger.error(
            "%s %s Further errors of this layer are counted in dedupe/errors/%s.",
            error if expected else f"Unexpected {type(error).__name__}{': ' if str(error) else ''}{error}.",
            remedy,
            layer,
            exc_info=None if expected else error,
        )


class LiveFigures:
    """The figures of one crawl that are not stats. The layers set them.

    ``latencies`` has a histogram for each step of an active layer: ``url``, ``canonical``, ``exact``, ``near``,
    ``verdict`` and ``warc``. Fast steps are timed only if ``is_watched`` is true when their layer starts.
    ``url_figures`` returns the figures of the URL filter by name; it is None if there is no filter.
    """

    def __init__(self) -> None:
        self.latencies: dict[str, Latency] = {}
        self.url_figures: Callable[[], Mapping[str, float]] | None = None
        self.is_watched = False

    def latency(self, step: str) -> Latency:
        """Return the histogram of *step*. Creating it marks the layer of the step as active."""
        return self.latencies.setdefault(step, Latency())


class Latency:
    """A histogram of durations in seconds. Thread-safe. ``count`` and ``sum_s`` cover all durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(_EDGES_S) + 1)
        self.count = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Add one duration."""
        bucket = bisect_left(_EDGES_S, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self.count += 1
            self.sum_s += seconds

    def quantile(self, share: float) -> float:
        """The duration that a *share* of all durations does not exceed; 0.0 if there are none.

        >>> latency = Latency()
        >>> for milliseconds in range(1, 101):
        ...     latency.add(milliseconds / 1000)
        >>> 0.047 < latency.quantile(0.5) < 0.053, 0.094 < latency.quantile(0.99) < 0.104
        (True, True)
        """
        wanted = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                low = _EDGES_S[max(0, bucket - 1)]
                high = _EDGES_S[min(bucket, len(_EDGES_S) - 1)]
                # The geometric mean of the edges.
                return math.sqrt(low * high)
        return 0.0

    def cumulative(self) -> tuple[tuple[int, ...], float]:
        """The numbers of durations up to each of :data:`BOUNDS_S`, then the number of all; and their sum in seconds.

        >>> latency = Latency()
        >>> for seconds in (0.001, 0.002, 60.0):
        ...     latency.add(seconds)
        >>> counts, sum_s = latency.cumulative()
        >>> counts[BOUNDS_S.index(0.001)], counts[BOUNDS_S.index(0.0025)], counts[-1], sum_s
        (1, 2, 3, 60.003)
        """
        with self._lock:
            counts, sum_s = list(self._counts), self.sum_s
        sums = list(accumulate(counts))
        return (*(sums[place] for place in _AT_BOUNDS), sums[-1]), sum_s
