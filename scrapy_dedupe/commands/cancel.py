"""``cancel ID``: forgets a crawl that is not committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError

from .bars import Bars

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.crawls import CrawlIndex

    from .stores import CommandStores

HELP = "Cancel a crawl: the index forgets its records. Its files stay. Repeating it does no harm."


@dataclass(frozen=True, slots=True)
class Canceled:
    """A crawl that is canceled now."""

    id: str
    state: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, as the verb crawls lists it")
    parser.add_argument(
        "--force",
        action="store_true",
        help="even if revisits of other crawls refer to its records already, or may",
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
    """Refuse while other crawls need one or may need it, which is possible if it is concurrent."""
    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.crawls.purging import listed_lines

    dependencies = Dependencies(index)
    info = dependencies.crawls.get(crawl)
    if info is None or info.state != "uncommitted":
        return
    lines = [f"{other} needs {needed}" for other, needed in dependencies.dependants([crawl])]
    if info.concurrent:
        # What a running crawl refers to is entered in batches, so the index does not know it all.
        lines += [f"{other} {why}, and may need it" for other, why in dependencies.undecided([crawl])]
    if lines:
        raise CrawlStateError(
            f"The crawl {crawl} was not canceled, since others refer to its records already, or may:\n"
            f"{listed_lines(lines)}\n"
            f"Wait for those that run; or commit it (commit {crawl}), or cancel it with --force: keep its files then, which"
            " those others need."
        )


def text(result: Canceled) -> str:
    return f"The crawl {result.id} is canceled. Its files were left where they are."
