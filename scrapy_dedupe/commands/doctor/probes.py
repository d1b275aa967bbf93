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
from scrapy_dedupe.files.folders import nearest_there
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.stores.base import SeenText as SeenPage
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.stores.redis_content import RedisContent
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.folder import FilterFolder
from scrapy_dedupe.urls.shared import SharedBloomFilter
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import response
from scrapy_dedupe.warc.storage import Storage

from .context import Finding, note, ok, problem, run_probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.settings.specs import PassageSettings, Settings, WarcSettings
    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.base import ContentStore

    from .context import DoctorContext

_URL: Final = "https://scrapy-dedupe.invalid/probe/"
_PREFIX: Final = ".dedupe-doctor-"


def check(context: DoctorContext) -> Iterator[Finding]:
    settings, layers = context.settings, context.layers
    if settings is None and not context.is_store_given:
        yield note("The layers were not tested, since settings are wrong.")
        return
    if settings is not None and "urls" in layers and not context.is_store_given:
        yield from run_probe("URL filter", partial(_url_filter, context, settings))
    # The stores of the layers, or all if only stores are checked.
    urls = context.store_urls
    if "content" in urls:
        yield from run_probe("content layer", partial(_content, urls["content"], context.timeout_s))
    if "index" in urls:
        payload = "stored" if settings is None else settings.warc.payload
        yield from run_probe("crawl index", partial(_index, urls["index"], context.timeout_s, payload))
    if settings is None or context.is_store_given:
        return
    if "archive" in layers:
        yield from run_probe("archive", partial(_archive, settings.warc))
        if settings.warc.upload_url is not None:
            yield from run_probe("storage", partial(_storage, settings.warc.upload_url))
    if "passages" in layers:
        yield from run_probe("passage index", partial(_passages, settings.passages))


def _broken(sentence: str) -> Finding:
    return problem(sentence, "Report this with the versions above.")


def _url_filter(context: DoctorContext, settings: Settings) -> Finding:
    if settings.urls.store_url is not None:
        return _shared_filter(settings.urls.store_url, context.timeout_s)
    fingerprint = secrets.token_bytes(20)
    local = GrowingBloomFilter(settings.urls.capacity, settings.urls.error_rate)
    if not local.add(fingerprint) or fingerprint not in local:
        return _broken("The URL filter does not find an added fingerprint.")
    if settings.jobdir is not None:
        # Nothing is locked, so a crawl can start at the same time.
        FilterFolder(settings.jobdir, Fingerprinter(context.given, None).path).check_unlocked()
    return ok(
        f"URL filter: a fingerprint was added and found; {number(settings.urls.capacity)} URLs take"
        f" {size(local.size_bytes)} of memory."
    )


def _shared_filter(url: str, timeout_s: float) -> Finding:
    location = parse_store_url(url)
    with redis_faults(location.shown), closing(connect(location, timeout_s)) as client:
        shared = SharedBloomFilter(
            client, f"doctor-{secrets.token_hex(8)}", 1_000, 1e-6, url=location.shown, fingerprinter="doctor"
        )
        shared.attach()
        try:
            fingerprint = secrets.token_bytes(20)
            works = shared.add(fingerprint) and not shared.add(fingerprint)
        finally:
            shared.detach(delete=True)
    if not works:
        return _broken("The URL filter in Redis does not find an added fingerprint.")
    return ok(f"URL filter: a fingerprint was added, found and deleted in {location.shown}.")


def _content(url: str, timeout_s: float) -> Finding:
    location = parse_store_url(url)
    if not location.is_redis:
        with _opened(url, timeout_s) as (store, where):
            return _content_in(store.content, where)
    prefix = f"dedupe:{{doctor-{secrets.token_hex(8)}}}:"
    with redis_faults(location.shown), closing(connect(location, timeout_s)) as client:
        try:
            return _content_in(RedisContent(client, location.shown, prefix), location.shown)
        finally:
            client.delete(f"{prefix}n", f"{prefix}i")


def _content_in(content: ContentStore, where: str) -> Finding:
    digest, now = secrets.token_bytes(16), round(datetime.now(UTC).timestamp() * 1000)
    seen, other = (SeenPage(digest, f"{_URL}{secrets.token_hex(8)}", "doctor", now) for _ in range(2))
    try:
        first = content.claim([seen])
        found = content.find([other])
    finally:
        # Settle the text as that of a failed page, which removes it. Deleting it by URL would scan all texts.
        content.settle([], [seen])
    gone = content.find([other])
    if first != [None] or found[0] is None or gone != [None]:
        return _broken(f"A text in {where} was not found as written.")
    return ok(f"Content layer: a text was written, found and deleted in {where}.")


def _index(url: str, timeout_s: float, payload: str) -> Finding:
    crawl, digest = f"doctor-{secrets.token_hex(8)}", sha256(secrets.token_bytes(16)).hexdigest()
    with _opened(url, timeout_s) as (store, where):
        index = store.index
        # Use the payload mode of the index. The section "stores" compares it with the settings.
        modes = {info.payload for info in index.crawls() if info.state != "canceled"}
        index.start(crawl, payload if not modes or payload in modes else next(iter(modes)))
        try:
            index.add(crawl, [Original(digest, crawl, "20260101000000", _URL, 1)], Counts(1, 0, 0, 1))
            found = index.find(crawl, [digest])
        finally:
            index.cancel(crawl)
            index.forget_canceled(crawl)
    if found[0] is None or found[0].digest != digest:
        return _broken(f"The crawl index in {where} does not find an added record.")
    return ok(f"Crawl index: a crawl was started, its record was found, and it was canceled in {where}.")


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


def _archive(warc: WarcSettings) -> Finding:
    there = nearest_there(warc.folder, follow_links=True)
    body = b"<p>A probe of the archive." * 40
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=there) as folder:
        writer = WarcWriter(
            folder,
            "doctor",
            gzip=warc.gzip,
            gzip_level=warc.gzip_level,
            info={"software": "scrapy-dedupe doctor"},
            algorithm=warc.digest,
        )
        capture = Capture(
            url=_URL,
            status=200,
            date=datetime.now(UTC),
            method="GET",
            request_headers=(),
            request_body=b"",
            response_headers=((b"Content-Type", b"text/html"),),
            body=body,
        )
        digest = capture.payload_digest(warc.digest)
        place = writer.write([response(capture, digest=digest, warcinfo_id=writer.warcinfo_id)])[0]
        writer.close()
        record = read_record(Path(folder) / place.file, place.offset)
        is_same = record.payload() == body and record.type == "response"
    if not is_same:
        return problem(f"A record in {there} was not read back as written.", "Check the disk for errors.")
    return ok(f"Archive: a record was written, read back and deleted in {there}.")


def _storage(url: str) -> Finding:
    storage = Storage(url)
    storage.check()
    return ok(f"Storage: a file was sent, read back and deleted in {storage.shown}.")


def _passages(passages: PassageSettings) -> Finding:
    if not passages.root.exists():
        return note(f"There is no passage index {passages.root} yet: the first crawl creates it.")
    with PassageIndex(
        passages.root, tokeniser=passages.tokeniser, store_text=passages.store_text, create=False
    ) as index:
        documents = len(index)
    return ok(f"Passage index: {passages.root} was opened and has {counted(documents, 'document')}.")
