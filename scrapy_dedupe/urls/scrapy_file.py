"""Scrapy's own file of fingerprints, ``requests.seen``, read in both forms and written in both.

Scrapy until 2.18 writes a line of hexadecimal digits for each fingerprint. Since 2.19 it writes the size of the
fingerprint in two bytes, big-endian, and the fingerprint, and it reads both forms. A file may begin with lines and
go on with records. Fingerprints are those of enqueued requests, in the order in which they were made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_LINE_BYTES = 2 * 0xFFFF + 2
_HEX_LINE = re.compile(rb"((?:[0-9a-fA-F]{2})+)\r?\n")


def read_requests_seen(file: BinaryIO) -> Iterator[bytes]:
    r"""The fingerprints in an open ``requests.seen``, whichever version wrote it; a torn end is left out.

    >>> import io
    >>> list(read_requests_seen(io.BytesIO(b"0102\n0304\n" + b"\x00\x02\x05\x06" + b"\x00\x02\x07")))
    [b'\x01\x02', b'\x03\x04', b'\x05\x06']
    """
    position = file.tell()
    # A size in two bytes that looks like hexadecimal digits would be one of 12,336 bytes or more.
    while line := _HEX_LINE.fullmatch(file.readline(_MAX_LINE_BYTES)):
        yield bytes.fromhex(line[1].decode())
        position = file.tell()
    file.seek(position)
    while len(start := file.read(2)) == 2:
        size = int.from_bytes(start, "big")
        fingerprint = file.read(size)
        # A power cut may leave zeros; no fingerprint is empty.
        if not size or len(fingerprint) < size:
            return
        yield fingerprint


def write_requests_seen(file: BinaryIO, fingerprints: Iterable[bytes], *, as_text: bool) -> int:
    r"""Write fingerprints as Scrapy does, as lines (``as_text``) or as records; returns how many.

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
