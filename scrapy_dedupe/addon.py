"""The Scrapy add-on, which enables all components according to the ``DEDUPE_*`` settings."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES

from .errors import ArchiveError, SettingError
from .files.folders import job_fault, nearest_there
from .settings.placement import CACHE_STORAGE, check_places, is_cache
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
# Closer to the spider than the content layer: no need to wait for the record of a page that was dropped.
PROVENANCE_PRIORITY = 540
ITEM_FIELD_PRIORITY = 950
EXTENSION_PRIORITY = 500
# Directly before HttpCache (900).
CACHE_PRIORITY = 899
CACHE_POLICY = "scrapy.extensions.httpcache.RFC2616Policy"
# Closer to the network than HttpCache (900): all other middlewares process replayed responses like downloads.
REPLAY_PRIORITY = 950


class Addon:
    """Enables the dupefilter, the downloader middlewares (543; 540 for ``meta["warc"]``) and the item pipeline (900).

    ::

        ADDONS = {"scrapy_dedupe.Addon": 500}

    ``DEDUPE_REPLAY`` adds the middleware that answers requests from an archive (950), ``DEDUPE_HTTPCACHE`` the one that
    makes the archive the HTTP cache (899), and ``DEDUPE_PASSAGES`` the extension that fills a passage index. Further extensions (all 500) collect data for the report, write the duplicates
    log and export metrics.

    Set ``DEDUPE_URL_ENABLED``, ``DEDUPE_CONTENT_ENABLED`` or ``DEDUPE_WARC_ENABLED`` to ``False`` to disable a layer.
    Components that the project or the spider sets itself are kept. ``scrapy check``, ``parse``, ``fetch``, ``view`` and
    ``shell`` are not crawls: they record and store nothing.

    Raises :class:`~scrapy_dedupe.errors.SettingError` for an invalid setting, and
    :class:`~scrapy_dedupe.errors.ArchiveError` if ``JOBDIR`` cannot be created.
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
            specs = read_settings(settings)
        except SettingError as error:
            logger.error("The crawl does not start. %s", error)
            raise
        # Import only the layers in use: importing all of them takes half a second.
        if specs.replay.files:
            from .downloadermiddlewares import ReplayMiddleware

            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ReplayMiddleware, REPLAY_PRIORITY
            )
        # `scrapy shell` is the only Scrapy command that sets the dupefilter: it disables filtering.
        is_set_by_shell = settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["command"]
        if specs.urls.enabled and not is_set_by_shell:
            from .dupefilters import BloomDupeFilter

            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
        if specs.content.enabled:
            from .downloadermiddlewares import ContentDedupeMiddleware

            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ContentDedupeMiddleware, MIDDLEWARE_PRIORITY
            )
        if not self._is_crawl:
            return
        if specs.warc.http_cache and specs.warc.enabled:
            settings.set("HTTPCACHE_ENABLED", True, "addon")
            settings.set("HTTPCACHE_STORAGE", CACHE_STORAGE, "addon")
            # The default policy of Scrapy uses every page without asking the server.
            settings.set("HTTPCACHE_POLICY", CACHE_POLICY, "addon")
        if is_cache(settings):
            from .httpcache import ArchiveCacheMiddleware

            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ArchiveCacheMiddleware, CACHE_PRIORITY
            )
        if specs.passages.enabled:
            from .extensions import PassageExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", PassageExtension, EXTENSION_PRIORITY)
        if specs.report.duplicates_log is not None:
            from .extensions import DuplicatesLogExtension

            settings.setdefault_in_component_priority_dict(
                "EXTENSIONS", DuplicatesLogExtension, EXTENSION_PRIORITY
            )
        # Replayed responses are not recorded: they are already in an archive.
        is_archived = specs.warc.enabled and not (specs.replay.files and specs.replay.missing == "fail")
        if specs.content.enabled or is_archived or specs.report.page is not None:
            from .extensions import ReportExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", ReportExtension, EXTENSION_PRIORITY)
        # Last, so that the metrics include what the other extensions count at the end of the crawl.
        if specs.metrics.port or specs.metrics.file is not None:
            from .extensions import MetricsExtension

            settings.setdefault_in_component_priority_dict("EXTENSIONS", MetricsExtension, EXTENSION_PRIORITY)
        if is_archived:
            from .downloadermiddlewares import ProvenanceMiddleware
            from .pipelines import WarcPipeline

            settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", WarcPipeline, PIPELINE_PRIORITY)
            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ProvenanceMiddleware, PROVENANCE_PRIORITY
            )
            if specs.warc.item_field is not None:
                from .spidermiddlewares import ProvenanceSpiderMiddleware

                settings.setdefault_in_component_priority_dict(
                    "SPIDER_MIDDLEWARES", ProvenanceSpiderMiddleware, ITEM_FIELD_PRIORITY
                )
        try:
            _check_job(specs.jobdir)
        except ArchiveError as error:
            logger.error("The crawl does not start. %s", error)
            raise


def _check_job(folder: Path | None) -> None:
    """Raise :class:`~scrapy_dedupe.errors.ArchiveError` if *folder* cannot be created. Does not create it.

    Scrapy creates it before it loads the components of this package, and reports only the error of the operating
    system.
    """
    if folder is None or os.path.lexists(folder):
        return
    parent = nearest_there(folder)
    if not parent.is_dir():
        code = errno.ENOTDIR
    elif os.access(parent, os.W_OK | os.X_OK):
        return
    else:
        is_read_only = hasattr(os, "statvfs") and os.statvfs(parent).f_flag & os.ST_RDONLY
        code = errno.EROFS if is_read_only else errno.EACCES
    raise ArchiveError(job_fault(folder, OSError(code, os.strerror(code))))
