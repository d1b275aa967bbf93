"""``content stats``: show statistics of the stored texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.figures import counted, number_text, size_text
from scrapy_dedupe.content.canonical import version
from scrapy_dedupe.stores import parse_store_url

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Show the number of stored texts, how they are compared, and the size of the store."


@dataclass(frozen=True, slots=True)
class ContentStats:
    """The statistics of one store.

    ``kept`` texts are compared with new ones; ``pending`` texts belong to pages that are still being processed.
    ``templates`` is the number of hosts with a template. ``canonicalizer`` is that of the settings; the ``parameters``
    are those with which the store was written. ``bytes`` is the size of the store's files, including all other data in
    them; None for Redis, which does not report it.
    """

    store: str
    texts: int
    kept: int
    pending: int
    templates: int
    canonicalizer: str
    parameters: dict[str, str]
    bytes: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: this verb has no arguments."""


def run(place: CommandStores, opts: argparse.Namespace) -> ContentStats:
    canonicalizer = version(place.settings.content.canonicalizer)
    store = place.open_content()
    try:
        numbers = store.content.statistics()
        parameters = store.content.parameters()
    finally:
        store.close()
    return ContentStats(
        store=place.shown(place.content_url),
        texts=numbers["texts"],
        kept=numbers["kept"],
        pending=numbers["pending"],
        templates=numbers["templates"],
        canonicalizer=canonicalizer,
        parameters=dict(sorted(parameters.items())),
        bytes=_size(place.content_url),
    )


def _size(url: str) -> int | None:
    path = parse_store_url(url).path
    if path is None:
        return None
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def text(stats: ContentStats) -> str:
    hosts = counted(stats.templates, "host")
    parameters = ", ".join(f"{name} {value}" for name, value in stats.parameters.items())
    size = "not reported by Redis" if stats.bytes is None else f"{size_text(stats.bytes)}, the whole file"
    kept, pending = number_text(stats.kept), number_text(stats.pending)
    return "\n".join(
        (
            f"Store      {stats.store}",
            f"Texts      {counted(stats.texts, 'different text')}, {kept} compared with new ones, {pending} pending",
            f"Templates  {hosts}",
            f"Compared   as {stats.canonicalizer} (DEDUPE_CANONICALIZER)",
            f"Near       {parameters or 'nothing was compared yet'}",
            f"Size       {size}",
        )
    )
