"""How long a run that a text shares with the asked one can be, told by the keys that it has, before anything is read.

Of every *window* of blots in a row that two texts share, both keep one of the same value. So a text that shares a run has
the keys of all windows in it: as far as a run may go, the keys of the windows make a *chain* that has no gap. n windows in
a row are a run of n + guarantee - 1 tokens, and no longer one is there if the text lacks the keys on both sides.

A key that stands at very many places of the asked text, in very many texts, would cost more than it tells. Such keys are
taken to be in all texts, which makes what is told larger, and never too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .groups import group_bounds, ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_MOST_PLACES = 2_000_000
_LIMITS = (256, 64, 16, 4, 1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of some *texts* how many tokens of the asked text can stand in passages at most."""

    texts: Numbers
    most_tokens: Numbers


class Chains:
    """The windows of an asked text: *keys* are their numbers in the order of the text, -1 for one that none can have."""

    def __init__(self, keys: Numbers, guarantee: int) -> None:
        bounds = group_bounds(keys[1:] != keys[:-1], len(keys))
        self._begins, self._ends = bounds[:-1], bounds[1:]
        self._keys = keys[self._begins]
        self._count = len(keys)
        self._guarantee = guarantee

    def bounds(self, keys: Numbers, texts: Numbers, min_tokens: int) -> Bounds:
        """Those texts that can share a run of *min_tokens* tokens, which is at least the guarantee.

        *texts* have the *keys* beside them, all that they have; a pair may be there twice.
        """
        none = np.zeros(0, np.int64)
        if not len(texts) or not self._count:
            return Bounds(none, none)
        size = max(int(keys.max()), int(self._keys.max())) + 1
        is_known = self._keys >= 0
        places = np.bincount(self._keys[is_known], minlength=size)
        is_common = self._common(places, np.bincount(keys, minlength=size))
        links = np.flatnonzero(~(is_known & is_common[self._keys]))
        begins, ends = self._begins[links], self._ends[links]
        # How far a chain may go that begins, or that ends, with each link: common keys are no links.
        open_begins = np.append(0, ends)[: len(links)]
        open_ends = np.append(begins[1:], self._count)[: len(links)]
        at_texts, at_links = self._links_of(keys, texts, links, is_common, places)
        step = len(links) + 1
        codes = np.sort(_narrow(at_texts * step + at_links, (int(texts.max()) + 1) * step))
        chains = group_bounds(np.diff(codes) > 1, len(codes))
        firsts, lasts = chains[:-1], chains[1:] - 1
        of_text = codes[firsts] // step
        first_link, last_link = codes[firsts] - of_text * step, codes[lasts] - of_text * step
        lengths = open_ends[last_link] - open_begins[first_link] + self._guarantee - 1
        is_long = lengths >= min_tokens
        of_text, lengths = of_text[is_long], lengths[is_long]
        # Where nothing but common keys stands in a row.
        gaps = np.append(begins, self._count) - np.append(0, ends) + self._guarantee - 1
        extra = int(gaps[gaps >= max(min_tokens, self._guarantee)].sum())
        if extra:
            others = np.unique(texts[is_common[keys]])
            of_text = np.concatenate((of_text.astype(np.int64), others))
            lengths = np.concatenate((lengths, np.full(len(others), extra)))
            order = of_text.argsort(kind="stable")
            of_text, lengths = of_text[order], lengths[order]
        if not len(of_text):
            return Bounds(none, none)
        firsts = group_bounds(of_text[1:] != of_text[:-1], len(of_text))[:-1]
        totals = np.add.reduceat(lengths, firsts)
        return Bounds(of_text[firsts].astype(np.int64), np.minimum(totals, self._count + self._guarantee - 1))

    @staticmethod
    def _common(places: Numbers, times: Numbers) -> NDArray[np.bool_]:
        """Which keys are taken to be in all texts."""
        costs = places * times
        for limit in (int(places.max(initial=0)), *_LIMITS):
            is_common = places > limit
            if int(costs[~is_common].sum()) <= _MOST_PLACES:
                break
        return is_common

    def _links_of(
        self,
        keys: Numbers,
        texts: Numbers,
        links: Numbers,
        is_common: NDArray[np.bool_],
        places: Numbers,
    ) -> tuple[Numbers, Numbers]:
        """Each text with each of the links whose key it has."""
        link_keys = self._keys[links]
        order = link_keys.argsort(kind="stable")
        order = order[int(link_keys[order].searchsorted(0)) :]
        own = np.where(is_common, 0, places)
        starts = own.cumsum() - own
        # Most keys have one place.
        only = np.full(len(own), -1, np.int64)
        only[own == 1] = order[starts[own == 1]]
        own_links = only[keys]
        ones = np.flatnonzero(own_links >= 0)
        several = np.flatnonzero((own > 1)[keys])
        counts = own[keys[several]]
        places_of = ranges(starts[keys[several]], counts)
        return (
            np.concatenate((texts[ones], texts[several].repeat(counts))),
            np.concatenate((own_links[ones], order[places_of])),
        )


def _narrow(codes: Numbers, end: int) -> NDArray[np.integer]:
    """In half the bytes if they are enough: such are sorted in half the time."""
    return codes.astype(np.uint32) if end < 1 << 32 else codes
