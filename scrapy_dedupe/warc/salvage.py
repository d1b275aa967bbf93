"""Salvage of files that a crawl left `.open`, because it was killed or its disk was full.

A file that a running crawl holds locked is left alone. Bytes after the last whole record are cut; a response whose
request is cut is kept. Then the file is synced and gets its final name, but never overwrites another file. A file that
has only its warcinfo is kept too, since the index may name it. A file without a whole warcinfo is removed; the index
never names it.

A damaged place with whole records after it is a fault of the disk, not the effect of a kill. Such a file is not changed:
ArchiveError names the place. With *skip_damaged* its whole records are copied:

1. ``NAME.part`` gets all whole records in their order, and is synced and read back. If the warcinfo is damaged, a new
   one with the same record id opens it.
2. ``NAME.part`` gets its final name, ``NAME``.
3. ``NAME.open`` gets the name ``NAME.damaged``, which no command treats as a WARC file. Its content does not change.

After a kill at any step, the same call can be repeated: an existing ``NAME`` must have the content that would be written.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import uuid
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.locks import is_locked, is_same_file, lock
from scrapy_dedupe.files.whole_file import sync
from scrapy_dedupe.warc.files import (
    DAMAGED_SUFFIX,
    OPEN_SUFFIX,
    PART_SUFFIX,
    final_path,
    give_final_name,
    give_name,
    gzip_member,
    name_is_taken,
    refuse_taken_name,
)
from scrapy_dedupe.warc.framing import Damage, Frame, frames
from scrapy_dedupe.warc.records import warcinfo
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RECORD_END = b"\r\n\r\n"
_WARCINFO = b"WARC/1.1\r\nWARC-Type: warcinfo\r\n"
_COPIED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The result for one file: its final name, the number of records after its warcinfo, the bytes cut from its end.

    If `is_removed`, there is no such file any more. `damages` are the damaged places that were left out; `kept_as` is
    then the name of the file that has them.
    """

    file: str
    records: int
    cut_bytes: int
    is_removed: bool = False
    damages: tuple[Damage, ...] = ()
    kept_as: str | None = None

    @property
    def skipped_bytes(self) -> int:
        """The bytes of the damaged places."""
        return sum(damage.length for damage in self.damages)


def salvage(
    path_open: Path | str,
    *,
    dry_run: bool = False,
    skip_damaged: bool = False,
    info: Mapping[str, str] | None = None,
    on_offset: Callable[[int], None] | None = None,
) -> Salvaged | None:
    """Salvage one `.open` file; None if a running crawl holds it or it is gone.

    With *dry_run* the file is not changed, and the result describes what would be done. With *skip_damaged* whole
    records after a damaged place are copied to a new file; *info* are the fields of its warcinfo if that is damaged.
    *on_offset* is called repeatedly with the number of bytes of the file that have been read.

    Raises ArchiveError if the file cannot be salvaged: no permission, its final name is taken, or it is damaged in the
    middle; the file is then unchanged.
    """
    path_open = Path(path_open)
    if not path_open.name.endswith(OPEN_SUFFIX):
        raise ArchiveError(
            f"{path_open} does not end in {OPEN_SUFFIX}; only unfinished files can be salvaged."
        )
    try:
        fd = os.open(path_open, (os.O_RDONLY if dry_run else os.O_RDWR) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot(path_open, error) from error
    try:
        if not lock(fd) or not is_same_file(fd, path_open):
            return None
        contents = _contents_of(fd, path_open, on_offset or (lambda offset: None))
        if contents.damages and not skip_damaged:
            raise ArchiveError(
                f"{contents.damages[0]}, and whole records follow. The file was not changed; `warc salvage"
                " --skip-damaged` copies the whole records to a new file and keeps this one."
            )
        if contents.damages:
            return _copy(path_open, contents, dry_run, info or {})
        return _cut(fd, path_open, contents, dry_run)
    except OSError as error:
        raise _cannot(path_open, error) from error
    finally:
        os.close(fd)


def is_held(path: Path | str) -> bool:
    """Whether a running crawl writes this file. False where the system has no locks."""
    try:
        return is_locked(path)
    except OSError:
        return False


@dataclass(slots=True)
class _Contents:
    """The ranges of whole records in a file, and the damaged places between them."""

    size: int
    ranges: list[tuple[int, int]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    records: int = 0
    begins_with_warcinfo: bool = False
    warcinfo_id: str | None = None

    @property
    def end(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def add(self, frame: Frame) -> None:
        begin, end = frame.offset, frame.offset + frame.length
        if self.ranges and self.end == begin:
            begin, _ = self.ranges.pop()
        elif not self.ranges:
            self.begins_with_warcinfo = frame.first("warc-type") == "warcinfo"
        self.ranges.append((begin, end))
        if frame.first("warc-type") != "warcinfo":
            self.records += 1
            if self.warcinfo_id is None:
                self.warcinfo_id = frame.first("warc-warcinfo-id")


def _contents_of(fd: int, path_open: Path, on_offset: Callable[[int], None]) -> _Contents:
    contents = _Contents(os.fstat(fd).st_size)
    damages: list[Damage] = []
    is_gzip = ".gz" in path_open.suffixes
    unended: Frame | None = None
    for frame in frames(path_open, kept_bytes=0, on_damage=damages.append):
        if not frame.length:
            raise ArchiveError(
                f"{path_open}, offset {frame.offset}: several records share a gzip member, which scrapy-dedupe does not"
                " write. The file was not changed; remove the suffix .open from its name to use it."
            )
        if unended is not None:
            contents.add(unended)  # the record after it shows that it is whole
            unended = None
        # `framing` does not require both line ends after the block. In a gzip member its checksum was right.
        if not is_gzip and not frame.block_end.startswith(_RECORD_END):
            unended = frame
            continue
        contents.add(frame)
        on_offset(contents.end)
    contents.damages = [damage for damage in damages if damage.offset < contents.end]
    if not contents.ranges and not _begins_as_warcinfo(path_open):
        raise ArchiveError(
            f"{path_open} has no whole record and does not begin with a warcinfo. It was not changed; delete it if "
            "you do not need it."
        )
    return contents


def _cut(fd: int, path_open: Path, contents: _Contents, dry_run: bool) -> Salvaged:
    final = final_path(path_open)
    if not contents.ranges:
        if not dry_run:
            path_open.unlink()
        return Salvaged(final.name, 0, contents.size, is_removed=True)
    refuse_taken_name(path_open, final)
    if not dry_run:
        if contents.end < contents.size:
            os.ftruncate(fd, contents.end)
        os.fsync(fd)
        give_final_name(path_open)
    return Salvaged(final.name, contents.records, contents.size - contents.end)


def _copy(path_open: Path, contents: _Contents, dry_run: bool, info: Mapping[str, str]) -> Salvaged:
    """Copy the whole records to a new file with the final name, and rename the damaged file."""
    final = final_path(path_open)
    part, kept = final.with_name(final.name + PART_SUFFIX), final.with_name(final.name + DAMAGED_SUFFIX)
    refuse_taken_name(path_open, kept)
    if dry_run:
        refuse_taken_name(path_open, final)
    else:
        # Remove the file instead of truncating it: after a kill it may be a hard link to the finished file.
        part.unlink(missing_ok=True)
        try:
            _write(part, path_open, contents, info)
            if not final.exists():
                give_name(part, final)
            elif not filecmp.cmp(part, final, shallow=False):
                raise name_is_taken(path_open, final)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        give_name(path_open, kept)
    return Salvaged(
        final.name,
        contents.records,
        contents.size - contents.end,
        damages=tuple(contents.damages),
        kept_as=kept.name,
    )


def _write(part: Path, path_open: Path, contents: _Contents, info: Mapping[str, str]) -> None:
    """Write the whole records of a file to another one, sync it and read it back."""
    with part.open("xb") as target, path_open.open("rb") as source:
        if not contents.begins_with_warcinfo:
            # The date is that of the file, so that the same call writes the same bytes.
            written = datetime.fromtimestamp(os.fstat(source.fileno()).st_mtime, UTC)
            name = final_path(path_open).name
            record_id = contents.warcinfo_id or f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>"
            head = warcinfo(name, info, written, record_id=record_id).to_bytes()
            target.write(gzip_member(head) if ".gz" in path_open.suffixes else head)
        for begin, end in contents.ranges:
            source.seek(begin)
            while begin < end:
                piece = source.read(min(end - begin, _COPIED_AT_ONCE))
                if not piece:
                    raise ArchiveError(f"{path_open} changed while it was read. It was not salvaged.")
                target.write(piece)
                begin += len(piece)
        sync(target)
    damages: list[Damage] = []
    records = sum(
        frame.first("warc-type") != "warcinfo"
        for frame in frames(part, kept_bytes=0, on_damage=damages.append)
    )
    if damages or records != contents.records:
        raise ArchiveError(
            f"{path_open} was not changed: {records} of its {contents.records} whole records could be read back from the"
            " copy. Check the disk."
        )


def _begins_as_warcinfo(path: Path) -> bool:
    """Whether a file without whole records may be removed: it is empty or begins like a file of this package."""
    with path.open("rb") as file:
        start = file.read(1 << 16).lstrip(b"\0")
    if start.startswith(GZIP_MAGIC[: len(start)]):
        try:
            start = zlib.decompressobj(31).decompress(start, 1 << 16)
        except zlib.error:
            return False
    return start.startswith(_WARCINFO[: len(start)])


def _cannot(path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(f"{path} cannot be salvaged: {error.strerror}. Check its permissions and the disk.")
