"""Finds the WARC and ARC files for given names, patterns, WACZ files and multi-WACZ JSON files.

A WACZ is a ZIP file with WARC files under ``archive/`` (see `zip_members`). Only its ZIP directory is read here; its
own index is not used, since it may be wrong. Files that a multi-WACZ JSON (`manifests`) on this machine lists must
exist below its folder.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.warc.archive_names import is_archive_name
from scrapy_dedupe.warc.manifests import SUFFIX, is_manifest, read_manifest
from scrapy_dedupe.warc.remote import check_regular, is_url, place_file, read_errors, real_place, shown
from scrapy_dedupe.warc.sources import ARC_LINE, GZIP_MAGIC, WARC_START
from scrapy_dedupe.warc.zip_members import ZIP_MAGIC, ZipDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_dedupe.warc.manifests import ListedFile
    from scrapy_dedupe.warc.sources import ReadableFile

WACZ_SUFFIX = ".wacz"

_ARCHIVE_FOLDER = "archive/"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_START_BYTES = 256


def find_files(patterns: Iterable[str | Path]) -> list[ReadableFile]:
    """Return the WARC and ARC files that *patterns* name, in order and without duplicates.

    A pattern is the name of a WARC, ARC or WACZ file or of a multi-WACZ JSON, or has the wildcards of
    `glob`. Raises UsageError for a pattern without a file, ArchiveError for a file that cannot be opened,
    DamagedInput for a container that is refused.
    """
    found: dict[str, ReadableFile] = {}
    for pattern in patterns:
        for path in _matches(str(pattern)):
            for file in files_in(path):
                found.setdefault(real_place(file), file)
    return list(found.values())


def files_in(container: ReadableFile) -> list[ReadableFile]:
    """Return the WARC and ARC files in a local or remote container, or the file itself if it is not a container.

    Raises the exceptions of `find_files`; ``str()`` of a file in a WACZ is ``PLACE/archive/NAME``.
    """
    file = container.absolute() if isinstance(container, Path) else container
    with read_errors(file):
        check_regular(file)
        with file.open("rb") as stream:
            start = stream.read(_START_BYTES)
    if start.startswith(ZIP_MAGIC) or file.name.lower().endswith(WACZ_SUFFIX):
        directory = ZipDirectory(file)
        return list(directory.members(archive_names(directory)))
    if is_manifest(str(file)):
        listed = read_manifest(str(file), with_names=False, on_fault=_raise)
        return [member for one in listed for member in files_in(_named(file, one))]
    _check_format(file, start)
    return [file]


def archive_names(directory: ZipDirectory) -> list[str]:
    """The names of the WARC files in a WACZ, in order. Raises DamagedInput if there are none."""
    names = sorted(name for name in directory.names if _is_member(name))
    if not names:
        raise DamagedInput(
            f"{shown(str(directory.container))} has no WARC files in its folder archive/; it is not a WACZ. Leave it out, or"
            " extract it and name the WARC files in it."
        )
    return names


def _matches(pattern: str) -> list[Path]:
    if is_url(pattern):
        raise UsageError(f"{pattern!r} is a URL; files are read from this machine. Download it first.")
    # The name of an existing file may look like a pattern.
    names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - absolute ones
    paths = [Path(name) for name in names]
    files = [path for path in paths if not path.is_dir()]
    if not files:
        wrong = "is a folder" if paths else "matches no file"
        raise UsageError(f"{pattern!r} {wrong}. Name WARC or WACZ files, as in 'folder/*.warc.gz'.")
    return files


def _check_format(file: ReadableFile, start: bytes) -> None:
    where = shown(str(file))
    if start.startswith(_ZSTD_MAGIC):
        raise DamagedInput(
            f"{where} is compressed with Zstandard, which is not supported. Recompress it with gzip."
        )
    # A damaged beginning must not hide the records after it, so a matching name is enough.
    line = start.partition(b"\n")[0] + b"\n"
    looks_right = start.startswith(GZIP_MAGIC) or WARC_START.match(line) or ARC_LINE.fullmatch(line)
    if not looks_right and not is_archive_name(file.name, may_be_open=True):
        raise DamagedInput(
            f"{where} is not a WARC, ARC or WACZ file or a multi-WACZ JSON (*{SUFFIX}). Leave it out, or copy it again if it"
            " should be one."
        )


def _is_member(name: str) -> bool:
    return name.lower().startswith(_ARCHIVE_FOLDER) and is_archive_name(name)


def _raise(fault: str) -> None:
    raise DamagedInput(fault)


def _named(manifest: ReadableFile, listed: ListedFile) -> ReadableFile:
    file = place_file(listed.place)
    if not isinstance(manifest, Path):
        return file
    if not isinstance(file, Path):
        raise DamagedInput(
            f"{manifest} names {listed.place!r}, which is not below its own folder. Put the file there, or pass it by"
            " name."
        )
    if not file.is_file():
        raise DamagedInput(
            f"{manifest} names {file.name!r}, which does not exist. Put the file there, or remove the entry."
        )
    if listed.size is not None and listed.size != file.stat().st_size:
        raise DamagedInput(
            f"{file} has {file.stat().st_size} bytes, but {manifest.name} says {listed.size}: it is another file or"
            " incomplete. Copy the file again."
        )
    return file
