"""A probe of each layer: something is written, found and deleted again, in the real stores and folders.

The probe uses names that no crawl looks for, so it does not affect running crawls.
"""

from __future__ import annotations

import secrets
import tempfile
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.crawls.index import CrawlIndex
from scrapy_dedupe.files.folders import nearest_there
from scrapy_dedupe.reports.wording import counted, size
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.stores.base import SeenText as SeenPage
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import response

from .context import Finding, note, ok, problem, run_probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.stores.base import ContentStore, Store

    from .context import DoctorContext

_URL: Final = "https://scrapy-dedupe.invalid/probe/"
_PREFIX: Final = ".dedupe-doctor-"


def check(context: DoctorContext) -> Iterator[Finding]:
    layers = context.layers
    checks_stores_only = context.is_store_given or not layers
    if "urls" in layers and not context.is_store_given:
        yield from run_probe("URL filter", partial(_url_filter, context))
    if "content" in layers or checks_stores_only:
        yield from run_probe("content layer", partial(_content, context))
    if "archive" in layers or checks_stores_only:
        yield from run_probe("crawl index", partial(_index, context))
    if context.is_store_given:
        return
    if "archive" in layers:
        yield from run_probe("archive", partial(_archive, context))
        if context.settings is not None and context.settings.warc.upload_url is not None:
            yield from run_probe("storage", partial(_storage, context))
    if "passages" in layers:
        yield from run_probe("passage index", partial(_passages, context))


def _broken(sentence: str) -> Finding:
    return problem(sentence, "Report this with the versions above.")


def _url_filter(context: DoctorContext) -> Finding:
    from scrapy_dedupe.urls.bloom import GrowingBloomFilter

    settings = context.settings
    assert settings is not None
    fingerprint = secrets.token_bytes(20)
    if settings.urls.store_url is not None:
        return _shared_filter(settings.urls.store_url, context)
    local = GrowingBloomFilter(settings.urls.capacity, settings.urls.error_rate)
    if not local.add(fingerprint) or fingerprint not in local:
        return _broken("The URL filter does not find an added fingerprint.")
    if settings.jobdir is not None:
        _read_job(context, settings.jobdir)
    return ok(
        f"URL filter: a fingerprint was added and found; {settings.urls.capacity:,} URLs take {size(local.size_bytes)} of memory."
    )


def _read_job(context: DoctorContext, jobdir: Path) -> None:
    """Read the files that a run with this JOBDIR would read. Nothing is locked, so a crawl can start at the same time."""
    from scrapy_dedupe.commands.urls.filters import Fingerprinter
    from scrapy_dedupe.urls.folder import FilterFolder
    from scrapy_dedupe.urls.snapshot import FilterSnapshot

    fingerprinter = Fingerprinter(context.given, None).path
    folder = FilterFolder.in_job(jobdir, fingerprinter)
    folder.check_heads()
    with suppress(FileNotFoundError):  # a new job, an interrupted one, or a running one
        FilterSnapshot.read(folder.snapshot, fingerprinter)


def _shared_filter(url: str, context: DoctorContext) -> Finding:
    from scrapy_dedupe.stores.redis import connect
    from scrapy_dedupe.urls.shared import SharedBloomFilter

    location = parse_store_url(url)
    with redis_faults(location.shown):
        client = connect(location, context.timeout_s)
    try:
        shared = SharedBloomFilter(
            client, f"doctor-{secrets.token_hex(8)}", 1_000, 1e-6, url=location.shown, fingerprinter="doctor"
        )
        shared.attach()
        try:
            fingerprint = secrets.token_bytes(20)
            works = shared.add(fingerprint) and not shared.add(fingerprint)
        finally:
            shared.detach(delete=True)
    finally:
        client.close()
    if not works:
        return _broken("The URL filter in Redis does not find an added fingerprint.")
    return ok(f"URL filter: a fingerprint was added, found and deleted in {location.shown}.")


def _content(context: DoctorContext) -> Finding:
    url = context.store_urls.get("content")
    if url is None:
        return note("The content layer was not tested, since its settings are wrong.")
    location = parse_store_url(url)
    if not location.is_redis:
        with _opened(url, context) as (store, where):
            return _content_in(store.content, where)
    from scrapy_dedupe.stores.redis import connect
    from scrapy_dedupe.stores.redis_content import RedisContent

    prefix = f"dedupe:{{doctor-{secrets.token_hex(8)}}}:"
    with redis_faults(location.shown):
        client = connect(location, context.timeout_s)
        try:
            return _content_in(RedisContent(client, location.shown, prefix), location.shown)
        finally:
            client.delete(f"{prefix}n", f"{prefix}i")
            client.close()


def _content_in(content: ContentStore, where: str) -> Finding:
    digest, now = secrets.token_bytes(16), round(datetime.now(UTC).timestamp() * 1000)
    seen, other = (SeenPage(digest, f"{_URL}{secrets.token_hex(8)}", "doctor", now) for _ in range(2))
    try:
        first = content.claim_texts([seen])
        found = content.find_texts([other])
    finally:
        # Settle the text as that of a failed page, which removes it. Deleting it by URL would scan all texts.
        content.settle([], [seen])
    gone = content.find_texts([other])
    if first != [None] or found[0] is None or gone != [None]:
        return _broken(f"A text in {where} was not found as written.")
    return ok(f"Content layer: a text was written, found and deleted in {where}.")


def _index(context: DoctorContext) -> Finding:
    url = context.store_urls.get("index")
    if url is None:
        return note("The crawl index was not tested, since its settings are wrong.")
    crawl, digest = f"doctor-{secrets.token_hex(8)}", sha256(secrets.token_bytes(16)).hexdigest()
    with _opened(url, context) as (store, where):
        index = CrawlIndex(store.index)
        # Use the payload mode of the index. The section "stores" compares it with the settings.
        modes = {info.payload for info in index.crawls() if info.state != "canceled"}
        payload = context.settings.warc.payload if context.settings is not None else "stored"
        index.start(crawl, payload if not modes or payload in modes else next(iter(modes)))
        try:
            original = Original(digest, crawl, "20260101000000", _URL, 1)
            index.add(crawl, [original], Counts(1, 0, 0, 1))
            found = index.find(crawl, [digest])
        finally:
            index.cancel(crawl)
            index.forget_canceled(crawl)
    if found[0] is None or found[0].digest != digest:
        return _broken(f"The crawl index in {where} does not find an added record.")
    return ok(f"Crawl index: a crawl was started, its record was found, and it was canceled in {where}.")


@contextmanager
def _opened(url: str, context: DoctorContext) -> Iterator[tuple[Store, str]]:
    """Open the server at the URL, or, for SQLite, a new file in the folder of the real one.

    The real file is not used, since the name of a crawl stays in it after the crawl was forgotten.
    """
    location = parse_store_url(url)
    path = location.path
    if path is None:
        store = open_store(url, timeout_s=context.timeout_s, create=False)
        try:
            yield store, location.shown
        finally:
            store.close()
        return
    with tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=nearest_there(path.parent, follow_links=True)
    ) as folder:
        store = open_store(
            f"sqlite:///{Path(folder).absolute() / 'probe.sqlite'}", timeout_s=context.timeout_s
        )
        try:
            yield store, f"a temporary store next to {location.shown}"
        finally:
            store.close()


def _archive(context: DoctorContext) -> Finding:
    settings = context.settings
    assert settings is not None
    warc, there = settings.warc, nearest_there(settings.warc.folder, follow_links=True)
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


def _storage(context: DoctorContext) -> Finding:
    from scrapy_dedupe.warc.storage import Storage

    settings = context.settings
    assert settings is not None
    assert settings.warc.upload_url is not None
    storage = Storage(settings.warc.upload_url)
    storage.check()
    return ok(f"Storage: a file was sent, read back and deleted in {storage.shown}.")


def _passages(context: DoctorContext) -> Finding:
    from scrapy_dedupe.passages import PassageIndex

    settings = context.settings
    assert settings is not None
    passages = settings.passages
    if not passages.root.exists():
        return note(f"There is no passage index {passages.root} yet: the first crawl creates it.")
    with PassageIndex(
        passages.root, tokeniser=passages.tokeniser, store_text=passages.store_text, create=False
    ) as index:
        documents = len(index)
    return ok(f"Passage index: {passages.root} was opened and has {counted(documents, 'document')}.")
