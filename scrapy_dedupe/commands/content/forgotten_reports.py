"""What was seen during crawls without an archive goes with their texts, since no crawl index has them to purge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.reports.serialization import unpack

if TYPE_CHECKING:
    from datetime import datetime

    from scrapy_dedupe.stores.base import Store


def forget_reports(store: Store, *, before: datetime | None = None, crawl: str | None = None) -> int:
    """Forget what is kept of crawls that ended before a time, or of one crawl; of all with neither. How many.

    Crawls that the index of the store knows are left, and with ``before`` those of which nobody can read when they ended.
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
