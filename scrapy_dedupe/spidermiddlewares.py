"""The spider middleware that adds the location of the WARC record to items (``DEDUPE_WARC_ITEM_FIELD``)."""

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
    """Copies ``meta["warc"]`` of a response into a field of every item from that response."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._session = Session.of(crawler)
        field = self._session.settings.warc.item_field
        if field is None:
            raise NotConfigured
        self._field = field
        self._has_warned = False

    def get_processed_item(self, item: Any, response: Response | None) -> Any:
        if response is None or isinstance(item, WarcItem):
            return item
        location = response.meta.get(META_KEY)
        if location is None:
            return item
        adapter, before = None, None
        try:
            adapter = ItemAdapter(item)
            before = adapter.get(self._field)
            adapter[self._field] = location
        except Exception as error:  # noqa: BLE001 - a frozen or validating item type may raise any exception
            if adapter is not None:
                # Pydantic sets the field before it runs the validators of the model: restore the old value.
                with suppress(Exception):
                    if adapter.get(self._field) != before:
                        adapter[self._field] = before
            self._session.counters.inc("dedupe/warc/items_without_field")
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "Cannot set the field %r (DEDUPE_WARC_ITEM_FIELD) of items of type %s (%s: %s). They are passed on"
                    " without it, and counted in dedupe/warc/items_without_field. Define a field of that name that"
                    " accepts a dict.",
                    self._field,
                    type(item).__name__,
                    type(error).__name__,
                    " ".join(str(error).split()),
                )
        return item
