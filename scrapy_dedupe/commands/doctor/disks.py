"""Disks: free room and permissions where files are written."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.figures import number_text, size_text
from scrapy_dedupe.errors import folder_fault
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.stores import parse_store_url

from .finding import Said, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def check(patient: DoctorContext) -> Iterator[Said]:
    first: dict[tuple[int, str], str] = {}
    others: dict[tuple[int, str], list[str]] = {}
    faults: dict[tuple[int, str], Said] = {}
    for what, folder in folders(patient).items():
        shown = f"The folder {folder} for {what}"
        said = _look(shown, folder)
        if said.level == "ok":
            yield said
            continue
        # What is wrong with a disk is told once.
        key = (_disk(folder), said.sentence.removeprefix(shown))
        if key in first:
            others[key].append(what)
        else:
            first[key], others[key], faults[key] = what, [], said
    for key, said in faults.items():
        also = f" So it is for {', '.join(others[key])}." if others[key] else ""
        names = list(dict.fromkeys(_SETTINGS[what] for what in (first[key], *others[key])))
        where = f" The setting{'s are' if len(names) > 1 else ' is'} {', '.join(names)}."
        yield replace(said, sentence=said.sentence + also, remedy=said.remedy + where)


def folders(patient: DoctorContext) -> dict[str, Path]:
    """The folders that crawls write to, by what they hold."""
    found: dict[str, Path] = {}
    settings, layers = patient.settings, patient.layers
    for layer, url in patient.store_urls.items():
        path = parse_store_url(url).path
        if path is not None and path.absolute().parent not in found.values():
            found[_STORES[layer]] = path.absolute().parent
    if settings is None or patient.is_store_given:
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
            found[what] = patient.named_path(page).parent
    if layers and settings.metrics.file is not None:
        found["the file of metrics"] = patient.named_path(settings.metrics.file).parent
    return found


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    folder = folder.absolute()
    # Path.exists raises where a folder above may not be looked into.
    return next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path(folder.anchor))  # noqa: PTH110


def _disk(folder: Path) -> int:
    return existing(folder).stat().st_dev


def _look(shown: str, folder: Path) -> Said:
    there = existing(folder)
    if not there.is_dir():
        return problem(f"{shown} cannot be made, since {there} is a file.", "Name another folder.")
    is_there = there == folder.absolute()
    later = "" if is_there else "; it is made when it is needed"
    try:
        usage = shutil.disk_usage(there)
        system = os.statvfs(there) if hasattr(os, "statvfs") else None
    except OSError as error:
        return problem(f"{shown} cannot be looked at: {error.strerror}.", "Name another folder.")
    if system is not None and system.f_flag & os.ST_RDONLY:
        return problem(f"{shown} is on a file system that can only be read.", "Name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(
            f"{shown} cannot be {'written to' if is_there else f'made: no permission in {there}'}.",
            "Change its permissions, or name another folder.",
        )
    if not usage.total:
        # Such as /proc, which says neither what it has nor that nobody writes there.
        try:
            whole_file.try_folder(there)
        except OSError as error:
            reason, remedy = folder_fault(folder, error)
            return problem(f"{shown} cannot be {'written to' if is_there else 'made'}: {reason}.", remedy)
        return ok(f"{shown} can be written to{later}; how much room there is, its file system does not say.")
    free = f"{size_text(usage.free)} free of {size_text(usage.total)}"
    files = None if system is None or not system.f_files else system.f_favail
    is_full = bool(usage.total) and not usage.free
    if is_full or files == 0:
        none = "no room left" if is_full else "room for no more files (no inodes are left)"
        return Said(
            "problem",
            f"{shown} is on a disk that has {none}.",
            "Make room, or name a folder on another disk.",
            is_of_full_disk=True,
        )
    if usage.free < MIN_FREE_BYTES or usage.free < _MIN_FREE_SHARE * usage.total:
        return warning(f"{shown} has {free}.", "Make room, or name a folder on another disk.")
    if files is not None and files < _MIN_FREE_FILES:
        return warning(
            f"{shown} is on a file system that has room for {number_text(files)} more files (inodes).",
            "Delete files that nobody needs, or name a folder on another disk.",
        )
    return ok(f"{shown} has {free}{later}.")
