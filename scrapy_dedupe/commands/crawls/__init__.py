"""``crawls``: every crawl of the index, and its state. ``crawls show ID`` and ``crawls graph`` tell more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scrapy_dedupe.commands.figures import counted, counts_dict, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "List the crawls: which are committed, and which wait for a decision. With a verb: what they need of each other."
VERBS = ("show", "graph")


@dataclass(frozen=True, slots=True)
class Crawl:
    """One crawl. ``requires`` names the crawls whose records it refers to, as far as the index knows.

    A container whose entry cannot be read is empty, so that each keeps its place. ``software`` is None for a crawl of
    another program. ``waiting`` counts the payloads of its revisits whose originals are not in the index. ``marked``:
    Browsertrix will remove it.
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
    """Add nothing: this verb has no arguments of its own."""


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
        return "The index knows no crawls."
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
    """What has the state of a crawl."""

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
    """The state of a crawl, and what is special about it."""
    marks = {
        "incomplete": crawl.incomplete,
        "imported": crawl.imported,
        "concurrent": crawl.concurrent,
        "marked for removal": crawl.marked,
    }
    return ", ".join([crawl.state, *(mark for mark, is_set in marks.items() if is_set)])
