"""The report as a page: self-contained, safe to open, with the same numbers in sentences, tables and charts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import re
import sys
from collections import Counter
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_reports import MADE, crawl, empty_report, full_report, share
from parsel import Selector
from sampling import examples

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.reports import page as page_module
from scrapy_dedupe.reports.figures import (
    OTHERS,
    CrawlGraph,
    DuplicateGroup,
    Example,
    GraphEdge,
    GraphNode,
    Report,
    Totals,
    Trap,
    UrlFilterFigures,
)
from scrapy_dedupe.reports.page import CARDS_SHOWN, page, summary
from scrapy_dedupe.reports.wording import percent
from scrapy_dedupe.settings.specs import SPECS

HOSTILE = [
    '"><script>alert(1)</script>',
    "https://example.org/'onmouseover='alert(1)",
    "javascript:alert(1)",
    "https://example.org/\u202egnp.exe",
    "https://example.org/\x00\x1b[31m\ud800",
    "</style></title></svg><img src=//evil.example/x>",
    "{{ 7 * 7 }}{% raw %}",
    "https://example.org/" + "a" * 1_980,
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/",
    "https://[::1",
    "\U0001f980" * 60,
    "a\ufffe\uffff",
    "",
]


@pytest.fixture(scope="module")
def report() -> Report:
    return full_report()


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page(report)


@pytest.fixture(scope="module")
def parsed(html: str) -> Selector:
    return Selector(html)


def hostile_report(texts: list[str]) -> Report:
    """A report with *texts* wherever a text from the web may be, without charts."""
    first = texts[0]
    return empty_report(
        crawls=[dataclasses.replace(crawl(1), id=first, spider=first)],
        groups=[DuplicateGroup(text, 2, 1, 1, 0.9, [Example(text, "near", 0.9)]) for text in texts],
        traps=[Trap(text, 30, 18, 4, 2, 0.8, [text]) for text in texts],
        notes=texts,
    )


def tags(html: str) -> Counter[str]:
    found = Counter(element.root.tag for element in Selector(html).xpath("//*"))
    del found["a"]
    return found


def assert_has_no_external_references(html: str) -> None:
    parsed = Selector(html)
    assert not parsed.xpath(
        "//img | //iframe | //object | //embed | //base | //form | //image | //use | //*[@src]"
    )
    for element in parsed.xpath("//*[@*]"):
        for name, value in element.attrib.items():
            assert not name.lower().startswith("on"), (name, value)
            if name == "style":
                assert "url(" not in value
            if name.endswith("href"):
                allowed = (
                    r"https?://[^/]" if element.root.tag == "a" and element.attrib.get("rel") else "#|data:,$"
                )
                assert re.match(allowed, value), (element.root.tag, value)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_the_page_has_no_external_references(html: str, parsed: Selector) -> None:
    assert_has_no_external_references(html)
    assert "http://" not in re.sub(r'href="http://[^"]*"', "", html)
    (policy,) = parsed.xpath("//meta[@http-equiv='Content-Security-Policy']/@content").getall()
    assert policy.startswith("default-src 'none';")
    (script,) = parsed.xpath("//script/text()").getall()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_texts_are_shown_but_have_no_effect() -> None:
    shares = [share(text, 10) for text in HOSTILE]
    nodes = [GraphNode(text, text or None, text) for text in HOSTILE]
    report = dataclasses.replace(
        hostile_report(HOSTILE),
        hosts=shares,
        mime_types=shares,
        statuses=shares,
        verdicts=dict.fromkeys(HOSTILE, 1),
        graph=CrawlGraph(nodes, [GraphEdge(text, HOSTILE[0], 1, False) for text in HOSTILE]),
    )
    html = page(report)
    assert_has_no_external_references(html)
    html.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", html)
    parsed = Selector(html)
    assert len(parsed.xpath("//script")) == 1
    links = set(parsed.xpath("//a[@rel]/@href").getall())
    assert links == {HOSTILE[1]}
    assert {HOSTILE[0], HOSTILE[2], HOSTILE[6]} <= set(parsed.css("#groups .url bdi::text").getall())
    assert HOSTILE[7] in parsed.css("#groups bdi::attr(title)").getall()


@settings(max_examples=examples(60))
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_no_text_changes_the_structure_of_the_page(texts: list[str]) -> None:
    html = page(hostile_report(texts))
    html.encode("utf-8")
    assert_has_no_external_references(html)
    assert tags(html) == tags(page(hostile_report(["x"] * len(texts))))


def test_links_have_the_crawled_url() -> None:
    url = "https://example.org/a?b=1&c=%2F&copy=2#d"
    parsed = Selector(page(hostile_report([url])))
    assert set(parsed.css("#groups a::attr(href)").getall()) == {url}
    assert set(parsed.css("#groups a::attr(rel)").getall()) == {"noreferrer noopener nofollow"}


def test_the_outline_of_the_page(parsed: Selector) -> None:
    assert parsed.xpath("/html/@lang").get() == "en"
    assert parsed.css("title::text").get() == "3 crawls – scrapy-dedupe"
    assert parsed.css("body > a.skip::attr(href)").get() == "#main"
    levels = [int(element.root.tag[1]) for element in parsed.xpath("//h1 | //h2 | //h3 | //h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = parsed.xpath("//@id").getall()
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in parsed.css("nav a::attr(href)").getall()} <= set(ids)
    assert parsed.css("main section::attr(id)").getall() == [
        *("saved", "time", "verdicts", "where", "groups", "traps", "urls", "cache", "crawls", "notes")
    ]
    for section in parsed.css("section"):
        assert section.css(f"#{section.attrib['aria-labelledby']}::text").get()


def test_each_chart_has_a_caption_a_name_and_a_table_with_the_same_numbers(parsed: Selector) -> None:
    figures = parsed.css("figure")
    assert [figure.attrib["id"] for figure in figures] == [
        f"chart-{name}"
        for name in ("timeline", "verdicts", "similarities", "hosts", "mime_types", "statuses", "graph")
    ]
    for figure in figures:
        assert figure.css(f"figcaption #{figure.attrib['aria-labelledby']}::text").get()
        assert len(figure.css("svg[aria-label]")) == 2
        assert figure.xpath("following-sibling::details[1]//table")
    for table in parsed.css("table"):
        assert table.css("caption::text").get()
        assert all(head.attrib["scope"] in {"col", "row"} for head in table.css("th"))


def cells(parsed: Selector, table: str) -> list[list[int]]:
    return [
        [int(value) for value in row.css("td::attr(data-value)").getall()]
        for row in parsed.css(f"{table} tr")
    ][1:]


def test_tables_have_the_exact_numbers(report: Report, parsed: Selector) -> None:
    hosts = [list(dataclasses.astuple(row)[1:8]) for row in report.hosts]
    table = "#chart-hosts + details table"
    assert cells(parsed, table) == hosts
    assert parsed.css(f"{table} tfoot th bdi::text").get() == OTHERS
    assert cells(parsed, "#chart-verdicts + details table") == [[count] for count in report.verdicts.values()]
    times = [
        [
            row.seconds,
            row.pages,
            row.duplicates,
            row.requests_filtered,
            row.bytes_written,
            row.bytes_conserved,
        ]
        for row in report.timeline
    ]
    assert len(times) == 120
    assert cells(parsed, "#time table") == times
    assert parsed.css("#saved .big::text").getall() == ["51,234", "3,000", "2,345", "98.8 MB"]
    assert parsed.css("#saved .big::attr(title)").getall()[3] == "98,765,432 bytes"


def test_the_summary_names_the_savings(report: Report, parsed: Selector) -> None:
    assert parsed.css("header p::text").get() == summary(report)
    assert summary(report).replace("\xa0", " ") == (
        "In 3 crawls from 2026-11-28 to 2026-12-13: 51,234 requests were filtered, since they had been made before;"
        " 3,000 of 9,000 pages (33 %) repeat a text; 98.8 MB of 392.2 MB (25 %) were not stored again."
    )


@pytest.mark.parametrize(
    ("totals", "sentence"),
    [
        (Totals(0, 0, 0, 0, 0, 0, 0, 0), "nothing was filtered, read or stored"),
        (Totals(1, 0, 0, 0, 0, 0, 0, 0), "1 request was filtered, since it had been made before"),
        (Totals(0, 1, 0, 0, 0, 0, 0, 0), "the one page repeats no text"),
        (Totals(0, 9, 0, 0, 0, 0, 0, 0), "none of 9 pages repeats a text"),
        (Totals(0, 9, 1, 0, 0, 0, 0, 0), "1 of 9 pages (11 %) repeats a text"),
        (Totals(0, 0, 0, 0, 3, 0, 5_120, 0), "5.1 kB were written; each response was stored whole"),
    ],
)
def test_the_summary_leaves_out_layers_without_data(totals: Totals, sentence: str) -> None:
    assert summary(empty_report(crawls=[crawl(1)], totals=totals)).replace("\xa0", " ") == (
        f"In the crawl site-1 from 2026-12-05 to 2026-12-06: {sentence}."
    )


def test_an_empty_report_names_the_settings_that_fill_it() -> None:
    html = page(empty_report())
    assert not Selector(html).css("figure, table")
    text = " ".join(Selector(html).css("main ::text").getall())
    named = set(re.findall(r"DEDUPE_[A-Z_]+", text))
    assert {"DEDUPE_URL_ENABLED", "DEDUPE_CONTENT_ENABLED", "DEDUPE_WARC_ENABLED"} <= named
    assert "There is no crawl to report about." in html


def test_every_setting_named_in_the_page_exists(html: str) -> None:
    named = set(re.findall(r"DEDUPE_[A-Z_]+", html + page(empty_report())))
    assert named <= {spec.name for spec in SPECS}


def test_only_the_largest_groups_are_expanded(parsed: Selector) -> None:
    assert len(parsed.css("#groups > .cards > li")) == CARDS_SHOWN
    folded = parsed.css("#groups > details")
    assert folded.css("summary::text").get() == "2 more groups"
    assert len(folded.css("details > .cards > li")) == 2
    assert "At least 412 pages repeat it" in " ".join(parsed.css("#groups li")[0].css("p::text").getall())


@pytest.mark.parametrize(("least", "words"), [(0.871, "87 %"), (1.0, "above 99 %")])
def test_the_similarity_of_a_near_copy_is_never_shown_as_100_percent(least: float, words: str) -> None:
    url = "https://example.org/print"
    group = DuplicateGroup(
        "https://example.org/", 2, 0, 2, least, [Example(url, "near", least)], is_bound=False
    )
    card = Selector(page(empty_report(groups=[group]))).css("#groups li")[0]
    text = " ".join(" ".join(card.css("::text").getall()).replace("\xa0", " ").split())
    assert f"2 pages repeat it: 2 nearly equal (least similarity {words})." in text
    assert text.endswith(f"{url} nearly equal to another, {words}")


def test_the_four_numbers_are_labelled(parsed: Selector, report: Report) -> None:
    assert parsed.css(".numbers dt::text").getall() == [
        "requests filtered",
        "pages that repeat a text",
        "responses archived before",
        "not stored again",
    ]
    whole = report.totals.responses + report.totals.revisits
    share = percent(report.totals.revisits, whole)
    third = parsed.css(".numbers > div:nth-child(3) .soft::text").get()
    assert third == f"{share} of {whole:,}; kept as revisit records"


def test_pages_with_a_single_copy_have_their_own_list() -> None:
    example = [Example("https://example.org/b", "exact", None)]
    once = [
        DuplicateGroup(f"https://example.org/{number}", 1, 1, 0, 1.0, example, is_bound=False)
        for number in range(3)
    ]
    often = DuplicateGroup("https://example.org/", 12, 12, 0, 1.0, example, is_bound=True)
    parsed = Selector(page(empty_report(groups=[often, *once])))
    assert len(parsed.css("#groups .cards > li")) == 1
    folded = parsed.css("#groups details.pairs")
    assert folded.css("summary::text").get() == "3 pages, each repeated once"
    assert len(folded.css("li")) == 3
    alone = Selector(page(empty_report(groups=[dataclasses.replace(once[0], is_bound=True)])))
    assert not alone.css("#groups .cards")
    assert "is known to be repeated by more than one other" in alone.css("#groups > p::text").get("")
    assert alone.css("#groups details.pairs summary::text").get() == "1 page, repeated at least once"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (0, []),
        (70, ["Only the 2 largest of 72 groups of duplicates are shown."]),
        (None, ["Only the 2 largest groups of duplicates are shown."]),
    ],
)
def test_a_note_counts_the_groups_that_are_left_out(more: int | None, told: list[str]) -> None:
    groups = [DuplicateGroup(f"http://a/{row}", 2, 2, 0, 1.0, [], False) for row in range(2)]
    parsed = Selector(page(empty_report(groups=groups, more_groups=more)))
    assert parsed.css("#notes li::text").getall() == told
    assert bool(parsed.css("#notes > p.soft")) == (not told)


def test_each_crawl_has_a_row(report: Report, parsed: Selector) -> None:
    table = parsed.css("#crawls table.many")
    heads = [" ".join(head.css("::text").getall()) for head in table.css("thead th")]
    rows = [[cell.xpath("string()").get("") for cell in row.css("th, td")] for row in table.css("tbody tr")]
    for found, row in zip(report.crawls, rows, strict=True):
        told = dict(zip(heads, row, strict=True))
        judged = sum(count for kind, count in found.verdicts.items() if kind != "unknown")
        assert told["Responses"] == f"{found.responses + found.revisits:,}"
        assert told["archived before"] == f"{found.revisits:,}"
        assert told["Pages judged"] == (f"{judged:,}" if judged else "–")


def test_a_trap_names_only_counts_above_zero() -> None:
    trap = Trap("example.org/{n}", 30, 0, 20, 0, 0.67, [])
    card = Selector(page(empty_report(traps=[trap]))).css("#traps li p:not(.url)")
    assert " ".join(card.xpath("string()").get("").split()) == (
        "20 of 30 pages (67 %) had little new content: 20 nearly equal to pages at other URLs."
    )


def test_confirmed_hits_are_shown_if_they_were_counted() -> None:
    row = UrlFilterFigures("site-1", 120, 1_000, 1, 3_800, 0.1, 1e-9, 1e-7, None, None)
    for confirmed, wrong, columns in ((None, None, 8), (90, 2, 10)):
        looked_up = dataclasses.replace(row, confirmed=confirmed, false_positives=wrong)
        table = Selector(page(empty_report(url_filters=[row, looked_up]))).css("#urls table")
        assert [len(line.css("th, td")) for line in table.css("tr")] == [columns] * 3
    assert table.css("tr:last-child td:nth-last-child(-n+2)::text").getall() == ["90", "2"]


def test_lower_bounds_are_marked() -> None:
    rows = [dataclasses.replace(share("a.example", 8), is_bound=True), share("b.example", 8)]
    parsed = Selector(page(empty_report(hosts=rows)))
    names = [" ".join(row.css("th ::text").getall()) for row in parsed.css("#where tbody tr")]
    assert [name.split() for name in names] == [["a.example", "at", "least"], ["b.example"]]
    labels = parsed.css("svg.wide [tabindex]::attr(aria-label)").getall()
    assert {"a.example: at least 6 new pages", "b.example: 6 new pages"} <= set(labels)


def test_a_trap_names_the_reasons(parsed: Selector) -> None:
    (card,) = parsed.css("#traps > ol.cards > li")
    assert " ".join(card.css(":scope > p:not(.url) ::text").getall()) == (
        "2,990 of 3,120 pages (96 %) had little new content: 2,690 equal to pages at other URLs, 100 nearly equal,"
        " 200 with hardly any text besides the template of the host."
    )


def test_the_page_has_the_time_of_the_report(html: str) -> None:
    assert f"Made on {MADE[:10]} {MADE[11:16]} UTC by scrapy-dedupe 1.0" in html


def test_without_jinja_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page_module._template.cache_clear()
    with pytest.raises(SettingError, match=r'pip install "scrapy-dedupe\[report\]"'):
        page(empty_report())


def palette(scheme: str) -> dict[str, tuple[float, ...]]:
    """The colours of the style sheet as linear RGB."""
    css = resources.files("scrapy_dedupe.reports").joinpath("page.css").read_text("utf-8")
    dark = css.index("prefers-color-scheme: dark")
    part = css[:dark] if scheme == "light" else css[dark : css.index("\n}\n", dark)]
    colors = {}
    for name, digits in re.findall(r"--(\w+): #([0-9a-f]{6});", part):
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        colors[name] = tuple(
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
    return colors


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, from 1 to 21."""
    lights = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    colors = palette(scheme)
    for text in ("ink", "soft", "link"):
        for ground in ("paper", "panel"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for mark in ("first", "second", "third"):
        assert contrast(colors[mark], colors["paper"]) >= 3, mark
    assert contrast(colors["paper"], colors["ink"]) >= 4.5  # what a mark says, in reverse


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colors_of_bars_differ_for_the_color_blind(scheme: str) -> None:
    # Machado, Oliveira and Fernandes (2009), complete protanopia, deuteranopia and tritanopia.
    blindness = [
        ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
        ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    ]
    colors = palette(scheme)
    for matrix in blindness:
        first, second = (
            [sum(weight * part for weight, part in zip(row, colors[name], strict=True)) for row in matrix]
            for name in ("first", "second")
        )
        assert max(abs(one - other) for one, other in zip(first, second, strict=True)) > 0.25
