"""``warc pack ID``: makes the WACZ of a crawl that is uncommitted or has none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.errors import ArchiveError, CrawlStateError

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = (
    "Pack the WARC files of a crawl as WACZ in DEDUPE_WACZ_DIR, if it is uncommitted or has no WACZ yet. With DEDUPE_WACZ"
    " this happens automatically at the end of the crawl, or in `scrapy dedupe commit`."
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A WACZ. Size in bytes; ``captures`` is the number of lines in its index.

    ``requires`` are the containers that it refers to, ``missing`` those of them that are not in its folder.
    """

    crawl: str
    wacz: str
    manifest: str
    sha256: str
    size: int
    captures: int
    pages: int
    requires: list[str]
    missing: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, see `scrapy dedupe crawls`")
    parser.add_argument(
        "--warc-dir",
        metavar="DIR",
        type=Path,
        help="where the crawl's WARC files are (default: DEDUPE_WARC_DIR)",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Packed:
    from scrapy_dedupe.commands.commit import settle_one
    from scrapy_dedupe.live.archive.wacz import pack_by_settings

    with place.open_index() as index, Bars(opts) as bars:
        info = {info.id: info for info in index.crawls()}.get(opts.id)
        if info is None or info.state == "canceled":
            state = "is unknown" if info is None else "is canceled"
            raise CrawlStateError(f"The crawl {opts.id} {state}, so it cannot be packed.")
        if info.state == "committed" and any("hash" in container for container in index.containers(opts.id)):
            raise CrawlStateError(
                f"The crawl {opts.id} is committed and already has a WACZ, which other crawls may refer to. It was not changed."
            )
        if info.incomplete:
            settle_one(index, info, place, opts.warc_dir, bars)
        done = pack_by_settings(
            index, opts.id, place.settings, place.scrapy_settings, warc_folder=opts.warc_dir, watch=bars
        )
    if done is None and info.software is None:
        raise ArchiveError(
            f"The crawl {opts.id} was entered by another program, which does not record its WARC files, and no file in"
            f" {opts.warc_dir or place.settings.warc.folder} belongs to it. Pack it with that program; then purge the"
            " crawl here and import its WACZ."
        )
    if done is None:
        raise ArchiveError(
            f"The crawl {opts.id} has no WARC files in {opts.warc_dir or place.settings.warc.folder}. Name their"
            " folder with --warc-dir."
        )
    return Packed(
        opts.id,
        str(done.wacz.path),
        str(done.manifest),
        done.wacz.sha256,
        done.wacz.size_bytes,
        done.wacz.captures,
        done.wacz.pages,
        [required.filename for required in done.requires],
        list(done.missing),
    )


def text(result: Packed) -> str:
    held = f"{counted(result.captures, 'capture')} and {counted(result.pages, 'page')}"
    return f"{result.wacz} has {held}. Replay it with {result.manifest}."


def caveat(result: Packed) -> str | None:
    if not result.missing:
        return None
    return (
        f"{result.wacz} refers to records in {', '.join(result.missing)}, which is not in its folder. Copy it there before"
        " you replay the archive."
    )
