"""Which of the runs that were found are worth telling, and in which order.

The better run is the one that saves more: tokens x (documents - 1); of two that save as much, the one that begins first.
A run says little that is new, and is left out unless nested ones are asked for as well, if better ones cover more than
two thirds of it at more than nine tenths of its places. Menus, of which every page opens another part, would be told in
all their variants, and near copies of a page in all stretches between two of their differences. With up to ten places it
has to be all of them, and one better run alone: what two texts share is told as a whole, even if others share the halves
of it.

Of more than 64 places 64 are looked at, and there of more than 32 tokens 32, all evenly spaced: there can be as many runs
as tokens, each with thousands of places.

The runs are kept in two files of a work folder: ``runs``, rows of seven int64 (where its places begin, how many there
are, its length, documents, tokens, its first place, and 1 if it is loose), and ``places``, int64; runs may have places in
common. ``covered`` has for each item of the sequence how many items the told runs that cover it go on from there, itself
among them: of several runs the one that reaches farthest; 0 if there is none (uint32).
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

# Of more places than these one in so many has to be new.
_FEW: Final = 10

_PLACES_LOOKED_AT: Final = 64
_TOKENS_LOOKED_AT: Final = 32

# Which of so many places of a loose run count is not looked up before it is seen that the run is not covered.
_MANY: Final = 1_000


@dataclass(frozen=True, slots=True)
class Run:
    """A run of *length* values of a sequence, and all positions where it begins, ascending."""

    length: int
    places: Numbers


class Ranking:
    """The runs with at least *min_tokens* tokens, of which *tokens_of* tells how many there are."""

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
                    found.is_loose.astype(np.int64),
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
        """All runs."""
        for rows in self._ordered():
            for start, count, length, _, _, _, is_loose in rows.tolist():
                run = self._run(start, count, length, is_loose)
                if run is not None:
                    yield run

    def telling(self, size: int, extra: int) -> Iterator[Run]:
        """The runs that better ones do not cover, in a sequence of *size* values; *extra* as in `Material`."""
        path = self._folder / "covered"
        with path.open("wb") as file:
            for start in range(0, size + 1, _BLOCK):
                file.write(bytes(4 * min(_BLOCK, size + 1 - start)))
        for turn, rows in enumerate(self._ordered()):
            if turn % _TURNS == 0:
                # What was read of a mapped file stays in memory for as long as it is mapped.
                covered = np.memmap(path, np.uint32, "r+").view(np.ndarray)
                places = mapped(self._folder / "places", np.int64)
            is_left = ~_are_covered(covered, places, rows, extra)
            for start, count, length, _, _, _, is_loose in rows[is_left].tolist():
                run = self._run(start, count, length, is_loose)
                if run is None or _is_covered(covered, run.places, length + extra):
                    continue
                left = np.arange(length + extra, 0, -1, dtype=np.uint32)
                for items in _items(run.places, length + extra):
                    # Of places that overlap the last one counts, which reaches farthest.
                    covered[items] = np.maximum(covered[items], left)
                yield run

    def _ordered(self) -> Iterator[Numbers]:
        """The rows of all runs, the best first, some at a time."""
        scores = self._rows[:, 4] * (self._rows[:, 3] - 1)
        order = np.lexsort((self._rows[:, 5], -scores))
        for start in range(0, len(order), _ROWS):
            yield self._rows[order[start : start + _ROWS]]

    def _run(self, start: int, count: int, length: int, is_loose: int) -> Run | None:
        places: Numbers | None = self._places.between(start, start + count)
        if is_loose and places is not None:
            places = self._repeats.places(places, length)
        return None if places is None else Run(length, np.sort(places))


def _are_covered(
    covered: NDArray[np.uint32], places: Numbers, rows: Numbers, extra: int
) -> NDArray[np.bool_]:
    """Which of the runs with many places are covered; what is covered once stays so.

    Where one run has thousands of places, as in near copies, so have thousands, of which nearly all are covered.
    """
    result = np.zeros(len(rows), np.bool_)
    which = np.flatnonzero(rows[:, 1] > np.where(rows[:, 6] != 0, _MANY, _PLACES_LOOKED_AT))
    starts, counts, lengths = rows[which, :3].T
    if not len(which):
        return result
    some = np.arange(_PLACES_LOOKED_AT)
    at = places[starts[:, None] + some * counts[:, None] // _PLACES_LOOKED_AT]
    tokens = np.minimum(lengths + extra, _TOKENS_LOOKED_AT)[:, None]
    offsets = np.arange(_TOKENS_LOOKED_AT) * (lengths + extra)[:, None] // tokens
    is_one = np.arange(_TOKENS_LOOKED_AT) < tokens
    items = np.where(is_one, offsets, 0)
    owned = (covered[at[:, :, None] + items[:, None, :]] != 0) & is_one[:, None, :]
    is_open = 3 * np.count_nonzero(owned, axis=2) <= 2 * tokens
    result[which] = _FEW * np.count_nonzero(is_open, axis=1) < _PLACES_LOOKED_AT
    return result


def _is_covered(covered: NDArray[np.uint32], places: Numbers, length: int) -> bool:
    """Whether better runs cover all but a few of the places."""
    if len(places) > _FEW:
        some = places[_spaced(len(places), _PLACES_LOOKED_AT)]
        owned = covered[some[:, None] + _spaced(length, _TOKENS_LOOKED_AT)] != 0
        is_open = 3 * np.count_nonzero(owned, axis=1) <= 2 * owned.shape[1]
        return _FEW * int(np.count_nonzero(is_open)) < len(some)
    # What covers more than two thirds begins in the first third, and goes on from there as far as the told run does.
    most = np.arange(length, 2 * length // 3, -1)
    for place in places.tolist():
        left = np.minimum(covered[place : place + len(most)], most)
        if 3 * int(left.max()) <= 2 * length:
            return False
    return True


def _spaced(count: int, most: int) -> Numbers:
    """At most so many of the numbers below *count*, evenly spaced.

    >>> _spaced(3, 4).tolist(), _spaced(10, 4).tolist()
    ([0, 1, 2], [0, 2, 5, 7])
    """
    return np.arange(count) if count <= most else np.arange(most) * count // most


def _items(places: Numbers, length: int) -> Iterator[Numbers]:
    """The numbers of all items that runs cover, a row for each place, so many rows at a time that they are not large."""
    rows = max(1, _BLOCK // length)
    for start in range(0, len(places), rows):
        yield places[start : start + rows, None] + np.arange(length)
