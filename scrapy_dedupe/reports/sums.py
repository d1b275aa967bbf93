"""The report over several crawls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figures import CrawlGraph, Report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from scrapy_dedupe.stores.base import CrawlInfo

    from .observations import Observations

_NO_GRAPH = CrawlGraph([], [])


@dataclass(frozen=True, slots=True)
class CrawlSeen:
    """What is known of a crawl: what the index says, None if it is not in it, and what was seen, None if not kept."""

    id: str
    info: CrawlInfo | None = None
    observations: Observations | None = None


def report_of(
    crawls: Sequence[CrawlSeen],
    *,
    graph: CrawlGraph = _NO_GRAPH,
    notes: Sequence[str] = (),
    made: datetime | None = None,
) -> Report:
    """The report over *crawls*, in their order. ``notes`` come before those that are made here.

    ``made`` is the time of the report, now if it is None.
    """
    raise NotImplementedError
