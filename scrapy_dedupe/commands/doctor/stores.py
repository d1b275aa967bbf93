"""Stores: whether each answers, how fast, and whether it fits the settings."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.sqlite import APPLICATION_ID, SCHEMA_VERSION

from . import redis_server
from .finding import Said, note, ok, problem, told, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from scrapy_dedupe.stores.base import ContentStore, Store
    from scrapy_dedupe.stores.location import StoreLocation

    from .context import DoctorContext

_SLOW_S = 0.05


def check(patient: DoctorContext) -> Iterator[Said]:
    layers_of: dict[str, list[str]] = {}
    for layer, url in patient.store_urls.items():
        layers_of.setdefault(url, []).append(layer)
    for url, layers in layers_of.items():
        location = parse_store_url(url)
        if location.is_redis:
            yield from redis_server.check(location, patient.timeout_s)
        else:
            assert location.path is not None
            said = file_state(location.path, location.shown)
            if said is not None:
                if patient.is_store_given and not location.path.exists():
                    said = warning(said.sentence, "See whether --store names the right file.")
                yield said
                continue
        yield from _look(patient, location, layers)


def file_state(path: Path, shown: str) -> Said | None:
    """What is said of an SQLite file that is better not opened now; None for one that may be."""
    if not path.exists():
        return note(f"There is no store {shown} yet: the first crawl makes it.")
    try:
        # In the usual way it would be brought to this version's format.
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error:
        return None  # what is wrong with it is told by the one who opens it
    if application == APPLICATION_ID and 0 < version < SCHEMA_VERSION:
        return note(
            f"The store {shown} has format {version}, of an earlier version. The next crawl or command brings it to format"
            f" {SCHEMA_VERSION}, which the earlier version cannot read.",
            "Keep a copy of the file if you may want to go back.",
        )
    if application == version == 0 and path.stat().st_size == 0:
        return note(f"The store {shown} is an empty file: the first crawl makes the store.")
    return None


def _look(patient: DoctorContext, location: StoreLocation, layers: list[str]) -> Iterator[Said]:
    try:
        store = open_store(location.url, timeout_s=patient.timeout_s, create=False)
    except DedupeError as error:
        yield told(error, _to_do(patient, location, error))
        return
    try:
        start = time.perf_counter()
        store.probe()
        took = time.perf_counter() - start
        sentence = (
            f"The store {location.shown} takes a value, gives it back and deletes it in {1000 * took:.1f} ms."
        )
        yield (
            ok(sentence)
            if took < _SLOW_S
            else warning(sentence, "Move it nearer: each page of a crawl waits for it about as long.")
        )
        if "index" in layers:
            yield from _index(patient, store)
            if location.is_redis:
                yield from _files_elsewhere(patient)
        if "content" in layers:
            yield from _content(patient, store, location)
    except DedupeError as error:
        yield told(error, _to_do(patient, location, error))
    finally:
        store.close()


def _index(patient: DoctorContext, store: Store) -> Iterator[Said]:
    crawls = store.index.crawls()
    modes = {info.payload for info in crawls if info.state != "canceled"}
    yield ok(
        f"The crawl index holds {counted(len(crawls), 'crawl')}"
        + (f", with digests of {' and '.join(sorted(modes))} payloads." if modes else ".")
    )
    settings = patient.settings
    if settings is not None and modes and settings.warc.payload not in modes:
        mode = next(iter(modes))
        make = note if patient.is_store_given else problem
        yield make(
            f'The index has digests of {mode} payloads, the setting DEDUPE_PAYLOAD is "{settings.warc.payload}".',
            f'Set DEDUPE_PAYLOAD = "{mode}", or name another index in DEDUPE_INDEX_URL.',
        )
    crawl_id = None if settings is None else settings.warc.crawl_id
    if any(info.id == crawl_id and info.state == "committed" for info in crawls):
        yield problem(
            f"The crawl {crawl_id}, which DEDUPE_CRAWL_ID names, is committed, so no other one of this id can start.",
            "Use another id, or none.",
        )
    if store.index.unreadable:
        yield warning(
            f"{counted(store.index.unreadable, 'value')} of the index cannot be read, and passed over.",
            "`scrapy dedupe check --repair` enters anew what the files have.",
        )


def _files_elsewhere(patient: DoctorContext) -> Iterator[Said]:
    settings = patient.settings
    if (
        settings is None
        or patient.is_store_given
        or "archive" not in patient.layers
        or not settings.warc.check_files
    ):
        return
    yield note(
        "The crawl index is on a server, and DEDUPE_WARC_CHECK_FILES is on: what was recorded in a file that this machine"
        " does not see is stored again.",
        "If machines share the index and not the folder of their WARC files, set DEDUPE_WARC_CHECK_FILES = False.",
    )


def _content(patient: DoctorContext, store: Store, location: StoreLocation) -> Iterator[Said]:
    stored = store.content.parameters()
    if patient.settings is not None and stored:
        from scrapy_dedupe.content import Judge
        from scrapy_dedupe.downloadermiddlewares import judge_options

        try:
            Judge(_Compared(store.content, stored, store.url), judge_options(patient.settings.content))  # type: ignore[arg-type]
        except DedupeError as error:
            yield note(str(error)) if patient.is_store_given else told(error)
            return
    if location.is_redis:
        # To count them, a server would have to go through all of its keys.
        yield ok("The content layer compares texts as the settings say.")
        return
    texts = counted(store.content.statistics()["texts"], "text")
    yield ok(f"The content layer remembers {texts}, and compares them as the settings say.")


class _Compared:
    """A store of texts whose parameters are compared with those that are wanted, and not noted."""

    def __init__(self, content: ContentStore, stored: Mapping[str, str], url: str) -> None:
        self._content = content
        self._stored = dict(stored)
        self._url = url

    def parameters(self) -> dict[str, str]:
        return self._stored

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        from scrapy_dedupe.stores.content_values import refuse_other_parameters

        known = {name: value for name, value in parameters.items() if name in self._stored}
        refuse_other_parameters(self._url, self._stored, known)

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)


def _to_do(patient: DoctorContext, location: StoreLocation, error: DedupeError) -> str:
    """What to do besides what the sentence itself says."""
    if location.is_redis and not patient.is_store_given and "does not answer" in str(error):
        return "To crawl without a server, leave the setting out that names it: a local file is used."
    return ""
