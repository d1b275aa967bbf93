"""The outputs for metrics: an HTTP port and a file. All crawls of a process share an output with the same settings.

The counters of an output never decrease while the process runs: the counts of finished crawls are kept, and added to
those of other crawls of the same spider. The port is open, and the file is updated, while at least one crawl uses it. The
last update of the file has the final figures of the last crawl.

This module imports prometheus-client, so import it only if metrics are enabled.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.figures import BOUNDS_S

from . import checked_file
from .metric_families import BY_NAME, FAMILIES, Family, Figure, Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_LE = (*map(floatToGoString, BOUNDS_S), "+Inf")

_COUNTED = ("counter", "histogram")

# Keys are the spider, the name of the family and the label value.
_Values = dict[tuple[str, str, str], Figure]


class MetricsSource(Protocol):
    """A crawl whose metrics can be read. Thread-safe. ``failed`` counts an error of an output, and logs the first one."""

    spider: str

    def read(self) -> Reading: ...

    def failed(self, error: Exception) -> None: ...


class Board:
    """The metrics of all crawls of one output, as a collector for prometheus-client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[MetricsSource, Reading] = {}
        self._ended: _Values = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add(self, source: MetricsSource) -> bool:
        """Add a crawl. Return True if it is the only crawl."""
        with self._lock:
            self._sources[source] = {}
            return len(self._sources) == 1

    def remove(self, source: MetricsSource) -> bool:
        """Remove a crawl, but keep its counters. Return True if it was the last crawl."""
        with self._lock:
            if source not in self._sources:
                return False
            # Read the final counts: the last scrape may have been earlier.
            self._update(source)
            _add(self._ended, source.spider, self._sources.pop(source), _COUNTED)
            return not self._sources

    def failed(self, error: Exception) -> None:
        """Report an error to all crawls."""
        for source in list(self._sources):
            source.failed(error)

    def describe(self) -> Iterator[Metric]:
        return (_metric(family) for family in FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """Return all metrics of running crawls, and the counters of finished crawls."""
        metrics = {family.name: _metric(family) for family in FAMILIES}
        for (spider, name, value), figure in sorted(self._read().items(), key=itemgetter(0)):
            _add_to(metrics[name], BY_NAME[name], spider, value, figure)
        return (metric for metric in metrics.values() if metric.samples)

    def _read(self) -> _Values:
        with self._lock:
            values = dict(self._ended)
            for source in self._sources:
                self._update(source)
                _add(values, source.spider, self._sources[source])
        return values

    def _update(self, source: MetricsSource) -> None:
        try:
            reading = source.read()
        except Exception as error:  # noqa: BLE001 - the scrape must be answered and the crawl must continue
            source.failed(error)
        else:
            for key, figure in self._sources[source].items():
                if BY_NAME[key[0]].kind in _COUNTED:
                    # Counters never decrease.
                    reading[key] = max(figure, reading.get(key, figure))
            self._sources[source] = reading


class Port:
    """Publishes the metrics on a board on an HTTP port, with the server of prometheus-client on separate threads."""

    setting = "DEDUPE_METRICS_PORT"

    def __init__(self, address: str, port: int) -> None:
        self.board = Board()
        self._address, self._port = address, port
        self.shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def check(self) -> None:
        """Open the port for a moment. Raises SettingError."""
        self.open()
        self.close()

    def open(self) -> None:
        try:
            self._server, self._thread = start_http_server(self._port, self._address, self.board.registry)
        except (OSError, UnicodeError) as error:
            raise SettingError(
                f"The metrics server cannot listen on {self.shown}: {_reason(error)}. Set DEDUPE_METRICS_PORT to a"
                " free port (each process needs its own; 0 disables it) and DEDUPE_METRICS_ADDRESS to an address of this"
                " machine."
            ) from error

    def publish(self) -> None:
        """Do nothing: the figures are read when they are requested."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsFile:
    """Publishes the metrics on a board in a text file, which a separate thread replaces atomically."""

    setting = "DEDUPE_METRICS_FILE"

    def __init__(self, path: Path, every_s: float) -> None:
        self.board = Board()
        self._path = path
        self.shown = str(path)
        self._every_s = every_s
        self._lock = threading.Lock()

    def open(self) -> None:
        self._path = checked_file(self._path, "metrics file", self.setting)
        self.publish()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dedupe-metrics", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise SettingError if the file cannot be written. Nothing is created."""
        checked_file(self._path, "metrics file", self.setting, is_trial=True)

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closing.wait(self._every_s):
            self.publish()

    def publish(self) -> None:
        try:
            with self._lock:
                # Unlike write_to_textfile(), this keeps the permissions of an existing file, and hides the temporary file.
                whole_file.replace(self._path, generate_latest(self.board.registry), durable=False)
        except OSError as error:
            self.board.failed(
                ArchiveError(
                    f"The metrics file {self._path} cannot be written: {_reason(error)}. Free some space, or name another file"
                    f" in {self.setting}."
                )
            )
        except Exception as error:  # noqa: BLE001 - an exception would end the thread silently
            self.board.failed(error)


MetricsOutput: TypeAlias = Port | MetricsFile
"""``open`` is called before the first crawl, ``publish`` at the end of each, ``close`` after the last one.

``check`` tests whether the output can be opened, and leaves nothing behind.
"""

# Outputs are never removed: they hold the counters of finished crawls.
_outputs: dict[tuple[str, str], MetricsOutput] = {}
_outputs_lock = threading.RLock()


def enter(output: MetricsOutput, source: MetricsSource) -> MetricsOutput:
    """Publish the metrics of *source* on *output*, or on the output that has the same port or file.

    Returns the output that is used. Raises :class:`~scrapy_dedupe.errors.SettingError` if it cannot be opened.
    """
    with _outputs_lock:
        output = _outputs.setdefault((output.setting, output.shown), output)
        if output.board.add(source):
            try:
                output.open()
            except BaseException:
                output.board.remove(source)
                raise
    return output


def leave(output: MetricsOutput, source: MetricsSource) -> None:
    """Remove the crawl; close the output after the last crawl. May block for a moment."""
    with _outputs_lock:
        output.publish()
        if output.board.remove(source):
            output.close()


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _add(
    values: _Values,
    spider: str,
    reading: Reading,
    kinds: Collection[str] = ("counter", "gauge", "histogram", "info"),
) -> None:
    """Combine the figures of these kinds with those of other crawls of the spider."""
    for (name, value), figure in reading.items():
        family, key = BY_NAME[name], (spider, name, value)
        if family.kind not in kinds:
            continue
        before = values.get(key)
        if before is None or family.kind == "info":
            values[key] = figure
        elif isinstance(before, tuple) or isinstance(figure, tuple):
            values[key] = tuple(map(sum, zip(before, figure, strict=True)))  # type: ignore[arg-type]
        else:
            values[key] = max(before, figure) if family.is_largest else before + figure


def _metric(family: Family) -> Metric:
    return Metric(family.name.removesuffix("_total").removesuffix("_info"), family.help, family.kind)


def _add_to(metric: Metric, family: Family, spider: str, value: str, figure: Figure) -> None:
    labels = {"spider": spider} | ({} if family.label is None else {family.label: value})
    if not isinstance(figure, tuple):
        metric.add_sample(family.name, labels, figure)
        return
    *counts, sum_s = figure
    for bound, count in zip(_LE, counts, strict=True):
        metric.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{family.name}_count", labels, counts[-1])
    metric.add_sample(f"{family.name}_sum", labels, sum_s)
