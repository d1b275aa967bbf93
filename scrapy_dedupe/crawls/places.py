"""Where a WARC file that the index names is now.

A file is named by its path. While it is written it has the suffix ``.open`` besides; if it was packed and not kept, it
is named ``CRAWL.wacz/archive/NAME``, and if it was moved to a storage elsewhere, by its URL.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from scrapy_dedupe.warc.sources import ReadableFile

WACZ_SUFFIX = ".wacz"


def present_path(file: str) -> Path | None:
    """The file under its final name, or under the one that it has while it is written; None if there is neither."""
    return next((path for path in (Path(file), Path(f"{file}{OPEN_SUFFIX}")) if path.is_file()), None)


def is_present(file: str) -> bool:
    """Whether a file is where the index says; of one at a URL, that it was moved there is taken as proof."""
    return is_remote(file) or present_path(file) is not None or _container(file) is not None


def is_remote(file: str) -> bool:
    """Whether a name is a URL."""
    return "://" in file


def readable(file: str) -> ReadableFile | None:
    """What the records of a file can be read from; None if it is not there. Whether a URL is, opening it shows."""
    if is_remote(file):
        return RemoteFile(file)
    path = present_path(file)
    if path is not None:
        return path
    container = _container(file)
    if container is None:
        return None
    try:
        return next(
            (member for member in files_in(container) if str(member) == str(Path(file).absolute())), None
        )
    except DedupeError:
        return None


def size_of(file: ReadableFile) -> int:
    """The size of a file in bytes."""
    with file.open("rb") as stream:
        return stream.seek(0, 2)


def member_name(container: Path, name: str) -> str:
    """How a WARC file is named that is in a WACZ alone."""
    return f"{container.absolute()}/archive/{name}"


def _container(file: str) -> Path | None:
    return next(
        (parent for parent in Path(file).parents if parent.suffix == WACZ_SUFFIX and parent.is_file()), None
    )
