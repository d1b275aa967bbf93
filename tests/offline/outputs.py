"""What became of a planted archive, read with warcio and compared with the truth."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline.planted import IDENTICAL, Copy, Linked, Record, digest, in_chunks
from warcio.archiveiterator import ArchiveIterator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline.planted import Fate, Planting

FORMER = b"Former-"


@dataclass(frozen=True, slots=True)
class Seen:
    """A record: its bytes as stored, and what is in them."""

    stored: bytes
    version: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    block: bytes

    def get(self, name: bytes) -> bytes | None:
        return next((value for known, value in self.fields if known.lower() == name.lower()), None)

    @property
    def plain(self) -> bytes:
        """The record without its compression and its last line ends."""
        plain = gzip.decompress(self.stored) if self.stored[:2] == b"\x1f\x8b" else self.stored
        return plain.rstrip(b"\r\n")


def read(path: Path) -> list[Seen]:
    """The records of a file: warcio tells their places and blocks, their fields are split here."""
    places = []
    with path.open("rb") as stream:
        iterator = ArchiveIterator(stream, no_record_parse=True)
        for record in iterator:
            block = record.raw_stream.read()
            places.append((iterator.get_record_offset(), iterator.get_record_length(), block))
    data = path.read_bytes()
    found = []
    for offset, length, block in places:
        stored = data[offset : offset + length]
        plain = gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored
        head, _, rest = plain.partition(b"\r\n\r\n")
        if head.startswith(b"WARC/"):
            version, *lines = head.split(b"\r\n")
            fields = tuple((line.split(b": ", 1)[0], line.split(b": ", 1)[1]) for line in lines)
            assert rest.startswith(block)
            assert rest[len(block) :].strip(b"\r\n") == b""
        else:
            version, fields = b"ARC", ()
        found.append(Seen(stored, version, fields, block))
    if places:
        # Nothing is between the records but the line ends that warcio does not count in plain files.
        gaps = bytearray(data)
        for offset, length, _ in reversed(places):
            del gaps[offset : offset + length]
        assert not bytes(gaps).strip(b"\r\n")
    return found


def assert_deduplicated(
    p: Planting, folder: Path, fates: Mapping[str, Fate] | None = None, names: Mapping[str, str] | None = None
) -> None:
    """*folder* holds the planted archive with its copies as revisits, and nothing else was touched."""
    fates = p.fates if fates is None else fates
    names = names or {name: name for name in p.files}
    seen: dict[str, Seen] = {}
    for name, file in p.files.items():
        path = folder / names[name]
        assert path.exists(), name
        if file.kind.startswith("arc"):
            assert path.read_bytes() == file.to_bytes(), name
            continue
        found = read(path)
        assert len(found) == len(file.records), name
        seen.update({record.label: after for record, after in zip(file.records, found, strict=True)})
    for name, file in p.files.items():
        for record, member in zip(file.records, file.members(), strict=True):
            if record.is_arc:
                continue
            after, fate = seen[record.label], fates.get(record.label)
            try:
                if fate is None:
                    assert after.stored.rstrip(b"\r\n") == member.rstrip(b"\r\n")
                elif isinstance(fate, Copy):
                    _assert_revisit(p, record, p.records[fate.of], after)
                elif isinstance(fate, Linked):
                    _assert_linked(record, seen[fate.to], after)
                else:
                    _assert_pointed(record, p.records[fate.to], after)
                assert after.stored[:2] == member[:2]
            except AssertionError as error:
                error.add_note(f"{record.label} in {name}, {fate}\n{after.plain[:1500].decode('latin-1')}")
                raise
    ids = [
        after.get(b"WARC-Record-ID") for label, after in seen.items() if isinstance(fates.get(label), Copy)
    ]
    before = {record.id for record in p.records.values()}
    assert not before & set(ids)
    # A new id follows from the old one, and from nothing else.
    old = [record.id for label, record in p.records.items() if isinstance(fates.get(label), Copy)]
    assert len(set(zip(old, ids, strict=True))) == len(set(old)) == len(set(ids))


def _assert_revisit(p: Planting, before: Record, original: Record, after: Seen) -> None:
    wanted = digest_text_of(original)
    block = before.head
    expected = {
        b"warc-type": b"revisit",
        b"warc-profile": IDENTICAL,
        b"warc-refers-to": original.id,
        b"warc-refers-to-target-uri": original.uri,
        b"warc-refers-to-date": original.date,
        b"warc-payload-digest": wanted,
        b"warc-truncated": b"length",
        b"former-warc-record-id": before.id,
        b"content-length": b"%d" % len(block),
    }
    had = before.get(b"WARC-Payload-Digest")
    expected[b"former-warc-payload-digest"] = None if had == wanted else had or b"none"
    had = before.get(b"WARC-Block-Digest")
    expected[b"former-warc-block-digest"] = had
    expected[b"warc-block-digest"] = None if had is None else _like(had, block)
    for name, value in expected.items():
        assert after.get(name) == value, name
    assert after.version == before.version
    assert after.block == block
    new_id = after.get(b"WARC-Record-ID") or b""
    assert re.fullmatch(rb"<urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}>", new_id)
    assert new_id != before.id
    assert _others(after.fields, {*expected, b"warc-record-id"}) == _others(
        before.fields, {*expected, b"warc-record-id"}
    )
    names = [name.lower() for name, _ in after.fields]
    assert len(names) == len(set(names))


def _assert_linked(before: Record, target: Seen, after: Seen) -> None:
    name = b"WARC-Concurrent-To" if before.get(b"WARC-Concurrent-To") else b"WARC-Refers-To"
    assert after.get(name) == target.get(b"WARC-Record-ID")
    assert after.get(FORMER + name) == before.get(name)
    _assert_rest_equal(before, after, {name.lower(), (FORMER + name).lower()})


def _assert_pointed(before: Record, original: Record, after: Seen) -> None:
    refers = {
        b"WARC-Refers-To": original.id,
        b"WARC-Refers-To-Target-URI": original.uri,
        b"WARC-Refers-To-Date": original.date,
    }
    if before.type == "revisit":
        refers[b"WARC-Payload-Digest"] = digest_text_of(original)
    changed = set()
    for name, value in refers.items():
        changed |= {name.lower(), (FORMER + name).lower()}
        had = before.get(name)
        assert after.get(name) == value or (before.type != "revisit" and had is None), name
        assert after.get(FORMER + name) == (None if after.get(name) == had else had or b"none"), name
    _assert_rest_equal(before, after, changed)


def _assert_rest_equal(before: Record, after: Seen, changed: set[bytes]) -> None:
    assert after.version == before.version
    assert after.block == before.block
    changed |= {b"content-length"}
    assert _others(after.fields, changed) == _others(before.fields, changed)


def _others(fields: tuple[tuple[bytes, bytes], ...], names: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in fields if name.lower() not in names]


def digest_text_of(original: Record) -> bytes:
    """What a revisit has to carry: the original's own text, else what replay programs compute."""
    return original.get(b"WARC-Payload-Digest") or digest("sha1", original.payload)


def _like(digest_text: bytes, data: bytes) -> bytes:
    label, _, value = digest_text.partition(b":")
    is_hex = len(value) == hashlib.new(label.decode()).digest_size * 2
    return digest(label.decode() + (" hex" if is_hex else ""), data)


def assert_restored(p: Planting, folder: Path, fates: Mapping[str, Fate] | None = None) -> None:
    """*folder* holds the planted archive as it was, but for the compression of the records that were changed.

    The framing of a transfer in chunks is lost with a copy, so there the payload is compared, and the digest of the
    block has to be that of the new block.
    """
    fates = p.fates if fates is None else fates
    for name, file in p.files.items():
        path = folder / name
        if file.kind.startswith("arc"):
            assert path.read_bytes() == file.to_bytes(), name
            continue
        found = read(path)
        assert len(found) == len(file.records), name
        for record, after in zip(file.records, found, strict=True):
            if isinstance(fates.get(record.label), Copy) and b"Transfer-Encoding: chunked" in record.head:
                assert after.version == record.version
                assert after.block.startswith(record.head)
                body = after.block[len(record.head) :]
                assert body == record.payload or body == in_chunks(record.payload, len(record.payload))
                of_block = {b"content-length", b"warc-block-digest"}
                assert _others(after.fields, of_block) == _others(record.fields, of_block)
                had = record.get(b"WARC-Block-Digest")
                assert after.get(b"WARC-Block-Digest") == (had and _like(had, after.block))
            else:
                assert after.plain == record.to_bytes().rstrip(b"\r\n"), (name, record.label)


def snapshot(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
