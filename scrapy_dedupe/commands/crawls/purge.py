"""``purge``: removes crawls from the index, by id, by age, or if a manifest does not name them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import CRAWL_IDS, DRY_RUN, Option, flag, time_before
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.dependencies import Dependencies
from scrapy_dedupe.crawls.purging import check_purge, end_unfinished, missing_crawls, purge_crawls
from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.warc.manifests import read_manifest
from scrapy_dedupe.warc.remote import is_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import Counts


@dataclass(frozen=True, slots=True)
class PurgedCrawl:
    """A purged crawl. ``files`` are its WARC files, ``containers`` its WACZ files, by path or URL where known.

    Files that a remaining crawl has or needs are left out, so the listed ones can be deleted. A WARC file inside a
    container is not listed separately.
    """

    id: str
    state: str
    committed: str | None
    counts: Counts
    files: list[str]
    containers: list[str]


@dataclass(frozen=True, slots=True)
class PurgedCrawls:
    """The crawls that were purged, or with ``dry_run`` would be purged.

    ``before`` is the limit that ``--older-than`` sets, ISO 8601 in UTC; ``undated`` are crawls that were kept because
    their commit time is unknown. ``ended`` are the crawls of an earlier, interrupted purge that was completed now.
    ``needed`` lists remaining crawls that have lost originals, with ``--force``.
    """

    store: str
    before: str | None
    manifest: str | None
    crawls: list[PurgedCrawl]
    needed: list[str]
    undated: list[str]
    ended: list[str]
    dry_run: bool


def _purge(stores: CommandStores, opts: argparse.Namespace) -> PurgedCrawls:
    selections = bool(opts.ids) + (opts.missing_from is not None) + (opts.older_than is not None)
    if not selections:
        raise UsageError("No crawls are named. Give their ids, or use --missing-from or --older-than.")
    if selections > 1:
        raise UsageError("Ids, --missing-from and --older-than cannot be combined. Use one of them.")
    before = None if opts.older_than is None else time_before(opts.older_than, datetime.now(UTC))
    with Bars(opts) as bars, bars.kinds("purge") as on_done, stores.open_index() as index:
        ended = [] if opts.dry_run else end_unfinished(index, on_done)
        dependencies = Dependencies(index, stores.settings.wacz.folder)
        committed = [info for info in dependencies.crawls.values() if info.state == "committed"]
        if opts.missing_from is not None:
            wanted = _missing_from(index, opts.missing_from, allow_outside=opts.allow_outside)
        elif before is not None:
            wanted = [
                info.id
                for info in committed
                if info.committed is not None and datetime.fromisoformat(info.committed) < before
            ]
        else:
            wanted = [crawl for crawl in dict.fromkeys(opts.ids) if crawl not in ended]
        check_purge(dependencies, wanted, force=opts.force)
        result = PurgedCrawls(
            store=stores.shown(stores.index_url),
            before=None if before is None else f"{before:%Y-%m-%dT%H:%M:%SZ}",
            manifest=opts.missing_from,
            crawls=_purged(dependencies, wanted),
            needed=[f"{other} needs {needed}" for other, needed in dependencies.dependants(wanted)],
            undated=[info.id for info in committed if before is not None and info.committed is None],
            ended=ended,
            dry_run=opts.dry_run,
        )
        if not opts.dry_run:
            purge_crawls(index, wanted, force=opts.force, on_done=on_done)
    return result


def _missing_from(index: CrawlIndex, manifest: str, *, allow_outside: bool) -> list[str]:
    faults: list[str] = []
    listed = list(read_manifest(manifest, allow_outside=allow_outside, on_fault=faults.append))
    if faults:
        # The unreadable part may name a crawl that would be purged.
        raise DamagedInput(f"Nothing was purged, since {manifest} has errors:\n" + "\n".join(faults))
    return missing_crawls(index, listed)


def _purged(dependencies: Dependencies, crawls: list[str]) -> list[PurgedCrawl]:
    kept = [info for info in dependencies.crawls.values() if info.id not in crawls]
    named = {file for info in kept for file in info.files}
    for info in kept:
        named |= dependencies.files_needed(info.id)
        named |= {box.place for box in dependencies.containers(info.id) if box.place}
    in_use = {_real(file) for file in named}
    purged = []
    for info in (dependencies.crawls[crawl] for crawl in crawls):
        places = [box.place for box in dependencies.containers(info.id) if box.place]
        files = [
            file
            for file in info.files
            if _real(file) not in in_use and not any(_is_in(file, place) for place in places)
        ]
        containers = [
            place
            for place in places
            if _real(place) not in in_use and not any(_is_in(file, _real(place)) for file in in_use)
        ]
        purged.append(PurgedCrawl(info.id, info.state, info.committed, info.counts, files, containers))
    return purged


def _real(place: str) -> str:
    """Resolve links, so that a file that two crawls know under different names is recognised as the same."""
    return place if is_url(place) else os.path.realpath(place)


def _is_in(file: str, container: str) -> bool:
    return file.startswith(f"{container}/")


def _lines(result: PurgedCrawls) -> Iterator[str]:
    if result.ended:
        yield f"An interrupted purge was completed: {', '.join(result.ended)}."
    if result.crawls:
        total = size(sum(crawl.counts.total_crawl_size for crawl in result.crawls))
        names = ", ".join(crawl.id for crawl in result.crawls)
        were = "would be" if result.dry_run else "was" if len(result.crawls) == 1 else "were"
        yield f"{counted(len(result.crawls), 'crawl')} of {total} {were} purged: {names}."
        files = sum(len(crawl.files) + len(crawl.containers) for crawl in result.crawls)
        kept = "would be kept" if result.dry_run else "were kept"
        yield f"Their files {kept}; {number(files)} {'is' if files == 1 else 'are'} no longer needed, see --json."
    elif not result.ended:
        yield "There are no crawls to purge."
    if result.needed:
        yield "Revisits of remaining crawls lose their originals in the index:"
        yield from result.needed
    if result.undated:
        yield f"Kept, since their commit time is unknown: {', '.join(result.undated)}. Purge them by id."


PURGE = Verb(
    _purge,
    _lines,
    [
        CRAWL_IDS,
        Option(
            "--missing-from", "MANIFEST", "purge the committed crawls that a multi-WACZ JSON does not name"
        ),
        Option(
            "--older-than",
            "AGE",
            "purge crawls committed longer ago (12h, 30d, 8w), or before a date (2026-01-01, UTC)",
        ),
        flag(
            "--allow-outside",
            "with --missing-from: allow the manifest to name files outside of its own folder",
        ),
        flag("--force", "purge even if remaining crawls need, or may need, them"),
        DRY_RUN,
    ],
)
