"""``content stats``: what is remembered of texts, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.figures import counted, number_text, size_text
from scrapy_dedupe.content.canonical import version
from scrapy_dedupe.stores import parse_store_url

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Show how many texts are remembered, how they are compared, and how large the store is."


@dataclass(frozen=True, slots=True)
class ContentStats:
    """The numbers of one store.

    ``kept`` texts are those that others are compared with; ``pending`` ones are of pages that have not gone through
    yet. ``templates`` counts the hosts whose template is known. ``canonicalizer`` is that of the settings, the
    ``parameters`` are those that the store was written with. ``bytes`` is the size of the store's files, with all
    that is in them; None for Redis, which does not tell it.
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
    """Add nothing: this verb has no arguments of its own."""


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
    size = (
        "not told by Redis" if stats.bytes is None else f"{size_text(stats.bytes)}, all that is in the file"
    )
    kept, pending = number_text(stats.kept), number_text(stats.pending)
    return "\n".join(
        (
            f"Store      {stats.store}",
            f"Texts      {counted(stats.texts, 'different one')}, {kept} compared with others, {pending} pending",
            f"Templates  {hosts}",
            f"Compared   as {stats.canonicalizer} (DEDUPE_CANONICALIZER)",
            f"Near       {parameters or 'nothing was compared yet'}",
            f"Size       {size}",
        )
    )
