"""``purge``: removes crawls from the index, by id, by age, or if a manifest does not name them."""

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
    "Purge crawls: they are removed from the index, and new crawls no longer refer to them. Refused if a remaining crawl"
    " needs one of them. Their files are kept."
)


@dataclass(frozen=True, slots=True)
class PurgedCrawl:
    """A purged crawl. ``files`` are its WARC files, ``containers`` its WACZ files, by path or URL where known.

    Files that a remaining crawl has or needs are left out, so the listed ones can be deleted. A WARC file inside a
    container is not listed separately.
    """

    id: str
    state: str
    committed: str | None
    counts: dict[str, int]
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="the ids of crawls, see `scrapy dedupe crawls`")
    parser.add_argument(
        "--missing-from",
        metavar="MANIFEST",
        help="purge the committed crawls that a multi-WACZ JSON (path or URL) does not name",
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="purge crawls committed longer ago: hours (12h), days (30d), weeks (8w), or before a date or time (2026-01-01, UTC)",
    )
    parser.add_argument(
        "--allow-outside",
        action="store_true",
        help="with --missing-from: allow the manifest to name files outside of its own folder",
    )
    parser.add_argument(
        "--force", action="store_true", help="purge even if remaining crawls need, or may need, them"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show which crawls would be purged, and purge none"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> PurgedCrawls:
    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.crawls.purging import check_purge, end_unfinished, purge_crawls

    selections = bool(opts.ids) + (opts.missing_from is not None) + (opts.older_than is not None)
    if not selections:
        raise UsageError("No crawls are named. Give their ids, or use --missing-from or --older-than.")
    if selections > 1:
        raise UsageError("Ids, --missing-from and --older-than cannot be combined. Use one of them.")
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
        # The unreadable part may name a crawl that would be purged.
        raise DamagedInput(f"Nothing was purged, since {manifest} has errors:\n" + "\n".join(faults))
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
    """Resolve links, so that a file that two crawls know under different names is recognised as the same."""
    return place if is_url(place) else os.path.realpath(place)


def _is_in(file: str, container: str) -> bool:
    return file.startswith(f"{container}/")


def text(result: PurgedCrawls) -> str:
    lines = []
    if result.ended:
        lines.append(f"An interrupted purge was completed: {', '.join(result.ended)}.")
    if result.crawls:
        size = size_text(sum(crawl.counts["totalCrawlSize"] for crawl in result.crawls))
        names = ", ".join(crawl.id for crawl in result.crawls)
        number = "1 crawl" if len(result.crawls) == 1 else f"{number_text(len(result.crawls))} crawls"
        was = "was" if len(result.crawls) == 1 else "were"
        done = "would be purged" if result.dry_run else f"{was} purged"
        lines.append(f"{number} of {size} {done}: {names}.")
        files = sum(len(crawl.files) + len(crawl.containers) for crawl in result.crawls)
        kept = "would be kept" if result.dry_run else "were kept"
        lines.append(
            f"Their files {kept}; {number_text(files)} {'is' if files == 1 else 'are'} no longer needed, see --json."
        )
    elif not result.ended:
        lines.append("There are no crawls to purge.")
    if result.needed:
        lines += ["Revisits of remaining crawls lose their originals in the index:", *result.needed]
    if result.undated:
        lines.append(
            f"Kept, since their commit time is unknown: {', '.join(result.undated)}. Purge them by id."
        )
    return "\n".join(lines)
