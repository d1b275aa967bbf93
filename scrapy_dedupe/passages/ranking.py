"""The order in which runs are reported, and the runs that are left out because better runs cover them.

A run has a score of tokens x (documents - 1), the number of tokens that storing it once would save. The run with the
higher score is better; of equal scores, the run that begins first.

Unless nested runs are requested, a run is left out if better runs cover more than two thirds of it at more than nine
tenths of its places. Otherwise a menu with a different part expanded on each page would be reported in all its
variants, and near copies of a page would be reported once for every part between two differences. A run with up to ten
places is left out only if, at each place, a single better run covers more than two thirds of it. So a passage that two
texts share is reported as a whole even if other texts share each half of it.

There can be as many runs as tokens, each with thousands of places. So of more than 64 places only 64 are checked, and at
each place only 32 of more than 32 tokens, all evenly spaced.

The work folder has these files:

*   ``runs``: rows of seven int64: start and number of its places in ``places``, length, documents, tokens, first place,
    and 1 if it is unverified (see `repeats`).
*   ``places``: int64. Runs may share places.
*   ``covered``: uint32, one per item of the sequence: the number of items from here to the end of the reported run that
    covers it and reaches furthest, including this item; 0 if no run covers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .seeds import mapped
from .work_files import Items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .repeats import Repeats

    Numbers = NDArray[np.int64]

_BLOCK: Final = 1 << 20
_ROWS: Final = 256
_TURNS: Final = 16

# A run with at most this many places is new if one place is new. Otherwise one place in this many must be new.
_FEW: Final = 10

_CHECKED_PLACES: Final = 64
_CHECKED_TOKENS: Final = 32

# The places of an unverified run with more places are selected only after a check that the run is not covered.
_MANY: Final = 1_000


@dataclass(frozen=True, slots=True)
class Run:
    """A run of *length* values of a sequence, with the ascending positions of all its places."""

    length: int
    places: Numbers


class Ranking:
    """The runs with at least *min_tokens* tokens. *tokens_of* returns the number of tokens of runs."""

    def __init__(
        self,
        folder: Path,
        repeats: Repeats,
        min_tokens: int,
        tokens_of: Callable[[Numbers, Numbers], Numbers],
    ) -> None:
        self._folder = folder
        self._repeats = repeats
        with (folder / "runs").open("wb") as rows, (folder / "places").open("wb") as places:
            start = 0
            for found in repeats:
                tokens = tokens_of(found.firsts, found.lengths)
                fields = (
                    start + found.starts, found.counts, found.lengths, found.documents, tokens, found.firsts,
                    found.is_unverified.astype(np.int64)
                )  # fmt: skip
                rows.write(np.stack(fields, axis=1)[tokens >= min_tokens].tobytes())
                places.write(found.places.tobytes())
                start += len(found.places)
        self._places = Items(folder / "places", np.int64)
        self._rows: Numbers = mapped(folder / "runs", np.int64).reshape(-1, 7)

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Close the files."""
        self._places.close()

    def best_first(self) -> Iterator[Run]:
        """Yield all runs."""
        for rows in self._ordered():
            yield from filter(None, map(self._run, rows.tolist()))

    def uncovered(self, size: int, extra: int) -> Iterator[Run]:
        """Yield the runs that better runs do not cover, best first.

        *size* is the number of values of the sequence; *extra* is that of `Material`.
        """
        path = self._folder / "covered"
        with path.open("wb") as file:
            for start in range(0, size + 1, _BLOCK):
                file.write(bytes(4 * min(_BLOCK, size + 1 - start)))
        for turn, rows in enumerate(self._ordered()):
            if turn % _TURNS == 0:
                # Map the files again from time to time: pages that were read stay in memory while a file is mapped.
                covered = np.memmap(path, np.uint32, "r+").view(np.ndarray)
                places = mapped(self._folder / "places", np.int64)
            is_left = ~_are_covered(covered, places, rows, extra)
            for run in filter(None, map(self._run, rows[is_left].tolist())):
                length = run.length + extra
                if _is_covered(covered, run.places, length):
                    continue
                left = np.arange(length, 0, -1, dtype=np.uint32)
                for items in _items(run.places, length):
                    # If places overlap, NumPy keeps the value of the last one, which reaches furthest.
                    covered[items] = np.maximum(covered[items], left)
                yield run

    def _ordered(self) -> Iterator[Numbers]:
        """The rows of all runs in blocks, best first."""
        scores = self._rows[:, 4] * (self._rows[:, 3] - 1)
        order = np.lexsort((self._rows[:, 5], -scores))
        for start in range(0, len(order), _ROWS):
            yield self._rows[order[start : start + _ROWS]]

    def _run(self, row: list[int]) -> Run | None:
        start, count, length, _, _, _, is_unverified = row
        places: Numbers | None = self._places.between(start, start + count)
        if is_unverified and places is not None:
            places = self._repeats.places(places, length)
        return None if places is None else Run(length, np.sort(places))


def _are_covered(
    covered: NDArray[np.uint32], places: Numbers, rows: Numbers, extra: int
) -> NDArray[np.bool_]:
    """Which runs with many places are covered, checked together. A covered run stays covered.

    Texts with near copies have thousands of runs with thousands of places, and nearly all of these runs are covered.
    """
    result = np.zeros(len(rows), np.bool_)
    which = np.flatnonzero(rows[:, 1] > np.where(rows[:, 6] != 0, _MANY, _CHECKED_PLACES))
    starts, counts, lengths = rows[which, :3].T
    if not len(which):
        return result
    some = np.arange(_CHECKED_PLACES)
    at = places[starts[:, None] + some * counts[:, None] // _CHECKED_PLACES]
    tokens = np.minimum(lengths + extra, _CHECKED_TOKENS)[:, None]
    offsets = np.arange(_CHECKED_TOKENS) * (lengths + extra)[:, None] // tokens
    is_one = np.arange(_CHECKED_TOKENS) < tokens
    items = np.where(is_one, offsets, 0)
    is_covered = (covered[at[:, :, None] + items[:, None, :]] != 0) & is_one[:, None, :]
    is_open = 3 * np.count_nonzero(is_covered, axis=2) <= 2 * tokens
    result[which] = _FEW * np.count_nonzero(is_open, axis=1) < _CHECKED_PLACES
    return result


def _is_covered(covered: NDArray[np.uint32], places: Numbers, length: int) -> bool:
    """Whether better runs cover the run at enough of its places."""
    if len(places) > _FEW:
        some = places[_spaced(len(places), _CHECKED_PLACES)]
        is_covered = covered[some[:, None] + _spaced(length, _CHECKED_TOKENS)] != 0
        is_open = 3 * np.count_nonzero(is_covered, axis=1) <= 2 * is_covered.shape[1]
        return _FEW * int(np.count_nonzero(is_open)) < len(some)
    # A run that covers more than two thirds covers an item of the first third, and its reach from there is stored.
    most = np.arange(length, 2 * length // 3, -1)
    for place in places.tolist():
        left = np.minimum(covered[place : place + len(most)], most)
        if 3 * int(left.max()) <= 2 * length:
            return False
    return True


def _spaced(count: int, most: int) -> Numbers:
    """At most *most* of the numbers below *count*, evenly spaced.

    >>> _spaced(3, 4).tolist(), _spaced(10, 4).tolist()
    ([0, 1, 2], [0, 2, 5, 7])
    """
    return np.arange(count) if count <= most else np.arange(most) * count // most


def _items(places: Numbers, length: int) -> Iterator[Numbers]:
    """The indexes of the items that a run covers, one row per place, in blocks of limited size."""
    rows = max(1, _BLOCK // length)
    for start in range(0, len(places), rows):
        yield places[start : start + rows, None] + np.arange(length)
