"""What earlier crawls left: files that are not finished, crawls that nobody decided about, files that were not moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.crawls.index import CrawlIndex
from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.warc.files import OPEN_SUFFIX, warc_files
from scrapy_dedupe.warc.salvage import is_held

from .finding import Said, note, ok, warning
from .stores import file_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo

    from .context import DoctorContext

_SHOWN: Final = 5
_AGE: Final = timedelta(days=1)


def check(patient: DoctorContext) -> Iterator[Said]:
    found = False
    for said in (*_files(patient), *_crawls(patient)):
        found = True
        yield said
    if not found:
        yield ok("Earlier crawls left nothing that somebody has to see to.")


def _files(patient: DoctorContext) -> Iterator[Said]:
    settings = patient.settings
    if settings is None or patient.is_store_given or "archive" not in patient.layers:
        return
    folder = settings.warc.folder
    if not folder.is_dir():
        return
    unfinished = sorted(folder.glob(f"*{OPEN_SUFFIX}"))
    held = [path for path in unfinished if is_held(path)]
    dead = [path for path in unfinished if path not in held]
    if held:
        yield note(
            f"{counted(len(held), 'WARC file')} in {folder} {_is_are(held)} being written by a crawl that runs."
        )
    if dead:
        yield warning(
            f"{counted(len(dead), 'WARC file')} of crawls that were killed {_is_are(dead)} not finished: {_names(dead)}.",
            "Whole records in them are kept: `scrapy dedupe warc salvage`, or the next crawl in the same folder, mends"
            " them.",
        )
    url = settings.warc.upload_url
    # What becomes a WACZ is moved as one, and the WARC files may stay.
    if url is not None and not settings.wacz.enabled:
        waiting = warc_files(folder)
        if waiting and not held:
            yield warning(
                f"{counted(len(waiting), 'finished file')} in {folder} {_is_are(waiting)} not moved to"
                f" DEDUPE_WARC_UPLOAD_URL: {_names(waiting)}.",
                "Move them with `scrapy dedupe warc upload URL`; those of crawls that are not committed stay.",
            )


def _crawls(patient: DoctorContext) -> Iterator[Said]:
    url = patient.store_urls.get("index")
    if url is None:
        return
    location = parse_store_url(url)
    if location.path is not None and file_state(location.path, location.shown) is not None:
        return
    try:
        store = open_store(url, timeout_s=patient.timeout_s, create=False)
    except DedupeError:
        return  # told where the stores are looked at
    try:
        index = CrawlIndex(store.index)
        old = [info for info in index.crawls() if info.state == "uncommitted" and _is_old(info)]
        if old:
            names = ", ".join(info.id for info in old[:_SHOWN])
            more = f" and {len(old) - _SHOWN} more" if len(old) > _SHOWN else ""
            has_have = "has" if len(old) == 1 else "have"
            yield warning(
                f"{counted(len(old), 'crawl')} that began more than a day ago {has_have} not been committed: {names}{more}."
                " If they do not run any more, nobody can refer to what they recorded.",
                f"Decide: `scrapy dedupe commit {old[0].id}`, or `scrapy dedupe cancel {old[0].id}`; or go on with the"
                " JOBDIR of the crawl.",
            )
        if unfinished := index.unfinished_purge():
            yield warning(
                f"A purge of {counted(len(unfinished), 'crawl')} was cut off.",
                f"End it: `scrapy dedupe purge {' '.join(unfinished[:_SHOWN])}`.",
            )
        queued, claimed = index.queue_length()
        if queued + claimed:
            yield note(
                f"{counted(queued + claimed, 'source')} {'is' if queued + claimed == 1 else 'are'} waiting to be imported.",
                "`scrapy dedupe import` goes on with them.",
            )
    except DedupeError:
        return
    finally:
        store.close()


def _is_old(info: CrawlInfo) -> bool:
    if info.started is None:
        return False
    try:
        started = datetime.fromisoformat(info.started)
    except ValueError:
        return False
    return datetime.now(UTC) - (started if started.tzinfo else started.replace(tzinfo=UTC)) > _AGE


def _names(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(path.name for path in paths[:_SHOWN]) + more


def _is_are(paths: Sequence[Path]) -> str:
    return "is" if len(paths) == 1 else "are"
