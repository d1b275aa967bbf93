"""The snapshot of a URL filter: one file with its bits and a checksum, replaced atomically.

::

    magic        8 bytes   "sd-bloom"
    version      2 bytes   3
    zero         2 bytes
    head size    4 bytes
    head                   JSON, UTF-8, keys sorted, no spaces: capacity, error_rate, fingerprinter, exact (number of
                           fingerprints in the exact set, null if there was none), done_bytes and seen_bytes
                           (sizes of the two journals), layers: oldest first, each with capacity, count,
                           error_rate, hashes, slice_bits
    bits                   of each layer, least significant bit first, padded to whole bytes
    checksum     32 bytes  SHA-256 of all the above

All numbers are little-endian. The file is written as a temporary file, synced and renamed, so that it is either
complete or missing. :mod:`~scrapy_dedupe.urls.folder` describes when it exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.urls.bloom import Geometry, GrowingBloomFilter
from scrapy_dedupe.urls.journal import other_fingerprinter, other_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = 3

_MAGIC = b"sd-bloom"
_START = struct.Struct("<8sHxxI")
_PART_BYTES = 1 << 20
_CHECKSUM_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class FilterSnapshot:
    """A filter at a clean stop, with the sizes of its journals and the count of its exact set (None without one)."""

    filter: GrowingBloomFilter
    fingerprinter: str
    done_bytes: int
    seen_bytes: int
    exact: int | None = None

    def write(self, path: Path) -> None:
        """Write the snapshot to ``path`` and replace an existing file. Raises OSError; the old file is then unchanged."""
        layers = self.filter.dump_layers()
        head = json.dumps(
            {
                "capacity": self.filter.capacity,
                "done_bytes": self.done_bytes,
                "error_rate": self.filter.error_rate,
                "exact": self.exact,
                "fingerprinter": self.fingerprinter,
                "layers": [{**asdict(geometry), "count": count} for geometry, count, _ in layers],
                "seen_bytes": self.seen_bytes,
            },
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
        start = _START.pack(_MAGIC, VERSION, len(head))
        checksum = hashlib.sha256()
        with whole_file.replacing(path, suffix=".tmp") as file:
            for part in chain((start, head), *(parts for _, _, parts in layers)):
                checksum.update(part)
                file.write(part)
            file.write(checksum.digest())

    @classmethod
    def read(cls, path: Path, fingerprinter: str) -> FilterSnapshot:
        """Read the snapshot at ``path``.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if it is damaged or has another format version or
        fingerprinter; OSError if it cannot be read.
        """
        with path.open("rb") as stream:
            file = _Checked(stream, path)
            magic, version, head_size = _START.unpack(file.read(_START.size))
            if magic != _MAGIC:
                raise StoreRefused(_damaged(path))
            if version != VERSION:
                raise StoreRefused(other_version(path, version, VERSION))
            try:
                head = json.loads(file.read(head_size))
                other = head["fingerprinter"]
                layers = [(layer.pop("count"), Geometry(**layer)) for layer in head["layers"]]
                filter_ = GrowingBloomFilter.from_layers(
                    head["capacity"],
                    head["error_rate"],
                    ((geometry, count, file.parts(geometry.size_bytes)) for count, geometry in layers),
                )
                snapshot = cls(filter_, other, head["done_bytes"], head["seen_bytes"], head["exact"])
            except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError, MemoryError) as exc:
                # The checksum at the end is not checked yet, so the data read so far may be damaged.
                raise StoreRefused(_damaged(path)) from exc
            file.check()
        if other != fingerprinter:
            raise StoreRefused(other_fingerprinter(path, other, fingerprinter))
        return snapshot


class _Checked:
    """Reads a snapshot in parts from its start to the checksum at its end.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the file is too short.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = os.fstat(file.fileno()).st_size - _CHECKSUM_BYTES
        self._checksum = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size) if size <= self._left else b""
        if len(data) < size:
            raise StoreRefused(_damaged(self._path))
        self._left -= size
        self._checksum.update(data)
        return data

    def parts(self, size: int) -> Iterator[bytes]:
        while size:
            part = self.read(min(size, _PART_BYTES))
            size -= len(part)
            yield part

    def check(self) -> None:
        """Compare the checksum. Call this after reading everything before it."""
        if self._left or self._file.read() != self._checksum.digest():
            raise StoreRefused(_damaged(self._path))


def _damaged(path: Path) -> str:
    return (
        f"The URL filter {path} is damaged. Delete it to continue from {path.with_name('urls.done')} (pages that were "
        "not done or had new links are then requested again), or use another JOBDIR."
    )
