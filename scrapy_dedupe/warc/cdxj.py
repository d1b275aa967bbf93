r"""CDXJ: the index of an archive, one line for every record that can be replayed.

A line is ``KEY TIMESTAMP JSON``: the key of the URL (`url_keys`), WARC-Date in digits, and an object of strings in
this order, without the unknown ones::

    url mime status digest length offset filename method requestBody

Records of the types response, revisit and resource have a line, except resources of type warc-fields. `mime` is the
media type without parameters, ``warc/revisit`` for a revisit; `status` is the HTTP status; `digest` is
WARC-Payload-Digest with its label, in the form of `capture.parse_digest`. `method` and `requestBody` are set for
captures of methods other than GET.

These records have no `digest`:

- a truncated response, and a response with a body but without WARC-Payload-Digest: a program that imports the line
  would treat its body as a payload that other records may refer to;
- a revisit without WARC-Payload-Digest, since the digest would be that of the original.

Any other record without WARC-Payload-Digest gets the SHA-1 of the block after its HTTP head, as in cdxj-indexer.

Lines are sorted by the bytes of key and timestamp; captures with the same date stay in the order of the files. The
timestamp has milliseconds if the date has them: wabac.js takes the first capture at or after WARC-Refers-To-Date as
the original, and keeps one capture per URL and timestamp. Sorting takes a bounded amount of memory for any number of
lines: runs of `RUN_BYTES` are written to temporary files, which are merged in passes of `MERGED_RUNS`.

A ZipNum index holds these lines in gzip members of `BLOCK_LINES` lines. A second file, the .idx file, has one line for
every member: key and timestamp of its first line, and JSON with offset, length and SHA-256 of the member. It begins
with ``!meta 0 {"format": "cdxj-gzip-1.0", "filename": NAME}``.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import re
import tempfile
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from deflate import gzip_compress

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.bodies import body_pieces
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import method_of
from scrapy_dedupe.warc.url_keys import Lookup, lookup, wabac_key, with_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO

    from scrapy_dedupe.warc.reading import StoredRecord

BLOCK_LINES = 1024
RUN_BYTES = 16 << 20
MERGED_RUNS = 16
"""So many runs are merged into one: 40 GB of lines are in at most 45 open files, and written three times."""

INDEXED_TYPES = frozenset({"response", "revisit", "resource"})

_MEDIA_TYPE_END = re.compile(r"[;\s]")
_LINE_OVERHEAD_BYTES = 60  # memory of a bytes object in a list, without its bytes
_GZIP_LEVEL = 6


class CdxLine(NamedTuple):
    """The index line of a record; `prefix` is its key and timestamp."""

    prefix: str
    fields: dict[str, str]

    def __str__(self) -> str:
        return f"{self.prefix} {json.dumps(self.fields)}"


def is_indexed(record: StoredRecord) -> bool:
    """Whether a record has a line."""
    # A warc-fields resource describes the crawl and cannot be replayed.
    is_about_the_crawl = record.type == "resource" and record.get("Content-Type") == "application/warc-fields"
    return record.type in INDEXED_TYPES and not is_about_the_crawl


def cdx_line(record: StoredRecord, filename: str, request: StoredRecord | None = None) -> CdxLine:
    """Return the line of a response, revisit or resource, with its request if there is one.

    Raises DamagedInput if the record has no URL or date or cannot be reached by its offset, SettingError if the
    package surt is missing.
    """
    where = f"{record.path}, offset {record.offset}"
    if not record.target_uri or not record.date:
        raise DamagedInput(f"{where}: the {record.type} record has no WARC-Target-URI or no WARC-Date.")
    if not record.length:
        raise DamagedInput(
            f"{where}: the record shares a gzip member with others, so no index can point to it. "
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
    """Yield the same lines with the keys that wabac.js looks up."""
    for line in lines:
        prefix, _, text = line.partition(b" {")
        fields = json.loads(b"{" + text)
        url, method = fields["url"], fields.get("method")
        if method is not None:
            url = f"{with_method(url, method)}&{fields.get('requestBody', '')}"
        yield CdxLine(f"{wabac_key(url)} {prefix.rpartition(b' ')[2].decode()}", fields)


class LineSorter:
    r"""Sorts any number of lines in bounded memory. Temporary files are created in *folder* and have no name.

    In a run, a line is ``KEY TIMESTAMP \0 NUMBER \0 JSON``: NUL sorts before any character of a key, and the number
    is the position of the line in the order of the records.
    """

    def __init__(self, folder: Path) -> None:
        self.lines = 0
        self.size_bytes = 0
        self._folder = folder
        self._held: list[bytes] = []
        self._held_bytes = 0
        # How many times the lines of each run have been merged, and its file.
        self._runs: list[tuple[int, IO[bytes]]] = []

    def add(self, line: CdxLine) -> None:
        """Add a line. Raises OSError if a temporary file cannot be written."""
        stored = f"{line.prefix}\0{self.lines:016d}\0{json.dumps(line.fields)}\n".encode()
        self.lines += 1
        self.size_bytes += len(stored) - 17  # both NULs and the number become one space
        self._held.append(stored)
        self._held_bytes += len(stored) + _LINE_OVERHEAD_BYTES
        if self._held_bytes >= RUN_BYTES:
            self._write_run(sorted(self._held), 0)
            self._held, self._held_bytes = [], 0

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the lines in order, each with its line end; each call starts again at the first line."""
        for line in heapq.merge(sorted(self._held), *_from_start(run for _, run in self._runs)):
            prefix, _, fields = line.split(b"\0", 2)
            yield prefix + b" " + fields

    def close(self) -> None:
        """Delete the temporary files."""
        for _, run in self._runs:
            run.close()

    def _write_run(self, lines: Iterable[bytes], merged: int) -> None:
        run = tempfile.TemporaryFile(dir=self._folder, prefix=".index-")  # noqa: SIM115 - see close()
        self._runs.append((merged, run))
        run.writelines(lines)
        alike = [run for times, run in self._runs if times == merged]
        if len(alike) == MERGED_RUNS:
            self._write_run(heapq.merge(*_from_start(alike)), merged + 1)
            for each in alike:
                each.close()
            self._runs = [pair for pair in self._runs if pair[0] != merged]


def _from_start(runs: Iterable[IO[bytes]]) -> Iterator[IO[bytes]]:
    for run in runs:
        run.seek(0)
        yield run


def zipnum_blocks(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the gzip members of a ZipNum index, each with its line for the .idx file."""
    offset = 0
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_LINES)):
        member = bytes(gzip_compress(b"".join(block), _GZIP_LEVEL))
        prefix = block[0].partition(b" {")[0]
        digest = f"sha256:{hashlib.sha256(member).hexdigest()}"
        fields = json.dumps({"offset": offset, "length": len(member), "digest": digest})
        yield member, prefix + b" " + fields.encode() + b"\n"
        offset += len(member)


def idx_head(filename: str) -> bytes:
    """Return the first line of the .idx file; *filename* is the name of the file with the gzip members."""
    return f"!meta 0 {json.dumps({'format': 'cdxj-gzip-1.0', 'filename': filename})}\n".encode()


def _lookup(url: str, request: StoredRecord | None) -> Lookup:
    if request is None or request.http is None:
        return lookup(url)
    if len(request.frame.kept) == request.frame.block_length:
        body = request.payload()
    else:  # a request of many megabytes: the held part is longer than the text that the index keeps
        body = request.frame.kept[request.http.length :]
    content_type = request.http.get(b"Content-Type") or b""
    return lookup(url, method_of(request), content_type.decode("latin-1"), body)


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
    if record.type == "response" and any(body_pieces(record)):
        return None
    sha1 = hashlib.sha1(usedforsecurity=False)
    for piece in body_pieces(record):
        sha1.update(piece)
    return "sha1:" + base64.b32encode(sha1.digest()).decode("ascii")
