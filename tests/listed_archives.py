"""Small archives together with the manifest lines of their records, under any digest that a test wants."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webserver import Page

from scrapy_dedupe.offline.manifest import ManifestLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

WEAK = "md5:" + "ab" * 16


def warc_record(
    payload: bytes,
    uri: str = "http://example.org/",
    date: str = "2020-01-01T00:00:00Z",
    *,
    status: int = 200,
    kind: str = "response",
    fields: tuple[str, ...] = (),
    headers: tuple[str, ...] = (),
) -> bytes:
    block = (
        b"".join(line.encode() + b"\r\n" for line in (f"HTTP/1.1 {status} OK", *headers)) + b"\r\n" + payload
    )
    head = (
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{zlib.crc32(block):08x}>",
        f"WARC-Date: {date}",
        f"WARC-Target-URI: {uri}",
        "Content-Type: application/http; msgtype=response",
        *fields,
        f"Content-Length: {len(block)}",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


@dataclass
class ListedFile:
    """A file that grows record by record; ``name`` is what the lines call it."""

    path: Path
    name: str
    is_packed: bool = True
    lines: list[ManifestLine] = field(default_factory=list)

    def add(
        self,
        payload: bytes,
        uri: str = "http://example.org/",
        date: str = "2020-01-01T00:00:00Z",
        *,
        digest: str = WEAK,
        **options: Any,
    ) -> ManifestLine:
        data = warc_record(payload, uri, date, **options)
        data = gzip.compress(data, 1, mtime=0) if self.is_packed else data
        offset = self.path.stat().st_size if self.path.exists() else 0
        with self.path.open("ab") as file:
            file.write(data)
        line = ManifestLine(self.name, offset, len(data), uri, date, digest)
        self.lines.append(line)
        return line


def in_ranges(data: bytes, asked: list[str] | None = None) -> Callable[[Any], Page]:
    """A page of `webserver` that serves parts of *data*; *asked* keeps the ranges."""

    def answer(request: Any) -> Page:
        wanted = request.headers.get("Range")
        if asked is not None:
            asked.append(wanted)
        if wanted is None:
            return Page(data, content_type="application/warc", headers=[("Accept-Ranges", "bytes")])
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(len(data), int(last) + 1)
        if start >= len(data):
            return Page(b"", 416)
        place = ("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        return Page(data[start:end], 206, [place], content_type="application/warc")

    return answer
