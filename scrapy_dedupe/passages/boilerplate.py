"""Boilerplate: text that a host puts on many of its pages.

A key is *boilerplate* on a host if it occurs in at least `LEAST` documents of the host and in more than a given share of
all its documents. It then belongs to the template of the site. Documents without a host have no boilerplate.

A text with several names counts once per name, all for the host of the first name.

The keys of a template have by far the longest lists of posts, and queries for pages of one site look up the same keys
repeatedly. So for a frequent key that is boilerplate in all its texts, the hosts are cached, and its posts are not read
again. The cache lives as long as the snapshot, which does not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .snapshot import IndexSnapshot

    Numbers = NDArray[np.int64]

_MANY = 64
_MOST = 500_000
_kept: WeakKeyDictionary[IndexSnapshot, dict[float, Templates]] = WeakKeyDictionary()


@dataclass(slots=True)
class Templates:
    """The boilerplate of a snapshot, with a cache of the hosts of keys that are boilerplate in all their texts."""

    boilerplate: Boilerplate
    _hosts_of_keys: dict[int, list[int]] = field(default_factory=dict)

    def find(
        self, snapshot: IndexSnapshot, keys: NDArray[np.uint64]
    ) -> tuple[tuple[Numbers, Numbers, Numbers], dict[int, list[int]]]:
        """Find the posts of *keys*, which are sorted and distinct.

        Returns the posts that are not boilerplate, as indexes of keys, texts, and ordinals, in any order; and
        for the number of each host, the indexes of the keys that are boilerplate there.
        """
        keys_of_hosts: dict[int, list[int]] = {}
        is_new = np.ones(len(keys), np.bool_)
        for number, key in enumerate(keys.tolist()):
            hosts = self._hosts_of_keys.get(key)
            if hosts is not None:
                is_new[number] = False
                for host in hosts:
                    keys_of_hosts.setdefault(host, []).append(number)
        wanted = np.flatnonzero(is_new)
        numbers, texts, where = snapshot.find(keys[wanted], in_order=False)
        is_template = self.boilerplate.is_boilerplate(numbers, texts)
        if is_template.any():
            hosts_of_wanted = self._hosts(snapshot, numbers[is_template], texts[is_template])
            times = np.bincount(numbers, minlength=len(wanted))
            left = np.bincount(numbers[~is_template], minlength=len(wanted))
            if len(self._hosts_of_keys) > _MOST:
                self._hosts_of_keys.clear()
            for number, its_hosts in hosts_of_wanted.items():
                for host in its_hosts:
                    keys_of_hosts.setdefault(host, []).append(int(wanted[number]))
                if not left[number] and times[number] >= _MANY:
                    self._hosts_of_keys[int(keys[wanted[number]])] = its_hosts
            numbers, texts, where = numbers[~is_template], texts[~is_template], where[~is_template]
        return (wanted[numbers], texts, where), keys_of_hosts

    @staticmethod
    def _hosts(snapshot: IndexSnapshot, numbers: Numbers, texts: Numbers) -> dict[int, list[int]]:
        """The hosts on which each key is boilerplate, given its boilerplate posts."""
        count = len(snapshot.host_names)
        hosts_of_keys: dict[int, list[int]] = {}
        cells = np.sort(numbers * count + snapshot.text_host[texts])
        for cell in cells[np.diff(cells, prepend=-1) != 0].tolist():
            hosts_of_keys.setdefault(cell // count, []).append(cell % count)
        return hosts_of_keys


def templates_of(snapshot: IndexSnapshot, share: float) -> Templates:
    """Return the cached `Templates` of *snapshot* for the boilerplate share *share*."""
    of_shares = _kept.setdefault(snapshot, {})
    if share not in of_shares:
        of_shares[share] = Templates(Boilerplate(snapshot, share))
    return of_shares[share]


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
