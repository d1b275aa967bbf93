"""Stores: whether each answers, how fast, and whether it fits the settings."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapy_dedupe.commands.content.read_only import read_only_judge
from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.sqlite import APPLICATION_ID, SCHEMA_VERSION

from . import redis_server
from .context import Finding, from_error, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores.base import Store
    from scrapy_dedupe.stores.location import StoreLocation

    from .context import DoctorContext

_SLOW_S = 0.05


def check(context: DoctorContext) -> Iterator[Finding]:
    layers_of: dict[str, list[str]] = {}
    for layer, url in context.store_urls.items():
        layers_of.setdefault(url, []).append(layer)
    for url, layers in layers_of.items():
        location = parse_store_url(url)
        if location.is_redis:
            yield from redis_server.check(location, context.timeout_s)
        else:
            assert location.path is not None
            result = file_state(location.path, location.shown)
            if result is not None:
                if context.is_store_given and not location.path.exists():
                    result = warning(result.sentence, "Check that --store names the right file.")
                yield result
                continue
        yield from _look(context, location, layers)


def file_state(path: Path, shown: str) -> Finding | None:
    """Return a finding for an SQLite file that must not be opened now, or None if it can be opened."""
    if not path.exists():
        return note(f"There is no store {shown} yet: the first crawl creates it.")
    try:
        # Opening it as a store would upgrade it to this version's format.
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error:
        return None  # opening the store reports the error
    if application == APPLICATION_ID and 0 < version < SCHEMA_VERSION:
        return note(
            f"The store {shown} has format {version}, of an earlier version. The next crawl or command upgrades it to format"
            f" {SCHEMA_VERSION}, which the earlier version cannot read.",
            "Make a copy of the file if you may want to downgrade.",
        )
    if application == version == 0 and path.stat().st_size == 0:
        return note(f"The store {shown} is an empty file: the first crawl creates the store.")
    return None


def _look(context: DoctorContext, location: StoreLocation, layers: list[str]) -> Iterator[Finding]:
    try:
        store = open_store(location.url, timeout_s=context.timeout_s, create=False)
    except DedupeError as error:
        yield from_error(error, _extra_remedy(context, location, error))
        return
    try:
        start = time.perf_counter()
        store.probe()
        took = time.perf_counter() - start
        sentence = f"The store {location.shown} writes, reads and deletes a value in {1000 * took:.1f} ms."
        yield (
            ok(sentence)
            if took < _SLOW_S
            else warning(
                sentence, "Use a nearer or faster one: each page of a crawl waits for it about as long."
            )
        )
        if "index" in layers:
            yield from _index(context, store)
            if location.is_redis:
                yield from _files_elsewhere(context)
        if "content" in layers:
            yield from _content(context, store, location)
    except DedupeError as error:
        yield from_error(error, _extra_remedy(context, location, error))
    finally:
        store.close()


def _index(context: DoctorContext, store: Store) -> Iterator[Finding]:
    crawls = store.index.crawls()
    modes = {info.payload for info in crawls if info.state != "canceled"}
    yield ok(
        f"The crawl index holds {counted(len(crawls), 'crawl')}"
        + (f", with digests of {' and '.join(sorted(modes))} payloads." if modes else ".")
    )
    settings = context.settings
    if settings is not None and modes and settings.warc.payload not in modes:
        mode = next(iter(modes))
        make = note if context.is_store_given else problem
        yield make(
            f'The index has digests of {mode} payloads, the setting DEDUPE_PAYLOAD is "{settings.warc.payload}".',
            f'Set DEDUPE_PAYLOAD = "{mode}", or name another index in DEDUPE_INDEX_URL.',
        )
    crawl_id = None if settings is None else settings.warc.crawl_id
    if any(info.id == crawl_id and info.state == "committed" for info in crawls):
        yield problem(
            f"The crawl {crawl_id}, which DEDUPE_CRAWL_ID names, is committed, so no other crawl with this id can start.",
            "Use another id, or none.",
        )
    if store.index.unreadable:
        yield warning(
            f"{counted(store.index.unreadable, 'value')} of the index cannot be read, and skipped.",
            "`scrapy dedupe check --repair` rebuilds the entries from the files.",
        )


def _files_elsewhere(context: DoctorContext) -> Iterator[Finding]:
    settings = context.settings
    if (
        settings is None
        or context.is_store_given
        or "archive" not in context.layers
        or not settings.warc.check_files
    ):
        return
    yield note(
        "The crawl index is on a server, and DEDUPE_WARC_CHECK_FILES is on: payloads whose file is not visible to this"
        " machine are stored again.",
        "If machines share the index but not their WARC folder, set DEDUPE_WARC_CHECK_FILES = False.",
    )


def _content(context: DoctorContext, store: Store, location: StoreLocation) -> Iterator[Finding]:
    if context.settings is not None and store.content.parameters():
        try:
            read_only_judge(store.content, context.settings.content, location.shown)
        except DedupeError as error:
            yield note(str(error)) if context.is_store_given else from_error(error)
            return
    if location.is_redis:
        # Not counted: the server would have to scan all of its keys.
        yield ok("The content layer compares texts with the parameters of the settings.")
        return
    texts = counted(store.content.statistics()["texts"], "text")
    yield ok(f"The content layer has {texts}, and compares them with the parameters of the settings.")


def _extra_remedy(context: DoctorContext, location: StoreLocation, error: DedupeError) -> str:
    """Return what else to do, in addition to the advice in the error."""
    if location.is_redis and not context.is_store_given and "does not answer" in str(error):
        return "To crawl without a server, remove the setting that names it: a local file is used then."
    return ""
