"""A probe of each layer: something is written, found and deleted again, in the real stores and folders.

The probe uses names that no crawl looks for, so it does not affect running crawls.
"""

from __future__ import annotations

import secrets
import tempfile
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.urls.filters import Fingerprinter
from scrapy_dedupe.errors import StoreError, naming
from scrapy_dedupe.files.folders import nearest_there
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.pipelines import check_folders, checked_storage
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.base import Counts, Original, SeenText
from scrapy_dedupe.stores.redis import open_client
from scrapy_dedupe.stores.redis_cluster_content import open_content
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.folder import FilterFolder
from scrapy_dedupe.urls.rule_file import read_rules
from scrapy_dedupe.urls.shared import SharedBloomFilter

from .context import Finding, findings_of, note, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.settings.groups import PassageSettings, Settings
    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.base import ContentStore

    from .context import DoctorContext

_URL: Final = "https://scrapy-dedupe.invalid/probe/"
_PREFIX: Final = ".dedupe-doctor-"


def check(context: DoctorContext) -> Iterator[Finding]:
    settings, layers, urls = context.crawl, context.layers, context.store_urls
    if context.settings is None and not context.is_store_given:
        yield note("The layers were not tested, since settings are wrong.")
        return
    if settings is not None and "urls" in layers:
        yield from findings_of("URL filter", partial(_url_filter, context, settings))
    # The stores of the layers, or all if only stores are checked.
    if "content" in urls:
        yield from findings_of("content layer", partial(_content, urls["content"], context.timeout_s))
    if "index" in urls:
        yield from findings_of("crawl index", partial(_index, urls["index"], context.timeout_s))
    if settings is not None and "archive" in layers:
        yield from findings_of("archive", partial(_archive, settings))
    if settings is not None and "passages" in layers:
        yield from findings_of("passage index", partial(_passages, settings.passages))


def _url_filter(context: DoctorContext, settings: Settings) -> Iterator[Finding]:
    if settings.urls.rules is not None:
        with naming("DEDUPE_URL_RULES"):
            rules = read_rules(settings.urls.rules)
        yield ok(f"URL rules: {counted(len(rules), 'rule')} in {settings.urls.rules}.")
    fingerprint, url = secrets.token_bytes(20), settings.urls.store_url
    if url is not None:
        location = parse_store_url(url)
        with closing(open_client(location, context.timeout_s)) as client:
            name = f"doctor-{secrets.token_hex(8)}"
            shared = SharedBloomFilter(client, name, 1_000, 1e-6, url=location.shown, fingerprinter="doctor")
            shared.attach()
            try:
                _require(
                    shared.add(fingerprint) and not shared.add(fingerprint), "a fingerprint", location.shown
                )
            finally:
                shared.detach(delete=True)
        yield ok(f"URL filter: a fingerprint was added, found and deleted in {location.shown}.")
        return
    local = GrowingBloomFilter(settings.urls.capacity, settings.urls.error_rate)
    _require(local.add(fingerprint) and fingerprint in local, "a fingerprint", "memory")
    if settings.jobdir is not None:
        # Nothing is locked, so a crawl can start at the same time.
        FilterFolder(settings.jobdir, Fingerprinter(context.given, None).path).check_unlocked()
    yield ok(
        f"URL filter: a fingerprint was added and found; {number(settings.urls.capacity)} URLs take"
        f" {size(local.size_bytes)} of memory."
    )


def _content(url: str, timeout_s: float) -> Iterator[Finding]:
    with _opened_content(url, timeout_s) as (content, where):
        digest, now = secrets.token_bytes(16), round(datetime.now(UTC).timestamp() * 1000)
        seen, other = (SeenText(digest, f"{_URL}{secrets.token_hex(8)}", "doctor", now) for _ in range(2))
        try:
            is_new, found = content.claim([seen]) == [None], content.find([other])
        finally:
            # Settle the text as that of a failed page, which removes it. Deleting it by URL would scan all texts.
            content.settle([], [seen])
        _require(is_new and found[0] is not None and content.find([other]) == [None], "a text", where)
    yield ok(f"Content layer: a text was written, found and deleted in {where}.")


def _index(url: str, timeout_s: float) -> Iterator[Finding]:
    crawl, digest = f"doctor-{secrets.token_hex(8)}", sha256(secrets.token_bytes(16)).hexdigest()
    with _opened(url, timeout_s) as (store, where):
        if not store.has_index:
            return  # the section "stores" reports this
        index = store.index
        # Use the payload mode of the index. The section "stores" compares it with the settings.
        index.start(
            crawl, next((info.payload for info in index.crawls() if info.state != "canceled"), "stored")
        )
        try:
            index.add(crawl, [Original(digest, crawl, "20260101000000", _URL, 1)], Counts(1, 0, 0, 1))
            (found,) = index.find(crawl, [digest])
        finally:
            index.cancel(crawl)
            index.forget_canceled(crawl)
    _require(found is not None and found.digest == digest, "a record", where)
    yield ok(f"Crawl index: a crawl was started, its record was found, and it was canceled in {where}.")


def _require(is_right: bool, what: str, where: str) -> None:
    if not is_right:
        raise StoreError(
            f"It did not find {what} as written in {where}. Report this with the versions above."
        )


@contextmanager
def _opened_content(url: str, timeout_s: float) -> Iterator[tuple[ContentStore, str]]:
    """Open the texts under a prefix of their own in Redis, or those of a new SQLite file."""
    location = parse_store_url(url)
    if not location.is_redis:
        with _opened(url, timeout_s) as (store, where):
            yield store.content, where
        return
    prefix = f"dedupe:{{doctor-{secrets.token_hex(8)}}}:"
    with closing(open_client(location, timeout_s)) as client:
        content = open_content(client, location.shown, prefix)
        try:
            yield content, location.shown
        finally:
            content.forget_crawls()


@contextmanager
def _opened(url: str, timeout_s: float) -> Iterator[tuple[Store, str]]:
    """Open the server at the URL, or, for SQLite, a new file in the folder of the real one.

    The real file is not used, since the name of a crawl stays in it after the crawl was forgotten.
    """
    location = parse_store_url(url)
    if location.path is None:
        with closing(open_store(url, timeout_s=timeout_s, create=False)) as store:
            yield store, location.shown
        return
    there = nearest_there(location.path.parent, follow_links=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=there) as folder:
        url = f"sqlite:///{Path(folder).absolute() / 'probe.sqlite'}"
        with closing(open_store(url, timeout_s=timeout_s)) as store:
            yield store, f"a temporary store next to {location.shown}"


def _archive(settings: Settings) -> Iterator[Finding]:
    check_folders(settings, is_trial=True)
    there = nearest_there(settings.warc.folder, follow_links=True)
    yield ok(f"Archive: a file was written, read back and deleted in {there}.")
    if (storage := checked_storage(settings)) is not None:
        yield ok(f"Storage: a file was sent, read back and deleted in {storage.shown}.")


def _passages(passages: PassageSettings) -> Iterator[Finding]:
    if not passages.root.exists():
        yield note(f"There is no passage index {passages.root} yet: the first crawl creates it.")
        return
    with PassageIndex(
        passages.root, tokeniser=passages.tokeniser, store_text=passages.store_text, create=False
    ) as index:
        yield ok(f"Passage index: {passages.root} was opened and has {counted(len(index), 'document')}.")
