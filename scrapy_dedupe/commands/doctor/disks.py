"""Disks: free space and permissions where files are written."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files.folders import folder_fault, nearest_there, try_folder
from scrapy_dedupe.reports.wording import number, size
from scrapy_dedupe.stores import parse_store_url

from .context import Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .context import DoctorContext

MIN_FREE_BYTES: Final = 1_000_000_000
_MIN_FREE_SHARE: Final = 0.05
_MIN_FREE_FILES: Final = 1_000
_STORES: Final = {"content": "the store", "index": "the store of the crawl index"}
_SETTINGS: Final = {
    "the store": "DEDUPE_STORE_URL",
    "the store of the crawl index": "DEDUPE_INDEX_URL",
    "WARC files": "DEDUPE_WARC_DIR",
    "WACZ files": "DEDUPE_WACZ_DIR",
    "the job (JOBDIR)": "JOBDIR",
    "the passage index": "DEDUPE_PASSAGES_DIR",
    "the report": "DEDUPE_REPORT",
    "the log of duplicates": "DEDUPE_DUPLICATES_LOG",
    "the file of metrics": "DEDUPE_METRICS_FILE",
}


def check(context: DoctorContext) -> Iterator[Finding]:
    first: dict[tuple[int, str], str] = {}
    others: dict[tuple[int, str], list[str]] = {}
    faults: dict[tuple[int, str], Finding] = {}
    for what, folder in folders(context).items():
        shown = f"The folder {folder} for {what}"
        result = _look(shown, folder)
        if result.level == "ok":
            yield result
            continue
        # Report the same problem of a disk only once.
        key = (_disk(folder), result.sentence.removeprefix(shown))
        if key in first:
            others[key].append(what)
        else:
            first[key], others[key], faults[key] = what, [], result
    for key, result in faults.items():
        also = f" The same applies to {', '.join(others[key])}." if others[key] else ""
        names = list(dict.fromkeys(_SETTINGS[what] for what in (first[key], *others[key])))
        where = f" The setting{'s are' if len(names) > 1 else ' is'} {', '.join(names)}."
        yield replace(result, sentence=result.sentence + also, remedy=result.remedy + where)


def folders(context: DoctorContext) -> dict[str, Path]:
    """Return the folders that crawls write to, by their contents."""
    found: dict[str, Path] = {}
    settings, layers = context.settings, context.layers
    for layer, url in context.store_urls.items():
        path = parse_store_url(url).path
        if path is not None and path.absolute().parent not in found.values():
            found[_STORES[layer]] = path.absolute().parent
    if settings is None or context.is_store_given:
        return found
    if "archive" in layers:
        found["WARC files"] = settings.warc.folder
        if settings.wacz.enabled:
            found["WACZ files"] = settings.wacz.folder
    if layers and settings.jobdir is not None:
        found["the job (JOBDIR)"] = settings.jobdir
    if "passages" in layers:
        found["the passage index"] = settings.passages.root
    pages = {"the report": settings.report.page, "the log of duplicates": settings.report.duplicates_log}
    for what, page in pages.items():
        if layers and page is not None:
            found[what] = context.named_path(page).parent
    if layers and settings.metrics.file is not None:
        found["the file of metrics"] = context.named_path(settings.metrics.file).parent
    return found


def _disk(folder: Path) -> int:
    return nearest_there(folder, follow_links=True).stat().st_dev


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
    is_full = bool(usage.total) and not usage.free
    if is_full or files == 0:
        none = "no space left" if is_full else "no inodes left for new files"
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
