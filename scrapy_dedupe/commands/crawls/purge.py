"""``purge``: removes crawls from the index, by id, by age, or if a manifest does not name them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import CRAWL_IDS, DRY_RUN, Option, flag, time_before
from scrapy_dedupe.commands.output import picked
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


def _purge(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
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
        result = {
            "store": stores.shown(stores.index_url),
            "before": None if before is None else f"{before:%Y-%m-%dT%H:%M:%SZ}",
            "manifest": opts.missing_from,
            "crawls": _purged(dependencies, wanted),
            # With --force: remaining crawls that lose originals.
            "needed": [f"{other} needs {needed}" for other, needed in dependencies.dependants(wanted)],
            # Kept, since their commit time is unknown.
            "undated": [info.id for info in committed if before is not None and info.committed is None],
            # Crawls of an earlier, interrupted purge.
            "ended": ended,
            "dry_run": opts.dry_run,
        }
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


def _purged(dependencies: Dependencies, crawls: list[str]) -> list[dict[str, Any]]:
    """The crawls with their WARC files and their containers, by path or URL where known.

    Files that a remaining crawl has or needs are left out, so the listed ones can be deleted. A WARC file inside a
    container is not listed separately.
    """
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
        purged.append({**picked(info, "id state committed counts"), "files": files, "containers": containers})
    return purged


def _real(place: str) -> str:
    """Resolve links, so that a file that two crawls know under different names is recognised as the same."""
    return place if is_url(place) else os.path.realpath(place)


def _is_in(file: str, container: str) -> bool:
    return file.startswith(f"{container}/")


def _lines(result: dict[str, Any]) -> Iterator[str]:
    crawls, ended, dry_run = result["crawls"], result["ended"], result["dry_run"]
    if ended:
        yield f"An interrupted purge was completed: {', '.join(ended)}."
    if crawls:
        total = size(sum(crawl["counts"].total_crawl_size for crawl in crawls))
        names = ", ".join(crawl["id"] for crawl in crawls)
        were = "would be" if dry_run else "was" if len(crawls) == 1 else "were"
        yield f"{counted(len(crawls), 'crawl')} of {total} {were} purged: {names}."
        files = sum(len(crawl["files"]) + len(crawl["containers"]) for crawl in crawls)
        kept = "would be kept" if dry_run else "were kept"
        yield f"Their files {kept}; {number(files)} {'is' if files == 1 else 'are'} no longer needed, see --json."
    elif not ended:
        yield "There are no crawls to purge."
    if result["needed"]:
        yield "Revisits of remaining crawls lose their originals in the index:"
        yield from result["needed"]
    if result["undated"]:
        yield f"Kept, since their commit time is unknown: {', '.join(result['undated'])}. Purge them by id."


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
