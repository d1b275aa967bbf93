"""All Prometheus metrics: name, type, labels, help text, and how to read their values from a crawl.

Reading the values needs no store and no file: stats are copied, all other values are in memory. A test compares
:data:`FAMILIES` with the reference page in the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.live.figures import LiveFigures

# Label values come from spiders and from stats that other components set, so their size and number are limited.
_MOST_LABEL_CHARS: Final = 200
_MOST_LABELS: Final = 50
_MOST: Final = 1e300


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family. ``name`` is the full name. Every family has the label ``spider``, and ``label`` if not None.

    ``layer`` is a step of :class:`~scrapy_dedupe.live.figures.LiveFigures` that exists if the layer of the metric is
    active; None for metrics of every crawl. ``stats`` lists the stats that a counter sums up, without their ``prefix``;
    with ``label`` each is the label value. ``is_open`` adds all other stats with this prefix. If a spider has several
    crawls, their gauges are added, or, with ``is_largest``, the maximum is used.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    layer: str | None = None
    label: str | None = None
    stats: tuple[str, ...] = ()
    prefix: str = ""
    is_open: bool = False
    is_largest: bool = False


# A histogram is a tuple: the cumulative counts for each of live.figures.BOUNDS_S and in total, and the sum in seconds.
Figure: TypeAlias = "float | tuple[float, ...]"
# Keys are the name of the family and the label value, which is empty for families without label.
Reading: TypeAlias = "dict[tuple[str, str], Figure]"


def _url(name: str, help_: str, *, is_largest: bool = False) -> Family:
    return Family(f"dedupe_url_{name}", "gauge", help_, "url", is_largest=is_largest)


def _counter(name: str, help_: str, layer: str, stat: str) -> Family:
    return Family(name, "counter", help_, layer, stats=(stat,))


FAMILIES: Final = (
    Family("dedupe_crawl_info", "info", "The crawl in the index; always 1.", label="crawl"),
    Family("dedupe_crawls_running", "gauge", "Running crawls."),
    # Totals of all layers
    Family("dedup_exact_hits_total", "counter", "Pages with a known text: verdicts exact and unchanged.",
           "verdict", stats=("dedupe/content/exact", "dedupe/content/unchanged")),
    _counter("dedup_near_hits_total", "Pages with nearly the same text as another page: verdict near.",
             "verdict", "dedupe/content/near"),
    Family("dedup_latency_seconds", "histogram", "Duration of a step.", label="layer"),
    Family("dedup_errors_total", "counter", "Errors within scrapy-dedupe.", label="layer", prefix="dedupe/errors/", is_open=True,
           # Export zeros: Prometheus does not see an increase if a series starts with its first error.
           stats=("store", "url", "content", "warc", "upload", "cache", "replay", "passages", "report", "log", "metrics", "memory", "close")),
    # URLs
    _url("seen", "Distinct fingerprints in the URL filter."),
    _url("capacity", "Fingerprints that the first layer of the URL filter is sized for."),
    _url("layers", "Layers of the URL filter; more than one if it has exceeded its initial capacity.",
         is_largest=True),
    _url("bytes", "Size of the bit arrays of the URL filter in bytes."),
    _url("fill_ratio", "Expected share of set bits in the URL filter, from 0 to 1.",
         is_largest=True),
    _url("estimated_error", "Probability that a new URL is wrongly filtered as a duplicate.", is_largest=True),
    _url("expected_lost", "Expected number of new URLs wrongly filtered over the lifetime of the filter."),
    _counter("dedupe_url_filtered_total", "Requests filtered as duplicates.", "url", "dupefilter/filtered"),
    _counter("dedupe_url_failed_total", "Failed requests that may be retried in the next run.", "url",
             "dedupe/url/failed"),
    Family("dedupe_url_confirmed_total", "counter", "Hits of the URL filter that the exact set confirmed.", "url"),
    Family("dedupe_url_false_positives_total", "counter", "Hits of the URL filter that the exact set did not confirm.",
           "url"),
    # Content
    Family("dedupe_content_pages_total", "counter", "Pages by verdict.", "verdict", "kind",
           ("unique", "unchanged", "exact", "near", "unknown"), "dedupe/content/"),
    Family("dedupe_content_skipped_total", "counter", "Pages that the content layer skipped.", "verdict", "reason",
           prefix="dedupe/content/skipped/", is_open=True),
    _counter("dedupe_content_dropped_total", "Pages that were dropped as duplicates.", "verdict",
             "dedupe/content/dropped"),
    _counter("dedupe_content_failed_total", "Pages whose callback or item pipelines raised an error.", "verdict",
             "dedupe/content/failed"),
    # Archive
    Family("dedupe_warc_records_total", "counter", "WARC records written for exchanges.", "warc", "type",
           ("response", "revisit", "resource"), "dedupe/warc/"),
    _counter("dedupe_warc_bytes_written_total", "Total size of the records written in bytes.", "warc",
             "dedupe/warc/bytes_written"),
    _counter("dedupe_warc_bytes_conserved_total", "Bytes saved by revisit records.", "warc",
             "dedupe/warc/bytes_conserved"),
    _counter("dedupe_warc_skipped_total", "Exchanges not recorded because they had been recorded shortly before.",
             "warc", "dedupe/warc/skipped"),
    _counter("dedupe_warc_rendered_total",
             "Responses that a browser rendered or a download handler decoded, so they differ from what the server sent.",
             "warc", "dedupe/warc/rendered"),
    _counter("dedupe_warc_not_archived_total", "Exchanges missing from the archive because of an error.",
             "warc", "dedupe/warc/not_archived"),
    _counter("dedupe_warc_held_back_total", "How often the crawl was paused because too many bytes were waiting to be written.",
             "warc", "dedupe/warc/held_back"),
    Family("dedupe_warc_queue_bytes", "gauge", "Bytes of exchanges waiting to be written.", "warc"),
)  # fmt: skip

BY_NAME: Final = {family.name: family for family in FAMILIES}


def read_crawl(
    stats: Mapping[str, Any], live: LiveFigures, crawl: str | None, queue_bytes: int, *, is_running: bool
) -> Reading:
    """Return the current metrics of one crawl. *stats* must not change during the call."""
    latencies = dict(live.latencies)
    reading: Reading = {("dedupe_crawls_running", ""): float(is_running)}
    if crawl is not None:
        reading["dedupe_crawl_info", label(crawl)] = 1.0
    for family in FAMILIES:
        if family.layer is None or family.layer in latencies:
            for value, count in _counts(family, stats):
                key = (family.name, value)
                reading[key] = count + reading.get(key, 0.0)  # type: ignore[operator]
    for step, latency in latencies.items():
        counts, sum_s = latency.cumulative()
        reading["dedup_latency_seconds", step] = (*counts, sum_s)
    if "warc" in latencies:
        reading["dedupe_warc_queue_bytes", ""] = float(queue_bytes)
    for name, figure in (live.url_figures() if live.url_figures is not None else {}).items():
        for known in (f"dedupe_url_{name}", f"dedupe_url_{name}_total"):
            if known in BY_NAME:
                reading[known, ""] = float(figure)
    return reading


def label(text: object) -> str:
    """Return *text* as a label value: valid UTF-8 of limited length."""
    return str(text)[:_MOST_LABEL_CHARS].encode("utf-8", "backslashreplace").decode()


def _counts(family: Family, stats: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The counts of a family, each with its label value, which is empty without label."""
    names = list(family.stats)
    if family.is_open:
        found = {key.removeprefix(family.prefix) for key in map(str, stats) if key.startswith(family.prefix)}
        names += sorted(found.difference(names))[:_MOST_LABELS]
    for name in names:
        value = "" if family.label is None else label(name)
        yield value, _number(stats.get(f"{family.prefix}{name}", 0))


def _number(value: object) -> float:
    # A spider can set these stats to any value; the scrape must still be answered.
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST else 0.0
