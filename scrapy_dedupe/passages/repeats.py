"""Find all maximal repeated runs of tokens, with all their places.

A *run* is a position in the sequence of a `Material` and a length. Its *places* are the positions where the same tokens
occur. If places in one text overlap, as in "a a a a", only the first of each chain of overlapping places counts. A run is
reported if its places are in enough documents and it is maximal: it cannot be extended by a token to the left or to the
right at all places, because the tokens there differ, or because a text or an excluded part of it begins or ends there.

Algorithm: a run begins with a window of the minimum length, so positions are grouped into classes by the hash of this
window. A class in which the same token precedes every member is dropped, because its runs are parts of longer runs. This
drops nearly all classes. The other classes are branches of a suffix tree, and all branches are processed together. One
member of each class is chosen, and all members are sorted by the length over which they agree with it, longest first. The
members that agree over at least some length are then the first ones of the class. So each such length is a run, and all
runs of a class share one list of places. Members that diverge at the same length with the same token form a new class.

There are at most as many runs as positions, however often the text repeats. Time, memory and output grow with n log n
for n positions.

A member is never a place, and is dropped, if it overlaps the previous member at all lengths and agrees no further than
it. If members overlap at some lengths only, the run is *unverified*: `Repeats.places` must select its places.

Any two ranges of the sequence are compared in constant time with its prefix sums. The sum before item *i* is the sum of value_j x B^j for all j < i, modulo 2^64. Two ranges are compared by the differences
of the sums at their ends. Different ranges compare equal as rarely as 64-bit hashes collide in texts that were not
constructed for it; results are compared word by word afterwards.

The file of the sums has the sum before every fourth item, starting with the first, as uint64. Other sums are computed from these and
from the items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from .characters import powers_of
from .groups import group_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

PADDING: Final = 1024
"""The minimum number of zeros at the end of a sequence."""

_WIDTH: Final = 16
_MOST_CELLS: Final = 1 << 21
_FAR: Final = np.iinfo(np.int64).max >> 1
_LENGTH_BITS: Final = 32
_PLACE_BITS: Final = 40


class Material(Protocol):
    """The sequence of values in which repeats are searched.

    *sequence*: the values of the tokens of all texts. 0 separates texts and equals nothing, not even another 0.
    *sums*: the prefix sums of *sequence*.
    *text_starts*: the position where each text begins.
    *weights*: the number of documents with each text.
    *known*: the number of values in which all positions of a bucket with the same hash agree.
    *extra*: a run of n values has n + *extra* tokens or blots.
    *possible_overlaps*: ascending positions that may overlap an earlier position that was dropped (see `sequences.Periods`).
    """

    sequence: Values
    sums: PrefixSums
    text_starts: Numbers
    weights: Numbers
    possible_overlaps: Numbers
    known: int
    extra: int

    def are_equal(self, a_starts: Numbers, b_starts: Numbers, lengths: Numbers) -> Mask:
        """For each pair of starts, whether the runs of *lengths* values that begin there are equal."""

    def before(self, positions: Numbers) -> Values:
        """The value before each position."""

    def buckets(self) -> Iterable[tuple[NDArray[np.uint64], Numbers]]:
        """The positions where a run may begin, with the hash of the window there.

        All positions with one hash are in the same bucket, in ascending order.
        """


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """The runs that were found.

    For each run: its length in values, the number of documents with it, and its first place. The places of run *i* are
    ``places[starts[i] : starts[i] + counts[i]]``, in no particular order. If *is_unverified* is set, `Repeats.places`
    must select the places that count.
    """

    lengths: Numbers
    documents: Numbers
    firsts: Numbers
    starts: Numbers
    counts: Numbers
    is_unverified: Mask
    places: Numbers


@dataclass(frozen=True, slots=True)
class _Members:
    """The positions of several classes, ascending in each class.

    *heads* is the index of the first member of each class, *lengths* the number of values in which all members of a
    class are known to agree.
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

    def selected(self, is_kept: Mask) -> _Members:
        """The classes for which *is_kept* is true, with all their members."""
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
    """Finds the runs of *material* that occur in at least *min_docs* and at most *max_docs* documents."""

    def __init__(self, material: Material, min_docs: int = 2, max_docs: int | None = None) -> None:
        self._material = material
        self._least = min_docs
        self._most = _FAR if max_docs is None else max_docs
        self._stops = _stops_of(material.sequence)

    def __iter__(self) -> Iterator[RepeatedRuns]:
        for hashes, positions in self._material.buckets():
            members = self._candidates(self._grouped(hashes, positions))
            del hashes, positions
            while len(members):
                runs, members = self._split(members)
                if runs is not None:
                    yield runs

    def places(self, positions: Numbers, length: int) -> Numbers | None:
        """The places of an unverified run that count, ascending. None if the run is not maximal at these places."""
        positions = np.sort(positions)
        if not len(positions):
            return None
        first = int(positions[0])
        shifts = self._periods_at(first, length)
        if len(shifts):
            # Multiples of the smallest shift need no check: where the run overlaps itself at a multiple, it also
            # overlaps itself at the smallest shift.
            shifts = shifts[(shifts == shifts[0]) | (shifts % shifts[0] != 0)]
        for shift in shifts.tolist():
            # Two places at this distance need no comparison: the run occurs at both.
            is_overlapping = np.zeros(len(positions), np.bool_)
            is_overlapping[1:] = (np.diff(positions) == shift) & (shift <= length)
            unknown = np.flatnonzero((positions >= shift) & ~is_overlapping)
            # The run repeats itself after *shift* values, so comparing *shift* values is enough.
            steps = np.arange(min(shift, _WIDTH))
            begin = self._material.sequence[first + steps]
            at = positions[unknown]
            is_equal = (self._material.sequence[at[:, None] - shift + steps] == begin).all(axis=1)
            unknown, at = unknown[is_equal], at[is_equal]
            if shift > _WIDTH or self._material.extra:
                is_equal = self._material.are_equal(at - shift, at, np.full(len(at), shift))
                unknown = unknown[is_equal]
            is_overlapping[unknown] = True
            positions = positions[~is_overlapping]
            if not len(positions):
                return None
        head = np.zeros(1, np.int64)
        is_maximal = _is_diverse(self._material.before(positions), head)
        is_maximal &= _is_diverse(self._material.sequence[positions + length], head)
        return positions if is_maximal.all() else None

    def _periods_at(self, first: int, length: int) -> Numbers:
        """The shifts by which the run at *first* can overlap itself."""
        sequence = self._material.sequence
        shifts = np.arange(1, length + self._material.extra)
        # Comparing the first value excludes most shifts. This is much faster for thousands of long runs.
        may_be_equal = np.ones(len(shifts), np.bool_)
        may_be_equal[: length - 1] = sequence[first + 1 : first + length] == sequence[first]
        shifts = shifts[may_be_equal]
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
        # A single position repeats if several documents have its text.
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

    def _candidates(self, members: _Members) -> _Members:
        """The classes that may have a maximal run in enough documents."""
        if not len(members):
            return members
        is_kept = _is_diverse(members.befores, members.heads)
        is_kept &= self._documents(members.texts, members.heads) >= self._least
        return members if is_kept.all() else members.selected(is_kept)

    def _documents(self, texts: Numbers, heads: Numbers) -> Numbers:
        is_first = np.ones(len(texts), np.bool_)
        is_first[1:] = texts[1:] != texts[:-1]
        is_first[heads] = True
        return np.add.reduceat(np.where(is_first, self._material.weights[texts], 0), heads)

    def _split(self, members: _Members) -> tuple[RepeatedRuns | None, _Members]:
        """Compare all members of each class with one of them.

        Returns the runs of the chosen members, and the classes of the members that diverge from them.
        """
        sizes = members.sizes
        classes = np.repeat(np.arange(len(sizes)), sizes)
        # The first or last member may differ from all others, so choose the middle one.
        chosen = members.heads + sizes // 2
        known = members.lengths[classes]
        reaches = self._agreed(members.positions, members.positions[chosen][classes], known)
        reaches[chosen] = self._to_stops(members.positions[chosen])
        nexts = self._material.sequence[members.positions + reaches]
        keys = (classes << _LENGTH_BITS) | ((1 << _LENGTH_BITS) - 1 - reaches)
        order = np.lexsort((nexts, keys))
        runs = self._runs(members, classes, known, reaches, nexts, order)
        return runs, self._diverging(members, keys[order], reaches, nexts[order], order)

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
        is_never_place = gaps < known
        is_never_place[1:] &= reaches[:-1] >= reaches[1:]
        may_overlap = (gaps < reaches) | self._are_possible_overlaps(members.positions)
        # From here on members are sorted by their reach, the longest of a class first.
        order = order[~is_never_place[order]]
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
        is_reported = (low == 0) | (low != high)
        # A shorter run is followed by different values. The longest run of a class may be followed by the same value
        # at all places, if the chosen member was dropped.
        longest = group_bounds(np.diff(of_class) != 0, len(of_class))[:-1]
        is_reported[longest] &= _is_diverse(nexts[order], heads)[longest]
        is_reported &= (documents >= self._least) & (documents <= self._most)
        if not is_reported.any():
            return None
        overlaps = np.cumsum(may_overlap[order])
        is_unverified = np.greater(overlaps[ends], np.where(bases > 0, overlaps[bases - 1], 0))
        firsts = -_highest(-positions, classes, _PLACE_BITS)[ends]
        ends, bases, of_class = ends[is_reported], bases[is_reported], of_class[is_reported]
        # The places of the shortest run of a class include the places of its longer runs.
        written = np.zeros(len(starts), np.int64)
        np.maximum.at(written, of_class, ends - bases + 1)
        written_ends = np.cumsum(written)
        is_written = np.arange(len(order)) - starts[classes] < written[classes]
        return RepeatedRuns(
            reaches[ends],
            documents[is_reported],
            firsts[is_reported],
            (written_ends - written)[of_class],
            ends - bases + 1,
            is_unverified[is_reported],
            positions[is_written],
        )

    def _are_possible_overlaps(self, positions: Numbers) -> Mask:
        known = self._material.possible_overlaps
        if not len(known):
            return np.zeros(len(positions), np.bool_)
        at = np.minimum(np.searchsorted(known, positions), len(known) - 1)
        result: Mask = known[at] == positions
        return result

    def _documents_so_far(self, members: _Members, order: Numbers, is_same: Mask) -> Numbers:
        """For each member in *order*, the number of documents up to it. Each text of a class counts once."""
        ranks = np.full(len(members), _FAR)
        ranks[order] = np.arange(len(order))
        heads = group_bounds(~is_same, len(members))[:-1]
        weights = np.zeros(len(order), np.int64)
        weights[np.minimum.reduceat(ranks, heads)] = self._material.weights[members.texts[heads]]
        return np.cumsum(weights)

    def _diverging(
        self, members: _Members, keys: Numbers, reaches: Numbers, nexts: Values, order: Numbers
    ) -> _Members:
        """The new classes: members of a class that diverge at the same length with the same next value.

        *keys* and *nexts* are sorted by *order*.
        """
        which = np.flatnonzero(nexts != 0)
        keys, nexts, order = keys[which], nexts[which], order[which]
        if not len(order):
            none = np.zeros(0, np.int64)
            return _Members(none, none, none, none, np.zeros(0, np.uint32))
        heads = group_bounds((np.diff(keys) != 0) | (nexts[1:] != nexts[:-1]), len(order))[:-1]
        return self._candidates(
            _Members(
                heads,
                reaches[order[heads]] + 1,
                members.positions[order],
                members.texts[order],
                members.befores[order],
            )
        )

    def _agreed(self, a_starts: Numbers, b_starts: Numbers, known: Numbers) -> Numbers:
        """For each pair of starts, the number of equal values from there on. The first *known* are not compared."""
        windows = np.lib.stride_tricks.sliding_window_view(self._material.sequence, _WIDTH)
        result = np.empty(len(a_starts), np.int64)
        rows = _MOST_CELLS // _WIDTH
        for start in range(0, len(a_starts), rows):
            part = slice(start, start + rows)
            a, b, done = a_starts[part], b_starts[part], known[part]
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
        """The number of values from each position to the next 0."""
        stops = self._stops[np.minimum(np.searchsorted(self._stops, positions), len(self._stops) - 1)]
        return np.where(self._material.sequence[positions] == 0, 0, stops - positions)


def _stops_of(sequence: Values) -> Numbers:
    """The positions where a series of values other than 0 ends, and the length of the sequence."""
    parts = []
    for start in range(0, len(sequence) - 1, _MOST_CELLS):
        is_zero = sequence[start : start + _MOST_CELLS + 1] == 0
        parts.append(np.flatnonzero(is_zero[1:] & ~is_zero[:-1]) + start + 1)
    return np.append(np.concatenate(parts), len(sequence)) if parts else np.array([len(sequence)])


def _is_diverse(values: Values, heads: Numbers) -> Mask:
    """For each class, whether its values differ or one of them is 0, which equals nothing."""
    low = np.minimum.reduceat(values, heads)
    return (low == 0) | (low != np.maximum.reduceat(values, heads))


def _highest(values: Numbers, classes: Numbers, bits: int) -> Numbers:
    """The highest value of its class up to each member.

    *values* have at most *bits* bits, and *classes* are ascending.
    """
    offsets = classes << bits
    return np.maximum.accumulate(values + offsets) - offsets


_BASE: Final = 0x9E6C63D0876A9A47
_BITS: Final = 16
_BLOCK: Final = 1 << 18
_STEP_BITS: Final = 2
_STEP: Final = 1 << _STEP_BITS


_LOW: Final = powers_of(_BASE, 1 << _BITS)
_HIGH: Final = powers_of(pow(_BASE, 1 << _BITS, 1 << 64), 1 << _BITS)


class PrefixSums:
    """The prefix sums of *sequence*, which has fewer than 2^32 items, in the file *path*."""

    def __init__(self, path: Path, sequence: NDArray[np.uint32]) -> None:
        total = np.uint64(0)
        with path.open("wb") as file:
            for start in range(0, len(sequence), _BLOCK):
                values = sequence[start : start + _BLOCK].astype(np.uint64)
                values *= _powers(np.arange(start, start + len(values)))
                sums = np.append(total, values)
                np.cumsum(sums, out=sums)
                file.write(sums[-start % _STEP : -1 : _STEP].tobytes())
                total = sums[-1]
            if len(sequence) % _STEP == 0:
                file.write(total.tobytes())
        self._path = path
        self._sequence = sequence
        self._sums: NDArray[np.uint64] | None = None

    def are_equal(self, a_starts: Numbers, b_starts: Numbers, lengths: Numbers) -> Mask:
        """For each pair of starts, whether the ranges of *lengths* items that begin there are equal."""
        low, high = np.minimum(a_starts, b_starts), np.maximum(a_starts, b_starts)
        below = self._before(low + lengths) - self._before(low)
        above = self._before(high + lengths) - self._before(high)
        result: Mask = below * _powers(high - low) == above
        return result

    def reaches(self, a_starts: Numbers, b_starts: Numbers, least: Numbers, most: Numbers) -> Numbers:
        """For each pair of starts, the number of equal items from there on. It must be between *least* and *most*."""
        least, most = least.copy(), most.copy()
        left = np.flatnonzero(least < most)
        while len(left):
            middle = (least[left] + most[left] + 1) >> 1
            is_equal = self.are_equal(a_starts[left], b_starts[left], middle)
            least[left] = np.where(is_equal, middle, least[left])
            most[left] = np.where(is_equal, most[left], middle - 1)
            left = left[least[left] < most[left]]
        return least

    def release(self, sequence: NDArray[np.uint32]) -> None:
        """Free the memory of the mapped files. *sequence* is the sequence, mapped again."""
        self._sums = None
        self._sequence = sequence

    def _before(self, places: Numbers) -> NDArray[np.uint64]:
        """The sum before each of *places*."""
        if self._sums is None:
            self._sums = np.memmap(self._path, np.uint64, "r").view(np.ndarray)
        steps = places >> _STEP_BITS
        firsts = steps << _STEP_BITS
        over = places - firsts
        rest = np.zeros(len(places), np.uint64)
        for number in range(_STEP - 2, -1, -1):
            items = self._sequence[np.minimum(firsts + number, len(self._sequence) - 1)]
            rest *= np.uint64(_BASE)
            rest += np.where(number < over, items, 0).astype(np.uint64)
        return self._sums[steps] + rest * _powers(firsts)


def _powers(exponents: Numbers) -> NDArray[np.uint64]:
    powers: NDArray[np.uint64] = _LOW[exponents & ((1 << _BITS) - 1)] * _HIGH[exponents >> _BITS]
    return powers
