"""What a URL filter keeps in a job's folder: ``urls.bloom``, the snapshot, and ``urls.done``, the journal.

A clean stop and a kill leave different things behind. After a clean stop Scrapy's own queue is on disk, so
everything that was ever enqueued counts as seen: that is the snapshot. After a kill the queue may be gone, so
only requests count as seen that were *done*, whose callback has ended, and whose page brought nothing new: that
is the journal. Pages that brought something new are asked again and show the way to what was lost
(:mod:`~scrapy_dedupe.urls.done`). A kill therefore costs requests that are made twice, never a page that nobody
asks for.

**Which stop it was.** The snapshot is written at a clean stop alone and is removed by the next run once it is
read, before that run records anything. So at the start of a run: a snapshot means a clean stop; a journal
without one means a kill; neither means a new job. The snapshot is written under the name ``urls.bloom.tmp``,
synced and renamed, so that it is either there in whole or not there.

**The journal** is described in :mod:`~scrapy_dedupe.urls.journal`. All numbers are little-endian.

**The snapshot**::

    magic        8 bytes   "sd-bloom"
    version      2 bytes   1
    byte order   1 byte    "<" or ">", that of the machine: pybloom-live hashes differently on each
    zero         1 byte
    head size    4 bytes
    head                   JSON, UTF-8, keys sorted, no spaces: capacity, error_rate, fingerprinter,
                           journal_bytes (size of urls.done at that stop), layers: oldest first, each with
                           capacity, count, error_rate, hashes, slice_bits
    bits                   of each layer, first bit lowest, padded to whole bytes
    checksum     32 bytes  SHA-256 of all the above

Scrapy's own file, ``requests.seen``, is taken over by a new job's folder: lines of hexadecimal digits until
Scrapy 2.18, records as in the journal since 2.19, or the one after the other. It says what was enqueued, not
what was done, so it goes into the filter and not into the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.urls.bloom import Geometry, GrowingBloomFilter
from scrapy_dedupe.urls.journal import (
    Journal,
    other_fingerprinter,
    other_version,
    read_records,
    sync_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SNAPSHOT_NAME = "urls.bloom"
JOURNAL_NAME = "urls.done"
SCRAPY_NAME = "requests.seen"
SCRAPY_QUEUE_NAME = "requests.queue"
VERSION = 1

_SNAPSHOT_MAGIC = b"sd-bloom"
_SNAPSHOT_START = struct.Struct("<8sHcxI")
_BYTE_ORDER = b"<" if sys.byteorder == "little" else b">"
_HEX_LINE = re.compile(rb"((?:[0-9a-fA-F]{2})+)\r?\n")


class LastStop(Enum):
    """How the run before this one ended."""

    NONE = "none"
    CLEAN = "clean"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Opened:
    """A filter as a run finds it.

    ``taken_over`` is the number of fingerprints from Scrapy's own file, ``cut_bytes`` the size of a torn end
    of the journal. ``notes`` are sentences for the log.
    """

    filter: GrowingBloomFilter
    last_stop: LastStop
    taken_over: int = 0
    cut_bytes: int = 0
    notes: tuple[str, ...] = ()


class FilterFolder:
    """The two files of one job. One process at a time: the journal is locked while it is open.

    ``folder`` is made when needed; ``fingerprinter`` is the import path of the class that makes the
    fingerprints; ``scrapy_file`` is where Scrapy's own filter would have left its fingerprints, and
    ``scrapy_queue`` where its scheduler keeps its queue.
    """

    def __init__(
        self,
        folder: Path,
        fingerprinter: str,
        scrapy_file: Path | None = None,
        scrapy_queue: Path | None = None,
    ) -> None:
        self.folder = folder
        self.scrapy_queue = scrapy_queue
        self.fingerprinter = fingerprinter
        self.scrapy_file = scrapy_file
        self.snapshot = folder / SNAPSHOT_NAME
        self._journal = Journal(folder / JOURNAL_NAME, fingerprinter)

    @classmethod
    def in_job(cls, jobdir: Path, fingerprinter: str) -> FilterFolder:
        """The folder of the job in Scrapy's ``JOBDIR``."""
        return cls(
            jobdir / "dedupe" / "urls", fingerprinter, jobdir / SCRAPY_NAME, jobdir / SCRAPY_QUEUE_NAME
        )

    def set_queue_aside(self) -> Path | None:
        """After a kill, and before the scheduler opens it, give Scrapy's queue another name; that name.

        The files of the queue may be torn, and Scrapy then tries to read them without end. What was in it is
        found again from the start requests on, see above. Raises what :meth:`open` raises.
        """
        queue = self.scrapy_queue
        if queue is None or not queue.exists() or self.snapshot.exists() or not self._journal.path.exists():
            return None
        try:
            self._journal.lock()
            try:
                if self._journal.is_new():
                    return None
                number = 1
                while (aside := queue.with_name(f"{queue.name}.cut-{number}")).exists():
                    number += 1
                return queue.rename(aside)
            finally:
                self._journal.close()
        except OSError as exc:
            raise StoreUnavailable(
                f"Scrapy's queue {queue} may be torn by a kill and could not be set aside: {exc}. Move it away."
            ) from exc

    def open(self, capacity: int, error_rate: float) -> Opened:
        """The filter of the last run, or a new one with these parameters; from here on this run owns it.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` when a file is damaged, or was made with another
        error rate or fingerprinter; :class:`~scrapy_dedupe.errors.StoreUnavailable` when it cannot be read or
        written; :class:`~scrapy_dedupe.errors.ArchiveError` when another process has it open. Nothing is
        changed then.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._journal.lock()
            try:
                return self._open(capacity, error_rate)
            except BaseException:
                self._journal.close()
                raise
        except OSError as exc:
            raise StoreUnavailable(
                f"The URL filter in {self.folder} cannot be used: {exc}. Make the folder readable and writable, "
                "or run without JOBDIR."
            ) from exc

    def _open(self, capacity: int, error_rate: float) -> Opened:
        notes = []
        if self.snapshot.exists():
            filter_, journal_bytes = self._read_snapshot(error_rate)
            if filter_.capacity != capacity:
                notes.append(
                    f"The URL filter in {self.snapshot} was made for {filter_.capacity:,} fingerprints, now "
                    f"{capacity:,} are asked for. It keeps its size, and grows when it is full."
                )
            cut = self._journal.open(journal_bytes)
            # From the next line on a kill counts as one. Nothing was recorded until here.
            self.snapshot.unlink()
            sync_folder(self.folder)
            return Opened(filter_, LastStop.CLEAN, cut_bytes=cut, notes=tuple(notes))
        filter_ = GrowingBloomFilter(capacity, error_rate)
        if self._journal.is_new():
            taken_over = 0
            if self.scrapy_file is not None and self.scrapy_file.exists():
                data = self.scrapy_file.read_bytes()
                taken_over = sum(filter_.add(fingerprint) for fingerprint in read_requests_seen(data))
            self._journal.open()
            return Opened(filter_, LastStop.NONE, taken_over)
        cut = self._journal.open()
        for fingerprint in self._journal.fingerprints():
            filter_.add(fingerprint)
        return Opened(filter_, LastStop.CUT, cut_bytes=cut)

    def record_done(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints of requests that are done and brought nothing new. They survive a kill of the process from here on.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the disk does not take them; what was
        recorded before stays whole, and later calls do nothing.
        """
        self._journal.append(fingerprints)

    def close(self, filter_: GrowingBloomFilter) -> None:
        """End the run cleanly: write the snapshot and give the folder back. Safe to repeat.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the snapshot cannot be written; the next
        run then goes by the journal.
        """
        if not self._journal.is_open:
            return
        temporary = self.snapshot.with_name(SNAPSHOT_NAME + ".tmp")
        try:
            self._journal.sync()
            with temporary.open("wb") as file:
                for part in snapshot_parts(filter_, self.fingerprinter, self._journal.size_bytes):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.snapshot)
            sync_folder(self.folder)
        except OSError as exc:
            temporary.unlink(missing_ok=True)
            raise StoreUnavailable(
                f"The URL filter could not be saved to {self.snapshot}: {exc}. The next run will ask again for "
                "pages that were not done or that brought new links. Make room on the disk."
            ) from exc
        finally:
            self._journal.close()

    def clear(self) -> None:
        """Forget what is done, in an open folder."""
        self._journal.clear()

    def abandon(self) -> None:
        """Give the folder back as a kill would leave it."""
        self._journal.close()

    def _read_snapshot(self, error_rate: float) -> tuple[GrowingBloomFilter, int]:
        head, layers = parse_snapshot(self.snapshot.read_bytes(), self.snapshot)
        if head["fingerprinter"] != self.fingerprinter:
            raise StoreRefused(other_fingerprinter(self.snapshot, head["fingerprinter"], self.fingerprinter))
        if head["error_rate"] != error_rate:
            raise StoreRefused(
                f"The URL filter {self.snapshot} was made with an error rate of {head['error_rate']!r}, the "
                f"setting DEDUPE_URL_ERROR_RATE is {error_rate!r}. Use {head['error_rate']!r}, or another JOBDIR."
            )
        return GrowingBloomFilter.from_layers(head["capacity"], head["error_rate"], layers), head[
            "journal_bytes"
        ]


def snapshot_parts(filter_: GrowingBloomFilter, fingerprinter: str, journal_bytes: int) -> Iterator[bytes]:
    """The bytes of a snapshot, in parts."""
    layers = filter_.dump_layers()
    head = json.dumps(
        {
            "capacity": filter_.capacity,
            "error_rate": filter_.error_rate,
            "fingerprinter": fingerprinter,
            "journal_bytes": journal_bytes,
            "layers": [
                {
                    "capacity": geometry.capacity,
                    "count": count,
                    "error_rate": geometry.error_rate,
                    "hashes": geometry.hashes,
                    "slice_bits": geometry.slice_bits,
                }
                for geometry, count, _ in layers
            ],
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    checksum = hashlib.sha256()
    for part in (
        _SNAPSHOT_START.pack(_SNAPSHOT_MAGIC, VERSION, _BYTE_ORDER, len(head)),
        head,
        *(bits for _, _, bits in layers),
    ):
        checksum.update(part)
        yield part
    yield checksum.digest()


def parse_snapshot(data: bytes, path: Path) -> tuple[dict[str, Any], list[tuple[Geometry, int, bytes]]]:
    """Head and layers of a snapshot. Raises :class:`~scrapy_dedupe.errors.StoreRefused`, naming ``path``."""
    if len(data) < _SNAPSHOT_START.size or not data.startswith(_SNAPSHOT_MAGIC):
        raise StoreRefused(_damaged(path))
    _, version, byte_order, head_size = _SNAPSHOT_START.unpack_from(data)
    if version != VERSION:
        raise StoreRefused(other_version(path, version, VERSION))
    body = memoryview(data)[:-32]
    if hashlib.sha256(body).digest() != data[-32:]:
        raise StoreRefused(_damaged(path))
    if byte_order != _BYTE_ORDER:
        raise StoreRefused(
            f"The URL filter {path} was written on a machine of the other byte order and cannot be read here. "
            "Go on with this job on such a machine, or use another JOBDIR."
        )
    offset = _SNAPSHOT_START.size + head_size
    head = json.loads(data[_SNAPSHOT_START.size : offset])
    layers = []
    for layer in head["layers"]:
        geometry = Geometry(layer["capacity"], layer["error_rate"], layer["hashes"], layer["slice_bits"])
        layers.append((geometry, layer["count"], data[offset : offset + geometry.size_bytes]))
        offset += geometry.size_bytes
    return head, layers


def read_requests_seen(data: bytes) -> Iterator[bytes]:
    r"""The fingerprints in Scrapy's ``requests.seen``, whichever version wrote it; a torn end is left out.

    >>> list(read_requests_seen(b"0102\n0304\n" + b"\x00\x02\x05\x06" + b"\x00\x02\x07"))
    [b'\x01\x02', b'\x03\x04', b'\x05\x06']
    """
    offset = 0
    # A size in two bytes that looks like hexadecimal digits would be one of 12,336 bytes or more.
    while line := _HEX_LINE.match(data, offset):
        yield bytes.fromhex(line[1].decode())
        offset = line.end()
    yield from read_records(data[offset:])


def _damaged(path: Path) -> str:
    return (
        f"The URL filter {path} is damaged. Delete it to go on from {path.with_name(JOURNAL_NAME)} (pages that were "
        "not done or that brought new links are then asked for again), or use another JOBDIR."
    )
