"""The reference of the metrics, the guide and the dashboard say what a real scrape has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
from crawling import LinkSpider, crawl, crawl_test
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from scrapy_dedupe.live.figures import Latency, LiveFigures
from scrapy_dedupe.live.observers.metric_families import FAMILIES, read_crawl
from scrapy_dedupe.live.observers.metric_outputs import Board

if TYPE_CHECKING:
    from webserver import WebServer

    from scrapy_dedupe.live.observers.metric_families import Reading

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = (DOCS / "reference" / "metrics.rst").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "grafana" / "scrapy-dedupe.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

# Name, kind, the label beside the spider's, and the text.
DOCUMENTED = {
    match[1]: (match[2], match[3], " ".join(match[4].split()))
    for match in re.finditer(
        r"^``(dedupe?_\w+)`` \((\w+)(?:; ``(\w+)``)?\)\n((?:    .+\n)+)", REFERENCE, re.MULTILINE
    )
}


def expressions() -> list[str]:
    """What the dashboard and the alerts of the guide ask."""
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    guide = (DOCS / "usage" / "monitoring.rst").read_text(encoding="utf-8")
    alerts = re.findall(r"^ +expr: (?:>-\n)?((?:.+\n)+?)(?= +(?:for|annotations):)", guide, re.MULTILINE)
    return [*asked, *(" ".join(alert.split()) for alert in alerts)]


def plain(expression: str) -> str:
    """With values for Grafana's variables."""
    return expression.replace("$spider", "links").replace("$__rate_interval", "1m").replace("$__range", "6h")


class Everything:
    """A crawl with all layers on, at which everything has happened."""

    spider = "links"

    def read(self) -> Reading:
        live = LiveFigures()
        for step in ("url", "canonical", "exact", "near", "verdict", "warc"):
            live.latencies[step] = Latency()
        return read_crawl({"dedupe/content/skipped/size": 1}, live, "crawl-1", 0, is_running=True)

    def failed(self, error: Exception) -> None:
        raise error


async def scrape(web: WebServer, settings: dict[str, Any], tmp_path: Path) -> dict[str, tuple[str, set[str]]]:
    """Names of samples, each with the kind of its family and its labels, of a crawl that finds everything."""
    text = "".join(
        f"<p>The {number}th warbler sings in the reed beds by night as well." for number in range(60)
    )
    web.page("/", '<a href="/a">1</a><a href="/b">2</a><a href="/a">3</a>')
    web.page("/a", text)
    web.page("/b", b"%PDF-1.4", content_type="application/pdf")
    file = tmp_path / "links.prom"
    await crawl(
        LinkSpider,
        {**settings, "DEDUPE_METRICS_FILE": str(file), "DEDUPE_URL_CONFIRM": True},
        urls=web.url(),
    )
    return {
        sample.name: (family.type, set(sample.labels))
        for family in parse(file.read_text(encoding="utf-8"))
        for sample in family.samples
    }


@crawl_test
async def test_every_metric_of_a_scrape_is_documented_and_no_other(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = await scrape(web, settings, tmp_path)
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
    assert names == set(DOCUMENTED)
    for name, (kind, labels) in found.items():
        documented_kind, label, _ = DOCUMENTED[re.sub(r"_(bucket|sum|count)$", "", name)]
        # Prometheus's text has no info; it is a gauge there.
        assert kind == {"info": "gauge"}.get(documented_kind, documented_kind), name
        assert labels - {"le"} == {"spider", *filter(None, [label])}, name


@crawl_test
async def test_every_question_of_the_dashboard_and_the_guide_has_metrics_to_answer_it(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = await scrape(web, settings, tmp_path)
    for expression in expressions():
        names = re.findall(r"\bdedupe?_\w+", expression)
        assert names, expression
        known = {"spider", "le"}
        for name in names:
            assert name in found, (name, expression)
            known |= found[name][1]
        for labels in re.findall(r"\b(?:by|ignoring) \(([^)]*)\)", expression):
            assert {label.strip() for label in labels.split(",")} <= known, expression
        for label in re.findall(r'(\w+)(?:=~|!=|=)"', expression):
            assert label in known, expression


def test_there_are_questions() -> None:
    assert len(expressions()) >= 35
    assert sum("increase(dedup_errors_total[15m])" in expression for expression in expressions()) == 1


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_can_be_parsed(expression: str) -> None:
    assert "$" not in plain(expression)
    promql_parser.parse(plain(expression))


def test_every_family_is_documented_as_it_is() -> None:
    assert list(DOCUMENTED) == [family.name for family in FAMILIES]
    for family in FAMILIES:
        kind, label, text = DOCUMENTED[family.name]
        assert (kind, label) == (family.kind, family.label)
        assert text.startswith(family.help)


def test_the_layers_of_the_latencies_are_documented() -> None:
    documented = re.findall(r"^    \* - ``(\w+)``$", REFERENCE, re.MULTILINE)
    board = Board()
    board.add(Everything())
    families = {family.name: family for family in parse(generate_latest(board.registry).decode())}
    layers = {sample.labels["layer"] for sample in families["dedup_latency_seconds"].samples}
    assert set(documented) == layers


def test_the_errors_of_every_layer_begin_at_0() -> None:
    stats = (DOCS / "reference" / "stats.rst").read_text(encoding="utf-8")
    board = Board()
    board.add(Everything())
    families = {family.name: family for family in parse(generate_latest(board.registry).decode())}
    counted = {sample.labels["layer"]: sample.value for sample in families["dedup_errors"].samples}
    assert counted == dict.fromkeys(re.findall(r"^\.\. stat:: dedupe/errors/(\w+)$", stats, re.MULTILINE), 0)


def test_the_dashboard_is_whole() -> None:
    assert DASHBOARD["schemaVersion"] >= 38  # Grafana 10
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "spider": "query"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
