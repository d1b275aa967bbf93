"""Chooses the crawls of a report, and combines their observations.

The crawls are those in the index, and those that only the content layer has recorded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import CrawlStateError, StoreRefused
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part
from scrapy_dedupe.warc.dates import format_date

from .figures import (
    OTHERS,
    Bin,
    CacheFigures,
    CrawlFigures,
    CrawlGraph,
    GraphEdge,
    GraphNode,
    Report,
    Share,
    TimeSlice,
    Totals,
    UrlFilterFigures,
    UrlRuleFigures,
)
from .observations import (
    BINS,
    CACHE_STATS,
    DUPLICATES,
    KINDS,
    RULE_PREFIX,
    SHARE_COLUMNS,
    SUMMED_STATS,
    TOTALS,
    Observations,
    iso_time,
    unpack,
)
from .tallies import Row, is_number
from .wording import moment, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.tasks.progress import Progress

    from .figures import DuplicateGroup
    from .tallies import Tallies

MOST_HOSTS = 50
MOST_NAMES = 20
MOST_GROUPS = 30
MOST_TRAPS = 30

NO_GRAPH: Final = CrawlGraph([], [])

_COUNTS = ("requests_filtered", "responses", "revisits", "bytes_written", "bytes_conserved")
_NAMED = 5
_NARROW = BINS * 8 // 10
_MOST_STAT = 2**63 - 1
_MOST_OUTSIDE = 100


@dataclass(frozen=True, slots=True)
class CrawlSeen:
    """A crawl with its entry in the index and its observations; None for what is missing."""

    id: str
    info: CrawlInfo | None = None
    observations: Observations | None = None

    @property
    def started(self) -> str | None:
        """When the first run started, as ISO 8601 in UTC; None if unknown."""
        if self.info is not None and self.info.started:
            return self.info.started
        return None if self.observations is None else iso_time(self.observations.started)


def stored_report(
    stores: Sequence[Store],
    wacz_folder: Path | None,
    ids: Sequence[str],
    most: int,
    progress: Progress = NO_PROGRESS,
) -> tuple[Report, list[str]]:
    """The report over the crawls with these ids, or without ids over the *most* newest ones.

    Also returns the crawls whose observations are damaged, or of a newer version. *stores* are the store of the index and
    the store of the texts, in this order. Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for an unknown id, and
    :class:`~scrapy_dedupe.errors.StoreRefused` for a named crawl whose observations cannot be read.
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
    notes = [] if wanted else ["There are no crawls yet."]
    unreadable = []

    def read() -> Iterator[CrawlSeen]:
        for crawl in counted(wanted, progress):
            data = store_of[crawl].reports.load(crawl) if crawl in store_of else None
            observations = None
            try:
                observations = None if data is None else unpack(data, crawl)
            except StoreRefused:
                if ids:
                    raise
                unreadable.append(crawl)
            yield CrawlSeen(crawl, known.get(crawl), observations)

    def started(crawl: CrawlSeen) -> str:
        return crawl.started or ""

    with part(progress, "report", len(wanted), "crawls"):
        # The number of crawls without an index entry is not limited, and each takes about 100 kB.
        seen = sorted(nlargest(len(wanted) if ids else most, read(), key=started), key=started)
    if not ids and len(listed) + len(others) > most:
        notes.append(
            f"Only the newest {most} of {number(len(listed) + len(others))} crawls are reported. Give ids to choose others."
        )
    chosen = {crawl.id for crawl in seen}
    unreadable = [crawl for crawl in unreadable if crawl in chosen]
    if unreadable:
        notes.append(
            f"The observations of {', '.join(unreadable[:5])} cannot be read: they are damaged, or of a newer"
            " version. They were not changed."
        )
    graph = NO_GRAPH
    if dependencies is not None:
        graph = graph_of(dependencies, [crawl.id for crawl in seen if crawl.info is not None])
    return report_of(seen, graph=graph, notes=notes), unreadable


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
        edges += [
            GraphEdge(crawl, other, len(needs), any(need.is_missing for need in needs))
            for other, needs in dependencies.needs_by_crawl(crawl).items()
            if other in is_shown
        ]
        info = dependencies.crawls.get(crawl)
        state, started = (None, None) if info is None else (info.state, info.started)
        nodes.append(GraphNode(crawl, state, dependencies.why_unknown(crawl), crawl in chosen, started))
    return CrawlGraph(nodes, edges, len(related) - len(shown))


def report_of(
    crawls: Sequence[CrawlSeen],
    *,
    graph: CrawlGraph = NO_GRAPH,
    notes: Sequence[str] = (),
    made: datetime | None = None,
) -> Report:
    """The report over *crawls*, in their order. ``notes`` come before the notes that are made here.

    ``made`` is the time of the report; None means now.
    """
    figures = [_crawl_figures(crawl) for crawl in crawls]
    own_notes = [*notes, *_notes(crawls)]
    url_filters = [found for crawl in crawls if (found := _url_filter(crawl.id, _stats(crawl))) is not None]
    dropped = sum(_totals(crawl)["dropped"] for crawl in crawls)
    whole = Observations()
    for crawl in crawls:
        if crawl.observations is not None:
            whole.merge(crawl.observations)
    hosts = _shares(whole.hosts, MOST_HOSTS)
    # A filtered request has no response.
    mime_types, statuses = (
        [replace(share, requests_filtered=None) for share in _shares(tallies, MOST_NAMES)]
        for tallies in (whole.mime_types, whole.statuses)
    )
    groups = whole.groups.largest(MOST_GROUPS)
    counted: dict[str, Sequence[Share] | Sequence[DuplicateGroup]] = {
        "hosts": hosts,
        "MIME types": mime_types,
        "statuses": statuses,
        "groups of duplicates": groups,
    }
    if inexact := [name for name, rows in counted.items() if any(row.is_bound for row in rows)]:
        own_notes.append(
            f"There were too many {' and '.join(inexact)} to count each from its first page on. Figures with “at least” are"
            " lower bounds; the totals are exact."
        )
    if graph.left_out:
        own_notes.append(
            f"The graph leaves out {graph.left_out:,} more crawls that the shown crawls need or that need them."
            " `scrapy dedupe crawls graph` shows all."
        )
    verdicts = {kind: sum(crawl.verdicts[kind] for crawl in figures) for kind in KINDS}
    return Report(
        made=format_date(made or datetime.now(UTC)),
        version=__version__,
        crawls=figures,
        totals=Totals(
            pages_judged=sum(pages for kind, pages in verdicts.items() if kind != "unknown"),
            duplicates=sum(verdicts[kind] for kind in DUPLICATES),
            dropped=dropped,
            **{name: sum(getattr(crawl, name) for crawl in figures) for name in _COUNTS},
        ),
        timeline=[
            TimeSlice(iso_time(second), whole.timeline.seconds, *counts)
            for second, counts in whole.timeline.slices()
        ],
        hosts=hosts,
        mime_types=mime_types,
        statuses=statuses,
        verdicts=verdicts,
        similarities=_bins(whole.similarities),
        groups=groups,
        more_groups=None if whole.groups.floor else len(whole.groups) - len(groups),
        url_filters=url_filters,
        http_caches=[
            cache for crawl in crawls if (cache := _http_cache(crawl.id, _stats(crawl))) is not None
        ],
        url_rules=[rule for crawl in crawls for rule in _url_rules(crawl.id, _stats(crawl))],
        graph=graph,
        traps=whole.url_patterns.traps(MOST_TRAPS),
        notes=own_notes,
    )


def _stats(crawl: CrawlSeen) -> dict[str, object]:
    """The stats of a crawl. The stats in the index are the newest, but cover only the last run."""
    seen = {} if crawl.observations is None else dict(crawl.observations.stats)
    committed = {} if crawl.info is None or crawl.info.stats is None else crawl.info.stats
    summed = {key: max(seen[key], _count_in(committed, key)) for key in SUMMED_STATS if key in seen}
    return {**seen, **committed, **summed}


def _crawl_figures(crawl: CrawlSeen) -> CrawlFigures:
    info, seen = crawl.info, crawl.observations
    if seen is None:
        stats = _stats(crawl)
        verdicts = {kind: _count_in(stats, f"dedupe/content/{kind}") for kind in KINDS}
        # The stats count changed pages as near, too.
        verdicts["near"] = max(verdicts["near"] - verdicts["changed"], 0)
        finished = moment(stats.get("finish_time"))
        ended = None if finished is None else format_date(finished)
    else:
        verdicts, ended = dict(seen.verdicts), iso_time(seen.ended)
    totals = _totals(crawl)
    counts = {name: totals[name] for name in _COUNTS}
    state = "not in the index" if any(totals[name] for name in _COUNTS[1:]) else "not archived"
    return CrawlFigures(
        id=crawl.id,
        spider=None if seen is None else seen.spider,
        state=state if info is None else info.state,
        started=crawl.started,
        ended=ended,
        committed=None if info is None else info.committed,
        has_details=seen is not None,
        **counts,
        verdicts=verdicts,
    )


def _totals(crawl: CrawlSeen) -> dict[str, int]:
    """The totals of a crawl, with the counts of records and bytes from the more complete source.

    While a crawl runs, the index is behind the observations; after a kill, the observations lack the last minute.
    """
    if crawl.observations is None:
        totals, stats = dict.fromkeys(TOTALS, 0), _stats(crawl)
        totals["requests_filtered"] = _count_in(stats, "dupefilter/filtered")
        totals["dropped"] = _count_in(stats, "dedupe/content/dropped")
    else:
        totals = dict(crawl.observations.totals)
    if crawl.info is not None and (crawl.observations is None or _is_incomplete(crawl)):
        counts = crawl.info.counts
        totals["revisits"] = min(counts.dupe_urls, counts.total_urls)
        totals["responses"] = counts.total_urls - totals["revisits"]
        totals["bytes_written"] = max(counts.total_crawl_size, totals["bytes_written"])
        totals["bytes_conserved"] = counts.conserved_size
    return totals


def _is_incomplete(crawl: CrawlSeen) -> bool:
    """Whether the index has more records of a crawl than its observations."""
    if crawl.info is None or crawl.observations is None:
        return False
    totals = crawl.observations.totals
    return crawl.info.counts.total_urls > totals["responses"] + totals["revisits"]


def _has_unknown_size(crawl: CrawlSeen) -> bool:
    """Whether only a part of the bytes that a crawl wrote is known."""
    if crawl.info is None or not (crawl.observations is None or _is_incomplete(crawl)):
        return False
    return crawl.info.counts.total_urls > 0 and crawl.info.counts.total_crawl_size == 0


def _notes(crawls: Sequence[CrawlSeen]) -> list[str]:
    notes = []
    if bare := [crawl.id for crawl in crawls if crawl.observations is None]:
        notes.append(
            f"There are no observations of {_named(bare)}: imported, made by another program or an earlier version, or"
            " not observed because the classes were set manually without scrapy_dedupe.extensions.ReportExtension. Only"
            " their counts in the index are shown; the timeline, hosts, groups and patterns do not include them."
        )
    if cut := [crawl.id for crawl in crawls if _is_incomplete(crawl)]:
        notes.append(
            f"The archive has more records of {_named(cut)} than were observed. This happens while a crawl runs and after a"
            " kill, since observations are saved once a minute. The counts of records and bytes are those of the archive;"
            " requests, pages, the timeline, hosts, MIME types and statuses are incomplete."
        )
    if unsized := [crawl.id for crawl in crawls if _has_unknown_size(crawl)]:
        notes.append(
            f"The index gets the size of the files at the end of a crawl, so {_named(unsized)} may have written more bytes"
            " than shown."
        )
    if failed := [crawl.id for crawl in crawls if _count_in(_stats(crawl), "dedupe/errors/report")]:
        notes.append(
            f"Observing {_named(failed)} failed at times (dedupe/errors/report; see its log). Figures may be too low."
        )
    if waiting := [crawl.id for crawl in crawls if crawl.info and crawl.info.state == "uncommitted"]:
        notes.append(
            f"Not committed: {_named(waiting)}. The figures of an uncommitted crawl may still change."
        )
    return notes


def _named(crawls: Sequence[str]) -> str:
    """A list of crawl ids for a sentence; only the first ones of many.

    >>> _named(["a"]), _named(["a", "b"]), _named([str(number) for number in range(9)])
    ('the crawl a', 'the crawls a, b', 'the crawls 0, 1, 2, 3, 4 and 4 more')
    """
    if len(crawls) == 1:
        return f"the crawl {crawls[0]}"
    more = f" and {len(crawls) - _NAMED:,} more" if len(crawls) > _NAMED else ""
    return f"the crawls {', '.join(crawls[:_NAMED])}{more}"


def _shares(tallies: Tallies, most: int) -> list[Share]:
    """The most frequent names, and a row for all others if there are any."""
    ranked = sorted(tallies, key=lambda item: (-item[1].calls, item[0]))
    shares = [_share(name, row, is_bound=row.missed > 0) for name, row in ranked[:most]]
    others = Row(len(SHARE_COLUMNS))
    others.add(tallies.others)
    for _, row in ranked[most:]:
        others.add(row)
    return [*shares, _share(OTHERS, others)] if others.calls else shares


def _share(name: str, row: Row, *, is_bound: bool = False) -> Share:
    return Share(name, **dict(zip(SHARE_COLUMNS, row.counts, strict=True)), is_bound=is_bound)


def _bins(similarities: Sequence[int]) -> list[Bin]:
    """Bins from the lowest similarity up to 1, in steps of 0.01, or of 0.05 if the lowest is below 0.8."""
    lowest = next((number for number, pages in enumerate(similarities) if pages), None)
    if lowest is None:
        return []
    step = 1 if lowest >= _NARROW else 5
    return [
        Bin(low / BINS, (low + step) / BINS, sum(similarities[low : low + step]))
        for low in range(lowest - lowest % step, BINS, step)
    ]


def _count_in(stats: Mapping[str, object], key: str) -> int:
    """A count; 0 if it is missing or not a number.

    >>> _count_in({"a": 3}, "a"), _count_in({"a": "3"}, "a"), _count_in({}, "a")
    (3, 0, 0)
    """
    return _count_or_none(stats.get(key)) or 0


def _url_filter(crawl: str, stats: Mapping[str, object]) -> UrlFilterFigures | None:
    """The URL filter of a crawl; None if the crawl did not use one of this project."""
    values: dict[str, Any] = {}
    for name in ("seen", "capacity", "layers", "bytes", "confirmed", "false_positives"):
        values[name] = _count_or_none(stats.get(f"dedupe/url/{name}"))
    for name in ("fill_ratio", "estimated_error", "expected_lost"):
        values[name] = _number_or_none(stats.get(f"dedupe/url/{name}"))
    return None if values["capacity"] is None else UrlFilterFigures(crawl, **values)


def _http_cache(crawl: str, stats: Mapping[str, object]) -> CacheFigures | None:
    """The archive as HTTP cache of a crawl; None if it was not used."""
    found, missed, used, bytes_used, bytes_received = (_count_in(stats, key) for key in CACHE_STATS)
    if not found + missed:
        return None
    return CacheFigures(crawl, found + missed, used, bytes_used, bytes_received)


def _url_rules(crawl: str, stats: Mapping[str, object]) -> list[UrlRuleFigures]:
    """The URL rules of a crawl: those that filtered most requests first, then candidates."""
    rules: dict[str, dict[str, int]] = {}
    for key in stats:
        if key.startswith(RULE_PREFIX):
            rule, _, name = key.removeprefix(RULE_PREFIX).rpartition("/")
            rules.setdefault(rule, {})[name] = _count_in(stats, key)
    found = []
    for rule, counts in rules.items():
        filtered, probes, suspended = (counts.get(name, 0) for name in ("filtered", "probes", "suspended"))
        pairs_for, pairs_against = counts.get("pairs_for", 0), counts.get("pairs_against", 0)
        precision = pairs_for / (pairs_for + pairs_against) if pairs_for + pairs_against else None
        found.append(
            UrlRuleFigures(
                crawl,
                rule,
                filtered,
                probes,
                pairs_for,
                pairs_against,
                precision,
                bool(suspended),
                counts.get("candidate"),
            )
        )
    return sorted(found, key=lambda item: (-item.filtered, -(item.candidate_downloads or 0), item.rule))


def _count_or_none(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return min(value, _MOST_STAT)


def _number_or_none(value: object) -> float | None:
    return float(min(value, _MOST_STAT)) if is_number(value) and value >= 0 else None
