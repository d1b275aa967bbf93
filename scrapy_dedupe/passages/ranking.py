"""Which of the runs that were found are worth telling, and in which order.

The better run is the one that saves more: tokens x (documents - 1); of two that save as much, the one that begins first.
A run says little that is new, and is left out unless nested ones are asked for as well, if better ones cover more than
two thirds of it at more than nine tenths of its places. Menus, of which every page opens another part, would be told in
all their variants. With up to ten places it has to be all of them, and one better run alone: what two texts share is told
as a whole, even if others share the halves of it.

The runs are kept in two files of a work folder: ``runs``, rows of five int64 (where its places begin, how many there
are, its length, documents, tokens), and ``places``, int64. ``covered`` has for each item of the sequence the number of
the first run that covers it, from 1 (uint32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .seeds import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .repeats import Runs

    Numbers = NDArray[np.int64]

_BLOCK: Final = 1 << 20

# Of more places than these one in so many has to be new.
_FEW: Final = 10


@dataclass(frozen=True, slots=True)
class Run:
    """A run of *length* values of a sequence, and all positions where it begins."""

    length: int
    places: Numbers


class Ranking:
    """The runs with at least *min_tokens* tokens, of which *tokens_of* tells how many there are."""

    def __init__(
        self,
        folder: Path,
        runs: Iterable[Runs],
        min_tokens: int,
        tokens_of: Callable[[Numbers, Numbers], Numbers],
    ) -> None:
        self._folder = folder
        with (folder / "runs").open("wb") as rows, (folder / "places").open("wb") as places:
            start = 0
            for found in runs:
                firsts = np.cumsum(found.counts) - found.counts
                tokens = tokens_of(found.places[firsts], found.lengths)
                fields = (start + firsts, found.counts, found.lengths, found.documents, tokens)
                rows.write(np.stack(fields, axis=1)[tokens >= min_tokens].tobytes())
                places.write(found.places.tobytes())
                start += len(found.places)
        self._rows: Numbers = mapped(folder / "runs", np.int64).reshape(-1, 5)
        self._places: Numbers = mapped(folder / "places", np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def best_first(self) -> Iterator[Run]:
        """All runs."""
        scores = self._rows[:, 4] * (self._rows[:, 3] - 1)
        for number in np.lexsort((self._places[self._rows[:, 0]], -scores)):
            start, count, length = self._rows[number, :3].tolist()
            yield Run(length, self._places[start : start + count].copy())

    def telling(self, size: int, extra: int) -> Iterator[Run]:
        """The runs that better ones do not cover, in a sequence of *size* values; *extra* as in `Material`."""
        path = self._folder / "covered"
        with path.open("wb") as file:
            for start in range(0, size + 1, _BLOCK):
                file.write(bytes(4 * min(_BLOCK, size + 1 - start)))
        covered = np.memmap(path, np.uint32, "r+").view(np.ndarray)
        for number, run in enumerate(self.best_first(), 1):
            length = run.length + extra
            if _is_covered(covered, run.places, length):
                continue
            for items in _items(run.places, length):
                covered[items[covered[items] == 0]] = number
            yield run


def _is_covered(covered: NDArray[np.uint32], places: Numbers, length: int) -> bool:
    """Whether better runs cover all but a few of the places."""
    is_open = np.zeros(len(places), dtype=bool)
    done = 0
    for items in _items(places, length):
        part = slice(done, done + len(items))
        owners = covered[items]
        if len(places) > _FEW:
            is_owned = owners != 0
        else:
            # One that covers more than half of a run covers its middle.
            middle = owners[:, length // 2, None]
            is_owned = (owners == middle) & (middle != 0)
        is_open[part] = 3 * np.count_nonzero(is_owned, axis=1) <= 2 * length
        done = part.stop
        if _FEW * np.count_nonzero(is_open[:done]) >= len(places):
            return False
    return True


def _items(places: Numbers, length: int) -> Iterator[Numbers]:
    """The numbers of all items that runs cover, a row for each place, so many rows at a time that they are not large."""
    rows = max(1, _BLOCK // length)
    for start in range(0, len(places), rows):
        yield places[start : start + rows, None] + np.arange(length)
