"""Questions to an index: which documents share passages with a text, what its blots are, and where a blot stands.

`like` looks the text's blots up, counts for each indexed text how many it has, and compares the text word by word with
those that have most. With the default of `min_tokens` every document among these that shares a run of so many tokens is
a hit, with all such runs; with fewer, a document is found only if it shares a blot that the index holds.

A document's blots that are boilerplate on its host count for nothing, and its passages do not go through them. The same
holds for all windows of a taboo text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import SettingError

from .alignment import Occurrences
from .blots import blotter_of, keys
from .boilerplate import SHARE, Boilerplate
from .shared import AskedText, Share, shares_in_outline, shares_in_texts
from .tokens import tokeniser_named
from .values import Hit, Passage, Place

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from .blots import Blotter
    from .snapshot import Snapshot
    from .tokens import Tokeniser
    from .values import Outline, Parameters

_LOOKED_INTO = 20
_BATCH = 10
_PATIENCE = 2


@dataclass(frozen=True, slots=True)
class BlotRow:
    """A blot of a text, and the tokens and characters that it is made of; ends are behind the last."""

    blot: int
    token_start: int
    token_end: int
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True)
class Unblotted:
    """Where a blot stands: its tokens as they are written in the first place (None without texts), and all places."""

    blot: int
    passage: Passage


def like(
    snapshot: Snapshot,
    text: str,
    top: int = 10,
    *,
    min_tokens: int | None = None,
    boilerplate_share: float | None = SHARE,
    taboo: Sequence[str] = (),
    left_out: Container[str] = (),
) -> list[Hit]:
    """The documents that share passages of at least *min_tokens* tokens with *text*, at most *top*, the best first.

    *min_tokens* is the shortest run that the index is sure to find, unless another is given. *boilerplate_share* None
    keeps boilerplate in. Documents in *left_out* are no hits. Of equal scores the document that was added first comes
    first. Texts are looked into while fewer than *top* are found, and as many again; at most 20 x *top*.

    Raises SettingError for numbers that make no sense, StoreRefused if the index is damaged.
    """
    if top < 1:
        raise SettingError(f"There cannot be {top} documents in an answer. Ask for 1 at least.")
    tokeniser, blotter = _made_with(snapshot.parameters)
    least = blotter.guarantee if min_tokens is None else min_tokens
    if least < 1:
        raise SettingError(f"A passage cannot have {least} tokens. Give 1 at least.")
    asked = AskedText.of(text, tokeniser, blotter, taboo, least)
    return _Search(snapshot, asked, boilerplate_share).hits(top, left_out)


class _Search:
    """What the index holds of a text's blots."""

    def __init__(self, snapshot: Snapshot, asked: AskedText, boilerplate_share: float | None) -> None:
        self._snapshot = snapshot
        self._asked = asked
        self._wanted, self._key_of_blot = np.unique(keys(asked.blots, asked.blotter), return_inverse=True)
        self._occurrences = Occurrences(self._key_of_blot.astype(np.uint64))
        key_numbers, texts, ordinals = snapshot.find(self._wanted)
        is_template = (
            np.zeros(len(texts), np.bool_)
            if boilerplate_share is None
            else Boilerplate(snapshot, boilerplate_share).is_boilerplate(key_numbers, texts)
        )
        self._template_keys, self._template_texts = key_numbers[is_template], texts[is_template]
        self._keys, self._texts = key_numbers[~is_template], texts[~is_template]
        self._ordinals = ordinals[~is_template]

    def hits(self, top: int, left_out: Container[str]) -> list[Hit]:
        size = max(top, _BATCH)
        candidates, estimates = self._candidates(_LOOKED_INTO * top)
        hidden = self._hidden_in(candidates)
        found: list[tuple[float, int, list[Share], list[str]]] = []
        scores: list[float] = []
        vain = 0
        for begin in range(0, len(candidates), size):
            if vain == _PATIENCE or len(scores) >= top and (
                begin >= 2 * size or estimates[begin] <= sorted(scores)[-top]
            ):
                break
            vain += 1
            names: dict[int, list[str]] = {}
            for text in candidates[begin : begin + size]:
                ids = (document.doc_id for document in self._snapshot.documents_of(text))
                if own := [doc_id for doc_id in ids if doc_id not in left_out]:
                    names[text] = own
            for text, shares in self._shares(list(names), hidden):
                if shares:
                    vain = 0
                    score = self._asked.share_covered(shares)
                    found.append((score, text, shares, names[text][:top]))
                    scores += [score] * len(found[-1][3])
        found.sort(key=lambda item: (-item[0], item[1]))
        return list(self._told(found, top))

    def _candidates(self, most: int) -> tuple[list[int], list[float]]:
        """The texts that have most of the blots, those of equal numbers in the order of adding, at most *most*.

        And which share of the blots each has, which is about its score.
        """
        keys_, texts = self._keys, self._texts
        if not self._snapshot.parameters.has_texts:
            pairs = np.unique(keys_ * max(1, self._snapshot.text_count) + texts)
            keys_, texts = np.divmod(pairs, max(1, self._snapshot.text_count))
        if not len(texts):
            return [], []
        # Of texts that have equally many, one with a rare blot is the more likely to share more than a phrase.
        weights = (np.bincount(self._key_of_blot) + 0.5 / np.maximum(1, np.bincount(keys_, minlength=len(self._wanted))))[keys_]
        if self._snapshot.text_count <= 8 * len(texts):
            counts = np.bincount(texts, weights=weights)
            numbers = np.flatnonzero(counts)
            counts = counts[numbers]
        else:
            numbers, inverse = np.unique(texts, return_inverse=True)
            counts = np.bincount(inverse.reshape(-1), weights=weights)
        enough = counts >= self._asked.least_blots
        numbers, counts = numbers[enough], counts[enough]
        if len(counts) > most:
            above = counts >= np.partition(counts, len(counts) - most)[len(counts) - most]
            numbers, counts = numbers[above], counts[above]
        order = np.argsort(-counts, kind="stable")[:most]
        return numbers[order].tolist(), (counts[order] / len(self._key_of_blot)).tolist()

    def _hidden_in(self, texts: list[int]) -> dict[int, NDArray[np.bool_]]:
        """Which tokens passages must not go through in each text, because their blots are boilerplate on its host."""
        is_wanted = np.zeros(self._snapshot.text_count, np.bool_)
        is_wanted[texts] = True
        wanted = is_wanted[self._template_texts]
        keys_, of_texts = self._template_keys[wanted], self._template_texts[wanted]
        order = np.argsort(of_texts, kind="stable")
        keys_, of_texts = keys_[order], of_texts[order]
        result = {}
        for text in texts:
            begin, end = np.searchsorted(of_texts, (text, text + 1))
            is_template = np.zeros(len(self._wanted), np.bool_)
            is_template[keys_[begin:end]] = True
            result[text] = self._asked.hidden_by(np.flatnonzero(is_template[self._key_of_blot]))
        return result

    def _shares(
        self, texts: list[int], hidden: dict[int, NDArray[np.bool_]]
    ) -> Iterator[tuple[int, list[Share]]]:
        if self._snapshot.parameters.has_texts:
            # The pages of a host mostly hide the same.
            alike: dict[bytes, list[int]] = {}
            for text in texts:
                alike.setdefault(hidden[text].tobytes(), []).append(text)
            for group in alike.values():
                shares = shares_in_texts(self._asked, self._snapshot.texts(group), hidden[group[0]])
                yield from zip(group, shares, strict=True)
            return
        for text in texts:
            own = np.flatnonzero(self._texts == text)
            blots, posts = self._occurrences.pairs_with(self._keys[own].astype(np.uint64))
            outline = self._snapshot.outline(text)
            yield text, shares_in_outline(self._asked, outline, blots, self._ordinals[own[posts]], hidden[text])

    @staticmethod
    def _told(found: list[tuple[float, int, list[Share], list[str]]], top: int) -> Iterator[Hit]:
        left = top
        for score, _, shares, names in found:
            for name in names[:left]:
                yield Hit(name, score, tuple(share.passage_in(name) for share in shares))
            left -= len(names[:left])
            if not left:
                return


def blots_of(text: str, parameters: Parameters, *, every: bool = False) -> list[BlotRow]:
    """The blots of a text that an index made with *parameters* holds, or those of all windows, as the text has them."""
    tokeniser, blotter = _made_with(parameters)
    tokens = tokeniser.tokens(text)
    make = blotter.all_blots if every else blotter.blots
    blots = make(tokens.hashes, np.array([0, len(tokens.hashes)], np.int64))
    ends = blots.starts + blotter.span
    rows = (blots.values, blots.starts, ends, tokens.starts[blots.starts], tokens.ends[ends - 1])
    return [BlotRow(*row) for row in zip(*(column.tolist() for column in rows), strict=True)]


def unblot(snapshot: Snapshot, blots: Sequence[int]) -> list[Unblotted]:
    """Where each blot stands: all its places in all documents, as the texts have them.

    Blots that stand nowhere are left out; the others are in the order given, each once. Without texts the places are
    those that the index holds. Raises SettingError for a number that is no blot of the index.
    """
    tokeniser, blotter = _made_with(snapshot.parameters)
    for blot in blots:
        if not 0 <= blot < 1 << blotter.bits:
            raise SettingError(f"{blot:x} is no blot of this index: its blots have {blotter.bits} bits.")
    asked = list(dict.fromkeys(blots))
    values = np.array(asked, np.uint64)
    wanted, key_of_blot = np.unique(keys(values, blotter), return_inverse=True)
    key_numbers, texts, ordinals = snapshot.find(wanted)
    places: dict[int, list[Place]] = {blot: [] for blot in asked}
    written: dict[int, str] = {}
    order = np.lexsort((ordinals, key_numbers, texts))
    key_numbers, texts, ordinals = key_numbers[order], texts[order], ordinals[order]
    bounds = np.flatnonzero(np.diff(texts, prepend=-1))
    for start, stop in zip(bounds, np.append(bounds[1:], len(texts)), strict=True):
        text = int(texts[start])
        names = [document.doc_id for document in snapshot.documents_of(text)]
        if snapshot.parameters.has_texts:
            content = snapshot.text(text)
            spans = _spans_of_blots(content, values, tokeniser, blotter)
            for blot, span in spans:
                written.setdefault(blot, content[span[2] : span[3]])
        else:
            outline = snapshot.outline(text)
            spans = [
                (asked[number], _span_in_outline(outline, int(ordinal), blotter.span))
                for key, ordinal in zip(key_numbers[start:stop], ordinals[start:stop], strict=True)
                for number in np.flatnonzero(key_of_blot == key)
            ]
        for blot, span in spans:
            places[blot] += [Place(name, *span) for name in names]
    return [
        Unblotted(blot, Passage(written.get(blot), blotter.span, tuple(places[blot])))
        for blot in asked
        if places[blot]
    ]


def _spans_of_blots(
    text: str, values: NDArray[np.uint64], tokeniser: Tokeniser, blotter: Blotter
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """All windows of a text that have one of the blots, with tokens and characters, in the order of the text."""
    tokens = tokeniser.tokens(text)
    every = blotter.all_blots(tokens.hashes, np.array([0, len(tokens.hashes)], np.int64))
    there = np.flatnonzero(np.isin(every.values, values))
    starts = every.starts[there]
    ends = starts + blotter.span
    rows = (starts, ends, tokens.starts[starts], tokens.ends[ends - 1])
    spans = list(zip(*(column.tolist() for column in rows), strict=True))
    return list(zip(every.values[there].tolist(), spans, strict=True))


def _span_in_outline(outline: Outline, ordinal: int, span: int) -> tuple[int, int, int, int]:
    token = int(outline.token_starts[ordinal])
    return token, token + span, int(outline.char_starts[ordinal]), int(outline.char_ends[ordinal])


def _made_with(parameters: Parameters) -> tuple[Tokeniser, Blotter]:
    return tokeniser_named(parameters.tokeniser), blotter_of(parameters.blotter)
