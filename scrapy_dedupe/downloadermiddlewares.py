"""Have we read this text? The content layer as a downloader middleware, for order 543.

There it sees final, decoded responses: redirects followed, retries done. It asks the judge of
:mod:`scrapy_dedupe.content` on the crawl's worker and puts the :class:`~scrapy_dedupe.content.Verdict` on
``response.meta["dedupe"]``, and as a flag such as ``dedupe-exact`` on ``response.flags`` unless the page is
unique. ``DEDUPE_ACTION_*`` decide whether a copy goes on to the spider or raises :class:`DuplicateContent`.

Some pages are never judged; their verdict is ``unknown`` with the reason that is also counted under
``dedupe/content/skipped/``. Requests without a callback of a spider (robots.txt, media pipelines) get no
verdict at all: a robots.txt that was dropped as a copy of another host's would let Scrapy crawl what is
forbidden.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scrapy import signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, TextResponse, XmlResponse
from scrapy.http.request import NO_CALLBACK

from .content import Judge, JudgeOptions, Verdict
from .content.canonical import kind_of
from .content.judge import NO_TEXT
from .errors import StoreError
from .session import Session

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

META_KEY: Final = "dedupe"
SKIP_META_KEY: Final = "dedupe_skip"

# Why a page is unknown although it should have been judged.
STORE_AWAY: Final = "store"
ERROR: Final = "error"

# Flags of bodies of which a part is missing. ("partial" only says that the connection's end was the body's.)
_TRUNCATED: Final = frozenset(("dataloss", "download_stopped"))


class DuplicateContent(IgnoreRequest):
    """The page was dropped because its text was read before. ``verdict`` says where; it reaches the errback."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.kind} copy of {verdict.original_url}, read by {verdict.original_crawl}")
        self.verdict = verdict


class ContentDedupeMiddleware:
    """Judges every page. Raises :class:`~scrapy_dedupe.errors.StoreError` at the start if its store is no use."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._settings = settings = session.settings.content
        self._crawler = crawler
        options = JudgeOptions(
            canonicalizer=settings.canonicalizer,
            near_threshold=settings.near_threshold,
            near_min_chars=settings.near_min_chars,
        )
        # Found out now, since it may have to be written to JOBDIR.
        session.at_start(lambda: session.crawl_id)
        store = session.store(settings.store_url)
        self._judge = session.at_start(lambda: Judge(store.content, options))
        self._guard = session.guard(settings.store_url)
        self._actions = {
            "unchanged": settings.action_unchanged,
            "exact": settings.action_exact,
            "near": settings.action_near,
        }
        self._limits = _PageLimits(crawler, session)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        if request.callback is NO_CALLBACK:
            self._session.inc("dedupe/content/skipped/internal")
            return response
        verdict = await self._verdict_on(request, response)
        # Always set: a spider that copies the meta of a page into its next request passes on an old verdict.
        request.meta[META_KEY] = verdict
        if verdict.kind == "unknown" and verdict.reason not in (STORE_AWAY, ERROR):
            self._session.inc(f"dedupe/content/skipped/{str(verdict.reason).replace(' ', '_')}")
            return response
        self._session.inc(f"dedupe/content/{verdict.kind}")
        if verdict.kind != "unique":
            response.flags.append(f"dedupe-{verdict.kind}")
        if self._actions.get(verdict.kind) == "drop" and not self._is_own_earlier_capture(verdict):
            self._session.inc("dedupe/content/dropped")
            self._limits.page_dropped()
            self._session.page_dropped(request)
            error = DuplicateContent(verdict)
            logger.debug("Dropped %s: %s", response, error, extra={"spider": self._crawler.spider})
            raise error
        return response

    def _is_own_earlier_capture(self, verdict: Verdict) -> bool:
        # This crawl was cut after it had read the page and before the spider had dealt with it, and goes on now.
        return verdict.same_url and verdict.original_crawl == self._session.crawl_id

    async def _verdict_on(self, request: Request, response: Response) -> Verdict:
        try:
            kind = _declared_kind(response)
            if reason := self._reason_to_skip(request, response, kind):
                return Verdict("unknown", reason=reason)
            assert kind is not None
            assert isinstance(response, TextResponse)
            return await self._session.on_worker(self._ask, kind, response)
        except Exception as error:  # noqa: BLE001 - no fault of ours may cost a page
            self._session.error("content", error, "The page was passed on unjudged (verdict unknown).")
            return Verdict("unknown", reason=ERROR)

    def _reason_to_skip(self, request: Request, response: Response, kind: str | None) -> str | None:
        """Why the page is never judged, None if it is."""
        encoding = response.headers.get(b"Content-Encoding")
        if request.meta.get(SKIP_META_KEY):
            return "meta"
        if request.method == "HEAD":
            return "method"
        if response.status != 200:
            return "status"
        if kind is None or not isinstance(response, TextResponse):
            return "type"
        if encoding is not None and encoding.lower() != b"identity":
            return "encoding"  # nobody could decode it
        if _TRUNCATED.intersection(response.flags):
            return "truncated"
        if len(response.body) > self._settings.max_bytes:
            return "size"
        return None

    def _ask(self, kind: str, response: TextResponse) -> Verdict:
        # On the worker. The breaker is asked here, since pages may have been waiting when the store was lost.
        session = self._session
        if self._guard.open:
            session.loop.call(session.inc, "dedupe/errors/store")
            return Verdict("unknown", reason=STORE_AWAY)
        try:
            verdict = self._judge.judge(response.text, url=response.url, crawl=session.crawl_id, kind=kind)
        except StoreError as error:
            self._guard.failed(error)
            return Verdict("unknown", reason=STORE_AWAY)
        if verdict.reason != NO_TEXT:  # then the store was not asked
            self._guard.worked()
        return verdict


def _declared_kind(response: Response) -> str | None:
    content_type = response.headers.get(b"Content-Type")
    if content_type is not None:
        return kind_of(content_type.decode("latin-1"))
    # Nothing is declared: go by what Scrapy found in the URL and the body.
    if isinstance(response, HtmlResponse):
        return "html"
    return "xml" if isinstance(response, XmlResponse) else None


class _PageLimits:
    """Makes dropped pages count for ``CLOSESPIDER_PAGECOUNT`` and ``CLOSESPIDER_PAGECOUNT_NO_ITEM``.

    Scrapy counts responses that reach the engine. A dropped one does not, so a crawl that drops everything
    would never end.
    """

    def __init__(self, crawler: Crawler, session: Session) -> None:
        self._session = session
        self._limit = crawler.settings.getint("CLOSESPIDER_PAGECOUNT")
        self._limit_no_item = crawler.settings.getint("CLOSESPIDER_PAGECOUNT_NO_ITEM")
        self._pages = 0
        self._pages_since_item = 0
        self._has_dropped = False
        self._is_closing = False
        if self._limit or self._limit_no_item:
            crawler.signals.connect(self._page_received, signal=signals.response_received)
            crawler.signals.connect(self._item_scraped, signal=signals.item_scraped)

    def page_dropped(self) -> None:
        self._has_dropped = True
        self._count()

    def _page_received(self) -> None:
        self._count()

    def _item_scraped(self) -> None:
        self._pages_since_item = 0

    def _count(self) -> None:
        self._pages += 1
        self._pages_since_item += 1
        if not self._has_dropped or self._is_closing:
            return  # Scrapy's own extension sees all there is to see
        if self._limit and self._pages >= self._limit:
            self._is_closing = True
            self._session.close_spider("closespider_pagecount")
        elif self._limit_no_item and self._pages_since_item >= self._limit_no_item:
            self._is_closing = True
            self._session.close_spider("closespider_pagecount_no_item")
