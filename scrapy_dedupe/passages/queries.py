"""Queries: documents that share passages with a text, the blots of a text, and the places of a blot.

`like` looks up the blots of the query text, computes for each indexed text the maximum number of tokens that it can share
with the query text (see `alignment`), and compares the query text word by word with the texts that can share most. With the
default `min_tokens`, every text that shares a run of this length is a candidate. With a smaller value, a text is found
only if it shares a blot that the index holds.

Blots that are boilerplate on the host of the document, or on the host of the query text if it is given, are ignored, and
no passage contains them. The index holds the blots of only some windows of boilerplate, so a passage may reach into
boilerplate by fewer tokens than a window has. Of taboo texts, all windows are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import SettingError

from .alignment import Occurrences
from .blots import blotter_of, keys
from .boilerplate import SHARE, Boilerplate
from .preparation import digest_of
from .shared_passages import QueryText, SharedPassage, shares_in_outline, shares_in_texts
from .tokens import tokeniser_named
from .values import Hit, Passage, Place

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from .blots import Blotter
    from .snapshot import IndexSnapshot
    from .tokens import Span, Tokeniser
    from .values import Outline, Parameters

# The search ends after this multiple of `top` texts, if `top` documents have been found.
_LOOKED_INTO = 2
# A text usually shares fewer tokens than its maximum: about this part of it.
_LIKELY = 0.9
_FEW = 10
_MOST_AT_ONCE = 640
# The maximum number of characters of indexed texts in memory at once, except that a single text may have more.
_MOST_CHARACTERS = 16_000_000
# The maximum of (tokens of the query text) x (texts that are compared together).
_MOST_TOKENS = 4_000_000
_MOST_KEYS = 1 << 17


@dataclass(frozen=True, slots=True)
class BlotRow:
    """A blot of a text, and the ranges of tokens and characters from which it is computed. Ends are exclusive."""

    blot: int
    token_start: int
    token_end: int
    char_start: int
    char_end: int


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
    """Return at most *top* documents that share passages of at least *min_tokens* tokens with *text*, the best first.

    Documents with equal scores are in the order in which they were added.

    :param min_tokens: the default is the shortest run that the index is guaranteed to find.
    :param boilerplate_share: None includes boilerplate.
    :param taboo: texts whose windows are excluded from passages.
    :param left_out: ids of documents that are not returned.
    :param host: the host of *text*. If given, this host's boilerplate in the index is ignored in all documents.

    Texts are compared in descending order of the maximum number of tokens that they can share; a text that is equal to
    *text* comes first. The search ends when *top* documents have been found and the remaining texts are unlikely to be
    better, or when *top* documents have been found after 2 x *top* texts. So among many documents that share about the
    same amount, the result may not contain the very best. This also applies to texts with very few different words, since
    all of them can share everything. If fewer than *top* documents are found, all texts that can share a passage have
    been compared.

    Raises SettingError for numbers out of range, and StoreRefused if the index is damaged.
    """
    if top < 1:
        raise SettingError(f"top is {top}. Give 1 or more.")
    tokeniser, blotter = _tokeniser_and_blotter(snapshot.parameters)
    least = blotter.guarantee if min_tokens is None else min_tokens
    if least < 1:
        raise SettingError(f"min_tokens is {least}. Give 1 or more.")
    query = QueryText.of(text, tokeniser, blotter, taboo, least)
    return _Search(snapshot, query, boilerplate_share, host).hits(top, left_out)


class _Search:
    """One `like` query: the posts of the blots of the query text, without boilerplate."""

    def __init__(
        self, snapshot: IndexSnapshot, query: QueryText, boilerplate_share: float | None, host: str | None
    ) -> None:
        self._snapshot = snapshot
        self._query = query
        self._hidden: dict[int, NDArray[np.bool_]] = {}
        self._keys_of_text, self._key_of_blot = np.unique(
            keys(query.blots, query.blotter), return_inverse=True
        )
        boilerplate = None if boilerplate_share is None else Boilerplate(snapshot, boilerplate_share)
        parts, templates = [], [np.zeros((2, 0), np.int64)]
        for begin in range(0, max(1, len(self._keys_of_text)), _MOST_KEYS):
            some = self._keys_of_text[begin : begin + _MOST_KEYS]
            numbers, texts, where = snapshot.find(some)
            is_template = np.zeros(len(numbers), np.bool_)
            if boilerplate is not None:
                is_template = boilerplate.is_boilerplate(numbers, texts)
            numbers = numbers + begin
            templates.append(np.stack((snapshot.text_host[texts[is_template]], numbers[is_template])))
            parts.append([column[~is_template] for column in (numbers, texts, where)])
        # Pairs of a host, and the number of a key that is boilerplate there.
        self._templates = np.concatenate(templates, axis=1)
        # The numbers of the keys that are boilerplate on the host of the query text.
        self._own_templates = np.zeros(0, np.int64)
        if host and host in snapshot.host_names:
            self._own_templates = self._templates_on(snapshot.host_names.index(host))
        self._keys, self._texts, self._where = (np.concatenate(column) for column in zip(*parts, strict=True))
        others = ~np.isin(self._keys, self._own_templates)
        self._keys, self._texts, self._where = self._keys[others], self._texts[others], self._where[others]

    def _templates_on(self, host: int) -> NDArray[np.int64]:
        hosts, numbers = self._templates
        return numbers[hosts == host]

    def hits(self, top: int, left_out: Container[str]) -> list[Hit]:
        candidates, most = self._candidates()
        order = self._snapshot.first_documents
        # For each text with shared passages: the query tokens covered, the passages, and the documents with this text.
        found: list[tuple[int, list[SharedPassage], list[int]]] = []
        # The sort keys of the documents found so far, the best first.
        ranks: list[tuple[int, int]] = []
        begin, size = 0, max(top, _FEW)
        while begin < len(candidates):
            if len(ranks) >= top and (
                begin >= _LOOKED_INTO * top
                or (-int(_LIKELY * most[begin]), order[candidates[begin]]) > ranks[top - 1]
            ):
                break
            end = self._end(candidates, begin, size)
            documents = self._documents_of(candidates[begin:end], left_out)
            for text, shares in self._shares(list(documents)):
                if shares:
                    covered = self._query.tokens_covered(shares)
                    found.append((covered, shares, documents[text][:top]))
                    ranks += [(-covered, int(order[text]))] * len(documents[text][:top])
            ranks.sort()
            begin, size = end, min(2 * size, _MOST_AT_ONCE)
            if len(ranks) >= top:
                size = min(size, max(1, _LOOKED_INTO * top - begin))
        return list(self._best(found, top))

    def _documents_of(self, texts: list[int], left_out: Container[str]) -> dict[int, list[int]]:
        """For each of these texts, the numbers of the documents that can be hits. Texts without any are left out."""
        documents = {text: self._snapshot.document_numbers_of(text) for text in texts}
        if left_out:
            documents = {
                text: own
                for text, numbers in documents.items()
                if (own := [number for number in numbers if self._snapshot.doc_id(number) not in left_out])
            }
        return documents

    def _end(self, candidates: list[int], begin: int, size: int) -> int:
        """The end of the range of candidates that are compared together, from *begin* on."""
        size = min(size, max(1, _MOST_TOKENS // (len(self._query.tokens.hashes) + 1)))
        characters = np.cumsum(self._snapshot.char_counts[candidates[begin : begin + size]], dtype=np.int64)
        return begin + max(1, int(characters.searchsorted(_MOST_CHARACTERS, "right")))

    def _candidates(self) -> tuple[list[int], list[int]]:
        """The texts that may share a run of `min_tokens` tokens, and the maximum number of query tokens that each shares.

        A text that is equal to the query text comes first. The others are in descending order of the maximum, then in
        the order in which they were added. For runs shorter than the guarantee, the number is an estimate.
        """
        query = self._query
        if query.min_tokens >= query.blotter.guarantee:
            chains = query.chains(self._keys_of_text)
            texts, most = chains.bounds(self._keys, self._texts, query.min_tokens)
        elif len(self._texts):
            weights = np.bincount(self._key_of_blot)[self._keys]
            counts = np.bincount(self._texts, weights=weights)
            texts = np.flatnonzero(counts)
            # The index keeps about two blots in window + 1.
            most = (counts[texts] * (query.window + 1) / 2).astype(np.int64) + query.blotter.span - 1
        else:
            return [], []
        # If the texts have few different words, an equal text would not come first without this.
        digest = np.frombuffer(digest_of(query.text), np.uint8).reshape(1, -1)
        is_other = texts != self._snapshot.texts_of_digests(digest)
        order = np.lexsort((self._snapshot.first_documents[texts], -most, is_other))
        return texts[order].tolist(), most[order].tolist()

    def _hidden_on(self, host: int) -> NDArray[np.bool_]:
        """The query tokens that no passage may contain in texts of *host*: boilerplate there, and taboo tokens."""
        if host not in self._hidden:
            is_template = np.zeros(len(self._keys_of_text), np.bool_)
            is_template[self._templates_on(host)] = True
            is_template[self._own_templates] = True
            self._hidden[host] = self._query.hidden_by(np.flatnonzero(is_template[self._key_of_blot]))
        return self._hidden[host]

    def _shares(self, texts: list[int]) -> Iterator[tuple[int, list[SharedPassage]]]:
        hidden = {text: self._hidden_on(int(self._snapshot.text_host[text])) for text in texts}
        if self._snapshot.parameters.has_texts:
            alike: dict[bytes, list[int]] = {}
            for text in texts:
                alike.setdefault(hidden[text].tobytes(), []).append(text)
            for group in alike.values():
                shares = shares_in_texts(
                    self._query, [self._snapshot.text(text) for text in group], hidden[group[0]]
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
                shares_in_outline(self._query, outline, blots, self._where[own[posts]], hidden[text]),
            )

    def _best(self, found: list[tuple[int, list[SharedPassage], list[int]]], top: int) -> Iterator[Hit]:
        ranked = [(-covered, number, shares) for covered, shares, documents in found for number in documents]
        ranked.sort(key=itemgetter(0, 1))
        for negated, number, shares in ranked[:top]:
            name = self._snapshot.doc_id(number)
            score = -negated / len(self._query.tokens.hashes)
            yield Hit(name, score, tuple(share.passage_in(name) for share in shares))


def blots_of(text: str, parameters: Parameters, *, every: bool = False) -> list[BlotRow]:
    """Return the blots of *text* that an index with *parameters* keeps, in text order; with *every*, all blots."""
    tokeniser, blotter = _tokeniser_and_blotter(parameters)
    tokens = tokeniser.tokens(text)
    make = blotter.all_blots if every else blotter.blots
    blots = make(tokens.hashes, np.array([0, len(tokens.hashes)], np.int64))
    spans = tokens.spans(blots.starts, blots.starts + blotter.span)
    return [BlotRow(blot, *span) for blot, span in zip(blots.values.tolist(), spans, strict=True)]


def unblot(snapshot: IndexSnapshot, blots: Sequence[int]) -> dict[int, Passage]:
    """Return the places of each blot as a passage, in the order in which the documents were added.

    The result has the blots in the order given. Blots that the index keeps for no text are left out. Since winnowing
    keeps only about two in nine blots, the tokens of a missing blot may still occur in a text. For a text of which the
    index keeps the blot, all places in the text are returned; in an index without texts, only the kept ones.

    Raises SettingError for a number that cannot be a blot of this index.
    """
    tokeniser, blotter = _tokeniser_and_blotter(snapshot.parameters)
    for blot in blots:
        if not 0 <= blot < 1 << blotter.bits:
            raise SettingError(f"{blot:x} is not a blot of this index: its blots have {blotter.bits} bits.")
    distinct = list(dict.fromkeys(blots))
    values = np.array(distinct, np.uint64)
    wanted, key_of_blot = np.unique(keys(values, blotter), return_inverse=True)
    key_numbers, texts, where = snapshot.find(wanted)
    places: dict[int, list[Place]] = {blot: [] for blot in distinct}
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
                (distinct[number], _span_in_outline(outline, int(ordinal), blotter.span))
                for key, ordinal in zip(key_numbers[begin:end], where[begin:end], strict=True)
                for number in np.flatnonzero(key_of_blot == key)
            ]
        for name in names:
            for blot, span in spans:
                places[blot].append(Place(name, *span))
    for there in places.values():
        there.sort(key=lambda place: added[place.doc_id])
    return {
        blot: Passage(written.get(blot, (None, None))[1], blotter.span, tuple(there))
        for blot, there in places.items()
        if there
    }


def _spans_of_blots(
    text: str, values: NDArray[np.uint64], tokeniser: Tokeniser, blotter: Blotter
) -> list[tuple[int, Span]]:
    """The windows of a text with one of the blots *values*, as blot and span, in text order."""
    tokens = tokeniser.tokens(text)
    every = blotter.all_blots(tokens.hashes, np.array([0, len(tokens.hashes)], np.int64))
    found = every.picked(np.isin(every.values, values))
    return list(
        zip(found.values.tolist(), tokens.spans(found.starts, found.starts + blotter.span), strict=True)
    )


def _span_in_outline(outline: Outline, ordinal: int, span: int) -> Span:
    token = int(outline.token_starts[ordinal])
    return token, token + span, int(outline.char_starts[ordinal]), int(outline.char_ends[ordinal])


def _tokeniser_and_blotter(parameters: Parameters) -> tuple[Tokeniser, Blotter]:
    return tokeniser_named(parameters.tokeniser), blotter_of(parameters.blotter)
