"""Answers requests from an archive, to run a spider again without network access.

A downloader middleware for order 950, closest to the network: its responses pass through all other middlewares like
downloads, so they are decoded, redirects are followed and cookies are stored. Responses have the flag ``replayed``, and
``request.meta["warc"]`` identifies their records. Replayed responses are not recorded.
"""

from __future__ import annotations

import ipaddress
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http.request import NO_CALLBACK

from scrapy_dedupe.errors import DedupeError, naming
from scrapy_dedupe.live.recordings import META_KEY, provenance
from scrapy_dedupe.live.responses import flag_of, max_bytes, new_response
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.warc.containers import find_files
from scrapy_dedupe.warc.playback import Playback, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Self

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.playback import Playable
    from scrapy_dedupe.warc.sources import ReadableFile

logger = logging.getLogger(__name__)

FLAG: Final = "replayed"

_CONDITIONS = (b"If-None-Match", b"If-Modified-Since")
_MAX_LOGGED_DAMAGES = 10


class NotInArchive(IgnoreRequest):
    """Raised for a request that the archive in ``DEDUPE_REPLAY`` does not contain; passed to the errback."""


class ReplayMiddleware:
    """Answers requests from the files in ``DEDUPE_REPLAY``.

    Logs and raises :class:`~scrapy_dedupe.errors.DedupeError` at startup if a file does not exist, cannot be opened, or
    is a container that is not supported.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._session = session = Session.of(crawler)
        self._settings = session.settings.replay
        if not self._settings.files:
            raise NotConfigured
        self._files = session.at_start(self._find_files)
        self._playback: Playback | None = None
        self._reading: Future[None] | None = None
        self._damaged = 0
        self._has_logged_missing = False
        session.at_open(self._open)
        session.at_stop(self._close)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _find_files(self) -> list[ReadableFile]:
        with naming("DEDUPE_REPLAY"):
            return find_files(self._settings.files)

    async def process_request(self, request: Request, spider: Spider | None = None) -> Response | None:
        # Remove a value that a spider copied from the meta of another response.
        request.meta.pop(META_KEY, None)
        if request.url.startswith(("data:", "file:")):
            return None
        assert self._reading is not None
        await self._session.loop.wait_for(self._reading)
        limit = max_bytes(self._crawler, request)
        try:
            found, unresolved = await self._session.on_worker(
                self._find,
                request.method,
                request.url,
                request.body,
                cookies=request.headers.get(b"Cookie") or b"",
                is_conditional=any(name in request.headers for name in _CONDITIONS),
                max_bytes=limit,
            )
        except TooLarge as error:
            self._session.counters.inc("dedupe/replay/missing")
            raise self._refusal(request, f"{error} DOWNLOAD_MAXSIZE allows {limit}.") from error
        except DedupeError as error:
            self._session.counters.error("replay", error, "The request failed; the crawl continues.")
            raise
        if unresolved:
            self._session.counters.inc("dedupe/replay/unresolved", unresolved)
        if found is not None:
            self._session.counters.inc("dedupe/replay/answered")
            original = found.refers_to
            request.meta[META_KEY] = provenance(
                found, found.type, None if original is None else original.date
            )
            # Download handlers remove the fragment too.
            return response_of(found, request.url.partition("#")[0])
        self._session.counters.inc("dedupe/replay/missing")
        if self._settings.missing == "fetch":
            return None
        raise self._refusal(
            request,
            f"The archive in DEDUPE_REPLAY has no response for {request}."
            ' Set DEDUPE_REPLAY_MISSING = "fetch" to download missing responses.',
        )

    def _refusal(self, request: Request, message: str) -> IgnoreRequest:
        if request.callback is NO_CALLBACK:
            # No subclass: for robots.txt, the oldest supported Scrapy treats only IgnoreRequest itself as a missing
            # file.
            return IgnoreRequest(message)
        if not self._has_logged_missing:
            self._has_logged_missing = True
            logger.warning("%s Further ones are only counted in dedupe/replay/missing.", message)
        return NotInArchive(message)

    # On the worker

    def _read(self) -> None:
        playback = self._playback = Playback(self._files)
        crawler, is_shell = self._crawler, not self._crawler.crawling
        # Stop reading a large archive when the crawl is stopped. `scrapy shell` never sets `crawling`.
        count = playback.read(on_damage=self._log_damage, is_wanted=lambda: is_shell or crawler.crawling)
        if self._damaged:
            logger.warning(
                "DEDUPE_REPLAY: skipped %d damaged places; their records are missing.", self._damaged
            )
            self._session.loop.call(self._session.counters.inc, "dedupe/replay/damaged", self._damaged)
        logger.info("DEDUPE_REPLAY: read %d exchanges from %d files.", count, len(self._files))

    def _log_damage(self, damage: Damage) -> None:
        self._damaged += 1
        if self._damaged <= _MAX_LOGGED_DAMAGES:
            logger.warning("%s", damage)

    def _find(self, *request: Any, **conditions: Any) -> tuple[Playable | None, int]:
        """Return the result of :meth:`Playback.find`, and the number of revisits that it could not resolve."""
        assert self._playback is not None
        if not self._playback.is_complete:
            raise IgnoreRequest("The crawl was stopped while the archive of DEDUPE_REPLAY was being read.")
        before = self._playback.unresolved
        found = self._playback.find(*request, **conditions)
        return found, self._playback.unresolved - before

    # Start and end

    def _open(self) -> None:
        self._reading = self._session.worker.submit(self._read)
        self._reading.add_done_callback(lambda done: self._session.loop.call(self._check_reading, done))

    def _check_reading(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._session.counters.error(
                "replay", error, "The spider is closed, since the archive cannot be read."
            )
            self._session.close_spider("dedupe_replay_error")

    async def _close(self) -> None:
        if self._playback is not None:
            await self._session.on_worker(self._playback.close)


def response_of(
    found: Playable, url: str, headers: Headers | None = None, *, flags: Sequence[str] = (FLAG,)
) -> Response:
    """Return the response to a request for *url* as a download handler would create it.

    *headers* replace those of *found*.
    """
    truncation = () if found.truncated is None else (flag_of(found.truncated),)
    return new_response(
        url,
        found.headers if headers is None else headers,
        found.payload,
        status=found.status,
        flags=[*flags, *truncation],
        ip_address=_ip_address(found.ip_address),
        protocol=found.protocol,
    )


# A crawl has few servers.
@lru_cache(256)
def _ip_address(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if text else None
    except ValueError:
        return None
