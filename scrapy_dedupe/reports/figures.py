"""The figures of a report: what ``report --json`` prints, and what the page is made of.

Sizes are in bytes, times are ISO 8601 in UTC. Texts that come from the web (URLs, host names, MIME types) are at most
2,000 characters long and hold no control characters and no lone surrogates; they are not escaped for HTML.
"""

from __future__ import annotations

from dataclasses import dataclass

OTHERS = "(others)"
"""The name of the last row of a list of shares, if it holds what has no row of its own."""


@dataclass(frozen=True, slots=True)
class CrawlFigures:
    """One crawl. ``state``: ``committed``, ``uncommitted`` (running, or waiting for a decision), ``canceled``,
    ``not archived`` (of the content layer alone) or ``not in the index`` (archived, with another index).

    ``spider`` and the times are None where nobody knows them. ``has_details``: what was seen during the crawl is kept;
    without it the counts come from the index alone, and ``requests_filtered`` and ``verdicts`` from the stats of its
    commit, if there are any.
    """

    id: str
    spider: str | None
    state: str
    started: str | None
    ended: str | None
    committed: str | None
    has_details: bool
    requests_filtered: int
    responses: int
    revisits: int
    bytes_written: int
    bytes_conserved: int
    verdicts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the crawls.

    ``responses`` are the records with a payload of their own, ``revisits`` those without. ``duplicates`` are pages that
    were ``unchanged``, ``exact`` or ``near``; ``dropped`` those of them that the spider did not get.
    """

    requests_filtered: int
    pages_judged: int
    duplicates: int
    dropped: int
    responses: int
    revisits: int
    bytes_written: int
    bytes_conserved: int


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """What happened in ``seconds`` from ``start`` on. Times at which no crawl ran have no slices."""

    start: str
    seconds: int
    requests_filtered: int
    pages: int
    duplicates: int
    bytes_written: int
    bytes_conserved: int


@dataclass(frozen=True, slots=True)
class Share:
    """What fell to one host, MIME type or status, the largest first. The last row may be :data:`OTHERS`.

    ``requests_filtered`` is None for MIME types and statuses: a request that is not sent has neither. ``is_bound``:
    there may be more, since some came before the name was noticed among many; that is in the last row.
    """

    name: str
    pages: int
    duplicates: int
    requests_filtered: int | None
    responses: int
    revisits: int
    bytes_written: int
    bytes_conserved: int
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Bin:
    """How many near copies have an estimated similarity from ``low`` up to, but not including, ``high``.

    The last bin includes its end, 1.0.
    """

    low: float
    high: float
    pages: int


@dataclass(frozen=True, slots=True)
class Example:
    """A page that repeats another. ``kind``: ``exact`` or ``near``, with its ``similarity``."""

    url: str
    kind: str
    similarity: float | None


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Pages at other URLs with the text of the one at ``url``, which was read first and is not counted.

    ``is_bound``: there may be more pages, since some came before the group was noticed among many.
    ``least_similarity`` is 1.0 where all are equal.
    """

    url: str
    pages: int
    exact: int
    near: int
    least_similarity: float
    examples: list[Example]
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class UrlFilterFigures:
    """The URL filter of one crawl, as its stats ``dedupe/url/…`` say. What they do not say is None.

    ``estimated_error`` is the probability that the next new URL is taken for seen, ``expected_lost`` the number of
    pages that were lost so. ``confirmed`` and ``false_positives``: answers that the exact set confirmed or corrected.
    """

    crawl: str
    seen: int | None
    capacity: int | None
    layers: int | None
    bytes: int | None
    fill_ratio: float | None
    estimated_error: float | None
    expected_lost: float | None
    confirmed: int | None
    false_positives: int | None


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A crawl. ``state`` is None for one that is needed and is not in the index.

    ``needs_unknown`` says why the index may not know all that it needs; None if it does. ``is_in_report``: its figures
    are in the report. ``started`` is None where nobody knows it.
    """

    id: str
    state: str | None
    needs_unknown: str | None = None
    is_in_report: bool = True
    started: str | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Revisits of ``crawl`` refer to records of ``needs``, in ``files`` of its files.

    ``is_missing``: the other crawl, or one of the files, is not there.
    """

    crawl: str
    needs: str
    files: int
    is_missing: bool


@dataclass(frozen=True, slots=True)
class CrawlGraph:
    """Which crawls need which: those of the report, all that these need, and those that need one of them.

    ``left_out`` is how many more there are.
    """

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Trap:
    """A pattern of URLs most of whose pages brought little that was new.

    ``pages`` were judged and are not ``unchanged``. ``exact`` and ``near`` of them are copies of pages at other URLs;
    ``template`` others are none, and have hardly a word besides what their host puts on many pages. ``share`` is that
    of the three, from 0 to 1. Of a page with parameters and the same one without, the first is the copy, whichever was
    read first.
    """

    pattern: str
    pages: int
    exact: int
    near: int
    template: int
    share: float
    examples: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """What crawls saw and saved. ``made`` is the time of the report, ``version`` that of scrapy-dedupe.

    ``notes`` are sentences about what is not known, and what was left out. ``more_groups`` is the number of groups that are
    not in ``groups``, None if it is not known.
    """

    made: str
    version: str
    crawls: list[CrawlFigures]
    totals: Totals
    timeline: list[TimeSlice]
    hosts: list[Share]
    mime_types: list[Share]
    statuses: list[Share]
    verdicts: dict[str, int]
    similarities: list[Bin]
    groups: list[DuplicateGroup]
    more_groups: int | None
    url_filters: list[UrlFilterFigures]
    graph: CrawlGraph
    traps: list[Trap]
    notes: list[str]
