"""Names of archive files: ``NAME.warc`` or ``NAME.arc``, the suffix of a compression, and ``.open`` while a crawl writes.

Upper and lower case are the same. Only ``.gz`` can be read; files with another compression are recognised so that they can
be reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

OPEN_SUFFIX: Final = ".open"
"""The suffix of a file that a crawl writes."""

_NAME: Final = re.compile(
    rf".+\.(w?arc)(?:\.(gz|zst|bz2|xz|lz4))?({re.escape(OPEN_SUFFIX)})?", re.IGNORECASE | re.DOTALL
)
_ARC_SUFFIX: Final = re.compile(r"\.arc(?=(\.gz)?\Z)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """What the name of an archive file says. ``format`` is "warc" or "arc", ``compression`` "gz", "zst" and so on, or ""."""

    format: str
    compression: str
    is_open: bool

    @property
    def is_readable(self) -> bool:
        """Whether the compression can be read."""
        return self.compression in ("", "gz")


def archive_name(name: str) -> ArchiveName | None:
    """What *name*, the name or path of a file, says; None if it is not that of an archive.

    >>> archive_name("2019/A.WARC.gz"), archive_name("a.warc.gz.json")
    (ArchiveName(format='warc', compression='gz', is_open=False), None)
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return ArchiveName(found[1].lower(), (found[2] or "").lower(), found[3] is not None)


def is_archive_name(
    name: str, *, formats: tuple[str, ...] = ("warc", "arc"), may_be_open: bool = False
) -> bool:
    """Whether *name* is that of a readable archive in one of *formats*; with *may_be_open* also if a crawl writes it."""
    found = archive_name(name)
    return (
        found is not None
        and found.is_readable
        and found.format in formats
        and (may_be_open or not found.is_open)
    )


def is_warc_name(name: str) -> bool:
    """Whether *name* is that of a finished WARC file."""
    return is_archive_name(name, formats=("warc",))


def with_warc_suffix(name: str) -> str:
    """The name with ``.warc`` instead of ``.arc``; unchanged if it has another suffix.

    >>> with_warc_suffix("old/IA-1.arc.gz")
    'old/IA-1.warc.gz'
    """
    return _ARC_SUFFIX.sub(".warc", name)
