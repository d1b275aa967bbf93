"""Leftovers of earlier crawls: unfinished files, uncommitted crawls, and files that were not moved."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.output import listed
from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.reports.wording import counted, moment
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.warc.files import OPEN_SUFFIX, warc_files
from scrapy_dedupe.warc.salvage import is_held

from .context import Finding, note, ok, warning
from .stores import file_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo

    from .context import DoctorContext

_SHOWN: Final = 5
_AGE: Final = timedelta(days=1)


def check(context: DoctorContext) -> Iterator[Finding]:
    found = [*_files(context), *_crawls(context)]
    yield from found or [ok("Earlier crawls left nothing to clean up.")]


def _files(context: DoctorContext) -> Iterator[Finding]:
    settings = context.crawl
    if settings is None or "archive" not in context.layers:
        return
    folder = settings.warc.folder
    if not folder.is_dir():
        return
    unfinished = sorted(folder.glob(f"*{OPEN_SUFFIX}"))
    held = [path for path in unfinished if is_held(path)]
    dead = [path for path in unfinished if path not in held]
    if held:
        yield note(
            f"{counted(len(held), 'WARC file')} in {folder} {_are(held)} being written by a running crawl."
        )
    if dead:
        yield warning(
            f"{counted(len(dead), 'WARC file')} of killed crawls {_are(dead)} unfinished: {_names(dead)}.",
            "Run `scrapy dedupe warc salvage`, or start a crawl in the same folder: both repair them and keep all"
            " complete records.",
        )
    url = settings.warc.upload_url
    # With DEDUPE_WACZ the WACZ is moved, and the WARC files may stay.
    if url is not None and not settings.wacz.enabled:
        waiting = warc_files(folder)
        if waiting and not held:
            yield warning(
                f"{counted(len(waiting), 'finished file')} in {folder} {_are(waiting)} not moved to"
                f" DEDUPE_WARC_UPLOAD_URL: {_names(waiting)}.",
                "Move them with `scrapy dedupe warc upload URL`; files of uncommitted crawls are not moved.",
            )


def _crawls(context: DoctorContext) -> Iterator[Finding]:
    url = context.store_urls.get("index")
    if url is None:
        return
    location = parse_store_url(url)
    if location.path is not None and file_state(location.path, location.shown) is not None:
        return
    # The section "stores" reports an unavailable store.
    with suppress(DedupeError), closing(open_store(url, timeout_s=context.timeout_s, create=False)) as store:
        index = store.index
        old = [info for info in index.crawls() if info.state == "uncommitted" and _is_old(info)]
        if old:
            names = listed([info.id for info in old], _SHOWN)
            have = "has" if len(old) == 1 else "have"
            yield warning(
                f"{counted(len(old), 'crawl')} that started more than a day ago {have} not been committed: {names}."
                " Other crawls cannot refer to the records of an uncommitted crawl.",
                f"If it is not running, run `scrapy dedupe commit {old[0].id}` or `scrapy dedupe cancel {old[0].id}`, or"
                " continue it with its JOBDIR.",
            )
        if unfinished := index.unfinished_purge():
            yield warning(
                f"A purge of {counted(len(unfinished), 'crawl')} was interrupted.",
                f"Complete it: `scrapy dedupe purge {' '.join(unfinished[:_SHOWN])}`.",
            )
        queued, claimed = index.queue_length()
        if queued + claimed:
            yield note(
                f"{counted(queued + claimed, 'source is', 'sources are')} waiting to be imported.",
                "`scrapy dedupe import` continues with them.",
            )


def _is_old(info: CrawlInfo) -> bool:
    started = None if info.started is None else moment(info.started)
    return started is not None and datetime.now(UTC) - started > _AGE


def _names(paths: Sequence[Path]) -> str:
    return listed([path.name for path in paths], _SHOWN)


def _are(paths: Sequence[Path]) -> str:
    return "is" if len(paths) == 1 else "are"
