"""Packs a crawl as WACZ according to the settings, at the end of a crawl or for a command."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.crawl_files import CrawlArchive
from scrapy_dedupe.crawls.packing import PackedCrawl, pack_crawl
from scrapy_dedupe.errors import ArchiveError, CrawlStateError
from scrapy_dedupe.live.archive import SOFTWARE
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.warc.storage import Storage

from .page_list import PageList

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from scrapy_dedupe.settings.specs import Settings
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress

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
    if any(info.imported for info in index.crawls() if info.id == crawl):
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
