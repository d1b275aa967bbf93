"""The sequences in which `extract` finds repeated runs: the texts that share a seed, as numbers in files of a work folder.

For an index with texts, the sequence has one value per token: 32 bits of its hash. Passages are compared word by word
before they are reported. If two different words have the same 32 bits by chance (one pair in 2^32), a run can be cut
short or reported twice. A run may begin only at a short distance before a seed, because the blotter guarantees that a
shared run contains one near its beginning. Seeds are looked up in all windows of tokens. The kept windows are not enough,
because the tokens around a run decide which windows at its ends are kept.

For an index without texts only blots can be compared. The sequence has one value per step from a blot to the next one,
computed from the distance in tokens and the key of the next blot.

0 separates texts and replaces excluded tokens (boilerplate and taboo). It equals nothing, so no run contains it.

Files with one item per position of the sequence:

*   ``sequence`` (uint32).
*   ``starts`` and ``ends`` (uint32): the characters where a token or blot begins and ends.
*   With texts: ``marks`` (uint8): 1 where a seed begins, plus 2 where an excluded blot begins.
*   Without texts: ``tokens`` (uint32): the first token of each blot; ``numbers`` (uint32): the number of the seed of each
    blot, from 1, or 0 if the blot is not a seed, with one extra item before the first.

Other files: ``texts`` (see `work_files`), ``sums`` (see `repeats`), and ``bucket-N``, pairs of uint64: the hash of
the window at a position, and the position.

Most positions in periodic sections begin no run (see `Periods`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .blots import blotter_of, keys, weighed, windows
from .characters import mixed, powers_of
from .groups import covered, ranges
from .preparation import batches_of
from .repeats import PADDING, PrefixSums
from .seeds import Seeds, mapped, on_hosts
from .tokens import tokeniser_named, tokens_of_all
from .work_files import Items, WrittenTexts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .snapshot import IndexSnapshot

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

_BATCH_CHARS: Final = 1 << 20
_BUCKET: Final = 1 << 19
_BLOCK: Final = 1 << 18
_MOST_BUCKETS: Final = 256
_LOW: Final = np.uint64(0xFFFFFFFF)
_SEED: Final = 1
_LEFT_OUT: Final = 2
_STEP: Final = 0x9E3779B97F4A7C15
_LONGEST_PERIOD: Final = 31
"""The longest period that is detected."""

_COMPARED: Final = 32
_ROWS: Final = 1 << 16
_LENGTH_BITS: Final = 32
_A: Final = 0xD1342543DE82EF95


class _Sequence:
    """Base class of both kinds of material; see `.repeats.Material`."""

    known: int
    extra: int

    def __init__(self, snapshot: IndexSnapshot, folder: Path, texts: Numbers, weights: Numbers) -> None:
        self.texts = texts
        self.weights = weights[texts]
        self.text_starts = np.zeros(len(texts), np.int64)
        self._snapshot = snapshot
        self._folder = folder
        self._blotter = blotter_of(snapshot.parameters.blotter)
        self.size = 0
        """The number of values in the sequence, without the zeros at its end."""
        self.sequence: Values = np.zeros(0, np.uint32)
        self.sums: PrefixSums
        self.possible_overlaps = np.zeros(0, np.int64)
        self._starts = Items(folder / "starts")
        self._ends = Items(folder / "ends")

    def buckets(self) -> Iterator[tuple[NDArray[np.uint64], Numbers]]:
        """The positions where a run may begin, with hashes. Each file is removed after it has been read."""
        for path in self._bucket_paths:
            rows = np.fromfile(path, np.uint64).reshape(-1, 2)
            path.unlink()
            if len(rows):
                hashes, positions = rows[:, 0].copy(), rows[:, 1].astype(np.int64)
                del rows
                yield hashes, positions
                del hashes, positions

    def char_spans(self, positions: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """The start and end characters of runs in their texts."""
        starts = self._starts.some(positions).astype(np.int64)
        return starts, self._ends.some(positions + lengths - 1 + self.extra).astype(np.int64)

    def release(self) -> None:
        """Free the memory that the search for runs used."""
        self.sequence = self._map("sequence")
        self.sums.release(self.sequence)

    def close(self) -> None:
        """Close the files."""
        self._starts.close()
        self._ends.close()

    def _open_buckets(self, files: ExitStack, expected: int) -> list[BinaryIO]:
        count = 1 << max(0, (min(_MOST_BUCKETS, expected // _BUCKET + 1) - 1).bit_length())
        self._bucket_paths = [self._folder / f"bucket-{number}" for number in range(count)]
        return [files.enter_context(path.open("wb")) for path in self._bucket_paths]

    @staticmethod
    def _into_buckets(buckets: list[BinaryIO], hashes: NDArray[np.uint64], positions: Numbers) -> None:
        rows = np.stack((hashes, positions.astype(np.uint64)), axis=1)
        if len(buckets) == 1:
            buckets[0].write(rows.tobytes())
            return
        numbers = (hashes >> np.uint64(65 - len(buckets).bit_length())).astype(np.uint16)
        rows = rows[np.argsort(numbers, kind="stable")]
        bounds = np.cumsum(np.bincount(numbers, minlength=len(buckets))).tolist()
        for file, start, end in zip(buckets, [0, *bounds], bounds, strict=False):
            if start < end:
                file.write(rows[start:end].tobytes())

    def _map(self, name: str) -> NDArray:
        return mapped(self._folder / name, np.uint32)

    def _open(self, files: ExitStack, *names: str) -> list[BinaryIO]:
        return [files.enter_context((self._folder / name).open("wb")) for name in names]


class TokenMaterial(_Sequence):
    """The tokens of the texts that have *seeds*, for finding runs of at least *min_tokens* tokens."""

    extra = 0

    def __init__(
        self,
        snapshot: IndexSnapshot,
        seeds: Seeds,
        weights: Numbers,
        folder: Path,
        min_tokens: int,
        watch: Progress,
    ) -> None:
        super().__init__(snapshot, folder, seeds.texts, weights)
        self.known = min_tokens
        self._tokeniser = tokeniser_named(snapshot.parameters.tokeniser)
        self._seeds = seeds
        self._texts = WrittenTexts(folder / "texts")
        self._marks = Items(folder / "marks", np.uint8)
        try:
            self._build(watch)
            self.sums = PrefixSums(folder / "sums", self.sequence)
        except BaseException:
            self.close()
            raise

    def before(self, positions: Numbers) -> Values:
        return self.sequence[positions - 1]

    def are_equal(self, a_starts: Numbers, b_starts: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
        """For each pair of starts, whether the runs of *lengths* values that begin there are equal."""
        return self.sums.are_equal(a_starts, b_starts, lengths)

    def tokens_of(self, positions: Numbers, lengths: Numbers) -> Numbers:
        """The number of tokens of runs."""
        return lengths

    def close(self) -> None:
        super().close()
        self._marks.close()
        self._texts.close()

    def written(self, text: int, span: tuple[int, int]) -> str:
        """The characters *span* of the text with this number in the material."""
        return self._texts.slice(text, *span)

    def token_spans(
        self, positions: Numbers, lengths: Numbers, text_starts: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The start and end tokens of runs in their texts."""
        firsts = positions - text_starts
        return firsts, firsts + lengths

    def _build(self, watch: Progress) -> None:
        chars = self._snapshot.char_counts[self.texts].astype(np.int64)
        tokens = int(self._snapshot.token_counts[self.texts].sum(dtype=np.int64))
        watch.begin("texts", int(chars.sum()))
        with ExitStack() as files:
            outputs = self._open(files, "values", "starts", "ends", "marks")
            for batch in batches_of(range(len(chars)), chars.tolist().__getitem__, _BATCH_CHARS):
                first, end = batch[0], batch[-1] + 1
                self._add(first, end, outputs)
                watch.advance(int(chars[first:end].sum()))
            for file in outputs[1:3]:
                file.write(bytes(4 * PADDING))
        self._texts.finish()
        periods = Periods(self.known)
        self._write_sequence(periods)
        self.sequence = self._map("sequence")
        periods.finish(self.sequence)
        with ExitStack() as files:
            self._find_starts(periods, self._open_buckets(files, tokens))
        watch.end()

    def _add(self, first: int, end: int, outputs: list[BinaryIO]) -> None:
        """Write the tokens of a batch of texts, with a 0 before each text."""
        texts = [self._snapshot.text(number) for number in self.texts[first:end].tolist()]
        self._texts.add(texts)
        hosts = self._snapshot.text_host[self.texts[first:end]]
        tokens, bounds = tokens_of_all(texts, self._tokeniser)
        owners = np.repeat(np.arange(len(texts)), np.diff(bounds))
        at = np.arange(len(tokens)) + owners + 1
        self.text_starts[first:end] = self.size + bounds[:-1] + np.arange(1, len(texts) + 1)
        blots = self._blotter.all_blots(tokens.hashes, bounds)
        wanted = keys(blots.values, self._blotter)
        marks = np.zeros(len(tokens), np.uint8)
        found, _ = self._seeds.keys.find(wanted)
        marks[blots.starts[found]] = _SEED
        if len(self._seeds.hidden):
            hidden, _ = self._seeds.hidden.find(on_hosts(wanted, hosts[owners[blots.starts]]))
            marks[blots.starts[hidden]] |= _LEFT_OUT
        if len(self._seeds.taboo):
            marks[blots.starts[self._seeds.taboo.find(wanted)[0]]] |= _LEFT_OUT
        values = (tokens.hashes & _LOW).astype(np.uint32)
        values[values == 0] = 1
        size = len(tokens) + len(texts)
        arrays: tuple[NDArray[Any], ...] = (values, tokens.starts, tokens.ends, marks)
        for file, items in zip(outputs, arrays, strict=True):
            spaced = np.zeros(size, np.uint8 if items is marks else np.uint32)
            spaced[at] = items
            file.write(spaced.tobytes())
        self.size += size

    def _write_sequence(self, periods: Periods) -> None:
        """Write the sequence: the values, with 0 for the tokens of boilerplate and taboo windows."""
        span = self._blotter.span
        before = np.zeros(span - 1, np.uint8)
        with ExitStack() as files:
            (output,) = self._open(files, "sequence")
            inputs = [files.enter_context((self._folder / name).open("rb")) for name in ("values", "marks")]
            for start in range(0, self.size, _BLOCK):
                count = min(_BLOCK, self.size - start)
                values = np.fromfile(inputs[0], np.uint32, count)
                marks = np.concatenate((before, np.fromfile(inputs[1], np.uint8, count)))
                at = np.flatnonzero(marks & _LEFT_OUT)
                if len(at):
                    values[covered(len(marks), at, np.minimum(at + span, len(marks)))[span - 1 :]] = 0
                before = marks[len(marks) - span + 1 :]
                output.write(values.tobytes())
                periods.add(values)
            output.write(bytes(4 * PADDING))
        (self._folder / "values").unlink()

    def _find_starts(self, periods: Periods, buckets: list[BinaryIO]) -> None:
        """Write the positions where runs may begin to the buckets."""
        reach = max(self.known, self._blotter.guarantee) - self._blotter.span
        possible_overlaps = []
        # A window may begin at the last item of a block.
        block = max(_BLOCK, self.known)
        for start in range(0, self.size - self.known + 1, block):
            end = min(start + block, self.size - self.known + 1)
            marks = self._marks.between(start, min(end + reach, self.size))
            seeds = np.flatnonzero(marks & _SEED)
            if not len(seeds):
                continue
            values = self.sequence[start : end + self.known - 1]
            count = end - start
            may_begin = covered(count, np.clip(seeds - reach, 0, count), np.minimum(seeds + 1, count))
            zeros = np.concatenate((np.zeros(1, np.int64), np.cumsum(values == 0)))
            may_begin &= zeros[self.known :] == zeros[: -self.known]
            dropped, overlapping = periods.masks(start, end)
            may_begin &= ~dropped
            possible_overlaps.append(np.flatnonzero(may_begin & overlapping) + start)
            positions = np.flatnonzero(may_begin)
            hashes = mixed(windows(values.astype(np.uint64), self.known, 1, weighed)[positions])
            self._into_buckets(buckets, hashes, positions + start)
        if possible_overlaps:
            self.possible_overlaps = np.concatenate(possible_overlaps)


class BlotMaterial(_Sequence):
    """The blots of the texts that have *seeds*, for an index without texts."""

    known = 0
    extra = 1

    def __init__(
        self, snapshot: IndexSnapshot, seeds: Seeds, weights: Numbers, folder: Path, watch: Progress
    ) -> None:
        super().__init__(snapshot, folder, seeds.texts, weights)
        self._build(seeds, watch)
        self.sequence = self._map("sequence")
        self.sums = PrefixSums(folder / "sums", self.sequence)

    def before(self, positions: Numbers) -> Values:
        return self._steps(positions, positions - 1)

    def are_equal(self, a_starts: Numbers, b_starts: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
        """Whether the runs of *lengths* values at *a_starts* and at *b_starts*, and their first blots, are equal."""
        # + 1: the file has an extra item before the first blot. Excluded blots have no number and equal nothing.
        a_numbers = self._seed_numbers[a_starts + 1]
        is_same = (a_numbers != 0) & (a_numbers == self._seed_numbers[b_starts + 1])
        return is_same & self.sums.are_equal(a_starts, b_starts, lengths)

    def tokens_of(self, positions: Numbers, lengths: Numbers) -> Numbers:
        """The number of tokens of runs, from the first token of the first blot to the last token of the last blot."""
        tokens = self._tokens[positions + lengths].astype(np.int64) - self._tokens[positions]
        return tokens + self._blotter.span

    def token_spans(
        self, positions: Numbers, lengths: Numbers, text_starts: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The start and end tokens of runs in their texts."""
        firsts = self._tokens[positions].astype(np.int64)
        return firsts, self._tokens[positions + lengths].astype(np.int64) + self._blotter.span

    def _build(self, seeds: Seeds, watch: Progress) -> None:
        sizes = np.zeros(len(self.texts), np.int64)
        watch.begin("texts", 0)
        with ExitStack() as files:
            outputs = self._open(files, "tokens", "starts", "ends")
            for number, text in enumerate(self.texts.tolist()):
                outline = self._snapshot.outline(text)
                sizes[number] = len(outline.token_starts)
                for file, items in zip(
                    outputs, (outline.token_starts, outline.char_starts, outline.char_ends), strict=True
                ):
                    file.write(items.astype(np.uint32).tobytes())
            for file in outputs:
                file.write(bytes(4 * PADDING))
        watch.end()
        ends = np.cumsum(sizes)
        self.text_starts = ends - sizes
        self.size = int(ends[-1]) if len(ends) else 0
        self._seed_numbers = self._numbers(seeds)
        self._tokens: Values = self._map("tokens")
        with ExitStack() as files:
            (output,) = self._open(files, "sequence")
            buckets = self._open_buckets(files, self.size)
            for start in range(0, self.size, _BUCKET):
                at = np.arange(start, min(start + _BUCKET, self.size))
                output.write(self._steps(at, at + 1).tobytes())
                here = self._seed_numbers[at + 1].astype(np.uint64)
                seeded = np.flatnonzero(here)
                self._into_buckets(buckets, mixed(here[seeded]), at[seeded])
            output.write(bytes(4 * PADDING))

    def _numbers(self, seeds: Seeds) -> NDArray[np.uint32]:
        """For each blot the number of its seed, from 1, or 0.

        The result is a mapped file, because the posts come in the order of keys.
        """
        path = self._folder / "numbers"
        with path.open("wb") as file:
            for start in range(0, self.size + 2, _BUCKET):
                file.write(bytes(4 * min(_BUCKET, self.size + 2 - start)))
        numbers = np.memmap(path, np.uint32, "r+")
        places = np.full(self._snapshot.text_count, -1, np.int64)
        places[self.texts] = self.text_starts
        for posts in self._snapshot.scan():
            which, seed = seeds.keys.find(posts.keys)
            # A text for which the key is only boilerplate may not be part of the sequence.
            is_here = places[posts.texts[which]] >= 0
            which, seed = which[is_here], seed[is_here]
            texts = posts.texts[which]
            hidden, _ = seeds.hidden.find(on_hosts(posts.keys[which], self._snapshot.text_host[texts]))
            seed = seed + 1
            seed[hidden] = 0
            # + 1: there is an extra item before the first blot, and another after the last.
            numbers[places[texts] + posts.where[which] + 1] = seed
        return numbers.view(np.ndarray)

    def _steps(self, positions: Numbers, neighbours: Numbers) -> Values:
        """The value of the step from each blot to its neighbour; 0 if one is not a seed, or begins another text."""
        # + 1: see `are_equal`.
        here, there = self._seed_numbers[positions + 1], self._seed_numbers[neighbours + 1]
        is_step = (here != 0) & (there != 0)
        texts, others = (np.searchsorted(self.text_starts, at, "right") for at in (positions, neighbours))
        is_step &= texts == others
        gaps = np.abs(self._tokens[positions].astype(np.int64) - self._tokens[neighbours])
        steps = (mixed(there * np.uint64(_STEP) + gaps.astype(np.uint64)) & _LOW).astype(np.uint32)
        return np.where(is_step, np.maximum(steps, 1), 0).astype(np.uint32)


class _Sections(NamedTuple):
    """The sections of one period, in order. *starts* is where the second period of each section begins.

    *kept* are positions at which a run may begin, *near_ends* the last positions of the sections.
    """

    shift: int
    starts: Numbers
    ends: Numbers
    kept: Numbers
    near_ends: Numbers


class Periods:
    """Finds the periodic sections of a sequence that is given in parts, for runs of at least *known* values.

    A *section* of period *q* is a maximal range in which each value equals the value *q* positions before it and is not 0. It
    may have millions of values, for example in a text that repeats one line.

    A run of more than *q* values at a position *p* after the first period overlaps the same run at *p* - *q*, so its place at
    *p* does not count (see `repeats`). The exception is a run that continues beyond the end *E* of the section, because the
    values after *p* - *q* differ there. Such a run can be extended to the left at all its places, and is not maximal, unless
    one of its places is the start of a section. That section ends with the same values and has *E* - *p* of them. So *p* is
    kept if another section with the same end has *E* - *p* values. The positions of the last period are also kept, because
    the other section may be too short to have been found.

    The kept positions and the last *q* - 1 positions of a section are *possible overlaps*: they may overlap an earlier
    position that was dropped, so the remaining positions are not enough to detect the overlap.
    """

    def __init__(self, known: int) -> None:
        self._known = known
        self._shifts = range(1, min(known, _LONGEST_PERIOD + 1))
        self._edges: list[list[Numbers]] = [[] for _ in self._shifts]
        self._tail: Values = np.zeros(_LONGEST_PERIOD, np.uint32)
        self._size = 0
        self._sections: list[_Sections] = []

    def add(self, values: Values) -> None:
        """Add the next values of the sequence."""
        joined = np.concatenate((self._tail, values))
        is_value = values != 0
        for shift, edges in zip(self._shifts, self._edges, strict=True):
            is_same = values == joined[_LONGEST_PERIOD - shift : len(joined) - shift]
            is_same &= is_value
            found = np.flatnonzero(np.diff(is_same, prepend=False, append=False)).reshape(-1, 2)
            is_long = found[:, 1] - found[:, 0] >= self._known
            # A section that touches an end of the part may be longer.
            is_long |= (found[:, 0] == 0) | (found[:, 1] == len(values))
            edges.append(found[is_long] + self._size)
        self._tail = joined[-_LONGEST_PERIOD:]
        self._size += len(values)

    def finish(self, sequence: Values) -> None:
        """Complete the sections. *sequence* has all values again, followed by a 0."""
        for shift, edges in zip(self._shifts, self._edges, strict=True):
            if not edges:
                continue
            starts, ends = np.concatenate(edges).T
            if not len(starts):
                continue
            is_cut = starts[1:] != ends[:-1]
            starts, ends = starts[np.append(True, is_cut)], ends[np.append(is_cut, True)]
            is_long = ends - starts >= self._known
            starts, ends = starts[is_long], ends[is_long]
            if len(starts):
                near_ends = np.unique(ends[:, None] - np.arange(1, shift))
                kept = self._kept(shift, starts, ends, sequence)
                self._sections.append(_Sections(shift, starts, ends, kept, near_ends))
        self._edges = []

    def masks(self, start: int, end: int) -> tuple[Mask, Mask]:
        """Which positions from *start* to *end* begin no run, and which of the others are possible overlaps."""
        dropped, overlapping = np.zeros(end - start, np.bool_), np.zeros(end - start, np.bool_)
        for sections in self._sections:
            section_ends = sections.ends - self._known + 1
            here = slice(np.searchsorted(section_ends, start, "right"), np.searchsorted(sections.starts, end))
            begins = np.maximum(sections.starts[here], start) - start
            counts = np.minimum(section_ends[here], end) - start - begins
            if len(counts):
                at = ranges(begins, counts)
                overlapping[at] = True
                repeated = np.zeros(end - start, np.bool_)
                repeated[at] = True
                repeated[_between(sections.kept, start, end)] = False
                dropped |= repeated
            overlapping[_between(sections.near_ends, start, end)] = True
        return dropped, overlapping & ~dropped

    def _kept(self, shift: int, starts: Numbers, ends: Numbers, sequence: Values) -> Numbers:
        """The positions after the first period that may begin a run which continues beyond the end of the section."""
        continues = sequence[ends] != 0
        starts, ends = starts[continues], ends[continues]
        if not len(starts):
            return starts
        _, groups = np.unique(self._hashes_of_ends(ends, sequence), return_inverse=True)
        groups = groups.reshape(-1) << _LENGTH_BITS
        lengths = np.unique(groups | (ends - starts + shift))
        lows = np.searchsorted(lengths, groups | (self._known + shift))
        counts = np.maximum(np.searchsorted(lengths, groups | (ends - starts), "right") - lows, 0)
        which = ranges(lows, counts)
        at_lengths = np.repeat(ends, counts) - (lengths[which] & ((1 << _LENGTH_BITS) - 1))
        last = np.maximum(ends[:, None] - self._known - np.arange(shift), starts[:, None])
        return np.unique(np.append(at_lengths, last))

    def _hashes_of_ends(self, ends: Numbers, sequence: Values) -> NDArray[np.uint64]:
        """Hashes of the last values of sections, including the value after the section."""
        steps = np.arange(min(self._known, _COMPARED) + 1)
        factors = powers_of(_A, len(steps))
        parts = [
            (sequence[ends[first : first + _ROWS, None] - steps] * factors).sum(axis=1, dtype=np.uint64)
            for first in range(0, len(ends), _ROWS)
        ]
        return np.concatenate(parts)


def _between(positions: Numbers, start: int, end: int) -> Numbers:
    """The positions from *start* to *end*, relative to *start*. *positions* are sorted."""
    low, high = np.searchsorted(positions, [start, end])
    return positions[low:high] - start
