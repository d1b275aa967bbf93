"""What of a crawl is known at any moment, to any thread, without asking a store or a file.

Whoever looks at a crawl from outside may do so at any time; nothing of the crawl waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.content.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class LiveFigures:
    """The figures of one crawl beside its stats; the layers put them there.

    ``latencies`` has a histogram for each step of a layer that is on: ``url``, ``canonical``, ``exact``, ``near``,
    ``verdict`` and ``warc``. Steps that are quick are timed only if ``is_watched`` is true when their layer begins.
    ``url_figures`` gives the name and the value of each figure of the URL filter, or is None while there is none.
    """

    def __init__(self) -> None:
        self.latencies: dict[str, Latency] = {}
        self.url_figures: Callable[[], Mapping[str, float]] | None = None
        self.is_watched = False

    def latency(self, step: str) -> Latency:
        """The histogram of *step*; from now on the step's layer is known to be on."""
        return self.latencies.setdefault(step, Latency())
