"""Questions to an index: which documents share passages with a text, what its blots are, and where a blot stands.

`like` looks the text's blots up, counts for each indexed text how many it has, and compares the text word by word with
those that have most. With the default of `min_tokens` every text among these that shares a run of so many tokens is a
hit, with all such runs; with fewer, a text is found only if it shares a blot that the index holds.

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
from .boilerplate import SHARE
from .shared import AskedText, Share, shares_in_outline, shares_in_texts
from .stretches import tokens_before
from .templates import templates_of
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
_FEW = 10
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
    first.

    Texts are looked into in the order of how many of the blots they have: *top* of them, then half as many at a time
    (ten at least), until *top* documents are found and no better ones are likely. It ends before, if two times in a
    row bring none, since what is left shares phrases at most, and after 20 x *top* texts.

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
        self._hidden: dict[int, NDArray[np.bool_]] = {}
        self._numbers = np.zeros(snapshot.text_count, np.int32)
        self._keys_of_text, self._key_of_blot = np.unique(
            keys(asked.blots, asked.blotter), return_inverse=True
        )
        self._occurrences = Occurrences(self._key_of_blot.astype(np.uint64))
        if boilerplate_share is None:
            self._keys, self._texts, self._where = snapshot.find(self._keys_of_text)
            self._templates: dict[int, list[int]] = {}
        else:
            templates = templates_of(snapshot, boilerplate_share)
            found = templates.find(snapshot, self._keys_of_text)
            self._keys, self._texts, self._where = found.posts
            self._templates = found.keys_of_hosts

    def hits(self, top: int, left_out: Container[str]) -> list[Hit]:
        candidates, estimates = self._candidates(_LOOKED_INTO * top)
        found: list[tuple[float, int, list[Share], list[str]]] = []
        scores: list[float] = []
        begin = vain = 0
        end = max(top, _FEW)
        while begin < len(candidates) and vain < _PATIENCE:
            # The rest is not likely to be better than what there is.
            if len(scores) >= top and (begin >= 2 * top or estimates[begin] <= sorted(scores)[-top]):
                break
            names: dict[int, list[str]] = {}
            for text in candidates[begin:end]:
                ids = (document.doc_id for document in self._snapshot.documents_of(text))
                if own := [doc_id for doc_id in ids if doc_id not in left_out]:
                    names[text] = own
            begin, end, vain = end, end + max(top // 2, _FEW), vain + 1
            for text, shares in self._shares(list(names)):
                if shares:
                    vain = 0
                    score = self._asked.share_covered(shares)
                    found.append((score, text, shares, names[text][:top]))
                    scores += [score] * len(found[-1][3])
        found.sort(key=lambda item: (-item[0], item[1]))
        return list(self._told(found, top))

    def _candidates(self, most: int) -> tuple[list[int], list[float]]:
        """The texts that have most of the blots, of equal numbers those with rare ones first, at most *most*.

        And which share of the blots each has, which is about its score.
        """
        keys_, texts = self._keys, self._texts
        if not self._snapshot.parameters.has_texts:
            pairs = np.unique(keys_ * max(1, self._snapshot.text_count) + texts)
            keys_, texts = np.divmod(pairs, max(1, self._snapshot.text_count))
        if not len(texts):
            return [], []
        # Of texts that have equally many, one with a rare blot is the more likely to share more than a phrase; what is
        # added for that stays below 1.
        times = np.bincount(keys_, minlength=len(self._keys_of_text))
        rarity = 1 / (np.maximum(1, times) * (len(self._keys_of_text) + 1))
        weights = (np.bincount(self._key_of_blot) + rarity)[keys_]
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
        return numbers[order].tolist(), (counts[order] // 1 / len(self._key_of_blot)).tolist()

    def _hidden_on(self, host: int) -> NDArray[np.bool_]:
        """Which tokens passages must not go through in texts of a host, because their blots are boilerplate there."""
        if host not in self._hidden:
            is_template = np.zeros(len(self._keys_of_text), np.bool_)
            is_template[self._templates.get(host, [])] = True
            self._hidden[host] = self._asked.hidden_by(np.flatnonzero(is_template[self._key_of_blot]))
        return self._hidden[host]

    def _shares(self, texts: list[int]) -> Iterator[tuple[int, list[Share]]]:
        hidden = {text: self._hidden_on(int(self._snapshot.text_host[text])) for text in texts}
        if self._snapshot.parameters.has_texts:
            alike: dict[bytes, list[int]] = {}
            for text in texts:
                alike.setdefault(hidden[text].tobytes(), []).append(text)
            for group in alike.values():
                shares = shares_in_texts(
                    self._asked, self._snapshot.texts(group), hidden[group[0]], self._spots_in(group)
                )
                yield from zip(group, shares, strict=True)
            return
        for text in texts:
            own = np.flatnonzero(self._texts == text)
            blots, posts = self._occurrences.pairs_with(self._keys[own].astype(np.uint64))
            outline = self._snapshot.outline(text)
            yield (
                text,
                shares_in_outline(self._asked, outline, blots, self._where[own[posts]], hidden[text]),
            )

    def _spots_in(self, texts: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Where the blots stand in some texts, told by their numbers in *texts*; None if that says too little."""
        if self._asked.min_tokens < self._asked.blotter.guarantee:
            return None  # a run may be so short that the index has none of its blots
        self._numbers[texts] = np.arange(1, len(texts) + 1)
        numbers = self._numbers[self._texts]
        self._numbers[texts] = 0
        own = np.flatnonzero(numbers)
        return numbers[own].astype(np.int64) - 1, self._where[own]

    def _told(self, found: list[tuple[float, int, list[Share], list[str]]], top: int) -> Iterator[Hit]:
        left = top
        for score, text, read, names in found:
            shares = self._counted(text, read)
            for name in names[:left]:
                yield Hit(name, score, tuple(share.passage_in(name) for share in shares))
            left -= len(names[:left])
            if not left:
                return

    def _counted(self, text: int, shares: list[Share]) -> list[Share]:
        """With the numbers that their tokens have in the text."""
        anchors = {anchor for share in shares for anchor in share.anchors}
        before = {0: 0}
        if anchors - {0}:
            before = tokens_before(self._snapshot.text(text), anchors, self._asked.tokeniser)
        return [share.counted(before) if share.anchors else share for share in shares]


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
    key_numbers, texts, where = snapshot.find(wanted)
    places: dict[int, list[Place]] = {blot: [] for blot in asked}
    written: dict[int, str] = {}
    order = np.lexsort((where, key_numbers, texts))
    key_numbers, texts, where = key_numbers[order], texts[order], where[order]
    for text in sorted(set(texts.tolist())):
        names = [document.doc_id for document in snapshot.documents_of(text)]
        if snapshot.parameters.has_texts:
            content = snapshot.text(text)
            spans = _spans_of_blots(content, values, tokeniser, blotter)
            for blot, span in spans:
                written.setdefault(blot, content[span[2] : span[3]])
        else:
            outline = snapshot.outline(text)
            begin, end = np.searchsorted(texts, (text, text + 1))
            spans = [
                (asked[number], _span_in_outline(outline, int(ordinal), blotter.span))
                for key, ordinal in zip(key_numbers[begin:end], where[begin:end], strict=True)
                for number in np.flatnonzero(key_of_blot == key)
            ]
        for name in names:
            for blot, span in spans:
                places[blot].append(Place(name, *span))
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
