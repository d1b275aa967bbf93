"""Observations of a crawl, in bounded memory.

Counters are exact. Hosts, MIME types, statuses, groups of duplicates and URL patterns have rows only for the most
frequent ones (see :mod:`.tallies`); the sums include all others.

A store keeps them as JSON in UTF-8 (the result of :meth:`Observations.as_dict`, which has a ``format``), compressed with
zlib.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.warc.dates import format_date

from .tallies import (
    LAST_SECOND,
    MOST_BYTES,
    MOST_PAGES,
    Groups,
    Tallies,
    Timeline,
    count_of,
    dict_of,
    is_number,
    list_of,
    number_of,
    text_of,
)
from .url_patterns import UrlPatterns
from .wording import harmless, host_of, mime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FORMAT = 1
KINDS = ("unique", "unchanged", "changed", "exact", "near", "unknown")
"""The kinds of verdicts, and ``changed``: a near copy of an earlier version of the same URL, only used in reports."""
DUPLICATES = ("unchanged", "changed", "exact", "near")
BINS = 100

# The columns are written out: the classes of the figures are not loaded during a crawl.
# fmt: off
TOTALS = (
    "requests_filtered", "pages_judged", "duplicates", "dropped", "responses", "revisits", "bytes_written",
    "bytes_conserved", "bytes_judged",
)
SHARE_COLUMNS = (
    "pages", "duplicates", "requests_filtered", "responses", "revisits", "bytes_written", "bytes_conserved",
)
# fmt: on
TIME_COLUMNS = ("requests_filtered", "pages", "duplicates", "bytes_written", "bytes_conserved")

CACHE_STATS = tuple(
    f"dedupe/cache/{name}" for name in ("found", "missed", "used", "bytes_used", "bytes_received")
)

SUMMED_STATS = (
    "dedupe/url/confirmed",
    "dedupe/url/false_positives",
    "dedupe/errors/report",
    *CACHE_STATS,
)
"""Stats that each run of a job counts from 0. Their sums over the runs are kept; of other stats, the last run's value."""

_SHARE_COLUMN = {name: column for column, name in enumerate(SHARE_COLUMNS)}
_TIME_COLUMN = {name: column for column, name in enumerate(TIME_COLUMNS)}
# The attributes that count by themselves: each has the methods as_dict(), merge() and take().
_COUNTERS = ("timeline", "hosts", "mime_types", "statuses", "groups", "url_patterns")
_MOST_STATS = 200
RULE_PREFIX = "dedupe/url/rule/"
_STATS_PREFIXES = ("dedupe/", "dupefilter/")
# The JSON has less than 400 kB. Nested lists take up to forty times as much memory, so more is refused.
_MOST_JSON_BYTES = 1_000_000


class Observations:
    """The observations of a crawl, over all runs of its job. ``now`` returns the time in seconds since the epoch.

    Every method may be called from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.time, *, spider: str | None = None) -> None:
        self._now = now
        self._lock = Lock()
        self._is_running = True
        self.spider = None if spider is None else harmless(spider, 200)
        self.started = self.ended = self._time()
        self.totals = dict.fromkeys(TOTALS, 0)
        self.verdicts = dict.fromkeys(KINDS, 0)
        self.similarities = [0] * BINS
        self.timeline = Timeline(len(TIME_COLUMNS))
        self.hosts = Tallies(len(SHARE_COLUMNS), 100, 24_000)
        self.mime_types = Tallies(len(SHARE_COLUMNS), 30, 3_000)
        self.statuses = Tallies(len(SHARE_COLUMNS), 30, 1_000)
        self.groups = Groups()
        self.url_patterns = UrlPatterns()
        self.stats: dict[str, int | float] = {}
        # The stats of the earlier runs.
        self._earlier: dict[str, int | float] = {}

    def filtered(self, url: str, at_s: float | None = None) -> None:
        """Record a request that was filtered as a duplicate, now or at ``at_s`` seconds since the epoch."""
        with self._lock:
            self._count(at_s, {"requests_filtered": 1}, (self.hosts, host_of(url)))

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
        is_bare: bool = False,
        at_s: float | None = None,
    ) -> None:
        """Record a page with its verdict, whose ``kind`` and ``same_url`` are given. ``size_bytes`` is the size of its body.

        ``is_bare``: the page is new, but has hardly any text besides the template of its host. ``at_s`` as in
        :meth:`filtered`.
        """
        if kind not in KINDS or kind == "changed":
            raise ValueError(f"{kind!r} is not a kind of verdict.")
        is_duplicate = kind in DUPLICATES
        is_other = is_duplicate and original_url is not None and not (same_url or original_url == url)
        if similarity is not None:
            similarity = None if math.isnan(similarity) else min(max(float(similarity), 0.0), 1.0)
        with self._lock:
            self.verdicts["changed" if kind == "near" and same_url else kind] += 1
            if kind == "unknown":
                return
            counts = {
                "pages_judged": 1,
                "pages": 1,
                "duplicates": int(is_duplicate),
                "dropped": int(dropped),
                "bytes_judged": _bounded(size_bytes),
            }
            self._count(at_s, counts, *self._rows(url, mime, status))
            if kind == "near" and similarity is not None:
                self.similarities[min(int(similarity * BINS + 1e-9), BINS - 1)] += 1
            self.url_patterns.count(url, kind, original_url if is_other else None, is_bare=is_bare)
            if is_other and kind != "unchanged" and original_url is not None:
                self.groups.count(original_url, url, kind, similarity)

    def recorded(
        self,
        url: str,
        mime: str,
        status: int,
        kind: str,
        written: int,
        conserved: int,
        at_s: float | None = None,
    ) -> None:
        """Record an archived exchange. ``kind`` is the kind of its record; the sizes are in bytes.

        ``at_s`` as in :meth:`filtered`.
        """
        # A skipped exchange has no record, so all its columns would be 0.
        if kind in ("response", "revisit"):
            sizes = {"bytes_written": _bounded(written), "bytes_conserved": _bounded(conserved)}
            with self._lock:
                self._count(at_s, {f"{kind}s": 1, **sizes}, *self._rows(url, mime, status))

    def set_stats(self, stats: Mapping[str, object]) -> None:
        """Keep the stats of deduplication of this run. They replace the stats of an earlier call."""
        kept = dict(self._earlier)
        # A file may have hundreds of URL rules, so their stats come last.
        for key in sorted(map(str, stats), key=lambda key: (key.startswith(RULE_PREFIX), key)):
            value = stats.get(key)
            if key.startswith(_STATS_PREFIXES) and len(key) <= 200 and is_number(value):
                kept[harmless(key)] = number_of(value) + self._earlier.get(key, 0)
            if len(kept) == _MOST_STATS:
                break
        with self._lock:
            self.stats = kept

    def _rows(self, url: str, mime: str, status: int) -> list[tuple[Tallies, str]]:
        """The rows of a response, as tallies and names."""
        status_text = str(status) if 0 < status < 1_000 else "(none)"
        return [(self.hosts, host_of(url)), (self.mime_types, mime_of(mime)), (self.statuses, status_text)]

    def _count(self, at_s: float | None, counts: Mapping[str, int], *rows: tuple[Tallies, str]) -> None:
        """Add *counts* to the totals, the timeline and these rows, each of which has columns for some of the names."""
        for name, number in counts.items():
            if name in self.totals:
                self.totals[name] += number
        row_counts = [(_SHARE_COLUMN[name], counts[name]) for name in counts if name in _SHARE_COLUMN]
        for tallies, name in rows:
            tallies.count(name, row_counts)
        self._at_time(at_s, [(_TIME_COLUMN[name], counts[name]) for name in counts if name in _TIME_COLUMN])

    def _at_time(self, at_s: float | None, counts: Iterable[tuple[int, int]] = ()) -> None:
        self._is_running = True
        now = self._time() if at_s is None else min(max(at_s, 0.0), float(LAST_SECOND))
        # An event may be counted after a later one, but the clock may also have been set back.
        self.ended = now if at_s is None else max(self.ended, now)
        # The clock may have been set back.
        self.started = min(self.started, now)
        self.timeline.count(now, counts)

    def _time(self) -> float:
        return min(max(self._now(), 0.0), float(LAST_SECOND))

    def as_dict(self) -> dict[str, Any]:
        """Return all observations as plain values for JSON, which has less than 400 kB."""
        with self._lock:
            if self._is_running:
                self._at_time(None)
            return {
                "format": FORMAT,
                "spider": self.spider,
                "started": self.started,
                "ended": self.ended,
                "totals": dict(self.totals),
                "verdicts": dict(self.verdicts),
                "similarities": list(self.similarities),
                **{name: getattr(self, name).as_dict() for name in _COUNTERS},
                "stats": dict(self.stats),
            }

    def copy(self) -> Observations:
        """An independent copy."""
        return self.from_dict(self.as_dict(), self._now)

    def merge(self, other: Observations) -> None:
        """Add the observations of another crawl. This object must not record anything afterwards."""
        for total, number in other.totals.items():
            self.totals[total] += number
        for kind, pages in other.verdicts.items():
            self.verdicts[kind] += pages
        self.similarities = [a + b for a, b in zip(self.similarities, other.similarities, strict=True)]
        for name in _COUNTERS:
            getattr(self, name).merge(getattr(other, name))

    @classmethod
    def from_dict(cls, data: object, now: Callable[[], float] = time.time) -> Observations:
        """Restore the result of :meth:`as_dict`; the object can record more.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` for invalid data, and for a newer format.
        """
        format_ = data.get("format") if isinstance(data, dict) else None
        if isinstance(format_, int) and format_ > FORMAT:
            raise StoreRefused(
                f"The observations of the crawl have format {format_}, but this version of scrapy-dedupe reads format"
                f" {FORMAT}. Upgrade scrapy-dedupe."
            )
        try:
            plain = dict_of(data)
            if count_of(format_) != FORMAT:
                raise ValueError("no format")
            new = cls(now, spider=None if plain["spider"] is None else text_of(plain["spider"]))
            new._is_running = False
            new.started, new.ended = _time_of(plain["started"]), _time_of(plain["ended"])
            totals, verdicts = dict_of(plain["totals"]), dict_of(plain["verdicts"])
            new.totals = {key: count_of(totals[key]) for key in new.totals}
            new.verdicts = {kind: count_of(verdicts[kind], MOST_PAGES) for kind in KINDS}
            new.similarities = [count_of(pages, MOST_PAGES) for pages in list_of(plain["similarities"])]
            if len(new.similarities) != BINS:
                raise ValueError("wrong number of bins")
            for name in _COUNTERS:
                getattr(new, name).take(plain[name])
            new.set_stats(dict_of(plain["stats"]))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise StoreRefused(f"The observations of the crawl are damaged ({error}).") from error
        new._earlier = {key: new.stats[key] for key in SUMMED_STATS if key in new.stats}
        return new


def pack(observations: Observations) -> bytes:
    """Serialise observations for the reports of a :data:`~scrapy_dedupe.stores.Store`: a few kB, about 100 kB at most."""
    text = json.dumps(observations.as_dict(), ensure_ascii=False, separators=(",", ":"))
    return zlib.compress(text.encode(), 6)


def unpack(data: bytes, crawl: str, now: Callable[[], float] = time.time) -> Observations:
    """Deserialise the observations of *crawl*.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` for damaged data and for data of a newer version.
    """
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, _MOST_JSON_BYTES)
        if not stream.eof:
            raise ValueError("it is truncated, or too long")
        return Observations.from_dict(json.loads(text), now)
    except (StoreRefused, zlib.error, ValueError, RecursionError) as error:
        reason = (
            error
            if isinstance(error, StoreRefused)
            else f"The observations of the crawl are damaged ({error})."
        )
        raise StoreRefused(
            f"The report of the crawl {crawl} cannot be read. {reason} It was not changed."
        ) from error


def iso_time(seconds: float) -> str:
    """A time since the epoch in the format of the index.

    >>> iso_time(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    return format_date(datetime.fromtimestamp(seconds, UTC))


def _bounded(number: int) -> int:
    return min(max(int(number), 0), MOST_BYTES)


def _time_of(value: object) -> float:
    seconds = float(number_of(value))
    if not 0 <= seconds <= LAST_SECOND:
        raise ValueError("not a time")
    return seconds
