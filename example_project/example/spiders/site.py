"""A spider that follows every link of one site: the bundled site, or a real one.

.. code-block:: console

    $ scrapy crawl site
    $ scrapy crawl site -a url=https://www.example.org/ -s CLOSESPIDER_PAGECOUNT=200
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

from example.items import Page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from scrapy.crawler import Crawler


class SiteSpider(Spider):
    """Yields a :class:`~example.items.Page` for every response."""

    name = "site"

    allowed_domains: list[str]
    wants_bundled_site: bool

    links = LinkExtractor(tags=("a", "area", "img"), attrs=("href", "src"), deny_extensions=[])

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, url: str | None = None, **kwargs: Any) -> Self:
        """Create the spider. ``url`` is the start URL (default: the bundled site). Raises ValueError if it is no HTTP(S) URL."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.wants_bundled_site = url is None
        if url is None:
            url = f"http://127.0.0.1:{crawler.settings.getint('EXAMPLE_SITE_PORT')}/"
        else:
            # Be polite to real servers: one request at a time, with a delay.
            crawler.settings.set("CONCURRENT_REQUESTS_PER_DOMAIN", 1, priority="spider")
            crawler.settings.set("DOWNLOAD_DELAY", 0.5, priority="spider")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"-a url={url} is not the URL of a site. Write it like https://www.example.org/")
        spider.start_urls = [url]
        spider.allowed_domains = [parts.hostname.removeprefix("www.")]
        return spider

    def parse(self, response: Response, **kwargs: Any) -> Iterator[Page | Request]:
        """Yield the page, then a request for each link and picture on it."""
        verdict = response.meta.get("dedupe")
        kind = verdict.kind if verdict else None
        if not isinstance(response, HtmlResponse):
            yield Page(response.url, title=None, verdict=kind)
            return
        yield Page(response.url, title=response.css("title::text").get(), verdict=kind)
        for link in self.links.extract_links(response):
            yield response.follow(link)
