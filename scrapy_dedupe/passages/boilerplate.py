"""What a host puts on many of its pages.

A key is *boilerplate* on a host if it stands in at least `LEAST` documents of the host, and in more than a share of all
its documents: then it is the template's, and not what a page says. Documents without a host have no boilerplate.

A text that has several names counts with all of them, for the host of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .snapshot import IndexSnapshot

SHARE = 0.2
LEAST = 10

_MOST_CELLS = 4_000_000


class Boilerplate:
    """Tells it for the documents of *snapshot*. Raises SettingError if *share* is not between 0 and 1."""

    def __init__(self, snapshot: IndexSnapshot, share: float = SHARE, least: int = LEAST) -> None:
        if not 0 <= share <= 1:
            raise SettingError(
                f"A key cannot be boilerplate from a share of {share:g} of a host's documents on."
                " Give a share between 0 and 1."
            )
        documents = np.asarray(snapshot.documents_per_host, dtype=np.int64)
        # More than the share, and at least so many: the smallest whole number that is both.
        # A share such as 0.29 is a little less than it says, of 100 documents 28.999...
        needed = np.maximum(np.floor(documents * share + 1e-9).astype(np.int64) + 1, least)
        has_name = np.array([name != "" for name in snapshot.host_names], dtype=np.bool_)
        possible = has_name & (needed <= documents)
        # Hosts that can have boilerplate are numbered anew, the others are -1.
        numbers = np.full(len(documents) + 1, -1, np.int64)
        numbers[:-1][possible] = np.arange(int(possible.sum()))
        self._needed = needed[possible]
        self._host_of = numbers[snapshot.text_host]
        self._weights = snapshot.document_counts
        self._least = least
        self._may_repeat = not snapshot.parameters.has_texts

    def is_boilerplate(self, key_numbers: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the posts are boilerplate. All posts of their keys must be there; a post may be there twice.

        Keys are numbered from 0, in whatever order; texts have the numbers of the snapshot.
        """
        result = np.zeros(len(texts), np.bool_)
        if not len(texts) or not len(self._needed):
            return result
        # Few keys stand in enough documents: the others go before anything else is done with them.
        weights = self._weights[texts]
        at = np.flatnonzero((np.bincount(key_numbers, weights=weights) >= self._least)[key_numbers])
        hosts = self._host_of[texts[at]]
        has_host = hosts >= 0
        if not has_host.all():
            at, hosts = at[has_host], hosts[has_host]
        if not len(at):
            return result
        keys, weights = key_numbers[at], weights[at]
        cells, count = self._cells(keys, hosts)
        if self._may_repeat:
            weights = np.where(is_first(keys, texts[at]), weights, 0)
        counts = np.bincount(cells, weights=weights, minlength=count)
        result[at] = counts[cells] >= self._needed[hosts]
        return result

    def _cells(self, keys: NDArray[np.int64], hosts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """A number for each pair of key and host, and how many there may be."""
        cells = keys * len(self._needed) + hosts
        most = (int(keys.max()) + 1) * len(self._needed)
        if most <= max(_MOST_CELLS, 4 * len(cells)):
            return cells, most
        values, numbers = np.unique(cells, return_inverse=True)
        return numbers.reshape(-1), len(values)


def is_first(keys: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which posts are the first of their text under their key; an index without texts has one for each occurrence."""
    pairs: NDArray[Any] = keys * (int(texts.max()) + 1) + texts
    result = np.zeros(len(pairs), np.bool_)
    result[np.unique(pairs, return_index=True)[1]] = True
    return result
