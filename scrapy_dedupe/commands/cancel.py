"""``cancel ID``: removes an uncommitted crawl from the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError

from .bars import Bars

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.crawls import CrawlIndex

    from .stores import CommandStores

HELP = "Cancel an uncommitted crawl: its records are removed from the index. Its files are kept. Repeating it is harmless."


@dataclass(frozen=True, slots=True)
class Canceled:
    """The canceled crawl."""

    id: str
    state: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, see `scrapy dedupe crawls`")
    parser.add_argument(
        "--force",
        action="store_true",
        help="cancel it even if revisits of other crawls refer, or may refer, to its records",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Canceled:
    from scrapy_dedupe.crawls.rebuilding import refuse_running

    with Bars(opts) as bars, bars.kinds("cancel") as on_done, place.open_index() as index:
        refuse_running(index, opts.id, place.settings.warc.folder)
        if not opts.force:
            _refuse_needed(index, opts.id)
        index.cancel(opts.id, on_done)
    return Canceled(opts.id, "canceled")


def _refuse_needed(index: CrawlIndex, crawl: str) -> None:
    """Raise CrawlStateError if other crawls need the crawl or, because it is concurrent, may need it."""
    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.crawls.purging import listed_lines

    dependencies = Dependencies(index)
    info = dependencies.crawls.get(crawl)
    if info is None or info.state != "uncommitted":
        return
    lines = [f"{other} needs {needed}" for other, needed in dependencies.dependants([crawl])]
    if info.concurrent:
        # A running crawl enters its references in batches, so the index does not have all of them yet.
        lines += [f"{other} {why}, and may need it" for other, why in dependencies.undecided([crawl])]
    if lines:
        raise CrawlStateError(
            f"The crawl {crawl} was not canceled, since other crawls refer, or may refer, to its records:\n"
            f"{listed_lines(lines)}\n"
            f"Wait until the running crawls have ended, or commit it (commit {crawl}), or cancel it with --force. With"
            " --force keep its files, since these crawls need them."
        )


def text(result: Canceled) -> str:
    return f"The crawl {result.id} is canceled. Its files were left where they are."
