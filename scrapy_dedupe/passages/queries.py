"""Questions to an index: which documents share passages with a text, what its blots are, and where a blot stands.

`like` looks the text's blots up, tells for each indexed text how much of the asked one it can share at most (see the
module `chains`), and compares the text word by word with those that can share most. With the default of `min_tokens`
every text that shares a run of so many tokens can be a hit; with fewer, a text is found only if it shares a blot that the
index holds.

A document's blots that are boilerplate on its host, or on the host of the asked text if that is told, count for nothing,
and no passage goes through them. Of the windows of boilerplate some only have a blot that the index holds, so a passage
may go on into it for some tokens, fewer than a window has. Of a taboo text all windows count.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from scrapy_dedupe.errors import SettingError

from .blots import blotter_of, keys
from .boilerplate import SHARE
from .boilerplate_posts import templates_of
from .occurrences import Occurrences
from .preparation import digest_of
from .shared_passages import AskedText, SharedPassage, shares_in_outline, shares_in_texts
from .text_ranges import tokens_before
from .tokens import tokeniser_named
from .values import Hit, Passage, Place

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from .blots import Blotter
    from .snapshot import IndexSnapshot
    from .tokens import Tokeniser
    from .values import Outline, Parameters

_LOOKED_INTO = 2
# Mostly a text shares a little less than it can.
_LIKELY = 0.9
_FEW = 10
_MOST_AT_ONCE = 640
# Characters of the texts that are in memory at once, unless one alone has more; and tokens that are compared at once: the
# asked ones, for each of the texts.
_MOST_CHARACTERS = 16_000_000
_MOST_TOKENS = 4_000_000
_MOST_KEYS = 1 << 17
_first_documents: WeakKeyDictionary[IndexSnapshot, NDArray[np.int64]] = WeakKeyDictionary()


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
    snapshot: IndexSnapshot,
    text: str,
    top: int = 10,
    *,
    min_tokens: int | None = None,
    boilerplate_share: float | None = SHARE,
    taboo: Sequence[str] = (),
    left_out: Container[str] = (),
    host: str | None = None,
) -> list[Hit]:
    """The documents that share passages of at least *min_tokens* tokens with *text*, at most *top*, the best first.

    *min_tokens* is the shortest run that the index is sure to find, unless another is given. *boilerplate_share* None
    keeps boilerplate in. Documents in *left_out* are no hits. *host* says that *text* is a page of this host, whose
    boilerplate in the index then counts for nothing in the other documents either. Of equal scores the document that was
    added first comes first.

    Texts are looked into in the order of how much of *text* they can share at most, but one that is equal to it first. It
    ends when *top* documents are found and what is left can hardly be better, or after 2 x *top* texts with these: of
    many that share about equally much, others may be given than the very best. So it is with texts of very few different
    words, of which all can share everything. As long as there are fewer, all texts that can share a passage are looked
    into.

    Raises SettingError for numbers that make no sense, StoreRefused if the index is damaged.
    """
    if top < 1:
        raise SettingError(f"There cannot be {top} documents in an answer. Ask for 1 at least.")
    tokeniser, blotter = _made_with(snapshot.parameters)
    least = blotter.guarantee if min_tokens is None else min_tokens
    if least < 1:
        raise SettingError(f"A passage cannot have {least} tokens. Give 1 at least.")
    asked = AskedText.of(text, tokeniser, blotter, taboo, least)
    return _Search(snapshot, asked, boilerplate_share, host).hits(top, left_out)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a text shares, how many tokens of the asked text that is, and the numbers of the documents that have it."""

    covered: int
    text: int
    shares: list[SharedPassage]
    documents: list[int]


class _Search:
    """What the index holds of a text's blots."""

    def __init__(
        self, snapshot: IndexSnapshot, asked: AskedText, boilerplate_share: float | None, host: str | None
    ) -> None:
        self._snapshot = snapshot
        self._asked = asked
        self._hidden: dict[int, NDArray[np.bool_]] = {}
        self._numbers = np.zeros(snapshot.text_count, np.int32)
        self._keys_of_text, self._key_of_blot = np.unique(
            keys(asked.blots, asked.blotter), return_inverse=True
        )
        self._templates: dict[int, list[int]] = {}
        parts: list[tuple[NDArray[np.int64], ...]] = []
        for begin in range(0, max(1, len(self._keys_of_text)), _MOST_KEYS):
            numbers, texts, where = self._posts(begin, boilerplate_share)
            parts.append((numbers + begin, texts, where))
        self._keys, self._texts, self._where = (
            np.concatenate([part[i] for part in parts]) if len(parts) > 1 else parts[0][i] for i in range(3)
        )
        # What is the template of the asked page's own host, by the numbers of its keys.
        self._own: list[int] = []
        if host and host in snapshot.host_names:
            self._own = self._templates.get(snapshot.host_names.index(host), [])
        if self._own:
            others = ~np.isin(self._keys, self._own)
            self._keys, self._texts, self._where = (
                self._keys[others],
                self._texts[others],
                self._where[others],
            )

    def _posts(self, begin: int, share: float | None) -> tuple[NDArray[np.int64], ...]:
        """The posts of some keys, which are numbered from the first of them."""
        some = self._keys_of_text[begin : begin + _MOST_KEYS]
        if share is None:
            return self._snapshot.find(some, in_order=False)
        found = templates_of(self._snapshot, share).find(self._snapshot, some)
        for host, numbers in found.keys_of_hosts.items():
            self._templates.setdefault(host, []).extend(begin + number for number in numbers)
        return found.posts

    def hits(self, top: int, left_out: Container[str]) -> list[Hit]:
        candidates, most = self._candidates()
        order = _first_documents_of(self._snapshot)
        found: list[_Found] = []
        # Of the documents found so far: how good they are, the best first.
        ranks: list[tuple[int, int]] = []
        documents: dict[int, list[int]] = {}
        shares: dict[int, list[SharedPassage]] = {}
        begin, size, read = 0, max(top, _FEW), 0
        while begin < len(candidates):
            if len(ranks) >= top and (
                begin >= _LOOKED_INTO * top
                or (-int(_LIKELY * most[begin]), order[candidates[begin]]) > ranks[top - 1]
            ):
                break
            end = self._end(candidates, begin, size)
            if end > read:
                # When there are enough, mostly two more turns are left, which are read faster at once.
                read = self._end(candidates, begin, 2 * size if len(ranks) >= top else size)
                documents = self._documents_of(candidates[begin:read], left_out)
                shares = dict(self._shares(list(documents)))
            for text in candidates[begin:end]:
                if shares.get(text):
                    covered = self._asked.tokens_covered(shares[text])
                    found.append(_Found(covered, text, shares[text], documents[text][:top]))
                    ranks += [(-covered, int(order[text]))] * len(found[-1].documents)
            begin = end
            ranks.sort()
            size = self._next_size(size, begin, len(ranks), top)
        return list(self._told(found, top))

    def _documents_of(self, texts: list[int], left_out: Container[str]) -> dict[int, list[int]]:
        """The numbers of the documents that have each of these texts and can be hits, if there are any."""
        documents = {text: self._snapshot.document_numbers_of(text) for text in texts}
        if left_out:
            documents = {
                text: own
                for text, numbers in documents.items()
                if (own := [number for number in numbers if self._snapshot.doc_id(number) not in left_out])
            }
        return documents

    @staticmethod
    def _next_size(size: int, looked_into: int, documents: int, top: int) -> int:
        """How many candidates are looked into next, after *size* at once, and so many in all with their *documents*.

        As many as will bring what is wanted, if those that follow bring as much as those before.
        """
        least = max(top, _FEW) // 2
        wanted = -(-(top - documents) * looked_into // documents) if documents else 2 * size
        return min(max(wanted, least), 2 * size, _MOST_AT_ONCE)

    def _end(self, candidates: list[int], begin: int, size: int) -> int:
        """Behind the last of the candidates that are looked into at once."""
        size = min(size, max(1, _MOST_TOKENS // (len(self._asked.tokens.hashes) + 1)))
        characters = np.cumsum(self._snapshot.char_counts[candidates[begin : begin + size]], dtype=np.int64)
        return begin + max(1, int(characters.searchsorted(_MOST_CHARACTERS, "right")))

    def _candidates(self) -> tuple[list[int], list[int]]:
        """The texts that may share a run of `min_tokens` tokens, and how many tokens of the asked text at most.

        The text that is the asked one comes first, then those that may share most, of equal ones the first added. For
        runs that are shorter than the guarantee it is a guess and not the most.
        """
        asked = self._asked
        if asked.min_tokens >= asked.blotter.guarantee:
            bounds = asked.chains(self._keys_of_text).bounds(self._keys, self._texts, asked.min_tokens)
            texts, most = bounds.texts, bounds.most_tokens
        elif len(self._texts):
            weights = np.bincount(self._key_of_blot)[self._keys]
            counts = np.bincount(self._texts, weights=weights)
            texts = np.flatnonzero(counts)
            # About two blots in window + 1 are kept.
            most = (counts[texts] * (asked.window + 1) / 2).astype(np.int64) + asked.blotter.span - 1
        else:
            return [], []
        # The text that is the asked one may share no more than all others can, where words are few.
        same = self._snapshot.text_of_digest(digest_of(asked.text))
        is_other = texts != (-1 if same is None else same)
        order = np.lexsort((_first_documents_of(self._snapshot)[texts], -most, is_other))
        return texts[order].tolist(), most[order].tolist()

    def _hidden_on(self, host: int) -> NDArray[np.bool_]:
        """Which tokens passages must not go through in texts of a host, because their blots are boilerplate there."""
        if host not in self._hidden:
            is_template = np.zeros(len(self._keys_of_text), np.bool_)
            is_template[self._templates.get(host, [])] = True
            is_template[self._own] = True
            self._hidden[host] = self._asked.hidden_by(np.flatnonzero(is_template[self._key_of_blot]))
        return self._hidden[host]

    def _shares(self, texts: list[int]) -> Iterator[tuple[int, list[SharedPassage]]]:
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
        occurrences = Occurrences(self._key_of_blot.astype(np.uint64))
        for text in texts:
            own = np.flatnonzero(self._texts == text)
            blots, posts = occurrences.pairs_with(self._keys[own].astype(np.uint64))
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

    def _told(self, found: list[_Found], top: int) -> Iterator[Hit]:
        ranked = [(-one.covered, number, one) for one in found for number in one.documents]
        ranked.sort(key=itemgetter(0, 1))
        shares: dict[int, list[SharedPassage]] = {}
        for _, number, one in ranked[:top]:
            if one.text not in shares:
                shares[one.text] = self._counted(one.text, one.shares)
            name = self._snapshot.doc_id(number)
            score = one.covered / len(self._asked.tokens.hashes)
            yield Hit(name, score, tuple(share.passage_in(name) for share in shares[one.text]))

    def _counted(self, text: int, shares: list[SharedPassage]) -> list[SharedPassage]:
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


def unblot(snapshot: IndexSnapshot, blots: Sequence[int]) -> list[Unblotted]:
    """Where each blot stands: all its places in all documents that it is kept of, in the order of adding.

    A blot that is kept of no text is left out; winnowing keeps two in nine, so that does not say that its tokens stand
    nowhere. The others are in the order given, each once. Without texts the places are those that the index holds.
    Raises SettingError for a number that is no blot of the index.
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
    written: dict[int, tuple[int, str]] = {}
    added: dict[str, int] = {}
    order = np.lexsort((where, key_numbers, texts))
    key_numbers, texts, where = key_numbers[order], texts[order], where[order]
    for text in sorted(set(texts.tolist())):
        numbers = snapshot.document_numbers_of(text)
        names = [snapshot.doc_id(number) for number in numbers]
        added.update(zip(names, numbers, strict=True))
        if snapshot.parameters.has_texts:
            content = snapshot.text(text)
            spans = _spans_of_blots(content, values, tokeniser, blotter)
            for blot, span in spans:
                if blot not in written or added[names[0]] < written[blot][0]:
                    written[blot] = added[names[0]], content[span[2] : span[3]]
        else:
            outline = snapshot.outline(text)
            begin, end = texts.searchsorted((text, text + 1))
            spans = [
                (asked[number], _span_in_outline(outline, int(ordinal), blotter.span))
                for key, ordinal in zip(key_numbers[begin:end], where[begin:end], strict=True)
                for number in np.flatnonzero(key_of_blot == key)
            ]
        for name in names:
            for blot, span in spans:
                places[blot].append(Place(name, *span))
    for there in places.values():
        there.sort(key=lambda place: added[place.doc_id])
    return [
        Unblotted(blot, Passage(written.get(blot, (None, None))[1], blotter.span, tuple(places[blot])))
        for blot in asked
        if places[blot]
    ]


def _first_documents_of(snapshot: IndexSnapshot) -> NDArray[np.int64]:
    """For each text the first document that has it, numbered in the order of adding."""
    if snapshot not in _first_documents:
        firsts = np.full(snapshot.text_count, -1, np.int64)
        living = np.flatnonzero(snapshot.is_alive_document)[::-1]
        # Of several values for one text the last is kept.
        firsts[snapshot.text_numbers[living]] = living
        _first_documents[snapshot] = firsts
    return _first_documents[snapshot]


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
