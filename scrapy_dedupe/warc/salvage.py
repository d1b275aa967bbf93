"""Mending of files that a crawl left `.open`, because it was killed or its disk was full.

The file is locked first, so that a running crawl keeps its own. What follows the last whole record is
cut, whether that is half a record or half an exchange: a response whose request was cut is kept. Then the
file is synced and gets its final name, which never overwrites another file. A file in which only a
warcinfo stands, or a part of one, is removed.

Damage in the middle, with whole records after it, is not what a kill does but what a disk does. Such a
file is not cut and not renamed: ArchiveError names the place.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.files import (
    OPEN_SUFFIX,
    give_final_name,
    is_same_file,
    lock,
    refuse_taken_name,
)
from scrapy_dedupe.warc.framing import Damage, Frame, frames
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORD_END = b"\r\n\r\n"
_WARCINFO = b"WARC/1.1\r\nWARC-Type: warcinfo\r\n"


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What became of a file: its final name, the records after its warcinfo, the bytes cut from its end.

    With `records` 0 there is no such file any more.
    """

    file: str
    records: int
    cut_bytes: int


def salvage(
    path_open: Path | str, *, dry_run: bool = False, on_offset: Callable[[int], None] | None = None
) -> Salvaged | None:
    """Mend one `.open` file; None if a running crawl holds it or it is gone.

    With *dry_run* the file is left as it is, and the result is what would become of it. *on_offset* is told how far the
    file has been read, in bytes, again and again.

    Raises ArchiveError if it cannot be mended: no permission, its final name is taken, or it is damaged in
    the middle; it is then left as it was.
    """
    path_open = Path(path_open)
    if not path_open.name.endswith(OPEN_SUFFIX):
        raise ArchiveError(f"{path_open} does not end in {OPEN_SUFFIX}; only unfinished files are salvaged.")
    try:
        fd = os.open(path_open, (os.O_RDONLY if dry_run else os.O_RDWR) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot(path_open, error) from error
    try:
        if not lock(fd) or not is_same_file(fd, path_open):
            return None
        return _mend(fd, path_open, dry_run, on_offset or (lambda offset: None))
    except OSError as error:
        raise _cannot(path_open, error) from error
    finally:
        os.close(fd)


def is_held(path_open: Path | str) -> bool:
    """Whether a running crawl writes this `.open` file. False where the system has no locks."""
    try:
        fd = os.open(path_open, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return False
    try:
        return not lock(fd)
    finally:
        os.close(fd)


def _mend(fd: int, path_open: Path, dry_run: bool, on_offset: Callable[[int], None]) -> Salvaged:
    size = os.fstat(fd).st_size
    end, count = 0, 0
    damages: list[Damage] = []
    for frame in frames(path_open, kept_bytes=0, on_damage=damages.append):
        if damages:
            raise ArchiveError(
                f"{damages[0]}, and whole records follow. The file was not changed; copy what is whole to "
                "another file by hand, or take the suffix away to use it as it is."
            )
        if not _has_its_end(fd, frame, path_open):
            break
        end = frame.offset + frame.length
        on_offset(end)
        count += dict(frame.fields).get("WARC-Type") != "warcinfo"
    final = path_open.name.removesuffix(OPEN_SUFFIX)
    if not end and not _begins_as_warcinfo(path_open):
        raise ArchiveError(
            f"{path_open} holds no whole record and does not begin with a warcinfo. It was not changed; if "
            "nothing in it is of use, delete it."
        )
    if not count:
        if not dry_run:
            path_open.unlink()
        return Salvaged(final, 0, size)
    refuse_taken_name(path_open)
    if dry_run:
        return Salvaged(final, count, size - end)
    if end < size:
        os.ftruncate(fd, end)
    os.fsync(fd)
    give_final_name(path_open)
    return Salvaged(final, count, size - end)


def _has_its_end(fd: int, frame: Frame, path: Path) -> bool:
    """Whether both line ends after the block are there; reading does not insist on them."""
    if ".gz" in path.suffixes:
        return frame.length > 0  # the checksum of the member was right
    os.lseek(fd, frame.offset + frame.length - len(_RECORD_END), os.SEEK_SET)
    return (
        frame.length >= frame.block_position + frame.block_length + len(_RECORD_END)
        and os.read(fd, len(_RECORD_END)) == _RECORD_END
    )


def _begins_as_warcinfo(path: Path) -> bool:
    """Whether a file without whole records is empty or begins as ours do, so that nothing is lost with it."""
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
