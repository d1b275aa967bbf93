"""`extract`: the passages that repeat in an index, best first, with all places where they stand.

A passage is a run of tokens that stands in several documents and that cannot be made longer in all its places (see
`repeats`); before it is given out, its words are compared in all of them. If the index keeps no texts, it is a run of
blots instead, and is told by its position.

What grows with the index is in files of a work folder that is removed in the end.
"""

from __future__ import annotations

from contextlib import closing
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.tasks.progress import NoProgress

from .blots import blotter_of
from .boilerplate import SHARE
from .ranking import Ranking, Run
from .repeats import Repeats
from .seeds import SeedSearch, taboo_keys
from .sequences import BlotMaterial, TokenMaterial
from .tokens import tokeniser_named
from .values import Passage, Place
from .word_comparison import Wording
from .work_folder import work_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .snapshot import IndexSnapshot

    Numbers = NDArray[np.int64]

_CACHED_NAMES: Final = 1 << 15

# Runs of which the places are looked up together, and places.
_MOST_RUNS: Final = 512
_MOST_PLACES: Final = 1 << 16


def extract(
    snapshot: IndexSnapshot,
    *,
    min_docs: int = 2,
    max_docs: int | None = None,
    min_tokens: int | None = None,
    sigma: float | None = None,
    top: int | None = None,
    taboo: Sequence[str] = (),
    boilerplate_share: float | None = SHARE,
    nested: bool = False,
    skip_copies: bool = False,
    work: Path | None = None,
    watch: Progress | None = None,
) -> Iterator[Passage]:
    """The passages of at least *min_tokens* tokens in *min_docs* to *max_docs* documents, at most *top* of them.

    *min_tokens* is as many as the blotter guarantees to find; shorter ones are found if a blot of theirs is kept. In an
    index without texts it is as many as one blot has. *sigma* leaves out what stands in fewer documents than that many
    standard deviations more than most; *taboo* texts and what more than *boilerplate_share* of a host's documents have
    (None: nothing) are no part of a passage. *nested* gives those too that better ones cover; with *skip_copies*, a text
    that has several names counts once, under the first.

    *work* is where a folder for temporary files is made. Raises SettingError for numbers that make no sense,
    StoreUnavailable if there is no space, StoreRefused if the index is damaged.
    """
    least_tokens = _checked(snapshot, min_docs, max_docs, min_tokens, sigma, top)
    return _extract(
        snapshot, min_docs, max_docs, least_tokens, sigma, top, taboo, boilerplate_share, nested, skip_copies, work,
        NoProgress() if watch is None else watch,
    )  # fmt: skip


def _checked(
    snapshot: IndexSnapshot,
    min_docs: int,
    max_docs: int | None,
    min_tokens: int | None,
    sigma: float | None,
    top: int | None,
) -> int:
    """The least number of tokens."""
    blotter = blotter_of(snapshot.parameters.blotter)
    if min_docs < 2:
        raise SettingError(
            f"What stands in {min_docs} document does not repeat. Give 2 or more for min_docs."
        )
    if max_docs is not None and max_docs < min_docs:
        raise SettingError(f"No passage stands in at least {min_docs} and at most {max_docs} documents.")
    if top is not None and top < 1:
        raise SettingError(f"There cannot be {top} passages in an answer. Ask for 1 at least.")
    if sigma is not None and not abs(sigma) < 1e9:
        raise SettingError(f"sigma is {sigma:g}. Give a number of standard deviations, such as 2.")
    if min_tokens is None:
        return blotter.guarantee if snapshot.parameters.has_texts else blotter.span
    if min_tokens < 1:
        raise SettingError(f"A passage of {min_tokens} tokens is none. Give 1 or more for min_tokens.")
    return min_tokens


def _extract(
    snapshot: IndexSnapshot,
    min_docs: int,
    max_docs: int | None,
    min_tokens: int,
    sigma: float | None,
    top: int | None,
    taboo: Sequence[str],
    boilerplate_share: float | None,
    nested: bool,
    skip_copies: bool,
    work: Path | None,
    watch: Progress,
) -> Iterator[Passage]:
    with work_folder(snapshot.folder, work) as folder:
        weights = snapshot.document_counts
        if skip_copies:
            weights = np.minimum(weights, 1)
        blotter = blotter_of(snapshot.parameters.blotter)
        search = SeedSearch(snapshot, weights, folder / "seeds", boilerplate_share)
        tabooed = taboo_keys(taboo, tokeniser_named(snapshot.parameters.tokeniser), blotter)
        seeds = search.seeds(min_docs, sigma, tabooed, watch)
        if not len(seeds.texts):
            return
        material: TokenMaterial | BlotMaterial
        if snapshot.parameters.has_texts:
            material = TokenMaterial(snapshot, seeds, weights, folder, min_tokens, watch)
        else:
            material = BlotMaterial(snapshot, seeds, weights, folder, watch)
        del search, seeds
        with (
            closing(material),
            closing(
                Ranking(folder, Repeats(material, min_docs, max_docs), min_tokens, material.tokens_of)
            ) as ranking,
        ):
            material.release()
            runs = ranking.best_first() if nested else ranking.telling(material.size, material.extra)
            yield from _Teller(snapshot, material, min_docs, min_tokens, skip_copies).passages(runs, top)


class _Spot(NamedTuple):
    """Where a run stands in a text of the material: the place of the sequence, tokens, characters."""

    text: int
    position: int
    first: int
    end: int
    char_start: int
    char_end: int


class _Named(NamedTuple):
    """A spot in a document; they are in order as its places are."""

    document: int
    first: int
    doc_id: str
    spot: _Spot


class _Teller:
    """Makes passages of runs."""

    def __init__(
        self,
        snapshot: IndexSnapshot,
        material: TokenMaterial | BlotMaterial,
        min_docs: int,
        min_tokens: int,
        skip_copies: bool,
    ) -> None:
        self._snapshot = snapshot
        self._material = material
        self._min_docs = min_docs
        self._min_tokens = min_tokens
        self._skip_copies = skip_copies
        self._tokeniser = tokeniser_named(snapshot.parameters.tokeniser)
        self._names = lru_cache(_CACHED_NAMES)(self._names_of)

    def passages(self, runs: Iterable[Run], top: int | None) -> Iterator[Passage]:
        left = top
        for group in _groups(runs):
            for length, spots in zip([run.length for run in group], self._spots_of(group), strict=True):
                for passage in self._compared(length, self._named(spots)):
                    if left == 0:
                        return
                    yield passage
                    if left is not None:
                        left -= 1

    def _spots_of(self, runs: Sequence[Run]) -> Iterator[list[_Spot]]:
        """Where each run stands; read for all of them at once, because single numbers of a file take long."""
        material = self._material
        counts = [len(run.places) for run in runs]
        positions = np.concatenate([run.places for run in runs])
        lengths = np.repeat(np.array([run.length for run in runs], np.int64), counts)
        owners = np.searchsorted(material.text_starts, positions, "right") - 1
        firsts, ends = material.token_spans(positions, lengths, material.text_starts[owners])
        char_starts, char_ends = material.char_spans(positions, lengths)
        columns = (owners, positions, firsts, ends, char_starts, char_ends)
        spots = list(map(_Spot, *(column.tolist() for column in columns)))
        bounds = np.cumsum([0, *counts]).tolist()
        for start, end in pairwise(bounds):
            yield spots[start:end]

    def _named(self, spots: Sequence[_Spot]) -> list[_Named]:
        texts = self._material.texts
        named = [
            _Named(number, spot.first, name, spot)
            for spot in spots
            for number, name in self._names(int(texts[spot.text]))
        ]
        named.sort()
        return named

    def _compared(self, length: int, named: list[_Named]) -> Iterator[Passage]:
        """The passages of a run: one, unless its words are not the same everywhere though their hashes are."""
        groups = list(self._groups_of_words(named))
        for group in groups:
            yield from self._passage(group)
        if len(groups) > 1:
            yield from self._agreeing(length, named)

    def _groups_of_words(self, named: Sequence[_Named]) -> Iterable[list[_Named]]:
        """The places with the same words, each group in order; one text at a time is in memory, and the first."""
        if not isinstance(self._material, TokenMaterial):
            return [list(named)]
        wording = Wording(self._written(named[0].spot), self._tokeniser)
        groups: dict[str, list[_Named]] = {}
        last, group = named[0].spot, ""
        for item in named:
            if item.spot is not last:
                last = item.spot
                group = wording.group(self._written(last))
            groups.setdefault(group, []).append(item)
        return groups.values()

    def _agreeing(self, length: int, named: Sequence[_Named]) -> Iterator[Passage]:
        """What is the same in all places of a run whose words are not."""
        words = self._tokeniser.words(self._written(named[0].spot))
        is_same = np.ones(length + 1, np.bool_)
        is_same[length] = False
        for item in named[1:]:
            others = self._tokeniser.words(self._written(item.spot))
            is_same[:length] &= np.fromiter(map(str.__eq__, words, others), np.bool_, length)
        begin = 0
        for end in np.flatnonzero(~is_same).tolist():
            if end - begin >= self._min_tokens:
                positions = np.unique([item.spot.position for item in named]) + begin
                (spots,) = self._spots_of([Run(end - begin, positions)])
                yield from self._passage(self._named(spots))
            begin = end + 1

    def _passage(self, named: Sequence[_Named]) -> Iterator[Passage]:
        """The passage that stands there, if that is in enough documents."""
        spot = named[0].spot
        shown = self._written(spot) if isinstance(self._material, TokenMaterial) else None
        places = tuple(
            Place(item.doc_id, item.first, item.spot.end, item.spot.char_start, item.spot.char_end)
            for item in named
        )
        passage = Passage(shown, spot.end - spot.first, places)
        if passage.documents >= self._min_docs:
            yield passage

    def _written(self, spot: _Spot) -> str:
        assert isinstance(self._material, TokenMaterial)
        return self._material.written(spot.text, (spot.char_start, spot.char_end))

    def _names_of(self, text: int) -> list[tuple[int, str]]:
        """The documents of a text, with their numbers in the order of adding."""
        numbers = self._snapshot.document_numbers_of(text)
        if self._skip_copies:
            numbers = numbers[:1]
        return [(number, self._snapshot.doc_id(number)) for number in numbers]


def _groups(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs in groups, which begin small, so that the first passages are there soon."""
    group: list[Run] = []
    places, most = 0, 1
    for run in runs:
        group.append(run)
        places += len(run.places)
        if len(group) >= min(most, _MOST_RUNS) or places >= _MOST_PLACES:
            yield group
            group, places, most = [], 0, 2 * most
    if group:
        yield group
