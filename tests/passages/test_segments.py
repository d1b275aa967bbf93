from __future__ import annotations

import random
import struct
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passages.segment_cases import (
    KEY_BITS,
    Case,
    Name,
    Text,
    cases,
    outline_of,
    parameters,
    posts_of,
    write,
    written,
)
from sampling import examples

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages.checking import check_segment
from scrapy_dedupe.passages.packing import PackedArray, pack
from scrapy_dedupe.passages.segment_layout import Section, encode_outline
from scrapy_dedupe.passages.segment_writing import SegmentWriter
from scrapy_dedupe.passages.segments import Segment, key_bounds
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.passages.segment_layout import SegmentEntry

D1, D2, D3 = bytes.fromhex("f0" * 16), bytes.fromhex("0102030405060708090a0b0c0d0e0f10"), b"another segment."


def row(digest: bytes) -> np.ndarray:
    return np.frombuffer(digest, np.uint8).reshape(1, -1)


def stored(data: bytes) -> bytes:
    """A deflate stream that does not compress: the same with every version of a library."""
    return b"\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data


def sections_of(data: bytes) -> list[bytes]:
    table = [struct.unpack_from("<QQII", data, 72 + 24 * number) for number in range(19)]
    sections = [data[offset : offset + size] for offset, size, _, _ in table]
    assert [checksum for _, _, checksum, _ in table] == [zlib.crc32(section) for section in sections]
    assert all(offset % 8 == 0 and not zero for offset, _, _, zero in table)
    return sections


def write_golden(folder: Path, *, has_texts: bool) -> None:
    with SegmentWriter(folder, "g", Parameters("words/1", {}, has_texts, 8)) as writer:
        writer.add_text(D1, 5, 30, 2, stored(b"text one"), 8)
        writer.add_text(D2, 6, 40, 3, stored(b"text two"), 8)
        writer.add_document("http://a/1", "a", 0)
        writer.add_document("http://b/2", "b", 1)
        writer.add_document("http://a/3", "a", D3)
        one, other = (np.array(spots, np.uint8) if has_texts else None for spots in ((1, 2), (3, 255, 128)))
        writer.add_posts(np.array([0x80, 3], np.uint64), np.array([0, 0]), one)
        writer.add_posts(np.array([0xFF, 3, 4], np.uint64), np.array([1, 1, 1]), other)
        writer.close()


def test_the_bytes_of_a_segment_with_texts(tmp_path: Path) -> None:
    write_golden(tmp_path, has_texts=True)
    data = (tmp_path / "g.posts").read_bytes()
    assert data[:8] == b"sd-posts"
    #                                                version, texts, key, bucket, value bits, bucket item
    assert struct.unpack_from("<6I", data, 8) == (1, 1, 8, 0, 9, 2)
    #                                                 posts, texts, documents, hosts, foreign digests
    assert struct.unpack_from("<5Q", data, 32) == (5, 2, 3, 2, 1)
    assert data[528:532] == bytes(4)
    assert struct.unpack_from("<I", data, 532) == (zlib.crc32(data[:532]),)
    # 17 bits each: key, text, spot
    posts = 0
    for place, (key, text, spot) in enumerate(
        [(3, 0, 2), (3, 1, 255), (4, 1, 128), (128, 0, 1), (255, 1, 3)]
    ):
        posts |= (key << 9 | text << 8 | spot) << (17 * place)
    names = b"http://a/1\0http://b/2\0http://a/3\0"
    sections = sections_of(data)
    stream = sections.pop(Section.NAMES)
    assert zlib.decompress(stream, -15) == names
    assert sections == [
        posts.to_bytes(16, "little") + bytes(8),
        bytes(8),  # the base of the only bucket
        b"\0\0\5\0",  # its first post, and its end
        D1 + D2,
        bytes.fromhex("04030201 f0f0f0f0"),
        bytes.fromhex("01000000 00000000"),
        bytes.fromhex("05000000 06000000"),
        bytes.fromhex("1e000000 28000000"),
        bytes.fromhex("02000000 03000000"),
        bytes.fromhex("00000000 01000000 ffffffff"),
        bytes.fromhex("00000000 01000000 00000000"),
        D3,
        struct.pack("<Q", len(stream)),
        struct.pack("<I", 33),
        # SHA-256 of the names begins with 93e96c2c, c84dcc97 and 06b853f0
        bytes.fromhex("f053b806 2c6ce993 97cc4dc8"),
        bytes.fromhex("02000000 00000000 01000000"),
        b"a\0b\0",
        struct.pack("<I", zlib.crc32(sections[Section.POSTS])),
    ]


def test_the_bytes_of_a_segment_without_texts(tmp_path: Path) -> None:
    write_golden(tmp_path, has_texts=False)
    data = (tmp_path / "g.posts").read_bytes()
    assert struct.unpack_from("<6I", data, 8) == (1, 0, 8, 0, 3, 2)
    # 11 bits each, the value is the number of the blot: (3, 1), (3, 3), (4, 4), (128, 0), (255, 2)
    posts = 0
    for place, (key, value) in enumerate([(3, 1), (3, 3), (4, 4), (128, 0), (255, 2)]):
        posts |= (key << 3 | value) << (11 * place)
    assert sections_of(data)[Section.POSTS] == posts.to_bytes(8, "little") + bytes(8)


def test_the_bytes_of_blobs(tmp_path: Path) -> None:
    write_golden(tmp_path, has_texts=True)
    blobs = [b"\x01\x08\x00\xf7\xfftext one", b"\x01\x08\x00\xf7\xfftext two"]
    table = (
        struct.pack("<QQ", 13, 26)
        + struct.pack("<II", 8, 8)
        + struct.pack("<II", *(zlib.crc32(blob) for blob in blobs))
    )
    head = b"sd-blobs" + struct.pack("<IIQQ", 1, zlib.crc32(table), 2, 26) + bytes(28)
    assert (tmp_path / "g.blobs").read_bytes() == (
        head + struct.pack("<I", zlib.crc32(head)) + b"".join(blobs) + bytes(6) + table
    )


@given(cases(), st.booleans())
@settings(deadline=None, max_examples=examples(50))
def test_a_segment_is_read_as_it_was_written(case: Case, has_texts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        segment = written(Path(folder), case, has_texts=has_texts)
        posts = case.posts(has_texts=has_texts)
        keys = np.arange(1 << KEY_BITS, dtype=np.uint64)
        assert posts_of(*segment.find(keys)) == posts
        found = segment.posts_between(0, 1 << KEY_BITS)
        assert posts_of(found.keys, found.texts, found.where) == posts
        assert (segment.post_count, segment.text_count, segment.document_count) == (
            len(posts),
            len(case.texts),
            len(case.documents),
        )
        for number, text in enumerate(case.texts):
            assert segment.digests.texts_of(row(text.digest)) == number
            assert segment.char_counts[number] == len(text.text)
            assert segment.token_counts[number] == 3 * len(text.text)
            if has_texts:
                assert segment.blobs.inflated(number).decode() == text.text
            else:
                assert segment.blobs.inflated(number) == encode_outline(outline_of(text))
                assert np.array_equal(segment.outline(number).char_ends, outline_of(text).char_ends)
        assert segment.digests.texts_of(row(bytes(16))) == -1
        hosts, texts, foreign = segment.documents.hosts, segment.documents.texts, segment.documents.foreign
        assert list(segment.documents.doc_ids()) == [document.doc_id for document in case.documents]
        for number, document in enumerate(case.documents):
            assert segment.documents.doc_id(number) == document.doc_id
            assert segment.documents.number_of(document.doc_id) == number
            assert hosts[segment.documents.host_numbers[number]] == document.host
            text_number = int(texts[number])
            assert (text_number if text_number >= 0 else foreign[-1 - text_number].tobytes()) == document.text
        assert segment.documents.number_of("not there") is None
        assert list(check_segment(segment)) == []
        segment.close()


@given(cases(), st.booleans(), st.sets(st.integers(0, (1 << KEY_BITS) - 1), max_size=40))
@settings(deadline=None, max_examples=examples(50))
def test_only_the_keys_that_are_asked_for_are_found(case: Case, has_texts: bool, asked: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        segment = written(Path(folder), case, has_texts=has_texts)
        keys = np.array(sorted(asked), np.uint64)
        numbers, texts, where = segment.find(keys)
        assert posts_of(keys[numbers], texts, where) == [
            post for post in case.posts(has_texts=has_texts) if post[0] in asked
        ]
        segment.close()


@given(cases(), st.integers(0, 1 << KEY_BITS), st.integers(0, 1 << KEY_BITS), st.integers(1, 20))
@settings(deadline=None, max_examples=examples(25))
def test_ranges_of_keys_are_cut_where_they_are_asked_for(case: Case, low: int, high: int, most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        segment = written(Path(folder), case, has_texts=False)
        posts = case.posts(has_texts=False)
        found = segment.posts_between(low, high)
        assert posts_of(found.keys, found.texts, found.where) == [
            post for post in posts if low <= post[0] < high
        ]
        bounds = key_bounds([segment], most)
        assert (bounds[0], bounds[-1]) == (0, 1 << KEY_BITS)
        assert sorted(set(bounds)) == bounds
        chunks = [segment.posts_between(*pair) for pair in pairwise(bounds)]
        assert [post for chunk in chunks for post in posts_of(chunk.keys, chunk.texts, chunk.where)] == posts
        segment.close()


def many_posts(folder: Path, *, has_texts: bool) -> tuple[Segment, list[tuple[int, int, int]]]:
    """20,000 texts; 70,000 posts under one key and its neighbours, and as many elsewhere."""
    rng = np.random.default_rng(7)
    keys = np.concatenate([1000 + rng.integers(0, 3, 90_000), rng.integers(0, 1 << 40, 70_000)]).astype(
        np.uint64
    )
    texts = np.sort(rng.integers(0, 20_000, len(keys)))
    pairs = np.unique(np.stack([texts, keys.astype(np.int64)]), axis=1)
    texts, keys = pairs[0], pairs[1].astype(np.uint64)
    counts = np.bincount(texts, minlength=20_000)
    given_parameters = parameters(has_texts=has_texts, key_bits=40)
    with SegmentWriter(folder, "many", given_parameters) as writer:
        for number, count in enumerate(counts.tolist()):
            writer.add_text(number.to_bytes(16, "big"), 1, 1, count, b"", 0)
        for start in range(0, len(keys), 7_777):
            writer.add_posts(keys[start : start + 7_777], texts[start : start + 7_777])
        segment = Segment(folder, writer.close(), given_parameters)
    where = (
        np.arange(len(keys)) - (np.cumsum(counts) - counts)[texts] if not has_texts else np.full(len(keys), 1)
    )
    return segment, sorted(posts_of(keys, texts, where))


@pytest.mark.parametrize("has_texts", [True, False])
def test_a_key_with_very_many_posts_hides_no_other(tmp_path: Path, has_texts: bool) -> None:
    segment, posts = many_posts(tmp_path, has_texts=has_texts)
    keys = np.unique(np.array([key for key, _, _ in posts] + [0, 999, 1003, (1 << 40) - 1], np.uint64))
    numbers, texts, where = segment.find(keys)
    assert posts_of(keys[numbers], texts, where) == posts
    single = [
        posts_of(key + segment.find(key)[0].astype(np.uint64), *segment.find(key)[1:])
        for key in keys[:5, None]
    ]
    assert [post for some in single for post in some] == [post for post in posts if post[0] <= int(keys[4])]


def test_many_posts_of_a_key_that_are_out_of_order_are_looked_through_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, posts = many_posts(tmp_path, has_texts=True)
    keys = np.unique(np.array([key for key, _, _ in posts], np.uint64))
    packed = segment._packed
    values = packed.range(0, segment.post_count)
    for order in (np.arange(len(values))[::-1], np.random.default_rng(1).permutation(len(values))):
        shuffled = PackedArray(pack(values[order], packed.width), packed.width, len(values))
        monkeypatch.setattr(segment, "_packed", shuffled)
        numbers, texts, where = segment.find(keys)
        assert len(numbers) == len(texts) == len(where) <= len(posts)


@pytest.mark.parametrize("has_texts", [True, False])
def test_chunks_hold_no_more_posts_than_asked_for_but_for_single_keys(
    tmp_path: Path, has_texts: bool
) -> None:
    segment, posts = many_posts(tmp_path, has_texts=has_texts)
    sizes = [len(segment.posts_between(*pair).keys) for pair in pairwise(key_bounds([segment], 5_000))]
    assert sum(sizes) == len(posts)
    assert sum(size > 5_000 for size in sizes) == 1
    assert len(sizes) < 2 * len(posts) / 5_000 + 2


def test_a_document_that_is_there_twice_is_told_by_its_last_number(tmp_path: Path) -> None:
    case = Case((Text("a", (1,)),), (Name("x", "", 0), Name("y", "", 0), Name("x", "", 0)))
    assert written(tmp_path, case, has_texts=True).documents.named(["x", "z", "y"]) == {0: 2, 2: 1}


def test_digests_with_the_same_head_are_told_apart(tmp_path: Path) -> None:
    digests = [b"head" + bytes([n]) * 12 for n in (3, 1, 2)]
    with SegmentWriter(tmp_path, "one", parameters(has_texts=True)) as writer:
        for digest in digests:
            writer.add_text(digest, 0, 0, 0, b"", 0)
        segment = Segment(tmp_path, writer.close(), parameters(has_texts=True))
    asked = np.frombuffer(b"".join([*digests, b"head" + bytes(12)]), np.uint8).reshape(-1, 16)
    assert segment.digests.texts_of(asked).tolist() == [0, 1, 2, -1]


def test_keys_of_all_bits_in_the_directory_need_none_in_the_posts(tmp_path: Path) -> None:
    given_parameters = parameters(has_texts=True, key_bits=3)
    with SegmentWriter(tmp_path, "one", given_parameters) as writer:
        for number in range(100):
            writer.add_text(bytes([number]) * 16, 0, 0, 8, b"", 0)
            writer.add_posts(np.arange(8, dtype=np.uint64), np.full(8, number))
        segment = Segment(tmp_path, writer.close(), given_parameters)
    numbers, texts, _ = segment.find(np.array([2, 7], np.uint64))
    assert numbers.tolist() == [0] * 100 + [1] * 100
    assert texts.tolist() == 2 * list(range(100))


# What a reader refuses

CASE = Case(
    (Text("to be or not to be", tuple(range(0, 4000, 7))), Text("that is", (7, 14, 99)), Text("", ())),
    (
        *(Name(f"http://a.org/{number}", "a.org", number % 3) for number in range(150)),
        Name("other", "b.org", D3),
    ),
)


def test_a_segment_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    for name in ("one.blobs", "one.posts"):
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError):
            Segment(tmp_path, entry, parameters(has_texts=True))


@pytest.mark.parametrize("changed", [{"has_texts": False}, {"has_texts": True, "key_bits": 40}])
def test_a_segment_of_other_parameters_is_refused(tmp_path: Path, changed: dict[str, int]) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    with pytest.raises(StoreRefused, match=r"one\.posts was written with texts and with keys of 12 bits"):
        Segment(tmp_path, entry, parameters(**changed))  # type: ignore[arg-type]


def test_a_segment_that_is_not_the_one_of_the_manifest_is_refused(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    other = replace(CASE, documents=(*CASE.documents[:-1], Name("Other", "b.org", D3)))
    assert write(tmp_path, "one", other, has_texts=True).posts_size == entry.posts_size
    with pytest.raises(StoreRefused, match="it is not the file that the manifest names"):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_a_segment_of_a_later_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.blobs"
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(StoreRefused, match="it has format version 2, but this program reads version 1"):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_a_damaged_text_is_named_when_it_is_read_and_by_the_check(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.blobs"
    data = bytearray(path.read_bytes())
    data[64 + 3] ^= 0x10
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    with pytest.raises(
        StoreRefused, match=r"one\.blobs cannot be used: the blob of text 0 at byte 64 is damaged"
    ):
        segment.blobs.inflated(0)
    assert segment.blobs.inflated(1) == b"that is"
    (problem,) = check_segment(segment)
    assert "the blob of text 0 at byte 64 is damaged" in problem


@pytest.mark.parametrize("section", [section for section in Section if section is not Section.HOSTS])
def test_the_check_names_the_section_that_is_damaged(tmp_path: Path, section: Section) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.posts"
    data = bytearray(path.read_bytes())
    offset, size = struct.unpack_from("<QQ", data, 72 + 24 * section)
    data[offset + size // 2] ^= 1
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    assert list(check_segment(segment)) == [f"{path}: its section '{section.title}' is damaged."]
    with pytest.raises(StoreRefused, match=f"its section '{section.title}' is damaged"):
        segment.refuse_damage()


USES = {
    Section.POSTS: lambda segment: segment.find(np.arange(1 << KEY_BITS, dtype=np.uint64)),
    Section.POST_CHECKSUMS: lambda segment: segment.find(np.array([7], np.uint64)),
    Section.BASES: lambda segment: segment.posts_between(0, 9),
    Section.BUCKETS: lambda segment: segment.find(np.array([7], np.uint64)),
    Section.DIGESTS: lambda segment: segment.digests.array,
    Section.DIGEST_HEADS: lambda segment: segment.digests.texts_of(row(D1)),
    Section.DIGEST_ORDER: lambda segment: segment.digests.texts_of(row(D1)),
    Section.TOKEN_COUNTS: lambda segment: segment.token_counts,
    Section.CHAR_COUNTS: lambda segment: segment.char_counts,
    Section.POST_COUNTS: lambda segment: segment.find(np.array([7], np.uint64)),
    Section.DOCUMENT_TEXTS: lambda segment: segment.documents.texts,
    Section.DOCUMENT_HOSTS: lambda segment: segment.documents.host_numbers,
    Section.FOREIGN: lambda segment: segment.documents.foreign,
    Section.NAMES: lambda segment: segment.documents.doc_id(0),
    Section.NAME_ENDS: lambda segment: segment.documents.doc_id(0),
    Section.NAME_SIZES: lambda segment: list(segment.documents.doc_ids()),
    Section.NAME_HEADS: lambda segment: segment.documents.number_of("other"),
    Section.NAME_ORDER: lambda segment: segment.documents.number_of("other"),
    Section.HOSTS: lambda segment: segment.documents.hosts,
}


@pytest.mark.parametrize("section", Section)
def test_no_answer_is_made_of_a_damaged_section(tmp_path: Path, section: Section) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=False)
    path = tmp_path / "one.posts"
    data = path.read_bytes()
    offset, size = struct.unpack_from("<QQ", data, 72 + 24 * section)
    for at in {offset, offset + size // 2}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        segment = Segment(tmp_path, entry, parameters(has_texts=False))
        with pytest.raises(StoreRefused, match=f"its section '{section.title}' is damaged"):
            USES[section](segment)


def test_damage_in_a_block_of_posts_is_refused_where_it_is_read_and_only_there(tmp_path: Path) -> None:
    segment, posts = many_posts(tmp_path, has_texts=False)
    path = segment.path
    data = bytearray(path.read_bytes())
    offset, size = struct.unpack_from("<QQ", data, 72)
    assert size > 100 * 4096
    data[offset + size - 100] ^= 1  # among the last keys
    path.write_bytes(data)
    damaged = Segment(tmp_path, segment.entry, parameters(has_texts=False, key_bits=40))
    first, last = (np.array([key], np.uint64) for key in (posts[0][0], posts[-1][0]))
    assert len(damaged.find(first)[0]) == len(segment.find(first)[0]) > 0
    half = posts[len(posts) // 2][0]
    assert len(damaged.posts_between(0, half).keys) > 1000
    for question in (lambda: damaged.find(last), lambda: damaged.posts_between(half, 1 << 40)):
        with pytest.raises(StoreRefused, match="its section 'posts' is damaged"):
            question()


def test_a_damaged_table_of_blobs_is_refused_before_a_text_is_read(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.blobs"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the checksum of the last text
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    with pytest.raises(StoreRefused, match=r"one\.blobs cannot be used: its table is damaged"):
        segment.blobs.inflated(0)


def forged(folder: Path, entry: SegmentEntry, change: Callable[[bytearray], object]) -> SegmentEntry:
    """The entry of the segment whose header is changed, with a good checksum."""
    path = folder / "one.posts"
    data = bytearray(path.read_bytes())
    change(data)
    struct.pack_into("<I", data, 532, zlib.crc32(data[:532]))
    path.write_bytes(data)
    posts, texts, documents = struct.unpack_from("<3Q", data, 32)
    return replace(
        entry,
        posts=posts,
        texts=texts,
        documents=documents,
        posts_size=len(data),
        posts_checksum=zlib.crc32(data[:532]),
    )


FORGERIES: dict[str, tuple[str, int, int]] = {
    "neither with texts nor without": ("<I", 12, 2),
    "no bits in a key": ("<I", 16, 0),
    "keys of very many bits": ("<I", 16, 0xFFFFFFFF),
    "more bits for buckets than a key has": ("<I", 20, 0xFFFFFFFF),
    "values too wide": ("<I", 24, 60),
    "values too narrow": ("<I", 24, 1),
    "no such item of buckets": ("<I", 28, 3),
    "more posts than texts have keys": ("<Q", 32, 3 << KEY_BITS | 1),
    "very many posts": ("<Q", 32, 1 << 40),
    "very many texts": ("<Q", 40, 1 << 62),
    "very many documents": ("<Q", 48, 1 << 62),
    "very many digests": ("<Q", 64, 1 << 62),
    "a section outside": ("<Q", 72, 1 << 62),
    "a section over another": ("<Q", 72 + 24 * Section.CHAR_COUNTS, 536),
    "a section over the header": ("<Q", 72, 0),
    "a very large section": ("<Q", 80 + 24 * Section.HOSTS, 1 << 62),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_header_that_cannot_be_is_refused_at_once(tmp_path: Path, what: str) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    form, place, value = FORGERIES[what]
    entry = forged(tmp_path, entry, lambda data: struct.pack_into(form, data, place, value))
    with pytest.raises(StoreRefused, match=r"one\.posts cannot be used"):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_bytes_behind_the_last_section_are_refused(tmp_path: Path) -> None:
    entry = forged(tmp_path, write(tmp_path, "one", CASE, has_texts=True), lambda data: data.extend(bytes(8)))
    with pytest.raises(StoreRefused, match="its header is inconsistent"):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_posts_that_fit_no_bits_are_no_more_than_one(tmp_path: Path) -> None:
    """Any number of posts of no bits would fit a file of a few bytes."""
    one = Case((Text("a", ()),), ())
    entry = write(tmp_path, "one", one, has_texts=False)

    def change(data: bytearray) -> None:
        struct.pack_into("<2I", data, 16, 8, 8)
        struct.pack_into("<Q", data, 32, 1 << 40)

    with pytest.raises(StoreRefused, match="its header is inconsistent"):
        Segment(tmp_path, forged(tmp_path, entry, change), parameters(has_texts=False, key_bits=8))


def test_counts_of_posts_that_are_not_all_posts_are_refused(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=False)

    def change(data: bytearray) -> None:
        place = 72 + 24 * Section.POST_COUNTS
        offset, size = struct.unpack_from("<QQ", data, place)
        data[offset] ^= 4
        struct.pack_into("<I", data, place + 16, zlib.crc32(data[offset : offset + size]))

    segment = Segment(tmp_path, forged(tmp_path, entry, change), parameters(has_texts=False))
    with pytest.raises(StoreRefused, match="its section 'post counts' is damaged"):
        segment.find(np.array([7], np.uint64))


def test_an_id_that_cannot_be_encoded_names_no_document(tmp_path: Path) -> None:
    segment = written(tmp_path, CASE, has_texts=True)
    assert segment.documents.named(["\udcff", "other", "a\ud800"]) == {1: 150}
    assert segment.documents.number_of("caf\udce9.txt") is None


def test_threads_may_ask_one_segment_for_names(tmp_path: Path) -> None:
    names = tuple(Name(f"doc/{number}", "", 0) for number in range(64 * 100))
    segment = written(tmp_path, Case((Text("a", (1,)),), names), has_texts=True)

    def ask(seed: int) -> bool:
        numbers = random.Random(seed).choices(range(len(names)), k=1_000)
        return all(segment.documents.doc_id(number) == f"doc/{number}" for number in numbers)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:
            assert all(threads.map(ask, range(6)))
    finally:
        sys.setswitchinterval(before)


@given(st.sampled_from(["one.posts", "one.blobs"]), st.integers(0), st.integers(1, 255), st.booleans())
@settings(deadline=None, max_examples=examples(80))
def test_a_changed_byte_is_found_and_breaks_no_reader(
    name: str, place: int, change: int, has_texts: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder), "one", CASE, has_texts=has_texts)
        path = Path(folder, name)
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= change
        path.write_bytes(data)
        try:
            segment = Segment(Path(folder), entry, parameters(has_texts=has_texts))
        except StoreRefused:
            return
        assert list(check_segment(segment))
        read_everything(segment)
        segment.close()


@given(
    st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=64)), min_size=1, max_size=20),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(80))
def test_much_damage_breaks_no_reader(changes: list[tuple[int, bytes]], has_texts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder), "one", CASE, has_texts=has_texts)
        for name in ("one.posts", "one.blobs"):
            path = Path(folder, name)
            data = bytearray(path.read_bytes())
            first = 536 if name == "one.posts" else 64  # a changed header is refused: see above
            for place, new in changes:
                start = first + place % (len(data) - first)
                data[start : start + len(new)] = new[: len(data) - start]
            path.write_bytes(data)
        segment = Segment(Path(folder), entry, parameters(has_texts=has_texts))
        read_everything(segment)
        segment.close()


@given(st.sampled_from(["one.posts", "one.blobs"]), st.integers(0))
@settings(deadline=None, max_examples=examples(50))
def test_a_file_that_was_cut_is_refused(name: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder), "one", CASE, has_texts=True)
        path = Path(folder, name)
        data = path.read_bytes()
        path.write_bytes(data[: size % len(data)])
        with pytest.raises(StoreRefused, match=rf"{name} has \d+ bytes instead of"):
            Segment(Path(folder), entry, parameters(has_texts=True))


def read_everything(segment: Segment) -> None:
    """Ask everything that can be asked; each question has an answer, or is refused."""
    digests = np.frombuffer(b"".join([text.digest for text in CASE.texts] + [D1]), np.uint8).reshape(-1, 16)
    questions = [
        lambda: segment.find(np.arange(1 << KEY_BITS, dtype=np.uint64)),
        lambda: segment.find(np.array([7], np.uint64)),
        lambda: segment.posts_between(0, 1 << KEY_BITS),
        lambda: segment.posts_between(100, 1000),
        lambda: [segment.posts_between(*pair) for pair in pairwise(key_bounds([segment], 50))],
        lambda: segment.digests.texts_of(digests),
        lambda: segment.digests.texts_of(segment.digests.array),
        lambda: segment.documents.hosts,
        lambda: segment.documents.texts,
        lambda: segment.documents.host_numbers,
        lambda: segment.documents.foreign,
        lambda: list(segment.documents.doc_ids()),
        lambda: segment.documents.named([document.doc_id for document in CASE.documents]),
        lambda: segment.blobs.stored_many(0, 3),
        *(lambda number=number: segment.documents.doc_id(number) for number in range(151)),
        *(lambda text=text: segment.blobs.inflated(text) for text in range(3)),
        *(lambda text=text: segment.has_texts or segment.outline(text) for text in range(3)),
    ]
    for question in questions:
        try:
            question()
        except StoreRefused:
            continue
