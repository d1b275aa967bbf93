"""Growing Bloom filter of request fingerprints, which can estimate its own errors.

A filter sized for *n* fingerprints at error rate *p* reports at most a share *p* of new fingerprints as seen, after
any number of additions. When a layer is full, a layer of twice the capacity is added. Layer *i* (from 0) may err
with probability 0.7 p x 0.3^i; these shares sum to *p*. The usual ratio is 1/2. A smaller ratio leaves the first
layer more of the error rate and keeps it near the optimum, which matters because a filter of the right size has
only this layer. It costs ln(1/0.7) / ln(1/p) more bits: 2.6 % at one in a million, 7.7 % at one in a hundred.

A layer is a :class:`pybloom_live.BloomFilter`: *k* slices of *m* bits; a fingerprint sets one bit in each slice.
The optimum follows Bloom (1970): k = log2(1/p) and k m = -n ln p / (ln 2)^2. The time grows with *k*, but near the
optimum the size depends little on *k*. A layer therefore has the smallest *k* whose size is at most 1.065 times the
optimum: 15 instead of 20 at one in a million.

The bits of a fingerprint are derived from 32-bit words: word *i* modulo *m* is the position in slice *i*. The words
are read, little-endian, from the BLAKE2b digests (RFC 7693) of the fingerprint: the first without a salt, the next
ones with the salts 1, 2 ... (16 bytes, little-endian). Each position has its own word. Deriving *k* positions from
two words (double hashing) would miss a rate of one in a million, and a fingerprint itself may be short or structured.
All layers use the same words, modulo their own slice widths. Slices of 2^26 bits or more use 64-bit words, because the
modulo draws low positions more often if *m* is not small compared to the range of the words.

The number of set bits varies by chance: :func:`narrowest_slice`, which also sizes the
layers of the shared filter, allows for four standard deviations. A layer is full when its set bits reach its share
of the error rate, even below its capacity. Therefore the rates of all layers, computed from the bits that are set,
sum to at most *p* at any size.

pybloom-live computes positions from a hash of ``str(key)``, which takes twice as long. A layer passes its own
positions to pybloom-live, so that pybloom-live's ``in`` and ``add`` work on it, but reads and sets the bits itself.
"""

from __future__ import annotations

import math
import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from operator import add, mod
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bitarray import bitarray
from pybloom_live import BloomFilter

from scrapy_dedupe import kernel
from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_FIRST_SHARE = 0.7
_SHARE_RATIO = 0.3
_GROWTH = 2
_SIZE_MARGIN = 1.065
_DEVIATIONS = 4
_PART_BITS = 1 << 23
_WORDS = {32: struct.Struct("<16I"), 64: struct.Struct("<8Q")}
_FIRST_WORD = {32: struct.Struct("<I"), 64: struct.Struct("<Q")}
# The compiled kernel does the same faster in a layer whose positions come from one digest of 32-bit words. The arguments
# are the bits, the number of slices, their width, and then as in _Layer.
_add_key: Final[Callable[..., bool] | None] = kernel.function("add_key", None)
_has_key: Final[Callable[..., bool] | None] = kernel.function("has_key", None)
_add_keys: Final[Callable[..., int] | None] = kernel.function("add_keys", None)


def optimal_bits(capacity: int, error_rate: float) -> int:
    """Size in bits of the smallest classic Bloom filter: -n ln p / (ln 2)^2.

    >>> optimal_bits(1_000_000, 1e-6), optimal_bits(1_000_000, 0.01)
    (28755176, 9585059)
    """
    return math.ceil(-capacity * math.log(error_rate) / math.log(2) ** 2)


def layer_capacity(capacity: int, layer: int) -> int:
    """Capacity in fingerprints of layer number ``layer`` (from 0).

    >>> [layer_capacity(10_000, layer) for layer in range(3)]
    [10000, 20000, 40000]
    """
    return capacity * _GROWTH**layer


def layer_share(error_rate: float, layer: int) -> float:
    """The part of the error rate that layer number ``layer`` (from 0) may use.

    >>> round(sum(layer_share(0.01, layer) for layer in range(50)), 6)
    0.01
    """
    return error_rate * _FIRST_SHARE * _SHARE_RATIO**layer


@dataclass(frozen=True, slots=True)
class Geometry:
    """The dimensions of one layer: ``hashes`` slices of ``slice_bits`` bits for ``capacity`` fingerprints."""

    capacity: int
    error_rate: float
    hashes: int
    slice_bits: int

    @property
    def bits(self) -> int:
        return self.hashes * self.slice_bits

    @property
    def size_bytes(self) -> int:
        return (self.bits + 7) // 8

    def fill_at(self, count: float) -> float:
        """Expected share of the bits that are set after ``count`` additions."""
        return _expected_fill(self.slice_bits, count)

    def error_at(self, count: float) -> float:
        """Probability of a false positive after ``count`` additions."""
        return self.fill_at(count) ** self.hashes


def sum_over(error_at: Callable[[float], float], count: int) -> float:
    """Sum of a smooth function over 0 to ``count`` - 1, approximated by an integral (Simpson's rule).

    >>> round(sum_over(lambda x: x**2, 1000) / (1000**3 / 3), 9)
    1.0
    """
    steps = 128
    total = error_at(0) + error_at(count)
    total += sum((4 if i % 2 else 2) * error_at(count * i / steps) for i in range(1, steps))
    return total * count / steps / 3


def narrowest_slice(count: int, error_rate: float, hashes: int) -> int:
    """Smallest slice width in bits with which ``hashes`` slices keep ``error_rate`` up to ``count`` additions.

    The number of set bits varies by chance. The width allows for an error four standard deviations above the expected
    error.

    >>> narrowest_slice(1_000_000, 0.007, 7), narrowest_slice(10_000, 0.007, 7)
    (1477040, 14903)
    """
    # The ideal width is slightly too small.
    width = max(1, math.ceil(-count / math.log1p(-(error_rate ** (1 / hashes)))))
    while True:
        deviation = _error_deviation(width, count, hashes)
        error = _expected_fill(width, count) ** hashes * math.exp(_DEVIATIONS * deviation)
        if error <= error_rate:
            return width
        # A wider slice is filled less, but by less than this factor, so the smallest width is not passed over.
        width = max(width + 1, math.floor(width * (error / error_rate) ** (1 / hashes)))


def _error_deviation(slice_bits: int, count: float, hashes: int) -> float:
    """Standard deviation of the logarithm of a layer's error. The error is the product of the shares of set bits."""
    load = count / slice_bits
    clear = math.exp(-load)
    # Kolchin, Sevast'yanov, Chistyakov, Random Allocations (1978): the variance of the number of occupied cells.
    variance = slice_bits * clear * max(0.0, 1 - (1 + load) * clear)
    return math.sqrt(hashes * variance) / (slice_bits * -math.expm1(-load))


@cache
def layer_geometry(capacity: int, error_rate: float) -> Geometry:
    """The layer with the fewest hashes that keeps ``error_rate`` up to ``capacity`` and is not too large.

    Not too large means at most 1.065 times the optimum for a filter with the error rate ``error_rate`` / 0.7, whose
    first layer has this share. If no layer is that small, the smallest layer is returned.

    >>> layer_geometry(1_000_000, layer_share(1e-6, 0)).hashes, layer_geometry(1_000_000, layer_share(0.01, 0)).hashes
    (15, 7)
    >>> layer_geometry(1_000_000, layer_share(1e-6, 0)).bits / optimal_bits(1_000_000, 1e-6) < 1.065
    True
    """
    exact = -math.log2(error_rate)
    # Half of the optimal hashes already take 1.2 times the bits, so fewer are not tried.
    candidates = [
        Geometry(capacity, error_rate, hashes, narrowest_slice(capacity, error_rate, hashes))
        for hashes in range(max(1, math.floor(exact / 2)), math.ceil(exact) + 2)
    ]
    limit = max(
        _SIZE_MARGIN * optimal_bits(capacity, error_rate / _FIRST_SHARE),
        min(geometry.bits for geometry in candidates),
    )
    return next(geometry for geometry in candidates if geometry.bits <= limit)


def memory_bytes() -> int | None:
    """Memory available to this process in bytes; None if unknown. On Linux a container's limit is respected."""
    found = []
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError, AttributeError):
        line = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        found.append(1024 * int(line[1]) if line else 0)
    with suppress(OSError, ValueError):
        # The file contains "max" if there is no limit.
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min((size for size in found if size > 0), default=None)


def check_parameters(capacity: int, error_rate: float) -> None:
    """Raise :class:`~scrapy_dedupe.errors.SettingError` if the capacity or error rate is invalid."""
    if not isinstance(capacity, int) or capacity < 1:
        raise SettingError(f"The capacity of a URL filter is {capacity!r}; it must be a whole number from 1.")
    if not 0 < error_rate < 1:
        raise SettingError(f"The error rate of a URL filter is {error_rate!r}; it must be between 0 and 1.")


class GrowingBloomFilter:
    """A set of fingerprints with false positives: a new fingerprint is reported as seen with at most ``error_rate``.

    ``capacity`` is the number of fingerprints of the first layer. Raises
    :class:`~scrapy_dedupe.errors.SettingError` if the filter does not fit into the memory of the machine.
    Fingerprints are bytes of any length. Not thread-safe.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        check_parameters(capacity, error_rate)
        self.capacity = capacity
        self.error_rate = error_rate
        self._layers: list[_Layer] = []
        self._older: tuple[_Layer, ...] = ()
        needed = layer_geometry(capacity, layer_share(error_rate, 0)).size_bytes
        memory = memory_bytes()
        if memory is not None and needed > memory:
            raise SettingError(
                f"A URL filter for {capacity:,} fingerprints at an error rate of {error_rate} takes {needed:,} "
                f"bytes, but only {memory:,} bytes of memory are available. Set DEDUPE_URL_CAPACITY lower (the filter "
                "grows as needed) or DEDUPE_URL_ERROR_RATE higher."
            )
        self._grow()

    @classmethod
    def from_layers(
        cls, capacity: int, error_rate: float, layers: Iterable[tuple[Geometry, int, Iterable[bytes]]]
    ) -> GrowingBloomFilter:
        """Recreate a filter from the result of :meth:`dump_layers`."""
        check_parameters(capacity, error_rate)
        self = cls.__new__(cls)
        self.capacity = capacity
        self.error_rate = error_rate
        self._layers = [_Layer(geometry, count, parts) for geometry, count, parts in layers]
        if not self._layers:
            raise ValueError("a filter has at least one layer")
        self._set_order()
        return self

    def dump_layers(self) -> list[tuple[Geometry, int, Iterator[bytes]]]:
        """Geometry, number of fingerprints and bits of each layer, oldest first.

        The bits are padded to whole bytes, in parts of bounded size that are read when they are needed.
        """
        return [(layer.geometry, layer.count, layer.parts()) for layer in self._layers]

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new."""
        # This runs for each link of a crawl, so it avoids calls.
        newest = self._newest
        if newest.add_key is not None and not self._older and newest.count < newest.recheck_at:
            is_new = newest.add_key(fingerprint)
            newest.count += is_new
            return is_new
        words, positions = newest.locate(fingerprint)
        bits = newest.bitarray
        # For most new fingerprints the first bit is clear.
        if bits[positions[0]] and bits[positions].all():
            return False
        if self._older and self._is_in_older_layer(fingerprint, words):
            return False
        if newest.count >= newest.recheck_at and not newest.has_room():
            self._grow()
            newest = self._newest
            bits = newest.bitarray
            _, positions = newest.locate(fingerprint)
        bits[positions] = True
        newest.count += 1
        return True

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; True for each that is new."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def add_all_unless(self, known: bytes, fingerprints: list[bytes]) -> bool:
        """Record fingerprints, unless *known* or the first of them was recorded; True if they are recorded now."""
        newest = self._newest
        count = newest.count + len(fingerprints)
        if newest.add_keys is not None and not self._older and count <= newest.recheck_at:
            added = newest.add_keys(fingerprints, known)
            newest.count += added
            return added > 0
        if known in self or not self.add(fingerprints[0]):
            return False
        for fingerprint in fingerprints[1:]:
            self.add(fingerprint)
        return True

    def __contains__(self, fingerprint: bytes) -> bool:
        newest = self._newest
        if not self._older:
            if newest.has_key is not None:
                return newest.has_key(fingerprint)
            # For most new fingerprints the first bit is clear.
            (first,) = newest.unpack_first(blake2b(fingerprint).digest())
            if not newest.bitarray[first % newest.bits_per_slice]:
                return False
        words = newest.words(fingerprint)
        return newest.holds(fingerprint, words) or self._is_in_older_layer(fingerprint, words)

    def __len__(self) -> int:
        """Number of distinct fingerprints recorded."""
        return sum(layer.count for layer in self._layers)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def size_bytes(self) -> int:
        """Size of the bits of all layers."""
        return sum(layer.geometry.size_bytes for layer in self._layers)

    def figures(self) -> Figures:
        """The figures. ``fill_ratio`` and ``estimated_error`` are computed from the bits that are set now."""
        layers = self._layers
        return replace(
            self.expected_figures(),
            fill_ratio=sum(layer.bitarray.count() for layer in layers)
            / sum(layer.num_bits for layer in layers),
            estimated_error=_sum_of_errors(layer.measured_error() for layer in layers),
        )

    def expected_figures(self) -> Figures:
        """The figures without counting bits, which takes a tenth of a second in a large filter. Thread-safe.

        The share of set bits expected for the number of fingerprints differs from the counted share by less than 1 %.
        """
        layers = tuple(self._layers)
        return expected_figures([layer.geometry for layer in layers], [layer.count for layer in layers])

    def _is_in_older_layer(self, fingerprint: bytes, words: Sequence[int]) -> bool:
        """Whether a layer older than the newest holds the fingerprint; ``words`` are its words in the newest layer."""
        word_bits = self._newest.word_bits
        for layer in self._older:
            if layer.word_bits != word_bits:
                word_bits = layer.word_bits
                words = layer.words(fingerprint)
            if layer.holds(fingerprint, words):
                return True
        return False

    def _grow(self) -> None:
        number = len(self._layers)
        share = layer_share(self.error_rate, number)
        self._layers.append(_Layer(layer_geometry(layer_capacity(self.capacity, number), share)))
        self._set_order()

    def _set_order(self) -> None:
        self._newest = self._layers[-1]
        self._older = tuple(reversed(self._layers[:-1]))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a filter. They have the same names as its stats.

    ``seen`` is the number of distinct fingerprints recorded, ``capacity`` that of the first layer. ``bytes`` is the size of
    all layers, ``fill_ratio`` the share of their bits that are set: 0.4 to 0.5 in a full layer. ``estimated_error`` is the
    probability that the next new fingerprint is reported as seen, ``expected_lost`` the expected number of new
    fingerprints that were reported as seen so far.
    """

    seen: int
    capacity: int
    layers: int
    bytes: int
    fill_ratio: float
    estimated_error: float
    expected_lost: float


class FilterLayer(Protocol):
    """A layer of a filter, for :func:`expected_figures`."""

    @property
    def capacity(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def fill_at(self, count: float) -> float:
        """Expected share of the layer that is filled after ``count`` additions."""

    def error_at(self, count: float) -> float:
        """Probability of a false positive after ``count`` additions."""


def expected_figures(layers: Sequence[FilterLayer], counts: Sequence[int]) -> Figures:
    """The figures expected for the number of fingerprints in each layer, oldest first."""
    size = sum(layer.size_bytes for layer in layers)
    lost = older_error = filled = 0.0
    errors = []
    for layer, count in zip(layers, counts, strict=True):
        # While this layer was being filled, the older layers were full and erred at their full rates.
        lost += sum_over(layer.error_at, count) + older_error * count
        errors.append(layer.error_at(count))
        older_error += errors[-1]
        filled += layer.fill_at(count) * layer.size_bytes
    return Figures(
        seen=sum(counts),
        capacity=layers[0].capacity if layers else 0,
        layers=len(layers),
        bytes=size,
        fill_ratio=filled / size if size else 0.0,
        estimated_error=_sum_of_errors(errors),
        expected_lost=lost,
    )


def _sum_of_errors(errors: Iterable[float]) -> float:
    """Probability that at least one layer errs."""
    return abs(math.expm1(sum(math.log1p(-min(error, 1 - 1e-12)) for error in errors)))


class _Layer(BloomFilter):
    """pybloom-live's filter with its own geometry and positions; see the module docstring."""

    def __init__(self, geometry: Geometry, count: int = 0, parts: Iterable[bytes] | None = None) -> None:
        self.geometry = geometry
        self._setup(geometry.error_rate, geometry.hashes, geometry.slice_bits, geometry.capacity, count)
        self.make_hashes = self._positions
        # Up to this number of fingerprints the layer surely has room; then has_room() must be called again.
        self.recheck_at = 0
        self._offsets = tuple(range(0, self.num_bits, self.bits_per_slice))
        self._widths = (self.bits_per_slice,) * self.num_slices
        self.word_bits = _word_bits(self.bits_per_slice)
        self._unpack = _WORDS[self.word_bits].unpack
        self.unpack_first = _FIRST_WORD[self.word_bits].unpack_from
        digests = -(-self.num_slices * self.word_bits // 512)
        self._salts = tuple(number.to_bytes(blake2b.SALT_SIZE, "little") for number in range(1, digests))
        if parts is None:
            self.bitarray = bitarray(self.num_bits, endian="little")
            self.bitarray.setall(False)
        else:
            self.bitarray = bitarray(endian="little")
            for part in parts:
                self.bitarray.frombytes(part)
            if len(self.bitarray) != 8 * geometry.size_bytes:
                raise ValueError(f"{len(self.bitarray) // 8} bytes for a layer of {geometry.size_bytes}")
            # tobytes() pads to whole bytes, and frombytes() reads the padding as bits.
            del self.bitarray[self.num_bits :]
        bits = (self.bitarray, self.num_slices, self.bits_per_slice)
        has_kernel = self.word_bits == 32 and digests == 1
        # Records a fingerprint; the result is whether it is new.
        self.add_key = partial(_add_key, *bits) if has_kernel and _add_key else None
        # Whether a fingerprint is recorded.
        self.has_key = partial(_has_key, *bits) if has_kernel and _has_key else None
        # Records a list of fingerprints, unless another one or the first of them is recorded; the number of new ones.
        self.add_keys = partial(_add_keys, *bits) if has_kernel and _add_keys else None

    def parts(self) -> Iterator[bytes]:
        for start in range(0, self.num_bits, _PART_BITS):
            yield self.bitarray[start : start + _PART_BITS].tobytes()

    def words(self, fingerprint: bytes) -> tuple[int, ...]:
        """The words of the first digest. Most layers need only this digest."""
        return self._unpack(blake2b(fingerprint).digest())

    def locate(self, fingerprint: bytes) -> tuple[tuple[int, ...], list[int]]:
        """The words of the first digest, and the index of the fingerprint's bit in each slice."""
        words = all_words = self._unpack(blake2b(fingerprint).digest())
        for salt in self._salts:
            all_words += self._unpack(blake2b(fingerprint, salt=salt).digest())
        return words, list(map(add, self._offsets, map(mod, all_words, self._widths)))

    def holds(self, fingerprint: bytes, words: Sequence[int]) -> bool:
        """Whether all bits of a fingerprint are set; ``words`` are the words of its first digest."""
        bits, width = self.bitarray, self.bits_per_slice
        for offset, word in zip(self._offsets, words):  # noqa: B905 - a layer may need fewer, or more
            if not bits[offset + word % width]:
                return False
        return not self._salts or bits[self.locate(fingerprint)[1]].all()

    def _positions(self, fingerprint: bytes) -> Iterator[int]:
        """The position in each slice, in the form that pybloom-live expects."""
        _, positions = self.locate(fingerprint)
        return (position - offset for position, offset in zip(positions, self._offsets, strict=True))

    def has_room(self) -> bool:
        """Whether one more fingerprint keeps the error within the layer's share; sets ``recheck_at``.

        A fingerprint sets at most one bit in each slice, and the product of the slices' fill ratios is at most their
        mean to the power of *k*. The number of set bits therefore gives a lower bound for the remaining room.
        """
        geometry = self.geometry
        fill = geometry.error_rate ** (1 / geometry.hashes)
        room = math.floor(fill * self.num_bits - self.bitarray.count()) // self.num_slices
        self.recheck_at = min(self.capacity, self.count + room)
        return self.count < self.recheck_at

    def measured_error(self) -> float:
        width = self.bits_per_slice
        error = 1.0
        for start in range(0, self.num_bits, width):
            error *= self.bitarray.count(1, start, start + width) / width
        return error


def _expected_fill(slice_bits: int, count: float) -> float:
    """Expected share of the bits of a slice that are set after ``count`` additions."""
    return -math.expm1(count * math.log1p(-1 / slice_bits)) if slice_bits > 1 else float(count > 0)


def _word_bits(slice_bits: int) -> int:
    """Width of the words from which positions modulo ``slice_bits`` are derived."""
    return 64 if slice_bits >= 1 << 26 else 32
