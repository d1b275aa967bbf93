"""``stats``: duplicates and savings over all committed crawls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.stores.base import Counts

from .figures import counted, counts_text, number_text, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.stores.base import CrawlInfo

    from .stores import CommandStores

HELP = "Show the duplicates of all committed crawls, and the bytes saved."


@dataclass(frozen=True, slots=True)
class CrawlStats:
    """The counts of one crawl. Sizes in bytes."""

    id: str
    state: str
    urls: int
    duplicates: int
    conserved_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The sums over the committed crawls, and the number of stored texts. Sizes in bytes.

    ``crawls`` has the number of crawls in each state. ``removed_crawls`` is the number of committed crawls that the
    manifest of the last import did not name, ``removed_bytes`` their size. ``per_crawl`` is None without ``--per-crawl``.
    """

    index: str
    content: str
    crawls: dict[str, int]
    urls: int
    duplicates: int
    conserved_bytes: int
    size_bytes: int
    texts: int
    kept_texts: int
    removed_crawls: int
    removed_bytes: int
    per_crawl: list[CrawlStats] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--per-crawl", action="store_true", help="also show each crawl")


def run(place: CommandStores, opts: argparse.Namespace) -> Stats:
    with place.open_index() as index:
        infos = index.crawls()
        counts = index.counts
        notes = index.import_notes
    store = place.open_content()
    try:
        texts = store.content.statistics()
    finally:
        store.close()
    states = dict.fromkeys(("committed", "uncommitted", "canceled"), 0)
    for info in infos:
        states[info.state] += 1
    return Stats(
        index=place.shown(place.index_url),
        content=place.shown(place.content_url),
        crawls=states,
        urls=counts.total_urls,
        duplicates=counts.dupe_urls,
        conserved_bytes=counts.conserved_size,
        size_bytes=counts.total_crawl_size,
        texts=texts["texts"],
        kept_texts=texts["kept"],
        removed_crawls=notes.removed_crawls,
        removed_bytes=notes.removed_size,
        per_crawl=[_crawl_stats(info) for info in infos] if opts.per_crawl else None,
    )


def text(stats: Stats) -> str:
    counts = Counts(stats.urls, stats.duplicates, stats.conserved_bytes, stats.size_bytes)
    states = ", ".join(f"{number_text(number)} {state}" for state, number in stats.crawls.items())
    lines = [
        f"Crawls    {states}",
        f"Archive   {counts_text(counts)}",
        f"Content   {counted(stats.texts, 'different text')}, {number_text(stats.kept_texts)} of them compared with others",
    ]
    if stats.removed_crawls:
        some = stats.removed_crawls
        crawls, are = ("1 crawl", "is") if some == 1 else (f"{number_text(some)} crawls", "are")
        size = size_text(stats.removed_bytes)
        lines.append(f"Removed   {crawls}, {size}, {are} not in the last imported manifest")
    lines += [
        f"  {crawl.id} ({crawl.state}): "
        + counts_text(Counts(crawl.urls, crawl.duplicates, crawl.conserved_bytes, crawl.size_bytes))
        for crawl in stats.per_crawl or ()
    ]
    return "\n".join(lines)


def _crawl_stats(info: CrawlInfo) -> CrawlStats:
    counts = info.counts
    return CrawlStats(
        info.id,
        info.state,
        counts.total_urls,
        counts.dupe_urls,
        counts.conserved_size,
        counts.total_crawl_size,
    )
