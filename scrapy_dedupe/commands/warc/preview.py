"""What :func:`scrapy_dedupe.warc.salvage.salvage` would make of a file, read from it without changing anything.

A test compares the two for files that were cut at every place.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.framing import Damage, frames
from scrapy_dedupe.warc.salvage import Salvaged

if TYPE_CHECKING:
    from pathlib import Path

_RECORD_END: Final = b"\r\n\r\n"
_START: Final = b"WARC/1.1\r\nWARC-Type: warcinfo\r\n"


def preview(path: Path) -> Salvaged:
    """The result that salvage would give. Raises ArchiveError where it would."""
    if not path.name.endswith(OPEN_SUFFIX):
        raise ArchiveError(f"{path} does not end in {OPEN_SUFFIX}; only unfinished files are salvaged.")
    try:
        return _preview(path)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror}.") from error


def _preview(path: Path) -> Salvaged:
    final = path.with_name(path.name.removesuffix(OPEN_SUFFIX))
    size, end, count = path.stat().st_size, 0, 0
    damages: list[Damage] = []
    is_gzip = ".gz" in path.suffixes
    with path.open("rb") as file:
        for frame in frames(path, kept_bytes=0, on_damage=damages.append):
            if damages:
                raise ArchiveError(f"{damages[0]}, and whole records follow. It would not be changed.")
            if is_gzip:
                is_whole = frame.length > 0
            else:
                file.seek(frame.offset + frame.length - len(_RECORD_END))
                has_room = frame.length >= frame.block_position + frame.block_length + len(_RECORD_END)
                is_whole = has_room and file.read(len(_RECORD_END)) == _RECORD_END
            if not is_whole:
                break
            end = frame.offset + frame.length
            count += dict(frame.fields).get("WARC-Type") != "warcinfo"
        file.seek(0)
        if not end and not _is_ours(file.read(1 << 16)):
            raise ArchiveError(
                f"{path} holds no whole record and does not begin with a warcinfo. It would not be changed."
            )
    if not count:
        return Salvaged(final.name, 0, size)
    if final.exists() and not final.samefile(path):
        raise ArchiveError(
            f"{path} could not get its final name, {final.name} is there already. Move one of the two away."
        )
    return Salvaged(final.name, count, size - end)


def _is_ours(start: bytes) -> bool:
    """Whether the start of a file without whole records is that of one of ours, so that nothing is lost with it."""
    start = start.lstrip(b"\0")
    if start.startswith(b"\x1f\x8b"[: len(start)]):
        try:
            start = zlib.decompressobj(31).decompress(start, 1 << 16)
        except zlib.error:
            return False
    return start.startswith(_START[: len(start)])
