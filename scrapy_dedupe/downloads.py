"""What Scrapy has to say of a download: how large it may be, and whether a part of its body is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

# WARC-Truncated by flag. "partial" is none: such a body ended with the connection, as bodies without a length do.
_TRUNCATED_BY: Final = {"dataloss": "disconnect", "download_stopped": "length"}
_FLAG_OF: Final = {truncated: flag for flag, truncated in _TRUNCATED_BY.items()}


def max_bytes(crawler: Crawler, request: Request) -> int:
    """How large the body of an answer may be, as it came and decoded; 0 for no limit.

    As Scrapy's download handlers and HttpCompressionMiddleware have it: what the request says goes before what the
    spider says, and that before the setting. Newer versions of Scrapy warn of the spider's word, and heed it.
    """
    limit = getattr(crawler.spider, "download_maxsize", crawler.settings.getint("DOWNLOAD_MAXSIZE"))
    return int(request.meta.get("download_maxsize", limit) or 0)


def truncation_of(response: Response) -> str | None:
    """The WARC-Truncated of a body that is not whole; None if nothing says so."""
    return next((_TRUNCATED_BY[flag] for flag in response.flags if flag in _TRUNCATED_BY), None)


def flag_of(truncated: str) -> str:
    """Scrapy's flag of a body with that WARC-Truncated."""
    return _FLAG_OF.get(truncated, "dataloss")
