"""A probe through each layer: something is written, found and taken away again, in the real places.

What is written has a name of its own that no crawl looks for, so a crawl that runs does not notice.
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

from scrapy_dedupe.commands.figures import counted, size_text
from scrapy_dedupe.crawls.index import CrawlIndex
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.stores.base import SeenText as SeenPage
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import response

from .disks import existing
from .finding import Said, note, ok, problem, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.stores.base import ContentStore, Store

    from .context import DoctorContext

_URL: Final = "https://scrapy-dedupe.invalid/probe/"
_PREFIX: Final = ".dedupe-doctor-"


def check(patient: DoctorContext) -> Iterator[Said]:
    layers = patient.layers
    is_alone = patient.is_store_given or not layers
    if "urls" in layers and not patient.is_store_given:
        yield from tried("URL filter", partial(_url_filter, patient))
    if "content" in layers or is_alone:
        yield from tried("content layer", partial(_content, patient))
    if "archive" in layers or is_alone:
        yield from tried("crawl index", partial(_index, patient))
    if patient.is_store_given:
        return
    if "archive" in layers:
        yield from tried("archive", partial(_archive, patient))
        if patient.settings is not None and patient.settings.warc.upload_url is not None:
            yield from tried("storage", partial(_storage, patient))
    if "passages" in layers:
        yield from tried("passage index", partial(_passages, patient))


def _url_filter(patient: DoctorContext) -> Said:
    from scrapy_dedupe.urls.bloom import GrowingBloomFilter

    settings = patient.settings
    assert settings is not None
    fingerprint = secrets.token_bytes(20)
    if settings.urls.store_url is not None:
        return _shared_filter(settings.urls.store_url, patient)
    local = GrowingBloomFilter(settings.urls.capacity, settings.urls.error_rate)
    if not local.add(fingerprint) or fingerprint not in local:
        return problem("The URL filter does not find what was added.", "Report this with the versions above.")
    size = size_text(local.size_bytes)
    if settings.jobdir is not None:
        _look_at_job(patient, settings.jobdir)
    return ok(
        f"URL filter: a fingerprint was added and found; {settings.urls.capacity:,} URLs take {size} of memory."
    )


def _look_at_job(patient: DoctorContext, jobdir: Path) -> None:
    """Read what a run with this JOBDIR would read. Nothing is locked, so that a crawl can start meanwhile."""
    from scrapy_dedupe.commands.urls.fingerprints import Fingerprinter
    from scrapy_dedupe.urls.folder import FilterFolder
    from scrapy_dedupe.urls.snapshot import FilterSnapshot

    fingerprinter = Fingerprinter(patient.given, None).path
    folder = FilterFolder.in_job(jobdir, fingerprinter)
    folder.check_heads()
    with suppress(FileNotFoundError):  # a new job, one that was cut, or one that runs
        FilterSnapshot.read(folder.snapshot, fingerprinter)


def _shared_filter(url: str, patient: DoctorContext) -> Said:
    from scrapy_dedupe.stores.redis import connect
    from scrapy_dedupe.urls.shared import SharedBloomFilter

    location = parse_store_url(url)
    with redis_faults(location.shown):
        client = connect(location, patient.timeout_s)
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
        return problem(
            "The URL filter in Redis does not find what was added.", "Report this with the versions above."
        )
    return ok(f"URL filter: a fingerprint was added, found and deleted in {location.shown}.")


def _content(patient: DoctorContext) -> Said:
    url = patient.store_urls.get("content")
    if url is None:
        return note("The content layer was not tried, since its settings are wrong.")
    location = parse_store_url(url)
    if not location.is_redis:
        with _opened(url, patient) as (store, where):
            return _content_in(store.content, where)
    from scrapy_dedupe.stores.redis import connect
    from scrapy_dedupe.stores.redis_content import RedisContent

    prefix = f"dedupe:{{doctor-{secrets.token_hex(8)}}}:"
    with redis_faults(location.shown):
        client = connect(location, patient.timeout_s)
        try:
            return _content_in(RedisContent(client, location.shown, prefix), location.shown)
        finally:
            client.delete(f"{prefix}n", f"{prefix}i")
            client.close()


def _content_in(content: ContentStore, where: str) -> Said:
    digest, now = secrets.token_bytes(16), round(datetime.now(UTC).timestamp() * 1000)
    seen, other = (SeenPage(digest, f"{_URL}{secrets.token_hex(8)}", "doctor", now) for _ in range(2))
    try:
        first = content.claim_texts([seen])
        found = content.find_texts([other])
    finally:
        # As of a page that failed; to look for a URL would mean to look at all texts.
        content.settle([], [seen])
    gone = content.find_texts([other])
    if first != [None] or found[0] is None or gone != [None]:
        return problem(
            f"The texts in {where} are not found as they were written.",
            "Report this with the versions above.",
        )
    return ok(f"Content layer: a text was written, found and deleted in {where}.")


def _index(patient: DoctorContext) -> Said:
    url = patient.store_urls.get("index")
    if url is None:
        return note("The crawl index was not tried, since its settings are wrong.")
    crawl, digest = f"doctor-{secrets.token_hex(8)}", sha256(secrets.token_bytes(16)).hexdigest()
    with _opened(url, patient) as (store, where):
        index = CrawlIndex(store.index)
        # Of whatever kind the index is; whether that fits the settings is told elsewhere.
        modes = {info.payload for info in index.crawls() if info.state != "canceled"}
        payload = patient.settings.warc.payload if patient.settings is not None else "stored"
        index.start(crawl, payload if not modes or payload in modes else next(iter(modes)))
        try:
            original = Original(digest, crawl, "20260101000000", _URL, 1)
            index.add(crawl, [original], Counts(1, 0, 0, 1))
            found = index.find(crawl, [digest])
        finally:
            index.cancel(crawl)
            index.forget_canceled(crawl)
    if found[0] is None or found[0].digest != digest:
        return problem(
            f"The crawl index in {where} does not find what was added.",
            "Report this with the versions above.",
        )
    return ok(f"Crawl index: a crawl was begun, found its record and was canceled in {where}.")


@contextmanager
def _opened(url: str, patient: DoctorContext) -> Iterator[tuple[Store, str]]:
    """The server at the URL; in place of an SQLite file a new one beside it, since a crawl that was forgotten leaves its name."""
    location = parse_store_url(url)
    path = location.path
    if path is None:
        store = open_store(url, timeout_s=patient.timeout_s, create=False)
        try:
            yield store, location.shown
        finally:
            store.close()
        return
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=existing(path.parent)) as folder:
        store = open_store(
            f"sqlite:///{Path(folder).absolute() / 'probe.sqlite'}", timeout_s=patient.timeout_s
        )
        try:
            yield store, f"a store beside {location.shown}"
        finally:
            store.close()


def _archive(patient: DoctorContext) -> Said:
    settings = patient.settings
    assert settings is not None
    warc, there = settings.warc, existing(settings.warc.folder)
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
        return problem(
            f"A record in {there} was not read back as it was written.", "Look for a fault of the disk."
        )
    return ok(f"Archive: a record was written, read back and deleted in {there}.")


def _storage(patient: DoctorContext) -> Said:
    from scrapy_dedupe.warc.storage import Storage

    settings = patient.settings
    assert settings is not None
    assert settings.warc.upload_url is not None
    storage = Storage(settings.warc.upload_url)
    storage.check()
    return ok(f"Storage: a file was sent, read back and deleted in {storage.shown}.")


def _passages(patient: DoctorContext) -> Said:
    from scrapy_dedupe.passages import PassageIndex

    settings = patient.settings
    assert settings is not None
    passages = settings.passages
    if not passages.root.exists():
        return note(f"There is no passage index {passages.root} yet: the first crawl makes it.")
    with PassageIndex(
        passages.root, tokeniser=passages.tokeniser, store_text=passages.store_text, create=False
    ) as index:
        documents = len(index)
    return ok(f"Passage index: {passages.root} was opened and has {counted(documents, 'document')}.")
