"""The form in which a store keeps what was seen during a crawl: zlib-compressed JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .observations import Observations


def pack(observations: Observations) -> bytes:
    """What a :class:`~scrapy_dedupe.stores.base.ReportStore` is given to save; some 20 kB, 100 kB at most."""
    raise NotImplementedError


def unpack(data: bytes, crawl: str, now: Callable[[], float] = time.time) -> Observations:
    """The observations of *crawl* that a store has kept.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` for damaged data, and for those of a newer version.
    """
    raise NotImplementedError
