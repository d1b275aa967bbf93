"""Separates text that a host repeats on many pages (its template) from a page's own text.

Most near copies that shingles find within one site are false: the pages share navigation, header and footer, and have
little other text (Henzinger, *Finding near-duplicate web pages*, SIGIR 2006, found that within one site both shingles
and SimHash are wrong more often than right). Therefore this module counts, per host, on how many pages each shingle
occurs. A shingle that occurs on many pages is *template* on this host. The judge calls two pages near only if they
are also near without their template.

**Sketch.** A host has 65,536 counters of 8 bits. The highest 16 bits of a shingle's hash select its counter. Each
page adds 1 to every counter that one of its shingles selects. After 255 pages, the number of pages and all counters
are halved. As a result no counter overflows or exceeds the number of pages, and text that a site no longer shows is
forgotten. The sketch is one row of a count-min sketch (Cormode and Muthukrishnan, *An improved data stream summary:
the count-min sketch and its applications*, 2005): the count of a shingle is never too low, and too high only through
other shingles with the same counter.

**Template.** Let n be the number of pages counted, and f the mean share of the counters that a page touches, which is
what a counter reaches by chance. A shingle is template if its counter has reached all of

- 4;
- n (f + 0.15 (1 - f)): it is on 15 % of the pages, after removing chance;
- n f + 4 sqrt(n f (1 - f)): four standard deviations above chance (an upper bound: the variance is smaller if the
  pages differ in size), so that a host with huge pages does not become all template.

**Guarantees.** A page does not influence its own classification before it is counted. The same pages in the same
order give the same results. A host with fewer than 4 counted pages has no template: its first pages are judged
without one, and their stored signatures are not corrected later.

**Limits.** An endless series of pages that differ only in a few words (a calendar) looks like a template in the
counters: once such pages are 15 % of a host's pages, they are no longer near to each other. The judge marks these
pages as having hardly any text of their own, and the report counts them by URL pattern.

**Bounds.** 64 kB per host and 256 hosts are 16 MB. The least recently used host is evicted; it is saved if it has a
template, otherwise its counts are lost.

**Saved form**, at most 8.3 kB, usually under 3 kB::

    magic        8 bytes   "sd-templ"
    version      2 bytes   1
    body                   zlib: the number of pages (2 bytes), the number of counters that they touched (4 bytes),
                           8,192 bytes with one bit for each counter, first counter in the lowest bit: 1 if its
                           shingles are template

All numbers are little-endian; zlib's checksum covers the body. After loading, template shingles count as if they had
been on all pages and all others as if on none. At most 64 pages are loaded, so that new pages have enough weight.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from .signature import Hashes

VERSION: Final = 1

# On a host with a template, a page with fewer shingles of its own than this is not compared: it would be near to
# every other page with as little text.
MIN_RARE: Final = 16

# About ten words in a row. Pages of manuals rarely have fewer; months of a calendar and "not found" pages do.
MIN_OWN: Final = 64

SLOTS: Final = 65_536
MOST_PAGES: Final = 255

_SHIFT: Final = 16
_FEWEST: Final = 4
# Of the pages, for a template shingle, a shared name and a common shingle
_SHARES: Final = (0.15, 0.1, 0.0)
_DEVIATIONS: Final = 4

# The highest number of pages that a loaded sketch counts as.
_LOADED_PAGES: Final = 64

_MAGIC: Final = b"sd-templ"
_HEAD: Final = struct.Struct("<8sH")
_COUNTS: Final = struct.Struct("<HI")
_BODY_BYTES: Final = _COUNTS.size + SLOTS // 8


class TemplateGuard:
    """Determines which shingles are template on their hosts. Use an instance from one thread at a time.

    ``load`` returns what was last passed to ``save`` for a host, or None. Exceptions of both are passed on and leave
    the guard unchanged. If several processes share a store, the last one to save a host wins.
    """

    def __init__(
        self,
        load: Callable[[str], bytes | None],
        save: Callable[[str, bytes], None],
        max_hosts: int = 256,
    ) -> None:
        if max_hosts < 1:
            raise ValueError(f"max_hosts is {max_hosts}. Allowed: a whole number of at least 1.")
        self._load = load
        self._save = save
        self._max_hosts = max_hosts
        self._sketches: OrderedDict[str, HostSketch] = OrderedDict()

    def __len__(self) -> int:
        """The number of hosts in memory."""
        return len(self._sketches)

    def template(self, host: str, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of a page's shingle hashes are template on *host* now; none while too few pages were counted.

        Raises ValueError if the saved form of the host is damaged, but only once: after that the host counts as new,
        and the next save replaces the damaged form.
        """
        return self._sketch(host).template(hashes)

    def classify(self, host: str, hashes: Hashes) -> tuple[NDArray[np.bool_], bool]:
        """The result of :meth:`template`, and whether the page is bare.

        A bare page has hardly a word that is not on several other pages of the host, and more text that is.
        """
        is_template, is_common = self._sketch(host).classify(hashes)
        own = len(hashes) - int(np.count_nonzero(is_common))
        return is_template, own < MIN_OWN and 2 * own < len(hashes)

    def missing_pages(self, host: str) -> int:
        """How many pages must be counted before *host* can have a template; 0 if it can."""
        return max(0, _FEWEST - self._sketch(host).pages)

    def is_shared(self, host: str, hashes: Iterable[int]) -> bool:
        """Whether a name is on many pages of *host*, given by its few hashes."""
        return self._sketch(host).is_shared(hashes)

    def first_own(self, host: str, hashes: Hashes) -> int | None:
        """The place of the first of *hashes* that is not common on *host*; None if there is none, or too few pages."""
        return self._sketch(host).first_own(hashes)

    def count(self, host: str, hashes: Hashes) -> None:
        """Count a page of *host*, given by its shingle hashes.

        Raises ValueError as :meth:`template` does.
        """
        self._sketch(host).count(hashes)

    def save(self) -> None:
        """Pass every host with a template to ``save`` if pages were counted since it was last saved."""
        for host, sketch in self._sketches.items():
            self._save_one(host, sketch)

    def _sketch(self, host: str) -> HostSketch:
        sketch = self._sketches.get(host)
        if sketch is not None:
            self._sketches.move_to_end(host)
            return sketch
        saved = self._load(host)
        while len(self._sketches) >= self._max_hosts:
            oldest = next(iter(self._sketches))
            self._save_one(oldest, self._sketches[oldest])
            del self._sketches[oldest]
        # If the saved form is damaged, the host must start again with an empty sketch.
        sketch = self._sketches[host] = HostSketch()
        if saved is not None:
            try:
                sketch = self._sketches[host] = HostSketch.from_bytes(saved)
            except ValueError as error:
                raise ValueError(f"The saved template of {host} is unusable: {error}") from error
        return sketch

    def _save_one(self, host: str, sketch: HostSketch) -> None:
        if sketch.is_changed and sketch.has_template:
            self._save(host, sketch.to_bytes())
            sketch.is_changed = False


class HostSketch:
    """Approximate counts of the pages of one host on which each shingle occurs.

    ``is_changed``: pages were counted since creation or since :class:`TemplateGuard` last saved the sketch.
    """

    __slots__ = (
        "_counters",
        "_needed",
        "_needed_common",
        "_needed_shared",
        "_pages",
        "_touched",
        "is_changed",
    )

    def __init__(self) -> None:
        self._counters = np.zeros(SLOTS, dtype=np.uint8)
        self._pages = 0
        self._touched = 0
        self._set_needed()
        self.is_changed = False

    @property
    def pages(self) -> int:
        """The number of counted pages, reduced by halving: at most 254."""
        return self._pages

    @property
    def has_template(self) -> bool:
        """Whether any shingle is template."""
        return bool(self._counters.max() >= self._needed)

    def template(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of the shingle hashes are template."""
        return self.classify(hashes)[0]

    def is_shared(self, hashes: Iterable[int]) -> bool:
        """Whether a name is on many pages, given by its few hashes: all of them are common, and on 10 % of the pages."""
        return all(self._counters[number >> _SHIFT] >= self._needed_shared for number in hashes)

    def first_own(self, hashes: Hashes) -> int | None:
        """The place of the first of *hashes* that is not common; None if there is none, or too few pages were counted."""
        if self._pages < _FEWEST or not len(hashes):
            return None
        is_own = self._counters[hashes >> np.uint32(_SHIFT)] < self._needed_common
        place = int(is_own.argmax())
        return place if is_own[place] else None

    def classify(self, hashes: Hashes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of the shingle hashes are template, and which are common (on several pages, and not by chance).

        If only a few pages in a hundred belong to a calendar, the text that its months share is common, but not
        template.
        """
        is_template, is_common = np.zeros((2, len(hashes)), dtype=np.bool_)
        if self._pages >= _FEWEST:
            classify(self._counters, hashes, self._needed, self._needed_common, is_template, is_common)
        return is_template, is_common

    def count(self, hashes: Hashes) -> None:
        """Count a page, given by its shingle hashes in any order."""
        self._touched += add_page(self._counters, hashes)
        self._pages += 1
        if self._pages >= MOST_PAGES:
            self._counters >>= np.uint8(1)
            self._pages //= 2
            self._touched //= 2
        self._set_needed()
        self.is_changed = True

    def _set_needed(self) -> None:
        self._needed, self._needed_shared, self._needed_common = _needed(self._pages, self._touched)

    def to_bytes(self) -> bytes:
        """The saved form."""
        bits = np.packbits(self._counters >= self._needed, bitorder="little")
        body = _COUNTS.pack(self._pages, self._touched) + bits.tobytes()
        return _HEAD.pack(_MAGIC, VERSION) + zlib.compress(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> HostSketch:
        """Read the output of :meth:`to_bytes`. Raises ValueError with the reason for any other data."""
        body = _body(data)
        pages, touched = _COUNTS.unpack_from(body)
        if not _FEWEST <= pages < MOST_PAGES or touched > pages * SLOTS:
            raise ValueError(f"it counts {pages} pages and {touched} touched counters, which is impossible.")
        sketch = cls()
        sketch._pages = min(pages, _LOADED_PAGES)
        sketch._touched = touched * sketch._pages // pages
        sketch._set_needed()
        bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8, offset=_COUNTS.size), bitorder="little")
        np.multiply(bits, np.uint8(sketch._pages), out=sketch._counters)
        return sketch


# What the compiled kernel does faster.


def _classify(
    counters: NDArray[np.uint8],
    hashes: Hashes,
    needed: int,
    needed_common: int,
    is_template: NDArray[np.bool_],
    is_common: NDArray[np.bool_],
) -> None:
    """Fill *is_template* and *is_common*: whether the counters of *hashes* have reached the two numbers."""
    selected = counters.take(hashes >> np.uint32(_SHIFT))
    np.greater_equal(selected, needed, out=is_template)
    np.greater_equal(selected, needed_common, out=is_common)


def _add_page(counters: NDArray[np.uint8], hashes: Hashes) -> int:
    """Add 1 to every counter that one of *hashes* selects, and return the number of these counters."""
    # Far cheaper than finding the distinct slots: clearing and adding 64 kB takes a few microseconds.
    touched = np.zeros(SLOTS, dtype=np.uint8)
    # Indexing by another type takes twice as long.
    touched[(hashes >> np.uint32(_SHIFT)).astype(np.intp)] = 1
    counters += touched
    return int(np.count_nonzero(touched))


classify: Final = kernel.function("classify", _classify)
add_page: Final = kernel.function("add_page", _add_page)


def _needed(pages: int, touched: int) -> list[int]:
    """The smallest counters of a template shingle, of a shared name and of a common shingle.

    Higher than any counter while there are too few pages.
    """
    if pages < _FEWEST:
        return 3 * [MOST_PAGES]
    chance = touched / (pages * SLOTS)
    beyond_chance = _beyond_chance(pages, touched)
    counts = [max(pages * (chance + (1 - chance) * share), beyond_chance) for share in _SHARES]
    # Rounded, so that a floating-point error just above a whole number does not require one page more.
    return [min(MOST_PAGES, max(_FEWEST, math.ceil(round(count, 9)))) for count in counts]


def _beyond_chance(pages: int, touched: int) -> float:
    """A count that is rarely reached by chance."""
    expected = touched / SLOTS
    return expected + _DEVIATIONS * math.sqrt(expected * (1 - expected / pages))


def _body(data: bytes) -> bytes:
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise ValueError("it does not start with the magic bytes of a saved template.")
    version = _HEAD.unpack_from(data)[1]
    if version != VERSION:
        raise ValueError(f"it has format version {version}; this version reads {VERSION}.")
    inflater = zlib.decompressobj()
    try:
        # Decompressing one byte more than expected is enough to detect a larger body, and bounds the memory.
        body = inflater.decompress(data[_HEAD.size :], _BODY_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"it is damaged ({error}).") from error
    if len(body) != _BODY_BYTES or not inflater.eof:
        raise ValueError(f"it is truncated, or longer than the expected {_BODY_BYTES} bytes.")
    if inflater.unused_data:
        raise ValueError(f"{len(inflater.unused_data)} extra bytes follow its end.")
    return body
