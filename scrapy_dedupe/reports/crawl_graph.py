"""The dependencies of crawls, drawn as arcs.

The crawls are in a column in the order of their start. Every arc therefore goes up to an earlier crawl, and names never
overlap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from . import wording
from .chart_specs import NARROW, WIDE, described, head, layer, quantity, scale, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .chart_specs import Spec
    from .figures import CrawlFigures, CrawlGraph, GraphNode

MOST_ARCS = 200
"""More arcs would be unreadable. Arcs to missing crawls are drawn first, then the shortest ones; the table has all."""

_STEPS = 24
_ROW_PX = 24


def ordered(graph: CrawlGraph, crawls: Sequence[CrawlFigures]) -> list[GraphNode]:
    """The crawls of the graph by start; those with an unknown start come first."""
    started = {node.id: node.started or "" for node in graph.nodes}
    started.update({crawl.id: crawl.started for crawl in crawls if crawl.started})
    return sorted(graph.nodes, key=lambda node: (started[node.id], node.id))


def spec(graph: CrawlGraph, crawls: Sequence[CrawlFigures], *, wide: bool) -> Spec | None:
    """The chart; None if no crawl needs another."""
    nodes = ordered(graph, crawls)
    rows = {node.id: row for row, node in enumerate(nodes)}
    edges = [edge for edge in graph.edges if edge.crawl in rows and edge.needs in rows]
    edges.sort(key=lambda edge: (not edge.is_missing, abs(rows[edge.crawl] - rows[edge.needs])))
    if not edges:
        return None
    names_px = 260 if wide else 160
    width = (WIDE * 2 // 3 if wide else NARROW - 24) - names_px
    arcs: list[dict[str, Any]] = []
    for number, edge in enumerate(edges[:MOST_ARCS]):
        start, end = rows[edge.crawl], rows[edge.needs]
        # Nearly a semicircle if there is room for it, flatter if there are many crawls.
        rows_apart = abs(start - end)
        reach = min(math.sqrt(rows_apart / len(nodes)), 0.7 * _ROW_PX * rows_apart / width)
        label = f"{wording.clean(edge.crawl)} needs {wording.clean(edge.needs)}"
        label += f" in {wording.counted(edge.files, 'file')}" if edge.files else ""
        label += ", which is missing" if edge.is_missing else ""
        for step in range(_STEPS + 1):
            angle = math.pi * step / _STEPS
            arcs.append(
                {
                    "arc": number,
                    "step": step,
                    "x": reach * math.sin(angle),
                    "y": start + (end - start) * (1 - math.cos(angle)) / 2,
                    "label": label,
                    "color": "var(--second)" if edge.is_missing else "var(--first)",
                    "is_missing": edge.is_missing,
                }
            )
    points = [
        {
            "x": 0,
            "y": row,
            "name": wording.drawn(node.id, 40),
            "label": f"{wording.clean(node.id)}: {state_text(node)}",
            "is_missing": node.state in (None, "canceled"),
            "is_outside": not node.is_in_report,
        }
        for row, node in enumerate(nodes)
    ]
    x = quantity("x", scale=scale(0, 1), axis=None)
    y = quantity("y", scale=scale(-0.5, len(nodes) - 0.5, reverse=True), axis=None)
    line = {"type": "line", "strokeWidth": 1.5, "ariaRoleDescription": "arc"}
    order, arc = quantity("step"), {"field": "arc"}
    point = {"type": "point", "size": 60, "strokeWidth": 2, "color": "currentColor", "opacity": 1}
    hollow = {"test": "datum.is_outside", "value": "var(--paper)"}
    layers = [
        described(arcs, line, x=x, y=y, order=order, detail=arc, strokeDash=_dashed_if_missing(5, 3)),
        layer(
            points,
            {**point, "ariaRoleDescription": "crawl"},
            x=x,
            y=y,
            fill={"condition": hollow, "value": "currentColor"},
            strokeDash=_dashed_if_missing(2, 2),
            description={"field": "label"},
        ),
        # Left-aligned in the column: a font that is wider than the one measured here still fits.
        texts(points, "name", x, y, dx=-names_px, limit=names_px - 34),
    ]
    return {
        **head(),
        "width": width,
        "height": _ROW_PX * len(nodes),
        "layer": layers,
        "resolve": {"scale": {"strokeDash": "independent"}},
    }


def _dashed_if_missing(dash: int, gap: int) -> Spec:
    return {
        "field": "is_missing",
        "type": "nominal",
        "scale": {"domain": [False, True], "range": [[1, 0], [dash, gap]]},
        "legend": None,
    }


def state_text(node: GraphNode) -> str:
    """The state of a crawl in words, and whether it is outside of the report."""
    state = wording.clean(node.state or "not in the index")
    return state if node.is_in_report else f"{state}; not in this report"
