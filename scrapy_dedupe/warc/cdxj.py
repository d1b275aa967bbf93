r"""CDXJ: the index of an archive, one line for every record that can be replayed.

A line is ``KEY TIMESTAMP JSON``: the key of the URL (`url_keys`), WARC-Date in digits, and an object
of texts in this order, those that are not known left out::

    url mime status digest length offset filename method requestBody

Records of the types response, revisit and resource have a line, other than resources of warc-fields. `mime`
is the media type without parameters, ``warc/revisit`` for a revisit; `status` that of the HTTP head, `digest`
WARC-Payload-Digest with its label, in the one form of `capture.parse_digest`. A truncated response has none,
nor has one with a body and without that field: whoever imports the line would take the body for one that
others may refer to. A revisit without it has none either, since what counts is the original's. Of the rest it
is the SHA-1 of what follows the HTTP head, as cdxj-indexer gives it. `method` and `requestBody` stand in
captures of other methods than GET.

Lines are sorted by the bytes of key and timestamp; captures of one date stay in the order of the files. The
digits go down to milliseconds where the date does: wabac.js takes the first capture at or after
WARC-Refers-To-Date as the original, and knows one capture of a URL for each timestamp. Sorting takes a
bounded amount of memory, whatever the number of lines: runs of `RUN_BYTES` go to temporary files, which are
merged.

ZipNum is such an index in gzip members of `BLOCK_LINES` lines, and beside it a file with a line for every
member: key and timestamp of its first line, and JSON with offset, length and SHA-256 of the member; before
them stands ``!meta 0 {"format": "cdxj-gzip-1.0", "filename": NAME}``.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import re
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from deflate import gzip_compress

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.url_keys import Lookup, lookup, wabac_key, with_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from tempfile import _TemporaryFileWrapper
    from typing import IO

    from scrapy_dedupe.warc.reading import StoredRecord

BLOCK_LINES = 1024
RUN_BYTES = 16 << 20

INDEXED_TYPES = frozenset({"response", "revisit", "resource"})

_MEDIA_TYPE_END = re.compile(r"[;\s]")
_LINE_OVERHEAD_BYTES = 60  # of a bytes object in a list
_FAN_IN = 64  # files that are merged at once
_GZIP_LEVEL = 6


class CdxLine(NamedTuple):
    """What the index says of a record; `prefix` is its key and timestamp."""

    prefix: str
    fields: dict[str, str]

    def __str__(self) -> str:
        return f"{self.prefix} {json.dumps(self.fields)}"


class Indexer:
    """Makes the lines of the records of one file, which are given in their order.

    The request of an exchange stands before or after its principal record, so a line comes out once the
    next record is known; `finish` gives the last one.
    """

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._waiting: StoredRecord | None = None

    def add(self, record: StoredRecord) -> list[CdxLine]:
        """Take the next record; return the lines that are complete. Raises DamagedInput, SettingError."""
        waiting, self._waiting = self._waiting, record
        if waiting is None:
            return []
        if _is_exchange(waiting, record):
            self._waiting = None
            return self._lines(waiting, record)
        return self._lines(waiting)

    def finish(self) -> list[CdxLine]:
        """Return the line of the last record."""
        waiting, self._waiting = self._waiting, None
        return self._lines(waiting) if waiting is not None else []

    def _lines(self, *exchange: StoredRecord) -> list[CdxLine]:
        request = next((record for record in exchange if record.type == "request"), None)
        return [cdx_line(record, self._filename, request) for record in exchange if _is_indexed(record)]


def cdx_line(record: StoredRecord, filename: str, request: StoredRecord | None = None) -> CdxLine:
    """Return the line of a response, revisit or resource, with the request of its exchange if it is known.

    Raises DamagedInput if the record has no URL or date or cannot be reached by its offset, SettingError
    without the package surt.
    """
    where = f"{record.path}, offset {record.offset}"
    if not record.target_uri or not record.date:
        raise DamagedInput(f"{where}: the {record.type} record has no WARC-Target-URI or no WARC-Date.")
    if not record.length:
        raise DamagedInput(
            f"{where}: the record shares a gzip member with others, so that no index can point at it. "
            "Compress every record of the file on its own."
        )
    try:
        timestamp = date_digits(record.date)
    except ValueError as error:
        raise DamagedInput(f"{where}: {error}") from None
    found = _lookup(record.target_uri, request)
    values = {
        "url": record.target_uri,
        "mime": _media_type(record),
        "status": f"{record.http.status:03d}" if record.http and record.http.status else None,
        "digest": _digest(record),
        "length": str(record.length),
        "offset": str(record.offset),
        "filename": filename,
        "method": found.method,
        "requestBody": found.body,
    }
    fields = {name: value for name, value in values.items() if value is not None}
    return CdxLine(f"{found.key} {timestamp}", fields)


def rekeyed(lines: Iterable[bytes]) -> Iterator[CdxLine]:
    """Yield the same lines under the keys that wabac.js looks for."""
    for line in lines:
        prefix, _, text = line.partition(b" {")
        fields = json.loads(b"{" + text)
        url, method = fields["url"], fields.get("method")
        if method is not None:
            url = f"{with_method(url, method)}&{fields.get('requestBody', '')}"
        yield CdxLine(f"{wabac_key(url)} {prefix.rpartition(b' ')[2].decode()}", fields)


class LineSorter:
    r"""Sorts any number of lines in bounded memory. Temporary files are in *folder*, without a name.

    A line goes into a run as ``KEY TIMESTAMP \0 NUMBER \0 JSON``: NUL is less than all that a key may
    contain, and the number is the line's place in the order of the records.
    """

    def __init__(self, folder: Path) -> None:
        self.lines = 0
        self.size_bytes = 0
        self._folder = folder
        self._held: list[bytes] = []
        self._held_bytes = 0
        # One list a level: the runs of a level were each merged from `_FAN_IN` runs of the one below.
        self._levels: list[list[_TemporaryFileWrapper[bytes] | IO[bytes]]] = []

    def add(self, line: CdxLine) -> None:
        """Add a line. Raises OSError if a temporary file cannot be written."""
        stored = f"{line.prefix}\0{self.lines:016d}\0{json.dumps(line.fields)}\n".encode()
        self.lines += 1
        self.size_bytes += len(stored) - 17  # a space stands for both NULs and the number
        self._held.append(stored)
        self._held_bytes += len(stored) + _LINE_OVERHEAD_BYTES
        if self._held_bytes >= RUN_BYTES:
            self._held.sort()
            self._keep_run(self._held, 0)
            self._held, self._held_bytes = [], 0

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the lines in order, each with its line end; from the first one again at every call."""
        self._held.sort()
        runs = [run for level in self._levels for run in level]
        for run in runs:
            run.seek(0)
        for line in heapq.merge(self._held, *runs):
            prefix, _, fields = line.split(b"\0", 2)
            yield prefix + b" " + fields

    def close(self) -> None:
        """Forget the lines and delete the temporary files."""
        for level in self._levels:
            for run in level:
                run.close()
        self._levels = []
        self._held = []

    def _keep_run(self, lines: Iterable[bytes], level: int) -> None:
        run = tempfile.TemporaryFile(dir=self._folder, prefix=".index-")  # noqa: SIM115 - see close()
        try:
            run.writelines(lines)
            run.seek(0)
        except BaseException:
            run.close()
            raise
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)
        if len(self._levels[level]) == _FAN_IN:
            merged = self._levels[level]
            self._levels[level] = []
            try:
                self._keep_run(heapq.merge(*merged), level + 1)
            finally:
                for old in merged:
                    old.close()


def zipnum_blocks(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the gzip members of a ZipNum index, and with each its line of the file beside."""
    offset = 0
    block: list[bytes] = []
    for line in lines:
        block.append(line)
        if len(block) == BLOCK_LINES:
            member = bytes(gzip_compress(b"".join(block), _GZIP_LEVEL))
            yield member, _idx_line(block[0], offset, member)
            offset += len(member)
            block = []
    if block:
        member = bytes(gzip_compress(b"".join(block), _GZIP_LEVEL))
        yield member, _idx_line(block[0], offset, member)


def idx_head(filename: str) -> bytes:
    """Return the first line of the file beside; *filename* is that of the file with the members."""
    return f"!meta 0 {json.dumps({'format': 'cdxj-gzip-1.0', 'filename': filename})}\n".encode()


def _idx_line(first: bytes, offset: int, member: bytes) -> bytes:
    prefix = first.partition(b" {")[0]
    digest = f"sha256:{hashlib.sha256(member).hexdigest()}"
    fields = json.dumps({"offset": offset, "length": len(member), "digest": digest})
    return prefix + b" " + fields.encode() + b"\n"


def _is_indexed(record: StoredRecord) -> bool:
    # A resource of warc-fields says something about the crawl, it is nothing to replay.
    is_about_the_crawl = record.type == "resource" and record.get("Content-Type") == "application/warc-fields"
    return record.type in INDEXED_TYPES and not is_about_the_crawl


def _is_exchange(first: StoredRecord, second: StoredRecord) -> bool:
    types = {first.type, second.type}
    return (
        "request" in types
        and bool(types & {"response", "revisit"})
        and first.target_uri == second.target_uri
        and (
            first.id in second.get_all("WARC-Concurrent-To")
            or second.id in first.get_all("WARC-Concurrent-To")
        )
    )


def _lookup(url: str, request: StoredRecord | None) -> Lookup:
    if request is None or request.http is None:
        return lookup(url)
    method = request.http.first_line.partition(b" ")[0].decode("latin-1")
    if len(request.frame.kept) == request.frame.block_length:
        body = request.payload()
    else:  # an upload of many megabytes: the text of a body is cut long before
        body = request.frame.kept[request.http.length :]
    return lookup(url, method, _header(request, b"Content-Type") or "", body)


def _header(request: StoredRecord | None, name: bytes) -> str | None:
    value = request.http.get(name) if request and request.http else None
    return value.decode("latin-1") if value else None


def _media_type(record: StoredRecord) -> str | None:
    if record.type == "revisit":
        return "warc/revisit"
    if record.http is not None:
        value = (record.http.get(b"Content-Type") or b"").decode("latin-1")
    else:
        value = record.get("Content-Type") or ""
    return _MEDIA_TYPE_END.split(value.strip(), maxsplit=1)[0] or None


def _digest(record: StoredRecord) -> str | None:
    if record.type == "response" and record.is_truncated:
        return None
    if digest := record.payload_digest:
        return str(digest)
    if record.get("WARC-Payload-Digest") or record.type == "revisit":
        return record.get("WARC-Payload-Digest")
    missing = record.http.length if record.http else 0
    if record.type == "response" and record.frame.block_length > missing:
        return None
    sha1 = hashlib.sha1(usedforsecurity=False)
    kept = record.frame.kept
    for piece in [kept] if len(kept) == record.frame.block_length else open_block(record.path, record.frame):
        sha1.update(piece[missing:])
        missing = max(0, missing - len(piece))
    return "sha1:" + base64.b32encode(sha1.digest()).decode("ascii")
