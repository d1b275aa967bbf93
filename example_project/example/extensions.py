"""The extension that serves the bundled site while the crawl runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from example.site.server import SiteServer

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class BundledSite:
    """Serves the bundled site from the opening of the spider until the engine stops, unless the spider crawls another site."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.server: SiteServer | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension. Raises NotConfigured if the spider crawls another site."""
        if not getattr(crawler.spider, "wants_bundled_site", False):
            raise NotConfigured("the spider crawls another site")
        extension = cls(crawler.settings.getint("EXAMPLE_SITE_PORT"))
        crawler.signals.connect(extension.spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(extension.engine_stopped, signal=signals.engine_stopped)
        return extension

    def spider_opened(self, spider: Spider) -> None:
        """Start the server. If the port is unavailable, log an error and remove the start URLs of the spider."""
        try:
            self.server = SiteServer(self.port)
        except OSError as error:
            logger.error(
                "The bundled site cannot be served on 127.0.0.1:%d (%s). End the program that uses this port, or "
                "choose another one: scrapy crawl %s -s EXAMPLE_SITE_PORT=%d",
                self.port,
                error.strerror,
                spider.name,
                self.port + 1,
            )
            # Another server uses this port; do not crawl it.
            spider.start_urls = []
            return
        self.server.start()

    def engine_stopped(self) -> None:
        """Free the port."""
        if self.server is not None:
            self.server.stop()
            self.server = None
