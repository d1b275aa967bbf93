from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.content import markup
from scrapy_dedupe.content.canonical import canonical, read
from scrapy_dedupe.content.markup import HostileMarkup, TagCounts, parse, rejection_reason
from scrapy_dedupe.content.screen import WorkEstimate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selectolax.lexbor import LexborNode

SIZE = 400_000


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> markup._Helpers:
    """Helpers of its own for each test, none given up."""
    fresh = markup._Helpers()
    monkeypatch.setattr(markup, "_helpers", fresh)
    return fresh


def repeated(piece: str) -> str:
    return piece * (SIZE // len(piece))


def long(piece: str) -> str:
    return piece * (100_000 // len(piece))


def numbered(piece: str, count: int) -> str:
    return "".join(piece.format(number) for number in range(count))


# Each takes lexbor from one second to minutes, or gigabytes.
HOSTILE = {
    "nested div": repeated("<div>"),
    "nested div that are closed": "<div>" * 36_000 + "</div>" * 36_000,
    "nested lists": repeated("<ul><li>"),
    "nested definition lists": repeated("<dl><dt>"),
    "div in headings": repeated("<h1><div>"),
    "div in forms": repeated("<form><div>"),
    "div in formatting": repeated("<b><div>"),
    "div in links": repeated("<a><div>"),
    "details": repeated("<details><summary>"),
    "dialog": repeated("<dialog>"),
    "center": repeated("<center>"),
    "ruby bases": repeated("<rb>"),
    "option groups": repeated("<optgroup><option>"),
    "attributes": "<p " + numbered("a{} ", 50_000) + ">",
    "attributes with values": "<p " + numbered("a{}='<>' ", 40_000) + ">",
    "attributes of many body tags": numbered("<body a{}>", 33_000),
    "stray </p> in div": "<div>" * 33_000 + "</p>" * 50_000,
    "stray end tags in span": "<span>" * 25_000 + "</i>" * 50_000,
    "stray end tags in svg": "<svg>" + "<g>" * 66_000 + "</x>" * 50_000,
    "tables in div": "<div>" * 33_000 + "<table></table>" * 13_000,
    "text put before a table": "<div>" * 40_000 + "<table>" + "x<b>" * 40_000,
    "templates in div": "<div>" * 40_000 + "<template></template>" * 9_000,
    "inputs in span": "<span>" * 33_000 + "<input>" * 25_000,
    "unclosed formatting in every paragraph": numbered("<b id={}>", 16_000) + "<p>x" * 40_000,
    "formatting closed by a paragraph": "<p>" + numbered("<i id={}>", 16_000) + "</p>x<p>" * 25_000,
    "formatting in upper case": numbered("<FONT SIZE={}>", 12_000) + "<P>x" * 40_000,
    "formatting ended around div": "<b>" * 20_000 + "<div>" * 20_000 + "</b>" * 20_000,
    "nothing but depth in a comment's guise": repeated("<div><!-->"),
}


@pytest.mark.parametrize("html", HOSTILE.values(), ids=HOSTILE)
def test_markup_that_takes_quadratic_time_is_refused(html: str) -> None:
    with pytest.raises(HostileMarkup, match="too many elements"):
        canonical("html", html)


@pytest.mark.parametrize("html", HOSTILE.values(), ids=HOSTILE)
def test_the_screen_knows_it_before_lexbor_is_asked(html: str) -> None:
    assert rejection_reason(html.encode()) is not None


# As old or generated pages have them; lexbor takes milliseconds.
HONEST = {
    "unclosed paragraphs": long("<p>A sentence."),
    "unclosed items": "<ul>" + long("<li><a href=x>A link</a>"),
    "unclosed definitions": "<dl>" + long("<dt>A word<dd>what it means"),
    "unclosed cells": "<table>" + long("<tr><td>1<td>2<td>3"),
    "unclosed options": "<select>" + long("<option value=1>One"),
    "unclosed anchors": long("<a name=x>A place "),
    "unclosed font in cells": "<table>" + long("<tr><td><font size=2>1<td><font color=red>2"),
    "unclosed font": "<font size=2>" * 200 + long("<p>A sentence."),
    "empty elements": long("a<br>b<hr>c<img src=x>d<input name=y>"),
    "cells in rows": "<table>" + long("<tr><td class=a><b>1</b></td><td>2</td></tr>") + "</table>",
    "code in colours": "<pre>" + long('<span class="k">if</span> <span class="n">x</span>\n') + "</pre>",
    "many classes": numbered('<code class="c{0}">x{0}</code> ', 5_000),
    "a long script": "<script>" + long("if (a<b && c<d) { x = '<div>' }\n") + "</script>",
    "a long comment": "<!--" + long("<div> ") + "-->",
    "a long attribute": "<img src='data:" + long("A") + "'>",
    "a long text": long("1 < 2 & "),
    "sections": long("<section><h2>A title</h2><div><div><p>Text.</p></div></div></section>"),
    "small drawings": long("<p><svg viewBox='0 0 1 1'><g><path d='M0'/><circle r=1 /></g></svg>"),
    "depth of fifty": long("<div>" * 50 + "x" + "</div>" * 50),
    "two hundred attributes": "<p " + numbered("data-a{}='1' ", 200) + ">" + long("<p>Text."),
}


@pytest.mark.parametrize("html", HONEST.values(), ids=HONEST)
def test_long_pages_of_common_shapes_are_read(html: str) -> None:
    assert rejection_reason(html.encode()) is None
    read("html", html)


def test_small_pages_are_always_read() -> None:
    assert canonical("html", "<div>" * 790 + "a") == "a"
    assert canonical("html", "<p " + numbered("a{} ", 2_000) + ">a") == "a"


def test_a_glance_clears_pages_whose_tags_pair_off() -> None:
    page = HONEST["sections"].encode()
    assert TagCounts(page).is_light
    assert TagCounts(page).steps < 20 * page.count(b"<")


@pytest.mark.parametrize("piece", ["<b ", "<b<", "<b x='", "<b x=y "])
def test_tags_that_do_not_end_are_read_once(piece: str) -> None:
    """If each were read up to the end of the page, a page of 600 kB would take 60 GB."""
    page = (piece * 3_000 + ">").encode()
    tracemalloc.start()
    try:
        TagCounts(page)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hidden", ["<!--</b>-->", "</b >", "<b></b>"])
def test_copies_of_formatting_elements_are_bounded_wherever_end_tags_stand(hidden: str) -> None:
    page = hidden * 9_000 + numbered("<b id={}>", 9_000) + "<p>x</p>" * 9_000
    assert not TagCounts(page.encode()).is_light
    assert rejection_reason(page.encode()) is not None


def depth_of(node: LexborNode) -> int:
    deepest = 0
    todo = [(node, 1)]
    while todo:
        parent, depth = todo.pop()
        deepest = max(deepest, depth)
        todo += [(child, depth + 1) for child in parent.iter()]
    return deepest


class Deepest(WorkEstimate):
    """Keeps how deep the estimate's stack was."""

    deepest = 0

    def _push(self, *args: object) -> None:
        super()._push(*args)  # type: ignore[arg-type]
        self.deepest = max(self.deepest, len(self._stack))


@pytest.mark.parametrize(
    "piece",
    [
        "<ul><li>",
        "<dl><dt><dd>",
        "<li><section>",
        "<dd><li>",
        "<p><button>",
        "<p><button><p><i>",
        "<div><span></div>",
        "<b><div></b>",
        "<b a=1>x<a>",
        "<a><p></a>",
        "<div></x>",
        "<div></span>",
        "<span><p></span>",
        "<form><x></form>",
        "<table><td>",
        "<table><tr><td></table>",
        "<table><tr><td></div><div>",
        "<td></td><table>",
        "<object><p></object>",
        "<button><div></button>",
        "<h2></noscript><noscript>",
        "<rt><rp>",
        "<ruby><rt>",
        "<option><optgroup></form>",
        "<svg><g>",
        "<svg><svg/></svg>",
        "<svg></svg></svg>",
        "<svg/><object>",
        "<svg><html><p>",
        "<svg><font>",
        "<svg><font color=a>",
        "<svg><foreignObject><p></svg>",
        "<li></math><math>",
        "<math><mi><p>",
        "<template><tr><td>",
        "<select><div>",
        "<title></title><h1><center>",
    ],
)
def test_the_estimate_is_no_less_deep_than_the_tree(piece: str) -> None:
    html = piece * 60
    root = parse(html.encode()).root
    assert root is not None
    # Not told apart: <html> and <body>, and the <tbody> and <tr> that a table gets.
    assert depth_of(root) <= 3 * Deepest(html, 10**12, len(html)).deepest + 8


markups = st.lists(
    st.sampled_from(
        [
            "<p>",
            "</p>",
            "<div>",
            "</div>",
            "<b>",
            "</b>",
            "<b\ta=1>",
            "<a>",
            "</a>",
            "<li>",
            "<ul>",
            "</ul>",
            "<table>",
            "<td>",
            "</td>",
            "<svg>",
            "</svg>",
            "<g/>",
            "<mi>",
            "<form>",
            "</form>",
            "<button>",
            "<title>",
            "</title>",
            "<script>",
            "</script>",
            "<!--",
            "-->",
            "<!",
            "<?",
            "</",
            "<",
            ">",
            '"',
            "'",
            "=",
            "x",
            "<font\tsize=1",
            "<plaintext>",
            "<x",
        ]
    ),
    max_size=60,
).map("".join)


@given(html=markups | st.text())
def test_the_screen_reads_anything(html: str) -> None:
    source = html.encode("utf-8", "replace")
    TagCounts(source)
    assert WorkEstimate(source.decode(), 10**9, len(source) + 1).spent_ns >= 0
    assert rejection_reason(source) is None


@given(html=markups)
def test_estimates_of_repeated_markup_grow_with_it(html: str) -> None:
    once = WorkEstimate(html, 10**12, 10**6).spent_ns
    assert WorkEstimate(html + html, 10**12, 10**6).spent_ns >= once


def test_the_screen_reads_no_further_than_it_has_to() -> None:
    """Steps, not seconds: a tag of a page that is refused is read once at most."""
    pushes = []

    class Counted(WorkEstimate):
        def _push(self, *args: object) -> None:
            pushes.append(1)
            super()._push(*args)  # type: ignore[arg-type]

    for count in (100_000, 200_000):
        pushes.clear()
        Counted("<div>" * count, 50_000_000, 20_000)
        assert len(pushes) < 4_000


# Shapes that the screen does not know, for the second wall: this one has its end tags in scripts.
UNKNOWN = ("<div><script></div></script>" * 20_000).encode()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is closed, parsing does not come to an end."""
    event = threading.Event()
    real = markup._parse

    def waiting(html: bytes) -> object:
        event.wait()
        return real(html)

    monkeypatch.setattr(markup, "_parse", waiting)
    monkeypatch.setattr(markup, "_DEADLINE_S", 0.001)
    yield event
    event.set()


def test_an_unknown_shape_is_given_up(helpers: markup._Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markup, "_DEADLINE_S", 0.02)
    monkeypatch.setattr(markup, "_DEADLINE_S_PER_BYTE", 0)
    assert rejection_reason(UNKNOWN) is None
    with pytest.raises(HostileMarkup, match="given up after 20 ms"):
        parse(UNKNOWN)


def test_a_parse_that_takes_no_processor_time_is_given_up_by_the_clock(
    helpers: markup._Helpers, gate: threading.Event
) -> None:
    with pytest.raises(HostileMarkup, match="given up"):
        helpers.parse(b"<p>a")


def test_where_processor_time_is_not_known_the_clock_alone_counts(
    helpers: markup._Helpers, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markup, "_HAS_THREAD_CLOCKS", False)
    with pytest.raises(HostileMarkup, match="given up"):
        helpers.parse(b"<p>a")
    gate.set()
    monkeypatch.setattr(markup, "_DEADLINE_S", 30)
    assert helpers.parse(b"<p>a").body is not None


def test_while_two_given_up_parses_run_no_more_are_begun(
    helpers: markup._Helpers, gate: threading.Event
) -> None:
    for _ in range(2):
        with pytest.raises(HostileMarkup, match="given up"):
            helpers.parse(b"<p>a")
    with pytest.raises(HostileMarkup, match="still being parsed"):
        helpers.parse(b"<p>a")


def test_helpers_that_were_given_up_come_back(
    helpers: markup._Helpers, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = threading.Semaphore(0)
    end = helpers.end

    def ending(*args: object) -> None:
        end(*args)  # type: ignore[arg-type]
        returned.release()

    monkeypatch.setattr(helpers, "end", ending)
    for _ in range(2):
        with pytest.raises(HostileMarkup):
            helpers.parse(b"<p>a")
    gate.set()
    assert returned.acquire(timeout=240)
    assert returned.acquire(timeout=240)
    monkeypatch.setattr(markup, "_DEADLINE_S", 30)
    body = helpers.parse(b"<p>b").body
    assert body is not None
    assert body.text() == "b"


def test_helpers_are_used_again(helpers: markup._Helpers) -> None:
    page = HONEST["sections"].encode()
    # Those of other tests may end meanwhile.
    before = set(threading.enumerate())
    for _ in range(5):
        parse(page)
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["dedupe-parser"]


def test_threads_parse_side_by_side(helpers: markup._Helpers) -> None:
    texts = [repeated(f"<p>Page {number}. ") for number in range(4)]
    results: dict[int, str] = {}
    threads = [
        threading.Thread(
            target=lambda number=number: results.update({number: canonical("html", texts[number])})
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number].startswith(f"Page {number}. Page {number}.") for number in range(4)] == [True] * 4


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )


def test_a_parse_that_was_given_up_keeps_no_process_from_ending() -> None:
    done = run(
        "from scrapy_dedupe.content.markup import HostileMarkup, parse\n"
        "try:\n"
        "    parse(b'<div><script></div></script>' * 100_000)\n"  # minutes
        "except HostileMarkup as error:\n"
        "    print(error)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "given up" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not there")
def test_the_child_of_a_fork_has_helpers_of_its_own() -> None:
    done = run(
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from scrapy_dedupe.content.markup import parse\n"
        "page = b'<p>a</p>' * 50_000\n"
        "parse(page)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    parse(page)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.parametrize("size", [1_000, 50_000])
def test_a_parse_error_is_raised_where_the_tree_is_wanted(
    helpers: markup._Helpers, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def failing(html: bytes) -> object:
        raise MemoryError("no room")

    monkeypatch.setattr(markup, "_parse", failing)
    with pytest.raises(MemoryError, match="no room"):
        parse(b"<p>a" * size)
