"""What people and programs read besides: the report, the log of duplicates, the metrics; and the files that are replayed.

Each is tried as a crawl tries it at its start. Nothing is written to them.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.settings.placement import named_components

from .disks import existing
from .finding import Said, note, ok, problem, tried, warning

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


def check(patient: DoctorContext) -> Iterator[Said]:
    settings = patient.settings
    if settings is None or patient.is_store_given or not patient.layers:
        return
    named = {path for _, path in named_components(patient.scrapy_settings)}
    report = _CLASSES["DEDUPE_REPORT"]
    if patient.layers & {"content", "archive"} and settings.report.page is None and report not in named:
        yield note(
            f"The course of a crawl is not kept for `scrapy dedupe report`, since {report} is not among the EXTENSIONS.",
            f'To have it, use the add-on, or set EXTENSIONS = {{"{report}": 500}}.',
        )
    for setting, what, attempt in _attempts(patient, settings):
        path = _CLASSES.get(setting)
        if path is None or path in named:
            yield from tried(what, attempt)
        else:
            yield warning(
                f"The setting {setting} has no effect, since {path} is not among the EXTENSIONS.",
                f'Use the add-on, or set EXTENSIONS = {{"{path}": 0}}.',
            )


def _attempts(patient: DoctorContext, settings: Settings) -> Iterator[tuple[str, str, partial[Said]]]:
    report, metrics = settings.report, settings.metrics
    if report.page is not None:
        yield "DEDUPE_REPORT", "report", partial(_report, patient.named_path(report.page))
    if report.duplicates_log is not None:
        log = patient.named_path(report.duplicates_log)
        yield "DEDUPE_DUPLICATES_LOG", "log of duplicates", partial(_file, "DEDUPE_DUPLICATES_LOG", log)
    if metrics.port:
        yield "DEDUPE_METRICS_PORT", "port of metrics", partial(_port, metrics.address, metrics.port)
    if metrics.file is not None:
        file = patient.named_path(metrics.file)
        yield "DEDUPE_METRICS_FILE", "file of metrics", partial(_file, "DEDUPE_METRICS_FILE", file)
    if settings.replay.files:
        yield "DEDUPE_REPLAY", "replay", partial(_replayed, settings)


def _report(page: Path) -> Said:
    from scrapy_dedupe.reports.observations import Observations
    from scrapy_dedupe.reports.page import page as drawn
    from scrapy_dedupe.reports.sums import CrawlSeen, report_of

    said = _file("DEDUPE_REPORT", page)
    if said.level != "ok":
        return said
    seen = Observations()
    seen.judged("https://scrapy-dedupe.invalid/", "text/html", 200, "unique", size_bytes=1)
    drawn(report_of([CrawlSeen("doctor", None, seen)]))
    return ok(f"Report: a page with charts was made, and one can be written to {page}.")


def _file(setting: str, path: Path) -> Said:
    """Whether a file can be written there, or one that is there be added to, as its setting asks."""
    if path.is_dir():
        return problem(f"The file {path} of {setting} is a folder.", "Name a file.")
    if setting != "DEDUPE_DUPLICATES_LOG":
        try:
            found = whole_file.file_at(path)
        except OSError as error:
            return problem(
                f"The file {path} of {setting} cannot be replaced: {error.strerror or error}.", "Name a file."
            )
        whole_file.try_folder(existing(found.parent))
    elif not path.exists():
        whole_file.try_folder(existing(path.parent))
    elif not os.access(path, os.W_OK):
        return problem(
            f"The file {path} of {setting} cannot be written to.",
            "Change its permissions, or name another file.",
        )
    return ok(f"The file {path} of {setting} can be written.")


def _port(address: str, port: int) -> Said:
    shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the server of the metrics does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE and _is_ours(address, port):
            return note(
                f"The metrics of a crawl that runs are read at {shown}.",
                "A second crawl beside it needs another DEDUPE_METRICS_PORT.",
            )
        return problem(
            f"The metrics cannot be read at {shown}: {getattr(error, 'strerror', None) or error}.",
            "Set DEDUPE_METRICS_PORT to a port that is free, and DEDUPE_METRICS_ADDRESS to an address of this machine.",
        )
    return ok(f"The metrics can be read at {shown}.")


def _is_ours(address: str, port: int) -> bool:
    """Whether what listens there gives metrics of this package."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared alone
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return b"dedupe_crawl_info" in connection.getresponse().read(1_000_000)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _replayed(settings: Settings) -> Said:
    from scrapy_dedupe.warc.containers import find_files

    files = find_files(settings.replay.files)
    return ok(f"Replay: {counted(len(files), 'file')} found.")
