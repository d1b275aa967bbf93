"""Answers requests from the archive as Scrapy's HTTP cache does: the cache that one crawl shares.

Requests are looked up on the worker, several at once if they arrive faster than the index answers. A request does not wait
longer than ``DEDUPE_STORE_TIMEOUT``: it then counts as not cached. Whether a page is fresh, and whether the server must
confirm it, is decided by ``HTTPCACHE_POLICY``, which also decides here what may be used at all: Scrapy asks the policy
only before it stores a response, and the archive stores all of them.

For Scrapy every 304 confirms the page, and all headers of the 304 replace those of the page (from Scrapy 2.14 on). So this
cache restores the headers that describe the body. If the ETag of the 304 is that of another version, the cache sends the
request again, without a condition.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.extensions.httpcache import RFC2616Policy
from scrapy.utils.misc import load_object

from scrapy_dedupe.crawls.cached_pages import UNKNOWN, UNREADABLE, CachedPages, Found, PageQuery
from scrapy_dedupe.crawls.entries import names_another, validators_of
from scrapy_dedupe.crawls.reuse import OF_THE_BODY
from scrapy_dedupe.live.archive.replay import response_of
from scrapy_dedupe.live.engine import engine_of
from scrapy_dedupe.live.recordings import META_KEY, provenance
from scrapy_dedupe.live.responses import header_pairs, max_bytes
from scrapy_dedupe.warc.capture import target_uri

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Request
    from scrapy.http import Headers as ResponseHeaders
    from scrapy.http import Response

    from scrapy_dedupe.crawls.cached_pages import CachedPage
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.warc.capture import Headers

logger = logging.getLogger(__name__)

_BATCH_SIZE: Final = 64
_MOST_TICK_S: Final = 1.0
_STATS_INTERVAL_S: Final = 1.0
_ATTRIBUTE: Final = "_dedupe_archive_cache"

# Headers that were changed for the policy only.
_JUDGED: Final = (b"Age", b"Cache-Control", b"Date")
_OF_THE_BODY: Final = tuple(name.title() for name in OF_THE_BODY)
_CONDITIONAL: Final = (b"If-Modified-Since", b"If-None-Match")
# In the meta of a request that the cache does not answer.
_AGAIN: Final = "_dedupe_ask_again"
_TIMEOUT: Final = Found(None, "timeout")
# Colon, space and line end of a header field.
_LINE_BYTES: Final = 4
_SHA256: Final = "sha256:"


class ArchiveCache:
    """The HTTP cache of one crawl; use :meth:`of` to get it. Use it on the event loop."""

    def __init__(self, session: Session) -> None:
        settings = session.settings
        self._session = session
        scrapy_settings = session.crawler.settings
        self._own_policy = load_object(scrapy_settings["HTTPCACHE_POLICY"])(scrapy_settings)
        self._expiration_s = scrapy_settings.getint("HTTPCACHE_EXPIRATION_SECS")
        self._timeout_s = settings.store_timeout_s
        index_url = settings.warc.index_url
        index = session.at_start(lambda: session.stores.open(index_url).index)
        crawl = session.at_start(lambda: session.crawl_id)
        logger.info(
            "The archive is the HTTP cache of this crawl, with the policy %s.",
            scrapy_settings["HTTPCACHE_POLICY"],
        )
        ignored = scrapy_settings.getlist("HTTPCACHE_IGNORE_RESPONSE_CACHE_CONTROLS")
        self._pages = CachedPages(
            index,
            crawl,
            session.stores.breaker(index_url),
            session.exchanges,
            [str(name).lower().encode("latin-1") for name in ignored],
            # Other policies, and subclasses, may use any page.
            needs_validators=type(self._own_policy) is RFC2616Policy and not self._own_policy.always_store,
        )
        session.layers["cache"] = index_url
        # Queries that wait for the worker, each with the future of its result and the time when it is given up.
        self._waiting: deque[tuple[PageQuery, Future[Found]]] = deque()
        self._due: deque[tuple[float, Future[Found]]] = deque()
        self._found: WeakKeyDictionary[Request, Found] = WeakKeyDictionary()
        # The page of each cached response, and the headers that the response was created with.
        self._answers: WeakKeyDictionary[Response, tuple[CachedPage, dict[bytes, list[bytes]]]] = (
            WeakKeyDictionary()
        )
        # The headers of each 304. Scrapy 2.13 does not add them to those of the cached response.
        self._confirmations: WeakKeyDictionary[Request, Headers] = WeakKeyDictionary()
        session.crawler.signals.connect(self._response_downloaded, signal=signals.response_downloaded)
        # Counts of every page, which are added to the stats together.
        self._tally: Counter[str] = Counter()
        session.run_every(min(_MOST_TICK_S, self._timeout_s / 4), self._give_up, "cache")
        session.run_every(_STATS_INTERVAL_S, self._update_stats, "cache")
        session.at_close(self._update_stats)

    @cached_property
    def _policy(self) -> Any:
        # That of the middleware keeps the headers that it has parsed.
        crawler = self._session.crawler
        if engine_of(crawler) is None:  # the middleware is used on its own
            return self._own_policy
        return getattr(crawler.get_downloader_middleware(HttpCacheMiddleware), "policy", self._own_policy)

    @classmethod
    def of(cls, session: Session) -> ArchiveCache:
        """Return the cache of the crawl; create it on the first call."""
        cache = vars(session).get(_ATTRIBUTE)
        if cache is None:
            cache = cls(session)
            setattr(session, _ATTRIBUTE, cache)
        return cache

    async def look_up(self, request: Request) -> None:
        """Look up the page that :meth:`response_to` will return for *request*."""
        if request.meta.pop(_AGAIN, False):
            self._found[request] = Found(None, "etag")
        elif self._may_be_cached(request):
            self._found[request] = await self._session.loop.wait_for(self._submit(request))

    def response_to(self, request: Request) -> Response | None:
        """Return the cached response to *request*, None if there is none, and set ``request.meta["cache_timestamp"]``.

        Waits for the index if the request was not looked up.
        """
        found = self._found.pop(request, None)
        if found is None:
            if not self._may_be_cached(request):
                return None
            with suppress(TimeoutError):
                found = self._submit(request).result(self._timeout_s)
        return self._response(request, found or _TIMEOUT)

    def response_used(self, request: Request, response: Response) -> Request | Response:
        """Return *response*, or a request to send instead, if *response* is a cached one that a 304 did not confirm.

        Count a cached response that answers *request*, and set ``request.meta["warc"]``; ignore other responses.
        """
        answer = self._answers.pop(response, None)
        if answer is None:
            return response
        page, created_with = answer
        confirmation = self._confirmations.pop(request, ())
        has_other_tag = _values(confirmation, b"etag") != created_with.get(b"Etag", [])
        if has_other_tag and names_another(confirmation, validators_of(page.headers)):
            return _unconditional(request)
        found = page.playable
        _restore_headers(response.headers, created_with, found.headers)
        original = found.refers_to
        request.meta[META_KEY] = provenance(found, found.type, None if original is None else original.date)
        self._tally["used"] += 1
        self._tally["bytes_used"] += len(found.payload)
        return response

    def _response_downloaded(self, response: Response, request: Request) -> None:
        pairs = header_pairs(response.headers)
        head = sum([len(name) + len(value) + _LINE_BYTES for name, value in pairs])
        self._tally["bytes_received"] += head + len(response.body)
        if response.status == 304:
            self._confirmations[request] = pairs

    def _may_be_cached(self, request: Request) -> bool:
        return (
            request.method == "GET"
            and not request.body
            and request.url.startswith(("http://", "https://"))
            and not request.meta.get("dont_cache", False)
            and bool(self._policy.should_cache_request(request))
        )

    def _response(self, request: Request, found: Found) -> Response | None:
        page = found.page
        if page is None:
            self._count_miss(found.reason)
            if found.reason == UNREADABLE and self._session.counters.is_first("cache unreadable"):
                logger.warning(
                    "A page in the archive cannot be used as cache, so it is downloaded again: %s Further ones are"
                    " only counted in dedupe/cache/missed/unreadable. `scrapy dedupe check` compares the index with the files.",
                    found.fault,
                )
            return None
        captured_s = page.captured.timestamp()
        if 0 < self._expiration_s < time.time() - captured_s:
            self._count_miss("expired")
            return None
        response = response_of(page.playable, request.url.partition("#")[0], page.headers, flags=())
        if not self._policy.should_cache_response(response, request):
            self._count_miss("policy")
            return None
        digest = page.playable.digest or ""
        if digest.startswith(_SHA256):
            # The content layer needs no digest of its own.
            self._session.digests[response] = page.playable.payload, partial(digest.removeprefix, _SHA256)
        self._tally["found"] += 1
        request.meta["cache_timestamp"] = captured_s
        # dict.items() is faster than Headers.items().
        self._answers[response] = page, {name: [*values] for name, values in dict.items(response.headers)}
        return response

    def _count_miss(self, reason: str) -> None:
        self._tally["missed"] += 1
        self._tally[f"missed/{reason.replace('-', '_')}"] += 1

    def _update_stats(self) -> None:
        tally, self._tally = self._tally, Counter()
        for key, count in tally.items():
            self._session.counters.inc(f"dedupe/cache/{key}", count)

    def _submit(self, request: Request) -> Future[Found]:
        try:
            url = target_uri(request.url)
        except ValueError:
            url = request.url
        query = PageQuery(url, header_pairs(request.headers), max_bytes(self._session.crawler, request))
        future: Future[Found] = Future()
        self._drop_done()
        self._waiting.append((query, future))
        self._due.append((time.monotonic() + self._timeout_s, future))
        self._session.worker.post(self._find_next)
        return future

    def _drop_done(self) -> None:
        # A future keeps the page that was found.
        while self._due and self._due[0][1].done():
            self._due.popleft()

    def _give_up(self) -> None:
        """Give up the queries that wait for too long."""
        now = time.monotonic()
        self._drop_done()
        while self._due and self._due[0][0] <= now:
            _set_result(self._due.popleft()[1], _TIMEOUT)
            self._drop_done()

    # On the worker

    def _find_next(self) -> None:
        batch: list[tuple[PageQuery, Future[Found]]] = []
        while self._waiting and len(batch) < _BATCH_SIZE:
            query, future = self._waiting.popleft()
            if not future.done():
                batch.append((query, future))
        if not batch:
            return  # An earlier call has looked up this query.
        try:
            results = self._pages.find([query for query, _ in batch], datetime.now(UTC))
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a request
            self._session.counters.error("cache", error, "The page is downloaded.")
            results = [Found(None, UNKNOWN)] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            _set_result(future, result)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for header, value in headers if header.lower() == name]


def _restore_headers(
    headers: ResponseHeaders, created_with: Mapping[bytes, list[bytes]], true: Headers
) -> None:
    """Undo what a 304 has changed about the body, and the changes for the policy."""
    for name in _OF_THE_BODY:
        if dict.get(headers, name) != created_with.get(name):
            _set_header(headers, name, created_with.get(name, []))
    for name in _JUDGED:
        # Scrapy has replaced the value by that of a 304 if it differs.
        shown = dict.get(headers, name)
        if shown == created_with.get(name) and (values := _values(true, name.lower())) != shown:
            _set_header(headers, name, values)


def _set_header(headers: ResponseHeaders, name: bytes, values: list[bytes]) -> None:
    if values:
        headers[name] = values
    else:
        headers.pop(name, None)


def _unconditional(request: Request) -> Request:
    """The request for a page that a 304 did not confirm."""
    again = request.replace(dont_filter=True, meta={**request.meta, _AGAIN: True})
    again.meta.pop("cache_timestamp", None)
    for name in _CONDITIONAL:
        again.headers.pop(name, None)
    return again


def _set_result(future: Future[Any], result: Found) -> None:
    # The event loop gives up a query while the worker answers it.
    with suppress(InvalidStateError):
        future.set_result(result)
