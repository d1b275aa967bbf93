"""Upper bounds for the number of tokens that texts share with a query text, from their keys only.

Two texts that share *window* consecutive blots keep the same one of them. So a text that shares a run has the keys of all
windows in the run: these windows of the query text form a *chain* without gaps. A chain of n windows allows a run of up to
n + guarantee - 1 tokens. The run cannot be longer if the text lacks the keys of the windows before and after the chain.

A key with very many places in the query text and in the index would be too expensive. Such common keys are assumed to be
in all texts, which may make a bound larger, but never too small.
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
    """Texts, and the maximum number of tokens of the query text that they can share in passages."""

    texts: Numbers
    most_tokens: Numbers


class Chains:
    """The windows of a query text. *keys* is the number of the key of each window, or -1 if no indexed text has the key."""

    def __init__(self, keys: Numbers, guarantee: int) -> None:
        bounds = group_bounds(keys[1:] != keys[:-1], len(keys))
        self._begins, self._ends = bounds[:-1], bounds[1:]
        self._keys = keys[self._begins]
        self._count = len(keys)
        self._guarantee = guarantee

    def bounds(self, keys: Numbers, texts: Numbers, min_tokens: int) -> Bounds:
        """The texts that can share a run of *min_tokens* tokens, which must be at least the guarantee.

        *keys* and *texts* are all pairs of a key and a text with it. A pair may occur twice.
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
        # The extent of a chain that begins or ends with each link. Windows with common keys are not links.
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
        # Series of windows with common keys only.
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
        """Which keys are assumed to be in all texts."""
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
        """Pairs of a text and a link. The text has the key of the link."""
        link_keys = self._keys[links]
        order = link_keys.argsort(kind="stable")
        order = order[int(link_keys[order].searchsorted(0)) :]
        own = np.where(is_common, 0, places)
        starts = own.cumsum() - own
        # Most keys have one place, so handle these separately.
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
    """Convert to uint32 if all codes are below *end* <= 2^32: sorting then takes half the time."""
    return codes.astype(np.uint32) if end < 1 << 32 else codes
