"""Runs of tokens that repeat: all of them that are maximal, with all their places.

A *run* is told by a place in the sequence of a `Material` and a length. Its places are where the same tokens stand; of
places in one text that overlap the one before, as in "a a a a", none counts but the first of each such chain. A run is
given if its places are in enough documents, and if no token could be put in front of it, or behind it, in all its places:
there two of them differ, or a text or what is left out of it begins or ends.

How they are found. Wherever a run begins, so begins a window of the shortest length that is asked for; so the positions
are grouped by the hash of that window. A group that has the same token in front everywhere is dropped, for what begins
there is part of a longer run: that is nearly all of them. The other groups are walked along like the branches of a suffix
tree, all of them at the same time: the members of a class agree over a length; they are compared with the first of them
until one differs; there the run ends, and the class is split by the next token. Work and memory go with the number of
places that are found, and of tokens that are compared for them.

A text that repeats itself with a short period would make as many classes as it has periods, each with as many places. So
the members of a class that follow each other at its period are taken together as one stretch. A run inside stretches is
as long as one of them, and a run that leads out of one begins where the rest of it is as long as another whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]

PADDING: Final = 1024
"""A sequence ends with at least so many zeros."""

STRETCH: Final = 16
"""From so many members on that follow each other at the period of their class they are taken together."""

_WIDTHS: Final = (16, 512)
_MOST_CELLS: Final = 1 << 21
_FAR: Final = np.iinfo(np.int64).max


class Material(Protocol):
    """What is looked through.

    *sequence* has the values of the tokens of all texts; 0 is no token, equals nothing, and stands between texts.
    *text_starts* tells where each text begins, *weights* how many documents have it. All positions of a group agree in
    *known* values, and in *known* + *extra* tokens or blots, as which a run is counted.
    """

    sequence: Values
    text_starts: Numbers
    weights: Numbers
    known: int
    extra: int

    def before(self, positions: Numbers) -> Values:
        """The value in front of each position."""

    def buckets(self) -> Iterable[tuple[NDArray[np.uint64], Numbers]]:
        """Where a run may begin: hashes and positions, those of one hash in one bucket and in ascending order."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that were found: the length of each in values, in how many documents and at how many places it stands.

    *places* has the positions of all, one run after the other, each ascending.
    """

    lengths: Numbers
    documents: Numbers
    counts: Numbers
    places: Numbers


@dataclass(frozen=True, slots=True)
class _Members:
    """Positions in classes: *heads* is the first member of each class, *lengths* how far the class is known to agree."""

    heads: Numbers
    lengths: Numbers
    positions: Numbers
    texts: Numbers
    befores: Values

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def classes(self) -> Numbers:
        """The number of the class of each member."""
        return np.repeat(np.arange(len(self.heads)), np.diff(self.heads, append=len(self.positions)))

    def picked(self, is_kept: NDArray[np.bool_]) -> _Members:
        """Some classes, all members of each."""
        sizes = np.diff(self.heads, append=len(self.positions))
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

    def __init__(
        self, material: Material, min_docs: int = 2, max_docs: int | None = None, stretch: int = STRETCH
    ) -> None:
        self._material = material
        self._sequence = material.sequence
        self._least = min_docs
        self._most = _FAR if max_docs is None else max_docs
        self._stretch = stretch
        self._windows: dict[int, Values] = {}

    def __iter__(self) -> Iterator[Runs]:
        for hashes, positions in self._material.buckets():
            members = self._promising(self._grouped(hashes, positions))
            del hashes, positions
            while len(members):
                runs, members = self._step(members)
                yield from runs

    def _grouped(self, hashes: NDArray[np.uint64], positions: Numbers) -> _Members:
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        heads = _heads_of(hashes)
        sizes = np.diff(heads, append=len(hashes))
        is_single = sizes == 1
        kept = np.repeat(~is_single, sizes)
        singles = heads[is_single]
        # A single position repeats if all of the text from there on does: several documents have the text.
        texts = self._texts_of(positions[order[singles]])
        kept[singles[self._material.weights[texts] >= self._least]] = True
        order, hashes = order[kept], hashes[kept]
        positions = positions[order]
        heads = _heads_of(hashes)
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

    def _step(self, members: _Members) -> tuple[list[Runs], _Members]:
        """The runs that end where the classes do not agree any more, and the classes behind that."""
        members = self._lengthened(members)
        classes = members.classes
        lengths = members.lengths[classes]
        positions, texts = members.positions, members.texts
        gaps = np.full(len(positions), _FAR)
        gaps[1:] = np.where(texts[1:] == texts[:-1], positions[1:] - positions[:-1], _FAR)
        gaps[members.heads] = _FAR
        runs, parts = [], []
        periods, is_periodic = self._periodic(gaps, lengths, members.heads, classes)
        for number in np.flatnonzero(is_periodic).tolist():
            end = members.heads[number + 1] if number + 1 < len(members.heads) else len(positions)
            span = slice(int(members.heads[number]), int(end))
            found, behind = self._stretches(
                positions[span], texts[span], members.befores[span], gaps[span], int(periods[number]),
                int(members.lengths[number]),
            )  # fmt: skip
            runs += found
            parts.append(behind)
        is_plain = ~is_periodic[classes]
        nexts = self._sequence[positions + lengths]
        apart = np.flatnonzero(is_plain & (gaps >= lengths + self._material.extra))
        if len(apart):
            heads = _heads_of(classes[apart])
            runs += self._told(
                positions[apart],
                texts[apart],
                members.befores[apart],
                nexts[apart],
                heads,
                lengths[apart[heads]],
            )
        parts.append(self._behind(members, np.flatnonzero(is_plain & (nexts != 0)), classes, lengths, nexts))
        return runs, _together(parts)

    def _behind(
        self, members: _Members, which: Numbers, groups: Numbers, lengths: Numbers, nexts: Values
    ) -> _Members:
        """The classes of those members that are in the same group and go on with the same value."""
        values = (groups[which].astype(np.uint64) << np.uint64(32)) | nexts[which]
        order = np.argsort(values, kind="stable")
        which, values = which[order], values[order]
        heads = _heads_of(values)
        return self._promising(
            _Members(
                heads,
                lengths[which[heads]] + 1,
                members.positions[which],
                members.texts[which],
                members.befores[which],
            )
        )

    def _told(
        self,
        positions: Numbers,
        texts: Numbers,
        befores: Values,
        nexts: Values,
        heads: Numbers,
        lengths: Numbers,
    ) -> list[Runs]:
        """Those runs whose places differ in front and behind, and are in enough documents."""
        documents = self._documents(texts, heads)
        is_told = _is_diverse(befores, heads) & _is_diverse(nexts, heads)
        is_told &= (documents >= self._least) & (documents <= self._most)
        if not is_told.any():
            return []
        counts = np.diff(heads, append=len(positions))
        places = positions[np.repeat(is_told, counts)]
        return [Runs(lengths[is_told], documents[is_told], counts[is_told], places)]

    # Comparing

    def _lengthened(self, members: _Members) -> _Members:
        """The same classes, each with the length over which all its members agree."""
        sizes = np.diff(members.heads, append=len(members))
        classes = members.classes
        compared = np.ones(len(members), np.bool_)
        compared[members.heads] = sizes == 1  # a single one goes to the end of its text
        classes = classes[compared]
        ours = members.positions[compared]
        others = members.positions[members.heads][classes]
        lengths = members.lengths.copy()
        width = _WIDTHS[0]
        while len(classes):
            offsets = lengths[classes]
            agreed = self._agreement(ours + offsets, others + offsets, width)
            heads = _heads_of(classes)
            low = np.minimum.reduceat(agreed, heads)
            lengths[classes[heads]] += low
            goes_on = np.repeat(low == width, np.diff(heads, append=len(classes)))
            classes, ours, others = classes[goes_on], ours[goes_on], others[goes_on]
            width = min(2 * width, _WIDTHS[1])
        return _Members(members.heads, lengths, members.positions, members.texts, members.befores)

    def _agreement(self, ours: Numbers, others: Numbers, width: int) -> Numbers:
        """How many of the *width* values from *ours* and from *others* on are the same."""
        windows = self._windows_of(width)
        result = np.empty(len(ours), np.int64)
        rows = max(1, _MOST_CELLS // width)
        for start in range(0, len(ours), rows):
            part = slice(start, start + rows)
            values = windows[ours[part]]
            differs = (values != windows[others[part]]) | (values == 0)
            first = differs.argmax(axis=1)
            result[part] = np.where(differs[np.arange(len(first)), first], first, width)
        return result

    def _windows_of(self, width: int) -> Values:
        if width not in self._windows:
            self._windows[width] = np.lib.stride_tricks.sliding_window_view(self._sequence, width)
        return self._windows[width]

    def _reaches(self, ours: Numbers, others: Numbers) -> Numbers:
        """How far the values from *ours* and from *others* on are the same."""
        result = np.zeros(len(ours), np.int64)
        left = np.arange(len(ours))
        width = _WIDTHS[0]
        while len(left):
            agreed = self._agreement(ours[left] + result[left], others[left] + result[left], width)
            result[left] += agreed
            left = left[agreed == width]
            width = min(2 * width, _WIDTHS[1])
        return result

    # Texts that repeat themselves

    def _periodic(
        self, gaps: Numbers, lengths: Numbers, heads: Numbers, classes: Numbers
    ) -> tuple[Numbers, NDArray[np.bool_]]:
        """The period of each class, and whether so many of its members follow each other at it."""
        near = np.where(gaps < lengths, gaps, _FAR)
        periods = np.minimum.reduceat(near, heads)
        follows = (near != _FAR) & (near == periods[classes])
        return periods, np.add.reduceat(follows, heads, dtype=np.int64) >= self._stretch

    def _stretches(
        self, positions: Numbers, texts: Numbers, befores: Values, gaps: Numbers, period: int, length: int
    ) -> tuple[list[Runs], _Members]:
        """What `_step` gives, for one class of that *period*.

        The members that follow one at the period are in its stretch. They count as places only where they go on
        differently from the one before: behind the end of the stretch.
        """
        firsts = np.flatnonzero(gaps != period)
        lasts = np.append(firsts[1:], len(positions)) - 1
        # The period is known to hold over *length*; from the last member on it is seen how far it holds.
        ends = positions[lasts] + length
        ends += self._reaches(ends - period, ends)
        stretches = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)
        reaches = ends[stretches] - positions
        nexts = self._sequence[ends]
        runs = self._runs_inside(positions[firsts], texts[firsts], befores[firsts], nexts, ends)
        leads_out = np.isin(reaches, reaches[firsts]) & (nexts[stretches] != 0)
        members = _Members(np.zeros(1, np.int64), np.array([length]), positions, texts, befores)
        return runs, self._behind(members, np.flatnonzero(leads_out), reaches, reaches, nexts[stretches])

    def _runs_inside(
        self, positions: Numbers, texts: Numbers, befores: Values, nexts: Values, ends: Numbers
    ) -> list[Runs]:
        """The runs that are no longer than the stretches that begin at *positions*."""
        reaches = ends - positions
        runs = []
        for length in np.unique(reaches).tolist():
            is_place = reaches >= length
            # Two stretches may overlap by less than a period.
            is_place[1:] &= ~(
                (texts[1:] == texts[:-1])
                & (reaches[:-1] >= length)
                & (positions[1:] < ends[:-1] + self._material.extra)
            )
            which = np.flatnonzero(is_place)
            # Those that are longer go on with one and the same value.
            follows = np.where(
                reaches[which] == length, nexts[which], self._sequence[positions[which] + length]
            )
            runs += self._told(
                positions[which],
                texts[which],
                befores[which],
                follows,
                np.zeros(1, np.int64),
                np.array([length]),
            )
        return runs


def _heads_of(values: NDArray) -> Numbers:
    """Where in an array that is in order a new value begins."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(values[1:] != values[:-1]) + 1))


def _is_diverse(values: Values, heads: Numbers) -> NDArray[np.bool_]:
    """For each class whether its values differ, or one of them is 0, which equals nothing."""
    low = np.minimum.reduceat(values, heads)
    return (low == 0) | (low != np.maximum.reduceat(values, heads))


def _together(parts: list[_Members]) -> _Members:
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    sizes = np.cumsum([0] + [len(part) for part in parts])
    return _Members(
        np.concatenate([part.heads + size for part, size in zip(parts, sizes, strict=False)]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.befores for part in parts]),
    )
