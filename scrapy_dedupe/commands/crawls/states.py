"""``commit``, ``cancel`` and ``purge``: which crawls the index has, and to which of them others may refer.

``commit ID`` lets other crawls refer to the records of a crawl; ``cancel ID`` removes an uncommitted crawl. ``purge``
removes crawls by id, by age, or if a manifest does not name them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import CRAWL_ID, CRAWL_IDS, DRY_RUN, WARC_DIR, Option, flag, time_before
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.crawl_files import is_present
from scrapy_dedupe.crawls.dependencies import Dependencies
from scrapy_dedupe.crawls.purging import (
    check_purge,
    end_unfinished,
    missing_crawls,
    needing_lines,
    purge_crawls,
)
from scrapy_dedupe.crawls.rebuilding import is_lacking, refuse_running, settle, start_lost
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DamagedInput, SettingError, UsageError
from scrapy_dedupe.live.archive.wacz import pack_by_settings
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.warc.manifests import read_manifest
from scrapy_dedupe.warc.remote import real_place

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.tasks.progress import Progress


def _commit(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    with stores.open_index() as index, Bars(opts) as bars:
        before = index.crawl(opts.id)
        folder = opts.warc_dir or stores.settings.warc.folder
        if before is None and start_lost(index, opts.id, folder):
            before = index.crawl(opts.id)
        is_changed = before is not None and before.state == "uncommitted"
        missing: list[str] = []
        is_rebuilt, wacz = False, None
        # An imported crawl is neither read nor packed here; index.commit() explains what to do if its import was cut off.
        if before is not None and is_changed and not before.imported:
            if is_lacking(index, before.id, folder):
                missing = settle_one(index, before, stores, opts.warc_dir, bars)
                is_rebuilt = True
            # An existing WACZ may lack later records, so it is packed again.
            if not opts.no_wacz and index.containers(opts.id):
                wacz = _packed(index, opts.id, stores, opts.warc_dir, bars)
        with bars.kinds("commit") as on_done:
            index.commit(opts.id, on_done=on_done)
        info = index.crawl(opts.id)
    assert info is not None
    return {
        **picked(info, "id state committed counts"),
        # Whether the entries were first read from the files; then "missing" are the absent ones of them.
        "rebuilt": is_rebuilt,
        "wacz": wacz,
        # This verb does not move the files there.
        "upload_url": stores.settings.warc.upload_url if is_changed and stores.given_store is None else None,
        "missing": missing,
    }


def _packed(
    index: CrawlIndex, crawl: str, stores: CommandStores, folder: Path | None, watch: Progress
) -> str | None:
    """Pack a crawl as WACZ. Returns the path, or None for a crawl without WARC files."""
    try:
        done = pack_by_settings(
            index, crawl, stores.settings, stores.scrapy_settings, warc_folder=folder, watch=watch
        )
    except (ArchiveError, SettingError) as error:
        raise type(error)(
            f"{error} The crawl is not committed; --no-wacz commits it without a WACZ."
        ) from error
    return None if done is None else str(done.wacz.path)


def settle_one(
    index: CrawlIndex, crawl: CrawlInfo, stores: CommandStores, folder: Path | None, watch: Progress
) -> list[str]:
    """Enter the records that the index lacks because the crawl was killed or the store was unavailable.

    Returns the missing files, whose records cannot be entered. Raises ArchiveError if all files are missing.
    """
    folder = folder or stores.settings.warc.folder
    missing = [
        name for name in crawl.files if not is_present(name) and not is_present(str(folder / Path(name).name))
    ]
    if crawl.incomplete and crawl.files and len(missing) == len(crawl.files):
        # Reading nothing would leave a committed crawl without records.
        raise ArchiveError(
            f"The crawl {crawl.id} did not end cleanly, so its entries must be read from its WARC files, but none"
            f" of them is in {folder}. Name their folder with --warc-dir."
        )
    settle(index, crawl.id, folder, stores.revisit_rules, watch)
    return missing


def _commit_lines(result: dict[str, Any]) -> Iterator[str]:
    sentences = [f"The crawl {result['id']} is committed."]
    if result["rebuilt"]:
        sentences.append("Missing entries were read from its files.")
    if result["wacz"]:
        sentences.append(f"It was packed as {result['wacz']}.")
    if result["upload_url"]:
        sentences.append(f"Move its files with `scrapy dedupe warc upload {result['upload_url']}`.")
    yield " ".join(sentences)


def _commit_caveats(result: dict[str, Any]) -> Iterator[str]:
    if missing := result["missing"]:
        yield (
            f"The entries of {', '.join(missing)} could not be read, since the file is missing. If it held records, no"
            " crawl can refer to them"
        )


COMMIT = Verb(
    _commit,
    _commit_lines,
    [
        CRAWL_ID,
        WARC_DIR,
        flag("--no-wacz", "do not pack the crawl as WACZ, even if it was started with DEDUPE_WACZ"),
    ],
    caveats=_commit_caveats,
)


def _cancel(stores: CommandStores, opts: argparse.Namespace) -> dict[str, str]:
    with Bars(opts) as bars, bars.kinds("cancel") as on_done, stores.open_index() as index:
        refuse_running(index, opts.id, stores.settings.warc.folder)
        if not opts.force:
            _refuse_needed(index, opts.id)
        index.cancel(opts.id, on_done)
    return {"id": opts.id, "state": "canceled"}


def _refuse_needed(index: CrawlIndex, crawl: str) -> None:
    """Raise CrawlStateError if other crawls need the crawl or, because it is concurrent, may need it."""
    dependencies = Dependencies(index)
    info = dependencies.crawls.get(crawl)
    if info is None or info.state != "uncommitted":
        return
    # A running crawl enters its references in batches, so the index does not have all of them yet.
    if lines := needing_lines(dependencies, [crawl], "it" if info.concurrent else None):
        raise CrawlStateError(
            f"The crawl {crawl} was not canceled, since other crawls refer, or may refer, to its records:\n"
            f"{lines}\n"
            f"Wait until the running crawls have ended, or commit it (commit {crawl}), or cancel it with --force. With"
            " --force keep its files, since these crawls need them."
        )


CANCEL = Verb(
    _cancel,
    lambda result: [f"The crawl {result['id']} is canceled. Its files were left where they are."],
    [
        CRAWL_ID,
        flag("--force", "cancel it even if revisits of other crawls refer, or may refer, to its records"),
    ],
)


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
    in_use = {real_place(file) for file in named}
    purged = []
    for info in (dependencies.crawls[crawl] for crawl in crawls):
        places = [box.place for box in dependencies.containers(info.id) if box.place]
        files = [
            file
            for file in info.files
            if real_place(file) not in in_use and not any(_is_in(file, place) for place in places)
        ]
        containers = [
            place
            for place in places
            if real_place(place) not in in_use and not any(_is_in(file, real_place(place)) for file in in_use)
        ]
        purged.append({**picked(info, "id state committed counts"), "files": files, "containers": containers})
    return purged


def _is_in(file: str, container: str) -> bool:
    return file.startswith(f"{container}/")


def _purge_lines(result: dict[str, Any]) -> Iterator[str]:
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
    _purge_lines,
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
