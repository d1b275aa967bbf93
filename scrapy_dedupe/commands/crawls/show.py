"""``crawls show ID``: the details of one crawl, and whether its files are present."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.figures import counts_dict, counts_text, number_text, size_text
from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts

from . import state_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Show one crawl: its files, the files that it needs from other crawls, the crawls that need it, and what is missing."


@dataclass(frozen=True, slots=True)
class CrawlFile:
    """A WARC file of the crawl. A file at a URL counts as present, since it was moved there."""

    name: str
    present: bool


@dataclass(frozen=True, slots=True)
class ContainerShown:
    """A WACZ file of the crawl. Size in bytes; ``present`` is None if its place is unknown."""

    filename: str
    hash: str | None
    size: int | None
    place: str | None
    present: bool | None


@dataclass(frozen=True, slots=True)
class NeedShown:
    """A container, or a WARC file, of another crawl that revisits of this one refer to.

    ``state`` is the state of the other crawl, None if it is not in the index; ``present`` as in :class:`ContainerShown`.
    """

    crawl: str
    state: str | None
    name: str | None
    place: str | None
    present: bool | None
    missing: bool


@dataclass(frozen=True, slots=True)
class CrawlShown:
    """One crawl. ``needs_unknown`` is the reason why the index may not know all of its needs; None if it knows them.

    ``waiting`` is the number of payloads of its revisits whose originals are not in the index.
    """

    id: str
    state: str
    payload: str
    software: str | None
    imported: bool
    concurrent: bool
    incomplete: bool
    marked: bool
    started: str | None
    committed: str | None
    counts: dict[str, int]
    files: list[CrawlFile]
    containers: list[ContainerShown]
    needs: list[NeedShown]
    needs_unknown: str | None
    needed_by: list[str]
    waiting: int
    stats: Mapping[str, object] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the crawl's id, see `scrapy dedupe crawls`")


def run(place: CommandStores, opts: argparse.Namespace) -> CrawlShown:
    from scrapy_dedupe.crawls.dependencies import Dependencies
    from scrapy_dedupe.crawls.places import is_present
    from scrapy_dedupe.stores.crawl_index import did_you_mean

    with place.open_index() as index:
        dependencies = Dependencies(index, place.settings.wacz.folder)
        info = dependencies.crawls.get(opts.id)
        if info is None:
            raise CrawlStateError(
                f"The index has no crawl {opts.id}. `scrapy dedupe crawls` lists its crawls."
                + did_you_mean(opts.id, dependencies.crawls)
            )
        return CrawlShown(
            id=info.id,
            state=info.state,
            payload=info.payload,
            software=info.software,
            imported=info.imported,
            concurrent=info.concurrent,
            incomplete=info.incomplete,
            marked=info.marked,
            started=info.started,
            committed=info.committed,
            counts=counts_dict(info.counts),
            files=[CrawlFile(name, is_present(name)) for name in info.files],
            containers=[
                ContainerShown(
                    container.filename, container.hash, container.size, container.place, container.is_present
                )
                for container in dependencies.containers(info.id)
            ],
            needs=[
                NeedShown(need.crawl, need.state, need.name, need.place, need.is_present, need.is_missing)
                for need in dependencies.needs(info.id)
            ],
            needs_unknown=dependencies.why_unknown(info.id),
            needed_by=dependencies.needed_by(info.id),
            waiting=info.waiting,
            stats=info.stats,
        )


def text(crawl: CrawlShown) -> str:
    counts = Counts(
        *(crawl.counts[name] for name in ("totalUrls", "dupeUrls", "conservedSize", "totalCrawlSize"))
    )
    lines = [
        f"Crawl       {crawl.id}",
        f"State       {state_text(crawl)}",
        f"Software    {crawl.software or 'another program'}, payload {crawl.payload}",
        f"Started     {crawl.started or 'not known'}",
        f"Committed   {crawl.committed or ('not known' if crawl.state == 'committed' else 'no')}",
        f"Counts      {counts_text(counts)}",
        f"Files       {number_text(len(crawl.files))}",
        *(f"  {file.name} ({_presence(file.present)})" for file in crawl.files),
        f"Containers  {number_text(len(crawl.containers))}",
        *(
            f"  {_container_text(container, is_made_here=crawl.software is not None)}"
            for container in crawl.containers
        ),
        f"Needs       {number_text(len(crawl.needs))}",
        *(f"  {_need_text(need)}" for need in crawl.needs),
    ]
    if crawl.needs_unknown is not None:
        lines.append(f"  The crawl {crawl.needs_unknown}, so it may need more.")
    lines.append(f"Needed by   {', '.join(crawl.needed_by) or 'none'}")
    if crawl.waiting:
        lines.append(
            f"Waiting     revisits of {number_text(crawl.waiting)} payloads, whose originals are not in the index"
        )
    if crawl.stats is not None:
        lines += ["Stats", *(f"  {name}: {crawl.stats[name]}" for name in sorted(crawl.stats))]
    return "\n".join(lines)


def caveat(crawl: CrawlShown) -> str | None:
    missing = [need for need in crawl.needs if need.missing]
    if not missing:
        return None
    # If a crawl is not in the index, its records cannot be found, even if its files are present.
    names = ", ".join(dict.fromkeys(_missing_text(need) for need in missing))
    return f"The crawl {crawl.id} needs files that are missing: {names}."


def _missing_text(need: NeedShown) -> str:
    if need.state is None:
        return f"{need.crawl} (the crawl is not in the index)"
    if need.state == "canceled":
        return f"{need.crawl} (the crawl was canceled)"
    return f"{need.crawl} ({need.name})" if need.name else need.crawl


def _need_text(need: NeedShown) -> str:
    name = need.name or "a file whose name is not in the index"
    if need.state is None:
        name += ", the crawl is not in the index"
    elif need.state == "canceled":
        name += ", the crawl was canceled"
    return f"{need.crawl}: {name} ({_presence(need.present, need.place)})"


def _container_text(container: ContainerShown, *, is_made_here: bool) -> str:
    if container.hash is None and container.size is None and is_made_here:
        return f"{container.filename}, not packed"
    size = "" if container.size is None else f", {size_text(container.size)}"
    hash_ = "SHA-256 not known" if container.hash is None else f"sha256:{container.hash}"
    return f"{container.filename}{size}, {hash_} ({_presence(container.present, container.place)})"


def _presence(present: bool | None, place: str | None = None) -> str:
    if present is None:
        return "place not known"
    words = "present" if present else "missing"
    return words if place is None else f"{words}: {place}"
