"""The duplicates log (``DEDUPE_DUPLICATES_LOG``): an extension that writes one line of JSON for each duplicate.

Each line describes a filtered request, a page that is a duplicate of another one, or an exchange that became a revisit.
:data:`FIELDS` lists the fields; ``DEDUPE_DUPLICATES_LOG_LAYERS`` selects the layers. Lines are appended to the file within
a second. The file is opened for each write, so it can be moved during the crawl (log rotation). Lines are ASCII, so a URL
cannot contain a line break.

If a kill or a full disk leaves an incomplete line, the next write ends it first; a crawl that is still running writes the
line again. While the file cannot be written, up to 8 MB of lines are kept in memory. Lines that were never written are
counted in ``dedupe/log/lost``.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import NotConfigured

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.appended_lines import AppendedLines
from scrapy_dedupe.live.events import Observer
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.reports.observations import DUPLICATES
from scrapy_dedupe.reports.wording import counted, without_user
from scrapy_dedupe.warc.dates import date_from_digits, format_date

from . import checked_file

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.warc.capture import Capture

logger = logging.getLogger(__name__)

FIELDS: Final = (
    "time",
    "crawl",
    "spider",
    "layer",
    "kind",
    "url",
    "original_url",
    "original_crawl",
    "original_time",
    "similarity",
    "dropped",
    "digest",
    "record_id",
    "file",
    "offset",
    "bytes_conserved",
)
"""The fields of a line, in order. Fields that do not apply are null."""

MAX_URL_CHARS: Final = 8_192
"""Longer URLs are truncated and end with an ellipsis."""

_FLUSH_S: Final = 1.0
_MOST_WAITING_BYTES: Final = 8_000_000
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class DuplicatesLogExtension(Observer):
    """Writes the duplicates log. Raises :class:`~scrapy_dedupe.errors.SettingError` at startup if the file is not writable."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._path = session.named_path(session.settings.report.duplicates_log or "")
        self._layers = session.settings.report.logged_layers
        self._lines = AppendedLines(_MOST_WAITING_BYTES)
        self._common: dict[str, str] = {}
        session.at_start(lambda: check_log(self._path))
        # Not earlier: the archive layer may change the crawl id at startup.
        session.at_open(self._open)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        session = Session.of(crawler)
        if not session.is_crawl or not session.settings.report.duplicates_log:
            raise NotConfigured
        return cls(crawler)

    # On the event loop

    def _open(self) -> None:
        session = self._session
        self._common = {"crawl": session.crawl_id, "spider": session.spider_name}
        session.events.add(self)
        session.run_every(_FLUSH_S, self._tick, "log")
        session.at_close(self._close)

    def request_filtered(self, url: str) -> None:
        self._add("url", "seen", url)

    def page_judged(self, page: JudgedPage) -> None:
        verdict = page.verdict
        if verdict.kind not in DUPLICATES:
            return
        self._add(
            "content",
            verdict.kind,
            page.url,
            original_url=verdict.original_url,
            original_crawl=verdict.original_crawl,
            original_time=None if verdict.original_seen is None else format_date(verdict.original_seen),
            similarity=None if verdict.similarity is None else round(verdict.similarity, 4),
            dropped=page.dropped,
        )

    def _tick(self) -> None:
        if self._lines:
            self._session.worker.submit(self._write)

    async def _close(self) -> None:
        await self._session.on_worker(self._write)
        if lost := self._lines.give_up():
            self._session.counters.inc("dedupe/log/lost", lost)
            logger.warning(
                "%s of the duplicates log %s could not be written and %s lost.",
                counted(lost, "line"),
                self._path,
                "is" if lost == 1 else "are",
            )

    # On the worker

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        original = recorded.refers_to
        if original is None:
            return
        is_unmodified = recorded.kind == "revisit" and capture.status == 304
        self._add(
            "warc",
            "not-modified" if is_unmodified else recorded.kind,
            capture.url,
            original_url=original.url,
            original_crawl=original.crawl,
            original_time=date_from_digits(original.date),
            digest=recorded.digest or None,
            record_id=recorded.record_id or None,
            file=recorded.file or None,
            offset=recorded.offset if recorded.file else None,
            bytes_conserved=recorded.conserved_size,
        )

    def _write(self) -> None:
        try:
            written = self._lines.write_to(self._path)
        except OSError as error:
            self._session.counters.error(
                "log",
                ArchiveError(
                    f"The duplicates log {self._path} cannot be written: {error.strerror or error}. Free some space, or name"
                    " another file in DEDUPE_DUPLICATES_LOG."
                ),
                "New lines are kept in memory until the file can be written again.",
            )
        else:
            if written:
                self._session.loop.call(self._session.counters.inc, "dedupe/log/lines", written)

    # On either thread

    def _add(self, layer: str, kind: str, url: str, **values: Any) -> None:
        if layer not in self._layers:
            return
        line: dict[str, Any] = dict.fromkeys(FIELDS)
        line |= self._common | values
        line.update(time=format_date(datetime.now(UTC)), layer=layer, kind=kind, url=_bounded(url))
        if line["original_url"] is not None:
            line["original_url"] = _bounded(line["original_url"])
        self._lines.add(json.dumps(line).encode("ascii") + b"\n")


def check_log(path: Path, *, is_trial: bool = False) -> None:
    """Raise SettingError if the duplicates log cannot be written. With *is_trial*, nothing is created."""
    checked_file(path, "duplicates log", "DEDUPE_DUPLICATES_LOG", is_appended=True, is_trial=is_trial)


def _bounded(url: str) -> str:
    url = without_user(url)
    if len(url) > MAX_URL_CHARS:
        url = f"{url[: MAX_URL_CHARS - 1]}…"
    # Many JSON parsers reject lone surrogates.
    return _SURROGATES.sub("\ufffd", url)
