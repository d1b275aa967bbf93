"""The charts of a report as Vega-Lite specifications, each for a wide and a narrow screen.

Colours are CSS variables and ``currentColor``; the page defines them for light and dark mode. The description of every
mark has its exact numbers. All positions are computed here, so that Vega does not stack, sort or round anything and a
chart shows the same numbers as its table. Legends and titles are in the page.

The axis of the timeline leaves out the time between crawls: there may be a month between two crawls that take a minute
each. A gap takes a hundredth of the axis. A slice that is too narrow to be visible is drawn slightly wider.

The dependencies of crawls are drawn as arcs. The crawls are in a column in the order of their start. Every arc therefore
goes up to an earlier crawl, and names never overlap.

See https://vega.github.io/vega-lite/docs/spec.html
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import wording
from .figures import OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from .figures import Bin, CrawlFigures, CrawlGraph, GraphNode, Share, TimeSlice

Spec = dict[str, Any]

WIDE, NARROW = 940, 344
"""The widths of the charts in pixels."""

KINDS = {
    "unique": ("New", "var(--first)"),
    "unchanged": ("Unchanged", "var(--second)"),
    "changed": ("Changed little", "var(--second)"),
    "exact": ("Equal to another", "var(--second)"),
    "near": ("Nearly equal to another", "var(--second)"),
    "unknown": ("Not judged (error)", "var(--third)"),
}
"""The kinds of verdicts, with their labels and colours."""

_ROWS, _ROWS_NARROW = 10, 6
_NAMES_PX = 240
_AXIS_PX = 46
_LEAST_SHARE = 1 / 400
_GAP_SHARE = 1 / 100
_GAPS_SHARE = 1 / 4
_BAR = {"type": "rect", "ariaRoleDescription": "bar"}
_CONFIG = {
    "font": "Arial, Helvetica, sans-serif",
    "axis": {
        # Screen readers would read the axis as a linear scale; the marks have better descriptions.
        "aria": False,
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "title": {"color": "currentColor", "fontSize": 13, "fontWeight": "bold", "anchor": "start", "offset": 6},
    "text": {"color": "currentColor", "fontSize": 12},
    "view": {"stroke": None},
}

MOST_ARCS = 200
"""More arcs would be unreadable. Arcs to missing crawls are drawn first, then the shortest ones; the table has all."""

_STEPS = 24
_ROW_PX = 24


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity drawn as two stacked bars: singular and plural labels of each part, and a function for the two values."""

    title: str
    first: tuple[str, str]
    second: tuple[str, str]
    values: Callable[[Any], tuple[int, int]]
    is_size: bool = False


MEASURES = (
    Measure(
        "Pages",
        ("new page", "new pages"),
        ("page that repeats a text", "pages that repeat a text"),
        lambda row: (max(0, row.pages - row.duplicates), row.duplicates),
    ),
    Measure(
        "Requests filtered",
        ("", ""),
        ("request filtered", "requests filtered"),
        lambda row: (0, row.requests_filtered or 0),
    ),
    Measure(
        "Bytes",
        ("byte written", "bytes written"),
        ("byte not stored again", "bytes not stored again"),
        lambda row: (row.bytes_written, row.bytes_conserved),
        is_size=True,
    ),
)


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """A slice of the timeline with its position on the axis. ``is_after_gap``: the axis is broken before it."""

    slice: TimeSlice
    start: datetime
    end: datetime
    left: float
    right: float
    is_after_gap: bool

    @property
    def text(self) -> str:
        """The time span in words."""
        is_short = (self.end - self.start).total_seconds() < 60
        until = "%H:%M" if self.start.date() == self.end.date() else "%Y-%m-%d %H:%M"
        seconds = ":%S" if is_short or self.start.second or self.end.second else ""
        return f"{self.start:%Y-%m-%d %H:%M{seconds}} to {self.end:{until}{seconds}} UTC"


def measured(rows: Iterable[TimeSlice | Share]) -> list[Measure]:
    """The measures that are not zero in all rows."""
    rows = list(rows)
    return [measure for measure in MEASURES if any(sum(measure.values(row)) for row in rows)]


def timeline(slices: Sequence[TimeSlice], *, wide: bool) -> Spec | None:
    """Pages, filtered requests and bytes over time; None if there is at most one slice, or nothing but zeros."""
    places = placed(slices)
    measures = measured(place.slice for place in places)
    if not measures or len(places) < 2:
        return None
    labels = time_ticks(places, 8 if wide else 4)
    x_axis = {
        "values": [left for left, _ in labels],
        "labelExpr": "tick_labels[indexof(tick_places, datum.value)]",
        "labelAlign": "left",
        "labelFlush": False,
        "labelOverlap": False,
        "grid": False,
        "title": None,
    }
    gaps = [{"left": place.left} for place in places if place.is_after_gap]
    rule = {"type": "rule", "color": "currentColor", "strokeDash": [2, 3], "aria": False}
    panels = []
    for measure in measures:
        title, divisor = _titled(measure, (place.slice for place in places))
        bars = [
            {"left": place.left, "right": place.right, **bar, "label": f"{place.text}: {bar['label']}"}
            for place in places
            for bar in _bars(measure, place.slice, divisor)
        ]
        axis = {**x_axis, "labels": measure is measures[-1]}
        layers = [_vertical_bars(bars, _quantity("left", scale=_scale(0, places[-1].right), axis=axis))]
        if gaps:
            layers.append(_layer(gaps, rule, x=_quantity("left")))
        width = (WIDE if wide else NARROW) - _AXIS_PX - 24
        panels.append({"title": title, "width": width, "height": 110 if wide else 90, "layer": layers})
    params = [
        {"name": "tick_places", "value": [left for left, _ in labels]},
        {"name": "tick_labels", "value": [lines for _, lines in labels]},
    ]
    return {**_head(), "params": params, "vconcat": panels, "spacing": 14}


def placed(slices: Iterable[TimeSlice]) -> list[PlacedSlice]:
    """The slices in the order of time, with positions from 0 on. Slices with an invalid start are left out."""
    known = [(start, found) for found in slices if (start := wording.moment(found.start)) is not None]
    known.sort(key=lambda pair: (pair[0], pair[1].seconds))
    whole = sum(found.seconds for _, found in known) or 1
    after_gap = [False]
    for (earlier, found), (later, _) in pairwise(known):
        after_gap.append((later - earlier).total_seconds() > found.seconds)
    gap = whole * min(_GAP_SHARE, _GAPS_SHARE / (sum(after_gap) or 1))
    right, answer = 0.0, []
    for (start, found), is_after_gap in zip(known, after_gap, strict=False):
        left = right + (gap if is_after_gap else 0)
        right = left + max(found.seconds, whole * _LEAST_SHARE)
        end = start + timedelta(seconds=found.seconds)
        answer.append(PlacedSlice(found, start, end, left, right, is_after_gap))
    return answer


def time_ticks(slices: list[PlacedSlice], most: int) -> list[tuple[float, list[str]]]:
    """At most *most* positions on the axis with the lines of their labels: the time, and the date where it changes.

    Starts after a gap have priority; labels keep enough distance not to touch each other.
    """
    if not slices:
        return []
    whole = slices[-1].right
    apart = whole / most
    chosen: list[PlacedSlice] = []
    for wanted in (slices[:1], [one for one in slices if one.is_after_gap], slices):
        for one in wanted:
            # Labels are to the right of their ticks, so the last one needs room too.
            if one.left <= whole - apart * 0.8 and all(
                abs(one.left - other.left) >= apart for other in chosen
            ):
                chosen.append(one)
    chosen.sort(key=lambda one: one.left)
    with_seconds = any(one.start.second for one in chosen) and whole < 600
    answer: list[tuple[float, list[str]]] = []
    day = ""
    for one in chosen:
        clock = f"{one.start:%H:%M:%S}" if with_seconds else f"{one.start:%H:%M}"
        earlier_day, day = day, f"{one.start:%Y-%m-%d}"
        answer.append((one.left, [clock] if day == earlier_day else [clock, day]))
    return answer


def verdicts(counts: dict[str, int], *, wide: bool) -> Spec | None:
    """The number of pages per verdict; None if there are none."""
    known = [(kind, counts[kind]) for kind in KINDS if counts.get(kind)]
    known += [(kind, count) for kind, count in counts.items() if kind not in KINDS and count]
    whole = sum(count for _, count in known)
    rows: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for row, (kind, count) in enumerate(known):
        name, color = KINDS.get(kind, (wording.drawn(kind, 36), "var(--third)"))
        share = wording.percent(count, whole)
        text = f"{wording.large_number(count)} ({share})"
        rows.append({"row": row, "name": name, "end": count, "text": text})
        label = f"{name}: {wording.counted(count, 'page')}, {share}"
        bars.append({"row": row, "low": 0, "high": count, "color": color, "label": label})
    if not bars:
        return None
    # Leave room for the text after the longest bar.
    width = WIDE // 2 - _NAMES_PX - 16 if wide else NARROW - 30
    domain = [0, 1.6 * max(bar["high"] for bar in bars)]
    return {**_head(), **_horizontal_bars(rows, bars, width, wide=wide, domain=domain)}


def similarities(bins: Sequence[Bin], *, wide: bool) -> Spec | None:
    """The number of near copies per similarity; None if there are none."""
    known = [found for found in bins if found.pages]
    if not known:
        return None
    bars = [
        {
            "left": found.low,
            "right": found.high,
            "low": 0,
            "high": found.pages,
            "color": "var(--second)",
            "label": f"Similarity {bin_text(found)}: {wording.counted(found.pages, 'page')}",
        }
        for found in known
    ]
    x = _quantity(
        "left",
        # A narrower domain would round different labels to the same text.
        scale=_scale(min(0.95, *(found.low for found in known)), 1.0),
        axis={
            "format": ".0%",
            "grid": False,
            "title": "Similarity to the original",
            "tickCount": 5,
            "labelOverlap": "greedy",
            "labelSeparation": 14,
        },
    )
    width = (WIDE // 2 if wide else NARROW) - _AXIS_PX - 30
    return {**_head(), "width": width, "height": 150, **_vertical_bars(bars, x)}


def bin_text(found: Bin) -> str:
    """The limits of a bin."""
    return f"{100 * found.low:.4g} to {100 * found.high:.4g} %"


def shares(rows: Sequence[Share], *, wide: bool) -> Spec | None:
    """The largest rows, with a panel for each measure, side by side or stacked; None if there is nothing to show."""
    shown = [row for row in rows if row.name != OTHERS][: _ROWS if wide else _ROWS_NARROW]
    measures = measured(shown)
    if not measures:
        return None
    names = [wording.clean(row.name) or "(none)" for row in shown]
    rows_named = [{"row": row, "name": wording.drawn(name, 36)} for row, name in enumerate(names)]
    panels = []
    for place, measure in enumerate(measures):
        title, divisor = _titled(measure, shown)
        bars = [
            {
                "row": number,
                **bar,
                "label": f"{wording.shortened(name, 200)}: {'at least ' if row.is_bound else ''}{bar['label']}",
            }
            for number, (row, name) in enumerate(zip(shown, names, strict=True))
            for bar in _bars(measure, row, divisor)
        ]
        width = (WIDE - _NAMES_PX) // len(measures) - 34 if wide else NARROW - 24
        is_named = place == 0 or not wide
        panel = _horizontal_bars(rows_named, bars, width, wide=wide, is_named=is_named)
        panels.append({"title": title, **panel})
    return {**_head(), "hconcat" if wide else "vconcat": panels, "spacing": 34 if wide else 14}


def ordered(graph: CrawlGraph, crawls: Sequence[CrawlFigures]) -> list[GraphNode]:
    """The crawls of the graph by start; those with an unknown start come first."""
    started = {node.id: node.started or "" for node in graph.nodes}
    started.update({crawl.id: crawl.started for crawl in crawls if crawl.started})
    return sorted(graph.nodes, key=lambda node: (started[node.id], node.id))


def graph(found: CrawlGraph, crawls: Sequence[CrawlFigures], *, wide: bool) -> Spec | None:
    """The chart; None if no crawl needs another."""
    nodes = ordered(found, crawls)
    rows = {node.id: row for row, node in enumerate(nodes)}
    edges = [edge for edge in found.edges if edge.crawl in rows and edge.needs in rows]
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
    x = _quantity("x", scale=_scale(0, 1), axis=None)
    y = _quantity("y", scale=_scale(-0.5, len(nodes) - 0.5, reverse=True), axis=None)
    line = {"type": "line", "strokeWidth": 1.5, "ariaRoleDescription": "arc"}
    order, arc = _quantity("step"), {"field": "arc"}
    point = {"type": "point", "size": 60, "strokeWidth": 2, "color": "currentColor", "opacity": 1}
    hollow = {"test": "datum.is_outside", "value": "var(--paper)"}
    layers = [
        _described(arcs, line, x=x, y=y, order=order, detail=arc, strokeDash=_dashed_if_missing(5, 3)),
        _layer(
            points,
            {**point, "ariaRoleDescription": "crawl"},
            x=x,
            y=y,
            fill={"condition": hollow, "value": "currentColor"},
            strokeDash=_dashed_if_missing(2, 2),
            description={"field": "label"},
        ),
        # Left-aligned in the column: a font that is wider than the one measured here still fits.
        _texts(points, "name", x, y, dx=-names_px, limit=names_px - 34),
    ]
    return {
        **_head(),
        "width": width,
        "height": _ROW_PX * len(nodes),
        "layer": layers,
        "resolve": {"scale": {"strokeDash": "independent"}},
    }


def state_text(node: GraphNode) -> str:
    """The state of a crawl in words, and whether it is outside of the report."""
    state = wording.clean(node.state or "not in the index")
    return state if node.is_in_report else f"{state}; not in this report"


def _head() -> Spec:
    """The common properties of all specifications."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "padding": {"left": 2, "right": 20, "top": 4, "bottom": 4},
        "config": _CONFIG,
    }


def _quantity(field: str, **more: Any) -> Spec:
    """The channel of a numeric field."""
    return {"field": field, "type": "quantitative", **more}


def _scale(low: float, high: float, **more: Any) -> Spec:
    """A scale that is not extended to round numbers."""
    return {"domain": [low, high], "nice": False, **more}


def _layer(values: Sequence[Spec], mark: Spec, **encoding: Spec) -> Spec:
    """A layer of marks."""
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _described(values: Sequence[Spec], mark: Spec, **encoding: Spec) -> Spec:
    """A layer of marks with a colour and a label, which screen readers read."""
    color = {"field": "color", "type": "nominal", "scale": None}
    return _layer(values, mark, color=color, description={"field": "label"}, **encoding)


def _texts(values: Sequence[Spec], field: str, x: Spec, y: Spec, **place: int) -> Spec:
    """A layer of left-aligned texts, which have no mark of their own."""
    mark = {"type": "text", "align": "left", "baseline": "middle", "aria": False, **place}
    return _layer(values, mark, x=x, y=y, text={"field": field})


def _titled(measure: Measure, rows: Iterable[Any]) -> tuple[str, int]:
    """The title of a panel, and the divisor of its values."""
    if not measure.is_size:
        return measure.title, 1
    largest = max((sum(measure.values(row)) for row in rows), default=0)
    for unit, unit_bytes in reversed(wording.SIZE_UNITS):
        if largest >= unit_bytes:
            return f"{measure.title} ({unit})", unit_bytes
    return measure.title, 1


def _bars(measure: Measure, row: Any, divisor: int) -> list[dict[str, Any]]:
    """The two stacked bars of a row, without empty ones."""
    first, second = measure.values(row)
    bars = [
        (0, first, measure.first, "var(--first)"),
        (first, first + second, measure.second, "var(--second)"),
    ]
    return [
        {
            "low": low / divisor,
            "high": high / divisor,
            "color": color,
            "label": wording.counted(high - low, *words),
        }
        for low, high, words, color in bars
        if high > low
    ]


def _vertical_bars(bars: list[dict[str, Any]], x: Spec) -> Spec:
    """Bars from ``left`` to ``right`` and from ``low`` to ``high``."""
    y = _quantity("low", **_counts_axis(bars, 5, minExtent=_AXIS_PX, maxExtent=_AXIS_PX))
    return _described(bars, _BAR, x=x, x2={"field": "right"}, y=y, y2={"field": "high"})


def _horizontal_bars(
    rows: list[dict[str, Any]],
    bars: list[dict[str, Any]],
    width: int,
    *,
    wide: bool,
    is_named: bool = True,
    domain: list[float] | None = None,
) -> Spec:
    """Horizontal bars. The name of a row is left of its bar, or above it on a narrow screen."""
    above = 0.12 if wide else 0.5
    bars = [{**bar, "top": bar["row"] + above, "bottom": bar["row"] + 0.88} for bar in bars]
    x_axis = _counts_axis(bars, 3) if domain is None else {"scale": _scale(*domain), "axis": None}
    x, y = _quantity("low", **x_axis), _quantity("top", scale=_scale(0, len(rows), reverse=True), axis=None)
    layers = [_described(bars, _BAR, x=x, x2={"field": "high"}, y=y, y2={"field": "bottom"})]
    at, middle = _quantity("at"), _quantity("middle")
    if is_named:
        # Left-aligned in the column: a font that is wider than the one measured here still fits.
        place = {"dx": -_NAMES_PX, "limit": _NAMES_PX - 30} if wide else {"limit": width}
        names = [{**row, "at": 0, "middle": row["row"] + (0.5 if wide else 0.25)} for row in rows]
        layers.append(_texts(names, "name", at, middle, **place))
    if domain is not None:
        ends = [{**row, "at": row["end"], "middle": row["row"] + (above + 0.88) / 2} for row in rows]
        layers.append(_texts(ends, "text", at, middle, dx=6))
    return {"width": width, "height": (26 if wide else 40) * len(rows), "layer": layers}


def _counts_axis(bars: list[dict[str, Any]], steps: int, **more: Any) -> Spec:
    """Scale and axis of counts, or of sizes in the unit of the title."""
    largest = max((bar["high"] for bar in bars), default=0) or 1
    ticks = _ticks(largest, steps, is_whole=all(float(bar["high"]).is_integer() for bar in bars))
    axis = {
        "title": None,
        "values": ticks,
        # Vega's format for zero would be 0k.
        "labelExpr": "datum.value ? replace(format(datum.value, '~s'), 'G', 'bn') : '0'"
        if largest >= 10_000
        else "format(datum.value, ',~f')",
        "labelOverlap": "greedy",
        "labelSeparation": 2,
        **more,
    }
    return {"scale": _scale(0, ticks[-1]), "axis": axis}


def _ticks(largest: float, steps: int, *, is_whole: bool) -> list[float]:
    """Round numbers from 0 to at least *largest*, in at most *steps* steps.

    >>> _ticks(1, 5, is_whole=True), _ticks(93, 5, is_whole=True), _ticks(2.2, 3, is_whole=False)
    ([0.0, 1.0], [0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 1.0, 2.0, 3.0])
    """
    power = 10 ** math.floor(math.log10(largest / steps))
    least = 1 if is_whole else 0
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= max(largest / steps, least))
    return [round(float(step * tick), 12) for tick in range(math.ceil(largest / step) + 1)]


def _dashed_if_missing(dash: int, gap: int) -> Spec:
    return {
        "field": "is_missing",
        "type": "nominal",
        "scale": {"domain": [False, True], "range": [[1, 0], [dash, gap]]},
        "legend": None,
    }
