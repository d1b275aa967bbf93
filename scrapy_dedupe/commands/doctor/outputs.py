"""Disks and outputs: where crawls write files, and the other outputs of crawls.

Free space and permissions of each folder; the report, the log of duplicates and the metrics; also the files that are
replayed. Each is tested as at the start of a crawl. Nothing is written to them.
"""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import folder_fault, nearest_there, try_folder
from scrapy_dedupe.reports.observations import Observations
from scrapy_dedupe.reports.page import page as drawn
from scrapy_dedupe.reports.sums import CrawlSeen, report_of
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.settings.placement import named_components
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.warc.containers import find_files

from .context import Finding, note, ok, problem, run_probe, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.settings.specs import Settings

    from .context import DoctorContext

MIN_FREE_BYTES: Final = 1_000_000_000
_MIN_FREE_SHARE: Final = 0.05
_MIN_FREE_FILES: Final = 1_000
_TIMEOUT_S: Final = 2.0
_CLASSES: Final = {
    "DEDUPE_REPORT": "scrapy_dedupe.extensions.ReportExtension",
    "DEDUPE_DUPLICATES_LOG": "scrapy_dedupe.extensions.DuplicatesLogExtension",
    "DEDUPE_METRICS_PORT": "scrapy_dedupe.extensions.MetricsExtension",
    "DEDUPE_METRICS_FILE": "scrapy_dedupe.extensions.MetricsExtension",
}


def check_disks(context: DoctorContext) -> Iterator[Finding]:
    # The same problem of a disk is reported only once.
    faults: dict[tuple[int, str], tuple[Finding, list[str], list[str]]] = {}
    for contents, setting, folder in folders(context):
        shown = f"The folder {folder} for {contents}"
        found = _look(shown, folder)
        if found.level == "ok":
            yield found
            continue
        disk = nearest_there(folder, follow_links=True).stat().st_dev
        fault = faults.setdefault((disk, found.sentence.removeprefix(shown)), (found, [], []))
        fault[1].append(contents)
        fault[2].append(setting)
    for found, all_contents, names in faults.values():
        also = f" The same applies to {', '.join(all_contents[1:])}." if len(names) > 1 else ""
        where = f" The setting{'s are' if len(names) > 1 else ' is'} {', '.join(names)}."
        yield replace(found, sentence=found.sentence + also, remedy=found.remedy + where)


def folders(context: DoctorContext) -> Iterator[tuple[str, str, Path]]:
    """Yield the folders that crawls write to: the contents, the setting, and the folder."""
    settings, layers = context.settings, context.layers
    seen: set[Path] = set()
    for contents, layer, setting in (
        ("the store", "content", "DEDUPE_STORE_URL"),
        ("the store of the crawl index", "index", "DEDUPE_INDEX_URL"),
    ):
        url = context.store_urls.get(layer)
        path = None if url is None else parse_store_url(url).path
        if path is not None and path.absolute().parent not in seen:
            seen.add(path.absolute().parent)
            yield contents, setting, path.absolute().parent
    if settings is None or context.is_store_given or not layers:
        return
    if "archive" in layers:
        yield "WARC files", "DEDUPE_WARC_DIR", settings.warc.folder
        if settings.wacz.enabled:
            yield "WACZ files", "DEDUPE_WACZ_DIR", settings.wacz.folder
    if settings.jobdir is not None:
        yield "the job (JOBDIR)", "JOBDIR", settings.jobdir
    if "passages" in layers:
        yield "the passage index", "DEDUPE_PASSAGES_DIR", settings.passages.root
    for contents, setting, file in (
        ("the report", "DEDUPE_REPORT", settings.report.page),
        ("the log of duplicates", "DEDUPE_DUPLICATES_LOG", settings.report.duplicates_log),
        ("the file of metrics", "DEDUPE_METRICS_FILE", settings.metrics.file),
    ):
        if file is not None:
            yield contents, setting, context.named_path(file).parent


def _look(shown: str, folder: Path) -> Finding:
    there = nearest_there(folder, follow_links=True)
    if not there.is_dir():
        return problem(f"{shown} cannot be created, since {there} is a file.", "Name another folder.")
    is_there = there == folder.absolute()
    later = "" if is_there else "; it is created when it is needed"
    try:
        usage = shutil.disk_usage(there)
        system = os.statvfs(there) if hasattr(os, "statvfs") else None
    except OSError as error:
        return problem(f"{shown} cannot be checked: {error.strerror}.", "Name another folder.")
    if system is not None and system.f_flag & os.ST_RDONLY:
        return problem(f"{shown} is on a read-only file system.", "Name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(
            f"{shown} cannot be {'written to' if is_there else f'created: no permission in {there}'}.",
            "Change its permissions, or name another folder.",
        )
    if not usage.total:
        # A file system such as /proc reports no size, and does not show that it cannot be written to.
        try:
            try_folder(there)
        except OSError as error:
            reason, remedy = folder_fault(folder, error)
            return problem(f"{shown} cannot be {'written to' if is_there else 'created'}: {reason}.", remedy)
        return ok(f"{shown} can be written to{later}; its file system does not report the free space.")
    free = f"{size(usage.free)} free of {size(usage.total)}"
    files = None if system is None or not system.f_files else system.f_favail
    if not usage.free or files == 0:
        none = "no inodes left for new files" if usage.free else "no space left"
        return Finding(
            "problem",
            f"{shown} is on a disk that has {none}.",
            "Free some space, or name a folder on another disk.",
            is_disk_full=True,
        )
    if usage.free < MIN_FREE_BYTES or usage.free < _MIN_FREE_SHARE * usage.total:
        return warning(f"{shown} has {free}.", "Free some space, or name a folder on another disk.")
    if files is not None and files < _MIN_FREE_FILES:
        return warning(
            f"{shown} is on a file system that has room for {number(files)} more files (inodes).",
            "Delete files that are not needed, or name a folder on another disk.",
        )
    return ok(f"{shown} has {free}{later}.")


def check_outputs(context: DoctorContext) -> Iterator[Finding]:
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


def _probes(context: DoctorContext, settings: Settings) -> Iterator[tuple[str, str, Callable[[], Finding]]]:
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
    if files := settings.replay.files:
        yield (
            "DEDUPE_REPLAY",
            "replay",
            lambda: ok(f"Replay: {counted(len(find_files(files)), 'file')} found."),
        )


def _report(page: Path) -> Finding:
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
