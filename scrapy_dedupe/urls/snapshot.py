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
        with path.open("rb") as file:
            start = file.read(_START.size).ljust(_START.size)
            magic, version, head_size = _START.unpack(start)
            if magic != _MAGIC:
                raise StoreRefused(_damaged(path))
            if version != VERSION:
                raise StoreRefused(other_version(path, version, VERSION))
            file.seek(0)
            checksum, size = hashlib.sha256(), os.fstat(file.fileno()).st_size
            for part in _parts(file, size - _CHECKSUM_BYTES):
                checksum.update(part)
            if file.read() != checksum.digest():
                raise StoreRefused(_damaged(path))
            file.seek(_START.size)
            head = json.loads(file.read(head_size))
            layers = [(layer.pop("count"), Geometry(**layer)) for layer in head["layers"]]
            filter_ = GrowingBloomFilter.from_layers(
                head["capacity"],
                head["error_rate"],
                ((geometry, count, _parts(file, geometry.size_bytes)) for count, geometry in layers),
            )
        if head["fingerprinter"] != fingerprinter:
            raise StoreRefused(other_fingerprinter(path, head["fingerprinter"], fingerprinter))
        return cls(filter_, fingerprinter, head["done_bytes"], head["seen_bytes"], head["exact"])


def _parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (part := file.read(min(size, _PART_BYTES))):
        size -= len(part)
        yield part


def _damaged(path: Path) -> str:
    return (
        f"The URL filter {path} is damaged. Delete it to continue from {path.with_name('urls.done')} (pages that were "
        "not done or had new links are then requested again), or use another JOBDIR."
    )
