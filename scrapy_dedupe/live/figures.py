"""Live figures of a crawl, for metrics and the report.

They can be read at any time on any thread, without access to a store or a file and without blocking the crawl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.content.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
