"""Why a page is not read: what its request, its status, its type and its flags say before anybody looks at its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scrapy.http import HtmlResponse, TextResponse, XmlResponse

from scrapy_dedupe.content.canonical import kind_of
from scrapy_dedupe.live.downloads import truncation_of
from scrapy_dedupe.warc.charsets import declared_encodings, is_charset
from scrapy_dedupe.warc.codings import CONTENT_ENCODING, codings_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

SKIP_META_KEY: Final = "dedupe_skip"


def declared_type(response: Response) -> str | None:
    """The Content-Type of a response; if there is none, what Scrapy found in its URL and body."""
    content_type = response.headers.get(b"Content-Type")
    if content_type is not None:
        return content_type.decode("latin-1")
    if isinstance(response, HtmlResponse):
        return "text/html"
    return "application/xml" if isinstance(response, XmlResponse) else None


def kind_of_page(response: Response) -> str | None:
    """The kind of page, one of :data:`.content.canonical.KINDS`; None if it is no text."""
    content_type = declared_type(response)
    return None if content_type is None else kind_of(content_type)


def reason_to_skip(request: Request, response: Response, kind: str | None, max_bytes: int) -> str | None:
    """Why the page is not read, in one word; None if it is."""
    if request.meta.get(SKIP_META_KEY):
        return "meta"
    if request.method == "HEAD":
        return "method"
    if response.status != 200:
        return "status"
    if kind is None or not isinstance(response, TextResponse):
        return "type"
    if is_coded(response):
        return "encoding"  # nobody could decode it
    if truncation_of(response) is not None:
        return "truncated"
    if len(response.body) > max_bytes:
        return "size"
    if not has_charset(response):
        return "encoding"  # decoding it can take for ever
    return None


def is_coded(response: Response) -> bool:
    """Whether the body of a response is still in a content coding."""
    values = response.headers.getlist(b"Content-Encoding")
    return bool(codings_of((CONTENT_ENCODING, value) for value in values))


def has_charset(response: TextResponse) -> bool:
    """Whether the encoding of a page is a charset of pages, as far as that can be told without decoding it."""
    content_type = response.headers.get(b"Content-Type")
    declared = declared_encodings(
        None if content_type is None else content_type.decode("latin-1"), response.body
    )
    # Scrapy gives one that is declared as it is, and decodes the page to guess one otherwise.
    return next(declared, None) is None or is_charset(response.encoding)
