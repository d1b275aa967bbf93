from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from scrapy_dedupe.content import canonical_text
from scrapy_dedupe.content.canonical import (
    CANONICALIZERS,
    KINDS,
    Canonical,
    canonical,
    kind_of,
    read,
    title_of,
    version,
)

HTML = {
    "title is kept": ("<title>News</title><body>today", "News today"),
    "entities are decoded": ("&lt;a&gt; &amp; &eacute;&#233;&#x2014;&notin;", "<a> & éé—∉"),
    "entities without a semicolon": ("AT&ampT &copy 2020", "AT&T © 2020"),
    "numeric references to windows-1252": ("&#150;&#128;", "–€"),
    "blocks are separated": ("<p>a</p><p>b</p><div>c</div>d", "a b c d"),
    "blocks are separated when nothing closes them": ("<ul><li>a<li>b</ul><dl><dt>c<dd>d</dl>", "a b c d"),
    "a block inside words": ("a<div>b</div>c", "a b c"),
    "headings": ("<h1>a</h1><h2>b</h2>c", "a b c"),
    "br": ("a<br>b<br/>c", "a b c"),
    "cells": ("<table><tr><td>1<td>2<tr><th>3</th><td>4</table>", "1 2 3 4"),
    "options": ("<select><option>a<option>b</select><button>c</button><button>d</button>", "a b c d"),
    "inline elements are not separated": ("f<b>oo</b><a href=x>b</a><span>a</span>r<wbr>s", "foobars"),
    "unknown elements are inline": ("a<my-tag>b</my-tag>c", "abc"),
    "an image is nothing": ("a<img src=x alt=picture>b", "ab"),
    "script": ("a<script>no('<p>')</script>b", "ab"),
    "style": ("a<style>p { color: red }</style>b", "ab"),
    "template": ("a<template><p>no</p></template>b", "ab"),
    "comment": ("a<!-- no <p> -->b", "ab"),
    "comment closed wrongly": ("a<!-- no --!>b", "ab"),
    "unclosed comment": ("a<!-- no <p>no", "a"),
    "unclosed script": ("a<script>no <p>no", "a"),
    "unclosed style": ("a<style>no <p>no", "a"),
    "unclosed template": ("a<template>no <p>no", "a"),
    "a script in a template, and the other way round": (
        "a<template><script>no</script></template><script><template>no</script>b",
        "ab",
    ),
    "a script in svg": ("a<svg><script>no<g>no</g></script><text>b</text></svg>", "ab"),
    "noscript in the head": ("<head><noscript><style>no</style></noscript><title>a</title>", "a"),
    "noscript": ("<noscript>please turn it <b>on</b></noscript>", "please turn it on"),
    "hidden text": ("<p hidden>a</p><p style='display:none'>b</p>", "a b"),
    "attributes are nothing": ("<p title='a > b' alt=\"<p>\">c</p>", "c"),
    "a comparison is text": ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    "white space": ("a \t\r\n\f b\xa0\u3000\u2028\u1680\u205f c\x85d", "a b c d"),
    "white space in pre": ("<pre>a\n   b</pre>", "a b"),
    "trimmed": ("  \xa0 a \u2003 ", "a"),
    "NUL and controls": ("a\x01b\x1fc\x7fd\x9fe", "abcde"),
    "U+001C to U+001F are no white space": ("a\x1cb\x1dc\x1ed", "abcd"),
    "zero-width characters": ("a\ufeffb\u00adc\u200bd\u200ce\u200df", "abcdef"),
    "NUL": ("a\x00b<p\x00>c", "abc"),
    "soft hyphen as an entity": ("co&shy;operate&ZeroWidthSpace;d", "cooperated"),
    "dropped before white space is collapsed": ("a \u200b b", "a b"),
    "NFC": ("e\u0301 Å", "é Å"),
    "NFC across inline elements": ("e<b>\u0301</b>", "é"),
    "non-breaking spaces": ("a&nbsp;&#160;b\u202fc\u00a0 d", "a b c d"),
    "case and digits are kept": ("Page 17 of NINE", "Page 17 of NINE"),
    "a lone surrogate": ("a\ud800b", "a\ufffdb"),
    "a pair of surrogates": ("\ud83d\ude00", "😀"),
    "empty": ("", ""),
    "markup alone": ("<html><body><div id=app></div><script src=x></script></body></html>", ""),
    "svg text": ("<svg><style>no</style><text>a</text></svg>", "a"),
    "frames": ("<frameset><noframes>old</noframes></frameset>", "old"),
}


@pytest.mark.parametrize(("html", "text"), HTML.values(), ids=HTML)
def test_html(html: str, text: str) -> None:
    assert canonical_text(html) == text


BLOCKS = (
    "address article aside blockquote button center dd details dialog dir div dl dt fieldset figcaption figure footer"
    " form h1 h2 h3 h4 h5 h6 header hgroup legend li listing main menu nav object ol optgroup option p pre search"
    " section select summary textarea ul"
)
INLINE = "a abbr b bdi cite code del em font i ins kbd label mark q s small span strong sub sup u"


@pytest.mark.parametrize("name", BLOCKS.split())
def test_block_elements_separate(name: str) -> None:
    assert canonical_text(f"a<{name}></{name}>b") == "a b"
    assert canonical_text(f"<{name}>a</{name}>b") == "a b"


@pytest.mark.parametrize("name", INLINE.split())
def test_inline_elements_do_not_separate(name: str) -> None:
    assert canonical_text(f"a<{name}>b</{name}>c") == "abc"


XHTML = {
    "an empty title does not swallow the page": (
        "<html><head><title/></head><body><p>a</p></body></html>",
        "a",
    ),
    "an empty script does not": ('<head><script src="x"/></head><body>a<textarea/>b</body>', "a b"),
    "an empty element closes at once": ("<body><p>a<b/></p><p>b<div/>c</p></body>", "a b c"),
    "br": ("<p>a<br/>b</p>", "a b"),
    "CDATA is text": ("<p>a<![CDATA[ <b> & ]]>c</p>", "a <b> & c"),
    "an XML declaration and a doctype": (
        '<?xml version="1.0"?><!DOCTYPE html [<!ENTITY x "y">]><p>a</p>',
        "a",
    ),
    "a slash in an attribute": ("<p><a href='x/'>a</a><a href=\"/>\">b</a></p>", "ab"),
}


@pytest.mark.parametrize(("xhtml", "text"), XHTML.values(), ids=XHTML)
def test_xhtml(xhtml: str, text: str) -> None:
    assert canonical("xhtml", xhtml) == text


XML = {
    "elements do not run together": ("<rss><title>a</title><link>b</link></rss>", "a b"),
    "comments are nothing": ("<a>b<!-- no -->c</a>", "bc"),
    "CDATA is text": ("<a>b<![CDATA[<i>c</i> &amp;]]></a>", "b<i>c</i> &amp;"),
    "entities": ("<a>&lt;b&gt; &#233;</a>", "<b> é"),
    "a declaration, an instruction and a doctype": (
        "<?xml version='1.0'?><!DOCTYPE a><?no no?><a>b</a>",
        "b",
    ),
    "attributes are nothing": ("<a b='c > d' e=\"f\">g</a>", "g"),
    "namespaces": ("<x:a xmlns:x='y'><x:b>1</x:b><x:c>2</x:c></x:a>", "1 2"),
    "a comparison in broken XML is text": ("<a>1 < 2</a>", "1 < 2"),
    "nothing closes": ("<a>b<![CDATA[c", "bc"),
}


@pytest.mark.parametrize(("xml", "text"), XML.values(), ids=XML)
def test_xml(xml: str, text: str) -> None:
    assert canonical("xml", xml) == text


def test_plain_text_is_not_parsed() -> None:
    assert canonical("text", "a <b>\n\n c &amp;\u200b d") == "a <b> c &amp; d"


def test_html_canonicaliser_tells_pages_with_other_pictures_apart() -> None:
    one, other = "<p>Sunset <img src=a.png>", "<p>Sunset <img src=b.png>"
    assert canonical("html", one) == canonical("html", other)
    assert canonical("html", one, "html") != canonical("html", other, "html")


def test_html_canonicaliser_keeps_link_targets() -> None:
    assert (
        canonical("html", "<p>see <a href='/x?a=1&amp;b=2'>there</a>", "html") == "see <a /x?a=1&b=2> there"
    )
    assert canonical("html", "<p><a name=x>there</a>", "html") == "there"
    assert canonical("xml", "<feed><link href='/a'/>b</feed>", "html") == "<link /a> b"


def test_html_canonicaliser_ignores_other_attributes() -> None:
    one, other = "<p class=a data-n=1>Text", "<p class=b data-n=2>Text"
    assert canonical("html", one, "html") == canonical("html", other, "html")


def test_raw_is_the_whole_body() -> None:
    body = "<p>a</p>\n <script>b</script>\x00"
    assert canonical("html", body, "raw") == body


def test_version_tells_the_canonicalisers_apart() -> None:
    assert len({version(name) for name in CANONICALIZERS}) == len(CANONICALIZERS)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/html", "html"),
        (" Text/HTML ; charset=x", "html"),
        ("application/xhtml+xml; charset=utf-8", "xhtml"),
        ("text/xml", "xml"),
        ("application/atom+xml", "xml"),
        ("text/plain", "text"),
        ("application/json", "text"),
        ("application/ld+json", "text"),
        ("application/pdf", None),
        ("image/svg+xml", None),
        ("application/octet-stream", None),
        ("", None),
    ],
)
def test_kind_is_what_the_content_type_declares(content_type: str, kind: str | None) -> None:
    assert kind_of(content_type) == kind


GOLDEN = Path(__file__).parent / "golden"
GOLDEN_KINDS = {".html": "html", ".xhtml": "xhtml", ".xml": "xml", ".txt": "text"}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.expected")), ids=lambda path: path.stem)
def test_golden_pages(path: Path) -> None:
    """Whoever changes what comes out here gives the canonicaliser a new version."""
    page = path.with_suffix("")
    text = page.read_bytes().decode()
    found = {name: read(GOLDEN_KINDS[page.suffix], text, name) for name in ("text", "html")}
    lines = [line for name in found for line in (name, found[name].text, "")]
    is_shell = found["text"].is_shell
    assert found["html"].is_shell == is_shell
    expected = path.read_text(encoding="utf-8")
    assert [*lines, "shell", "yes" if is_shell else "no"] == expected.splitlines()


SHELLS = {
    "a title and an empty element": "<title>App</title><div id=root></div>",
    "noscript": "<title>App</title><div id=root></div><noscript>Enable <b>JavaScript</b>.</noscript>",
    "noscript alone": "<body><noscript>Enable JavaScript.</noscript>",
    "scripts, styles and templates": "<script>a()</script><style>b{}</style><template>c</template>",
    "a picture": "<img src=a.png alt=a>",
    "a link without text": "<a href=/a></a>",
    "white space": "<p>&nbsp;<p>\u200b",
    "nothing": "",
}


@pytest.mark.parametrize("html", SHELLS.values(), ids=SHELLS)
@pytest.mark.parametrize("canonicalizer", CANONICALIZERS)
@pytest.mark.parametrize("kind", ["html", "xhtml"])
def test_pages_without_text_of_their_own_are_shells(html: str, canonicalizer: str, kind: str) -> None:
    assert read(kind, html, canonicalizer).is_shell


PAGES = {
    "one word": "<title>App</title><p>Word",
    "a word beside noscript": "<noscript>Enable JavaScript.</noscript><a href=x>Word</a>",
    "a long noscript": "<noscript>" + "All of the page stands here. " * 20 + "</noscript>",
}


@pytest.mark.parametrize("html", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("canonicalizer", CANONICALIZERS)
def test_pages_with_text_are_no_shells(html: str, canonicalizer: str) -> None:
    assert not read("html", html, canonicalizer).is_shell


def test_only_html_has_shells() -> None:
    assert read("text", "") == Canonical("", False)
    assert read("xml", "<a/>") == Canonical("", False)


def test_looking_for_a_shell_changes_no_text() -> None:
    assert read("html", "<title>App</title><body><noscript>b</noscript>") == Canonical("App b", True, "App")
    assert read("html", "<title>App</title><a href=/x></a>", "html") == Canonical("App <a /x>", True, "App")


anything = st.text(st.characters(), max_size=200)
PIECES = (
    "<p> </p> <div> <td> <table> <tr> <b> </b> <br/> <!-- --> <![CDATA[ ]]> <title/> <title> <script> </script> <?x ?>"
    " <!DOCTYPE [ ] ' \" < > / & &amp; &#0; &#x110000; &#xd800; a é \u0301 \u200b \x00 \ud800 \udc00 <a href='"
)
markup = st.lists(st.sampled_from([*PIECES.split(" "), " ", "\xa0", "\n"]), max_size=40).map("".join)


@given(text=anything | markup, kind=st.sampled_from(KINDS), canonicalizer=st.sampled_from(CANONICALIZERS))
@example(text="&#xd800;", kind="xml", canonicalizer="text")
@example(text="\ud800", kind="html", canonicalizer="raw")
def test_never_raises_and_can_be_encoded(text: str, kind: str, canonicalizer: str) -> None:
    canonical(kind, text, canonicalizer).encode()


@given(text=anything | markup, kind=st.sampled_from(KINDS), canonicalizer=st.sampled_from(["text", "html"]))
def test_result_is_its_own_canonical_text(text: str, kind: str, canonicalizer: str) -> None:
    once = canonical(kind, text, canonicalizer)
    assert canonical("text", once, canonicalizer) == once


@given(text=anything | markup, kind=st.sampled_from(KINDS))
def test_result_has_single_spaces_and_no_controls(text: str, kind: str) -> None:
    result = canonical(kind, text)
    assert "  " not in result
    assert result == result.strip()
    assert not any(unicodedata.category(character) == "Cc" for character in result)
    assert unicodedata.is_normalized("NFC", result)


def test_rows_of_combining_marks_are_ordered_in_linear_time() -> None:
    marks = "a" + "\u0301\u0316" * 100_000  # 7 seconds for a tenth of it if nothing cuts the row
    result = canonical("text", marks)
    assert canonical("text", result) == result
    assert max(len(run) for run in result[1:].split("\u034f")) <= 30


@given(
    marks=st.text(
        st.sampled_from("\u0301\u0316\u0323\u0308\u0304\u0344\u0f73\u0f71a\u01df\u1e69\u2014"), min_size=25
    )
)
def test_long_rows_of_marks_come_out_the_same_again(marks: str) -> None:
    once = canonical("text", marks)
    assert canonical("text", once) == once
    assert unicodedata.is_normalized("NFC", once)


def test_no_mark_is_a_word_character() -> None:
    marks = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
    assert all(re.fullmatch(r"[^\w\s\x00-\x7f]", mark) for mark in marks)


@given(words=st.lists(st.from_regex(r"\A[a-z]{1,8}\Z"), min_size=1, max_size=20))
def test_words_in_blocks_come_out_as_they_went_in(words: list[str]) -> None:
    assert canonical_text("".join(f"<p>{word}</p>" for word in words)) == " ".join(words)
    assert canonical("xml", "<a>" + "".join(f"<b>{word}</b>" for word in words) + "</a>") == " ".join(words)
    assert canonical_text("".join(f"<i>{word}</i>" for word in words)) == "".join(words)


SEPARATE = [
    "address",
    "blockquote",
    "dd",
    "div",
    "dl",
    "dt",
    "h1",
    "li",
    "ol",
    "p",
    "pre",
    "section",
    "table",
    "td",
    "th",
    "tr",
    "ul",
]
JOINED = [
    "a",
    "abbr",
    "b",
    "code",
    "em",
    "font",
    "i",
    "q",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "tt",
    "u",
    "x-y",
]
trees = st.recursive(
    st.text("ab1 \u00a0\u00e9<&", min_size=1, max_size=5),
    lambda children: st.tuples(st.sampled_from([*SEPARATE, *JOINED]), st.lists(children, max_size=4)),
    max_leaves=20,
)


def with_boxes(html: str) -> str:
    """The rule in its plainest form: a space on both sides of each block of a serialized tree, then no tags."""
    blocks = "|".join(("html", "head", "body", "tbody", "colgroup", *SEPARATE))
    html = re.sub(rf"</?(?:{blocks})>", " ", html)
    html = re.sub(r"<[^>]*>", "", html)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", "\u00a0"), ("&amp;", "&")):
        html = html.replace(entity, character)
    return " ".join(html.split())


def markup_of(tree: str | tuple[str, list[Any]]) -> str:
    if isinstance(tree, str):
        return tree.replace("&", "&amp;").replace("<", "&lt;")
    name, children = tree
    return f"<{name}>{''.join(map(markup_of, children))}</{name}>"


@given(tree=trees)
def test_blocks_and_nothing_else_separate_in_whatever_tree(tree: str | tuple[str, list[Any]]) -> None:
    html = markup_of(tree)
    parsed = LexborHTMLParser(html).html
    assert parsed is not None
    assert canonical_text(html) == with_boxes(parsed)


@given(html=markup, cut=st.integers(0, 100))
def test_html_text_is_its_own_plain_text_wherever_the_page_is_cut(html: str, cut: int) -> None:
    text = canonical_text(html[: len(html) * cut // 100])
    assert canonical("text", text) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("canonicalizer", CANONICALIZERS)
def test_the_text_is_no_longer_than_the_page_allows(kind: str, canonicalizer: str) -> None:
    """Twice the page, twice the text: nothing is copied for what comes later."""
    piece = "<p>a <b>c</b><br>e&amp;<td><a href=x>f</a><li>g" + "<!-- h -->" * 3
    lengths = [len(canonical(kind, piece * count, canonicalizer)) for count in (500, 1_000)]
    assert lengths[1] <= 2 * lengths[0] + 1


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>Reed</title><title>Warbler</title>", "Reed"),
        ("<TITLE>Reed</TITLE lang=en\n>", "Reed"),
        ("<title>Reed</titles></title>", "Reed</titles>"),
        ("<body><svg><title>Reed</title></svg>", None),
        ("<title>Reed", None),
        ("<title>Reed</title", None),
        # Each of them is looked at once, or this page alone would take a minute.
        ("<title>Reed" + "</title " * 40_000, None),
    ],
)
def test_the_title_is_that_of_the_first_title_that_ends(html: str, title: str | None) -> None:
    assert title_of(html) == title
