"""Files to import that are written by hand: WACZ, CDXJ, manifests and records of other programs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

WARC_NAME = "rec-20260801120000-00000-host.warc.gz"
DATE = "20260801120000123"


def sha256(number: int) -> str:
    """The digest of a payload."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def sha1_base32(number: int) -> str:
    return base64.b32encode(hashlib.sha1(b"%d" % number).digest()).decode()


def line(number: int, payload: int | None = None, **fields: Any) -> bytes:
    """The line of a response, in a way that every program writes it; ``None`` leaves a field out."""
    digest = sha256(number if payload is None else payload)
    values = {
        "url": f"https://example.com/{number}",
        "mime": "text/html",
        "status": "200",
        "digest": f"sha256:{digest}",
        "length": "5000",
        "offset": str(number * 5_000),
        "filename": WARC_NAME,
        **fields,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return f"com,example)/{number} {DATE} {json.dumps(known)}\n".encode()


def revisit(number: int, payload: int, **fields: Any) -> bytes:
    return line(number, payload, **{"mime": "warc/revisit", "length": "600", **fields})


def write_wacz(
    path: Path,
    lines: Iterable[bytes],
    *,
    crawl: str | None = None,
    software: str | None = "scrapy-dedupe 1.0",
    requires: Sequence[dict[str, object]] = (),
    gzipped: bool = False,
    cut: int = 0,
    short: int = 0,
    index: bool = True,
) -> Path:
    """A WACZ with a WARC file that is as long as the lines say and has nothing to read in it.

    The last ``cut`` bytes of its gzip index, and the last ``short`` bytes of the WARC file, are missing.
    """
    about: dict[str, object] = {"profile": "data-package"}
    if crawl is not None:
        about["crawlId"] = crawl
    if software is not None:
        about["software"] = software
    if requires:
        about["relation"] = {"requires": list(requires)}
    data = b"".join(lines)
    size = max((_end_of(line) for line in data.splitlines()), default=0)
    with zipfile.ZipFile(path, "w") as wacz:
        wacz.writestr(f"archive/{WARC_NAME}", b"no records".ljust(size - short, b"\0"))
        if index and gzipped:
            packed = gzip.compress(data)
            wacz.writestr("indexes/index.cdx.gz", packed[: len(packed) - cut])
        elif index:
            wacz.writestr("indexes/index.cdxj", data)
        wacz.writestr("datapackage.json", json.dumps(about))
    return path


def _end_of(line: bytes) -> int:
    """The end of the record that a line of an index describes; 0 if the line is faulty."""
    try:
        fields = json.loads(line.partition(b"{")[1] + line.partition(b"{")[2])
        return int(fields["offset"]) + int(fields["length"])
    except (ValueError, LookupError, TypeError):
        return 0


def write_manifest(path: Path, *resources: dict[str, object]) -> Path:
    path.write_text(json.dumps({"profile": "multi-wacz-package", "resources": list(resources)}))
    return path


def record(kind: str, number: int, block: bytes, *fields: str, uri: str | None = None) -> bytes:
    """A WARC record in a gzip member of its own."""
    head = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012}>",
        "WARC-Date: 2026-08-01T12:00:00.123Z",
        *([f"WARC-Target-URI: {uri}"] if uri else []),
        *fields,
        f"Content-Length: {len(block)}",
    ]
    return gzip.compress("\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n")


def response_record(
    number: int, body: bytes, *fields: str, status: str = "200 OK", uri: str | None = None
) -> bytes:
    head = f'HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nETag: "{number}"\r\n\r\n'.encode()
    digest = hashlib.sha256(body).hexdigest()
    return record(
        "response",
        number,
        head + body,
        f"WARC-Payload-Digest: sha256:{digest}",
        "Content-Type: application/http; msgtype=response",
        *fields,
        uri=uri or f"http://example.org/{number}",
    )


def request_record(number: int, method: str, *fields: str, uri: str) -> bytes:
    return record(
        "request",
        number,
        f"{method} / HTTP/1.1\r\nHost: example.org\r\n\r\n".encode(),
        "Content-Type: application/http; msgtype=request",
        *fields,
        uri=uri,
    )


def warcinfo(**fields: str) -> bytes:
    block = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    return record("warcinfo", 999, block, "Content-Type: application/warc-fields")


def id_of(number: int) -> str:
    return f"<urn:uuid:00000000-0000-4000-8000-{number:012}>"


class Quiet:
    """Observes an import and says nothing."""

    def check(self) -> None:
        pass

    def show(self, done: float, total: int) -> None:
        pass

    def tell(self, sentence: str) -> None:
        pass
