"""The figures of a report: the output of ``report --json``, and the data of the page.

Sizes are in bytes, times are ISO 8601 in UTC. Texts from the web (URLs, host names, MIME types) have at most 2,000
characters, without control characters and lone surrogates; they are not escaped for HTML.
"""

from __future__ import annotations

from dataclasses import dataclass

OTHERS = "(others)"
"""The name of the last row of a list of shares, which sums up all names without their own row."""


@dataclass(frozen=True, slots=True)
class CrawlFigures:
    """One crawl. ``state``: ``committed``, ``uncommitted`` (running, or waiting for a decision), ``canceled``,
    ``not archived`` (only the content layer was used) or ``not in the index`` (archived, with another index).

    ``spider`` and the times are None if unknown. ``has_details``: observations of the crawl are stored. Without them, the
    counts come from the index, and ``requests_filtered`` and ``verdicts`` from the stats of its commit, if there are any.
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

    ``responses`` are records with their own payload, ``revisits`` records without. ``duplicates`` are pages that were
    ``unchanged``, ``exact`` or ``near``; ``dropped`` are duplicates that the spider did not get.
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
    """The counts of ``seconds`` seconds from ``start`` on. There are no slices for times at which no crawl ran."""

    start: str
    seconds: int
    requests_filtered: int
    pages: int
    duplicates: int
    bytes_written: int
    bytes_conserved: int


@dataclass(frozen=True, slots=True)
class Share:
    """The counts of one host, MIME type or status; the largest come first. The last row may be :data:`OTHERS`.

    ``requests_filtered`` is None for MIME types and statuses, since a filtered request has no response. ``is_bound``: the
    counts are lower bounds, since earlier ones of this name may be included in the last row.
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
    """The number of near copies with an estimated similarity from ``low`` to before ``high``.

    The last bin includes its end, 1.0.
    """

    low: float
    high: float
    pages: int


@dataclass(frozen=True, slots=True)
class Example:
    """A page that duplicates another one. ``kind``: ``exact`` or ``near``, with its ``similarity``."""

    url: str
    kind: str
    similarity: float | None


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Pages at other URLs with the text of the page at ``url``, which was read first and is not counted.

    ``is_bound``: the counts are lower bounds, since earlier pages of the group may not be counted.
    ``least_similarity`` is 1.0 if all texts are equal.
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
    """The URL filter of one crawl, from its stats ``dedupe/url/…``. Missing stats are None.

    ``estimated_error`` is the probability that the next new URL is filtered wrongly, ``expected_lost`` the expected number
    of pages lost that way. ``confirmed`` and ``false_positives`` count filter answers that the exact set confirmed or
    corrected.
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
class CacheFigures:
    """The archive as HTTP cache of one crawl, from its stats ``dedupe/cache/…``.

    ``pages`` were looked up, and ``used`` of them answered from the archive. Sizes are in bytes: ``bytes_used`` of the bodies
    that were not received, ``bytes_received`` of the responses that were.
    """

    crawl: str
    pages: int
    used: int
    bytes_used: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class UrlRuleFigures:
    """A URL rule in one crawl. ``filtered`` requests were not made, except for ``probes`` and, if suspended, in the end.

    ``pairs_for`` and ``pairs_against`` are pairs of pages that the rule equates and that had the same text or different
    texts. ``precision`` is the share of the former; None if no pages were compared.

    A candidate is a rule that is not enabled. ``candidate_downloads`` would have been saved in the crawls that it was
    learnt from, and its pairs are from these crawls.
    """

    crawl: str
    rule: str
    filtered: int
    probes: int
    pairs_for: int
    pairs_against: int
    precision: float | None
    is_suspended: bool
    candidate_downloads: int | None = None


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A crawl. ``state`` is None if it is needed but not in the index.

    ``needs_unknown`` says why the index may not know all dependencies of the crawl; None if it does. ``is_in_report``: the
    figures of the crawl are in the report. ``started`` is None if unknown.
    """

    id: str
    state: str | None
    needs_unknown: str | None = None
    is_in_report: bool = True
    started: str | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Revisits of ``crawl`` refer to records of ``needs``, in ``files`` of its files.

    ``is_missing``: the other crawl, or one of the files, does not exist.
    """

    crawl: str
    needs: str
    files: int
    is_missing: bool


@dataclass(frozen=True, slots=True)
class CrawlGraph:
    """Dependencies of the reported crawls, the crawls that they need, and the crawls that need one of them.

    ``left_out`` is the number of further crawls.
    """

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Trap:
    """A URL pattern with little new content on most of its pages.

    ``pages`` were judged and are not ``unchanged``. ``exact`` and ``near`` are the copies among them of pages at other
    URLs. ``template`` counts pages that are not copies, but have hardly any text besides the template of their host.
    ``share`` is the share of these three kinds, from 0 to 1. If a page with parameters and the same page without them are
    equal, the one with parameters counts as the copy, even if it was read first.
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
    """The statistics and savings of crawls. ``made`` is the time of the report, ``version`` that of scrapy-dedupe.

    ``notes`` are sentences about unknown and omitted data. ``more_groups`` is the number of groups that are not in
    ``groups``, None if unknown.
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
    http_caches: list[CacheFigures]
    url_rules: list[UrlRuleFigures]
    graph: CrawlGraph
    traps: list[Trap]
    notes: list[str]
