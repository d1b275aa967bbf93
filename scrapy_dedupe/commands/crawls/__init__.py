"""``crawls``: lists the crawls of the index. ``crawls show ID`` and ``crawls graph`` give details."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scrapy_dedupe.commands.figures import counted, counts_dict, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "List all crawls with their states and counts. The verbs show and graph display dependencies between crawls."
VERBS = ("show", "graph")


@dataclass(frozen=True, slots=True)
class Crawl:
    """One crawl. ``requires`` names the crawls whose records it refers to, as far as the index knows.

    A container with an unreadable entry is an empty dict, so that the order of the list is kept. ``software`` is None
    for a crawl of another program. ``waiting`` is the number of payloads of its revisits whose originals are not in the
    index. ``marked``: Browsertrix has marked the crawl for removal.
    """

    id: str
    state: str
    payload: str
    started: str | None
    committed: str | None
    counts: dict[str, int]
    files: list[str]
    containers: list[dict[str, object]]
    requires: list[str]
    incomplete: bool
    software: str | None
    imported: bool
    concurrent: bool
    waiting: int
    marked: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: this verb has no arguments."""


def run(place: CommandStores, opts: argparse.Namespace) -> list[Crawl]:
    from scrapy_dedupe.crawls.dependencies import Dependencies

    with place.open_index() as index:
        dependencies = Dependencies(index, place.settings.wacz.folder)
        return [
            Crawl(
                id=info.id,
                state=info.state,
                payload=info.payload,
                started=info.started,
                committed=info.committed,
                counts=counts_dict(info.counts),
                files=list(info.files),
                containers=index.containers(info.id),
                requires=dependencies.crawls_needed(info.id),
                incomplete=info.incomplete,
                software=info.software,
                imported=info.imported,
                concurrent=info.concurrent,
                waiting=info.waiting,
                marked=info.marked,
            )
            for info in dependencies.crawls.values()
        ]


def text(crawls: list[Crawl]) -> str:
    if not crawls:
        return "The index has no crawls."
    rows = [
        (
            crawl.id,
            state_text(crawl),
            crawl.started or "",
            counted(crawl.counts["totalUrls"], "response"),
            counted(crawl.counts["dupeUrls"], "duplicate"),
            f"{size_text(crawl.counts['conservedSize'])} saved",
        )
        for crawl in crawls
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


class HasState(Protocol):
    """An object with the state of a crawl."""

    @property
    def state(self) -> str: ...

    @property
    def incomplete(self) -> bool: ...

    @property
    def imported(self) -> bool: ...

    @property
    def concurrent(self) -> bool: ...

    @property
    def marked(self) -> bool: ...


def state_text(crawl: HasState) -> str:
    """Return the state of a crawl with its marks, such as "committed, imported"."""
    marks = {
        "incomplete": crawl.incomplete,
        "imported": crawl.imported,
        "concurrent": crawl.concurrent,
        "marked for removal": crawl.marked,
    }
    return ", ".join([crawl.state, *(mark for mark, is_set in marks.items() if is_set)])
