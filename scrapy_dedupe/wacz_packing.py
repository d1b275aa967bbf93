"""Packs a crawl as WACZ as the settings say; for the end of a crawl and for the verbs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import scrapy

from . import __version__
from .crawls.captures import CrawlArchive
from .crawls.packing import PackedCrawl, pack_crawl
from .page_list import PageList

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from .crawls.index import CrawlIndex
    from .settings import Settings

logger = logging.getLogger(__name__)

SOFTWARE = f"scrapy-dedupe/{__version__} Scrapy/{scrapy.__version__}"


def pack_by_settings(
    index: CrawlIndex,
    crawl: str,
    settings: Settings,
    scrapy_settings: BaseSettings,
    *,
    warc_folder: Path | None = None,
) -> PackedCrawl | None:
    """Pack the WARC files of *crawl*; see :func:`~scrapy_dedupe.crawls.packing.pack_crawl`."""
    folder = (warc_folder or settings.warc.folder).absolute()
    archive = CrawlArchive(index, crawl, folder, lambda damage: logger.warning("Damaged: %s.", damage))
    pages = PageList(scrapy_settings, archive, with_text=settings.wacz.text)
    done = pack_crawl(
        index,
        crawl,
        folder,
        settings.wacz.folder,
        pages.page_of,
        software=SOFTWARE,
        has_text=settings.wacz.text,
    )
    # Where all is moved to one storage, the others are there.
    if done is not None and done.missing and settings.warc.upload_url is None:
        logger.warning(
            "%s refers to records in %s, which is not in its folder. Put it there before the archive is replayed with"
            " %s.",
            done.wacz.path,
            ", ".join(done.missing),
            done.manifest.name,
        )
    return done
