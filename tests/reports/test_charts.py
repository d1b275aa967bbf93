"""The charts of a report: the length and the label of each bar match its number."""

from __future__ import annotations

import itertools
import re
import sys
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_reports import START, empty_report, full_report, share, time_slice

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.reports import chart_specs
from scrapy_dedupe.reports.charts import TITLES, Chart, charts_of
from scrapy_dedupe.reports.figures import OTHERS, Bin, CrawlGraph, GraphEdge, GraphNode, Share


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    return charts_of(full_report())


def marks(svg: str) -> list[ElementTree.Element]:
    """The marks of a chart, in the order of the arrow keys."""
    return [element for element in ElementTree.fromstring(svg).iter() if element.get("tabindex") is not None]


def labels(svg: str) -> list[str]:
    return [mark.attrib["aria-label"] for mark in marks(svg)]


def extent(mark: ElementTree.Element) -> tuple[float, float]:
    """Width and height of a bar in pixels."""
    found = re.fullmatch(r"M[-\d.]+,[-\d.]+h([\d.]+)v([\d.]+)h[-\d.]+Z", mark.attrib["d"])
    assert found, mark.attrib["d"]
    return float(found[1]), float(found[2])


def test_every_chart_has_a_title_and_two_sizes(charts: dict[str, Chart]) -> None:
    assert charts.keys() == TITLES.keys()
    for name, chart in charts.items():
        widths = []
        for svg in (chart.wide, chart.narrow):
            root = ElementTree.fromstring(svg)
            assert root.get("aria-label") == TITLES[name]
            widths.append(float(root.attrib["viewBox"].split()[2]))
        assert widths[0] <= 992
        assert widths[1] <= 390


def test_ids_are_unique_within_a_page(charts: dict[str, Chart]) -> None:
    ids = [
        found
        for chart in charts.values()
        for svg in (chart.wide, chart.narrow)
        for found in re.findall(r' id="([^"]*)"', svg)
    ]
    assert len(ids) == len(set(ids))


def test_one_mark_of_each_chart_is_a_tab_stop_and_all_have_a_tooltip(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        for svg in (chart.wide, chart.narrow):
            found = marks(svg)
            assert [mark.attrib["tabindex"] for mark in found] == ["0"] + ["-1"] * (len(found) - 1)
            assert [mark.findtext("title") for mark in found] == labels(svg)
            assert all(labels(svg))


def test_colors_are_those_of_the_page(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        for svg in (chart.wide, chart.narrow):
            colors = set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg))
            assert colors <= {
                "none",
                "transparent",
                "currentColor",
                *re.findall(r"var\(--\w+\)", " ".join(colors)),
            }


def test_the_lengths_of_bars_are_proportional_to_their_numbers() -> None:
    chart = charts_of(
        empty_report(hosts=[share("a.example", 80), share("b.example", 20), share(OTHERS, 500)])
    )["hosts"]
    for svg in (chart.wide, chart.narrow):
        pages = {
            label: extent(mark)[0]
            for label, mark in zip(labels(svg), marks(svg), strict=True)
            if "page" in label
        }
        assert list(pages) == [
            "a.example: 60 new pages",
            "a.example: 20 pages that repeat a text",
            "b.example: 15 new pages",
            "b.example: 5 pages that repeat a text",
        ]
        pixels = [width / count for width, count in zip(pages.values(), (60, 20, 15, 5), strict=True)]
        assert pixels == pytest.approx([pixels[0]] * 4, rel=0.02)


def test_a_measure_that_is_zero_in_all_rows_has_no_panel() -> None:
    rows = [Share("a.example", 3, 1, 0, 0, 0, 0, 0)]
    chart = charts_of(empty_report(hosts=rows))["hosts"]
    assert labels(chart.wide) == ["a.example: 2 new pages", "a.example: 1 page that repeats a text"]
    assert "Bytes" not in chart.wide


def test_the_timeline_labels_each_slice_and_has_a_gap_between_crawls() -> None:
    slices = [
        time_slice(START),
        time_slice(START + timedelta(seconds=60)),
        time_slice(START + timedelta(days=30)),
    ]
    chart = charts_of(empty_report(timeline=slices))["timeline"]
    said = labels(chart.wide)
    assert said == labels(chart.narrow)
    assert said[:2] == [
        "2026-11-28 22:10 to 22:11 UTC: 6 new pages",
        "2026-11-28 22:10 to 22:11 UTC: 4 pages that repeat a text",
    ]
    assert "2026-12-28 22:10 to 22:11 UTC: 7 requests filtered" in said
    heights = [extent(mark)[1] for mark in marks(chart.wide)[:2]]
    assert heights[0] / heights[1] == pytest.approx(6 / 4, rel=0.02)
    widths = {extent(mark)[0] for mark in marks(chart.wide)}
    assert max(widths) == pytest.approx(min(widths), rel=0.01)
    gaps = [
        found.get("stroke-dasharray")
        for found in ElementTree.fromstring(chart.wide).iter()
        if found.get("stroke-dasharray")
    ]
    assert gaps == ["2,3"] * 3  # one in each panel


def test_verdicts_and_similarities_are_labelled_with_their_numbers(charts: dict[str, Chart]) -> None:
    assert labels(charts["verdicts"].wide)[:2] == ["New: 6,000 pages, 67 %", "Unchanged: 1,200 pages, 13 %"]
    assert "Not judged (error): 20 pages, below 1 %" in labels(charts["verdicts"].narrow)
    assert labels(charts["similarities"].wide)[-1] == "Similarity 99 to 100 %: 42 pages"
    assert len(labels(charts["similarities"].wide)) == 14  # the first bin has no page


def test_arcs_go_from_a_crawl_to_the_crawls_that_it_needs(charts: dict[str, Chart]) -> None:
    said = dict(zip(labels(charts["graph"].wide), marks(charts["graph"].wide), strict=True))
    assert said["site-2 needs lost in 1 file, which is missing"].get("stroke-dasharray") == "5,3"
    assert said["site-1 needs site-0 in 2 files"].get("stroke-dasharray") != "5,3"
    assert said["lost: not in the index"].get("stroke-dasharray") == "2,2"
    assert said["site-2: committed"].get("stroke-dasharray") != "2,2"


def test_arcs_to_missing_crawls_are_drawn_first() -> None:
    names = [f"site-{number:02}" for number in range(40)]
    edges = [GraphEdge(later, earlier, 1, False) for earlier, later in itertools.combinations(names, 2)]
    edges.append(GraphEdge("site-39", "lost", 1, True))
    nodes = [GraphNode("lost", None), *(GraphNode(name, "committed") for name in names)]
    said = labels(charts_of(empty_report(graph=CrawlGraph(nodes, edges)))["graph"].wide)
    arcs = [label for label in said if " needs " in label]
    assert len(arcs) == chart_specs.MOST_ARCS
    assert "site-39 needs lost in 1 file, which is missing" in arcs


def test_charts_without_numbers_are_not_drawn() -> None:
    nothing = empty_report(
        timeline=[time_slice(START)],
        hosts=[Share("a.example", 0, 0, 0, 0, 0, 0, 0)],
        verdicts={"unique": 0},
        similarities=[Bin(0.85, 1.0, 0)],
        graph=CrawlGraph([GraphNode("one", "committed")], []),
    )
    assert charts_of(nothing) == {}


def test_without_vl_convert_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(SettingError, match=r'pip install "scrapy-dedupe\[report\]"'):
        charts_of(empty_report(verdicts={"unique": 1}))


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**6)), max_size=60), st.integers(1, 9))
def test_slices_are_in_order_and_labels_do_not_overlap(times: list[tuple[int, int]], most: int) -> None:
    slices = [time_slice(START + timedelta(seconds=start), seconds) for start, seconds in times]
    places = chart_specs.placed(slices)
    assert sorted(place.slice.start for place in places) == sorted(found.start for found in slices)
    for before, after in itertools.pairwise(places):
        assert before.start <= after.start
        assert before.left < before.right <= after.left
        assert after.is_after_gap == (before.end < after.start)
    ticks = [left for left, _ in chart_specs.time_ticks(places, most)]
    assert bool(ticks) == bool(places)
    assert len(ticks) <= most
    assert all(after - before >= places[-1].right / most for before, after in itertools.pairwise(ticks))


@given(st.integers(1, 10**15), st.integers(3, 6), st.booleans())
def test_ticks_are_few_and_include_the_largest_number(largest: int, steps: int, is_whole: bool) -> None:
    ticks = chart_specs._ticks(largest, steps, is_whole=is_whole)
    assert ticks[0] == 0
    assert ticks[-1] >= largest
    assert len(ticks) <= steps + 2
    if is_whole:
        assert all(tick.is_integer() for tick in ticks)


@pytest.mark.parametrize("count", [2, 5, 60])
@pytest.mark.parametrize("wide", [True, False])
def test_arcs_fit_the_chart_and_longer_arcs_reach_further(count: int, wide: bool) -> None:
    nodes = [GraphNode(f"crawl-{number:02}", "committed") for number in range(count)]
    edges = [GraphEdge(node.id, nodes[0].id, 1, False) for node in nodes[1:]]
    spec = chart_specs.graph(CrawlGraph(nodes, edges), [], wide=wide)
    assert spec is not None
    points = spec["layer"][0]["data"]["values"]
    reaches = [
        spec["width"] * max(point["x"] for point in points if point["arc"] == arc)
        for arc in range(len(edges))
    ]
    row = spec["height"] / count
    assert reaches == sorted(reaches)
    assert reaches[0] <= row
    assert reaches[-1] <= min(spec["width"], row * (count - 1))


def test_large_numbers_have_short_units_and_zero_has_none() -> None:
    rows = [share("a.example", 3_000_000_000), share("b.example", 20_000)]
    chart = charts_of(empty_report(hosts=rows))["hosts"]
    texts = [element.text for element in ElementTree.fromstring(chart.wide).iter() if element.text]
    assert {"0", "2bn"} <= set(texts)
    assert not {"0k", "0M", "0G", "2G"} & set(texts)
