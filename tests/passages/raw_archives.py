"""WARC files with pages, written by hand."""

from __future__ import annotations

import gzip
from uuid import uuid4


def record(record_type: str, block: bytes, *, url: str = "", gzipped: bool = False, **fields: str) -> bytes:
    """A WARC record; the names of *fields* have ``_`` for ``-``."""
    named = {
        "WARC-Type": record_type,
        "WARC-Record-ID": f"<urn:uuid:{uuid4()}>",
        "WARC-Date": "2026-08-01T12:00:00.000Z",
        "Content-Type": f"application/http;msgtype={record_type}",
        **({"WARC-Target-URI": url} if url else {}),
        **{name.replace("_", "-"): value for name, value in fields.items()},
        "Content-Length": str(len(block)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    data = f"WARC/1.1\r\n{head}\r\n".encode() + block + b"\r\n\r\n"
    return gzip.compress(data) if gzipped else data


def response(
    url: str,
    body: bytes,
    *,
    status: int = 200,
    content_type: str | None = "text/html; charset=utf-8",
    coding: str = "",
    gzipped: bool = False,
    **fields: str,
) -> bytes:
    """A response record."""
    head = f"HTTP/1.1 {status} OK\r\n"
    head += f"Content-Type: {content_type}\r\n" if content_type is not None else ""
    head += f"Content-Encoding: {coding}\r\n" if coding else ""
    block = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    return record("response", block, url=url, gzipped=gzipped, **fields)


def exchange(url: str, body: bytes, method: str) -> bytes:
    """A response with its request behind it."""
    name = f"<urn:uuid:{uuid4()}>"
    asked = record(
        "request", f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode(), url=url, WARC_Concurrent_To=name
    )
    return response(url, body, WARC_Record_ID=name) + asked
