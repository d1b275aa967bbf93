"""Reasons for which a page is not judged: its request, status, content type, flags, size or encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scrapy.http import HtmlResponse, TextResponse, XmlResponse

from scrapy_dedupe.content.canonical import kind_of
from scrapy_dedupe.live.downloads import truncation_of
from scrapy_dedupe.warc.codings import CONTENT_ENCODING, codings_of, declared_encodings, is_charset

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

SKIP_META_KEY: Final = "dedupe_skip"


def declared_type(response: Response) -> str | None:
    """Return the Content-Type of a response or, without that header, the type that Scrapy detected."""
    content_type = response.headers.get(b"Content-Type")
    if content_type is not None:
        return content_type.decode("latin-1")
    if isinstance(response, HtmlResponse):
        return "text/html"
    return "application/xml" if isinstance(response, XmlResponse) else None


def kind_of_page(response: Response) -> str | None:
    """Return the kind of a page, one of :data:`.content.canonical.KINDS`, or None if the page is not text."""
    content_type = declared_type(response)
    return None if content_type is None else kind_of(content_type)


def reason_to_skip(request: Request, response: Response, kind: str | None, max_bytes: int) -> str | None:
    """Return why the page is skipped, as one word, or None if the page is to be judged."""
    if request.meta.get(SKIP_META_KEY):
        return "meta"
    if request.method == "HEAD":
        return "method"
    if response.status != 200:
        return "status"
    if kind is None or not isinstance(response, TextResponse):
        return "type"
    if is_coded(response):
        return "encoding"  # Scrapy could not decompress it.
    if truncation_of(response) is not None:
        return "truncated"
    if len(response.body) > max_bytes:
        return "size"
    if not has_charset(response):
        return "encoding"  # Decoding it can take very long.
    return None


def is_coded(response: Response) -> bool:
    """Return True if the body of a response still has a content coding."""
    values = response.headers.getlist(b"Content-Encoding")
    return bool(codings_of((CONTENT_ENCODING, value) for value in values))


def has_charset(response: TextResponse) -> bool:
    """Return False if the page declares an encoding that is not a charset for web pages."""
    content_type = response.headers.get(b"Content-Type")
    declared = declared_encodings(
        None if content_type is None else content_type.decode("latin-1"), response.body
    )
    # Only read response.encoding if one is declared: otherwise Scrapy decodes the page to detect it.
    return next(declared, None) is None or is_charset(response.encoding)
