"""Estimates lexbor's work for a page in one linear pass over the markup, before the page is parsed.

The estimate covers the parts of the work that are not linear. Start and end tags walk the stack of open elements.
Formatting elements that were not closed are copied into every following block. The attributes of a tag are compared
with each other. The estimate knows which end tags are optional, so that thousands of unclosed ``<li>``, ``<p>`` or
``<td>``, which are common in old pages, do not count as depth.

The rules are those of the HTML standard's tree construction (section 13.2.6), as far as they affect the depth of the
stack. Where the estimate simplifies, it is too high rather than too low: a tag walks the whole stack, and no element
is closed that might stay open. The times per step were measured on lexbor; normal pages need less than a tenth of the
budget.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# Costs of: visiting one element in a walk (the most expensive of several kinds), visiting one in SVG or MathML, where
# names are compared, comparing two attributes, copying an element, and one step of this estimate itself.
STEP_NS: Final = 10
_FOREIGN_STEP_NS: Final = 25
_ATTRIBUTE_NS: Final = 4
_COPY_NS: Final = 250
_OWN_STEP_NS: Final = 60
# The end tag of a formatting element with blocks inside goes through both lists up to eight times.
_ADOPTION: Final = 8
# At most three formatting elements with the same attributes are reopened.
MOST_ALIKE: Final = 3

# If reading stops at a stack of this depth, the rest of the page is assumed to stay at this depth.
_DEEP: Final = 1_000

# Comparing fewer attributes than this costs less than reading them.
_FEW_ATTRIBUTES: Final = 50

# The first alternative matches nearly all attributes, the second everything that the standard allows.
_ATTRIBUTE: Final = (
    r"""(?:\s++[\w:-]++="[^"]*+"|[\s/]*+[^\s/>][^\s/>=]*+"""
    r"""(?:\s*+=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)?+)?+)"""
)
_EACH_ATTRIBUTE: Final = re.compile(_ATTRIBUTE)
# One tag, comment or declaration. Every match that starts also ends, at the latest at the end of the text.
_MARKUP: Final = re.compile(
    rf"<(?:(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?P<attributes>{_ATTRIBUTE}*+)(?P<closing>[\s/]*+)(?:>|\Z)"
    r"|!--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+)*+(?:--!?>|\Z))|[!?/][^>]*+)"
)


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_EMPTY: Final = _names(
    "area base basefont bgsound br col embed frame hr image img input keygen link meta param source track wbr"
)
# Only the first tag of each creates an element; the attributes of later ones are added to it.
_ONCE: Final = _names("html head body frameset")
_RAW: Final = _names("script style textarea title xmp iframe noembed noframes")
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW}
# Elements inside SVG and MathML are named with the prefix "svg:", so that no rule for HTML elements applies to them.
_FOREIGN: Final = _names("svg math")
# Elements of SVG and MathML that contain HTML.
_INTEGRATION: Final = frozenset(
    f"svg:{name}" for name in _names("annotation-xml desc foreignobject mi mn mo ms mtext title")
)
_FONT: Final = re.compile("color|face|size", re.IGNORECASE)
# HTML elements that close SVG and MathML.
_BREAKOUT: Final = _names(
    "b big blockquote body br center code dd div dl dt em embed font h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta"
    " nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)
_FORMATTING: Final = _names("a b big code em font i nobr s small strike strong tt u")
_HEADINGS: Final = _names("h1 h2 h3 h4 h5 h6")
_CELLS: Final = _names("td th caption")
_ROWS: Final = _CELLS | {"tr"}
_SECTIONS: Final = _ROWS | _names("tbody tfoot thead")
# Formatting elements left open inside one of these are not reopened after it.
_MARKERS: Final = _names("td th caption applet object marquee template")
# Tags inside one of these close no element outside.
_SCOPES: Final = _MARKERS | _FOREIGN | _INTEGRATION | _names("table select")
# The "special" elements of the standard: the end tag of an ordinary element does not close elements beyond them.
_SPECIAL: Final = (
    _SCOPES
    | _HEADINGS
    | _names(
        "address article aside blockquote button center dd details dialog dir div dl dt fieldset figcaption figure"
        " footer form header hgroup li listing main menu nav noscript ol p plaintext pre search section summary"
        " tbody tfoot thead tr ul"
    )
)
_CLOSES_P: Final = _HEADINGS | _names(
    "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer form"
    " header hgroup hr li listing main menu nav ol p plaintext pre search section summary ul"
)
# Special elements whose start tags reopen formatting elements, like the start tags of ordinary elements.
_REOPENING: Final = _FOREIGN | _names("applet button marquee noscript object search select")
_P: Final = _names("p")
_BUTTON: Final = _names("button")
_FORM: Final = _names("form")
_RUBY: Final = _names("rt rp")
_IMPLIED: Final = _names("dd dt li optgroup option p rb rp rt rtc")
_LI: Final = _names("li")
_DD: Final = _names("dd dt")
_ITEMS: Final = {"li": (_LI, _DD), "dd": (_DD, _LI), "dt": (_DD, _LI)}
# An item does not close an item outside one of these, or outside an item of the other kind.
_NOT_HTML: Final = _FOREIGN | _INTEGRATION
_ITEM_STOPS: Final = _SPECIAL - _names("address div p li dd dt")
# The elements that a part of a table closes, up to its table.
_TABLE_PARTS: Final = {
    **dict.fromkeys(("td", "th"), _CELLS),
    "tr": _ROWS,
    **dict.fromkeys(("tbody", "tfoot", "thead", "caption"), _SECTIONS),
}
# Start tags that close the innermost open element if it is one of these.
_SIBLINGS: Final = {
    **dict.fromkeys(_HEADINGS, _HEADINGS),
    **dict.fromkeys(("option", "optgroup"), _names("option")),
    **dict.fromkeys(("rt", "rp"), _names("rt rp")),
}


class _Formatting:
    """A formatting element. It is reopened wherever a block has closed it before its end tag."""

    __slots__ = ("is_open", "key", "name")

    def __init__(self, name: str, key: tuple[int, str]) -> None:
        self.name = name
        self.key = key
        self.is_open = True


class WorkEstimate:
    """An estimate of lexbor's work for *html*, in nanoseconds: *spent_ns*.

    Reading stops when the estimate exceeds the budget, and after *most_tags* tags.
    """

    def __init__(self, html: str, budget_ns: int, most_tags: int) -> None:
        self.spent_ns = 0
        self._stack: list[tuple[str, _Formatting | None]] = []
        self._positions: defaultdict[str, list[int]] = defaultdict(list)
        # Positions on the stack. Each list starts with a sentinel that is never removed.
        self._scopes = [-1]
        self._specials = [-1]
        self._item_stops = [-1]
        self._tables = [-1]
        self._htmls = [-1]
        self._is_foreign = [False]
        # None is a marker (see the HTML standard, "list of active formatting elements").
        self._formatting: list[_Formatting | None] = []
        self._alike: Counter[tuple[int, str]] = Counter()
        self._markers = 0
        self._is_in_form = False
        self._attributes_once = 0
        self._read(html, budget_ns, most_tags)

    def _read(self, html: str, budget_ns: int, most_tags: int) -> None:
        position = 0
        search = _MARKUP.search
        for _ in range(most_tags):
            if self.spent_ns > budget_ns or (match := search(html, position)) is None:
                return
            position = match.end()
            end, name, attributes, closing = match.groups()
            if name is None:
                continue
            name = name.lower()
            if len(attributes) > 2 * _FEW_ATTRIBUTES:
                self._compare(attributes)
            if end:
                self._end(name)
            elif self._is_foreign[-1] and not _is_breakout(name, attributes):
                self._start_foreign(name, "/" in closing)
            elif name in _ONCE:
                self._attributes_once += len(_EACH_ATTRIBUTE.findall(attributes))
                self.spent_ns += _ATTRIBUTE_NS * self._attributes_once
            elif name in _RAW:
                position = _end_of_raw(html, name, position)
            elif name == "plaintext":
                return
            elif name not in _FOREIGN or "/" not in closing:
                self._start(name, attributes)
            if not self._is_foreign[-1] and position < len(html) and html[position] != "<":
                self._reopen()
        if len(self._stack) > _DEEP:
            self.spent_ns += STEP_NS * len(self._stack) * html.count("<", position)

    def _compare(self, attributes: str) -> None:
        count = len(_EACH_ATTRIBUTE.findall(attributes))
        if count > _FEW_ATTRIBUTES:
            self.spent_ns += _ATTRIBUTE_NS * count * count

    def _start_foreign(self, name: str, is_closed: bool) -> None:
        if not is_closed:
            self._push(f"svg:{name}", None)

    def _start(self, name: str, attributes: str) -> None:
        self.spent_ns += STEP_NS * len(self._stack)
        if self._is_foreign[-1]:
            self._close(_FOREIGN, self._htmls[-1], outermost=True)
        if name in _CLOSES_P:
            self._close(_P, max(self._scopes[-1], self._last("button")))
        if name in _ITEMS:
            same, others = _ITEMS[name]
            self._close(same, max(self._item_stops[-1], *(self._last(other) for other in others)))
        elif name in _TABLE_PARTS:
            if len(self._tables) == 1:
                return  # ignored outside a table
            self._close(_TABLE_PARTS[name], self._tables[-1], outermost=True)
        elif name in _SIBLINGS:
            if name not in _RUBY or self._positions["ruby"]:
                self._pop_innermost(_SIBLINGS[name])
        elif name == "button":
            self._close(_BUTTON, self._scopes[-1])
        elif name == "form":
            if self._is_in_form:
                return
            self._is_in_form = True
        elif name in ("a", "nobr"):
            self._end_formatting(name)
        if name not in _SPECIAL or name in _REOPENING:
            self._reopen()
        if name not in _EMPTY:
            self._push(name, self._remember(name, attributes) if name in _FORMATTING else None)

    def _end(self, name: str) -> None:
        is_foreign = bool(self._stack) and (
            self._stack[-1][0] in _FOREIGN or self._stack[-1][0].startswith("svg:")
        )
        self.spent_ns += (_FOREIGN_STEP_NS if is_foreign else STEP_NS) * len(self._stack)
        if is_foreign and self._close((f"svg:{name}", *(_FOREIGN & {name})), self._htmls[-1]):
            return
        if name in _FORMATTING:
            self._end_formatting(name)
        elif name == "form":
            self._end_form()
        elif name in _SECTIONS:
            self._close((name,), self._tables[-1])
        elif name == "table":
            self._close((name,), self._tables[-1] - 1)
        elif name == "template":
            self._close((name,), -1)
        elif name in _SCOPES:
            self._close((name,), self._scopes[-1] - 1)
        elif name == "noscript":
            self._close((name,), self._specials[-1] - 1)
        else:
            self._close((name,), self._scopes[-1] if name in _SPECIAL else self._specials[-1])

    def _end_form(self) -> None:
        if self._is_in_form:
            self._is_in_form = False
            while self._stack and self._stack[-1][0] in _IMPLIED:
                self._pop()
            # Other elements that are open inside the form stay open.
            self._pop_innermost(_FORM)

    def _close(self, names: Iterable[str], beyond: int, outermost: bool = False) -> bool:
        """Close the innermost (or outermost) open one of *names* above the position *beyond*, and all inside it.

        Returns whether there was one.
        """
        at = [places[-1] for name in names if (places := self._positions.get(name)) and places[-1] > beyond]
        if at:
            self._pop_to(min(at) if outermost else max(at))
        return bool(at)

    def _remember(self, name: str, attributes: str) -> _Formatting:
        """Add a formatting element. If three with the same attributes are listed, the first of them is removed."""
        key = (self._markers, f"{name} {attributes}")
        if self._alike[key] == MOST_ALIKE:
            index = len(self._formatting)
            left = MOST_ALIKE
            while left:
                index -= 1
                entry = self._formatting[index]
                left -= entry is not None and entry.key == key
                self.spent_ns += _OWN_STEP_NS
            del self._formatting[index]
        else:
            self._alike[key] += 1
        new = _Formatting(name, key)
        self._formatting.append(new)
        return new

    def _end_formatting(self, name: str) -> None:
        for index in range(len(self._formatting) - 1, -1, -1):
            self.spent_ns += _OWN_STEP_NS
            entry = self._formatting[index]
            if entry is None:
                return
            if entry.name == name:
                break
        else:
            return
        del self._formatting[index]
        self._alike[entry.key] -= 1
        if not entry.is_open:
            return
        at = self._positions[name][-1]
        if at > self._specials[-1]:
            self._pop_to(at)
        else:
            # The blocks inside stay open; in this estimate the element stays open too.
            self.spent_ns += _ADOPTION * STEP_NS * (len(self._stack) + len(self._formatting))

    def _reopen(self) -> None:
        """Reopen the formatting elements that a block has closed before their end tags."""
        index = len(self._formatting)
        while index and (entry := self._formatting[index - 1]) is not None and not entry.is_open:
            index -= 1
        for entry in self._formatting[index:]:
            if entry is not None:
                entry.is_open = True
                self._push(entry.name, entry)
                self.spent_ns += _COPY_NS

    def _last(self, name: str) -> int:
        places = self._positions.get(name)
        return places[-1] if places else -1

    def _push(self, name: str, formatting: _Formatting | None) -> None:
        at = len(self._stack)
        self._stack.append((name, formatting))
        self._positions[name].append(at)
        if name not in _SPECIAL:
            return
        self._specials.append(at)
        if name not in _NOT_HTML:
            self._htmls.append(at)
        else:
            self._is_foreign.append(name in _FOREIGN)
        if name in _ITEM_STOPS:
            self._item_stops.append(at)
        if name not in _SCOPES:
            return
        self._scopes.append(at)
        if name in ("table", "template"):
            self._tables.append(at)
        if name in _MARKERS:
            self._formatting.append(None)
            self._markers += 1

    def _pop_innermost(self, names: frozenset[str]) -> None:
        if self._stack and self._stack[-1][0] in names:
            self._pop()

    def _pop_to(self, at: int) -> None:
        while len(self._stack) > at:
            self._pop()

    def _pop(self) -> None:
        name, formatting = self._stack.pop()
        self._positions[name].pop()
        if formatting is not None:
            formatting.is_open = False
        if name not in _SPECIAL:
            return
        self._specials.pop()
        if name not in _NOT_HTML:
            self._htmls.pop()
        else:
            self._is_foreign.pop()
        if name in _ITEM_STOPS:
            self._item_stops.pop()
        if name not in _SCOPES:
            return
        self._scopes.pop()
        if name in ("table", "template"):
            self._tables.pop()
        if name in _MARKERS:
            self._markers -= 1
            while self._formatting and (entry := self._formatting.pop()) is not None:
                self._alike[entry.key] -= 1


def _is_breakout(name: str, attributes: str) -> bool:
    return name in _BREAKOUT and (name != "font" or _FONT.search(attributes) is not None)


def _end_of_raw(html: str, name: str, position: int) -> int:
    end = _RAW_ENDS[name].search(html, position)
    return end.start() if end else len(html)
