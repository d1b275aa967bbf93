"""Archives with duplicates, and the same archives after their copies have become revisits."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapy_dedupe.offline.revisits import (
    RevisitTarget,
    as_revisit,
    record_bytes,
    revisit_id,
    with_concurrent,
)
from scrapy_dedupe.warc.raw_heads import raw_head
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Served-By: %d\r\n\r\n"
END = b"\r\n\r\n"


@dataclass(frozen=True)
class Page:
    """A capture; ``body`` is what stands behind the HTTP head, chunks included."""

    number: int
    body: bytes
    http: bytes = b""
    version: bytes = b"WARC/1.0"
    fields: Sequence[tuple[bytes, bytes]] = ()
    has_digests: bool = True
    date: bytes = b""

    @property
    def id(self) -> bytes:
        return b"<urn:uuid:00000000-0000-4000-8000-%012d>" % self.number

    @property
    def uri(self) -> bytes:
        return b"http://example.org/%d" % self.number

    @property
    def block(self) -> bytes:
        return (self.http or HEAD % self.number) + self.body


@dataclass
class Archive:
    """Files by name, each a list of pages."""

    files: dict[str, list[Page]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, pages in self.files.items():
            records = [
                _record(b"warcinfo", b"<urn:info:%s>" % name.encode(), b"WARC/1.0", [], b"software: x\r\n")
            ]
            for page in pages:
                records += [response(page), request(page)]
            write_file(folder / name, records)
        return folder


def write_file(path: Path, records: Sequence[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(member(data) if path.suffix == ".gz" else data for data in records))


def member(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(data) + stream.flush()


def sha1(data: bytes) -> bytes:
    return b"sha1:" + base64.b32encode(hashlib.sha1(data).digest())


def response(page: Page, payload: bytes | None = None) -> bytes:
    fields = [(b"WARC-Target-URI", page.uri), *page.fields]
    if page.has_digests:
        fields.append((b"WARC-Payload-Digest", sha1(page.body if payload is None else payload)))
        fields.append((b"WARC-Block-Digest", sha1(page.block)))
    return _record(
        b"response",
        page.id,
        page.version,
        fields,
        page.block,
        b"application/http; msgtype=response",
        _date(page),
    )


def request(page: Page) -> bytes:
    fields = [(b"WARC-Target-URI", page.uri), (b"WARC-Concurrent-To", page.id)]
    block = b"GET /%d HTTP/1.1\r\nHost: example.org\r\n\r\n" % page.number
    record_id = page.id.replace(b"-4000-", b"-4001-")
    return _record(
        b"request", record_id, page.version, fields, block, b"application/http; msgtype=request", _date(page)
    )


def _date(page: Page) -> bytes:
    return page.date or b"2020-01-01T00:%02d:%02dZ" % divmod(page.number, 60)


def _record(
    kind: bytes,
    record_id: bytes,
    version: bytes,
    fields: Sequence[tuple[bytes, bytes]],
    block: bytes,
    content_type: bytes = b"application/warc-fields",
    date: bytes = b"2020-01-01T00:00:00Z",
) -> bytes:
    lines = [version, b"WARC-Type: " + kind, b"WARC-Record-ID: " + record_id, b"WARC-Date: " + date]
    lines += [b"%b: %b" % pair for pair in fields]
    lines += [b"Content-Type: " + content_type, b"Content-Length: %d" % len(block), b"", b""]
    return b"\r\n".join(lines) + block + END


def dedupe(first: Path, folder: Path) -> Path:
    """Write the files of *first* to *folder*, later copies as revisits of the first capture of their payload."""
    seen: dict[bytes, RevisitTarget] = {}
    renamed: dict[bytes, bytes] = {}
    for path in sorted(first.rglob("*.warc*")):
        for record in read_records(path):
            payload = record.payload()
            if record.type == "response" and payload:
                if payload in seen:
                    head = raw_head(record)
                    old = head.get(b"WARC-Record-ID") or b""
                    renamed[old] = revisit_id(old)
                else:
                    seen[payload] = _target(raw_head(record), payload)
    for path in sorted(first.rglob("*.warc*")):
        records = []
        for record in read_records(path):
            head, block = raw_head(record), record.block()
            target = seen.get(record.payload())
            if target is not None and head.get(b"WARC-Record-ID") in renamed:
                assert record.http is not None
                block = block[: record.http.length]
                head = as_revisit(head, target, block)
            else:
                head = with_concurrent(head, renamed.get)
            records.append(record_bytes(head, block))
        write_file(folder / path.relative_to(first), records)
    return folder


def _target(head: object, payload: bytes) -> RevisitTarget:
    get = head.get  # type: ignore[attr-defined]
    return RevisitTarget(
        get(b"WARC-Record-ID"),
        get(b"WARC-Target-URI"),
        get(b"WARC-Date"),
        get(b"WARC-Payload-Digest") or sha1(payload),
    )


def uncompressed(path: Path) -> bytes:
    data = path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    parts = []
    while data:
        stream = zlib.decompressobj(31)
        parts.append(stream.decompress(data))
        data = stream.unused_data
    return b"".join(parts)
