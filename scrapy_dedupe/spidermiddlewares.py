"""Copies the location of a response's WARC record into the items made from it (``DEDUPE_WARC_ITEM_FIELD``)."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter
from scrapy.exceptions import NotConfigured
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from .live.recordings import META_KEY
from .live.session import Session
from .pipelines import WarcItem

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)


class ProvenanceSpiderMiddleware(BaseSpiderMiddleware):
    """The spider middleware that copies ``meta["warc"]`` into a field of every item of the response."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._session = Session.of(crawler)
        field = self._session.settings.warc.item_field
        if field is None:
            raise NotConfigured
        self._field = field
        self._has_told = False

    def get_processed_item(self, item: Any, response: Response | None) -> Any:
        if response is None or isinstance(item, WarcItem):
            return item
        where = response.meta.get(META_KEY)
        if where is None:
            return item
        adapter, before = None, None
        try:
            adapter = ItemAdapter(item)
            before = adapter.get(self._field)
            adapter[self._field] = where
        except Exception as error:  # noqa: BLE001 - a frozen or validating type may raise anything
            if adapter is not None:
                # Pydantic sets a field before it asks the validators of the whole model.
                with suppress(Exception):
                    if adapter.get(self._field) != before:
                        adapter[self._field] = before
            self._session.counters.inc("dedupe/warc/items_without_field")
            if not self._has_told:
                self._has_told = True
                logger.warning(
                    "Items of the type %s cannot take the field %r of DEDUPE_WARC_ITEM_FIELD (%s: %s). They are passed"
                    " on without it, and counted in dedupe/warc/items_without_field. Let the type have a field of that"
                    " name that can be set to a dict.",
                    type(item).__name__,
                    self._field,
                    type(error).__name__,
                    " ".join(str(error).split()),
                )
        return item
