"""Outputs: the report, the log of duplicates and the metrics; also the files that are replayed.

Each is tested as a crawl does at startup. Nothing is written to them.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import nearest_there, try_folder
from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.settings.placement import named_components

from .context import Finding, note, ok, problem, run_probe, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.settings.specs import Settings

    from .context import DoctorContext

_TIMEOUT_S: Final = 2.0
_CLASSES: Final = {
    "DEDUPE_REPORT": "scrapy_dedupe.extensions.ReportExtension",
    "DEDUPE_DUPLICATES_LOG": "scrapy_dedupe.extensions.DuplicatesLogExtension",
    "DEDUPE_METRICS_PORT": "scrapy_dedupe.extensions.MetricsExtension",
    "DEDUPE_METRICS_FILE": "scrapy_dedupe.extensions.MetricsExtension",
}


def check(context: DoctorContext) -> Iterator[Finding]:
    settings = context.settings
    if settings is None or context.is_store_given or not context.layers:
        return
    named = {path for _, path in named_components(context.scrapy_settings)}
    report = _CLASSES["DEDUPE_REPORT"]
    if context.layers & {"content", "archive"} and settings.report.page is None and report not in named:
        yield note(
            f"Crawls store no details for `scrapy dedupe report`, since {report} is not among the EXTENSIONS.",
            f'To store them, use the add-on, or set EXTENSIONS = {{"{report}": 500}}.',
        )
    for setting, what, probe in _probes(context, settings):
        path = _CLASSES.get(setting)
        if path is None or path in named:
            yield from run_probe(what, probe)
        else:
            yield warning(
                f"The setting {setting} has no effect, since {path} is not among the EXTENSIONS.",
                f'Use the add-on, or set EXTENSIONS = {{"{path}": 0}}.',
            )


def _probes(context: DoctorContext, settings: Settings) -> Iterator[tuple[str, str, partial[Finding]]]:
    report, metrics = settings.report, settings.metrics
    if report.page is not None:
        yield "DEDUPE_REPORT", "report", partial(_report, context.named_path(report.page))
    if report.duplicates_log is not None:
        log = context.named_path(report.duplicates_log)
        yield "DEDUPE_DUPLICATES_LOG", "log of duplicates", partial(_file, "DEDUPE_DUPLICATES_LOG", log)
    if metrics.port:
        yield "DEDUPE_METRICS_PORT", "port of metrics", partial(_port, metrics.address, metrics.port)
    if metrics.file is not None:
        file = context.named_path(metrics.file)
        yield "DEDUPE_METRICS_FILE", "file of metrics", partial(_file, "DEDUPE_METRICS_FILE", file)
    if settings.replay.files:
        yield "DEDUPE_REPLAY", "replay", partial(_replayed, settings)


def _report(page: Path) -> Finding:
    from scrapy_dedupe.reports.observations import Observations
    from scrapy_dedupe.reports.page import page as drawn
    from scrapy_dedupe.reports.sums import CrawlSeen, report_of

    result = _file("DEDUPE_REPORT", page)
    if result.level != "ok":
        return result
    seen = Observations()
    seen.judged("https://scrapy-dedupe.invalid/", "text/html", 200, "unique", size_bytes=1)
    drawn(report_of([CrawlSeen("doctor", None, seen)]))
    return ok(f"Report: a page with charts was rendered, and can be written to {page}.")


def _file(setting: str, path: Path) -> Finding:
    """Check that the file can be created or replaced, or, for the log of duplicates, appended to."""
    if path.is_dir():
        return problem(f"The file {path} of {setting} is a folder.", "Name a file.")
    if setting != "DEDUPE_DUPLICATES_LOG":
        try:
            found = whole_file.file_at(path)
        except OSError as error:
            return problem(
                f"The file {path} of {setting} cannot be replaced: {error.strerror or error}.", "Name a file."
            )
        try_folder(nearest_there(found.parent, follow_links=True))
    elif not path.exists():
        try_folder(nearest_there(path.parent, follow_links=True))
    elif not os.access(path, os.W_OK):
        return problem(
            f"The file {path} of {setting} cannot be written to.",
            "Change its permissions, or name another file.",
        )
    return ok(f"The file {path} of {setting} can be written.")


def _port(address: str, port: int) -> Finding:
    shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # The metrics server sets this option too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE and _serves_metrics(address, port):
            return note(
                f"A running crawl serves its metrics at {shown}.",
                "A second crawl at the same time needs another DEDUPE_METRICS_PORT.",
            )
        return problem(
            f"The metrics cannot be read at {shown}: {getattr(error, 'strerror', None) or error}.",
            "Set DEDUPE_METRICS_PORT to a port that is free, and DEDUPE_METRICS_ADDRESS to an address of this machine.",
        )
    return ok(f"The metrics can be read at {shown}.")


def _serves_metrics(address: str, port: int) -> bool:
    """Whether the server there serves metrics of this package."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - only compared
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return b"dedupe_crawl_info" in connection.getresponse().read(1_000_000)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _replayed(settings: Settings) -> Finding:
    from scrapy_dedupe.warc.containers import find_files

    files = find_files(settings.replay.files)
    return ok(f"Replay: {counted(len(files), 'file')} found.")
