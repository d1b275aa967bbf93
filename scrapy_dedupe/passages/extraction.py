"""`extract`: the passages that repeat in an index, best first, with all places where they stand.

A passage is a run of tokens that stands in several documents and that cannot be made longer in all its places (see
`repeats`); before it is given out, its words are compared in all of them. If the index keeps no texts, it is a run of
blots instead, and is told by its position.

What grows with the index is in files of a work folder that is removed in the end.
"""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe.errors import SettingError, StoreUnavailable
from scrapy_dedupe.tasks.watching import Unwatched

from .blots import blotter_of
from .boilerplate import SHARE
from .material import BlotMaterial, TokenMaterial
from .ranking import Ranking
from .repeats import Repeats
from .seeds import SeedSearch, taboo_keys
from .tokens import tokeniser_named
from .values import Passage, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.watching import Watch

    from .ranking import Run
    from .snapshot import Snapshot

    Numbers = NDArray[np.int64]

_CACHED_NAMES: Final = 1 << 15


def extract(
    snapshot: Snapshot,
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
    watch: Watch | None = None,
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
        Unwatched() if watch is None else watch,
    )  # fmt: skip


def _checked(
    snapshot: Snapshot,
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
    if top is not None and top < 0:
        raise SettingError(f"There are no {top} passages. Give 0 or more for top.")
    if sigma is not None and not abs(sigma) < 1e9:
        raise SettingError(f"sigma is {sigma:g}. Give a number of standard deviations, such as 2.")
    if min_tokens is None:
        return blotter.guarantee if snapshot.parameters.has_texts else blotter.span
    if min_tokens < 1:
        raise SettingError(f"A passage of {min_tokens} tokens is none. Give 1 or more for min_tokens.")
    return min_tokens


def _extract(
    snapshot: Snapshot,
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
    watch: Watch,
) -> Iterator[Passage]:
    with _work_folder(work) as folder:
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
        with closing(material):
            ranking = Ranking(folder, Repeats(material, min_docs, max_docs), min_tokens, material.tokens_of)
            material.release()
            runs = ranking.best_first() if nested else ranking.telling(material.size, material.extra)
            yield from _Teller(snapshot, material, min_docs, skip_copies).passages(runs, top)


@contextmanager
def _work_folder(work: Path | None) -> Iterator[Path]:
    """A folder that is removed at the end. Tells in one sentence if it cannot be written."""
    parent = Path(tempfile.gettempdir()) if work is None else work
    try:
        with tempfile.TemporaryDirectory(
            prefix="passages-", dir=parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"The files that extract needs meanwhile cannot be kept in {parent}: {error.strerror or error}. See to the"
            " space and the permissions there, or name another folder in TMPDIR."
        ) from error


class _Teller:
    """Makes passages of runs."""

    def __init__(
        self, snapshot: Snapshot, material: TokenMaterial | BlotMaterial, min_docs: int, skip_copies: bool
    ) -> None:
        self._snapshot = snapshot
        self._material = material
        self._min_docs = min_docs
        self._skip_copies = skip_copies
        self._words = tokeniser_named(snapshot.parameters.tokeniser).words
        self._names = lru_cache(_CACHED_NAMES)(self._names_of)

    def passages(self, runs: Iterable[Run], top: int | None) -> Iterator[Passage]:
        left = top
        for run in runs:
            if left == 0:
                return
            passage = self._passage(run)
            if passage is None:
                continue
            yield passage
            if left is not None:
                left -= 1

    def _passage(self, run: Run) -> Passage | None:
        """The run with its places, None if it is in too few documents after its words have been compared."""
        owners = np.searchsorted(self._material.text_starts, run.places, "right") - 1
        texts = self._material.texts[owners].tolist()
        spans = [self._material.char_span(place, run.length) for place in run.places.tolist()]
        shown, is_same = None, [True] * len(texts)
        if isinstance(self._material, TokenMaterial):
            written = list(map(self._material.written, owners.tolist(), spans))
            shown, is_same = written[0], self._compared(written)
        found: list[tuple[tuple[int, int], Place]] = []
        tokens = 0
        starts = self._material.text_starts[owners].tolist()
        for place, text, start, span, same in zip(
            run.places.tolist(), texts, starts, spans, is_same, strict=True
        ):
            if same:
                first, end = self._material.token_span(place, run.length, start)
                tokens = tokens or end - first
                found += ((number, Place(name, first, end, *span)) for number, name in self._names(text))
        found.sort(key=lambda item: (item[0], item[1].token_start))
        passage = Passage(shown, tokens, tuple(place for _, place in found))
        return passage if passage.documents >= self._min_docs else None

    def _compared(self, written: Sequence[str]) -> list[bool]:
        """Which of these have the same words as the first."""
        known = dict.fromkeys(written, False)
        words = self._words(written[0]) if len(known) > 1 else []
        for text in known:
            known[text] = text == written[0] or self._words(text) == words
        return [known[text] for text in written]

    def _names_of(self, text: int) -> list[tuple[tuple[int, int], str]]:
        """The documents of a text, with their numbers in the order of adding."""
        documents = self._snapshot.documents_of(text)
        if self._skip_copies:
            documents = documents[:1]
        return [
            (self._snapshot.document_number(document.doc_id) or (0, 0), document.doc_id)
            for document in documents
        ]
