"""Find the files that a manifest names, and read the records of its lines.

A name is looked up in this order: in the path map; as a URL; as an absolute path; below each root, or in the working
folder if there are no roots. Last, a bare name, as other tools write it, is searched anywhere below the roots and must
be unique there. The first match is used. A name may be inside a WACZ: ``a.wacz/archive/b.warc.gz``.

A path map is a text file that gives the place of a name: a path or a URL. Each line is ``NAME PLACE``, separated by one
space. A name or path may contain escapes such as ``%20`` for a space or ``%25`` for a percent sign; a URL is not unescaped.
Empty lines and lines that begin with ``#`` are ignored. A file that begins with ``{`` is a JSON object that maps names to
places instead. Relative paths are relative to the folder of the map.

Of a remote file, only the bytes of the record are fetched. The record at a line's offset must match the line, or the
manifest belongs to another file.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from scrapy_dedupe.errors import ArchiveError, DamagedInput, DedupeError, UsageError
from scrapy_dedupe.warc.dates import valid_date_key
from scrapy_dedupe.warc.framing import arc_values
from scrapy_dedupe.warc.reading import bare_uri, read_record
from scrapy_dedupe.warc.remote import (
    RemoteFile,
    check_regular,
    is_url,
    place_file,
    read_errors,
    real_place,
    shown,
)
from scrapy_dedupe.warc.remote_ranges import HELD_BYTES, FileRange, is_remote
from scrapy_dedupe.warc.sources import GZIP_MAGIC, begins_record
from scrapy_dedupe.warc.windows import HeldFile, WindowedFile
from scrapy_dedupe.warc.zip_members import ZipDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_WACZ_FOLDER = ".wacz/archive/"
_SHOWN = 3
_GZIP_START = GZIP_MAGIC[:2]
_START_BYTES = 1 << 16  # more than the header line of an ARC record
_AFTER_BYTES = 64  # enough of the next record to see that the record before it is whole


class Places:
    """Finds the files and records of manifests.

    ``roots`` are folders or URLs that names are relative to; ``paths`` is a path map, or its file. Can be pickled for
    another process. Raises ArchiveError or UsageError for an invalid map.
    """

    def __init__(self, roots: Sequence[str] = (), paths: Path | Mapping[str, str] | None = None) -> None:
        self.roots = tuple(roots)
        self._map = read_path_map(paths) if isinstance(paths, Path) else dict(paths or {})
        self._found: dict[str, dict[str, Path]] | None = None
        # Manifests have many lines, but few files.
        self._cached = lru_cache(4_096)(self._file)

    def __reduce__(self) -> tuple[Callable[..., Places], tuple[object, ...]]:
        return _received, (self.roots, tuple(self._map.items()))

    def only(self, name: str) -> Places:
        """The places of one file. A task that is sent to another process need not contain the whole path map."""
        if not self._map:
            return self
        return Places(self.roots, {name: self._map[name]} if name in self._map else None)

    def file(self, name: str) -> ReadableFile:
        """The file with this name in a manifest. Raises ArchiveError if there is none, or more than one."""
        return self._cached(name)

    def identity(self, name: str) -> str:
        """A text that is equal for all names of one file; the name itself if there is no such file."""
        try:
            return real_place(self.file(name))
        except DedupeError:
            return name

    def record(self, line: ManifestLine) -> StoredRecord:
        """The record of a line.

        Raises DamagedInput, with file and offset, if the record is not complete or does not match the line; ArchiveError
        if the file cannot be read; OSError if there is no space for a temporary file.
        """
        file = self.file(line.file)
        if is_remote(file) and line.length > 0:
            return _read(FileRange(file, line.offset, line.length), line)
        with read_errors(file):
            check_regular(file)
            return _read(file, line)

    @contextmanager
    def records(self, name: str) -> Iterator[Callable[[ManifestLine], StoredRecord]]:
        """A function that returns the records of lines of one file, as `record` does.

        The file is opened once. If the lines are in the order of their offsets, no byte is read twice, except the blocks of
        records with more than 4 MiB.
        """
        window: WindowedFile | None = None
        with ExitStack() as stack:
            # If this fails, `record` raises the error for each line.
            with suppress(DedupeError, OSError):
                file = self.file(name)
                if not is_remote(file):
                    check_regular(file)
                    window = stack.enter_context(WindowedFile(file, reads_ahead=False))

            def record_of(line: ManifestLine) -> StoredRecord:
                if window is not None and line.length <= HELD_BYTES:
                    # `record` reads the file again, and finds out whether it is damaged or does not match the line.
                    with suppress(DamagedInput, OSError):
                        data = window.read(line.offset, line.length + _AFTER_BYTES)
                        return _read(HeldFile(data, str(file), line.offset), line)
                return self.record(line)

            yield record_of

    def _file(self, name: str) -> ReadableFile:
        place = self._map.get(name, name)
        if name in self._map or is_url(name) or Path(name).is_absolute():
            if (file := _at(place)) is not None:
                return file
            remedy = (
                f"; the path map names it for {name}."
                if name in self._map
                else ". Give its location with --paths: a file with a line NAME PLACE."
            )
            raise ArchiveError(f"{shown(place)} does not exist{remedy}")
        for root in self.roots or (".",):
            below = f"{root.rstrip('/')}/{quote(name)}" if is_url(root) else os.path.join(root, name)  # noqa: PTH118
            # With a single URL, skip the check: reading the record shows whether the file exists.
            if (file := _at(below, is_sure=len(self.roots) == 1)) is not None:
                return file
        return self._anywhere(name)

    def _anywhere(self, name: str) -> Path:
        """The only file with this bare name below the roots."""
        folders = [root for root in self.roots if not is_url(root)]
        is_bare = folders and PurePosixPath(name).name == name
        paths = list(self._below(folders).get(name, {}).values()) if is_bare else []
        if len(paths) == 1:
            return paths[0]
        if paths:
            first = ", ".join(map(str, paths[:_SHOWN]))
            raise ArchiveError(
                f"{name} is the name of {len(paths)} files below the roots ({first}"
                f"{', …' if len(paths) > _SHOWN else ''}). Select one of them with --paths."
            )
        where = f"below {', '.join(map(shown, self.roots))}" if self.roots else "in the working folder"
        raise ArchiveError(
            f"{name} is not {where}. Name its folder with --root, or give the location of the file with --paths."
        )

    def _below(self, folders: Sequence[str]) -> dict[str, dict[str, Path]]:
        """All files in these folders, by their names and places. One folder may contain another."""
        if self._found is None:
            self._found = {}
            for folder in folders:
                for parent, _, names in os.walk(folder):
                    for path in (Path(parent, name) for name in names):
                        self._found.setdefault(path.name, {}).setdefault(real_place(path), path)
        return self._found


@lru_cache(1)
def _received(roots: tuple[str, ...], paths: tuple[tuple[str, str], ...]) -> Places:
    """Unpickle a `Places`. The last one is cached, since every task contains one and its path map may be long."""
    return Places(roots, dict(paths))


def _at(place: str, *, is_sure: bool = True) -> ReadableFile | None:
    """The file at a path or URL, None if it does not exist. A URL is requested only if *is_sure* is not set."""
    if is_url(place) and not place.lower().startswith("file://"):
        before, wacz, member = place.partition(_WACZ_FOLDER)
        if wacz:
            return _member(RemoteFile(f"{before}.wacz"), f"archive/{member}")
        file = RemoteFile(place)
        return file if is_sure or _is_there(file) else None
    path = place_file(place)
    assert isinstance(path, Path)
    if path.is_file() or (path.exists() and not path.is_dir()):
        return path
    for parent in path.parents:
        if parent.is_file():
            return _member(parent, path.relative_to(parent).as_posix())
        if parent.exists():
            return None
    return None


def _member(wacz: ReadableFile, name: str) -> ReadableFile | None:
    directory = ZipDirectory(wacz)
    return directory.members([name])[0] if name in directory.names else None


def _is_there(file: RemoteFile) -> bool:
    try:
        with file.open("rb"):
            return True
    except ArchiveError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def _read(file: ReadableFile, line: ManifestLine) -> StoredRecord:
    """Read the record of a line. Raises DamagedInput if it does not match."""
    try:
        record = read_record(file, line.offset)
    except DamagedInput as error:
        if _begins_record(file, line.offset):
            raise
        raise _mismatch(
            file, line.offset, "no record begins at this offset, or its first bytes are damaged"
        ) from error
    wrong = _difference(record, line)
    if wrong is not None and record.format == "arc":
        record = _in_version_2(record)
        wrong = _difference(record, line)
    if wrong is None:
        return record
    raise _mismatch(record.path, record.offset, wrong)


def _begins_record(file: ReadableFile, offset: int) -> bool:
    """Whether the bytes at an offset look like the start of a record or of a gzip member."""
    with file.open("rb") as stream:
        stream.seek(offset)
        start = stream.read(_START_BYTES)
    if start.startswith(_GZIP_START):
        return True
    return begins_record(start.partition(b"\n")[0] + b"\n")


def _mismatch(file: ReadableFile, offset: int, wrong: str) -> DamagedInput:
    return DamagedInput(
        f"{file}, offset {offset}: the manifest does not match the file: {wrong}. Create the manifest again with warcsum,"
        " or name the right file with --root or --paths."
    )


def _difference(record: StoredRecord, line: ManifestLine) -> str | None:
    if not record.length:
        return "one gzip member holds several records"
    if record.length != line.length:
        return f"the record has {record.length} bytes, but {line.length} in the manifest"
    if not _is_uri(record.target_uri or "", line.uri):
        return f"the record's URI is {record.target_uri}, but {line.uri} in the manifest"
    date = record.date or ""
    if date != line.date and valid_date_key(date) != valid_date_key(line.date):
        return f"the record's date is {record.date}, but {line.date} in the manifest"
    return None


def _is_uri(stored: str, listed: str) -> bool:
    """Whether a manifest has this URI. The C tools cut it at its first space, and keep angle brackets."""
    bare = bare_uri(listed)
    return stored in (listed, bare) or (" " in stored and stored.partition(" ")[0] == bare)


def _in_version_2(record: StoredRecord) -> StoredRecord:
    """An ARC record whose header line is parsed as version 2. Only the start of the file shows the version."""
    values = arc_values(" ".join(value for _, value in record.headers), 10)
    if len(values) != 10:
        return record
    digits = values[2][:14]
    date = f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:12]}:{digits[12:14]}Z"
    return replace(record, target_uri=values[0], date=date)


def read_path_map(path: Path) -> dict[str, str]:
    """The place of each name. Raises ArchiveError if the file cannot be read, UsageError if it is not a path map."""
    with read_errors(path):
        data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not a path map: it is not UTF-8 text. Write lines NAME PLACE in UTF-8."
        ) from error
    places: dict[str, str] = {}
    for where, name, place in (_of_json if text.lstrip().startswith("{") else _of_lines)(path, text):
        place = place if is_url(place) else str(path.parent / place)
        if places.setdefault(name, place) != place:
            raise UsageError(f"{where}: {name} has two places, {places[name]} and {place}. Remove one.")
    return places


def _of_lines(path: Path, text: str) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise UsageError(
                f"{path}, line {number}: expected a name and a place, separated by one space. Write spaces inside of"
                " them as %20."
            )
        name, place = words
        yield f"{path}, line {number}", unquote(name), place if is_url(place) else unquote(place)


def _of_json(path: Path, text: str) -> Iterator[tuple[str, str, str]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        raise UsageError(
            f"{path} is not a path map: {error}. Write lines NAME PLACE, or a JSON object of names and places."
        ) from error
    for name, place in pairs:
        if not isinstance(place, str):
            raise UsageError(f"{path}: the place of {name} is not a string. Give a path or URL.")
        yield str(path), name, place
