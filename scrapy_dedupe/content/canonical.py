"""Canonical text: the form of a page that the exact and the near layer compare.

There are three canonicalisers. The name and version of a canonicaliser, such as ``text/1``, are part of every key:
texts of different canonicalisers, or of different versions of one, are never compared.

``text``
    The text that a reader of the page sees: the text of the HTML5 tree, including the title. Scripts, styles,
    templates and comments are removed. Block elements, ``<br>`` and table cells are separated by one space, inline
    elements by nothing. ``<noscript>`` and hidden text are kept, because the crawler received them. Entities are
    decoded; case and digits are kept.
``html``
    As ``text``, plus link targets and image sources as written, so that two pages with the same words and different
    pictures differ.
``raw``
    The decoded body, unchanged.

``text`` and ``html`` take these steps, in this order: parse, join, remove characters (controls, U+FEFF, U+00AD,
U+200B to U+200D), collapse and trim Unicode White_Space, NFC (with U+034F after every 30 combining marks in a row).
Canonicalising the result again as plain text does not change it.

The declared Content-Type decides the kind of a page (:func:`kind_of`), as in browsers and archives; sniffing could
mistake a PDF for text. Markup that takes an HTML5 parser far longer than its size explains is rejected: :mod:`.markup`.
"""

from __future__ import annotations

import html as entities
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from selectolax.lexbor import LexborHTMLParser, LexborNode

from scrapy_dedupe import kernel

from .markup import HostileMarkup, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

CANONICALIZERS: Final = ("text", "html", "raw")
KINDS: Final = ("html", "xhtml", "xml", "text")
_PARSED: Final = ("html", "xhtml")

_VERSIONS: Final = {"text": 1, "html": 1, "raw": 1}

# Elements that are displayed as a box: blocks, list items and parts of tables according to the rendering section of
# the HTML standard; <br>; and form controls, whose texts would otherwise run together.
_BLOCKS: Final = (
    "address article aside blockquote body br button caption center col colgroup dd details dialog dir div dl"
    " dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html"
    " iframe legend li listing main menu nav noframes noscript object ol optgroup option p plaintext pre"
    " search section select summary table tbody td textarea tfoot th thead title tr ul xmp"
)

# Where the "html" canonicaliser finds link targets and image sources.
_LINKS: Final[dict[str, tuple[str, ...]]] = {
    "a": ("href",),
    "area": ("href",),
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "object": ("data",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}

_VOID: Final = frozenset("area base br col embed hr img input link meta source track wbr".split())  # noqa: SIM905

# A page with more text than this is never a shell, regardless of the elements that contain the text.
_LONGEST_SHELL: Final = 500


def _tag_ids(names: Iterable[str]) -> dict[int, str]:
    tree = LexborHTMLParser("")
    return {tree.create_node(name).tag_id: name for name in names}


# Comparing tag numbers is several times faster than comparing names or matching a CSS selector.
_BLOCK_IDS: Final = frozenset(_tag_ids(_BLOCKS.split()))
_NAME_IDS: Final = tuple(_tag_ids(("title", "h1")))
_LINE_IDS: Final = frozenset(_tag_ids(("br", "hr")))  # empty, so that one space separates what is around them
_BOX_IDS: Final = _BLOCK_IDS - _LINE_IDS - frozenset(_NAME_IDS)
_REMOVED_IDS: Final = frozenset(_tag_ids(("script", "style", "template")))
_LINK_IDS: Final = _tag_ids(_LINKS)
_WANTED: Final = _BLOCK_IDS | _REMOVED_IDS

# Called normally, these methods take 1.2 microseconds to find out whether they were given str, bytes or a node.
_insert_before: Final = LexborNode.insert_before["str"]  # type: ignore[index]
_insert_after: Final = LexborNode.insert_after["str"]  # type: ignore[index]

# White_Space and the removed characters. Python's white space would include U+001C to U+001F, which are removed.
_SPACE_CODES: Final = (
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
)  # fmt: skip
_DROPPED_CODES: Final = (
    *range(0x09), *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0),
    0xAD, 0x200B, 0x200C, 0x200D, 0xFEFF,
)  # fmt: skip
_SPACES: Final = frozenset(map(chr, _SPACE_CODES))
_DROPPED: Final = frozenset(map(chr, _DROPPED_CODES))
_ASCII: Final = bytes(range(0x80))
_ASCII_SPACES: Final = bytes(code for code in _SPACE_CODES if code < 0x80)
_TO_SPACE: Final = bytes.maketrans(_ASCII_SPACES, b" " * len(_ASCII_SPACES))
_ASCII_DROPPED: Final = bytes(code for code in _DROPPED_CODES if code < 0x80)

# A character outside these blocks, which NFC leaves as they are and which do not combine with others.
# Sync with STABLE in _kernel.c.
_MAY_CHANGE: Final = re.compile(
    "[^\x00-\u02ff\u0388-\u03ff\u0400-\u0482\u048a-\u052f\u05d0-\u05ea\u0620-\u064a\u0e01-\u0e30\u1e00-\u1eff"
    "\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u22ff\u2500-\u27bf\u3001-\u3029\u3031-\u3098\u309d-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff9d\U0001f300-\U0001f64f\U0001f680-\U0001f6c5"
    "\U0001f900-\U0001f9ff]"
)

# No language uses more than 30 combining marks in a row, and ordering n marks takes n^2 steps. As in Unicode's
# Stream-Safe Text Format (UAX #15, section 13), a joiner without any other effect is inserted after every 30 marks.
# The pattern only finds candidates, since no mark is a word character; `_with_joiners` counts the marks.
_LONGEST_RUN: Final = 30
_MAYBE_MARKS: Final = re.compile(rf"[^\w\s\x00-\x7f]{{{_LONGEST_RUN + 1},}}")
# NFC can turn one mark into two and split off three more from the preceding character: 13 marks stay within 30.
_MAYBE_TOO_MANY: Final = re.compile(r"[\u0300-\U0010ffff](?<=[^\w\s])[^\w\s\x00-\x7f]{13}")
_JOINER: Final = "\u034f"
# Three marks that are recognised as marks only after decomposition.
_DISGUISED_MARKS: Final = "\u0f73\u0f75\u0f81"

# One piece of XML markup. Once an alternative has begun to match, it does not fail: it ends at the end of the text at
# the latest. So no character is examined twice, and the scan is linear.
_XML_MARKUP: Final = re.compile(
    r"""
      <!--.*?(?:-->|\Z)
    | <!\[CDATA\[(?P<cdata>.*?)(?:\]\]>|\Z)
    | <\?.*?(?:\?>|\Z)
    | <![^>\[]*+(?:\[.*?(?:\]|\Z)[^>]*+)?(?:>|\Z)
    | <(?P<tag>/?[^\W\d][^\s/>"'=<]*+)(?P<attributes>(?:[^>"']++|"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))*+)(?:>|\Z)
    """,
    re.DOTALL | re.VERBOSE,
)
_TITLE_END: Final = re.compile(r"</title\b", re.IGNORECASE)
# Longer titles are not meant for readers.
_LONGEST_TITLE: Final = 1_000

_XML_LINK: Final = re.compile(r"""\b(?:href|src|url)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")


def canonical_text(html: str) -> str:
    """Return the canonical text of an HTML page.

    >>> canonical_text("<title>Hi</title><p>f<b>oo</b> &amp;<br>bar<td>1<td>2<script>no()</script>")
    'Hi foo & bar12'
    >>> canonical_text("<table><tr><td>1<td>2</table><!-- no -->3")
    '1 2 3'
    """
    return canonical("html", html)


def canonical(kind: str, text: str, canonicalizer: str = "text") -> str:
    """Return the canonical text of a page; see :func:`read`.

    >>> canonical("xml", "<a><b>1</b><b>2</b></a>")
    '1 2'
    """
    return read(kind, text, canonicalizer).text


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical text of a page, whether the page is a shell, and the names that an HTML page gives itself.

    A *shell* is a page that JavaScript fills: it has no text except in its title and ``<noscript>``, and at most 500
    characters there. ``title`` is the text of ``<title>``, ``heading`` that of the first ``<h1>``; both are empty if
    there is none, and for other kinds of pages.
    """

    text: str
    is_shell: bool
    title: str = ""
    heading: str = ""


def read(kind: str, text: str, canonicalizer: str = "text", utf8: bytes | None = None) -> Canonical:
    """Canonicalise a page with the decoded body *text*.

    *kind* is one of :data:`KINDS`; only HTML and XHTML pages can be shells. *utf8* is *text* in UTF-8, if the caller has it.
    The result can always be encoded as UTF-8: a lone surrogate becomes U+FFFD. Raises :class:`.HostileMarkup`; no text causes
    another exception.

    >>> read("html", "<title>App</title><div id=root></div><noscript>Enable JavaScript.</noscript>")
    Canonical(text='App Enable JavaScript.', is_shell=True, title='App', heading='')
    """
    if kind in _PARSED and canonicalizer != "raw":
        return _read_html(kind, text, canonicalizer == "html", utf8)
    text = _without_surrogates(text)
    if canonicalizer == "raw":
        is_shell = len(text) <= _LONGEST_SHELL and kind in _PARSED and _is_shell(_tree(kind, text))
        return Canonical(text, is_shell, title_of(text) or "" if kind in _PARSED else "")
    if kind == "xml":
        text = _xml_text(text, canonicalizer == "html")
    return Canonical(_clean(text), False)


def _read_html(kind: str, text: str, with_links: bool, utf8: bytes | None) -> Canonical:
    tree = _tree(kind, text, utf8)
    names: dict[int, str] = {}
    result = _clean(_tree_text(tree, with_links, names))
    title, heading = (_clean(names.get(tag_id, "")[:_LONGEST_TITLE]) for tag_id in _NAME_IDS)
    if len(result) > _LONGEST_SHELL:
        return Canonical(result, False, title, heading)
    # _tree_text() has inserted the links as text, so the tree must be parsed again.
    return Canonical(result, _is_shell(_tree(kind, text) if with_links else tree), title, heading)


def version(canonicalizer: str) -> str:
    """The name and version of a canonicaliser, as used in every key.

    >>> version("text")
    'text/1'
    """
    return f"{canonicalizer}/{_VERSIONS[canonicalizer]}"


def kind_of(content_type: str) -> str | None:
    """The kind of page that a Content-Type declares; None if it is not a text type.

    >>> kind_of("text/html; charset=utf-8"), kind_of("application/rss+xml"), kind_of("application/pdf")
    ('html', 'xml', None)
    """
    mime = mime_of(content_type)
    main, _, sub = mime.partition("/")
    if mime == "text/html":
        return "html"
    if mime in ("application/xhtml+xml", "application/vnd.wap.xhtml+xml"):
        return "xhtml"
    if main not in ("text", "application"):
        return None
    if sub == "xml" or sub.endswith("+xml"):
        return "xml"
    if main == "text" or sub in ("json", "javascript", "ecmascript", "x-javascript") or sub.endswith("+json"):
        return "text"
    return None


def mime_of(content_type: str) -> str:
    """The MIME type that a Content-Type declares, in lower case, without parameters.

    >>> mime_of("Text/HTML; charset=utf-8")
    'text/html'
    """
    return content_type.partition(";")[0].strip().lower()


def title_of(html: str) -> str | None:
    r"""The text of ``<title>`` with collapsed white space, at most 1,000 characters; None if there is no title.

    >>> title_of("<html><head><title> Birds &amp;\n lakes </title></head><body>…")
    'Birds & lakes'
    """
    # Parse only up to the first end tag, so that a large page costs no more than its head. That end tag may belong to
    # the title of an <svg>, but an <svg> is in the body, whose titles are not used below.
    tag = _TITLE_END.search(html)
    # If this tag does not end, no later tag does.
    end = html.find(">", tag.end()) if tag is not None else -1
    if end < 0:
        return None
    try:
        tree = parse(html[: end + 1].encode("utf-8", "replace"))
    except HostileMarkup:
        return None
    node = tree.css_first("head > title")
    title = " ".join(node.text().split()) if node is not None else ""
    return title[:_LONGEST_TITLE] or None


def _tree(kind: str, text: str, utf8: bytes | None = None) -> LexborHTMLParser:
    if kind == "xhtml":
        text = _xhtml_as_html(text)
    elif utf8 is not None:
        return parse(utf8)
    try:
        source = text.encode()
    except UnicodeEncodeError:
        source = _without_surrogates(text).encode()
    return parse(source)


def _tree_text(tree: LexborHTMLParser, with_links: bool, names: dict[int, str]) -> str:
    """The text of the tree, before the clean-up. Fills *names* with the texts of the first title and heading."""
    root = tree.root
    if root is None:
        return ""
    wanted = _WANTED | _LINK_IDS.keys() if with_links else _WANTED
    removed: list[LexborNode] = []
    # The traversal also visits the text nodes that are inserted. A list of all nodes would be slower: so many objects start
    # Python's garbage collection.
    for node in root.traverse():
        tag_id = node.tag_id
        if tag_id not in wanted:
            continue
        if tag_id in _BOX_IDS:
            _insert_before(node, " ")
            _insert_after(node, " ")
        elif tag_id in _LINE_IDS:
            _insert_before(node, " ")
        elif tag_id in _NAME_IDS:
            if tag_id not in names and _is_html(node):
                names[tag_id] = node.text()
            _insert_before(node, " ")
            _insert_after(node, " ")
        elif tag_id in _REMOVED_IDS:
            # Removing it now would end the traversal.
            removed.append(node)
        if with_links and tag_id in _LINK_IDS:
            _insert_before(node, _links_of(node))
    for node in removed:
        node.decompose(recursive=False)
    return root.text(separator="")


def _is_html(node: LexborNode) -> bool:
    # An <svg> may have a title, too.
    parent = node.parent
    return parent is None or parent.tag != "svg"


def _is_shell(tree: LexborHTMLParser) -> bool:
    tree.strip_tags(["script", "style", "template", "title", "noscript"])
    return tree.root is None or not _clean(tree.root.text())


def _links_of(node: LexborNode) -> str:
    name = _LINK_IDS[node.tag_id]
    values = (node.attrs.get(attribute) for attribute in _LINKS[name])
    return "".join(f" <{name} {value}> " for value in values if value)


def _xhtml_as_html(xhtml: str) -> str:
    # An HTML parser ignores the slash in <title/> and treats everything after it as the title.
    def rewritten(match: re.Match[str]) -> str:
        if (cdata := match["cdata"]) is not None:
            return entities.escape(cdata)
        tag = match["tag"]
        if tag is None:
            return ""
        if not match["attributes"].endswith("/") or tag.lower() in _VOID:
            return match[0]
        return f"<{tag}{match['attributes'][:-1]}></{tag}>"

    return _XML_MARKUP.sub(rewritten, xhtml)


def _xml_text(xml: str, with_links: bool) -> str:
    pieces: list[str] = []
    end = 0
    for match in _XML_MARKUP.finditer(xml):
        pieces.append(entities.unescape(xml[end : match.start()]))
        end = match.end()
        if (cdata := match["cdata"]) is not None:
            pieces.append(cdata)
        elif match["tag"] is not None:
            pieces.append(" ")
            if with_links:
                pieces += (
                    f" <{match['tag']} {entities.unescape(double or single)}> "
                    for double, single in _XML_LINK.findall(match["attributes"])
                )
    pieces.append(entities.unescape(xml[end:]))
    return _without_surrogates("".join(pieces))


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # UTF-16 joins the two halves of a surrogate pair into the character that they encode.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _clean(text: str) -> str:
    return _composed(*collapse(text))


def _composed(text: str, may_change: bool) -> str:
    if not may_change:
        return text
    if not _MAYBE_TOO_MANY.search(text):
        return unicodedata.normalize("NFC", text)
    text = unicodedata.normalize("NFC", _MAYBE_MARKS.sub(_with_joiners, text))
    # Composition can leave one mark more than before.
    return _MAYBE_MARKS.sub(_with_joiners, text)


def _with_joiners(match: re.Match[str]) -> str:
    pieces: list[str] = []
    run = 0
    for character in match[0]:
        is_mark = unicodedata.combining(character) or character in _DISGUISED_MARKS
        run = run + 1 if is_mark else 0
        if run > _LONGEST_RUN:
            pieces.append(_JOINER)
            run = 1
        pieces.append(character)
    return "".join(pieces)


# What the compiled kernel does faster.


def _collapse(text: str) -> tuple[str, bool]:
    """Remove characters from *text* and collapse its white space. Also returns whether NFC may change the result."""
    data, may_change = text.encode("utf-8", "surrogatepass"), False
    if len(data) > len(text):
        wide = set(data.translate(None, _ASCII).decode("utf-8", "surrogatepass"))
        for removed, replacement in ((_SPACES, b" "), (_DROPPED, b"")):
            for character in wide & removed:
                data = data.replace(character.encode(), replacement)
        may_change = _MAY_CHANGE.search("".join(wide - _SPACES - _DROPPED)) is not None
    codes = np.frombuffer(data.translate(_TO_SPACE, _ASCII_DROPPED), np.uint8)
    is_space = codes == 0x20
    is_kept = np.ones(len(codes), np.bool_)
    # Takes half the time of splitting the text into words.
    np.logical_and(is_space[1:], is_space[:-1], out=is_kept[1:])
    np.logical_not(is_kept[1:], out=is_kept[1:])
    return codes[is_kept].tobytes().strip(b" ").decode("utf-8", "surrogatepass"), may_change


collapse: Final = kernel.function("collapse", _collapse)
