"""The processor time of each part of the work on a page that a 304 confirms, with the archive as HTTP cache.

    python benchmarks/recrawl_parts.py FOLDER [--pages 300] [--rounds 5]

FOLDER holds HTML files; the pages are chosen as in ``crawl.py``. A first crawl records and judges all pages, with SQLite
and one WARC file. Each round is a further crawl: it looks the pages up, one after another, confirms and records each, and
judges it. The figures are as in ``parts.py``. What Scrapy does with a cached page has its own lines.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from typing import Any

from parts import Clock, NeverAway, options_and_pages, print_parts
from scrapy import Request
from scrapy.extensions.httpcache import RFC2616Policy
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from scrapy_dedupe.content import Judge, Page
from scrapy_dedupe.crawls import cached_pages, captured_records, live_index, recorder
from scrapy_dedupe.crawls.cached_pages import CachedPages, PageQuery
from scrapy_dedupe.crawls.captured_records import RecentExchanges
from scrapy_dedupe.crawls.live_index import LiveIndex
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.live import memory, responses
from scrapy_dedupe.live.archive import cache, replay
from scrapy_dedupe.live.recordings import provenance
from scrapy_dedupe.reports.observations import Observations
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.sqlite_content import SqliteContent
from scrapy_dedupe.stores.sqlite_index import SqliteIndex
from scrapy_dedupe.warc import files, records
from scrapy_dedupe.warc.files import WarcWriter

PARTS: dict[str, list[tuple[Any, str]]] = {
    "query of the URL and the payload": [(SqliteIndex, "find_urls"), (SqliteIndex, "find_plain")],
    "read and check the exchange": [(RecentExchanges, "capture"), (captured_records, "is_capture")],
    "whether it may be reused": [(cached_pages, "why_not_reused")],
    "headers for the policy": [(cached_pages, "judged_headers")],
    "page of the record": [(CachedPages, "find"), (cached_pages, "playable")],
    "create the response": [(replay, "response_of")],
    "policy (Scrapy)": [
        (RFC2616Policy, "should_cache_request"),
        (RFC2616Policy, "should_cache_response"),
        (RFC2616Policy, "is_cached_response_fresh"),
    ],
    "copy of the exchange": [(responses, "capture_of")],
    "find and check the original": [(LiveIndex, "confirmed_by")],
    "headers after the 304": [(live_index, "renewal_of")],
    "revisit record": [(records, "not_modified")],
    "request record": [(records, "request")],
    "compression, by libdeflate": [(files, "gzip_compress")],
    "file": [(WarcWriter, "write")],
    "index entry": [(recorder, "entry_of_confirmation"), (LiveIndex, "add")],
    "rest of the recording": [(Recorder, "record")],
    "restore headers, meta": [(cache, "_restore_headers")],
    "declared encoding": [(responses, "has_charset")],
    "key of the page": [(Judge, "source_of"), (responses, "body_digest")],
    "verdict by the key": [(Judge, "recall"), (SqliteContent, "recall")],
    "report": [(Observations, "recorded"), (Observations, "judged")],
}

MODIFIED = formatdate(1_790_000_000, usegmt=True)


def headers_of(number: int) -> dict[str, str]:
    return {
        "Date": formatdate(usegmt=True),
        "Content-Type": "text/html",
        "ETag": f'"{number:032}"',
        "Last-Modified": MODIFIED,
        "Cache-Control": "max-age=0",
    }


def first_crawl(store: Any, folder: str, bodies: list[bytes]) -> None:
    store.index.start("first", "stored")
    judge = Judge(store.content)
    writer = WarcWriter(folder, "first", info={"software": "recrawl_parts.py"})
    recording = Recorder(writer, store.index, "first", NeverAway())
    for number, body in enumerate(bodies):
        url = f"http://www.example/{number}.html"
        headers = {**headers_of(number), "Content-Length": str(len(body))}
        response = HtmlResponse(url, body=body, headers=headers, protocol="HTTP/1.1")
        digest = responses.body_digest(response, {})
        source = judge.source_of("html", response.encoding, digest)
        reading = judge.read(Page(url, response.text, "first", source=source))
        judge.settle([it.capture for it in judge.decide([reading]) if it.capture is not None])
        recording.record(responses.capture_of(Request(url, headers={"User-Agent": "Scrapy"}), response))
    recording.finish()
    store.index.commit("first")


def recrawl(clock: Clock, store: Any, folder: str, crawl: str, pages: int) -> list[Counter[str]]:
    """The nanoseconds of each part, page by page."""
    found = []
    store.index.start(crawl, "stored")
    judge, policy, observations = Judge(store.content), RFC2616Policy(Settings()), Observations()
    exchanges = RecentExchanges()
    cached = CachedPages(store.index, crawl, NeverAway(), exchanges, needs_validators=True)
    writer = WarcWriter(folder, crawl, info={"software": "recrawl_parts.py"})
    recording = Recorder(writer, store.index, crawl, NeverAway(), exchanges=exchanges)
    for number in range(pages):
        clock.spent = Counter()
        request = Request(f"http://www.example/{number}.html", headers={"User-Agent": "Scrapy"})
        query = PageQuery(request.url, responses.header_pairs(request.headers))
        policy.should_cache_request(request)
        (result,) = cached.find([query], datetime.now(UTC))
        page = result.page
        assert page is not None
        response = replay.response_of(page.playable, request.url, page.headers, flags=())
        assert isinstance(response, HtmlResponse)
        created_with = {name: [*values] for name, values in dict.items(response.headers)}
        policy.should_cache_response(response, request)
        assert not policy.is_cached_response_fresh(response, request)
        confirmation = Response(request.url, 304, headers_of(number), protocol="HTTP/1.1")
        recorded = recording.record(responses.capture_of(request, confirmation))
        assert recorded.kind == "revisit"
        response.headers.update(confirmation.headers)
        cache._restore_headers(response.headers, created_with, page.playable.headers)
        provenance(recorded, recorded.kind, page.playable.date)
        responses.has_charset(response)
        digest = (page.playable.digest or "").removeprefix("sha256:")
        known: dict[Response, responses.KnownDigest] = {
            response: (page.playable.payload, partial(str, digest))
        }
        source = judge.source_of("html", response.encoding, responses.body_digest(response, known))
        (judged,) = judge.recall([(request.url, crawl, source)])
        assert judged is not None
        assert judged.verdict.kind == "unchanged"
        found.append(clock.spent)
    # Counted together, as in a crawl.
    for number, spent in enumerate(found):
        clock.spent = spent
        url = f"http://www.example/{number}.html"
        observations.recorded(url, "text/html", 304, "revisit", 600, 0)
        observations.judged(url, "text/html", 200, "unchanged", url, 1.0, same_url=True)
    recording.finish()
    return found


def main() -> None:
    options, bodies = options_and_pages(__doc__, rounds=5)
    memory.keep_freed_memory()
    memory.freeze_for_crawl()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.sqlite")
        first_crawl(store, folder, bodies)
        for part, places in PARTS.items():
            clock.measure(part, places)
        rounds = [
            recrawl(clock, store, folder, f"round-{number}", len(bodies)) for number in range(options.rounds)
        ]
        store.close()
    print_parts(bodies, rounds, PARTS)


if __name__ == "__main__":
    main()
