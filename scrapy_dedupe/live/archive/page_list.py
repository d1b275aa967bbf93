"""The page list of a WACZ: selects the records that are pages, and extracts their titles and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.content.title import title_of
from scrapy_dedupe.crawls.rules import is_http
from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.live.content.stored_pages import PageReader
from scrapy_dedupe.warc.wacz import WaczPage

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from scrapy_dedupe.crawls.crawl_files import CrawlArchive
    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.reading import StoredRecord


class PageList:
    """Creates the entries of the page list. Pages are HTML records with status 200, their revisits, and HTML resources.

    The body of a revisit is read from *archive*. If its file is not available, the entry has no title and no text.
    """

    def __init__(self, settings: BaseSettings, archive: CrawlArchive, *, with_text: bool) -> None:
        self._reader = PageReader(settings)
        self._archive = archive
        self._with_text = with_text

    def page_of(self, record: StoredRecord) -> WaczPage | None:
        """Return the entry for *record*, or None if the record is not a page."""
        headers = _headers_of_page(record)
        if headers is None or record.target_uri is None or record.date is None:
            return None
        source = self._archive.original(record) if record.type == "revisit" else record
        bare = WaczPage(record.target_uri, record.date)
        if source is None:
            return bare
        try:
            page = self._reader.page(record.target_uri, headers, source.payload())
        except (DedupeError, OSError):
            return bare
        if isinstance(page, str):
            return bare
        text = None
        if self._with_text:
            try:
                text = read(page.kind, page.text, "text").text
            except HostileMarkup:
                text = None
        return WaczPage(record.target_uri, record.date, title_of(page.text), text)


def _headers_of_page(record: StoredRecord) -> Headers | None:
    """Return the HTTP headers of a page, or None. A resource record has only the Content-Type of its WARC header."""
    http = record.http
    if record.type == "resource" and is_http(record):
        headers: Headers = (
            (b"Content-Type", (record.get("Content-Type") or "").encode("latin-1", "replace")),
        )
    elif http is not None and http.status == 200:
        headers = http.headers
    else:
        return None
    content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    return headers if content_type.lower().startswith((b"text/html", b"application/xhtml+xml")) else None
