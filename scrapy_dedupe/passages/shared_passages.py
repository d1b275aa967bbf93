"""What a text that is asked about shares with an indexed one.

With the indexed text at hand, runs of equal tokens are found by their hashes, and what is told has been compared word
by word. Without it, from the outline, blots that stand in a row in both texts are a passage as far as they reach: it
may go on for up to ``window - 1`` tokens on either side, and nothing but the blots has been compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from .alignment import AlignedRuns, PartWindows, Windows, outermost, thinned
from .blots import Blots, keys
from .chains import Chains
from .groups import covered, group_bounds
from .text_ranges import ReadStretches, Stretches
from .values import Passage, Place
from .winnowing import windows as joined_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from .blots import Blotter
    from .tokens import Tokeniser, Tokens
    from .values import Outline

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

Span = tuple[int, int, int, int]
"""First token, token behind the last, and the same of characters."""

Pair = tuple[Span, Span, int, int]
"""A run in the text that is asked about and in another one, and of that one the token and the character of an anchor."""

_STRETCH = 32
_MOST_KEPT = 1 << 20  # tokens whose windows are kept for the next text, in about 40 bytes each
_PIECE = 1 << 20
# Of texts with more tokens no more is made ready than what stands around shared blots.
_SHORT = 1 << 15
_TABLE_BITS = 22


@dataclass(frozen=True, slots=True)
class SharedPassage:
    """A passage of the text that is asked about, and where it stands in one indexed text, as *text* writes it first.

    The tokens of each of *spans* are counted from the character that *anchors* has in its place: of a long text not all
    is read. There are none if all are counted from the beginning.
    """

    asked: Place
    text: str | None
    spans: tuple[Span, ...]
    anchors: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return self.asked.token_end - self.asked.token_start

    def counted(self, tokens_before: Mapping[int, int]) -> SharedPassage:
        """With all tokens counted from the beginning, if so many stand before each anchor."""
        before = [tokens_before[anchor] for anchor in self.anchors]
        spans = [
            (start + count, end + count, char_start, char_end)
            for (start, end, char_start, char_end), count in zip(self.spans, before, strict=True)
        ]
        return SharedPassage(self.asked, self.text, tuple(spans))

    def passage_in(self, doc_id: str) -> Passage:
        """The passage in a document that has the text."""
        places = tuple(Place(doc_id, *span) for span in self.spans)
        return Passage(self.text, self.tokens, places, self.asked)


@dataclass(frozen=True, slots=True)
class AskedText:
    """A text that is asked about. ``taboo`` tells for each token whether a taboo text has a window that it is in.

    ``blots`` are those that are looked up, ``blot_starts`` their first tokens.
    """

    text: str
    tokens: Tokens
    tokeniser: Tokeniser
    blotter: Blotter
    min_tokens: int
    taboo: Mask
    blots: NDArray[np.uint64]
    blot_starts: Numbers
    _windows: dict[bytes, Windows | PartWindows] = field(default_factory=dict)

    @classmethod
    def of(
        cls, text: str, tokeniser: Tokeniser, blotter: Blotter, taboo: Sequence[str], min_tokens: int
    ) -> AskedText:
        """Ready for runs of at least *min_tokens* tokens. A lone surrogate counts as U+FFFD, as in the index."""
        tokens = _compact(tokeniser.tokens(text), len(text))
        bounds = np.array([0, len(tokens.hashes)], np.int64)
        # Both texts have the least blot of a window, if it is shared whole; of a shorter run it may be any.
        make = blotter.blots if min_tokens >= blotter.guarantee else blotter.all_blots
        blots = make(tokens.hashes, bounds)
        is_taboo = np.zeros(len(tokens.hashes), np.bool_)
        if taboo:
            every = blotter.all_blots(tokens.hashes, bounds)
            for other in taboo:
                hashes = tokeniser.tokens(other).hashes
                values = blotter.all_blots(hashes, np.array([0, len(hashes)], np.int64)).values
                starts = every.starts[np.isin(every.values, values)]
                is_taboo |= covered(len(is_taboo), starts, starts + blotter.span)
            free = ~_touching(blots.starts, blotter.span, is_taboo)
            blots = Blots(blots.values[free], blots.starts[free])
        return cls(text, tokens, tokeniser, blotter, min_tokens, is_taboo, blots.values, blots.starts)

    @property
    def window(self) -> int:
        """Of how many blots in a row the index holds one."""
        return self.blotter.guarantee - self.blotter.span + 1

    def chains(self, sorted_keys: NDArray[np.uint64]) -> Chains:
        """The windows of the text, told by the numbers that the keys of their blots have in *sorted_keys*."""
        hashes, around = self.tokens.hashes, self.blotter.guarantee - 1
        numbers = np.full(max(0, len(hashes) - around), -1, np.int32)
        for begin in range(0, len(numbers), _PIECE):
            piece = numbers[begin : begin + _PIECE]
            some = hashes[begin : begin + len(piece) + around]
            values = self.blotter.all_blots(some, np.array([0, len(some)], np.int64)).values
            smallest = joined_windows(
                values, self.window, 1, lambda first, second, _: np.minimum(first, second)
            )
            # Neighbours mostly have the same.
            bounds = group_bounds(smallest[1:] != smallest[:-1], len(smallest))
            wanted = keys(smallest[bounds[:-1]], self.blotter)
            if len(sorted_keys):
                places = np.minimum(sorted_keys.searchsorted(wanted), len(sorted_keys) - 1)
                found = np.where(sorted_keys[places] == wanted, places, -1)
                piece[:] = found.repeat(np.diff(bounds))
        return Chains(cast("Numbers", numbers), self.blotter.guarantee)

    def hidden_by(self, blots: Numbers) -> Mask:
        """Which tokens no passage may go through: the taboo ones, and those that these blots are made of."""
        if not len(blots):
            return self.taboo
        return self.taboo | covered(
            len(self.taboo), self.blot_starts[blots], self.blot_starts[blots] + self.blotter.span
        )

    def windows(self, hidden: Mask, other: NDArray[np.uint64]) -> Windows | PartWindows:
        """The windows of tokens that are compared with another text, which has the hashes *other*.

        Of a short text all, which are kept, since pages of one host mostly hide the same. Of a long one those around the
        blots that the other has too: no run without one of them is as long as is asked for.
        """
        hashes = self.tokens.hashes
        if len(hashes) > _SHORT and self.min_tokens >= self.blotter.span:
            starts = self.blot_starts[self._is_blot_of(other)]
            begins = np.maximum(starts - (self.window - 1), 0)
            ends = np.minimum(starts + self.blotter.guarantee, len(hashes))
            parts = group_bounds(begins[1:] > ends[:-1], len(begins))
            return PartWindows(hashes, hidden, begins[parts[:-1]], ends[parts[1:] - 1], self.min_tokens)
        key = np.packbits(hidden).tobytes() if hidden.any() else b""
        if key not in self._windows:
            if len(hashes) * len(self._windows) > _MOST_KEPT:
                self._windows.clear()
            whole = np.array([0], np.int64), np.array([len(hashes)], np.int64)
            if key:
                self._windows[key] = PartWindows(hashes, hidden, *whole, self.min_tokens)
            else:
                self._windows[key] = Windows(hashes, self.min_tokens)
        return self._windows[key]

    def _is_blot_of(self, other: NDArray[np.uint64]) -> Mask:
        """Which of the blots the other text has, wherever it has them."""
        values = np.unique(self.blotter.all_blots(other, np.array([0, len(other)], np.int64)).values)
        # Most are not there, which a table of some bits tells at once.
        may_be_there = np.zeros(1 << _TABLE_BITS, np.bool_)
        may_be_there[_table_places(values)] = True
        found = np.zeros(len(self.blots), np.bool_)
        for begin in range(0, len(self.blots), _PIECE):
            piece = self.blots[begin : begin + _PIECE]
            may_be = np.flatnonzero(may_be_there[_table_places(piece)])
            found[begin + may_be] = np.isin(piece[may_be], values)
        return found

    def place(self, token_start: int, token_end: int) -> Place:
        """Where a passage stands in this text."""
        return Place("", *_span(self.tokens, token_start, token_end))

    def tokens_covered(self, shares: Sequence[SharedPassage]) -> int:
        """How many of the tokens are in one of these."""
        spans = sorted((share.asked.token_start, share.asked.token_end) for share in shares)
        count = reached = 0
        for start, end in spans:
            count += max(0, end - max(start, reached))
            reached = max(reached, end)
        return count


def shares_in_texts(
    asked: AskedText, texts: Sequence[str], hidden: Mask, spots: tuple[Numbers, Numbers] | None = None
) -> list[list[SharedPassage]]:
    """What each of some indexed texts shares with the one that is asked about, the longest passages first.

    *spots* are where shared blots stand: numbers in *texts*, and the spots in them. If every run of `min_tokens` tokens
    goes through such a blot, no more than what is around them has to be read of long texts; None: all is read.

    All at once, because what is done for each text alone would cost more than the texts themselves.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    result: list[list[SharedPassage]] = [[] for _ in texts]
    if spots is None:
        stretches = Stretches.whole(lengths)
    else:
        stretches = Stretches.around(lengths, *spots, asked.min_tokens)
    while len(stretches):
        read = ReadStretches(texts, lengths, stretches, asked.tokeniser)
        runs = asked.windows(hidden, read.hashes).runs_in(read.hashes, read.groups)
        wider = read.wider(runs, asked.min_tokens)
        own = read.stretches_of(runs.b_starts)
        of_text = stretches.texts[own]
        order = of_text.argsort(kind="stable")
        runs = AlignedRuns(runs.a_starts, runs.b_starts - own, runs.lengths).picked(order)
        bounds = of_text[order].searchsorted(np.arange(len(texts) + 1)).tolist()
        again = set() if wider is None else set(wider.texts.tolist())
        told = {
            text: outermost(thinned(runs.picked(slice(begin, end))))
            for text, (begin, end) in enumerate(pairwise(bounds))
            if begin < end and text not in again
        }
        for text, pairs in zip(told, _pairs(asked, read, list(told.values())), strict=True):
            result[text] = _shares_in(asked, texts[text], read.tokens, pairs)
        if wider is None:
            break
        stretches = wider
    return result


def _pairs(
    asked: AskedText, read: ReadStretches, runs_of_texts: Sequence[AlignedRuns]
) -> Iterator[list[Pair]]:
    """The runs of each text as pairs."""
    if not runs_of_texts:
        return
    runs = AlignedRuns.joined(runs_of_texts)
    pairs = zip(
        _spans(asked.tokens, runs.a_starts, runs.lengths),
        _spans(read.tokens, runs.b_starts, runs.lengths),
        *read.anchors(read.bounds.searchsorted(runs.b_starts, "right") - 1),
        strict=True,
    )
    for of_text in runs_of_texts:
        yield list(islice(pairs, len(of_text)))


def _shares_in(asked: AskedText, text: str, tokens: Tokens, pairs: Sequence[Pair]) -> list[SharedPassage]:
    shared: dict[Span, list[Pair]] = {}
    # Those of one place are in the order of the other text.
    for pair in sorted(part for whole in pairs for part in _equal_parts(asked, text, tokens, whole)):
        shared.setdefault(pair[0], []).append(pair)
    shares = []
    for span, there in shared.items():
        _, (_, _, char_start, char_end), _, _ = there[0]
        shares.append(
            SharedPassage(
                Place("", *span),
                text[char_start:char_end],
                tuple((b[0] - first, b[1] - first, b[2], b[3]) for _, b, first, _ in there),
                tuple(anchor for *_, anchor in there),
            )
        )
    return _longest_first(shares)


def _spans(tokens: Tokens, starts: Numbers, lengths: Numbers) -> list[Span]:
    ends = starts + lengths
    columns = starts, ends, tokens.starts[starts], tokens.ends[ends - 1]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def shares_in_outline(
    asked: AskedText, outline: Outline, blots: Numbers, ordinals: Numbers, hidden: Mask
) -> list[SharedPassage]:
    """As `shares_in_texts`, of one text from pairs of a blot of the asked text and the same blot of the indexed one."""
    span = asked.blotter.span
    free = ~_touching(asked.blot_starts[blots], span, hidden)
    blots, ordinals = blots[free], ordinals[free]
    a, b = asked.blot_starts[blots], outline.token_starts[ordinals]
    order = np.lexsort((a, b - a))
    a, b, ordinals, blots = a[order], b[order], ordinals[order], blots[order]
    # Where a window is larger than a blot, two blots that both texts keep one after the other need not touch.
    are_neighbours = (np.diff(ordinals) == 1) & (np.diff(a) <= asked.window)
    if asked.min_tokens >= asked.blotter.guarantee:
        are_neighbours &= np.diff(blots) == 1
    goes_on = (np.diff(b - a) == 0) & ((np.diff(a) <= span) | are_neighbours)
    gaps = np.flatnonzero(goes_on & (np.diff(a) > span))
    goes_on[gaps] = ~_touching(a[gaps], a[gaps + 1] - a[gaps], hidden)
    bounds = group_bounds(~goes_on, len(a))
    first, last = bounds[:-1], bounds[1:] - 1
    lengths = a[last] + span - a[first]
    # Of a run of so many tokens, the blots may begin and end so much later and earlier.
    long = lengths >= max(span, asked.min_tokens - 2 * (asked.window - 1))
    first, last, lengths = first[long], last[long], lengths[long]
    ends = {
        (int(a[start]), int(b[start])): (int(ordinals[start]), int(ordinals[stop]))
        for start, stop in zip(first, last, strict=True)
    }
    spans: dict[tuple[int, int], list[Span]] = {}
    for a_start, b_start, length in _rows(outermost(thinned(AlignedRuns(a[first], b[first], lengths)))):
        start, stop = ends[a_start, b_start]
        characters = int(outline.char_starts[start]), int(outline.char_ends[stop])
        spans.setdefault((a_start, a_start + length), []).append((b_start, b_start + length, *characters))
    return _longest_first(
        SharedPassage(asked.place(*place), None, tuple(sorted(there))) for place, there in spans.items()
    )


def _equal_parts(asked: AskedText, text: str, tokens: Tokens, pair: Pair) -> Iterator[Pair]:
    """The pair, if its words are equal; if hashes have joined it wrongly, what is long enough."""
    (a, a_end, *own), (b, _, *there), first, anchor = pair
    if asked.text[own[0] : own[1]] == text[there[0] : there[1]]:
        yield pair
        return
    begin, length = 0, a_end - a
    for differs in (*_differences(asked, text, tokens, a, b, length), length):
        if differs - begin >= asked.min_tokens:
            yield (
                _span(asked.tokens, a + begin, a + differs),
                _span(tokens, b + begin, b + differs),
                first,
                anchor,
            )
        begin = differs + 1


def _differences(asked: AskedText, text: str, tokens: Tokens, a: int, b: int, length: int) -> Iterator[int]:
    """Which tokens of a run differ as words. Most are written in the same way, which is fast to see of many at once."""
    for begin in range(0, length, _STRETCH):
        end = min(begin + _STRETCH, length)
        if _written(asked.text, asked.tokens, a + begin, a + end) == _written(
            text, tokens, b + begin, b + end
        ):
            continue
        for at in range(begin, end):
            own = _written(asked.text, asked.tokens, a + at, a + at + 1)
            there = _written(text, tokens, b + at, b + at + 1)
            if own != there and asked.tokeniser.words(own) != asked.tokeniser.words(there):
                yield at


def _written(text: str, tokens: Tokens, start: int, end: int) -> str:
    return text[tokens.starts[start] : tokens.ends[end - 1]]


def _span(tokens: Tokens, start: int, end: int) -> Span:
    return start, end, int(tokens.starts[start]), int(tokens.ends[end - 1])


def _rows(runs: AlignedRuns) -> Iterator[tuple[int, int, int]]:
    return zip(runs.a_starts.tolist(), runs.b_starts.tolist(), runs.lengths.tolist(), strict=True)


def _longest_first(shares: Iterable[SharedPassage]) -> list[SharedPassage]:
    return sorted(shares, key=lambda share: (-share.tokens, share.asked.token_start))


def _compact(tokens: Tokens, characters: int) -> Tokens:
    """Places in half the bytes, of a long text: it is kept as long as it is compared."""
    if len(tokens.hashes) <= _SHORT or characters > np.iinfo(np.int32).max:
        return tokens
    starts, ends = (cast("Numbers", side.astype(np.int32)) for side in (tokens.starts, tokens.ends))
    return replace(tokens, starts=starts, ends=ends)


def _table_places(blots: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (blots * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _TABLE_BITS)


def _touching(starts: Numbers, span: int | Numbers, tokens: Mask) -> Mask:
    """Which of the spans have one of the tokens in them."""
    before = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum(tokens, out=before[1:])
    touching: Mask = before[starts + span] != before[starts]
    return touching
