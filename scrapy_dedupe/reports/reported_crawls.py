"""The crawls in a report: those in the index, and those that only the content layer has recorded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, StoreRefused
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part

from .figures import CrawlGraph, GraphEdge, GraphNode
from .observations import unpack
from .sums import NO_GRAPH, CrawlSeen
from .wording import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.tasks.progress import Progress

_MOST_OUTSIDE = 100


@dataclass(slots=True)
class Reported:
    """Crawls in the order of their start, their dependencies, and notes about the selection.

    ``unreadable`` are crawls whose observations are damaged, or of a newer version.
    """

    crawls: list[CrawlSeen] = field(default_factory=list)
    graph: CrawlGraph = NO_GRAPH
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def reported_crawls(
    stores: Sequence[Store],
    wacz_folder: Path | None,
    ids: Sequence[str],
    most: int,
    progress: Progress = NO_PROGRESS,
) -> Reported:
    """The crawls with these ids, or without ids the *most* newest ones.

    *stores* are the store of the index and the store of the texts, in this order. Raises
    :class:`~scrapy_dedupe.errors.CrawlStateError` for an unknown id, and :class:`~scrapy_dedupe.errors.StoreRefused`
    for a named crawl whose observations cannot be read.
    """
    from scrapy_dedupe.crawls.dependencies import Dependencies

    dependencies = Dependencies(stores[0].index, wacz_folder) if stores[0].has_index else None
    known = {} if dependencies is None else dependencies.crawls
    store_of: dict[str, Store] = {}
    for store in stores:
        for crawl in store.reports.crawls():
            store_of.setdefault(crawl, store)
    others = [crawl for crawl in store_of if crawl not in known]
    listed = sorted(
        (info for info in known.values() if info.state != "canceled"), key=lambda info: info.started or ""
    )
    # The start of crawls that are not in the index is only known from their observations.
    wanted = dict.fromkeys(ids or [*(info.id for info in listed[-most:]), *others])
    for crawl in wanted:
        if crawl not in known and crawl not in others:
            raise CrawlStateError(
                f"The store has no crawl {crawl}, neither in the index nor in its reports. List the crawls of the index"
                " with `scrapy dedupe crawls`."
            )

    found = Reported()
    if not wanted:
        found.notes.append("There are no crawls yet.")

    def read() -> Iterator[CrawlSeen]:
        for crawl in counted(wanted, progress):
            data = store_of[crawl].reports.load(crawl) if crawl in store_of else None
            observations = None
            try:
                observations = None if data is None else unpack(data, crawl)
            except StoreRefused:
                if ids:
                    raise
                found.unreadable.append(crawl)
            yield CrawlSeen(crawl, known.get(crawl), observations)

    def started(crawl: CrawlSeen) -> str:
        return crawl.started or ""

    with part(progress, "report", len(wanted), "crawls"):
        # The number of crawls without an index entry is not limited, and each takes about 100 kB.
        seen = sorted(nlargest(len(wanted) if ids else most, read(), key=started), key=started)
    if not ids and len(listed) + len(others) > most:
        found.notes.append(
            f"Only the newest {most} of {number(len(listed) + len(others))} crawls are reported. Give ids to choose others."
        )
    chosen = {crawl.id for crawl in seen}
    found.crawls = seen
    found.unreadable = [crawl for crawl in found.unreadable if crawl in chosen]
    if found.unreadable:
        found.notes.append(
            f"The observations of {', '.join(found.unreadable[:5])} cannot be read: they are damaged, or of a newer"
            " version. They were not changed."
        )
    if dependencies is not None:
        found.graph = graph_of(dependencies, [crawl.id for crawl in seen if crawl.info is not None])
    return found


def graph_of(dependencies: Dependencies, crawls: Sequence[str]) -> CrawlGraph:
    """The graph of the reported crawls, the crawls that they need, and the crawls that need one of them.

    If there are too many, it has the nearest.
    """
    chosen = set(crawls)
    related = dict.fromkeys(crawls)
    waiting = deque(crawls)
    while waiting:
        for other in dependencies.crawls_needed(waiting.popleft()):
            if other not in related:
                related[other] = None
                waiting.append(other)
    for other in dependencies.crawls:
        if other not in related and not chosen.isdisjoint(dependencies.crawls_needed(other)):
            related[other] = None
    shown = list(related)[: len(chosen) + _MOST_OUTSIDE]
    is_shown = set(shown)
    edges, nodes = [], []
    for crawl in shown:
        files: dict[str, list[bool]] = {}
        for need in dependencies.needs(crawl):
            files.setdefault(need.crawl, []).append(need.is_missing)
        edges += [
            GraphEdge(crawl, other, len(are_missing), any(are_missing))
            for other, are_missing in files.items()
            if other in is_shown
        ]
        info = dependencies.crawls.get(crawl)
        nodes.append(
            GraphNode(
                crawl,
                None if info is None else info.state,
                None if info is None else dependencies.why_unknown(crawl),
                is_in_report=crawl in chosen,
                started=None if info is None else info.started,
            )
        )
    return CrawlGraph(nodes, edges, len(related) - len(shown))
