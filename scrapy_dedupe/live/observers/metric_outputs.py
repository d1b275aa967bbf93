"""Where metrics can be read: a port, or a file. Each is one place of the process, which all of its crawls share.

Counters of a place never go back while the process lives: what crawls that have ended counted is kept, and added to what
others of the same spider count. The port is open, and the file written, as long as one of its crawls goes on; the last
thing that is written are the figures with which the last crawl ended.

Imports prometheus-client, so that this module is loaded only if metrics are wanted.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.utils import floatToGoString

from scrapy_dedupe.content.latency import BOUNDS_S
from scrapy_dedupe.errors import ArchiveError, SettingError, folder_fault
from scrapy_dedupe.files import whole_file

from .metric_families import BY_NAME, FAMILIES, Family, Histogram, Reading
from .metric_server import MetricServer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from pathlib import Path

    from prometheus_client.core import Metric

_LE = (*map(floatToGoString, BOUNDS_S), "+Inf")

# By spider, name of the family and value of the label.
_Values = dict[tuple[str, str, str], "float | Histogram"]


class MetricsSource(Protocol):
    """A crawl whose metrics can be read, on any thread."""

    spider: str

    def read(self) -> Reading:
        """What the metrics are now."""

    def failed(self, error: Exception) -> None:
        """Count an error of a place, and tell the first one."""


class Board:
    """The metrics of the crawls at one place, as a collector of prometheus-client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[MetricsSource, Reading] = {}
        self._ended: _Values = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add(self, source: MetricsSource) -> None:
        with self._lock:
            self._sources[source] = {}

    def remove(self, source: MetricsSource) -> bool:
        """Keep what the crawl counted, and forget the rest. Whether it was there, and the last one."""
        with self._lock:
            if source not in self._sources:
                return False
            # Nobody may have asked since it counted something for the last time.
            self._look(source)
            for (name, value), figure in self._sources.pop(source).items():
                if BY_NAME[name].kind in ("counter", "histogram"):
                    _add(self._ended, source.spider, BY_NAME[name], value, figure)
            return not self._sources

    def failed(self, error: Exception) -> None:
        """Tell all crawls of an error."""
        for source in list(self._sources):
            source.failed(error)

    def describe(self) -> Iterator[Metric]:
        return (_metric(family) for family in FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """All metrics; of crawls that run and, for what only grows, of those that have ended."""
        metrics = {family.name: _metric(family) for family in FAMILIES}
        for (spider, name, value), figure in sorted(self._read().items(), key=itemgetter(0)):
            _add_to(metrics[name], BY_NAME[name], spider, value, figure)
        return (metric for metric in metrics.values() if metric.samples)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format 0.0.4."""
        return generate_latest(self.registry)

    def _read(self) -> _Values:
        with self._lock:
            values = dict(self._ended)
            for source, reading in self._sources.items():
                self._look(source)
                for (name, value), figure in reading.items():
                    _add(values, source.spider, BY_NAME[name], value, figure)
        return values

    def _look(self, source: MetricsSource) -> None:
        try:
            reading = source.read()
        except Exception as error:  # noqa: BLE001 - a scrape has to be answered, and the crawl goes on
            source.failed(error)
        else:
            _follow(self._sources[source], reading)


class MetricsOutput:
    """A board that somebody can read while crawls go on; ``open`` and ``close`` are called for the first and the last."""

    def __init__(self) -> None:
        self.board = Board()

    def open(self) -> None:
        """Begin. Raises :class:`~scrapy_dedupe.errors.SettingError`."""

    def close(self) -> None:
        """End; may wait for a moment."""

    def last(self) -> None:
        """A crawl ends; what it counted is still on the board."""


class Port(MetricsOutput):
    """An HTTP server on a thread of its own."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__()
        self._address, self._port = address, port

    def open(self) -> None:
        try:
            self._server = MetricServer(self._address, self._port, self.board.registry)
        except (OSError, UnicodeError) as error:
            shown = f"[{self._address}]" if ":" in self._address else self._address
            raise SettingError(
                f"The metrics cannot be read at {shown}:{self._port}: {_reason(error)}. Set"
                " DEDUPE_METRICS_PORT to a port that is free (each process needs its own; 0 turns it off) and"
                " DEDUPE_METRICS_ADDRESS to an address of this machine."
            ) from error

    def close(self) -> None:
        self._server.end()


class MetricsFile(MetricsOutput):
    """A text file that is replaced as a whole, by a thread of its own."""

    def __init__(self, path: Path, every_s: float) -> None:
        super().__init__()
        self._path = path
        self._every_s = every_s
        self._lock = threading.Lock()

    def open(self) -> None:
        try:
            self._path = whole_file.try_out(self._path)
            self._write()
        except OSError as error:
            reason, remedy = folder_fault(self._path.parent, error, "another file")
            raise SettingError(
                f"The file of DEDUPE_METRICS_FILE cannot be written to {self._path}: {reason}. {remedy}"
            ) from error
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dedupe-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def last(self) -> None:
        self._write_or_tell()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            self._write_or_tell()

    def _write_or_tell(self) -> None:
        try:
            self._write()
        except OSError as error:
            self.board.failed(ArchiveError(f"The file {self._path} cannot be written: {_reason(error)}."))
        except Exception as error:  # noqa: BLE001 - nobody else would see it
            self.board.failed(error)

    def _write(self) -> None:
        with self._lock:
            whole_file.replace(self._path, self.board.text())


# They stay, since what was counted there does.
_places: dict[Hashable, MetricsOutput] = {}
_open: set[MetricsOutput] = set()
_places_lock = threading.RLock()


def enter(place: MetricsOutput, key: Hashable, source: MetricsSource) -> MetricsOutput:
    """Show the crawl at the place that is known as *key*; *place* if there was none. Raises SettingError."""
    with _places_lock:
        place = _places.setdefault(key, place)
        place.board.add(source)
        if place not in _open:
            try:
                place.open()
            except BaseException:
                place.board.remove(source)
                raise
            _open.add(place)
    return place


def leave(place: MetricsOutput, source: MetricsSource) -> None:
    """Take the crawl away; the last one closes the place. May wait for a moment."""
    with _places_lock:
        place.last()
        if place.board.remove(source):
            _open.discard(place)
            place.close()


def is_open(key: Hashable) -> bool:
    """Whether a crawl goes on whose metrics can be read at the place that is known as *key*."""
    with _places_lock:
        return _places.get(key) in _open


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _follow(last: Reading, reading: Reading) -> None:
    """Take a new reading; what only grows does not go back."""
    for key in [key for key in last if BY_NAME[key[0]].kind in ("gauge", "info")]:
        del last[key]
    for key, figure in reading.items():
        before = last.get(key)
        if isinstance(before, float) and isinstance(figure, float):
            last[key] = max(before, figure)
        else:
            last[key] = figure


def _add(values: _Values, spider: str, family: Family, value: str, figure: float | Histogram) -> None:
    key = (spider, family.name, value)
    before = values.get(key)
    if before is None or family.kind == "info":
        values[key] = figure
    elif family.is_largest:
        values[key] = max(before, figure)  # type: ignore[type-var]
    else:
        values[key] = before + figure  # type: ignore[operator]


def _metric(family: Family) -> Metric:
    labels = ["spider", *filter(None, [family.label])]
    match family.kind:
        case "counter":
            return CounterMetricFamily(family.name.removesuffix("_total"), family.help, labels=labels)
        case "histogram":
            return HistogramMetricFamily(family.name, family.help, labels=labels)
        case "info":
            return InfoMetricFamily(family.name.removesuffix("_info"), family.help, labels=["spider"])
        case _:
            return GaugeMetricFamily(family.name, family.help, labels=labels)


def _add_to(metric: Metric, family: Family, spider: str, value: str, figure: float | Histogram) -> None:
    labels = [spider] if family.label is None else [spider, value]
    if isinstance(metric, HistogramMetricFamily) and isinstance(figure, Histogram):
        metric.add_metric(labels, buckets=list(zip(_LE, figure.counts, strict=True)), sum_value=figure.sum_s)
    elif isinstance(metric, InfoMetricFamily):
        metric.add_metric([spider], {str(family.label): value})
    elif isinstance(metric, (CounterMetricFamily, GaugeMetricFamily)) and isinstance(figure, float):
        metric.add_metric(labels, figure)
