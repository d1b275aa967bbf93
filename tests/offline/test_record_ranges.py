"""A file cut into byte_ranges: every byte once, records where they are, damage told."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.offline.record_ranges import ByteRange, byte_ranges, exact_head

if TYPE_CHECKING:
    from pathlib import Path


class Place(NamedTuple):
    offset: int
    length: int


def record(block: bytes, name: bytes = b"a", end: bytes = b"\r\n\r\n", line: bytes = b"\r\n") -> bytes:
    lines = [b"WARC/1.1", b"WARC-Type: metadata", b"WARC-Record-ID: <urn:%b>" % name]
    return line.join([*lines, b"Content-Length: %d" % len(block), b"", b""]) + block + end


def cut(path: Path, listed: list[Place] | None = None) -> tuple[list[ByteRange], list[tuple[int, str]]]:
    damages: list[tuple[int, str]] = []
    found = list(
        byte_ranges(
            path,
            iter(listed or []),
            wants_head=lambda _: True,
            on_damage=lambda offset, reason: damages.append((offset, reason)),
        )
    )
    position = 0
    for span in found:
        if span.length:
            assert span.offset == position
            position += span.length
    assert position == path.stat().st_size
    return found, damages


@pytest.mark.parametrize("is_gzip", [True, False])
def test_records_are_found_with_their_heads_and_blocks(tmp_path: Path, is_gzip: bool) -> None:
    blocks = [b"", b"x" * 5_000, random.Random(0).randbytes(300_000), b"WARC/1.1\r\n\r\n", b"y" * 2_000_000]
    records = [record(block, b"%d" % index) for index, block in enumerate(blocks)]
    members = [gzip.compress(data) if is_gzip else data for data in records]
    path = tmp_path / ("a.warc.gz" if is_gzip else "a.warc")
    path.write_bytes(b"".join(members))

    found, damages = cut(path)

    assert not damages
    assert [span.length for span in found] == list(map(len, members))
    for index, (span, block) in enumerate(zip(found, blocks, strict=True)):
        assert b"<urn:%d>" % index in span.head
        assert block.startswith(span.start)
        assert not span.has_block or span.start == block
        if (head := exact_head(span)) is not None:
            assert head.get(b"WARC-Record-ID") == b"<urn:%d>" % index


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.sampled_from([b"\r\n\r\n", b"\r\n", b"\n\n", b"\r\n\r\n\r\n"]),
            st.sampled_from([b"\r\n", b"\n"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.data(),
)
def test_whatever_a_file_holds_its_bytes_are_covered_once(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[bytes, bytes, bytes]],
    is_gzip: bool,
    data: st.DataObject,
) -> None:
    members = [record(block, b"n", end, line) for block, end, line in parts]
    members = [gzip.compress(member) for member in members] if is_gzip else members
    raw = bytearray(b"".join(members))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=2)):
        raw[place] ^= 0xFF
    raw += data.draw(st.sampled_from([b"", b"\0" * 10, b"garbage"]))
    path = tmp_path_factory.mktemp("cut") / ("a.warc.gz" if is_gzip else "a.warc")
    path.write_bytes(raw)
    listed, position = [], 0
    for member in members:
        if data.draw(st.booleans()):
            listed.append(Place(position, len(member)))
        position += len(member)

    cut(path, listed)


def test_a_listed_record_is_taken_at_its_word_without_being_decompressed(tmp_path: Path) -> None:
    member = bytearray(gzip.compress(record(random.Random(1).randbytes(50_000))))
    member[30_000] ^= 0xFF  # which a whole decompression would notice
    path = tmp_path / "a.warc.gz"
    path.write_bytes(member + gzip.compress(record(b"b")))

    found, damages = cut(path, [Place(0, len(member))])

    assert not damages
    assert found[0].listed == Place(0, len(member))
    assert cut(path)[1][0][0] == 0


@pytest.mark.parametrize(
    "between", [gzip.compress(b""), b"\0" * 10], ids=["a member without bytes", "NUL bytes"]
)
def test_a_listed_record_is_found_behind_what_is_no_record(tmp_path: Path, between: bytes) -> None:
    first, second = gzip.compress(record(b"one", b"1")), gzip.compress(record(b"two", b"2"))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(first + between + second + between + second)
    begins = len(first) + len(between)

    found, damages = cut(path, [Place(begins, len(second))])

    assert not damages
    assert [span.length for span in found] == [*map(len, (first, between, second, between, second))]
    assert [span.listed for span in found] == [None, None, Place(begins, len(second)), None, None]
    assert b"<urn:2>" in found[2].head
    assert b"<urn:2>" in found[4].head


def test_a_place_where_no_record_begins_is_told(tmp_path: Path) -> None:
    first, second = gzip.compress(record(b"one")), gzip.compress(record(b"two"))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(first + second)

    found, damages = cut(path, [Place(5, 20), Place(len(first) + len(second), 10)])

    assert [span.length for span in found] == [len(first), len(second)]
    assert [offset for offset, _ in damages] == [5, len(first) + len(second)]


def test_records_that_share_a_member_are_one_stretch_behind_a_look_at_each(tmp_path: Path) -> None:
    shared = gzip.compress(record(b"one", b"1") + record(b"two", b"2"))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(record(b"zero")) + shared + gzip.compress(record(b"three")))

    found, damages = cut(path)

    assert not damages
    assert [bool(span.length) for span in found] == [True, False, False, True, True]
    assert [b"<urn:1>" in found[1].head, b"<urn:2>" in found[2].head] == [True, True]
    assert found[3].length == len(shared)
    assert not found[3].head


def test_a_head_with_a_folded_field_is_left_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(record(b"x").replace(b"metadata", b"meta\r\n data"))

    (span,), _ = cut(path)

    assert exact_head(span) is None
