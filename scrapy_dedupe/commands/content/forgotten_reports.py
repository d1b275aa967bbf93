"""Deletes report data of crawls without an archive, together with their texts: no crawl index lists such crawls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.reports.observations import unpack

if TYPE_CHECKING:
    from datetime import datetime

    from scrapy_dedupe.stores.base import Store


def forget_reports(store: Store, *, before: datetime | None = None, crawl: str | None = None) -> int:
    """Delete the report data of crawls that ended before a time, or of one crawl; with neither, of all crawls.

    Crawls in the index of the store are skipped, and with ``before`` also those whose end time cannot be read. Returns
    the number of crawls.
    """
    known = {info.id for info in store.index.crawls()}
    wanted = [
        kept
        for kept in store.reports.crawls()
        if kept not in known
        and crawl in (None, kept)
        and (before is None or _ended_before(store, kept, before))
    ]
    for kept in wanted:
        store.reports.delete(kept)
    return len(wanted)


def _ended_before(store: Store, crawl: str, before: datetime) -> bool:
    data = store.reports.load(crawl)
    try:
        return data is not None and unpack(data, crawl).ended < before.timestamp()
    except StoreRefused:
        return False
