"""Properties of a Scrapy download: maximum size, truncation, and whether a browser or handler changed the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scrapy_dedupe.warc.capture import Rendering
from scrapy_dedupe.warc.codings import codings_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.warc.capture import Capture

# WARC-Truncated by flag. "partial" is not truncated: the connection close ends a body without Content-Length.
_TRUNCATED_BY: Final = {"dataloss": "disconnect", "download_stopped": "length"}
_FLAG_OF: Final = {truncated: flag for flag, truncated in _TRUNCATED_BY.items()}

# Flags of download handlers that return rendered pages. "rendered" is for handlers that are not in this list.
_BROWSER_FLAGS: Final = frozenset({"rendered", "playwright", "camoufox", "pyppeteer", "zyte-api"})
# scrapy-impersonate returns decoded bodies, and its requests differ from what curl sends.
_DECODER_FLAGS: Final = frozenset({"impersonate"})
_HTML_BEGINNINGS: Final = (b"<!doctype html", b"<html")
_SNIFFED_BYTES: Final = 512
_MOST_LENGTH_DIGITS: Final = 19


def max_bytes(crawler: Crawler, request: Request) -> int:
    """Return the maximum size of a response body in bytes, as received and decoded; 0 for no limit.

    The order of precedence is that of Scrapy's download handlers and HttpCompressionMiddleware: the meta of the
    request, the attribute of the spider (deprecated in newer versions of Scrapy, but still used), the setting.
    """
    limit = getattr(crawler.spider, "download_maxsize", crawler.settings.getint("DOWNLOAD_MAXSIZE"))
    return int(request.meta.get("download_maxsize", limit) or 0)


def truncation_of(response: Response) -> str | None:
    """Return the WARC-Truncated value of a truncated body, or None if no flag says that the body is truncated."""
    return next((_TRUNCATED_BY[flag] for flag in response.flags if flag in _TRUNCATED_BY), None)


def flag_of(truncated: str) -> str:
    """Return the Scrapy flag for a WARC-Truncated value."""
    return _FLAG_OF.get(truncated, "dataloss")


def rendering_of(response: Response, capture: Capture) -> Rendering | None:
    """Return why a response differs from what the server sent, or None if there is no sign of that.

    Call this on ``response_downloaded``, where the body still has its content coding. *capture* must hold the same
    response. Scrapy's own handlers set the protocol, and return bodies of the length given by Content-Length.
    """
    flag = next((flag for flag in response.flags if flag in _BROWSER_FLAGS or flag in _DECODER_FLAGS), None)
    length = _content_length(capture)
    if flag is not None:
        sign = f"flag {flag}"
    elif response.protocol is None and not capture.response_headers:
        sign = "no HTTP headers"
    elif length is not None and length != len(capture.body):
        sign = f"Content-Length {length}, but a body of {len(capture.body)} bytes"
    else:
        return None
    begins_as_html = capture.body[:_SNIFFED_BYTES].lstrip().lower().startswith(_HTML_BEGINNINGS)
    # Browsers wrap plain text, XML and images in an HTML page; other handlers return text resources unchanged.
    is_text = (capture.content_type or b"").lower().startswith(b"text/")
    return Rendering(sign, begins_as_html and (flag in _BROWSER_FLAGS or not is_text))


def _content_length(capture: Capture) -> int | None:
    """Return the Content-Length, or None if it is missing, ambiguous or not the length of the stored body."""
    headers = capture.response_headers
    if not capture.has_body_by_definition or capture.truncated is not None or codings_of(headers):
        return None
    values: set[bytes] = set()
    for name, value in headers:
        lower = name.strip().lower()
        if lower == b"transfer-encoding":  # It overrides Content-Length (RFC 9112, section 6.3).
            return None
        if lower == b"content-length":
            values.update(part.strip() for part in value.split(b","))
    if not all(value.isdigit() and len(value) <= _MOST_LENGTH_DIGITS for value in values):
        return None
    lengths = set(map(int, values))
    return lengths.pop() if len(lengths) == 1 else None
