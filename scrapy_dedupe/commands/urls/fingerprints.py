"""Computes fingerprints of URLs in the same way as the crawls of a project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scrapy import Request, Spider
from scrapy.crawler import Crawler, CrawlerRunner
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_dedupe.commands.stores import loading_settings
from scrapy_dedupe.errors import SettingError, UsageError
from scrapy_dedupe.settings.specs import read_settings
from scrapy_dedupe.urls.journal import MAX_FINGERPRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy.settings import BaseSettings


class Fingerprinter:
    """The fingerprinter in REQUEST_FINGERPRINTER_CLASS, created as in a crawl, and the settings of that crawl.

    If the project has a spider with the name ``spider``, the settings of the spider are used too.
    """

    def __init__(self, settings: BaseSettings, spider: str | None) -> None:
        with loading_settings():
            self._crawler = crawler = _crawler(settings, spider)
            self.settings = read_settings(crawler.settings)
            # Add-ons may set the class.
            crawler.addons.load_settings(crawler.settings)
            crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
            cls = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
            self._fingerprinter = crawler.request_fingerprinter = build_from_crawler(cls, crawler)

    @property
    def path(self) -> str:
        """Import path of the class."""
        cls = type(self._fingerprinter)
        return f"{cls.__module__}.{cls.__qualname__}"

    def __call__(self, url: str) -> bytes:
        """The fingerprint of a plain request for the URL.

        Raises :class:`~scrapy_dedupe.errors.UsageError` if ``url`` is not a URL, and
        :class:`~scrapy_dedupe.errors.SettingError` if the class does not return a valid fingerprint.
        """
        try:
            request = Request(url)
        except ValueError as error:
            raise UsageError(f"{url!r} is not a URL that can be requested: {error}.") from error
        try:
            fingerprint = self._fingerprinter.fingerprint(request)
        except Exception as error:
            raise SettingError(
                f"{self.path} failed to make a fingerprint for {url}: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(fingerprint, bytes) or not 0 < len(fingerprint) <= MAX_FINGERPRINT_BYTES:
            raise SettingError(
                f"{self.path} returned {repr(fingerprint)[:80]} for {url}; a fingerprint is 1 to "
                f"{MAX_FINGERPRINT_BYTES} bytes."
            )
        return fingerprint


def given_urls(words: Iterable[str]) -> Iterator[str]:
    """The URLs on the command line; ``-`` reads URLs from standard input, one per line."""
    for word in words:
        if word != "-":
            yield word
            continue
        for line in sys.stdin:
            if line.strip():
                yield line.strip()


def _crawler(settings: BaseSettings, spider: str | None) -> Crawler:
    assert isinstance(settings, Settings)
    if spider is not None:
        runner = CrawlerRunner(settings)
        if spider in runner.spider_loader.list():
            return runner.create_crawler(spider)
    return Crawler(type("AnySpider", (Spider,), {"name": spider or "any"}), settings)
