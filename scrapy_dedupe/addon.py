"""The add-on: one line in settings.py turns everything on."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES

from .errors import ArchiveError, SettingError, folder_fault, nearest_there
from .settings.placement import check_places
from .settings.project import is_crawl
from .settings.specs import read_settings

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

MIDDLEWARE_PRIORITY = 543
PIPELINE_PRIORITY = 900
# Nearer to the spider than the content layer, which may drop a page that nobody has to wait for then.
PROVENANCE_PRIORITY = 540
ITEM_FIELD_PRIORITY = 950
EXTENSION_PRIORITY = 500
# Behind HttpCache (900), so that all others do with its responses what they do with the network's.
REPLAY_PRIORITY = 950


class Addon:
    """Sets the dupefilter, the downloader middlewares (543; 540 for ``meta["warc"]``) and the item pipeline (900).

    ::

        ADDONS = {"scrapy_dedupe.Addon": 500}

    With ``DEDUPE_REPLAY`` also the middleware that answers from an archive (950); with
    ``DEDUPE_PASSAGES`` the extension that fills a passage index. Other extensions (all 500) see what the crawl saves, for
    the report, write the log of duplicates, and show metrics.

    What the project or the spider sets itself stays. ``scrapy check``, ``parse``, ``fetch``, ``view`` and ``shell`` are not
    crawls: nothing is recorded or remembered.
    ``DEDUPE_URL_ENABLED``, ``DEDUPE_CONTENT_ENABLED`` and ``DEDUPE_WARC_ENABLED`` leave one of them out. Raises
    :class:`~scrapy_dedupe.errors.SettingError` for a setting with a wrong value, and
    :class:`~scrapy_dedupe.errors.ArchiveError` for a ``JOBDIR`` that cannot be made.
    """

    def __init__(self, *, is_crawl: bool = True) -> None:
        self._is_crawl = is_crawl

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        try:
            check_places(crawler.settings)
        except SettingError as error:
            logger.error("The crawl does not start. %s", error)
            raise
        return cls(is_crawl=is_crawl(crawler))

    def update_settings(self, settings: BaseSettings) -> None:
        try:
            ours = read_settings(settings)
        except SettingError as error:
            logger.error("The crawl does not start. %s", error)
            raise
        # Each layer is loaded only if it is used: together they take half a second.
        if ours.replay.files:
            from .downloadermiddlewares import ReplayMiddleware

            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ReplayMiddleware, REPLAY_PRIORITY
            )
        # Among Scrapy's commands only the shell sets it, to filter nothing.
        is_set_by_shell = settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["command"]
        if ours.urls.enabled and not is_set_by_shell:
            from .dupefilters import BloomDupeFilter

            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
        if ours.content.enabled:
            from .downloadermiddlewares import ContentDedupeMiddleware

            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ContentDedupeMiddleware, MIDDLEWARE_PRIORITY
            )
        if not self._is_crawl:
            return
        if ours.passages.enabled:
            from .extensions import PassageExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", PassageExtension, EXTENSION_PRIORITY)
        if ours.report.duplicates_log is not None:
            from .extensions import DuplicatesLogExtension

            settings.setdefault_in_component_priority_dict(
                "EXTENSIONS", DuplicatesLogExtension, EXTENSION_PRIORITY
            )
        # What is answered from an archive is in one already.
        is_archived = ours.warc.enabled and not (ours.replay.files and ours.replay.missing == "fail")
        if ours.content.enabled or is_archived or ours.report.page is not None:
            from .extensions import ReportExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", ReportExtension, EXTENSION_PRIORITY)
        # Behind the others: what they count at the end is to be seen too.
        if ours.metrics.port or ours.metrics.file is not None:
            from .extensions import MetricsExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", MetricsExtension, EXTENSION_PRIORITY)
        if is_archived:
            from .downloadermiddlewares import ProvenanceMiddleware
            from .pipelines import WarcPipeline

            settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", WarcPipeline, PIPELINE_PRIORITY)
            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ProvenanceMiddleware, PROVENANCE_PRIORITY
            )
            if ours.warc.item_field is not None:
                from .spidermiddlewares import ProvenanceSpiderMiddleware

                settings.setdefault_in_component_priority_dict(
                    "SPIDER_MIDDLEWARES", ProvenanceSpiderMiddleware, ITEM_FIELD_PRIORITY
                )
        try:
            _check_job(ours.jobdir)
        except ArchiveError as error:
            logger.error("The crawl does not start. %s", error)
            raise


def _check_job(folder: Path | None) -> None:
    """Raise :class:`~scrapy_dedupe.errors.ArchiveError` if *folder* cannot be made; nothing is made here.

    Scrapy makes it before a component of ours has a word, and tells nothing but the error of the operating system.
    """
    if folder is None or os.path.lexists(folder):
        return
    there = nearest_there(folder)
    if not there.is_dir():
        code = errno.ENOTDIR
    elif os.access(there, os.W_OK | os.X_OK):
        return
    else:
        is_read_only = hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY
        code = errno.EROFS if is_read_only else errno.EACCES
    reason, remedy = folder_fault(folder, OSError(code, os.strerror(code)), "another one")
    raise ArchiveError(f"The job folder {folder} (JOBDIR) cannot be made: {reason}. {remedy}")
