"""``commit ID``: lets other crawls refer to the records of a crawl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.places import is_present
from scrapy_dedupe.errors import ArchiveError, SettingError

from .bars import Bars
from .figures import counts_dict

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.tasks.progress import Progress

    from .stores import CommandStores

HELP = "Commit a crawl: other crawls may then refer to its records. Repeating it is harmless."


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed crawl. ``rebuilt``: its entries were first read from its files.

    ``wacz`` is the container that was packed first, for a crawl that was started with DEDUPE_WACZ. ``upload_url`` is
    the storage to which its files can be moved; this verb does not move them. ``missing`` are files that were absent
    when the entries were read.
    """

    id: str
    state: str
    committed: str | None
    counts: dict[str, int]
    rebuilt: bool
    wacz: str | None = None
    upload_url: str | None = None
    missing: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, see `scrapy dedupe crawls`")
    parser.add_argument(
        "--warc-dir",
        metavar="DIR",
        type=Path,
        help="where the crawl's WARC files are, if entries must be read from them (default: DEDUPE_WARC_DIR)",
    )
    parser.add_argument(
        "--no-wacz",
        action="store_true",
        help="do not pack the crawl as WACZ, even if it was started with DEDUPE_WACZ",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Committed:
    from scrapy_dedupe.crawls.rebuilding import is_lacking

    with place.open_index() as index, Bars(opts) as bars:
        before = {info.id: info for info in index.crawls()}.get(opts.id)
        if before is None:
            before = _reentered(index, opts.id, place, opts.warc_dir)
        missing: list[str] = []
        is_rebuilt, wacz = False, None
        # An imported crawl is neither read nor packed here; index.commit() explains what to do if its import was cut off.
        if before is not None and before.state == "uncommitted" and not before.imported:
            if is_lacking(index, before.id, opts.warc_dir or place.settings.warc.folder):
                missing = settle_one(index, before, place, opts.warc_dir, bars)
                is_rebuilt = True
            if not opts.no_wacz and _has_wacz(index, opts.id):
                wacz = pack_one(index, opts.id, place, opts.warc_dir, bars)
        with bars.kinds("commit") as on_done:
            index.commit(opts.id, on_done=on_done)
        info = next(info for info in index.crawls() if info.id == opts.id)
    is_changed = before is not None and before.state == "uncommitted"
    upload_url = place.settings.warc.upload_url if is_changed and place.given_store is None else None
    return Committed(
        info.id,
        info.state,
        info.committed,
        counts_dict(info.counts),
        is_rebuilt,
        wacz,
        upload_url,
        tuple(missing),
    )


def _has_wacz(index: CrawlIndex, crawl: str) -> bool:
    """Whether the crawl was started with DEDUPE_WACZ. An existing WACZ may lack later records, so it is packed again."""
    return bool(index.containers(crawl))


def pack_one(
    index: CrawlIndex, crawl: str, place: CommandStores, folder: Path | None, watch: Progress
) -> str | None:
    """Pack a crawl as WACZ. Returns the path, or None for a crawl without WARC files."""
    from scrapy_dedupe.live.archive.wacz import pack_by_settings

    try:
        done = pack_by_settings(
            index, crawl, place.settings, place.scrapy_settings, warc_folder=folder, watch=watch
        )
    except (ArchiveError, SettingError) as error:
        raise type(error)(
            f"{error} The crawl is not committed; --no-wacz commits it without a WACZ."
        ) from error
    return None if done is None else str(done.wacz.path)


def _reentered(index: CrawlIndex, crawl: str, place: CommandStores, folder: Path | None) -> CrawlInfo | None:
    """Enter a crawl again that the index has lost, if its files exist. Returns None if there are none."""
    from scrapy_dedupe.crawls.crawl_files import payload_of_files

    payload = payload_of_files(crawl, folder or place.settings.warc.folder)
    if payload is None:
        return None
    index.start(crawl, payload)
    index.mark_incomplete(crawl, True)
    return next(info for info in index.crawls() if info.id == crawl)


def settle_one(
    index: CrawlIndex, crawl: CrawlInfo, place: CommandStores, folder: Path | None, watch: Progress
) -> list[str]:
    """Enter the records that the index lacks because the crawl was killed or the store was unavailable.

    Returns the missing files, whose records cannot be entered. Raises ArchiveError if all files are missing.
    """
    from scrapy_dedupe.crawls.rebuilding import settle
    from scrapy_dedupe.crawls.rules import RevisitRules

    settings = place.settings.warc
    folder = folder or settings.folder
    missing = [name for name in crawl.files if not _is_there(name, folder)]
    if crawl.incomplete and crawl.files and len(missing) == len(crawl.files):
        # Reading nothing would leave a committed crawl without records.
        raise ArchiveError(
            f"The crawl {crawl.id} did not end cleanly, so its entries must be read from its WARC files, but none"
            f" of them is in {folder}. Name their folder with --warc-dir."
        )
    rules = RevisitRules(settings.revisit, settings.min_size, settings.statuses, settings.mime_types)
    settle(index, crawl.id, folder, rules, watch)
    return missing


def _is_there(name: str, folder: Path) -> bool:
    return is_present(name) or is_present(str(folder / Path(name).name))


def text(result: Committed) -> str:
    rebuilt = " Missing entries were read from its files." if result.rebuilt else ""
    packed = f" It was packed as {result.wacz}." if result.wacz else ""
    move = (
        f" Move its files with `scrapy dedupe warc upload {result.upload_url}`." if result.upload_url else ""
    )
    return f"The crawl {result.id} is committed.{rebuilt}{packed}{move}"


def caveat(result: Committed) -> str | None:
    if not result.missing:
        return None
    return (
        f"The entries of {', '.join(result.missing)} could not be read, since the file is missing. If it held records, no"
        " crawl can refer to them."
    )
