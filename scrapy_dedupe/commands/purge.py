"""``purge``: forgets crawls, by id, by age, or those that a manifest does not name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.warc.remote import is_url

from .ages import time_before
from .bars import Bars
from .figures import counts_dict, number_text, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.dependencies import Dependencies

    from .stores import CommandStores

HELP = (
    "Purge crawls: the index forgets them, and other crawls do not refer to them any more. Refused while a kept crawl"
    " needs one of them. Their files stay."
)


@dataclass(frozen=True, slots=True)
class PurgedCrawl:
    """A crawl that is purged. ``files`` are its WARC files, ``containers`` its WACZ files, by path or URL where known.

    What a kept crawl has or needs is in neither, so what they name can be deleted. A WARC file in a container goes
    with that.
    """

    id: str
    state: str
    committed: str | None
    counts: dict[str, int]
    files: list[str]
    containers: list[str]


@dataclass(frozen=True, slots=True)
class PurgedCrawls:
    """What was purged, or would be with ``dry_run``.

    ``before`` is the time that ``--older-than`` says, ISO 8601 in UTC; ``undated`` are crawls that were kept because it
    is not known when they were committed. ``ended`` are the crawls of an earlier purge that was cut off and is ended
    now. ``needed`` says which kept crawls have lost originals, with ``--force``.
    """

    store: str
    before: str | None
    manifest: str | None
    crawls: list[PurgedCrawl]
    needed: list[str]
    undated: list[str]
    ended: list[str]
    dry_run: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="the ids of crawls, as the verb crawls lists them"
    )
    parser.add_argument(
        "--missing-from",
        metavar="MANIFEST",
        help="the committed crawls that a multi-WACZ JSON, a path or URL, does not name",
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="those committed longer ago: hours (12h), days (30d), weeks (8w), or before a day or time (2026-01-01, UTC)",
    )
    parser.add_argument(
        "--allow-outside",
        action="store_true",
        help="with --missing-from: the manifest may name files that are not below its own folder",
    )
    parser.add_argument(
        "--force", action="store_true", help="even if kept crawls need them, or if nobody knows that"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say which crawls it would purge, and purge none"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> PurgedCrawls:
    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.crawls.purging import check_purge, end_unfinished, purge_crawls

    ways = bool(opts.ids) + (opts.missing_from is not None) + (opts.older_than is not None)
    if not ways:
        raise UsageError("Which crawls are meant? Name their ids, or use --missing-from, or --older-than.")
    if ways > 1:
        raise UsageError("Ids, --missing-from and --older-than do not go together. Use one of them.")
    before = None if opts.older_than is None else time_before(opts.older_than, datetime.now(UTC))
    with Bars(opts) as bars, bars.kinds("purge") as on_done, place.open_index() as index:
        ended = [] if opts.dry_run else end_unfinished(index, on_done)
        dependencies = Dependencies(index, place.settings.wacz.folder)
        if opts.missing_from is not None:
            wanted = _missing_from(index, opts.missing_from, allow_outside=opts.allow_outside)
        elif before is not None:
            wanted = _older_than(dependencies, before)
        else:
            wanted = [crawl for crawl in dict.fromkeys(opts.ids) if crawl not in ended]
        check_purge(dependencies, wanted, force=opts.force)
        result = PurgedCrawls(
            store=place.shown(place.index_url),
            before=None if before is None else f"{before:%Y-%m-%dT%H:%M:%SZ}",
            manifest=opts.missing_from,
            crawls=_purged(dependencies, wanted),
            needed=[f"{other} needs {needed}" for other, needed in dependencies.dependants(wanted)],
            undated=[] if before is None else _undated(dependencies),
            ended=ended,
            dry_run=opts.dry_run,
        )
        if not opts.dry_run:
            purge_crawls(index, wanted, force=opts.force, on_done=on_done)
    return result


def _missing_from(index: CrawlIndex, manifest: str, *, allow_outside: bool) -> list[str]:
    from scrapy_dedupe.crawls.purging import missing_crawls
    from scrapy_dedupe.warc.manifests import read_manifest

    faults: list[str] = []
    listed = list(read_manifest(manifest, allow_outside=allow_outside, on_fault=faults.append))
    if faults:
        # What cannot be read may name a crawl.
        raise DamagedInput(f"Nothing was purged, since {manifest} is not sound:\n" + "\n".join(faults))
    return missing_crawls(index, listed)


def _older_than(dependencies: Dependencies, before: datetime) -> list[str]:
    return [
        info.id
        for info in dependencies.crawls.values()
        if info.state == "committed"
        and info.committed is not None
        and datetime.fromisoformat(info.committed) < before
    ]


def _undated(dependencies: Dependencies) -> list[str]:
    infos = dependencies.crawls.values()
    return [info.id for info in infos if info.state == "committed" and info.committed is None]


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
        purged.append(
            PurgedCrawl(
                id=info.id,
                state=info.state,
                committed=info.committed,
                counts=counts_dict(info.counts),
                files=[
                    file
                    for file in info.files
                    if _real(file) not in in_use and not any(_is_in(file, place) for place in places)
                ],
                containers=[
                    place
                    for place in places
                    if _real(place) not in in_use and not any(_is_in(file, _real(place)) for file in in_use)
                ],
            )
        )
    return purged


def _real(place: str) -> str:
    """One name for a file, whatever links lead to it. Crawls may name it differently, and must not lose it."""
    return place if is_url(place) else os.path.realpath(place)


def _is_in(file: str, container: str) -> bool:
    return file.startswith(f"{container}/")


def text(result: PurgedCrawls) -> str:
    lines = []
    if result.ended:
        lines.append(f"A purge that was cut off is ended: {', '.join(result.ended)}.")
    if result.crawls:
        size = size_text(sum(crawl.counts["totalCrawlSize"] for crawl in result.crawls))
        names = ", ".join(crawl.id for crawl in result.crawls)
        number = "1 crawl" if len(result.crawls) == 1 else f"{number_text(len(result.crawls))} crawls"
        was = "was" if len(result.crawls) == 1 else "were"
        done = "would be purged" if result.dry_run else f"{was} purged"
        lines.append(f"{number} of {size} {done}: {names}.")
        files = sum(len(crawl.files) + len(crawl.containers) for crawl in result.crawls)
        stay = "stay" if result.dry_run else "were left"
        lines.append(
            f"Their files {stay} where they are; {number_text(files)} {'is' if files == 1 else 'are'} needed no more,"
            " see --json."
        )
    elif not result.ended:
        lines.append("No crawl is to be purged.")
    if result.needed:
        lines += ["Revisits of kept crawls have no original in the index then:", *result.needed]
    if result.undated:
        lines.append(
            f"Kept, since nobody knows when they were committed: {', '.join(result.undated)}. Purge them by id."
        )
    return "\n".join(lines)
