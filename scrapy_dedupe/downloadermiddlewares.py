"""Downloader middlewares: content deduplication (543), provenance of responses (540) and replay (950).

At order 543, :class:`ContentDedupeMiddleware` receives final, decoded responses, after redirects and retries. It
determines the :class:`~scrapy_dedupe.content.Verdict` of each page on the crawl's worker thread, and stores it in
``response.meta["dedupe"]`` and, unless the page is unique, as a flag such as ``dedupe-exact`` in ``response.flags``.
The ``DEDUPE_ACTION_*`` settings or ``request.meta["dedupe_action"]`` decide whether a duplicate is passed to the spider
or raises :class:`DuplicateContent`. While the original of a duplicate is still being processed, the duplicate waits for
the outcome. If that takes too long, the duplicate is passed on and its verdict is marked as pending.

Pages that cannot be judged get the verdict ``unknown`` with a reason, which is counted under
``dedupe/content/skipped/``. Requests without a spider callback (robots.txt, media pipelines) get no verdict: if a
robots.txt were dropped as a duplicate of another host's, Scrapy would crawl URLs that it forbids. ``scrapy check``,
``parse``, ``fetch``, ``view`` and ``shell`` are not crawls: no store is used, and pages that can be judged are unique.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import IgnoreRequest
from scrapy.http import TextResponse
from scrapy.http.request import NO_CALLBACK

from . import kernel
from .content import Judge, JudgeOptions, Verdict
from .content.canonical import kind_of, mime_of
from .content.judge import Judgement
from .errors import SettingError, StoreError
from .live.content.judge_queue import JudgeQueue
from .live.content.pending_texts import PendingTexts
from .live.engine import PageLimits
from .live.events import ERROR, JudgedPage
from .live.recordings import META_KEY as WARC_META_KEY
from .live.responses import declared_type, has_charset, reason_to_skip
from .live.session import Session
from .settings.placement import check_order
from .signals import content_judged

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .live.archive.replay import NotInArchive, ReplayMiddleware
    from .settings.groups import ContentSettings

__all__ = [
    "ContentDedupeMiddleware",
    "DuplicateContent",
    "NotInArchive",
    "ProvenanceMiddleware",
    "ReplayMiddleware",
]

logger = logging.getLogger(__name__)

META_KEY: Final = "dedupe"
ACTION_META_KEY: Final = "dedupe_action"

_STEPS: Final = ("canonical", "exact", "near", "verdict")

# How often a page is judged again because another page with the same text has failed.
_MAX_ATTEMPTS: Final = 3


class DuplicateContent(IgnoreRequest):
    """Raised when a page is dropped as a duplicate; passed to the errback. ``verdict`` names the original page."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(
            f"{verdict.kind} duplicate of {verdict.original_url} from the crawl {verdict.original_crawl}"
        )
        self.verdict = verdict


class ContentDedupeMiddleware:
    """Sets a verdict on every page. Raises :class:`~scrapy_dedupe.errors.StoreError` at startup if the store is unusable."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._settings = settings = session.settings.content
        self._crawler = crawler
        if not session.is_crawl:
            return
        session.at_start(lambda: check_order(crawler.settings))
        # Determined at startup, since writing it to JOBDIR can fail.
        session.at_start(lambda: session.crawl_id)
        store = session.at_start(lambda: session.stores.open(settings.store_url))
        self._latencies = {step: session.live.latency(step) for step in _STEPS}
        self._judge = session.at_start(lambda: Judge(store.content, judge_options(settings), self._measure))
        self._guard = session.stores.breaker(settings.store_url)
        self._queue = JudgeQueue(session, self._judge, self._guard)
        self._pending = PendingTexts(crawler, session, self._judge, self._guard, store.probe)
        self._actions = {
            "unchanged": settings.action_unchanged,
            "exact": settings.action_exact,
            "near": settings.action_near,
        }
        # In this order: a handler of the signal finds the page counted.
        session.events.listen(self._count, self._send_signal)
        PageLimits(crawler, session.events, session.close_spider)
        session.events.listen(self._pending.page_judged)
        self._content = store.content
        session.layers["content"] = settings.store_url
        session.notes["kernel"] = kernel.NAME
        session.at_close(self._close)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        session = self._session
        if not session.is_crawl:
            if request.callback is not NO_CALLBACK:
                request.meta[META_KEY] = (await self._judgement_on(request, response)).verdict
            return response
        if request.callback is NO_CALLBACK:
            session.counters.inc("dedupe/content/skipped/internal")
            return response
        start = time.perf_counter()
        page = await self._judged(request, response)
        verdict = page.verdict
        # Always set: a spider may have copied an old verdict with the meta of another response.
        request.meta[META_KEY] = verdict
        if not page.is_skipped:
            self._latencies["verdict"].add(time.perf_counter() - start)
            if verdict.kind != "unique":
                response.flags.append(f"dedupe-{verdict.kind}")
        session.events.page_judged(page)
        if page.dropped:
            error = DuplicateContent(verdict)
            logger.debug("Dropped %s: %s", response, error, extra={"spider": self._crawler.spider})
            raise error
        return response

    async def _judged(self, request: Request, response: Response) -> JudgedPage:
        judged = await self._settled_judgement_on(request, response)
        is_dropped = self._action(request, judged.verdict) == "drop"
        if is_dropped and (judged.verdict.pending or self._is_own_earlier_capture(judged.verdict)):
            self._session.counters.inc("dedupe/content/not_dropped")
            is_dropped = False
        mime = mime_of(declared_type(response) or "")
        return JudgedPage(request, response, mime, judged, is_dropped)

    async def _settled_judgement_on(self, request: Request, response: Response) -> Judgement:
        """Return the judgement after waiting for the outcome of a pending original, if that does not take too long."""
        for _ in range(_MAX_ATTEMPTS):
            judged = await self._judgement_on(request, response)
            if not judged.verdict.pending:
                break
            # If the original fails, this page is the only one with the text.
            assert judged.capture is not None
            outcome = await self._pending.outcome(judged.capture.original or judged.capture.digest)
            if outcome:
                return replace(judged, verdict=replace(judged.verdict, pending=False))
            if outcome is None:
                break
            # The original has failed: remove its text from the store, then judge again.
            await self._pending.settle()
        return judged

    def _action(self, request: Request, verdict: Verdict) -> str | None:
        if verdict.kind not in self._actions:
            return None
        meta = wanted = request.meta.get(ACTION_META_KEY)
        is_wrong = False
        if isinstance(meta, Mapping):
            is_wrong = not self._actions.keys() >= meta.keys()
            wanted = meta.get(verdict.kind)
        if wanted is None and not is_wrong:
            return self._actions[verdict.kind]
        if is_wrong or wanted not in ("mark", "drop"):
            error = SettingError(
                f'meta[{ACTION_META_KEY!r}] of {request} is {meta!r}. Allowed: "mark", "drop", or a dict of these by'
                ' kind of verdict ("unchanged", "exact", "near").'
            )
            self._session.counters.error("content", error, "The page was marked.")
            return "mark"
        return str(wanted)

    def _is_own_earlier_capture(self, verdict: Verdict) -> bool:
        # An interrupted run of this crawl judged the page, but the spider did not finish processing it.
        return verdict.same_url and verdict.original_crawl == self._session.crawl_id

    async def _judgement_on(self, request: Request, response: Response) -> Judgement:
        try:
            content_type = declared_type(response)
            kind = None if content_type is None else kind_of(content_type)
            if reason := reason_to_skip(request, response, kind, self._settings.max_bytes):
                return Judgement.unknown(reason)
            assert kind is not None
            assert content_type is not None
            assert isinstance(response, TextResponse)
            if not self._session.is_crawl:
                return (
                    Judgement(Verdict("unique")) if has_charset(response) else Judgement.unknown("encoding")
                )
            return await self._queue.judge(response, kind, mime_of(content_type))
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a page
            self._session.counters.error("content", error, "The page was passed on with the verdict unknown.")
            return Judgement.unknown(ERROR)

    def _count(self, page: JudgedPage) -> None:
        count, verdict = self._session.counters.inc, page.verdict
        if page.is_skipped:
            count(f"dedupe/content/skipped/{str(verdict.reason).replace(' ', '_')}")
            return
        count(f"dedupe/content/{verdict.kind}")
        if verdict.kind == "near" and verdict.same_url:
            count("dedupe/content/changed")
        if page.judgement.is_template:
            count("dedupe/content/template")

    def _send_signal(self, page: JudgedPage) -> None:
        self._crawler.signals.send_catch_log(
            content_judged,
            verdict=page.verdict,
            response=page.response,
            request=page.request,
            spider=self._crawler.spider,
        )

    def _measure(self, step: str, seconds: float) -> None:
        self._latencies[step].add(seconds)

    async def _close(self) -> None:
        await self._pending.close()
        await self._session.on_worker(self._save)
        for step, latency in self._latencies.items():
            if latency.count:
                self._session.counters.set(f"dedupe/content/latency/{step}/count", latency.count)
                for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
                    value = round(1000 * latency.quantile(share), 3)
                    self._session.counters.set(f"dedupe/content/latency/{step}/{name}", value)

    def _save(self) -> None:
        # Runs on the worker.
        if self._guard.open:
            return
        try:
            self._judge.save()
            if self._settings.ttl_s is not None:
                self._content.purge(before_ms=round(1000 * (time.time() - self._settings.ttl_s)))
        except StoreError as error:
            self._guard.failed(error)


def judge_options(settings: ContentSettings) -> JudgeOptions:
    return JudgeOptions.of(settings, remember_for_s=settings.ttl_s)


class ProvenanceMiddleware:
    """Sets ``meta["warc"]`` at order 540, between the content layer and the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = Session.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ProvenanceMiddleware:
        return cls(crawler)

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        # Remove a value that a spider copied from the meta of another response.
        request.meta.pop(WARC_META_KEY, None)

    async def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Response:
        if self._session.set_warc_meta is not None:
            await self._session.set_warc_meta(request)
        return response


def __getattr__(name: str) -> Any:
    # Imported lazily: only crawls with DEDUPE_REPLAY need it.
    if name not in ("NotInArchive", "ReplayMiddleware"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".live.archive.replay", __package__), name)
