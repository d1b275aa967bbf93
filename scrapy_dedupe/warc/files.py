"""WARC files as a crawl writes them: one gzip member per record, `.open` until they are finished.

A file is named ``PREFIX-TIMESTAMP-SERIAL-HOST.warc.gz`` (WARC 1.1, annex C; ``.warc`` without compression), with 17
digits of UTC time and 5 digits of a serial number, or by a template of these four and the crawl's name. It begins with
a ``warcinfo`` record, followed by whole exchanges. While it is written it has the suffix ``.open`` and an exclusive
`flock`, so that no process salvages the file of a running crawl. Systems and file systems without such locks have no
protection.

Guarantees:

- Whatever `WarcWriter.write` has returned is in the file even if the process is killed at the next instruction: every
  exchange is passed to the operating system at once, if possible in one call.
- An exchange is in the file completely or not at all: if the disk is full, the file is truncated to its previous
  length, and the writer remains usable.
- A finished file is synced before it gets its final name, its folder afterwards, and no existing file is ever
  overwritten: the name is given by a hard link. On file systems without hard links the name is checked before the
  rename; two programs could choose the same name in between.

Files are compressed with libdeflate, level 1 to 12. At level 4, the default, web pages are 6 % larger than at zlib's
level 9 and take less than a third of the time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from deflate import gzip_compress

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files.folders import folder_fault, try_folder
from scrapy_dedupe.files.locks import HAS_LOCKS, is_same_file, lock
from scrapy_dedupe.files.whole_file import put_in_free_place
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX, is_warc_name
from scrapy_dedupe.warc.dates import date_digits, format_date, now
from scrapy_dedupe.warc.records import Record, new_record_id, warcinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType
    from typing import Self

PART_SUFFIX = ".part"
DAMAGED_SUFFIX = ".damaged"
"""The suffix of a damaged file whose complete records were copied to a new file."""
DEFAULT_GZIP_LEVEL = 4
MAX_GZIP_LEVEL = 12
DEFAULT_NAME = "{prefix}-{timestamp}-{serial}-{host}"
NAME_FIELDS = ("prefix", "timestamp", "serial", "host", "crawl")
"""The fields that a template of file names may contain in braces; ``serial`` is required."""

_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(rf"(?!\.)(?:[A-Za-z0-9._-]|\{{(?:{'|'.join(NAME_FIELDS)})\}}){{1,200}}")
_SMALL_BYTES = 4_096
_EXTRA_FLAGS_AT = 8  # in the head of a member (RFC 1952, section 2.3.1)
_MAX_NAME_BYTES = 255  # on all common file systems


@dataclass(frozen=True, slots=True)
class Location:
    """Where a record is stored: file (its final name), offset and length in bytes as stored."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A synced file with its final name."""

    file: str
    size_bytes: int


class WarcWriter:
    """Writes exchanges into the files of one crawl, for use by one thread.

    *info* holds the fields of every warcinfo. A file of at least *file_size* bytes is finished before the next
    exchange; *on_new_file* is called with the final name of each file before its first exchange is written,
    *on_finished* with the path of each file that got its final name and is unlocked. *name* is the template of file names, *crawl* the
    value of ``{crawl}`` in it; names in *taken* are not used. Raises ArchiveError if the folder is not writable,
    SettingError for an invalid prefix, size, level or name. `has_unfinished` is True if a file could not get its final
    name.
    """

    def __init__(
        self,
        folder: Path | str,
        prefix: str,
        *,
        file_size: int = 1_000_000_000,
        gzip: bool = True,
        gzip_level: int = DEFAULT_GZIP_LEVEL,
        info: Mapping[str, str],
        on_new_file: Callable[[str], None] | None = None,
        on_finished: Callable[[Path], None] | None = None,
        algorithm: str = "sha256",
        name: str = DEFAULT_NAME,
        crawl: str = "",
        taken: Collection[str] = (),
    ) -> None:
        if gzip_level not in range(1, MAX_GZIP_LEVEL + 1):
            raise SettingError(f"The gzip level {gzip_level!r} is not one of 1 to {MAX_GZIP_LEVEL}.")
        if file_size < 1:
            raise SettingError(f"The file size {file_size!r} is not a number of bytes above 0.")
        self.folder = Path(folder)
        self.prefix = file_prefix(prefix)
        self.files: list[FinishedFile] = []
        self._file_size = file_size
        self._gzip = gzip
        self._gzip_level = gzip_level
        self._info = dict(info)
        self.on_new_file = on_new_file
        self.on_finished = on_finished
        self._algorithm = algorithm
        self._name = checked_name(name)
        self._crawl = _UNUSUAL.sub("_", crawl) or "crawl"
        self._taken = frozenset(taken)
        self._host = _UNUSUAL.sub("_", socket.gethostname()) or "localhost"
        self._serial = 0
        self._next_id = new_record_id()
        self._closed = False
        self._file: _OpenFile | None = None
        self._last: _OpenFile | None = None
        self.has_unfinished = False
        prove_writable(self.folder, "WARC files")
        self._refuse_long_names()

    @property
    def warcinfo_id(self) -> str:
        """The id of the warcinfo of the next exchange: its WARC-Warcinfo-ID."""
        if self._file is None or self._file.size >= self._file_size:
            return self._next_id
        return self._file.warcinfo_id

    def write(self, records: Sequence[Record]) -> list[Location]:
        """Write the records of one exchange, all or none, and return their locations.

        Raises ArchiveError if writing fails; no file then contains a part of the exchange.
        """
        if self._closed:
            raise ArchiveError(f"The WARC writer of {self.folder} is closed and cannot write more records.")
        members = [self._member(record) for record in records]
        if self._file is not None and self._file.size >= self._file_size:
            self._finish()
        if self._file is None:
            self._file = self._begin()
            # Only after the next file is locked, so that other processes always see a running crawl.
            self._release_last()
        file = self._file
        offset = file.size
        file.append(b"".join(members))
        locations = []
        for member in members:
            locations.append(Location(file.name, offset, len(member)))
            offset += len(member)
        return locations

    def close(self) -> list[FinishedFile]:
        """Finish the last file and return all finished files. Can be called again."""
        try:
            return self.finish()
        finally:
            self._release_last()

    def finish(self) -> list[FinishedFile]:
        """Like `close`, but keep the last file locked: until `close`, other processes see a running crawl."""
        self._closed = True
        if self._file is not None:
            self._finish()
        return list(self.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _member(self, record: Record) -> bytes | bytearray:
        data = record.to_bytes()
        return gzip_member(data, self._gzip_level) if self._gzip else data

    def _begin(self) -> _OpenFile:
        file = self._create()
        try:
            head = warcinfo(file.name, self._info, now(), record_id=self._next_id, algorithm=self._algorithm)
            file.append(self._member(head))
            if self.on_new_file is not None:
                self.on_new_file(file.name)
        except BaseException:
            file.remove()
            raise
        self._next_id = new_record_id()
        return file

    def _next_path(self) -> Path:
        name = self._name.format(
            prefix=self.prefix,
            timestamp=date_digits(format_date(now())),
            serial=f"{self._serial:05d}",
            host=self._host,
            crawl=self._crawl,
        )
        return self.folder / f"{name}{'.warc.gz' if self._gzip else '.warc'}"

    def _refuse_long_names(self) -> None:
        path = self._next_path()
        length = len(os.fsencode(path.name + OPEN_SUFFIX))
        if length > _MAX_NAME_BYTES:
            raise SettingError(
                f"WARC files would have names such as {path.name}, of {length} bytes with {OPEN_SUFFIX}; at most"
                f" {_MAX_NAME_BYTES} bytes are possible. Choose a shorter name or prefix."
            )

    def _create(self) -> _OpenFile:
        while True:
            path = self._next_path()
            self._serial += 1
            try:
                if path.name in self._taken or path.exists():
                    continue
                return _OpenFile(path, self._next_id)
            except (FileExistsError, _TakenAway):
                continue
            except OSError as error:
                raise ArchiveError(
                    f"{path}{OPEN_SUFFIX} cannot be created: {error.strerror}. "
                    "Free some space or choose another folder for WARC files (DEDUPE_WARC_DIR in a crawl)."
                ) from error

    def _finish(self) -> None:
        file = self._file
        assert file is not None
        # From here on nothing may be added to this file: after a failed sync the contents of the disk are
        # unknown. The file keeps its .open name, and salvage recovers its whole records.
        self._file = None
        try:
            file.finish()
        except ArchiveError:
            self.has_unfinished = True
            raise
        self._last = file
        self.files.append(FinishedFile(file.name, file.size))

    def _release_last(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        last.release()
        # Call this after the lock is released: an upload locks the file as well.
        if self.on_finished is not None:
            self.on_finished(last.path)


def gzip_member(record: bytes, level: int = DEFAULT_GZIP_LEVEL) -> bytearray:
    """Return a record as a gzip member. All programs of this package write the same member for a record."""
    if len(record) >= _SMALL_BYTES:
        return gzip_compress(record, level)
    # For small records other levels save few bytes, and initialize tables that are much larger than the record.
    member = gzip_compress(record, 1)
    member[_EXTRA_FLAGS_AT] = _extra_flags(level)
    return member


@lru_cache
def _extra_flags(level: int) -> int:
    # Readers are faster if all members begin with the same bytes.
    return gzip_compress(b"", level)[_EXTRA_FLAGS_AT]


class _TakenAway(Exception):
    """Another process opened and locked or renamed the file between its creation and its lock."""


class _OpenFile:
    """A file with the suffix `.open`: created, locked, appended to, renamed. `path` is the final one."""

    def __init__(self, path: Path, warcinfo_id: str) -> None:
        self.path = path
        self.name = path.name
        self.path_open = path.with_name(self.name + OPEN_SUFFIX)
        self.warcinfo_id = warcinfo_id
        self.size = 0
        self._has_torn_tail = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path_open, flags, 0o666)
        if not lock(self._fd) or not is_same_file(self._fd, self.path_open):
            os.close(self._fd)
            raise _TakenAway

    def append(self, data: bytes | bytearray) -> None:
        """Append all of *data*, or none of it and raise ArchiveError."""
        try:
            self._cut_torn_tail()
            rest = memoryview(data)
            self._has_torn_tail = True
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            self._has_torn_tail = False
        except OSError as error:
            # If this fails too, it is repeated before the next exchange or at the end.
            with contextlib.suppress(OSError):
                self._cut_torn_tail()
            raise ArchiveError(
                f"{self.path_open} cannot be written to: {error.strerror}. It ends after the last whole "
                "exchange. Free some space or choose another folder for WARC files (DEDUPE_WARC_DIR in a crawl)."
            ) from error
        self.size += len(data)

    def finish(self) -> None:
        """Sync the file and give it its final name; it stays locked. Raises ArchiveError; the file then stays `.open`."""
        try:
            self._cut_torn_tail()
            os.fsync(self._fd)
            if not HAS_LOCKS:  # such systems do not rename open files
                self.release()
            give_final_name(self.path_open)
        except ArchiveError:
            self.release()
            raise
        except OSError as error:
            self.release()
            raise ArchiveError(
                f"{self.path_open} could not be finished: {error.strerror}. It keeps this name; its whole records "
                "can be salvaged."
            ) from error

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self.path_open.unlink()
        self.release()

    def _cut_torn_tail(self) -> None:
        if self._has_torn_tail:
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
            self._has_torn_tail = False

    def release(self) -> None:
        """Close the file, which unlocks it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def file_prefix(text: str) -> str:
    """Return *text* in a form that can begin a file name. Raises SettingError if nothing remains.

    >>> file_prefix("news/2026 (test)")
    'news_2026_test_'
    """
    prefix = _UNUSUAL.sub("_", text).lstrip(".-")[:100]
    if not prefix:
        raise SettingError(
            f"{text!r} cannot begin the name of a WARC file. Use letters, digits, '.', '_' and '-'."
        )
    return prefix


def checked_name(template: str) -> str:
    """Return a template of file names. Raises SettingError for an invalid one.

    >>> checked_name("{crawl}-{serial}")
    '{crawl}-{serial}'
    """
    if not _NAME.fullmatch(template) or "{serial}" not in template:
        fields = ", ".join(f"{{{field}}}" for field in NAME_FIELDS)
        raise SettingError(
            f"{template!r} cannot name WARC files. Use letters, digits, '.', '_', '-' and {fields}; {{serial}} is"
            " required."
        )
    return template


def warc_files(folder: Path, *, unfinished: bool = False) -> list[Path]:
    """The finished WARC files in *folder*, sorted; with *unfinished* also those that end in `.open`.

    Empty where there is no such folder.
    """
    if not folder.is_dir():
        return []
    names = (
        (path, path.name.removesuffix(OPEN_SUFFIX) if unfinished else path.name) for path in folder.iterdir()
    )
    return sorted(path for path, name in names if is_warc_name(name))


def final_path(path_open: Path) -> Path:
    """The path that an `.open` file will have."""
    return path_open.with_name(path_open.name.removesuffix(OPEN_SUFFIX))


def give_final_name(path_open: Path) -> Path:
    """Remove the suffix `.open` from the name and sync the folder. Raises ArchiveError if the name is taken."""
    return give_name(path_open, final_path(path_open))


def give_name(path: Path, final: Path) -> Path:
    """Give a file another name in its folder and sync the folder. Raises ArchiveError if the name is taken."""
    try:
        put_in_free_place(path, final)
    except FileExistsError:
        raise name_is_taken(path, final) from None
    return final


def refuse_taken_name(path: Path, final: Path) -> None:
    """Raise ArchiveError if another file already has the name that a file should get."""
    if final.exists() and not final.samefile(path):
        raise name_is_taken(path, final)


def name_is_taken(path: Path, final: Path) -> ArchiveError:
    return ArchiveError(
        f"{path} cannot get its final name: {final.name} already exists. Move one of the two files away, "
        "then salvage the folder."
    )


def prove_writable(folder: Path, what: str, other: str = "another folder", *, is_trial: bool = False) -> None:
    """Create *folder* and a file in it. Raises ArchiveError: *what* cannot be written there, use *other*.

    With *is_trial* nothing is created, but a full disk is also an error.
    """
    try:
        try_folder(folder, b"x" if is_trial else b"", is_trial=is_trial)
    except OSError as error:
        raise ArchiveError(
            f"{what} cannot be written to {folder}: {'. '.join(folder_fault(folder, error, other))}"
        ) from error
