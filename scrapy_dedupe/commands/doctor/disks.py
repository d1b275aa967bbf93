"""Disks: free room and permissions where files are written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.figures import number_text, size_text
from scrapy_dedupe.stores import parse_store_url

from .finding import Said, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .patient import Patient

MIN_FREE_BYTES: Final = 1_000_000_000
_MIN_FREE_SHARE: Final = 0.05
_MIN_FREE_FILES: Final = 1_000
_STORES: Final = {"content": "the store", "index": "the store of the crawl index"}


def check(patient: Patient) -> Iterator[Said]:
    for what, folder in folders(patient).items():
        yield from _look(what, folder)


def folders(patient: Patient) -> dict[str, Path]:
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
        found["the file of metrics"] = settings.metrics.file.parent
    return found


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.exists()), Path(folder.anchor))


def _look(what: str, folder: Path) -> Iterator[Said]:
    there = existing(folder)
    shown = f"The folder {folder} for {what}"
    if not there.is_dir():
        yield problem(f"{shown} cannot be made, since {there} is a file.", "Name another folder.")
        return
    try:
        usage = shutil.disk_usage(there)
        system = os.statvfs(there) if hasattr(os, "statvfs") else None
    except OSError as error:
        yield problem(f"{shown} cannot be looked at: {error.strerror}.", "Name another folder.")
        return
    if system is not None and system.f_flag & os.ST_RDONLY:
        yield problem(f"{shown} is on a file system that can only be read.", "Name another folder.")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield problem(
            f"{shown} cannot be {'written to' if there == folder.absolute() else f'made: no permission in {there}'}.",
            "Change its permissions, or name another folder.",
        )
        return
    free = f"{size_text(usage.free)} free of {size_text(usage.total)}"
    files = None if system is None or not system.f_files else system.f_favail
    is_full = bool(usage.total) and not usage.free
    if is_full or files == 0:
        none = "no room left" if is_full else "room for no more files (no inodes are left)"
        yield problem(
            f"{shown} is on a disk that has {none}.", "Make room, or name a folder on another disk."
        )
    elif usage.free < MIN_FREE_BYTES or usage.free < _MIN_FREE_SHARE * usage.total:
        yield warning(f"{shown} has {free}.", "Make room, or name a folder on another disk.")
    elif files is not None and files < _MIN_FREE_FILES:
        yield warning(
            f"{shown} is on a file system that has room for {number_text(files)} more files (inodes).",
            "Delete files that nobody needs, or name a folder on another disk.",
        )
    else:
        yield ok(
            f"{shown} has {free}{'' if there == folder.absolute() else '; it is made when it is needed'}."
        )
