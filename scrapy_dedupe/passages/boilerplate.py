"""Boilerplate: text that a host puts on many of its pages.

A key is *boilerplate* on a host if it occurs in at least `LEAST` documents of the host and in more than a given share of
all its documents. It then belongs to the template of the site. Documents without a host have no boilerplate.

A text with several names counts once per name, all for the host of the first name.
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
    """Finds the boilerplate of *snapshot*. Raises SettingError if *share* is not between 0 and 1."""

    def __init__(self, snapshot: IndexSnapshot, share: float = SHARE, least: int = LEAST) -> None:
        if not 0 <= share <= 1:
            raise SettingError(
                f"The boilerplate share is {share:g}. Give a share of a host's documents between 0 and 1."
            )
        documents = np.asarray(snapshot.documents_per_host, dtype=np.int64)
        # The smallest number of documents above the share that is at least *least*. The epsilon corrects binary rounding:
        # 100 * 0.29 is 28.999...
        needed = np.maximum(np.floor(documents * share + 1e-9).astype(np.int64) + 1, least)
        has_name = np.array([name != "" for name in snapshot.host_names], dtype=np.bool_)
        possible = has_name & (needed <= documents)
        # Number the hosts that can have boilerplate from 0; other hosts are -1.
        numbers = np.full(len(documents) + 1, -1, np.int64)
        numbers[:-1][possible] = np.arange(int(possible.sum()))
        self._needed = needed[possible]
        self._host_of = numbers[snapshot.text_host]
        self._weights = snapshot.document_counts
        self._least = least
        self._may_repeat = not snapshot.parameters.has_texts

    def is_boilerplate(self, key_numbers: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the posts are boilerplate. The arguments must include all posts of each key; duplicates are allowed.

        Keys are numbered from 0, in any order. *texts* are the numbers of the snapshot.
        """
        result = np.zeros(len(texts), np.bool_)
        if not len(texts) or not len(self._needed):
            return result
        # Few keys occur in enough documents, so drop the others first.
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
        """A number for each pair of key and host, and the upper bound of these numbers."""
        cells = keys * len(self._needed) + hosts
        most = (int(keys.max()) + 1) * len(self._needed)
        if most <= max(_MOST_CELLS, 4 * len(cells)):
            return cells, most
        values, numbers = np.unique(cells, return_inverse=True)
        return numbers.reshape(-1), len(values)


def is_first(keys: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which posts are the first with their key and text. An index without texts has a post for each occurrence."""
    pairs: NDArray[Any] = keys * (int(texts.max()) + 1) + texts
    result = np.zeros(len(pairs), np.bool_)
    result[np.unique(pairs, return_index=True)[1]] = True
    return result
