"""The verbs for WARC and WACZ files of crawls: the files that they work on, and the crawls of these files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.crawl_files import crawl_of
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.salvage import is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex


def files_at(paths: Iterable[Path], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the files among *paths*, and the matching files in the folders among them, as absolute paths without repeats.

    Raises ArchiveError for a path that cannot be read.
    """
    found: dict[Path, None] = {}
    for path in paths:
        try:
            if path.is_dir():
                found |= dict.fromkeys(
                    file for file in sorted(path.absolute().iterdir()) if is_wanted(file) and file.is_file()
                )
            else:
                path.stat()
                found[path.absolute()] = None
        except OSError as error:
            raise ArchiveError(
                f"{path} cannot be read: {error.strerror}. Name an existing file or folder."
            ) from error
    return list(found)


def running_crawls(folders: Iterable[Path]) -> set[str]:
    """Return the ids of the crawls whose files in the folders are being written."""
    held = [path for folder in folders for path in folder.glob(f"*{OPEN_SUFFIX}") if is_held(path)]
    return {crawl for path in held if (crawl := crawl_of(path)) is not None}


def open_index_if_any(stores: CommandStores) -> CrawlIndex | None:
    """Open the crawl index. Returns None if the file of the settings does not exist; raises StoreError if the store fails."""
    file = parse_store_url(stores.index_url).path
    if stores.given_store is None and file is not None and not file.exists():
        return None
    return stores.open_index()
