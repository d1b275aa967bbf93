"""The form in which a store keeps what was seen during a crawl: JSON in UTF-8, compressed by zlib.

The JSON has a ``format``, and is otherwise what :meth:`.observations.Observations.as_dict` gives.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused

from .observations import Observations

if TYPE_CHECKING:
    from collections.abc import Callable

# Of the JSON, which has less than 400 kB. As lists in lists it may take forty times as much memory.
_MOST_BYTES = 1_000_000


def pack(observations: Observations) -> bytes:
    """What a :class:`~scrapy_dedupe.stores.base.ReportStore` is given to save: a few kB, some 100 kB at most."""
    text = json.dumps(observations.as_dict(), ensure_ascii=False, separators=(",", ":"))
    return zlib.compress(text.encode(), 6)


def unpack(data: bytes, crawl: str, now: Callable[[], float] = time.time) -> Observations:
    """The observations of *crawl* that a store has kept.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` for damaged data, and for those of a newer version.
    """
    try:
        plain = json.loads(_inflated(data))
    except (zlib.error, ValueError, RecursionError) as error:
        raise StoreRefused(
            _message(crawl, f"What was seen during the crawl is damaged ({error}).")
        ) from error
    try:
        return Observations.from_dict(plain, now)
    except StoreRefused as error:
        raise StoreRefused(_message(crawl, str(error))) from error


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("it is cut off, or too long")
    return text


def _message(crawl: str, sentence: str) -> str:
    return f"The report of the crawl {crawl} cannot be read. {sentence} It was left as it is."
