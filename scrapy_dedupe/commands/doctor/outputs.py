"""Disks and outputs: where crawls write files, and the other outputs of crawls.

Free space and permissions of each folder; the report, the log of duplicates and the metrics; also the files that are
replayed. The checks are those at the start of a crawl, without a trace.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.files.folders import folder_fault, nearest_there, try_folder
from scrapy_dedupe.live.observers.duplicates_log import check_log
from scrapy_dedupe.live.observers.metrics import outputs_of
from scrapy_dedupe.live.observers.report import checked_page
from scrapy_dedupe.reports.observations import Observations
from scrapy_dedupe.reports.page import page as drawn
from scrapy_dedupe.reports.sums import CrawlSeen, report_of
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.warc.containers import find_files

from .context import Finding, findings_of, from_error, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.live.observers.metric_outputs import MetricsOutput
    from scrapy_dedupe.settings.specs import Settings

    from .context import Check, DoctorContext

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
    settings, layers = context.crawl, context.layers
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
    if settings is None:
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
    is_there = there == folder.absolute()
    later = "" if is_there else "; it is created when it is needed"
    try:
        # A full disk is reported below.
        try_folder(folder, b"", is_trial=True)
        usage = shutil.disk_usage(there)
        system = os.statvfs(there) if hasattr(os, "statvfs") else None
    except OSError as error:
        reason, remedy = folder_fault(folder, error)
        action = "written to" if is_there else "created"
        return from_error(error, remedy, f"{shown} cannot be {action}: {reason}.")
    if not usage.total:
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
    settings = context.crawl
    if settings is None:
        return
    named = context.components
    report = _CLASSES["DEDUPE_REPORT"]
    if context.layers & {"content", "archive"} and settings.report.page is None and report not in named:
        yield note(
            f"Crawls store no details for `scrapy dedupe report`, since {report} is not among the EXTENSIONS.",
            f'To store them, use the add-on, or set EXTENSIONS = {{"{report}": 500}}.',
        )
    for setting, check in _outputs(context, settings):
        path = _CLASSES.get(setting)
        if path is None or path in named:
            yield from findings_of(f"output of {setting}", check)
        else:
            yield warning(
                f"The setting {setting} has no effect, since {path} is not among the EXTENSIONS.",
                f'Use the add-on, or set EXTENSIONS = {{"{path}": 0}}.',
            )


def _outputs(context: DoctorContext, settings: Settings) -> Iterator[tuple[str, Check]]:
    report = settings.report
    if report.page is not None:
        yield "DEDUPE_REPORT", partial(_report, context.named_path(report.page))
    if report.duplicates_log is not None:
        yield "DEDUPE_DUPLICATES_LOG", partial(_log, context.named_path(report.duplicates_log))
    if files := settings.replay.files:
        yield "DEDUPE_REPLAY", lambda: [ok(f"Replay: {counted(len(find_files(files)), 'file')} found.")]
    for output in outputs_of(settings.metrics, context.named_path):
        yield output.setting, partial(_metrics, output)


def _report(page: Path) -> Iterator[Finding]:
    checked_page(page, is_trial=True)
    seen = Observations()
    seen.judged("https://scrapy-dedupe.invalid/", "text/html", 200, "unique", size_bytes=1)
    drawn(report_of([CrawlSeen("doctor", None, seen)]))
    yield ok(f"Report: a page with charts was rendered, and can be written to {page}.")


def _log(path: Path) -> Iterator[Finding]:
    check_log(path, is_trial=True)
    yield ok(f"The file {path} of DEDUPE_DUPLICATES_LOG can be written.")


def _metrics(output: MetricsOutput) -> Iterator[Finding]:
    try:
        output.check()
    except SettingError:
        if output.setting != "DEDUPE_METRICS_PORT" or not _serves_metrics(output.shown):
            raise
        yield note(
            f"A running crawl serves its metrics at {output.shown}.",
            "A second crawl at the same time needs another DEDUPE_METRICS_PORT.",
        )
    else:
        yield ok(f"The metrics can be read at {output.shown}.")


def _serves_metrics(address: str) -> bool:
    """Whether the server at an address with a port serves metrics of this package."""
    # A server that listens on all addresses is asked at the local one.
    host = re.sub(r"^0\.0\.0\.0(?=:)", "127.0.0.1", address.replace("[::]:", "[::1]:"))
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return b"dedupe_crawl_info" in connection.getresponse().read(1_000_000)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
