"""Archives on disk with planted duplicates, and the truth about them.

Every byte of a record is put together here, and not by the writers that are under test. A `Record` knows its fields,
its block, its HTTP head and its payload; a `Planting` writes the files and knows what has to become of each record:

- nothing: it is copied byte for byte (no entry in `Planting.fates`);
- `Copy(of)`: it becomes a revisit of the record with that label;
- `Linked(to)`: its WARC-Concurrent-To names a record that becomes a revisit, and has to name the new id;
- `Pointed(to)`: what it refers to becomes a revisit, so it has to refer to that one's original.

The archive of `garden` has everything in it, with fates that are spelled by hand. `fates_of` works the fates out
by the rules, for archives made at random.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import random
import uuid
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Fields = tuple[tuple[bytes, bytes], ...]

SITE = "http://garden.example"
IDENTICAL = b"http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
WORDS = (
    "alder", "birch", "clover", "dill", "elm", "fern", "gorse", "hazel", "iris", "juniper", "kale", "linden",
    "maple", "nettle", "oak", "poplar", "quince", "rowan", "sedge", "thyme", "umbel", "vetch", "willow", "yew",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Copy:
    of: str


@dataclass(frozen=True, slots=True)
class Linked:
    to: str


@dataclass(frozen=True, slots=True)
class Pointed:
    to: str


Fate = Copy | Linked | Pointed


@dataclass(frozen=True, slots=True)
class Record:
    """A record; ``fields`` hold everything but Content-Length, which comes last."""

    label: str
    version: bytes
    fields: Fields
    block: bytes
    head: bytes
    payload: bytes
    method: str = "GET"
    status: int | None = None

    def get(self, name: bytes) -> bytes | None:
        return next((value for known, value in self.fields if known.lower() == name.lower()), None)

    @property
    def type(self) -> str:
        return (self.get(b"WARC-Type") or b"").decode()

    @property
    def id(self) -> bytes | None:
        return self.get(b"WARC-Record-ID")

    @property
    def uri(self) -> bytes:
        uri = self.get(b"WARC-Target-URI") or b""
        return uri[1:-1] if uri.startswith(b"<") else uri

    @property
    def date(self) -> bytes:
        date = self.get(b"WARC-Date")
        assert date is not None
        return date

    @property
    def is_arc(self) -> bool:
        return self.version == b"ARC"

    def to_bytes(self) -> bytes:
        if self.is_arc:
            digits = self.date.translate(None, b"-:TZ")
            kind = b"text/html" if self.type == "response" else b"text/plain"
            line = b"%s 192.0.2.1 %s %s %d\n" % (self.uri, digits, kind, len(self.block))
            return line + self.block + b"\n"
        lines = [self.version, *(b"%s: %s" % pair for pair in self.fields)]
        lines.append(b"Content-Length: %d" % len(self.block))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.block + b"\r\n\r\n"


def record_id(label: str) -> bytes:
    return b"<urn:uuid:%s>" % str(uuid.uuid5(uuid.NAMESPACE_OID, label)).encode()


@cache
def text(seed: str, size: int) -> bytes:
    """Words of *size* bytes, always the same for a seed."""
    rng = random.Random(seed)
    body = f"<title>{seed}</title><p>".encode()
    while len(body) < size:
        body += rng.choice(WORDS).encode() + b" %d " % rng.randrange(1000)
    return body[:size]


def in_chunks(body: bytes, size: int = 700) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def digest(form: str, data: bytes) -> bytes:
    """The text of a digest; *form* is the algorithm, with "hex" behind it for the unusual form of SHA-1."""
    name, _, rest = form.partition(" ")
    made = hashlib.new(name, data)
    if name == "sha1" and rest != "hex":
        return b"sha1:" + base64.b32encode(made.digest())
    return f"{name}:{made.hexdigest()}".encode()


def moment(date: bytes | str) -> tuple[int, int]:
    """A WARC-Date as something that can be compared: seconds and nanoseconds."""
    date = date if isinstance(date, str) else date.decode()
    whole, _, fraction = date.rstrip("Z").partition(".")
    seconds = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    return int(seconds), int(fraction.ljust(9, "0") or 0)


@dataclass
class PlantedFile:
    """A file and its records. ``kind``: gzip, plain, arc or arc gzip."""

    name: str
    kind: str = "gzip"
    level: int = 6
    records: list[Record] = field(default_factory=list)

    def members(self) -> list[bytes]:
        """The stored bytes of each record."""
        members = [record.to_bytes() for record in self.records]
        if "gzip" in self.kind:
            members = [gzip.compress(data, self.level, mtime=0) for data in members]
        return members

    def to_bytes(self) -> bytes:
        return b"".join(self.members())


class Planting:
    """Files to be written, and the truth about their records."""

    def __init__(self) -> None:
        self.files: dict[str, PlantedFile] = {}
        self.records: dict[str, Record] = {}
        self.fates: dict[str, Fate] = {}
        self._seconds = 0

    def write(self, folder: Path) -> None:
        for name, file in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.to_bytes())

    def file(self, name: str, kind: str = "gzip", level: int = 6) -> PlantedFile:
        self.files[name] = PlantedFile(name, kind, level)
        if kind.startswith("arc"):
            block = b"1 0 planted\nURL IP-address Archive-date Content-type Archive-length\n"
            fields = (
                (b"WARC-Type", b"warcinfo"),
                (b"WARC-Target-URI", b"filedesc://" + name.rpartition("/")[2].encode()),
                (b"WARC-Date", self.next_date().encode()),
            )
            self.add(name, Record(f"{name}/head", b"ARC", fields, block, b"", block))
        return self.files[name]

    def add(self, file: str, record: Record, fate: Fate | None = None) -> Record:
        assert record.label not in self.records, record.label
        self.files[file].records.append(record)
        self.records[record.label] = record
        if fate is not None:
            self.fates[record.label] = fate
        return record

    def next_date(self) -> str:
        """Each record that is given no date is a second later than the one before."""
        self._seconds += 1
        moment = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def warcinfo(self, file: str, version: bytes = b"WARC/1.1") -> None:
        label = f"{file}/info"
        block = b"software: planted\r\nformat: WARC File Format\r\n"
        fields = (
            (b"WARC-Type", b"warcinfo"),
            (b"WARC-Record-ID", record_id(label)),
            (b"WARC-Date", self.next_date().encode()),
            (b"WARC-Filename", file.rpartition("/")[2].encode()),
            (b"Content-Type", b"application/warc-fields"),
        )
        self.add(file, Record(label, version, fields, block, b"", block))

    def exchange(
        self,
        file: str,
        label: str,
        uri: str,
        body: bytes,
        *,
        date: str | None = None,
        fate: Fate | None = None,
        status: int = 200,
        method: str = "GET",
        version: bytes = b"WARC/1.1",
        digest_form: str | None = "sha1",
        digest_of: str = "payload",
        block_digest: bool = True,
        chunked: bool = False,
        coding: str | None = None,
        head_only_says_chunked: bool = False,
        order: str = "response request",
        link: str = "request names response",
        brackets: bool = False,
        truncated: str | None = None,
        has_id: bool = True,
        extra: Fields = (),
        http_extra: Fields = (),
        line_end: bytes = b"\r\n",
    ) -> Record:
        """A response, and its request unless *order* leaves it out."""
        date = date or self.next_date()
        payload = body
        if coding == "gzip":
            payload = gzip.compress(body, 6, mtime=0)
        elif coding == "deflate":
            payload = zlib.compress(body)
        stored = in_chunks(payload) if chunked else payload
        words = {200: "OK", 206: "Partial Content", 301: "Moved Permanently", 404: "Not Found"}[status]
        lines = [f"HTTP/1.1 {status} {words}".encode(), b"Content-Type: text/html; charset=utf-8"]
        lines += [b"X-Exchange: " + label.encode(), *(b"%s: %s" % pair for pair in http_extra)]
        if coding:
            lines.append(b"Content-Encoding: " + coding.encode())
        if chunked or head_only_says_chunked:
            lines.append(b"Transfer-Encoding: chunked")
        else:
            lines.append(b"Content-Length: %d" % len(stored))
        head = line_end.join(lines) + line_end * 2
        shown = uri.encode()
        shown = b"<%s>" % shown if brackets else shown
        response_id, request_id = record_id(label), record_id(f"{label}?")
        fields: list[tuple[bytes, bytes]] = [(b"WARC-Type", b"response")]
        if has_id:
            fields.append((b"WARC-Record-ID", response_id))
        fields += [(b"WARC-Date", date.encode()), (b"WARC-Target-URI", shown)]
        fields += [(b"WARC-IP-Address", b"192.0.2.1"), *extra]
        if link == "response names request":
            fields.append((b"WARC-Concurrent-To", request_id))
        if truncated:
            fields.append((b"WARC-Truncated", truncated.encode()))
        if digest_form:
            hashed = {"payload": payload, "stored": stored, "lie": b"something else"}[digest_of]
            fields.append((b"WARC-Payload-Digest", digest(digest_form, hashed)))
        if block_digest:
            fields.append((b"WARC-Block-Digest", digest(digest_form or "sha1", head + stored)))
        fields.append((b"Content-Type", b"application/http; msgtype=response"))
        response = Record(label, version, tuple(fields), head + stored, head, payload, method, status)
        path = uri.split("/", 3)[3].replace(" ", "%20")
        block = f"{method} /{path} HTTP/1.1\r\nHost: {uri.split('/')[2]}\r\n\r\n".encode()
        asked = [
            (b"WARC-Type", b"request"),
            (b"WARC-Record-ID", request_id),
            (b"WARC-Date", date.encode()),
            (b"WARC-Target-URI", shown),
            (b"Content-Type", b"application/http; msgtype=request"),
        ]
        if link == "request names response":
            asked.append((b"WARC-Concurrent-To", response_id))
        request = Record(f"{label}?", version, tuple(asked), block, block, b"", method)
        for word in order.split():
            if word == "response":
                self.add(file, response, fate)
            else:
                linked = isinstance(fate, Copy) and link == "request names response"
                self.add(file, request, Linked(label) if linked else None)
        return response

    def arc_capture(
        self, file: str, label: str, uri: str, body: bytes, *, date: str | None = None, status: int = 200
    ) -> Record:
        head = b"HTTP/1.1 %d OK\r\nContent-Type: text/html\r\nX-Exchange: %s\r\n\r\n" % (
            status,
            label.encode(),
        )
        fields = (
            (b"WARC-Type", b"response"),
            (b"WARC-Date", (date or self.next_date()).encode()),
            (b"WARC-Target-URI", uri.encode()),
        )
        return self.add(file, Record(label, b"ARC", fields, head + body, head, body, "GET", status))

    def other(
        self,
        file: str,
        label: str,
        kind: str,
        uri: str,
        block: bytes,
        *,
        fields: Fields = (),
        fate: Fate | None = None,
        date: str | None = None,
        version: bytes = b"WARC/1.1",
        content_type: bytes = b"text/plain",
    ) -> Record:
        """A resource, metadata, conversion or anything else without HTTP."""
        made = (
            (b"WARC-Type", kind.encode()),
            (b"WARC-Record-ID", record_id(label)),
            (b"WARC-Date", (date or self.next_date()).encode()),
            (b"WARC-Target-URI", uri.encode()),
            *fields,
            (b"Content-Type", content_type),
        )
        return self.add(file, Record(label, version, made, block, b"", block), fate)

    def revisit(
        self,
        file: str,
        label: str,
        uri: str,
        original: Record,
        *,
        names: Iterable[str] = ("id", "uri", "date"),
        fate: Fate | None = None,
        date: str | None = None,
    ) -> Record:
        """A revisit that was there before. *names*: how it says what it refers to."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Exchange: %s\r\n\r\n" % label.encode()
        refers: list[tuple[bytes, bytes]] = []
        if "id" in names:
            refers.append((b"WARC-Refers-To", original.id or b""))
        if "uri" in names:
            refers.append((b"WARC-Refers-To-Target-URI", original.uri))
        if "date" in names:
            refers.append((b"WARC-Refers-To-Date", original.date))
        fields = (
            (b"WARC-Type", b"revisit"),
            (b"WARC-Record-ID", record_id(label)),
            (b"WARC-Date", (date or self.next_date()).encode()),
            (b"WARC-Target-URI", uri.encode()),
            (b"WARC-Profile", IDENTICAL),
            *refers,
            *((name, value) for name, value in original.fields if name == b"WARC-Payload-Digest"),
            (b"WARC-Truncated", b"length"),
            (b"Content-Type", b"application/http; msgtype=response"),
        )
        made = Record(label, b"WARC/1.1", fields, head, head, original.payload, "GET", 200)
        return self.add(file, made, fate)


def stored_in_chunks(record: Record) -> bool:
    return len(record.block) - len(record.head) != len(record.payload)


def fates_of(p: Planting, *, min_size: int = 1_024, prefix: str = "") -> dict[str, Fate]:
    """What has to become of each record, worked out by the rules.

    A cluster is every whole response with one payload. The original of a copy is the earliest GET with status 200, then
    by file, then by place; for a copy that is stored without chunks, the earliest of those without. A copy without
    chunks stays if it shares its URI and second with one in chunks that stays. Records that share an id, and references
    without an id, are beyond this.
    """
    clusters: dict[bytes, list[tuple[tuple[int, int], str, int, Record]]] = {}
    for name, file in p.files.items():
        for number, record in enumerate(file.records):
            whole = record.get(b"WARC-Truncated") is None and record.status != 206
            if record.type == "response" and whole:
                place = (moment(record.date), prefix + name, number, record)
                clusters.setdefault(record.payload, []).append(place)
    fates: dict[str, Fate] = {}
    for payload, places in clusters.items():
        if len(payload) < max(1, min_size):
            continue
        records = [record for *_, record in sorted(places, key=lambda place: place[:3])]
        fit: list[Record] = []
        for record in records:
            if record.status != 200 or record.method != "GET":
                continue
            is_chunked = stored_in_chunks(record)
            original = next((one for one in fit if is_chunked or not stored_in_chunks(one)), None)
            if original is not None and record.id and not record.is_arc:
                fates[record.label] = Copy(original.label)
            fit.append(record)
        chunked_places = {
            (record.uri, moment(record.date)[0])
            for record in records
            if stored_in_chunks(record) and record.label not in fates
        }
        for record in records:
            if not stored_in_chunks(record) and (record.uri, moment(record.date)[0]) in chunked_places:
                fates.pop(record.label, None)
    by_id = {p.records[label].id: (label, fate.of) for label, fate in fates.items() if isinstance(fate, Copy)}
    for label, record in p.records.items():
        if linked := by_id.get(record.get(b"WARC-Concurrent-To")):
            fates.setdefault(label, Linked(linked[0]))
        if referred := by_id.get(record.get(b"WARC-Refers-To")):
            has_id = p.records[referred[1]].id is not None
            fates[label] = Pointed(referred[1]) if has_id or record.type == "revisit" else Linked(referred[0])
    return fates
