"""Runs of tokens that repeat: all of them that are maximal, with all their places.

A *run* is told by a place in the sequence of a `Material` and a length. Its places are where the same tokens stand; of
places in one text that overlap the one before, as in "a a a a", none counts but the first of each such chain. A run is
given if its places are in enough documents, and if no token could be put in front of it, or behind it, in all its places:
there two of them differ, or a text or what is left out of it begins or ends.

How they are found. Wherever a run begins, so begins a window of the shortest length that is asked for; so the positions
are grouped by the hash of that window. A class that has the same token in front everywhere is dropped, for what begins
there is part of a longer run: that is nearly all of them. The other classes are the branches of a suffix tree, and all of
them are walked at the same time. One member of a class is taken, and all are sorted by how far they agree with it, the
farthest first: so those that agree over any length are the first of them, each such length is a run, and its places need
not be written out. Those that leave at the same length by the same token are a class of their own.

So there are no more runs than positions, however often the text repeats: work, memory and what is written go with the
number of positions, times a logarithm of it.

A member that overlaps one that agrees as far is never a place, and is left out of the runs. Where members overlap over a
part of the lengths only, the run is *loose*: its places have to be looked at again, by `Repeats.places`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from .groups import group_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from .prefix_sums import PrefixSums

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

PADDING: Final = 1024
"""A sequence ends with at least so many zeros."""

_WIDTH: Final = 16
_MOST_CELLS: Final = 1 << 21
_FAR: Final = np.iinfo(np.int64).max >> 1
_LENGTH_BITS: Final = 32
_PLACE_BITS: Final = 40


class Material(Protocol):
    """What is looked through.

    *sequence* has the values of the tokens of all texts, *sums* are its; 0 is no token, equals nothing, and stands
    between texts. *text_starts* tells where each text begins, *weights* how many documents have it. All positions of a
    group agree in *known* values, and in *known* + *extra* tokens or blots, as which a run is counted. *echoes* are
    those positions, ascending, in front of which others may have been left out that they overlap (see `periods`).
    """

    sequence: Values
    sums: PrefixSums
    text_starts: Numbers
    weights: Numbers
    echoes: Numbers
    known: int
    extra: int

    def are_equal(self, ours: Numbers, others: Numbers, lengths: Numbers) -> Mask:
        """Whether runs of so many values from *ours* and from *others* on are the same."""

    def before(self, positions: Numbers) -> Values:
        """The value in front of each position."""

    def buckets(self) -> Iterable[tuple[NDArray[np.uint64], Numbers]]:
        """Where a run may begin: hashes and positions, those of one hash in one bucket and in ascending order."""


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """Runs that were found: the length of each in values, in how many documents it stands, and its first place.

    The places of a run are so many as *counts* tells of *places*, from *starts* on, in no order.
    """

    lengths: Numbers
    documents: Numbers
    firsts: Numbers
    starts: Numbers
    counts: Numbers
    is_loose: Mask
    places: Numbers


@dataclass(frozen=True, slots=True)
class _Members:
    """Positions in classes, ascending in each: *heads* is the first member of each class.

    *lengths* is how far all of a class are known to agree.
    """

    heads: Numbers
    lengths: Numbers
    positions: Numbers
    texts: Numbers
    befores: Values

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def sizes(self) -> Numbers:
        return np.diff(self.heads, append=len(self.positions))

    def picked(self, is_kept: Mask) -> _Members:
        """Some classes, all members of each."""
        sizes = self.sizes
        members = np.repeat(is_kept, sizes)
        kept = sizes[is_kept]
        return _Members(
            np.cumsum(kept) - kept,
            self.lengths[is_kept],
            self.positions[members],
            self.texts[members],
            self.befores[members],
        )


class Repeats:
    """Finds the runs of *material* that stand in at least *min_docs* and at most *max_docs* documents."""

    def __init__(self, material: Material, min_docs: int = 2, max_docs: int | None = None) -> None:
        self._material = material
        self._least = min_docs
        self._most = _FAR if max_docs is None else max_docs
        self._stops = _stops_of(material.sequence)

    def __iter__(self) -> Iterator[RepeatedRuns]:
        for hashes, positions in self._material.buckets():
            members = self._promising(self._grouped(hashes, positions))
            del hashes, positions
            while len(members):
                runs, members = self._chains(members)
                if runs is not None:
                    yield runs

    def places(self, positions: Numbers, length: int) -> Numbers | None:
        """Those places of a loose run that count, ascending; None if it is not maximal with them."""
        positions = np.sort(positions)
        if not len(positions):
            return None
        first = int(positions[0])
        shifts = self._periods_at(first, length)
        if len(shifts):
            # Behind a place that is several times the least one away from another is one that is it once.
            shifts = shifts[(shifts == shifts[0]) | (shifts % shifts[0] != 0)]
        for shift in shifts.tolist():
            # Two places that are so far apart need no look: the run stands at the first of them as at all places.
            is_behind = np.zeros(len(positions), np.bool_)
            is_behind[1:] = (np.diff(positions) == shift) & (shift <= length)
            can_be = np.flatnonzero((positions >= shift) & ~is_behind)
            # As the run agrees with itself after so many values, no more of them have to be compared.
            steps = np.arange(min(shift, _WIDTH))
            begin = self._material.sequence[first + steps]
            at = positions[can_be]
            is_there = (self._material.sequence[at[:, None] - shift + steps] == begin).all(axis=1)
            can_be, at = can_be[is_there], at[is_there]
            if shift > _WIDTH or self._material.extra:
                is_there = self._material.are_equal(at - shift, at, np.full(len(at), shift))
                can_be = can_be[is_there]
            is_behind[can_be] = True
            positions = positions[~is_behind]
            if not len(positions):
                return None
        head = np.zeros(1, np.int64)
        is_maximal = _is_diverse(self._material.before(positions), head)
        is_maximal &= _is_diverse(self._material.sequence[positions + length], head)
        return positions if is_maximal.all() else None

    def _periods_at(self, first: int, length: int) -> Numbers:
        """After how many values the run from *first* on agrees with itself, so that it can overlap itself by the rest."""
        sequence = self._material.sequence
        shifts = np.arange(1, length + self._material.extra)
        # For most of them one value tells, which is much less work where a long run is one of thousands.
        is_like = np.ones(len(shifts), np.bool_)
        is_like[: length - 1] = sequence[first + 1 : first + length] == sequence[first]
        shifts = shifts[is_like]
        firsts = np.full(len(shifts), first)
        return shifts[self._material.are_equal(firsts, firsts + shifts, np.maximum(length - shifts, 0))]

    def _grouped(self, hashes: NDArray[np.uint64], positions: Numbers) -> _Members:
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        bounds = group_bounds(hashes[1:] != hashes[:-1], len(hashes))
        heads, sizes = bounds[:-1], np.diff(bounds)
        is_single = sizes == 1
        kept = np.repeat(~is_single, sizes)
        singles = heads[is_single]
        # A single position repeats if all of the text from there on does: several documents have the text.
        texts = self._texts_of(positions[order[singles]])
        kept[singles[self._material.weights[texts] >= self._least]] = True
        order, hashes = order[kept], hashes[kept]
        positions = positions[order]
        heads = group_bounds(hashes[1:] != hashes[:-1], len(hashes))[:-1]
        lengths = np.full(len(heads), self._material.known, np.int64)
        return _Members(
            heads, lengths, positions, self._texts_of(positions), self._material.before(positions)
        )

    def _texts_of(self, positions: Numbers) -> Numbers:
        return np.searchsorted(self._material.text_starts, positions, "right") - 1

    def _promising(self, members: _Members) -> _Members:
        """The classes in which runs may begin that stand in enough documents."""
        if not len(members):
            return members
        is_kept = _is_diverse(members.befores, members.heads)
        is_kept &= self._documents(members.texts, members.heads) >= self._least
        return members if is_kept.all() else members.picked(is_kept)

    def _documents(self, texts: Numbers, heads: Numbers) -> Numbers:
        is_first = np.ones(len(texts), np.bool_)
        is_first[1:] = texts[1:] != texts[:-1]
        is_first[heads] = True
        return np.add.reduceat(np.where(is_first, self._material.weights[texts], 0), heads)

    def _chains(self, members: _Members) -> tuple[RepeatedRuns | None, _Members]:
        """The runs that one member of each class begins, and the classes of those that leave it together."""
        sizes = members.sizes
        classes = np.repeat(np.arange(len(sizes)), sizes)
        # One from the middle: whatever the order is, those that leave it are likely to be less than all.
        chosen = members.heads + sizes // 2
        known = members.lengths[classes]
        reaches = self._agreed(members.positions, members.positions[chosen][classes], known)
        reaches[chosen] = self._to_stops(members.positions[chosen])
        nexts = self._material.sequence[members.positions + reaches]
        keys = (classes << _LENGTH_BITS) | ((1 << _LENGTH_BITS) - 1 - reaches)
        order = np.lexsort((nexts, keys))
        runs = self._runs(members, classes, known, reaches, nexts, order)
        return runs, self._leaving(members, keys[order], reaches, nexts[order], order)

    def _runs(
        self,
        members: _Members,
        classes: Numbers,
        known: Numbers,
        reaches: Numbers,
        nexts: Values,
        order: Numbers,
    ) -> RepeatedRuns | None:
        gaps = np.full(len(members), _FAR)
        is_same = (classes[1:] == classes[:-1]) & (members.texts[1:] == members.texts[:-1])
        gaps[1:][is_same] = np.diff(members.positions)[is_same]
        gaps -= self._material.extra
        is_dead = gaps < known
        is_dead[1:] &= reaches[:-1] >= reaches[1:]
        is_near = (gaps < reaches) | self._are_echoes(members.positions)
        # What follows is in the order of reaches, the farthest of a class first.
        order = order[~is_dead[order]]
        classes, positions, reaches = classes[order], members.positions[order], reaches[order]
        starts = group_bounds(np.diff(classes) != 0, len(classes))[:-1]
        bounds = group_bounds((np.diff(classes) != 0) | (np.diff(reaches) != 0), len(order))
        heads, ends = bounds[:-1], bounds[1:] - 1
        befores = members.befores[order].astype(np.int64)
        low = -_highest(-befores, classes, _LENGTH_BITS + 1)[ends]
        high = _highest(befores, classes, _LENGTH_BITS + 1)[ends]
        documents = self._documents_so_far(members, order, is_same)
        of_class = classes[ends]
        bases = starts[of_class]
        documents = documents[ends] - np.where(bases > 0, documents[bases - 1], 0)
        is_told = (low == 0) | (low != high)
        # Those that agree less far go on differently; the farthest may all go on alike, where the chosen one is dead.
        farthest = group_bounds(np.diff(of_class) != 0, len(of_class))[:-1]
        is_told[farthest] &= _is_diverse(nexts[order], heads)[farthest]
        is_told &= (documents >= self._least) & (documents <= self._most)
        if not is_told.any():
            return None
        near = np.cumsum(is_near[order])
        is_loose = np.greater(near[ends], np.where(bases > 0, near[bases - 1], 0))
        firsts = -_highest(-positions, classes, _PLACE_BITS)[ends]
        ends, bases, of_class = ends[is_told], bases[is_told], of_class[is_told]
        # Of each class what its shortest run has, in which the others are.
        written = np.zeros(len(starts), np.int64)
        np.maximum.at(written, of_class, ends - bases + 1)
        behind = np.cumsum(written)
        is_written = np.arange(len(order)) - starts[classes] < written[classes]
        return RepeatedRuns(
            reaches[ends],
            documents[is_told],
            firsts[is_told],
            (behind - written)[of_class],
            ends - bases + 1,
            is_loose[is_told],
            positions[is_written],
        )

    def _are_echoes(self, positions: Numbers) -> Mask:
        echoes = self._material.echoes
        if not len(echoes):
            return np.zeros(len(positions), np.bool_)
        at = np.minimum(np.searchsorted(echoes, positions), len(echoes) - 1)
        result: Mask = echoes[at] == positions
        return result

    def _documents_so_far(self, members: _Members, order: Numbers, is_same: Mask) -> Numbers:
        """The documents of the members up to each in *order*, each text of a class once."""
        ranks = np.full(len(members), _FAR)
        ranks[order] = np.arange(len(order))
        heads = group_bounds(~is_same, len(members))[:-1]
        weights = np.zeros(len(order), np.int64)
        weights[np.minimum.reduceat(ranks, heads)] = self._material.weights[members.texts[heads]]
        return np.cumsum(weights)

    def _leaving(
        self, members: _Members, keys: Numbers, reaches: Numbers, nexts: Values, order: Numbers
    ) -> _Members:
        """The classes of those that leave at the same length and go on with the same value; all in *order*."""
        which = np.flatnonzero(nexts != 0)
        keys, nexts, order = keys[which], nexts[which], order[which]
        if not len(order):
            none = np.zeros(0, np.int64)
            return _Members(none, none, none, none, np.zeros(0, np.uint32))
        heads = group_bounds((np.diff(keys) != 0) | (nexts[1:] != nexts[:-1]), len(order))[:-1]
        return self._promising(
            _Members(
                heads,
                reaches[order[heads]] + 1,
                members.positions[order],
                members.texts[order],
                members.befores[order],
            )
        )

    # Comparing

    def _agreed(self, ours: Numbers, others: Numbers, known: Numbers) -> Numbers:
        """How many values from *ours* and from *others* on are the same; *known* are."""
        windows = np.lib.stride_tricks.sliding_window_view(self._material.sequence, _WIDTH)
        result = np.empty(len(ours), np.int64)
        rows = _MOST_CELLS // _WIDTH
        for start in range(0, len(ours), rows):
            part = slice(start, start + rows)
            a, b, done = ours[part], others[part], known[part]
            values = windows[a + done]
            differs = (values != windows[b + done]) | (values == 0)
            first = differs.argmax(axis=1)
            is_far = ~differs[np.arange(len(first)), first]
            agreed = done + np.where(is_far, _WIDTH, first)
            a, b = a[is_far], b[is_far]
            most = np.minimum(self._to_stops(a), self._to_stops(b))
            agreed[is_far] = self._material.sums.reaches(a, b, agreed[is_far], most)
            result[part] = agreed
        return result

    def _to_stops(self, positions: Numbers) -> Numbers:
        """How many values are there from each position on until a 0."""
        stops = self._stops[np.minimum(np.searchsorted(self._stops, positions), len(self._stops) - 1)]
        return np.where(self._material.sequence[positions] == 0, 0, stops - positions)


def _stops_of(sequence: Values) -> Numbers:
    """Where what is not 0 ends, and the end, so that there is one even if all is 0."""
    parts = []
    for start in range(0, len(sequence) - 1, _MOST_CELLS):
        is_zero = sequence[start : start + _MOST_CELLS + 1] == 0
        parts.append(np.flatnonzero(is_zero[1:] & ~is_zero[:-1]) + start + 1)
    return np.append(np.concatenate(parts), len(sequence)) if parts else np.array([len(sequence)])


def _is_diverse(values: Values, heads: Numbers) -> Mask:
    """For each class whether its values differ, or one of them is 0, which equals nothing."""
    low = np.minimum.reduceat(values, heads)
    return (low == 0) | (low != np.maximum.reduceat(values, heads))


def _highest(values: Numbers, classes: Numbers, bits: int) -> Numbers:
    """The highest value of a class up to each member; *values* have so many bits, classes come in order."""
    offsets = classes << bits
    return np.maximum.accumulate(values + offsets) - offsets
