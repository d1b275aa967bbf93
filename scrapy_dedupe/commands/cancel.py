"""``cancel ID``: forgets a crawl that is not committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from .place import Place

HELP = "Cancel a crawl: the index forgets its records. Its files stay. Repeating it does no harm."


@dataclass(frozen=True, slots=True)
class Canceled:
    """A crawl that is canceled now."""

    id: str
    state: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, as the verb crawls lists it")


def run(place: Place, opts: argparse.Namespace) -> Canceled:
    from scrapy_dedupe.crawls.rebuilding import refuse_running

    with place.open_index() as index:
        refuse_running(index, opts.id, place.settings.warc.folder)
        index.cancel(opts.id)
    return Canceled(opts.id, "canceled")


def text(result: Canceled) -> str:
    return f"The crawl {result.id} is canceled. Its files were left where they are."
