"""Growing Bloom filter of request fingerprints, with an account of its own errors.

A filter that is made for *n* fingerprints at error rate *p* calls at most a share *p* of the new ones
"seen", whatever the number of additions. When a layer is full, one of twice the capacity is put on top. Layer
*i* (from 0) may err with probability 0.7 p x 0.3^i; these shares add up to *p*. A larger step than the usual
halving keeps the first layer, which is the only one of a filter that was sized right, near the optimum: it
costs ln(1/0.7) / ln(1/p) more bits, that is 2.6 % at one in a million and 7.7 % at one in a hundred.

A layer is a :class:`pybloom_live.BloomFilter`: *k* slices of *m* bits, one bit of each slice for a
fingerprint. The optimum is that of Bloom (1970): k = log2(1/p) and k m = -n ln p / (ln 2)^2. The error of a
slice after *n* additions is taken as it really is: pybloom-live draws a position as a hash word of 16, 32 or
64 bits modulo *m*, and where *m* is not small against 2^16 or 2^32 the low positions come up more often. That
raises the error of a nominal geometry by up to 1.3; :func:`layer_geometry` widens the slices until the error
of the biased draw is within the share.

pybloom-live hashes ``str(key)``, so a fingerprint is given to it as lower-case hexadecimal text. Its words are
read in the byte order of the machine: the bits of a filter mean the same only on machines of one byte order.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bitarray import bitarray
from pybloom_live import BloomFilter

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FIRST_SHARE = 0.7
_SHARE_RATIO = 0.3
_GROWTH = 2


def optimal_bits(capacity: int, error_rate: float) -> int:
    """Bits of the smallest classic Bloom filter: -n ln p / (ln 2)^2.

    >>> optimal_bits(1_000_000, 1e-6), optimal_bits(1_000_000, 0.01)
    (28755176, 9585059)
    """
    return math.ceil(-capacity * math.log(error_rate) / math.log(2) ** 2)


def optimal_hashes(error_rate: float) -> int:
    """Bits set for a fingerprint in that filter: log2(1/p), rounded.

    >>> optimal_hashes(1e-6), optimal_hashes(0.01)
    (20, 7)
    """
    return max(1, round(-math.log2(error_rate)))


def layer_capacity(capacity: int, layer: int) -> int:
    """Fingerprints that layer number ``layer`` (from 0) holds.

    >>> [layer_capacity(10_000, layer) for layer in range(3)]
    [10000, 20000, 40000]
    """
    return capacity * _GROWTH**layer


def layer_share(error_rate: float, layer: int) -> float:
    """The part of the error rate that layer number ``layer`` (from 0) may use up.

    >>> round(sum(layer_share(0.01, layer) for layer in range(50)), 6)
    0.01
    """
    return error_rate * _FIRST_SHARE * _SHARE_RATIO**layer


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one layer: ``hashes`` slices of ``slice_bits`` bits for ``capacity`` fingerprints."""

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

    def error_at(self, count: float) -> float:
        """Probability that a fingerprint which was not added is found, after ``count`` additions."""
        return slice_error(self.slice_bits, count, _word_bits(self.slice_bits)) ** self.hashes

    def lost_by(self, count: int) -> float:
        """Sum of :meth:`error_at` over the additions 0 to ``count`` - 1."""
        return sum_over(self.error_at, count)


def sum_over(error_at: Callable[[float], float], count: int) -> float:
    """Sum of a smooth function over 0 to ``count`` - 1, as an integral (Simpson's rule).

    >>> round(sum_over(lambda x: x**2, 1000) / (1000**3 / 3), 9)
    1.0
    """
    steps = 128
    total = error_at(0) + error_at(count)
    total += sum((4 if i % 2 else 2) * error_at(count * i / steps) for i in range(1, steps))
    return total * count / steps / 3


def slice_error(slice_bits: int, count: float, word_bits: int) -> float:
    """Probability that one slice has the bit of a fingerprint that was not added.

    Positions are words of ``word_bits`` bits modulo ``slice_bits``: the first 2^w mod m of them come up once
    more often than the others, and are at the same time the ones that are set more often.

    >>> round(slice_error(40_000, 27_726, 32), 4), round(slice_error(24_000, 16_636, 16), 4)
    (0.5, 0.5064)
    """
    words = 1 << word_bits
    each, more_often = divmod(words, slice_bits)
    rare = each / words
    often = (each + 1) / words
    return more_often * often * _set_probability(often, count) + (
        slice_bits - more_often
    ) * rare * _set_probability(rare, count)


def layer_geometry(capacity: int, error_rate: float) -> Geometry:
    """The smallest layer that keeps ``error_rate`` up to ``capacity``, with the hash words of pybloom-live.

    >>> layer_geometry(1_000_000, 1e-6)
    Geometry(capacity=1000000, error_rate=1e-06, hashes=20, slice_bits=1437765)
    """
    exact = -math.log2(error_rate)
    candidates = []
    # One more or less than the two nearest numbers costs little, and may lead out of the widths with a bias.
    for hashes in range(max(1, math.floor(exact) - 1), math.ceil(exact) + 2):
        slice_bits = max(1, math.ceil(-capacity / math.log1p(-(error_rate ** (1 / hashes)))))
        step = 1
        while (geometry := Geometry(capacity, error_rate, hashes, slice_bits)).error_at(
            capacity
        ) > error_rate:
            slice_bits += step
            step = min(2 * step, 1 + slice_bits // 2000)
        candidates.append(geometry)
    return min(candidates, key=lambda geometry: geometry.bits)


def physical_memory_bytes() -> int | None:
    """Size of the machine's memory, None where the system does not tell."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return size if size > 0 else None


def check_parameters(capacity: int, error_rate: float) -> None:
    """Raise :class:`~scrapy_dedupe.errors.SettingError` for values that no filter can have."""
    if not isinstance(capacity, int) or capacity < 1:
        raise SettingError(f"The capacity of a URL filter is {capacity!r}; it must be a whole number from 1.")
    if not 0 < error_rate < 1:
        raise SettingError(f"The error rate of a URL filter is {error_rate!r}; it must be between 0 and 1.")


class GrowingBloomFilter:
    """A set of fingerprints that may say "seen" of a new one, with a probability of at most ``error_rate``.

    ``capacity`` is the number of fingerprints of the first layer. Raises
    :class:`~scrapy_dedupe.errors.SettingError` for a capacity that the machine's memory cannot hold.
    Fingerprints are bytes of any length. Not for use from several threads at a time.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        check_parameters(capacity, error_rate)
        self.capacity = capacity
        self.error_rate = error_rate
        self._layers: list[_Layer] = []
        self._older: tuple[_Layer, ...] = ()
        needed = layer_geometry(capacity, layer_share(error_rate, 0)).size_bytes
        memory = physical_memory_bytes()
        if memory is not None and needed > memory:
            raise SettingError(
                f"A URL filter for {capacity:,} fingerprints at an error rate of {error_rate} takes {needed:,} "
                f"bytes, and this machine has {memory:,} bytes of memory. Set DEDUPE_URL_CAPACITY lower (the "
                "filter grows as needed) or DEDUPE_URL_ERROR_RATE higher."
            )
        self._grow()

    @classmethod
    def from_layers(
        cls, capacity: int, error_rate: float, layers: Iterable[tuple[Geometry, int, bytes]]
    ) -> GrowingBloomFilter:
        """A filter from the parts that :meth:`dump_layers` gave: geometry, fingerprints held, bits."""
        check_parameters(capacity, error_rate)
        self = cls.__new__(cls)
        self.capacity = capacity
        self.error_rate = error_rate
        self._layers = [_Layer(geometry, count, bits) for geometry, count, bits in layers]
        if not self._layers:
            raise ValueError("a filter has at least one layer")
        self._set_order()
        return self

    def dump_layers(self) -> list[tuple[Geometry, int, bytes]]:
        """Geometry, fingerprints held and bits of each layer, oldest first."""
        return [(layer.geometry, layer.count, layer.bitarray.tobytes()) for layer in self._layers]

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new."""
        key = fingerprint.hex()
        # The youngest layer holds about half of everything, so it is asked first. The others end at their
        # second bit, on average, when the fingerprint is not there.
        for layer in self._older:
            if key in layer:
                return False
        newest = self._newest
        # pybloom-live raises IndexError past its capacity, even for what it holds.
        if newest.count < newest.capacity:
            return not newest.add(key)
        if key in newest:
            return False
        self._grow()
        self._newest.add(key)
        return True

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; for each, True if it is new."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def __contains__(self, fingerprint: bytes) -> bool:
        key = fingerprint.hex()
        return any(key in layer for layer in reversed(self._layers))

    def __len__(self) -> int:
        """Distinct fingerprints recorded."""
        return sum(layer.count for layer in self._layers)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def size_bytes(self) -> int:
        """Bytes of the bits."""
        return sum(layer.geometry.size_bytes for layer in self._layers)

    @property
    def fill_ratio(self) -> float:
        """Share of the bits that are set; 0.5 where a layer is full."""
        return sum(layer.bitarray.count() for layer in self._layers) / sum(
            layer.num_bits for layer in self._layers
        )

    @property
    def estimated_error(self) -> float:
        """Probability that the next new fingerprint is called seen, from the bits that are set now."""
        return -math.expm1(sum(math.log1p(-layer.measured_error()) for layer in self._layers))

    @property
    def expected_lost(self) -> float:
        """Expected number of new fingerprints that were called seen on the way to the present size."""
        return expected_lost(
            [layer.geometry for layer in self._layers], [layer.count for layer in self._layers]
        )

    def _grow(self) -> None:
        number = len(self._layers)
        share = layer_share(self.error_rate, number)
        self._layers.append(_Layer(layer_geometry(layer_capacity(self.capacity, number), share)))
        self._set_order()

    def _set_order(self) -> None:
        self._newest = self._layers[-1]
        self._older = tuple(reversed(self._layers[:-1]))


class ErrorAccount(Protocol):
    """A layer that knows its error."""

    def error_at(self, count: float) -> float: ...

    def lost_by(self, count: int) -> float: ...


def expected_lost(layers: Sequence[ErrorAccount], counts: Sequence[int]) -> float:
    """Sum of the filter's error probability over all its additions.

    While layer *i* was filled, the layers below were full and erred at their full rate.
    """
    lost = below = 0.0
    for layer, count in zip(layers, counts, strict=True):
        lost += layer.lost_by(count) + below * count
        below += layer.error_at(count)
    return lost


class _Layer(BloomFilter):
    """pybloom-live's filter with a geometry of our choice instead of its own."""

    def __init__(self, geometry: Geometry, count: int = 0, bits: bytes | None = None) -> None:
        self.geometry = geometry
        self._setup(geometry.error_rate, geometry.hashes, geometry.slice_bits, geometry.capacity, count)
        if bits is None:
            self.bitarray = bitarray(self.num_bits, endian="little")
            self.bitarray.setall(False)
            return
        if len(bits) != geometry.size_bytes:
            raise ValueError(f"{len(bits)} bytes for a layer of {geometry.size_bytes}")
        self.bitarray = bitarray(endian="little")
        self.bitarray.frombytes(bits)
        # tobytes() pads to whole bytes, and the padding counts as bits after frombytes().
        del self.bitarray[self.num_bits :]

    def measured_error(self) -> float:
        width = self.bits_per_slice
        error = 1.0
        for start in range(0, self.num_bits, width):
            error *= self.bitarray.count(1, start, start + width) / width
        # The positions that are drawn more often are also set more often; the share of set bits hides it.
        if error:
            drawn = slice_error(width, self.count, _word_bits(width))
            error *= (drawn / _expected_fill(width, self.count, _word_bits(width))) ** self.num_slices
        return min(1.0, error)


def _expected_fill(slice_bits: int, count: float, word_bits: int) -> float:
    words = 1 << word_bits
    each, more_often = divmod(words, slice_bits)
    often = more_often * _set_probability((each + 1) / words, count)
    rare = (slice_bits - more_often) * _set_probability(each / words, count)
    return (often + rare) / slice_bits


def _set_probability(share: float, count: float) -> float:
    """Probability that a bit which is drawn with probability ``share`` is set after ``count`` draws."""
    if share >= 1:
        return float(count > 0)
    return -math.expm1(count * math.log1p(-share))


def _word_bits(slice_bits: int) -> int:
    """Width of the words that pybloom-live takes modulo ``slice_bits``."""
    if slice_bits >= 1 << 31:
        return 64
    return 32 if slice_bits >= 1 << 15 else 16
