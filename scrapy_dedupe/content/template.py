"""What a host puts on many of its pages, told from what a page says itself.

Most near copies that shingles find on one site are no copies: the pages share their navigation, header and footer,
and say little else (Henzinger, *Finding near-duplicate web pages*, SIGIR 2006, found that on the pages of one site
both shingles and SimHash are wrong more often than right). So it is counted, host by host, on how many pages each
shingle occurs; one that occurs on many is *template* there, and the judge asks of two pages that they are near
without their template too.

**Sketch.** A host has 65,536 counters of 8 bits. The counter of a shingle is the one at the highest 16 bits of its
hash, and each page adds 1 to every counter that one of its shingles has. When 255 pages were counted, the number
of pages and all counters are halved: no counter ever overflows, none exceeds the number of pages, and what a site
no longer shows is forgotten. The sketch is one row of a count-min sketch (Cormode and Muthukrishnan, *An improved
data stream summary: the count-min sketch and its applications*, 2005), so a shingle is never counted too low, and
too high only as far as others share its counter.

**Template.** Let n be the number of pages counted, and f the mean part of the counters that a page touches: what
a counter gets by chance. A shingle is template if its counter has reached all of

- 4;
- n (f + 0.15 (1 - f)): it is on 15 % of the pages, chance apart;
- n f + 4 sqrt(n f (1 - f)): chance alone would be four standard deviations off (the pages need not be of one
  size for that, their variance is then smaller still), so that a host of huge pages is not all template.

**Guarantees.** A page has no influence on what is told of it before it is counted. The same pages in the same
order give the same answers. A host of fewer than 4 counted pages has no template: its first pages are judged
without one, since nothing can be known of them, and what they are kept with is not mended later.

**Limits.** Pages that say the same but for a few words, one after the other without end (a calendar), look to a
host's counters exactly as a template does, and are not called near any more once they are 15 % of its pages. The judge
says of them that they have hardly a word of their own: the report counts such pages, by the patterns of their URLs.

**Bounds.** 64 kB a host and 256 hosts make 16 MB. The host that was not used for longest makes way; it is saved if
it has a template, and what is known of a host without one is lost.

**Saved form**, at most 8.3 kB and mostly under 3::

    magic        8 bytes   "sd-templ"
    version      2 bytes   1
    body                   zlib: the number of pages (2 bytes), the number of counters that they touched (4 bytes),
                           8,192 bytes with one bit for each counter, first counter in the lowest bit: 1 if its
                           shingles are template

All numbers are little-endian; zlib's checksum covers the body. What is loaded goes on as if of the pages (64 of
them at most, for newer pages to have their say) template were on all and everything else on none.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .signature import Hashes

VERSION: Final = 1

# A page with fewer shingles of its own than this is not compared on a host with a template: it would be near to
# every other page that is as empty.
MIN_RARE: Final = 16

# About ten words in a row. Pages of manuals are rarely that short; the months of a calendar, and answers that
# something is not there, are.
MIN_OWN: Final = 64

SLOTS: Final = 65_536
MOST_PAGES: Final = 255

_SHIFT: Final = 16
_FEWEST: Final = 4
_SHARE: Final = 0.15
_DEVIATIONS: Final = 4

# Of that many pages at most, what was saved speaks for.
_LOADED_PAGES: Final = 64

_MAGIC: Final = b"sd-templ"
_HEAD: Final = struct.Struct("<8sH")
_COUNTS: Final = struct.Struct("<HI")
_BODY_BYTES: Final = _COUNTS.size + SLOTS // 8


class TemplateGuard:
    """Tells which shingles are template on their hosts. To be used from one thread at a time.

    ``load`` gives what ``save`` was given last for a host, or None; what they raise is passed on, and leaves the
    guard as it was. Of several processes with one store, the last one to save a host is heard.
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
        """Which of a page's shingle hashes are template on that host now; none while too little is known.

        Raises ValueError if what was saved of the host is damaged. That is said once: from then on the host is a
        new one, and what is learnt of it replaces what was saved.
        """
        return self._sketch(host).template(hashes)

    def look_at(self, host: str, hashes: Hashes) -> tuple[NDArray[np.bool_], bool]:
        """What :meth:`template` tells, and whether the page is bare.

        It is if it has hardly a word besides what is on several others of that host, and more of the latter.
        """
        is_template, is_common = self._sketch(host).look_at(hashes)
        own = len(hashes) - int(np.count_nonzero(is_common))
        return is_template, own < MIN_OWN and 2 * own < len(hashes)

    def count(self, host: str, hashes: Hashes) -> None:
        """Count a page of that host, given by its shingle hashes.

        Raises ValueError as :meth:`template` does.
        """
        self._sketch(host).count(hashes)

    def save(self) -> None:
        """Hand every host with a template to ``save``, if pages were counted since that was done last."""
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
        # A damaged form must not stand in the way of the host's pages for ever.
        sketch = self._sketches[host] = HostSketch()
        if saved is not None:
            try:
                sketch = self._sketches[host] = HostSketch.from_bytes(saved)
            except ValueError as error:
                raise ValueError(f"What was saved of the template of {host} is of no use: {error}") from error
        return sketch

    def _save_one(self, host: str, sketch: HostSketch) -> None:
        if sketch.is_changed and sketch.has_template:
            self._save(host, sketch.to_bytes())
            sketch.is_changed = False


class HostSketch:
    """On how many pages of one host each shingle occurs, about.

    ``is_changed``: pages were counted since it was made, or since whoever saves it set this back.
    """

    __slots__ = ("_counters", "_needed", "_pages", "_touched", "is_changed")

    def __init__(self) -> None:
        self._counters = np.zeros(SLOTS, dtype=np.uint8)
        self._pages = 0
        self._touched = 0
        self._needed = _needed(0, 0)
        self.is_changed = False

    @property
    def pages(self) -> int:
        """The number of pages counted, as far as they are not forgotten: at most 254."""
        return self._pages

    @property
    def has_template(self) -> bool:
        """Whether any shingle is template."""
        return bool(self._counters.max() >= self._needed)

    def template(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of the shingle hashes are template."""
        return self.look_at(hashes)[0]

    def look_at(self, hashes: Hashes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of the shingle hashes are template, and which are common: on several pages, chance apart.

        A calendar may be a few of a hundred pages; what its months share is common and no template then.
        """
        if self._pages < _FEWEST:
            return np.zeros(len(hashes), dtype=np.bool_), np.zeros(len(hashes), dtype=np.bool_)
        counters = self._counters[hashes >> np.uint32(_SHIFT)]
        needed = max(_FEWEST, math.ceil(round(_beyond_chance(self._pages, self._touched), 9)))
        return counters >= self._needed, counters >= needed

    def count(self, hashes: Hashes) -> None:
        """Count a page, given by its shingle hashes in any order."""
        # Far cheaper than to find the distinct slots: 64 kB are cleared and added in a few microseconds.
        touched = np.zeros(SLOTS, dtype=np.uint8)
        touched[hashes >> np.uint32(_SHIFT)] = 1
        self._counters += touched
        self._pages += 1
        self._touched += int(np.count_nonzero(touched))
        if self._pages >= MOST_PAGES:
            self._counters >>= np.uint8(1)
            self._pages //= 2
            self._touched //= 2
        self._needed = _needed(self._pages, self._touched)
        self.is_changed = True

    def to_bytes(self) -> bytes:
        """The saved form."""
        bits = np.packbits(self._counters >= self._needed, bitorder="little")
        body = _COUNTS.pack(self._pages, self._touched) + bits.tobytes()
        return _HEAD.pack(_MAGIC, VERSION) + zlib.compress(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> HostSketch:
        """What :meth:`to_bytes` gave. Raises ValueError, which says what is wrong, for anything else."""
        body = _body(data)
        pages, touched = _COUNTS.unpack_from(body)
        if not _FEWEST <= pages < MOST_PAGES or touched > pages * SLOTS:
            raise ValueError(f"it counts {pages} pages and {touched} touches, which cannot be.")
        sketch = cls()
        sketch._pages = min(pages, _LOADED_PAGES)
        sketch._touched = touched * sketch._pages // pages
        sketch._needed = _needed(sketch._pages, sketch._touched)
        bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8, offset=_COUNTS.size), bitorder="little")
        np.multiply(bits, np.uint8(sketch._pages), out=sketch._counters)
        return sketch


def _needed(pages: int, touched: int) -> int:
    """The smallest counter that makes template; more than any counter has if nothing can be told from chance."""
    if pages < _FEWEST:
        return MOST_PAGES
    chance = touched / (pages * SLOTS)
    share = pages * (chance + (1 - chance) * _SHARE)
    beyond_chance = _beyond_chance(pages, touched)
    # Rounded, so that a sum that is whole but for the last bit of its fraction does not need one page more.
    return min(MOST_PAGES, max(_FEWEST, math.ceil(round(max(share, beyond_chance), 9))))


def _beyond_chance(pages: int, touched: int) -> float:
    """How high a counter hardly gets by chance."""
    expected = touched / SLOTS
    return expected + _DEVIATIONS * math.sqrt(expected * (1 - expected / pages))


def _body(data: bytes) -> bytes:
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one that scrapy-dedupe saved.")
    version = _HEAD.unpack_from(data)[1]
    if version != VERSION:
        raise ValueError(f"it has the format version {version}, this one reads {VERSION}.")
    inflater = zlib.decompressobj()
    try:
        # One byte more than there should be is enough to know, however much a hostile one would unpack to.
        body = inflater.decompress(data[_HEAD.size :], _BODY_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"it is damaged ({error}).") from error
    if len(body) != _BODY_BYTES or not inflater.eof:
        raise ValueError(f"it is cut, or has more than the {_BODY_BYTES} bytes that belong there.")
    if inflater.unused_data:
        raise ValueError(f"{len(inflater.unused_data)} bytes follow its end.")
    return body
