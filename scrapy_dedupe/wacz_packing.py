"""Packs a crawl as WACZ as the settings say; for the end of a crawl and for the verbs."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from .archive_end import SOFTWARE
from .crawls.captures import CrawlArchive
from .crawls.packing import PackedCrawl, pack_crawl
from .errors import ArchiveError, CrawlStateError
from .page_list import PageList
from .tasks.watching import UNWATCHED
from .warc.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from .crawls.index import CrawlIndex
    from .settings import Settings
    from .tasks.watching import Watch

logger = logging.getLogger(__name__)


def pack_by_settings(
    index: CrawlIndex,
    crawl: str,
    settings: Settings,
    scrapy_settings: BaseSettings,
    *,
    warc_folder: Path | None = None,
    watch: Watch = UNWATCHED,
) -> PackedCrawl | None:
    """Pack the WARC files of *crawl*; see :func:`~scrapy_dedupe.crawls.packing.pack_crawl`.

    Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl that was imported.
    """
    if any(info.imported for info in index.crawls() if info.id == crawl):
        raise CrawlStateError(
            f"The crawl {crawl} was imported; its records stay in the files that it was imported from, and are not"
            " packed."
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
    lacking = _lacking(done.missing, settings.warc.upload_url)
    if lacking:
        logger.warning(
            "%s refers to records in %s, which is not beside it. Put it there before the archive is replayed with %s.",
            done.wacz.path,
            ", ".join(lacking),
            done.manifest.name,
        )
    return replace(done, missing=lacking)


def _lacking(names: tuple[str, ...], upload_url: str | None) -> tuple[str, ...]:
    """Those of the containers that are not in the storage either, where the WACZ goes."""
    if not names or upload_url is None:
        return names
    storage = Storage(upload_url)
    try:
        return tuple(name for name in names if not storage.has(name))
    except ArchiveError as error:
        logger.warning("%s", error)
        return names
