"""Canonical text: what the exact and the near layer compare.

Three canonicalisers. Each has a name and a version, such as ``text/1``, which is part of every key, so that
texts of different canonicalisers, and of different versions of one, never meet.

``text``
    What a reader of the page gets: the text of the HTML5 tree, title included. Script, style, template and
    comments are out. Block elements, ``<br>`` and table cells are separated by one space, inline elements by
    nothing. ``<noscript>`` and hidden text stay: the crawler saw them. Entities are decoded; case and digits
    are kept.
``html``
    The same, with the link targets and image sources as they are written, so that two pages with the same
    words and other pictures differ.
``raw``
    The decoded body as it is.

The steps of the first two are taken in this order: parse, join, drop characters (controls, U+FEFF, U+00AD,
U+200B to U+200D), collapse Unicode White_Space and trim, NFC (with U+034F after every 30 combining marks in a
row). The result as plain text is its own canonical
text.

What kind of page it is, the declared Content-Type decides (:func:`kind_of`): browsers and archives go by it,
and a PDF can look like text. Markup that takes an HTML5 parser long beyond its size is refused: :mod:`.markup`.
"""

from __future__ import annotations

import html as entities
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

from .markup import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

CANONICALIZERS: Final = ("text", "html", "raw")
KINDS: Final = ("html", "xhtml", "xml", "text")
_PARSED: Final = ("html", "xhtml")

_VERSIONS: Final = {"text": 1, "html": 1, "raw": 1}

# Elements with a box of their own: those that the HTML standard's rendering section shows as a block, a list
# item or a part of a table; <br>; and form controls, whose texts would otherwise run together.
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


# A page with more text than this says something, whatever element it stands in.
_LONGEST_SHELL: Final = 500


def _tag_ids(names: Iterable[str]) -> dict[int, str]:
    tree = LexborHTMLParser("")
    return {tree.create_node(name).tag_id: name for name in names}


# Comparing numbers is several times faster than comparing names or matching a CSS selector.
_BLOCK_IDS: Final = frozenset(_tag_ids(_BLOCKS.split()))
_REMOVED_IDS: Final = frozenset(_tag_ids(("script", "style", "template")))
_LINK_IDS: Final = _tag_ids(_LINKS)
_WANTED: Final = _BLOCK_IDS | _REMOVED_IDS

# Left to themselves these two look up at each call, in 1.2 microseconds, which of str, bytes and node they were given.
_insert_before: Final = LexborNode.insert_before["str"]  # type: ignore[index]
_insert_after: Final = LexborNode.insert_after["str"]  # type: ignore[index]

# Control characters that are not White_Space. U+001C to U+001F are among them, though str.split() takes them
# for white space: that is why they are dropped before the rest is collapsed.
_NO_WHITE_SPACE: Final = "\x1c\x1d\x1e\x1f"
_DROPPED_CODES: Final = (
    *range(0x09), *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0),
    0xAD, 0x200B, 0x200C, 0x200D, 0xFEFF,
)  # fmt: skip
_DROPPED: Final = re.compile("[" + "".join(f"\\u{code:04x}" for code in _DROPPED_CODES) + "]+")
_DROPPED_BYTES: Final = bytes(code for code in _DROPPED_CODES if code < 0x100)

# Combining marks beyond 30 in a row mean nothing in any language, and putting n of them into order takes n^2
# steps. As in Unicode's Stream-Safe Text Format (UAX #15, section 13), a joiner that changes nothing else is put
# after every 30. The pattern finds where to look closer: no mark is a word character.
_LONGEST_RUN: Final = 30
_MAYBE_MARKS: Final = re.compile(rf"[^\w\s\x00-\x7f]{{{_LONGEST_RUN + 1},}}")
# NFC can make two marks of one, and leave three more of the character before them: fewer than 14 stay within 30.
_MAYBE_TOO_MANY: Final = re.compile(r"[\u0300-\U0010ffff](?<=[^\w\s])[^\w\s\x00-\x7f]{13}")
_JOINER: Final = "\u034f"
# Three marks that do not say they are marks until they are decomposed.
_DISGUISED_MARKS: Final = "\u0f73\u0f75\u0f81"

# One piece of XML markup. Every alternative that has begun also ends, at the end of the text at the latest,
# and no character is looked at twice: the whole scan is linear.
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
_XML_LINK: Final = re.compile(r"""\b(?:href|src|url)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")


def canonical_text(html: str) -> str:
    """The canonical text of an HTML page.

    >>> canonical_text("<title>Hi</title><p>f<b>oo</b> &amp;<br>bar<td>1<td>2<script>no()</script>")
    'Hi foo & bar12'
    >>> canonical_text("<table><tr><td>1<td>2</table><!-- no -->3")
    '1 2 3'
    """
    return canonical("html", html)


def canonical(kind: str, text: str, canonicalizer: str = "text") -> str:
    """The canonical text of a page, as of :func:`read`.

    >>> canonical("xml", "<a><b>1</b><b>2</b></a>")
    '1 2'
    """
    return read(kind, text, canonicalizer).text


@dataclass(frozen=True, slots=True)
class Canonical:
    """What a page says.

    A *shell* has no text beside its title and ``<noscript>``, or none at all, and no more than 500 characters there,
    as pages that JavaScript fills have.
    """

    text: str
    is_shell: bool


def read(kind: str, text: str, canonicalizer: str = "text") -> Canonical:
    """What is compared of a page whose decoded body is *text*.

    *kind* is one of :data:`KINDS`; only HTML and XHTML have shells. The result can always be encoded as UTF-8: a
    lone surrogate becomes U+FFFD. Raises :class:`.HostileMarkup`, and nothing else on any text.

    >>> read("html", "<title>App</title><div id=root></div><noscript>Enable JavaScript.</noscript>")
    Canonical(text='App Enable JavaScript.', is_shell=True)
    """
    if kind in _PARSED and canonicalizer != "raw":
        return _read_html(kind, text, canonicalizer == "html")
    text = _without_surrogates(text)
    if canonicalizer == "raw":
        return Canonical(
            text, len(text) <= _LONGEST_SHELL and kind in _PARSED and _is_shell(_tree(kind, text))
        )
    if kind == "xml":
        text = _xml_text(text, canonicalizer == "html")
    return Canonical(_clean(text), False)


def _read_html(kind: str, text: str, with_links: bool) -> Canonical:
    tree = _tree(kind, text)
    result = _clean(_tree_text(tree, with_links))
    if len(result) > _LONGEST_SHELL:
        return Canonical(result, False)
    # The links stand in the tree as text: it is no longer the page.
    return Canonical(result, _is_shell(_tree(kind, text) if with_links else tree))


def version(canonicalizer: str) -> str:
    """Name and version of a canonicaliser, as in every key.

    >>> version("text")
    'text/1'
    """
    return f"{canonicalizer}/{_VERSIONS[canonicalizer]}"


def kind_of(content_type: str) -> str | None:
    """The kind of page that a Content-Type declares, None if it is no text.

    >>> kind_of("text/html; charset=utf-8"), kind_of("application/rss+xml"), kind_of("application/pdf")
    ('html', 'xml', None)
    """
    mime = content_type.partition(";")[0].strip().lower()
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


def _tree(kind: str, text: str) -> LexborHTMLParser:
    if kind == "xhtml":
        text = _xhtml_as_html(text)
    try:
        source = text.encode()
    except UnicodeEncodeError:
        source = _without_surrogates(text).encode()
    return parse(source)


def _tree_text(tree: LexborHTMLParser, with_links: bool) -> str:
    root = tree.root
    if root is None:
        return ""
    wanted = _WANTED | _LINK_IDS.keys() if with_links else _WANTED
    # The list is needed: the tree must not change while it is walked.
    for node in [node for node in root.traverse() if node.tag_id in wanted]:
        tag_id = node.tag_id
        if tag_id in _BLOCK_IDS:
            _insert_before(node, " ")
            _insert_after(node, " ")
        elif tag_id in _REMOVED_IDS:
            node.decompose(recursive=False)
        if with_links and tag_id in _LINK_IDS:
            _insert_before(node, _links_of(node))
    return root.text(separator="")


def _is_shell(tree: LexborHTMLParser) -> bool:
    tree.strip_tags(["script", "style", "template", "title", "noscript"])
    return tree.root is None or not _clean(tree.root.text())


def _links_of(node: LexborNode) -> str:
    name = _LINK_IDS[node.tag_id]
    values = (node.attrs.get(attribute) for attribute in _LINKS[name])
    return "".join(f" <{name} {value}> " for value in values if value)


def _xhtml_as_html(xhtml: str) -> str:
    # An HTML parser takes <title/> for an open title and everything after it for its text.
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
        # Through UTF-16, so that two halves that stand together become the character they mean.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _clean(text: str) -> str:
    try:
        narrow = text.encode("latin-1")
    except UnicodeEncodeError:
        return _clean_wide(text)
    # No mark, and nothing that NFC changes.
    return " ".join(narrow.translate(None, _DROPPED_BYTES).decode("latin-1").split())


def _clean_wide(text: str) -> str:
    if any(separator in text for separator in _NO_WHITE_SPACE):
        text = _DROPPED.sub("", text)
    # Collapsed first, because there is less to look through then.
    text = " ".join(text.split())
    if not text.isprintable():
        text = " ".join(_DROPPED.sub("", text).split())
    if not _MAYBE_TOO_MANY.search(text):
        return unicodedata.normalize("NFC", text)
    text = unicodedata.normalize("NFC", _MAYBE_MARKS.sub(_with_joiners, text))
    # Composing can leave a mark more than there was.
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
