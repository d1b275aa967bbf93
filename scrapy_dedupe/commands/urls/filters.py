"""Selects and opens the URL filter of a command: the filter in a job's folder, or one in Redis."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from scrapy import Request
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.stores import crawler_of, loading_settings
from scrapy_dedupe.errors import SettingError, StoreError, StoreRefused, StoreUnavailable, UsageError
from scrapy_dedupe.settings.specs import read_settings
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.stores.redis import open_client
from scrapy_dedupe.urls.folder import AddedFingerprints, LastStop
from scrapy_dedupe.urls.journal import MAX_FINGERPRINT_BYTES
from scrapy_dedupe.urls.shared import SharedBloomFilter
from scrapy_dedupe.urls.stored_filter import State, StoredFilter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from scrapy.settings import BaseSettings

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.stores.location import StoreLocation
    from scrapy_dedupe.urls.bloom import Figures

_PART = 10_000


class LocalFilter:
    """The filter in a job's folder."""

    def __init__(self, stored: StoredFilter) -> None:
        self._stored = stored
        # Whether the job had no filter before it was opened.
        self.is_new = stored.last_stop is LastStop.NONE
        # The maximum share of new fingerprints that are reported as seen.
        self.error_bound = 0.0 if stored.is_exact else stored.error_rate
        self.forget = stored.forget
        self.add_many = stored.add_many

    def states(self, fingerprints: Sequence[bytes]) -> list[State]:
        return [self._stored.state(fingerprint) for fingerprint in fingerprints]

    def stats(self, on_count: Callable[[int], None]) -> dict[str, Any]:
        """The figures. ``on_count`` is called while the list of fingerprints is counted."""
        stored = self._stored
        return _stats(
            stored,
            stored.filter.figures(),
            stop=stored.last_stop.value,
            forgotten=len(stored.forgotten),
            listed=stored.listed(on_count),
            exact=len(stored.filter) if stored.has_stored_set else None,
        )


class SharedFilter:
    """A filter in Redis, which crawls may be using. Forgotten fingerprints are reported as new."""

    is_new = False

    def __init__(self, shared: SharedBloomFilter) -> None:
        self._shared = shared
        self.error_bound = shared.error_rate

    def states(self, fingerprints: Sequence[bytes]) -> list[State]:
        return ["seen" if is_in else "new" for is_in in self._shared.contains_many(fingerprints)]

    def forget(self, fingerprints: Iterable[bytes]) -> int:
        known = [item for item in dict.fromkeys(fingerprints) if item in self._shared]
        self._shared.forget(known)
        return len(known)

    def add_many(self, fingerprints: Iterable[bytes]) -> AddedFingerprints:
        total = new = 0
        rest = iter(fingerprints)
        while part := list(islice(rest, _PART)):
            new += sum(self._shared.add_many(part))
            total += len(part)
        return AddedFingerprints(new, 0, total - new)

    def stats(self, on_count: Callable[[int], None]) -> dict[str, Any]:
        found = self._shared.describe()
        return _stats(self._shared, found.figures(), forgotten=found.forgotten)


OpenFilter: TypeAlias = LocalFilter | SharedFilter


def _stats(
    source: StoredFilter | SharedBloomFilter,
    figures: Figures,
    *,
    stop: str | None = None,
    forgotten: int,
    listed: int | None = None,
    exact: int | None = None,
) -> dict[str, Any]:
    """The figures of one filter. ``stop`` is "clean" or "cut" (not clean), or None for a filter in Redis.

    ``forgotten`` is the number of fingerprints that may be requested again once, ``listed`` that of the fingerprints
    that can be exported, ``exact`` that of the exact set; the latter two are None if there is no list or no such set.
    """
    return {
        "last_stop": stop,
        "fingerprints": figures.seen,
        "forgotten": forgotten,
        "listed": listed,
        "exact": exact,
        **picked(figures, "capacity layers bytes fill_ratio"),
        "error_rate": source.error_rate,
        **picked(figures, "estimated_error expected_lost"),
        "fingerprinter": source.fingerprinter,
    }


FILTER: Final = (
    Option("--jobdir", "DIR", "the folder of the job with the filter (default: JOBDIR)", type=Path),
    Option("--key", "NAME", "the filter's name in Redis (default: DEDUPE_URL_KEY)"),
    Option("--spider", "NAME", "the spider whose settings are used, and whose name is in DEDUPE_URL_KEY"),
)
"""The options that name a filter."""


class Fingerprinter:
    """The fingerprinter in REQUEST_FINGERPRINTER_CLASS, created as in a crawl, and the settings of that crawl.

    If the project has a spider with the name ``spider``, the settings of the spider are used too.
    """

    def __init__(self, settings: BaseSettings, spider: str | None) -> None:
        with loading_settings():
            self._crawler = crawler = crawler_of(settings, spider)
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


class FilterTarget:
    """The filter named by the command line and the settings; not open yet."""

    def __init__(self, stores: CommandStores, opts: argparse.Namespace) -> None:
        self.fingerprint = Fingerprinter(stores.scrapy_settings, opts.spider)
        self._settings = settings = self.fingerprint.settings
        store, jobdir = stores.given_store, opts.jobdir
        if jobdir is not None and (store is not None or opts.key is not None):
            raise UsageError(
                "--jobdir names a filter on disk, but --store and --key name one in Redis. Give only one of them."
            )
        if store is not None and not store.is_redis:
            raise UsageError(
                f"The store {store.shown} has no URL filter. Name a Redis server, or a job with --jobdir."
            )
        if store is None and jobdir is None and settings.urls.store_url is not None:
            store = parse_store_url(settings.urls.store_url)
        self._store = store
        if store is not None:
            if opts.key is None and opts.spider is None and "%(spider)s" in settings.urls.key:
                raise UsageError(
                    f"The name of the filter in Redis, {settings.urls.key!r} (DEDUPE_URL_KEY), contains the name of a"
                    " spider. Name the spider with --spider, or the filter with --key."
                )
            self._key = settings.urls.key_for(opts.spider or "") if opts.key is None else opts.key
            self.name = f"{self._key} in {store.shown}"
            return
        if opts.key is not None:
            raise UsageError(
                "--key names a filter in Redis, but no server is given. Name the server with --store or "
                "DEDUPE_URL_STORE_URL."
            )
        jobdir = jobdir or settings.jobdir
        if jobdir is None:
            raise UsageError(
                "No URL filter is given. Name a job with --jobdir or the setting JOBDIR, or a Redis server with --store "
                "or DEDUPE_URL_STORE_URL."
            )
        self._folder = StoredFilter(jobdir, self.fingerprint.path, confirm=settings.urls.confirm)
        self.name = str(self._folder.folder)

    @property
    def is_shared(self) -> bool:
        return self._store is not None

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[OpenFilter]:
        """Open the filter. ``create`` is for adding to it: a filter is created if the job has none."""
        if self._store is not None:
            with self._open_shared(self._store, adds=create) as shared:
                yield SharedFilter(shared)
            return
        with self.open_job(create=create) as stored:
            yield LocalFilter(stored)

    def open_job(self, *, create: bool = False) -> AbstractContextManager[StoredFilter]:
        """The filter of a job, as a context manager."""
        urls = self._settings.urls
        return self._folder.between_runs(urls.capacity, urls.error_rate, create=create)

    @contextmanager
    def _open_shared(self, store: StoreLocation, *, adds: bool) -> Iterator[SharedBloomFilter]:
        client = open_client(store, self._settings.store_timeout_s, is_used_by_one_thread=True)
        try:
            shared = SharedBloomFilter.existing(client, self._key, url=store.shown)
            if shared is None:
                raise StoreUnavailable(
                    f"There is no URL filter {self.name}. Crawls create it. Check --key, --spider and --store."
                )
            if shared.fingerprinter != self.fingerprint.path:
                raise StoreRefused(
                    f"The URL filter {self.name} has the fingerprinter {shared.fingerprinter}, but the setting "
                    f"REQUEST_FINGERPRINTER_CLASS is {self.fingerprint.path}. Change the setting, or use --spider to "
                    "name a spider with that fingerprinter."
                )
            # With a queue in Redis the next run keeps the filter even after an unclean stop.
            if adds and not self._settings.urls.queue_persists and shared.was_cut():
                raise StoreError(
                    f"The last run with the URL filter {self.name} did not end cleanly. The next run recreates the "
                    "filter, so an import would be lost now. Import during or after the next run."
                )
            yield shared
        finally:
            client.close()
