"""The add-on: one line in settings.py turns everything on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES

from .downloadermiddlewares import ContentDedupeMiddleware
from .dupefilters import BloomDupeFilter
from .errors import SettingError
from .pipelines import WarcPipeline
from .settings import read_settings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

MIDDLEWARE_PRIORITY = 543
PIPELINE_PRIORITY = 900


class Addon:
    """Sets the dupefilter, the downloader middleware (543) and the item pipeline (900).

    ::

        ADDONS = {"scrapy_dedupe.Addon": 500}

    What the project or the spider sets itself stays. ``scrapy shell`` is left alone: to look at a page is no crawl. ``DEDUPE_URL_ENABLED``, ``DEDUPE_CONTENT_ENABLED`` and
    ``DEDUPE_WARC_ENABLED`` leave one of them out. Raises :class:`~scrapy_dedupe.errors.SettingError` for a
    setting with a wrong value.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        try:
            ours = read_settings(settings)
        except SettingError as error:
            logger.error("The crawl does not start. %s", error)
            raise
        if settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["command"]:
            # Among Scrapy's commands the shell alone sets it, to filter nothing. It never closes its spider, so an
            # archive of it would never be finished.
            return
        if ours.urls.enabled:
            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
        if ours.content.enabled:
            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ContentDedupeMiddleware, MIDDLEWARE_PRIORITY
            )
        if ours.warc.enabled:
            settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", WarcPipeline, PIPELINE_PRIORITY)
