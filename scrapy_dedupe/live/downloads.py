"""What Scrapy says of a download: its largest size, whether its body is truncated, and whether it was rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scrapy_dedupe.warc.capture import Rendering
from scrapy_dedupe.warc.codings import codings_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.warc.capture import Capture

# WARC-Truncated by flag. "partial" is none: such a body ended with the connection, as bodies without a length do.
_TRUNCATED_BY: Final = {"dataloss": "disconnect", "download_stopped": "length"}
_FLAG_OF: Final = {truncated: flag for flag, truncated in _TRUNCATED_BY.items()}

# Flags of download handlers that return what a browser shows. "rendered" is for handlers that this list does not have.
_BROWSER_FLAGS: Final = frozenset({"rendered", "playwright", "camoufox", "pyppeteer", "zyte-api"})
# scrapy-impersonate returns decoded bodies, and its requests differ from what curl sends.
_DECODER_FLAGS: Final = frozenset({"impersonate"})
_HTML_BEGINNINGS: Final = (b"<!doctype html", b"<html")
_SNIFFED_BYTES: Final = 512
_MOST_LENGTH_DIGITS: Final = 19


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


def rendering_of(response: Response, capture: Capture) -> Rendering | None:
    """Why a response is not what the server sent; None if nothing says so.

    To be asked at ``response_downloaded``, where a body still has its content coding, about *capture*, which holds the
    same response. Scrapy's own handlers tell the protocol, and return bodies of the length that the server stated.
    """
    flag = next((flag for flag in response.flags if flag in _BROWSER_FLAGS or flag in _DECODER_FLAGS), None)
    stated = _stated_length(capture)
    if flag is not None:
        sign = f"flag {flag}"
    elif response.protocol is None and not capture.response_headers:
        sign = "no HTTP headers"
    elif stated is not None and stated != len(capture.body):
        sign = f"Content-Length {stated}, but a body of {len(capture.body)} bytes"
    else:
        return None
    begins_as_html = capture.body[:_SNIFFED_BYTES].lstrip().lower().startswith(_HTML_BEGINNINGS)
    # A browser shows plain text, XML and images in a page of its own; other handlers return a source text as it is.
    is_text = (capture.content_type or b"").lower().startswith(b"text/")
    return Rendering(sign, begins_as_html and (flag in _BROWSER_FLAGS or not is_text))


def _stated_length(capture: Capture) -> int | None:
    """The Content-Length of the body as it is stored; None if the headers state none, or not clearly."""
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
