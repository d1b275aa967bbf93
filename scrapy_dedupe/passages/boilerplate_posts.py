"""The posts of query keys without boilerplate, with a cache of template keys.

The keys of a template have by far the longest lists of posts, and queries for pages of one site look up the same keys
repeatedly. So for a frequent key that is boilerplate in all its texts, the hosts are cached, and its posts are not read
again. The cache lives as long as the snapshot, which does not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from .boilerplate import Boilerplate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .snapshot import IndexSnapshot

    Numbers = NDArray[np.int64]

_MANY = 64
_MOST = 500_000
_kept: WeakKeyDictionary[IndexSnapshot, dict[float, Templates]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class FoundPosts:
    """The result of `Templates.find`.

    *posts*: the posts that are not boilerplate, as indexes of keys, texts, and positions or spots, in any order.
    *keys_of_hosts*: for the number of a host, the indexes of the keys that are boilerplate there.
    """

    posts: tuple[Numbers, Numbers, Numbers]
    keys_of_hosts: dict[int, list[int]]


@dataclass(slots=True)
class Templates:
    """The boilerplate of a snapshot, with a cache of the hosts of keys that are boilerplate in all their texts."""

    boilerplate: Boilerplate
    _hosts_of_keys: dict[int, list[int]] = field(default_factory=dict)

    def find(self, snapshot: IndexSnapshot, keys: NDArray[np.uint64]) -> FoundPosts:
        """Find the posts of *keys*, which are sorted and distinct."""
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
        return FoundPosts((wanted[numbers], texts, where), keys_of_hosts)

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
