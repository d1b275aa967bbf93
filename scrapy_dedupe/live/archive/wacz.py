"""Packs a crawl as WACZ according to the settings, at the end of a crawl or for a command.

The page list of the WACZ has an entry for each record that is a page, with its title and text.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_dedupe.content.canonical import read, title_of
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.crawls.crawl_files import CrawlArchive
from scrapy_dedupe.crawls.entries import is_http
from scrapy_dedupe.crawls.packing import PackedCrawl, pack_crawl
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DedupeError
from scrapy_dedupe.live.archive import SOFTWARE
from scrapy_dedupe.live.responses import PageReader
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.warc.storage import Storage
from scrapy_dedupe.warc.wacz import WaczPage

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from scrapy_dedupe.settings.specs import Settings
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.reading import StoredRecord

logger = logging.getLogger(__name__)


def pack_by_settings(
    index: CrawlIndex,
    crawl: str,
    settings: Settings,
    scrapy_settings: BaseSettings,
    *,
    warc_folder: Path | None = None,
    watch: Progress = NO_PROGRESS,
) -> PackedCrawl | None:
    """Pack the WARC files of *crawl*; see :func:`~scrapy_dedupe.crawls.packing.pack_crawl`.

    Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for an imported crawl.
    """
    if (info := index.crawl(crawl)) is not None and info.imported:
        raise CrawlStateError(
            f"The crawl {crawl} was imported and cannot be packed: its records stay in the files from which it was imported."
        )
    folder = (warc_folder or settings.warc.folder).absolute()
    archive = CrawlArchive(index, crawl, folder, lambda damage: logger.warning("Damaged: %s.", damage))
    with closing(archive):
        done = pack_crawl(
            index,
            crawl,
            folder,
            settings.wacz.folder,
            PageList(scrapy_settings, archive, with_text=settings.wacz.text).page_of,
            software=SOFTWARE,
            has_text=settings.wacz.text,
            watch=watch,
        )
    if done is None:
        return None
    missing = _missing(done.missing, settings.warc.upload_url)
    if missing:
        logger.warning(
            "%s refers to records in %s, which is missing from its folder. Add it to that folder before you replay the archive with %s.",
            done.wacz.path,
            ", ".join(missing),
            done.manifest.name,
        )
    return replace(done, missing=missing)


def _missing(names: tuple[str, ...], upload_url: str | None) -> tuple[str, ...]:
    """Return the containers that are also missing from the storage to which the WACZ is uploaded."""
    if not names or upload_url is None:
        return names
    storage = Storage(upload_url)
    try:
        return tuple(name for name in names if not storage.has(name))
    except ArchiveError as error:
        logger.warning("%s", error)
        return names


class PageList:
    """Creates the entries of the page list. Pages are HTML records with status 200, their revisits, and HTML resources.

    The body of a revisit is read from *archive*. If its file is not available, the entry has no title and no text.
    """

    def __init__(self, settings: BaseSettings, archive: CrawlArchive, *, with_text: bool) -> None:
        self._reader = PageReader(settings)
        self._archive = archive
        self._with_text = with_text

    def page_of(self, record: StoredRecord) -> WaczPage | None:
        """Return the entry for *record*, or None if the record is not a page."""
        headers = _headers_of_page(record)
        if headers is None or record.target_uri is None or record.date is None:
            return None
        source = self._archive.original(record) if record.type == "revisit" else record
        bare = WaczPage(record.target_uri, record.date)
        if source is None:
            return bare
        try:
            page = self._reader.page(record.target_uri, headers, source.payload())
        except (DedupeError, OSError):
            return bare
        if isinstance(page, str):
            return bare
        text = None
        if self._with_text:
            with suppress(HostileMarkup):
                text = read(page.kind, page.text, "text").text
        return WaczPage(record.target_uri, record.date, title_of(page.text), text)


def _headers_of_page(record: StoredRecord) -> Headers | None:
    """Return the HTTP headers of a page, or None. A resource record has only the Content-Type of its WARC header."""
    http = record.http
    if record.type == "resource" and is_http(record):
        headers: Headers = (
            (b"Content-Type", (record.get("Content-Type") or "").encode("latin-1", "replace")),
        )
    elif http is not None and http.status == 200:
        headers = http.headers
    else:
        return None
    content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    return headers if content_type.lower().startswith((b"text/html", b"application/xhtml+xml")) else None
