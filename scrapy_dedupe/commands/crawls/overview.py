"""``stats``, ``crawls``, ``crawls show`` and ``crawls graph``: what the crawl index contains."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.commands.options import CRAWL_ID, Option, flag
from scrapy_dedupe.commands.output import as_json, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.crawl_files import is_present
from scrapy_dedupe.crawls.dependencies import Container, Dependencies, Needed
from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores.crawl_index import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.stores.base import Counts, CrawlInfo

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_MAX_NAMES: Final = 3


def _totals(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    with stores.open_index() as index:
        crawls, counts, notes = index.crawls(), index.counts, index.import_notes
    with closing(stores.open_content()) as store:
        texts = store.content.statistics()
    states = ("committed", "uncommitted", "canceled")
    return {
        "index": stores.shown(stores.index_url),
        "content": stores.shown(stores.content_url),
        "crawls": {state: sum(info.state == state for info in crawls) for state in states},
        **_sizes(counts),
        "texts": texts["texts"],
        "kept_texts": texts["kept"],
        "removed_crawls": notes.removed_crawls,
        "removed_bytes": notes.removed_size,
        "per_crawl": [picked(info, "id state") | _sizes(info.counts) for info in crawls]
        if opts.per_crawl
        else None,
    }


def _sizes(counts: Counts) -> dict[str, int]:
    return {
        "urls": counts.total_urls,
        "duplicates": counts.dupe_urls,
        "conserved_bytes": counts.conserved_size,
        "size_bytes": counts.total_crawl_size,
    }


def _sizes_text(sizes: dict[str, Any]) -> str:
    return (
        f"{counted(sizes['urls'], 'response')}, {number(sizes['duplicates'])} of them duplicates;"
        f" {size(sizes['conserved_bytes'])} saved, {size(sizes['size_bytes'])} on disk"
    )


def _totals_lines(totals: dict[str, Any]) -> Iterator[str]:
    yield f"Crawls    {', '.join(f'{number(count)} {state}' for state, count in totals['crawls'].items())}"
    yield f"Archive   {_sizes_text(totals)}"
    yield (
        f"Content   {counted(totals['texts'], 'different text')}, {number(totals['kept_texts'])} of them compared with"
        " others"
    )
    if totals["removed_crawls"]:
        crawls = counted(totals["removed_crawls"], "crawl")
        are = "is" if totals["removed_crawls"] == 1 else "are"
        yield f"Removed   {crawls}, {size(totals['removed_bytes'])}, {are} not in the last imported manifest"
    for crawl in totals["per_crawl"] or ():
        yield f"  {crawl['id']} ({crawl['state']}): {_sizes_text(crawl)}"


STATS = Verb(_totals, _totals_lines, [flag("--per-crawl", "also show each crawl")])


def _list(stores: CommandStores, opts: argparse.Namespace) -> list[tuple[CrawlInfo, dict[str, object]]]:
    """The crawls, each with its containers as in the index, and the crawls that it needs as far as the index knows.

    A container with an unreadable entry is an empty dict, so that the order of the list is kept.
    """
    with stores.open_index() as index:
        dependencies = Dependencies(index, stores.settings.wacz.folder)
        return [
            (info, {"containers": index.containers(id_), "requires": dependencies.crawls_needed(id_)})
            for id_, info in dependencies.crawls.items()
        ]


def _list_json(crawls: list[tuple[CrawlInfo, dict[str, object]]]) -> object:
    return [
        as_json(picked(info, "id state payload started committed counts files"))
        | needs
        | picked(info, "incomplete software imported concurrent waiting marked")
        for info, needs in crawls
    ]


def _list_lines(crawls: list[tuple[CrawlInfo, dict[str, object]]]) -> Iterator[str]:
    if not crawls:
        yield "The index has no crawls."
        return
    rows = [
        (
            info.id,
            _state(info),
            info.started or "",
            counted(info.counts.total_urls, "response"),
            counted(info.counts.dupe_urls, "duplicate"),
            f"{size(info.counts.conserved_size)} saved",
        )
        for info, _ in crawls
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _state(info: CrawlInfo) -> str:
    """Return the state of a crawl with its marks, such as "committed, imported"."""
    marks = {
        "incomplete": info.incomplete,
        "imported": info.imported,
        "concurrent": info.concurrent,
        "marked for removal": info.marked,
    }
    return ", ".join([info.state, *(mark for mark, is_set in marks.items() if is_set)])


CRAWLS = Verb(_list, _list_lines, json=_list_json)


class ShownCrawl(NamedTuple):
    """A crawl with its files, and whether each is present. A file at a URL counts as present, since it was moved there.

    ``needs_unknown`` is the reason why the index may not know all of its needs; None if it knows them.
    """

    info: CrawlInfo
    files: dict[str, bool]
    containers: list[Container]
    needs: list[Needed]
    needs_unknown: str | None
    needed_by: list[str]


def _show(stores: CommandStores, opts: argparse.Namespace) -> ShownCrawl:
    with stores.open_index() as index:
        dependencies = Dependencies(index, stores.settings.wacz.folder)
        info = dependencies.crawls.get(opts.id)
        if info is None:
            raise CrawlStateError(
                f"The index has no crawl {opts.id}. `scrapy dedupe crawls` lists its crawls."
                + did_you_mean(opts.id, dependencies.crawls)
            )
        return ShownCrawl(
            info,
            {name: is_present(name) for name in info.files},
            dependencies.containers(info.id),
            dependencies.needs(info.id),
            dependencies.why_unknown(info.id),
            dependencies.needed_by(info.id),
        )


def _show_json(crawl: ShownCrawl) -> dict[str, Any]:
    names = "id state payload software imported concurrent incomplete marked started committed counts"
    return {
        **as_json(picked(crawl.info, names)),
        "files": [{"name": name, "present": is_there} for name, is_there in crawl.files.items()],
        "containers": [
            picked(container, "filename hash size place") | {"present": container.is_present}
            for container in crawl.containers
        ],
        "needs": [
            picked(need, "crawl state name place") | {"present": need.is_present, "missing": need.is_missing}
            for need in crawl.needs
        ],
        **picked(crawl, "needs_unknown needed_by"),
        **picked(crawl.info, "waiting stats"),
    }


def _show_lines(crawl: ShownCrawl) -> Iterator[str]:
    info = crawl.info
    yield f"Crawl       {info.id}"
    yield f"State       {_state(info)}"
    # The index has the program that imported a crawl, not the one that made it.
    imported = "imported by " if info.imported and info.software else ""
    yield f"Software    {imported}{info.software or 'another program'}, payload {info.payload}"
    yield f"Started     {info.started or 'not known'}"
    yield f"Committed   {info.committed or ('not known' if info.state == 'committed' else 'no')}"
    yield f"Counts      {_sizes_text(_sizes(info.counts))}"
    yield f"Files       {number(len(crawl.files))}"
    yield from (f"  {name} ({_presence(is_there)})" for name, is_there in crawl.files.items())
    yield f"Containers  {number(len(crawl.containers))}"
    for container in crawl.containers:
        yield f"  {_container_text(container, is_made_here=info.software is not None)}"
    yield f"Needs       {number(len(crawl.needs))}"
    for need in crawl.needs:
        name = need.name or "a file whose name is not in the index"
        if not need.is_in_index:
            name += f", {_absence(need)}"
        yield f"  {need.crawl}: {name} ({_presence(need.is_present, need.place)})"
    if crawl.needs_unknown is not None:
        yield f"  The crawl {crawl.needs_unknown}, so it may need more."
    yield f"Needed by   {', '.join(crawl.needed_by) or 'none'}"
    if info.waiting:
        yield (
            f"Waiting     revisits of {number(info.waiting)} payloads, whose originals are not in the index"
        )
    if info.stats is not None:
        yield "Stats"
        yield from (f"  {name}: {info.stats[name]}" for name in sorted(info.stats))


def _show_caveats(crawl: ShownCrawl) -> Iterator[str]:
    # If a crawl is not in the index, its records cannot be found, even if its files are present.
    missing = [
        str(need) if need.is_in_index else f"{need.crawl} ({_absence(need)})"
        for need in crawl.needs
        if need.is_missing
    ]
    if missing:
        yield f"The crawl {crawl.info.id} needs files that are missing: {', '.join(dict.fromkeys(missing))}"


def _absence(need: Needed) -> str:
    return "the crawl is not in the index" if need.state is None else "the crawl was canceled"


def _container_text(container: Container, *, is_made_here: bool) -> str:
    if container.hash is None and container.size is None and is_made_here:
        return f"{container.filename}, not packed"
    length = "" if container.size is None else f", {size(container.size)}"
    hash_ = "SHA-256 not known" if container.hash is None else f"sha256:{container.hash}"
    return f"{container.filename}{length}, {hash_} ({_presence(container.is_present, container.place)})"


def _presence(is_there: bool | None, place: str | None = None) -> str:
    if is_there is None:
        return "place not known"
    word = "present" if is_there else "missing"
    return word if place is None else f"{word}: {place}"


SHOW = Verb(_show, _show_lines, [CRAWL_ID], json=_show_json, caveats=_show_caveats)


def _graph(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    """The crawls, and their needs. The state of a needed crawl that is not in the index is None.

    ``names`` are the needed containers or WARC files, ``missing`` the absent ones of them. ``is_missing``: the needed
    crawl, or one of the files, is missing.
    """
    with stores.open_index() as index:
        dependencies = Dependencies(index, stores.settings.wacz.folder)
        edges: list[dict[str, Any]] = [
            {
                "crawl": crawl,
                "needs": other,
                "names": [need.name for need in needs if need.name],
                "missing": [need.name for need in needs if need.name and need.is_present is False],
                "is_missing": any(need.is_missing for need in needs),
            }
            for crawl in dependencies.crawls
            for other, needs in dependencies.needs_by_crawl(crawl).items()
        ]
    states = {info.id: info.state for info in dependencies.crawls.values()}
    nodes = [
        {"id": crawl, "state": states.get(crawl), "needs_unknown": dependencies.why_unknown(crawl)}
        for crawl in dict.fromkeys([*states, *(edge["needs"] for edge in edges)])
    ]
    return {"nodes": nodes, "edges": edges, "format": opts.format}


def _graph_lines(graph: dict[str, Any]) -> Iterator[str]:
    if graph["format"] == "json":
        yield json.dumps(graph, indent=2, ensure_ascii=False)
        return
    yield from ("digraph crawls {", "  rankdir=LR;", "  node [shape=box];")
    for node in graph["nodes"]:
        name, state = _escaped(node["id"]), node["state"] or "not in the index"
        note = r"\nmay need more" if node["needs_unknown"] else ""
        style = ", style=dashed" if node["state"] in (None, "canceled") else ""
        yield f'  "{name}" [label="{name}\\n{state}{note}"{style}];'
    for edge in graph["edges"]:
        names = edge["names"]
        label = r"\n".join(map(_escaped, names[:_MAX_NAMES]))
        if len(names) > _MAX_NAMES:
            label += rf"\nand {number(len(names) - _MAX_NAMES)} more"
        style = ", style=dashed" if edge["is_missing"] else ""
        yield f'  "{_escaped(edge["crawl"])}" -> "{_escaped(edge["needs"])}" [label="{label}"{style}];'
    yield "}"


def _escaped(name: str) -> str:
    r"""Escape a name for a quoted string of DOT, where a backslash may begin ``\N`` or escape the closing quote.

    >>> _escaped('a "b" c\\')
    'a \\"b\\" c\\\\'
    """
    return _CONTROL.sub("\ufffd", name).replace("\\", "\\\\").replace('"', '\\"')


GRAPH = Verb(
    _graph,
    _graph_lines,
    [Option("--format", None, "dot for Graphviz (default), or json", choices=("dot", "json"), default="dot")],
)
