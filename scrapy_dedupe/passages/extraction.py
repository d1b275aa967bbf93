"""`extract`: the passages that repeat in an index, best first, with all their places.

A passage is a maximal run of tokens that occurs in several documents (see `repeats`). Its words are compared at all places
before it is returned. If the index keeps no texts, a passage is a run of blots with positions but without text.

Data that grows with the index is stored in a work folder, which is removed at the end.

The words at the places of a passage are compared by their digests. In ASCII text, the words of the tokenisers that fold
case are the series of letters and digits in lower case, so most texts need no tokeniser.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.tasks.progress import NO_PROGRESS

from .blots import blotter_of
from .boilerplate import SHARE
from .ranking import Ranking, Run
from .repeats import Repeats
from .seeds import SeedSearch, taboo_keys
from .sequences import BlotMaterial, TokenMaterial
from .tokens import tokeniser_named
from .values import Passage, Place
from .work_files import work_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .snapshot import IndexSnapshot

    Numbers = NDArray[np.int64]
    from .tokens import Tokeniser

_RUNS: Final = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256)
)


def words_digest(written: str, tokeniser: Tokeniser, known: dict[bytes, bytes]) -> bytes:
    """A digest of the words of a text. *known* caches the digests of texts that are not ASCII."""
    if tokeniser.is_folded and written.isascii():
        return hashlib.sha256(b"\0".join(written.encode("ascii").translate(_RUNS).split())).digest()
    key = hashlib.sha256("\0".join(written.split()).encode("utf-8", "surrogatepass")).digest()
    if key not in known:
        words = "\0".join(tokeniser.words(written))
        known[key] = hashlib.sha256(words.encode("utf-8", "surrogatepass")).digest()
    return known[key]


_CACHED_NAMES: Final = 1 << 15

# The maximum number of runs, and of places, that are looked up together.
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
    """Yield the passages of at least *min_tokens* tokens in *min_docs* to *max_docs* documents, at most *top*.

    :param min_tokens: the default is the shortest run that the blotter guarantees to find; a shorter passage is found if
        the index keeps one of its blots. Without texts, the default is the number of tokens of one blot.
    :param sigma: ignore blots in fewer documents than the mean plus this number of standard deviations.
    :param taboo: texts whose windows are excluded from passages.
    :param boilerplate_share: exclude blots in more than this share of the documents of a host. None excludes nothing.
    :param nested: include passages that better passages cover.
    :param skip_copies: count a text with several names once, under its first name.
    :param work: the parent of the folder for temporary files.

    Raises SettingError for numbers out of range, StoreUnavailable if the disk is full, and StoreRefused if the index is
    damaged.
    """
    parameters = snapshot.parameters
    blotter, tokeniser = blotter_of(parameters.blotter), tokeniser_named(parameters.tokeniser)
    if min_docs < 2:
        raise SettingError(f"min_docs is {min_docs}. Give 2 or more.")
    if max_docs is not None and max_docs < min_docs:
        raise SettingError(f"max_docs is {max_docs}, less than min_docs, which is {min_docs}.")
    if top is not None and top < 1:
        raise SettingError(f"top is {top}. Give 1 or more.")
    if sigma is not None and not abs(sigma) < 1e9:
        raise SettingError(f"sigma is {sigma:g}. Give a number of standard deviations, such as 2.")
    if min_tokens is None:
        min_tokens = blotter.guarantee if parameters.has_texts else blotter.span
    elif min_tokens < 1:
        raise SettingError(f"min_tokens is {min_tokens}. Give 1 or more.")
    least_tokens = min_tokens
    progress = NO_PROGRESS if watch is None else watch

    def passages() -> Iterator[Passage]:
        with work_folder(snapshot.folder, work) as folder:
            weights = snapshot.document_counts
            if skip_copies:
                weights = np.minimum(weights, 1)
            search = SeedSearch(snapshot, weights, folder / "seeds", boilerplate_share)
            seeds = search.seeds(min_docs, sigma, taboo_keys(taboo, tokeniser, blotter), progress)
            if not len(seeds.texts):
                return
            material: TokenMaterial | BlotMaterial
            if parameters.has_texts:
                material = TokenMaterial(snapshot, seeds, weights, folder, least_tokens, progress)
            else:
                material = BlotMaterial(snapshot, seeds, weights, folder, progress)
            del search, seeds
            repeats = Repeats(material, min_docs, max_docs)
            with (
                closing(material),
                closing(Ranking(folder, repeats, least_tokens, material.tokens_of)) as ranking,
            ):
                material.release()
                runs = ranking.best_first() if nested else ranking.uncovered(material.size, material.extra)
                builder = _PassageBuilder(snapshot, material, min_docs, least_tokens, skip_copies)
                yield from builder.passages(runs, top)

    return passages()


class _TextPlace(NamedTuple):
    """A place of a run: the number of the text in the material, the position in the sequence, tokens, characters."""

    text: int
    position: int
    first: int
    end: int
    char_start: int
    char_end: int


class _DocumentPlace(NamedTuple):
    """A place of a run in a document. The fields are in sort order."""

    document: int
    first: int
    doc_id: str
    place: _TextPlace


class _PassageBuilder:
    """Builds passages from runs."""

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
            for length, places in zip([run.length for run in group], self._places_of(group), strict=True):
                for passage in self._compared(length, self._in_documents(places)):
                    if left == 0:
                        return
                    yield passage
                    if left is not None:
                        left -= 1

    def _places_of(self, runs: Sequence[Run]) -> Iterator[list[_TextPlace]]:
        """The places of each run. They are read for all runs together, because reading single numbers is slow."""
        material = self._material
        counts = [len(run.places) for run in runs]
        positions = np.concatenate([run.places for run in runs])
        lengths = np.repeat(np.array([run.length for run in runs], np.int64), counts)
        owners = np.searchsorted(material.text_starts, positions, "right") - 1
        firsts, ends = material.token_spans(positions, lengths, material.text_starts[owners])
        char_starts, char_ends = material.char_spans(positions, lengths)
        columns = (owners, positions, firsts, ends, char_starts, char_ends)
        places = list(map(_TextPlace, *(column.tolist() for column in columns)))
        bounds = np.cumsum([0, *counts]).tolist()
        for start, end in pairwise(bounds):
            yield places[start:end]

    def _in_documents(self, places: Sequence[_TextPlace]) -> list[_DocumentPlace]:
        texts = self._material.texts
        found = [
            _DocumentPlace(number, place.first, name, place)
            for place in places
            for number, name in self._names(int(texts[place.text]))
        ]
        found.sort()
        return found

    def _compared(self, length: int, places: list[_DocumentPlace]) -> Iterator[Passage]:
        """The passages of a run: one, unless different words have equal hashes."""
        groups = list(self._groups_of_words(places))
        for group in groups:
            yield from self._passage(group)
        if len(groups) > 1:
            yield from self._common_parts(length, places)

    def _groups_of_words(self, places: Sequence[_DocumentPlace]) -> Iterable[list[_DocumentPlace]]:
        """Group the places by their words, keeping the order. Only two texts are in memory at a time."""
        if not isinstance(self._material, TokenMaterial):
            return [list(places)]
        known: dict[bytes, bytes] = {}
        groups: dict[bytes, list[_DocumentPlace]] = {}
        last, shown = places[0].place, self._written(places[0].place)
        first = digest = b""
        for item in places:
            if item.place is not last:
                last, digest = item.place, b""
                written = self._written(last)
                # Most places are written alike.
                if written != shown and written.split() != shown.split():
                    first = first or words_digest(shown, self._tokeniser, known)
                    digest = words_digest(written, self._tokeniser, known)
                    digest = b"" if digest == first else digest
            groups.setdefault(digest, []).append(item)
        return groups.values()

    def _common_parts(self, length: int, places: Sequence[_DocumentPlace]) -> Iterator[Passage]:
        """The parts of a run that have the same words at all places, for a run with different words."""
        words = self._tokeniser.words(self._written(places[0].place))
        is_same = np.ones(length + 1, np.bool_)
        is_same[length] = False
        for item in places[1:]:
            others = self._tokeniser.words(self._written(item.place))
            is_same[:length] &= np.fromiter(map(str.__eq__, words, others), np.bool_, length)
        begin = 0
        for end in np.flatnonzero(~is_same).tolist():
            if end - begin >= self._min_tokens:
                positions = np.unique([item.place.position for item in places]) + begin
                (in_texts,) = self._places_of([Run(end - begin, positions)])
                yield from self._passage(self._in_documents(in_texts))
            begin = end + 1

    def _passage(self, places: Sequence[_DocumentPlace]) -> Iterator[Passage]:
        """The passage with these places, if they are in enough documents."""
        first = places[0].place
        shown = self._written(first) if isinstance(self._material, TokenMaterial) else None
        passage = Passage(
            shown,
            first.end - first.first,
            tuple(
                Place(item.doc_id, item.first, item.place.end, item.place.char_start, item.place.char_end)
                for item in places
            ),
        )
        if passage.documents >= self._min_docs:
            yield passage

    def _written(self, place: _TextPlace) -> str:
        assert isinstance(self._material, TokenMaterial)
        return self._material.written(place.text, (place.char_start, place.char_end))

    def _names_of(self, text: int) -> list[tuple[int, str]]:
        """The numbers and ids of the documents with a text, in the order in which they were added."""
        numbers = self._snapshot.document_numbers_of(text)
        if self._skip_copies:
            numbers = numbers[:1]
        return [(number, self._snapshot.doc_id(number)) for number in numbers]


def _groups(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs in groups. The first groups are small, so that the first passages are available early."""
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
