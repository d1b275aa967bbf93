"""The input and output of the doctor: the settings that a crawl would have, their stores, and the findings."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from scrapy.utils.conf import closest_scrapy_cfg

from scrapy_dedupe.commands.stores import CommandStores, crawler_of, loading_settings, spider_loader
from scrapy_dedupe.errors import DedupeError, UsageError
from scrapy_dedupe.files.folders import folder_fault
from scrapy_dedupe.settings.placement import named_components
from scrapy_dedupe.settings.specs import faults_of, read_settings
from scrapy_dedupe.settings.values import fill_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapy_dedupe.settings.specs import Settings

    Check = Callable[[], Iterable["Finding"]]

Level = Literal["problem", "warning", "note", "ok"]

LEVELS: Final[tuple[Level, ...]] = ("problem", "warning", "note", "ok")
_LAYERS: Final = {
    "urls": "scrapy_dedupe.dupefilters.BloomDupeFilter",
    "content": "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware",
    "archive": "scrapy_dedupe.pipelines.WarcPipeline",
    "passages": "scrapy_dedupe.extensions.PassageExtension",
}


class DoctorContext:
    """The settings of one spider, or of the project.

    ``given`` are the settings as written, ``scrapy_settings`` the settings of a crawl, after changes by add-ons.
    ``faults`` has one sentence for each wrong setting; if there are any, ``settings`` is None. ``addon_error`` is the
    exception of an add-on. ``--store`` replaces only the stores, all other settings come from the project.
    """

    def __init__(self, place: CommandStores, spider: str | None) -> None:
        self.place = place
        self.spider = spider
        crawler = _crawler(place.scrapy_settings, spider)
        self.given = crawler.settings.copy()
        self.faults = faults_of(self.given)
        self.settings: Settings | None = None
        self.addon_error: Exception | None = None
        self.scrapy_settings: BaseSettings = crawler.settings
        if self.faults:
            # The add-on would refuse them and log an error.
            return
        self.settings = read_settings(self.given)
        try:
            crawler.addons.load_settings(crawler.settings)
        except Exception as error:  # noqa: BLE001 - any add-on of the project
            self.addon_error = error

    @cached_property
    def components(self) -> set[str]:
        """The import paths of the classes that a crawl would have."""
        return {path for _, path in named_components(self.scrapy_settings)}

    @cached_property
    def layers(self) -> set[str]:
        """The layers that a crawl would have: ``urls``, ``content``, ``archive``, ``passages``."""
        return {layer for layer, path in _LAYERS.items() if path in self.components}

    @property
    def is_store_given(self) -> bool:
        """Whether ``--store`` was given."""
        return self.place.given_store is not None

    @property
    def crawl(self) -> Settings | None:
        """The settings of a crawl; None if they are wrong, set up no layer, or only the store of ``--store`` is checked."""
        return self.settings if self.layers and not self.is_store_given else None

    @property
    def is_queue_shared(self) -> bool:
        """Whether the request queue is in Redis, with the scheduler of scrapy-redis."""
        return "scrapy_redis" in str(self.scrapy_settings.get("SCHEDULER"))

    @property
    def timeout_s(self) -> float:
        return 5.0 if self.settings is None else self.settings.store_timeout_s

    def named_path(self, path: str) -> Path:
        """Fill in the placeholders of a path as :meth:`~scrapy_dedupe.live.session.Session.named_path` does for a new crawl."""
        return fill_in(path, self.spider or "any", "now")

    @property
    def store_urls(self) -> dict[str, str]:
        """The store URL of each layer that uses a store."""
        given = self.place.given_store
        if given is not None:
            return {"content": given.url, "index": given.url}
        if self.settings is None:
            return {}
        urls, layers = {}, self.layers
        # If no component is set up yet, all stores are checked.
        if "content" in layers or not layers:
            urls["content"] = self.settings.content.store_url
        if "archive" in layers or not layers:
            urls["index"] = self.settings.warc.index_url
        if "urls" in layers and self.settings.urls.store_url is not None:
            urls["urls"] = self.settings.urls.store_url
        return urls


def loading_spiders() -> AbstractContextManager[None]:
    """Report exceptions of spider modules. Loading one spider imports all modules of SPIDER_MODULES."""
    return loading_settings("A module of spiders")


@contextmanager
def without_new_data_folder() -> Iterator[None]:
    """Remove the project's data folder afterwards if it did not exist: Scrapy creates it when asked for its path."""
    config = closest_scrapy_cfg()
    folder = Path(config).parent / ".scrapy" if config else None
    # Path.exists raises PermissionError if the project folder is not accessible.
    was_there = folder is None or os.path.exists(folder)  # noqa: PTH110
    try:
        yield
    finally:
        if folder is not None and not was_there:
            with suppress(OSError):
                folder.rmdir()  # the folder is kept if it is not empty


def _crawler(settings: BaseSettings, spider: str | None) -> Crawler:
    if spider is not None:
        with loading_spiders():
            names = spider_loader(settings).list()
        if spider not in names:
            nearest = get_close_matches(spider, names, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ". `scrapy list` lists its spiders."
            raise UsageError(f"The project has no spider {spider!r}{hint}")
    with loading_settings():
        return crawler_of(settings, spider)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. ``remedy`` is empty if there is nothing to do. ``is_disk_full``: a full disk is the cause."""

    level: Level
    sentence: str
    remedy: str = ""
    is_disk_full: bool = False


problem, warning, note, ok = (partial(Finding, level) for level in LEVELS)


def from_error(error: Exception, remedy: str = "", sentence: str = "") -> Finding:
    """Return a problem with the sentence of an error, which already names the remedy, or with another sentence."""
    return Finding("problem", sentence or str(error), remedy, _is_disk_full(error))


def findings_of(what: str, check: Check) -> Iterator[Finding]:
    """Yield the findings of a check. Its exception becomes a problem of *what*; the other checks must still run."""
    try:
        yield from check()
    except DedupeError as error:
        yield from_error(error)
    except OSError as error:
        # folder_fault() needs a path to find the cause.
        reason = error.strerror or str(error)
        remedy = "Free some space or inodes, or check the permissions of the folder."
        if error.filename is not None:
            reason, remedy = folder_fault(Path(error.filename).parent, error)
        yield from_error(error, remedy, f"The {what} cannot be tested: {reason}.")
    except Exception as error:  # noqa: BLE001
        yield problem(
            f"The {what} cannot be tested completely: unexpected {type(error).__name__}: {error}.",
            "This is a bug of scrapy-dedupe; report it with the versions above.",
        )


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk has caused the error or one of its causes. SQLite may report that as an I/O error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, sqlite3.Error) and any(
            words in str(error).lower() for words in ("disk is full", "disk i/o error")
        ):
            return True
        error = error.__cause__
    return False
