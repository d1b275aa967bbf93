"""The passages that a query text shares with an indexed text.

If the index keeps texts, runs of equal tokens are found by their hashes and then compared word by word. Otherwise the
outline is used: consecutive blots that both texts have in a row form a passage. Such a passage may be up to ``window - 1``
tokens too short at either end, and only blots have been compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from .alignment import AlignedRuns, Chains, Windows, outermost, thinned
from .blots import keys
from .blots import windows as joined_windows
from .groups import covered, group_bounds
from .tokens import tokens_of_all
from .values import Passage, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from .blots import Blotter
    from .tokens import Span, Tokeniser, Tokens
    from .values import Outline

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]
    Pair = tuple[Span, Span]
    """The spans of a run in the query text and in the indexed text."""

_MOST_KEPT = 1 << 20  # tokens whose windows are cached for the next text, about 40 bytes each
_PIECE = 1 << 20
# It equals no token, except with a probability of 2^-64.
_BARRIER = np.uint64(0xA24BAED4963EE407)


@dataclass(frozen=True, slots=True)
class SharedPassage:
    """A passage of the query text and its *spans* in one indexed text; *text* is its wording in the first span."""

    query: Place
    text: str | None
    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        return self.query.token_end - self.query.token_start

    def passage_in(self, doc_id: str) -> Passage:
        """The passage in a document that has the text."""
        places = tuple(Place(doc_id, *span) for span in self.spans)
        return Passage(self.text, self.tokens, places, self.query)


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query text. ``taboo`` marks each token that is in a window of a taboo text.

    ``blots`` are the blots to look up, ``blot_starts`` their first tokens.
    """

    text: str
    tokens: Tokens
    tokeniser: Tokeniser
    blotter: Blotter
    min_tokens: int
    taboo: Mask
    blots: NDArray[np.uint64]
    blot_starts: Numbers
    _windows: dict[bytes, Windows] = field(default_factory=dict)

    @classmethod
    def of(
        cls, text: str, tokeniser: Tokeniser, blotter: Blotter, taboo: Sequence[str], min_tokens: int
    ) -> QueryText:
        """Prepare a query for runs of at least *min_tokens* tokens. A lone surrogate counts as U+FFFD, as in the index."""
        tokens = tokeniser.tokens(text)
        bounds = np.array([0, len(tokens.hashes)], np.int64)
        # Both texts keep the smallest blot of a fully shared window. Of a shorter run, the index may have any blot.
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
            blots = blots.picked(free)
        return cls(text, tokens, tokeniser, blotter, min_tokens, is_taboo, blots.values, blots.starts)

    @property
    def window(self) -> int:
        """The number of consecutive blots of which the index keeps one."""
        return self.blotter.guarantee - self.blotter.span + 1

    def chains(self, sorted_keys: NDArray[np.uint64]) -> Chains:
        """The windows of the text, each identified by the index of the key of its blot in *sorted_keys*."""
        hashes, around = self.tokens.hashes, self.blotter.guarantee - 1
        numbers = np.full(max(0, len(hashes) - around), -1, np.int32)
        for begin in range(0, len(numbers), _PIECE):
            piece = numbers[begin : begin + _PIECE]
            some = hashes[begin : begin + len(piece) + around]
            values = self.blotter.all_blots(some, np.array([0, len(some)], np.int64)).values
            smallest = joined_windows(
                values, self.window, 1, lambda first, second, _: np.minimum(first, second)
            )
            # Neighbouring windows usually have the same blot.
            bounds = group_bounds(smallest[1:] != smallest[:-1], len(smallest))
            wanted = keys(smallest[bounds[:-1]], self.blotter)
            if len(sorted_keys):
                places = np.minimum(sorted_keys.searchsorted(wanted), len(sorted_keys) - 1)
                found = np.where(sorted_keys[places] == wanted, places, -1)
                piece[:] = found.repeat(np.diff(bounds))
        return Chains(cast("Numbers", numbers), self.blotter.guarantee)

    def hidden_by(self, blots: Numbers) -> Mask:
        """The tokens that no passage may contain: taboo tokens, and the tokens of *blots*."""
        if not len(blots):
            return self.taboo
        return self.taboo | covered(
            len(self.taboo), self.blot_starts[blots], self.blot_starts[blots] + self.blotter.span
        )

    def windows(self, hidden: Mask) -> Windows:
        """The windows of tokens to compare with other texts. They are cached: pages of one host hide the same tokens."""
        hashes = self.tokens.hashes
        key = np.packbits(hidden).tobytes() if hidden.any() else b""
        if key not in self._windows:
            if len(hashes) * len(self._windows) > _MOST_KEPT:
                self._windows.clear()
            # Hidden tokens get hashes that equal no token and no barrier.
            unlike = np.arange(2, len(hashes) + 2, dtype=np.uint64) * _BARRIER
            self._windows[key] = Windows(np.where(hidden, unlike, hashes) if key else hashes, self.min_tokens)
        return self._windows[key]

    def place(self, token_start: int, token_end: int) -> Place:
        """The place of a passage in this text."""
        return Place("", *_span(self.tokens, token_start, token_end))

    def tokens_covered(self, shares: Sequence[SharedPassage]) -> int:
        """The number of tokens that are in at least one of *shares*."""
        spans = sorted((share.query.token_start, share.query.token_end) for share in shares)
        count = reached = 0
        for start, end in spans:
            count += max(0, end - max(start, reached))
            reached = max(reached, end)
        return count


def shares_in_texts(query: QueryText, texts: Sequence[str], hidden: Mask) -> list[list[SharedPassage]]:
    """Return the passages that each of *texts* shares with the query text, the longest first.

    Texts are processed together, because the fixed cost per call is higher than that of a typical text.
    """
    tokens, bounds = tokens_of_all(texts, query.tokeniser)
    # A token that equals nothing separates the texts.
    hashes = np.insert(tokens.hashes, bounds[1:-1], _BARRIER)
    owners = np.repeat(np.arange(len(texts)), np.diff(bounds) + 1)[: len(hashes)]
    runs = query.windows(hidden).runs_in(hashes, owners)
    own = owners[runs.b_starts]
    order = own.argsort(kind="stable")
    runs = AlignedRuns(runs.a_starts, runs.b_starts - own - bounds[own], runs.lengths).picked(order)
    limits = own[order].searchsorted(np.arange(len(texts) + 1)).tolist()
    result = []
    for number, (begin, end) in enumerate(pairwise(limits)):
        found = outermost(thinned(runs.picked(slice(begin, end))))
        own_tokens = tokens.picked(slice(bounds[number], bounds[number + 1]))
        pairs = zip(
            query.tokens.spans(found.a_starts, found.a_starts + found.lengths),
            own_tokens.spans(found.b_starts, found.b_starts + found.lengths),
            strict=True,
        )
        result.append(_shares_in(query, texts[number], own_tokens, pairs))
    return result


def _shares_in(query: QueryText, text: str, tokens: Tokens, pairs: Iterable[Pair]) -> list[SharedPassage]:
    shared: dict[Span, list[Span]] = {}
    # Sorted, so that the spans of one place are in the order of the indexed text.
    for own, there in sorted(part for whole in pairs for part in _equal_parts(query, text, tokens, whole)):
        shared.setdefault(own, []).append(there)
    return _longest_first(
        SharedPassage(Place("", *own), text[spans[0][2] : spans[0][3]], tuple(spans))
        for own, spans in shared.items()
    )


def shares_in_outline(
    query: QueryText, outline: Outline, blots: Numbers, ordinals: Numbers, hidden: Mask
) -> list[SharedPassage]:
    """Like `shares_in_texts`, for one text of which only the outline is known.

    *blots* and *ordinals* are pairs of equal blots: the index of a blot in the query text, and in the indexed text.
    """
    span = query.blotter.span
    free = ~_touching(query.blot_starts[blots], span, hidden)
    blots, ordinals = blots[free], ordinals[free]
    a, b = query.blot_starts[blots], outline.token_starts[ordinals]
    order = np.lexsort((a, b - a))
    a, b, ordinals, blots = a[order], b[order], ordinals[order], blots[order]
    # If a window is larger than a blot, two consecutive kept blots need not touch.
    are_neighbours = (np.diff(ordinals) == 1) & (np.diff(a) <= query.window)
    if query.min_tokens >= query.blotter.guarantee:
        are_neighbours &= np.diff(blots) == 1
    continues = (np.diff(b - a) == 0) & ((np.diff(a) <= span) | are_neighbours)
    gaps = np.flatnonzero(continues & (np.diff(a) > span))
    continues[gaps] = ~_touching(a[gaps], a[gaps + 1] - a[gaps], hidden)
    bounds = group_bounds(~continues, len(a))
    first, last = bounds[:-1], bounds[1:] - 1
    lengths = a[last] + span - a[first]
    # The kept blots of a run may begin up to window - 1 tokens after its start and end as many tokens before its end.
    long = lengths >= max(span, query.min_tokens - 2 * (query.window - 1))
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
        SharedPassage(query.place(*place), None, tuple(sorted(there))) for place, there in spans.items()
    )


def _equal_parts(query: QueryText, text: str, tokens: Tokens, pair: Pair) -> Iterator[Pair]:
    """The pair, if its words are equal. Otherwise (a hash collision) the parts with equal words that are long enough."""
    (a, a_end, *own), (b, _, *there) = pair
    if query.text[own[0] : own[1]] == text[there[0] : there[1]]:
        yield pair
        return
    begin, length = 0, a_end - a
    for differs in (*_differences(query, text, tokens, a, b, length), length):
        if differs - begin >= query.min_tokens:
            yield _span(query.tokens, a + begin, a + differs), _span(tokens, b + begin, b + differs)
        begin = differs + 1


def _differences(query: QueryText, text: str, tokens: Tokens, a: int, b: int, length: int) -> Iterator[int]:
    """The tokens of a run that differ as words. Most are written identically."""
    own, there = query.tokens.picked(slice(a, a + length)), tokens.picked(slice(b, b + length))
    columns = (column.tolist() for column in (own.starts, own.ends, there.starts, there.ends))
    for at, (start, end, other_start, other_end) in enumerate(zip(*columns, strict=True)):
        word, other = query.text[start:end], text[other_start:other_end]
        if word != other and query.tokeniser.words(word) != query.tokeniser.words(other):
            yield at


def _span(tokens: Tokens, start: int, end: int) -> Span:
    return start, end, int(tokens.starts[start]), int(tokens.ends[end - 1])


def _rows(runs: AlignedRuns) -> Iterator[tuple[int, int, int]]:
    return zip(runs.a_starts.tolist(), runs.b_starts.tolist(), runs.lengths.tolist(), strict=True)


def _longest_first(shares: Iterable[SharedPassage]) -> list[SharedPassage]:
    return sorted(shares, key=lambda share: (-share.tokens, share.query.token_start))


def _touching(starts: Numbers, span: int | Numbers, tokens: Mask) -> Mask:
    """For each span, whether it contains a marked token."""
    before = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum(tokens, out=before[1:])
    touching: Mask = before[starts + span] != before[starts]
    return touching
