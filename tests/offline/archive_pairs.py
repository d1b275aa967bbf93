"""A small archive before and after its deduplication, spelled record by record, for tests that spoil it.

Every byte is put together here, by the rules and not by the code that writes revisits.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Serial: %s\r\n\r\n"
SAME = b"<p>the same words</p>" * 100
OTHER = b"<p>other words here</p>" * 100
GONE = b"<p>words of a lost record</p>" * 100


def sha1(data: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(data).digest()).decode()


def record_id(number: int) -> str:
    return f"<urn:uuid:00000000-0000-4000-8000-{number:012d}>"


@dataclass
class Rec:
    """A record that tests may change: fields as lists of name and value, without Content-Length."""

    fields: list[list[str]]
    block: bytes
    version: str = "WARC/1.1"
    raw: bytes | None = None

    def get(self, name: str) -> str:
        return next(value for known, value in self.fields if known == name)

    def set(self, name: str, value: str) -> None:
        for field_ in self.fields:
            if field_[0] == name:
                field_[1] = value
                return
        self.fields.append([name, value])

    def drop(self, name: str) -> None:
        self.fields = [known for known in self.fields if known[0] != name]

    def plain(self) -> bytes:
        lines = [self.version, *(f"{name}: {value}" for name, value in self.fields)]
        lines.append(f"Content-Length: {len(self.block)}\r\n\r\n")
        return "\r\n".join(lines).encode() + self.block + b"\r\n\r\n"

    def to_bytes(self, *, is_gzip: bool) -> bytes:
        if self.raw is not None:
            return self.raw
        return gzip.compress(self.plain(), mtime=0) if is_gzip else self.plain()


@dataclass
class Archive:
    """Files by name, each a dict of records by label."""

    files: dict[str, dict[str, Rec]] = field(default_factory=dict)

    def __getitem__(self, label: str) -> Rec:
        return next(records[label] for records in self.files.values() if label in records)

    def file_of(self, label: str) -> str:
        return next(name for name, records in self.files.items() if label in records)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for name, records in self.files.items():
            data = b"".join(record.to_bytes(is_gzip=name.endswith(".gz")) for record in records.values())
            (folder / name).write_bytes(data)
        return folder


def response(number: int, uri: str, date: str, body: bytes, *, digest: str | None = "sha1") -> Rec:
    block = HEAD % b"%d" % number + body
    fields = [
        ["WARC-Type", "response"],
        ["WARC-Record-ID", record_id(number)],
        ["WARC-Target-URI", uri],
        ["WARC-Date", date],
        ["WARC-IP-Address", "192.0.2.1"],
        ["X-Of-The-Crawler", "kept"],
    ]
    if digest:
        fields.append(["WARC-Payload-Digest", sha1(body)])
    fields += [
        ["WARC-Block-Digest", sha1(block)],
        ["Content-Type", "application/http; msgtype=response"],
    ]
    return Rec(fields, block)


def request(number: int, of: Rec) -> Rec:
    return Rec(
        [
            ["WARC-Type", "request"],
            ["WARC-Record-ID", record_id(number)],
            ["WARC-Target-URI", of.get("WARC-Target-URI")],
            ["WARC-Date", of.get("WARC-Date")],
            ["WARC-Concurrent-To", of.get("WARC-Record-ID")],
            ["Content-Type", "application/http; msgtype=request"],
        ],
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    )


def other(kind: str, number: int, of: Rec) -> Rec:
    return Rec(
        [
            ["WARC-Type", kind],
            ["WARC-Record-ID", record_id(number)],
            ["WARC-Target-URI", of.get("WARC-Target-URI")],
            ["WARC-Date", of.get("WARC-Date")],
            ["WARC-Refers-To", of.get("WARC-Record-ID")],
            ["Content-Type", "text/plain"],
        ],
        b"about it",
    )


def old_revisit(number: int, of: Rec, date: str, body: bytes = SAME) -> Rec:
    block = HEAD % b"%d" % number
    return Rec(
        [
            ["WARC-Type", "revisit"],
            ["WARC-Record-ID", record_id(number)],
            ["WARC-Target-URI", "http://example.org/revisited"],
            ["WARC-Date", date],
            ["WARC-Profile", PROFILE],
            ["WARC-Refers-To", of.get("WARC-Record-ID")],
            ["WARC-Refers-To-Target-URI", of.get("WARC-Target-URI")],
            ["WARC-Refers-To-Date", of.get("WARC-Date")],
            ["WARC-Payload-Digest", sha1(body)],
            ["Content-Type", "application/http; msgtype=response"],
        ],
        block,
    )


def convert(record: Rec, original: Rec, new_id: str) -> None:
    """Make a revisit of a response, as the rules say."""
    old_digest = next((value for name, value in record.fields if name == "WARC-Payload-Digest"), None)
    digest = next((value for name, value in original.fields if name == "WARC-Payload-Digest"), sha1(SAME))
    old_id, old_block_digest = record.get("WARC-Record-ID"), record.get("WARC-Block-Digest")
    record.block = record.block[: record.block.index(b"\r\n\r\n") + 4]
    record.set("WARC-Type", "revisit")
    record.set("WARC-Record-ID", new_id)
    record.set("Former-WARC-Record-ID", old_id)
    record.set("WARC-Profile", PROFILE)
    record.set("WARC-Refers-To", original.get("WARC-Record-ID"))
    record.set("WARC-Refers-To-Target-URI", original.get("WARC-Target-URI"))
    record.set("WARC-Refers-To-Date", original.get("WARC-Date"))
    record.set("WARC-Payload-Digest", digest)
    if old_digest != digest:
        record.set("Former-WARC-Payload-Digest", old_digest or "none")
    record.set("WARC-Block-Digest", sha1(record.block))
    record.set("Former-WARC-Block-Digest", old_block_digest)
    record.set("WARC-Truncated", "length")


def change(record: Rec, name: str, value: str) -> None:
    """Give a field another value, and tell the former one."""
    record.set(f"Former-{name}", record.get(name))
    record.set(name, value)


def archive() -> Archive:
    """Two files. ``copy`` and ``late`` have the payload of ``first``; ``metadata`` and the others refer to ``copy``."""
    first = response(1, "http://example.org/1", "2020-01-01T00:00:00Z", SAME)
    alone = response(3, "http://example.org/alone", "2020-01-02T00:00:00Z", OTHER)
    cut = response(4, "http://example.org/cut", "2020-01-03T00:00:00Z", SAME)
    cut.set("WARC-Truncated", "disconnect")
    copy = response(11, "http://example.org/2", "2020-02-01T00:00:00.5Z", SAME, digest="sha1")
    late = response(12, "http://example.org/1", "2020-03-01T00:00:00Z", SAME, digest=None)
    return Archive(
        {
            "a.warc.gz": {"first": first, "first request": request(2, first), "alone": alone, "cut": cut},
            "b.warc": {
                "copy": copy,
                "copy request": request(13, copy),
                "late": late,
                "late request": request(18, late),
                "metadata": other("metadata", 14, copy),
                "conversion": other("conversion", 15, copy),
                "revisit": old_revisit(16, copy, "2020-04-01T00:00:00Z"),
                "dangling": old_revisit(17, response(99, "http://gone/", "2019-01-01T00:00:00Z", GONE), "2020-05-01T00:00:00Z", GONE),
            },
        }
    )  # fmt: skip


def deduplicated() -> Archive:
    """The archive as it has to be afterwards."""
    after = archive()
    first = after["first"]
    convert(after["copy"], first, record_id(111))
    convert(after["late"], first, record_id(112))
    change(after["copy request"], "WARC-Concurrent-To", record_id(111))
    change(after["late request"], "WARC-Concurrent-To", record_id(112))
    for label in ("metadata", "conversion", "revisit"):
        change(after[label], "WARC-Refers-To", first.get("WARC-Record-ID"))
    change(after["revisit"], "WARC-Refers-To-Target-URI", first.get("WARC-Target-URI"))
    change(after["revisit"], "WARC-Refers-To-Date", first.get("WARC-Date"))
    return after
