"""Read parts of a record at a known place: its head, the heads of a response, or a whole small record.

Most records are gzip members or uncompressed records in the standard form, and few of their bytes are read. `framing`
reads all others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zlib_ng import zlib_ng

from scrapy_dedupe.warc.raw_heads import parsed_head, raw_head
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

START_BYTES: Final = 4_096

_END: Final = b"\r\n\r\n"
_HTTP_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_FEW_BYTES: Final = 256  # most heads have a few times as many, compressed
_MORE_BYTES: Final = 1 << 18
_QUICK_BYTES: Final = 1 << 20  # larger records are read in pieces


class RecordParts:
    """Reads records of an open file at known places. Raises DamagedInput and OSError."""

    def __init__(self, file: ReadableFile, stream: BufferedReader, *, is_gzip: bool) -> None:
        self._file = file
        self._stream = stream
        self._is_gzip = is_gzip
        self._fd = stream.fileno() if isinstance(file, Path) and hasattr(os, "pread") else -1

    def heads(self, offset: int, length: int) -> tuple[RawHead, bytes]:
        """The WARC head of a response and its HTTP head with the blank line. Few other bytes are read."""
        start = b""
        for piece in self._pieces(offset, min(length, _MORE_BYTES)):
            start += piece
            head, rest = self._split(start)
            if head is not None and (end := _HTTP_HEAD_END.search(rest)) is not None:
                return head, rest[: end.end()]
        record = read_record(self._file, offset)
        assert record.http is not None
        return raw_head(record), record.frame.kept[: record.http.length]

    def record(self, offset: int, length: int) -> tuple[RawHead, bytes | StoredRecord]:
        """The head of a record, and its block; for a large or unusual record, the record instead of its block."""
        if length <= _QUICK_BYTES:
            head, rest = self._split(self._whole(offset, length))
            if head is not None and rest.endswith(_END):
                size = head.get(b"Content-Length") or b""
                if size.isdigit() and int(size) == len(rest) - 4:
                    return head, rest[:-4]
        record = read_record(self._file, offset)
        return raw_head(record), record

    def _whole(self, offset: int, length: int) -> bytes:
        """A record of at most `_QUICK_BYTES`, decompressed; empty if it is damaged or larger."""
        data = self._at(offset, length)
        if not self._is_gzip:
            return data
        member = zlib_ng.decompressobj(31)
        try:
            whole = member.decompress(data, _QUICK_BYTES)
        except zlib_ng.error:  # type: ignore[misc]
            return b""
        return whole if member.eof else b""

    def _pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The first bytes of a record, decompressed, until its stored bytes end or are damaged."""
        member = zlib_ng.decompressobj(31) if self._is_gzip else None
        end = offset + length
        while offset < end:
            data = self._at(offset, min(_FEW_BYTES, end - offset))
            offset += len(data)
            try:
                yield data if member is None else member.decompress(data)
            except zlib_ng.error:  # type: ignore[misc]
                return
            if not data:
                return

    @staticmethod
    def _split(start: bytes) -> tuple[RawHead | None, bytes]:
        end = start.find(_END) + 4
        return (None, b"") if end < 4 else (parsed_head(start[:end]), start[end:])

    def _at(self, offset: int, size: int) -> bytes:
        if self._fd >= 0:
            return os.pread(self._fd, size, offset)
        self._stream.seek(offset)
        return self._stream.read(size)
