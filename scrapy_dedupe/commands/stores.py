"""The stores that the command line or the settings name."""

from __future__ import annotations

import sysconfig
import traceback
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import scrapy_dedupe
from scrapy_dedupe.crawls import CrawlIndex, open_index
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.errors import DedupeError, SettingError
from scrapy_dedupe.stores import open_store, parse_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from scrapy.spiderloader import SpiderLoader

    from scrapy_dedupe.settings.specs import Settings
    from scrapy_dedupe.stores import Store


@contextmanager
def loading_settings(what: str = "The settings of the project") -> Iterator[None]:
    """Turn any exception of the project's own code into a :class:`~scrapy_dedupe.errors.SettingError`."""
    try:
        yield
    except DedupeError:
        raise
    except Exception as error:
        hint = ""
        if "to unpack" in str(error) or "'list' object" in str(error):
            # Scrapy's error for a list where a dict is required.
            hint = ' A setting that lists components must be a dict; write ADDONS = {"scrapy_dedupe.Addon": 500}, for example.'
        raise SettingError(
            f"{what} cannot be loaded ({type(error).__name__}: {error}{_where(error)}).{hint}"
        ) from error


def _where(error: BaseException) -> str:
    """Return ", FILE, line N" of the innermost frame of the project's own code; "" for a SyntaxError, which has its own."""
    if isinstance(error, SyntaxError):
        return ""
    libraries = {*sysconfig.get_paths().values(), str(Path(scrapy_dedupe.__file__).parent)}
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *libraries))
    ]
    return f", {own[-1].filename}, line {own[-1].lineno}" if own else ""


def spider_loader(settings: BaseSettings) -> SpiderLoader:
    """Return the spider loader of the project. A CrawlerRunner would load the add-ons first, which may be faulty."""
    from scrapy.utils.misc import load_object

    loader: SpiderLoader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    return loader


def crawler_of(settings: BaseSettings, spider: str | None) -> Crawler:
    """Return a crawler of the spider with this name or, if the project has none, of a spider without settings."""
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings as ScrapySettings

    assert isinstance(settings, ScrapySettings)
    cls = type("AnySpider", (Spider,), {"name": spider or "any"})
    if spider is not None and spider in (loader := spider_loader(settings)).list():
        cls = loader.load(spider)
    return Crawler(cls, settings)


class CommandStores:
    """The stores of one call: the store that ``--store`` names, or the stores in the settings, which are read once.

    A missing SQLite file is an error; it is not created, except with ``create``.
    """

    def __init__(self, store: str | None, load_settings: Callable[[], BaseSettings]) -> None:
        # The store that --store names, or None.
        self.given_store = None if store is None else parse_store_url(store, "--store")
        self._load_settings = load_settings

    @cached_property
    def scrapy_settings(self) -> BaseSettings:
        """All settings of the project, or Scrapy's defaults outside of a project."""
        with loading_settings():
            return self._load_settings()

    @cached_property
    def settings(self) -> Settings:
        """The settings of this package."""
        from scrapy_dedupe.settings.specs import read_settings

        with loading_settings():
            return read_settings(self.scrapy_settings)

    @property
    def revisit_rules(self) -> RevisitRules:
        """The rules of crawls of this package."""
        warc = self.settings.warc
        return RevisitRules(warc.revisit, warc.min_size, warc.statuses, warc.mime_types)

    @property
    def index_url(self) -> str:
        return self.settings.warc.index_url if self.given_store is None else self.given_store.url

    @property
    def content_url(self) -> str:
        return self.settings.content.store_url if self.given_store is None else self.given_store.url

    @property
    def timeout_s(self) -> float:
        return self.settings.store_timeout_s if self.given_store is None else 5.0

    def open_index(self, *, create: bool = False) -> CrawlIndex:
        """The crawl index; the caller closes it."""
        return open_index(self.index_url, timeout_s=self.timeout_s, create=create)

    def open_content(self, *, create: bool = False) -> Store:
        """The store of the texts; the caller closes it."""
        return open_store(self.content_url, timeout_s=self.timeout_s, create=create)

    @staticmethod
    def shown(url: str) -> str:
        """A store URL without its password."""
        return parse_store_url(url).shown
