"""Where the record of a response is: ``response.meta["warc"]``, and a field of items if wished.

The archive writes on a thread of its own, so a response may be faster than its record. The downloader middleware lets
it wait: when a callback runs, the record is on its way to the disk and everything about it is known. A response that
is not in the archive has no ``meta["warc"]``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter
from scrapy.exceptions import NotConfigured
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from .pipelines import WarcItem
from .recordings import META_KEY
from .session import Session

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)


class ProvenanceMiddleware:
    """The downloader middleware that sets ``meta["warc"]``; it stands between the content layer and the spider (540)."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = Session.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ProvenanceMiddleware:
        return cls(crawler)

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        # What a spider copied from the meta of another response is not about this one.
        request.meta.pop(META_KEY, None)

    async def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        await self._session.recordings.tell(request)
        return response


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
            self._session.inc("dedupe/warc/items_without_field")
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
