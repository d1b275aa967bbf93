"""Scrapy's own files in JOBDIR: its queue, and both formats of its file of fingerprints, ``requests.seen``.

Up to version 2.18 Scrapy writes a line of hexadecimal digits for each fingerprint. Since 2.19 it writes a record: the
size of the fingerprint in two bytes, big-endian, and the fingerprint. A file may start with lines and continue with
records, since 2.19 appends to the file of an earlier version. The file lists the enqueued requests in their order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MAX_LINE_BYTES = 2 * 0xFFFF + 2
_HEX_LINE = re.compile(rb"((?:[0-9a-fA-F]{2})+)\r?\n")
_PARTIAL_HEX_LINE = re.compile(rb"[0-9a-fA-F]+\r?")
# Two printable ASCII characters read as a size give at least this number, so a larger size means text.
_MIN_TEXT_SIZE = 0x2020
_PART_BYTES = 1 << 16

SCRAPY_NAME = "requests.seen"
SCRAPY_QUEUE_NAME = "requests.queue"


def read_requests_seen(file: BinaryIO) -> Iterator[bytes]:
    r"""The fingerprints in an open ``requests.seen`` of any Scrapy version.

    Stops where the file is truncated or damaged and leaves the file position there; see :func:`unread_from`.
    Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the start of the file has neither of the two formats.

    >>> import io
    >>> list(read_requests_seen(io.BytesIO(b"0102\n0304\n" + b"\x00\x02\x05\x06" + b"\x00\x02\x07")))
    [b'\x01\x02', b'\x03\x04', b'\x05\x06']
    """
    start = end = file.tell()
    while line := _HEX_LINE.fullmatch(file.readline(_MAX_LINE_BYTES)):
        yield bytes.fromhex(line[1].decode())
        end = file.tell()
    file.seek(end)
    while True:
        size = int.from_bytes(file.read(2), "big")
        # A power failure may leave zeros, but no fingerprint is empty.
        if not 0 < size < _MIN_TEXT_SIZE:
            break
        fingerprint = file.read(size)
        if len(fingerprint) < size:
            break
        yield fingerprint
        end = file.tell()
    file.seek(end)
    if end == start and not _may_be_truncated(file):
        raise StoreRefused(
            f"{getattr(file, 'name', SCRAPY_NAME)} is not a file of Scrapy's dupefilter: it has neither lines of "
            "hexadecimal digits (Scrapy before 2.19) nor records of a size and a fingerprint. Replace it with the "
            "right file, or move it away to start without it."
        )
    file.seek(end)


def unread_from(file: BinaryIO) -> int | None:
    """The offset at which :func:`read_requests_seen` stopped; None if it read the whole file."""
    end = file.tell()
    return end if file.read(1) else None


def _may_be_truncated(file: BinaryIO) -> bool:
    """Whether the rest of the file is empty, only zeros, or may be the start of an incomplete fingerprint."""
    rest = file.read(_MAX_LINE_BYTES)
    size = int.from_bytes(rest[:2].ljust(2, b"\0"), "big")
    if _PARTIAL_HEX_LINE.fullmatch(rest) or 0 < size < _MIN_TEXT_SIZE:
        return True
    while rest and not any(rest):
        rest = file.read(_PART_BYTES)
    return not rest


def write_requests_seen(file: BinaryIO, fingerprints: Iterable[bytes], *, as_text: bool) -> int:
    r"""Write fingerprints as lines (``as_text``) or as records; return their number.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_requests_seen(file, [b"\x01\x02"], as_text=True), write_requests_seen(file, [b"\x03"], as_text=False)
    (1, 1)
    >>> file.getvalue()
    b'0102\n\x00\x01\x03'
    """
    count = 0
    for fingerprint in fingerprints:
        if as_text:
            file.write(fingerprint.hex().encode() + b"\n")
        else:
            file.write(len(fingerprint).to_bytes(2, "big") + fingerprint)
        count += 1
    return count


def set_aside(queue: Path) -> Path:
    """Rename Scrapy's queue, which a kill may have damaged, and return its new path.

    Scrapy would try to read a damaged queue in an endless loop. The requests in it are found again from the start
    requests. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """
    number = 1
    while (aside := queue.with_name(f"{queue.name}.cut-{number}")).exists():
        number += 1
    try:
        return queue.rename(aside)
    except OSError as exc:
        raise StoreUnavailable(
            f"Scrapy's queue {queue} may be damaged by a kill and could not be renamed: {exc}. Move it away."
        ) from exc
