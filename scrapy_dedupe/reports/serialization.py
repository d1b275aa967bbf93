"""The stored form of the observations of a crawl: JSON in UTF-8, compressed with zlib.

The JSON is the result of :meth:`.observations.Observations.as_dict`, which has a ``format``.
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

# The JSON has less than 400 kB. Nested lists take up to forty times as much memory, so more is refused.
_MOST_BYTES = 1_000_000


def pack(observations: Observations) -> bytes:
    """Serialise observations for a :class:`~scrapy_dedupe.stores.base.ReportStore`: a few kB, about 100 kB at most."""
    text = json.dumps(observations.as_dict(), ensure_ascii=False, separators=(",", ":"))
    return zlib.compress(text.encode(), 6)


def unpack(data: bytes, crawl: str, now: Callable[[], float] = time.time) -> Observations:
    """Deserialise the observations of *crawl*.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` for damaged data and for data of a newer version.
    """
    try:
        plain = json.loads(_inflated(data))
    except (zlib.error, ValueError, RecursionError) as error:
        raise StoreRefused(
            _message(crawl, f"The observations of the crawl are damaged ({error}).")
        ) from error
    try:
        return Observations.from_dict(plain, now)
    except StoreRefused as error:
        raise StoreRefused(_message(crawl, str(error))) from error


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("it is truncated, or too long")
    return text


def _message(crawl: str, sentence: str) -> str:
    return f"The report of the crawl {crawl} cannot be read. {sentence} It was not changed."
