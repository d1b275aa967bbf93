"""``crawls graph``: the dependencies between crawls, for Graphviz or as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls.dependencies import Dependencies

HELP = (
    "Show which crawls need which, as a graph for Graphviz or as JSON. Missing crawls and files are dashed."
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class Node:
    """A crawl. ``state`` is None for a needed crawl that is not in the index.

    ``needs_unknown`` is the reason why the index may not know all of its needs; None if it knows them.
    """

    id: str
    state: str | None
    needs_unknown: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """One crawl needs another one. ``names`` are the needed containers or WARC files, ``missing`` the absent ones of them.

    ``is_missing``: the other crawl, or one of the files, is missing.
    """

    crawl: str
    needs: str
    names: list[str]
    missing: list[str]
    is_missing: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """The dependencies between the crawls of an index. ``format`` is the output format: dot or json."""

    nodes: list[Node]
    edges: list[Edge]
    format: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("dot", "json"), default="dot", help="dot for Graphviz (default), or json"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Graph:
    from scrapy_dedupe.crawls.dependencies import Dependencies

    with place.open_index() as index:
        dependencies = Dependencies(index, place.settings.wacz.folder)
        edges = [edge for crawl in dependencies.crawls for edge in _edges(dependencies, crawl)]
    known = dependencies.crawls
    nodes = [Node(info.id, info.state, dependencies.why_unknown(info.id)) for info in known.values()]
    absent = dict.fromkeys(edge.needs for edge in edges if edge.needs not in known)
    nodes += [Node(crawl, None, None) for crawl in absent]
    return Graph(nodes, edges, opts.format)


def _edges(dependencies: Dependencies, crawl: str) -> list[Edge]:
    edges: dict[str, Edge] = {}
    for need in dependencies.needs(crawl):
        is_file_missing = need.is_present is False
        known = edges.get(need.crawl) or Edge(crawl, need.crawl, [], [], False)
        names = [need.name] if need.name else []
        edges[need.crawl] = Edge(
            crawl,
            need.crawl,
            known.names + names,
            known.missing + (names if is_file_missing else []),
            known.is_missing or need.is_missing,
        )
    return list(edges.values())


def text(graph: Graph) -> str:
    if graph.format == "json":
        return json.dumps(asdict(graph), indent=2, ensure_ascii=False)
    lines = ["digraph crawls {", "  rankdir=LR;", "  node [shape=box];"]
    for node in graph.nodes:
        state = node.state or "not in the index"
        note = r"\nmay need more" if node.needs_unknown else ""
        style = ", style=dashed" if node.state in (None, "canceled") else ""
        lines.append(f'  {_quoted(node.id)} [label="{_escaped(node.id)}\\n{state}{note}"{style}];')
    for edge in graph.edges:
        names = [_escaped(name) for name in edge.names[:_MAX_NAMES]]
        if len(edge.names) > _MAX_NAMES:
            names.append(f"and {len(edge.names) - _MAX_NAMES:,} more")
        label = r"\n".join(names)
        style = ", style=dashed" if edge.is_missing else ""
        lines.append(f'  {_quoted(edge.crawl)} -> {_quoted(edge.needs)} [label="{label}"{style}];')
    lines.append("}")
    return "\n".join(lines)


def _quoted(name: str) -> str:
    return f'"{_escaped(name)}"'


def _escaped(name: str) -> str:
    r"""Escape a name for a quoted string of DOT, where a backslash may begin ``\N`` or escape the closing quote.

    >>> _escaped('a "b" c\\')
    'a \\"b\\" c\\\\'
    """
    return _CONTROL.sub("\ufffd", name).replace("\\", "\\\\").replace('"', '\\"')
