from __future__ import annotations

import random
import struct
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
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
    add_text,
    cases,
    outline_of,
    parameters,
    posts_of,
    write,
    written,
)
from sampling import examples

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages.segment_layout import encode_outline, new_segment
from scrapy_dedupe.passages.segments import Segment, key_bounds
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from scrapy_dedupe.passages.segment_layout import SegmentEntry

D1, D2, D3 = bytes.fromhex("f0" * 16), bytes.fromhex("0102030405060708090a0b0c0d0e0f10"), b"another segment."


def row(digest: bytes) -> np.ndarray:
    return np.frombuffer(digest, np.uint8).reshape(1, -1)


def stored(data: bytes) -> bytes:
    """A deflate stream that does not compress: the same with every version of a library."""
    return b"\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data


def sections_of(folder: Path, entry: SegmentEntry) -> dict[str, bytes]:
    """The bytes of each section. Between them are only zeros, up to the next multiple of 8."""
    data = (folder / f"{entry.name}.segment").read_bytes()
    assert data[:16] == b"sd-segment 2\0\0\0\0"
    sections, stop = {}, 16
    for name, (offset, size, checksum) in entry.sections.items():
        assert offset % 8 == 0
        assert data[stop:offset] == bytes(-stop % 8)
        stop = offset + size
        sections[name] = data[offset:stop]
        assert checksum == zlib.crc32(sections[name])
    assert stop == len(data) == entry.size
    return sections


def write_golden(folder: Path, *, has_texts: bool) -> SegmentEntry:
    with new_segment(folder, "g", Parameters("words/1", {}, has_texts, 8)) as writer:
        add_text(writer, D1, 5, 30, 2, stored(b"text one"), 8)
        add_text(writer, D2, 6, 40, 3, stored(b"text two"), 8)
        writer.add_document("http://a/1", "a", 0)
        writer.add_document("http://b/2", "b", 1)
        writer.add_document("http://a/3", "a", D3)
        writer.add_posts(np.array([0x80, 3], np.uint64), np.array([0, 0]))
        writer.add_posts(np.array([0xFF, 3, 4], np.uint64), np.array([1, 1, 1]))
    return writer.entry


def test_the_bytes_of_a_segment_with_texts(tmp_path: Path) -> None:
    entry = write_golden(tmp_path, has_texts=True)
    assert (entry.posts, entry.texts, entry.documents, entry.bucket_bits) == (5, 2, 3, 1)
    sections = sections_of(tmp_path, entry)
    stream = sections.pop("names")
    assert zlib.decompress(stream, -15) == b"http://a/1\0http://b/2\0http://a/3\0"
    blobs = [b"\x01\x08\x00\xf7\xfftext one", b"\x01\x08\x00\xf7\xfftext two"]
    # 7 bits of the key and 1 bit of the text: (3, 0), (3, 1), (4, 1), and in the second bucket (128, 0), (255, 1)
    posts = bytes([6, 7, 9, 0, 255]) + bytes(8)
    assert sections == {
        "blobs": b"".join(blobs),
        "posts": posts,
        "post checksums": struct.pack("<I", zlib.crc32(posts)),
        "buckets": struct.pack("<III", 0, 3, 5),
        "blob ends": struct.pack("<QQ", 13, 26),
        "blob sizes": struct.pack("<II", 8, 8),
        "blob checksums": struct.pack("<II", *map(zlib.crc32, blobs)),
        "digests": D1 + D2,
        "digest heads": bytes.fromhex("04030201 f0f0f0f0"),
        "digest order": bytes.fromhex("01000000 00000000"),
        "token counts": bytes.fromhex("05000000 06000000"),
        "char counts": bytes.fromhex("1e000000 28000000"),
        "post counts": bytes.fromhex("02000000 03000000"),
        "document texts": bytes.fromhex("00000000 01000000 ffffffff"),
        "document hosts": bytes.fromhex("00000000 01000000 00000000"),
        "foreign digests": D3,
        "name ends": struct.pack("<Q", len(stream)),
        "name sizes": struct.pack("<I", 33),
        # SHA-256 of the names begins with 93e96c2c, c84dcc97 and 06b853f0
        "name heads": bytes.fromhex("f053b806 2c6ce993 97cc4dc8"),
        "name order": bytes.fromhex("02000000 00000000 01000000"),
        "hosts": b"a\0b\0",
    }


def test_the_bytes_of_posts_without_texts(tmp_path: Path) -> None:
    entry = write_golden(tmp_path, has_texts=False)
    # 3 bits of the value, which is the number of the blot: (3, 1), (3, 3), (4, 4), (128, 0), (255, 2)
    low_bits = 8 - entry.bucket_bits
    posts = [
        (key % (1 << low_bits)) << 3 | value for key, value in [(3, 1), (3, 3), (4, 4), (128, 0), (255, 2)]
    ]
    width = (low_bits + 3 + 7) // 8
    stored_posts = b"".join(post.to_bytes(width, "little") for post in posts)
    assert sections_of(tmp_path, entry)["posts"] == stored_posts + bytes(8)


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
            assert segment.texts_of(row(text.digest)) == number
            assert segment.section("char counts")[number] == len(text.text)
            assert segment.section("token counts")[number] == 3 * len(text.text)
            if has_texts:
                assert segment.blob(number).decode() == text.text
            else:
                assert segment.blob(number) == encode_outline(outline_of(text))
                assert np.array_equal(segment.outline(number).char_ends, outline_of(text).char_ends)
        assert segment.texts_of(row(bytes(16))) == -1
        hosts, texts, foreign = segment.documents.hosts, segment.documents.texts, segment.documents.foreign
        names = [segment.documents.doc_id(number) for number in range(segment.document_count)]
        assert names == [document.doc_id for document in case.documents]
        for number, document in enumerate(case.documents):
            assert segment.documents.doc_id(number) == document.doc_id
            assert segment.documents.named([document.doc_id]) == {0: number}
            assert hosts[segment.documents.host_numbers[number]] == document.host
            text_number = int(texts[number])
            assert (text_number if text_number >= 0 else foreign[-1 - text_number].tobytes()) == document.text
        assert segment.documents.named(["not there"]) == {}
        assert segment.damage() is None
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
    with new_segment(folder, "many", given_parameters) as writer:
        for number, count in enumerate(counts.tolist()):
            add_text(writer, number.to_bytes(16, "big"), 1, 1, count, b"", 0)
        for start in range(0, len(keys), 7_777):
            writer.add_posts(keys[start : start + 7_777], texts[start : start + 7_777])
    segment = Segment(folder, writer.entry, given_parameters)
    where = (
        np.arange(len(keys)) - (np.cumsum(counts) - counts)[texts]
        if not has_texts
        else np.zeros(len(keys), np.int64)
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
    with new_segment(tmp_path, "one", parameters(has_texts=True)) as writer:
        for digest in digests:
            add_text(writer, digest, 0, 0, 0, b"", 0)
    segment = Segment(tmp_path, writer.entry, parameters(has_texts=True))
    asked = np.frombuffer(b"".join([*digests, b"head" + bytes(12)]), np.uint8).reshape(-1, 16)
    assert segment.texts_of(asked).tolist() == [0, 1, 2, -1]


def test_keys_of_all_bits_in_the_directory_need_none_in_the_posts(tmp_path: Path) -> None:
    given_parameters = parameters(has_texts=True, key_bits=3)
    with new_segment(tmp_path, "one", given_parameters) as writer:
        for number in range(100):
            add_text(writer, bytes([number]) * 16, 0, 0, 8, b"", 0)
            writer.add_posts(np.arange(8, dtype=np.uint64), np.full(8, number))
    segment = Segment(tmp_path, writer.entry, given_parameters)
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
    (tmp_path / "one.segment").unlink()
    with pytest.raises(FileNotFoundError):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.segment"
    path.write_bytes(path.read_bytes().replace(b"segment 2", b"segment 1"))
    with pytest.raises(StoreRefused, match="its beginning is damaged, or it has another format"):
        Segment(tmp_path, entry, parameters(has_texts=True))


def test_a_damaged_text_is_named_when_it_is_read_and_by_the_check(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    path = tmp_path / "one.segment"
    data = bytearray(path.read_bytes())
    data[16 + 3] ^= 0x10
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    with pytest.raises(StoreRefused, match=r"one\.segment cannot be used: the blob of text 0 is damaged"):
        segment.blob(0)
    assert segment.blob(1) == b"that is"
    assert segment.damage() == "its section 'blobs' is damaged"


USES = {
    "blob ends": lambda segment: segment.blob(0),
    "blob sizes": lambda segment: segment.blob(0),
    "blob checksums": lambda segment: segment.blob(0),
    "posts": lambda segment: segment.find(np.arange(1 << KEY_BITS, dtype=np.uint64)),
    "post checksums": lambda segment: segment.find(np.array([7], np.uint64)),
    "buckets": lambda segment: segment.find(np.array([7], np.uint64)),
    "digests": lambda segment: segment.digests,
    "digest heads": lambda segment: segment.texts_of(row(D1)),
    "digest order": lambda segment: segment.texts_of(row(D1)),
    "token counts": lambda segment: segment.section("token counts"),
    "char counts": lambda segment: segment.section("char counts"),
    "post counts": lambda segment: segment.find(np.array([7], np.uint64)),
    "document texts": lambda segment: segment.documents.texts,
    "document hosts": lambda segment: segment.documents.host_numbers,
    "foreign digests": lambda segment: segment.documents.foreign,
    "names": lambda segment: segment.documents.doc_id(0),
    "name ends": lambda segment: segment.documents.doc_id(0),
    "name sizes": lambda segment: segment.documents.doc_id(0),
    "name heads": lambda segment: segment.documents.named(["other"]),
    "name order": lambda segment: segment.documents.named(["other"]),
    "hosts": lambda segment: segment.documents.hosts,
}


@pytest.mark.parametrize("section", USES)
def test_a_damaged_section_is_named_and_no_answer_is_made_of_it(tmp_path: Path, section: str) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=False)
    assert set(USES) == set(entry.sections) - {"blobs"}
    path = tmp_path / "one.segment"
    data = path.read_bytes()
    offset, size, _ = entry.sections[section]
    for at in {offset, offset + size // 2}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        segment = Segment(tmp_path, entry, parameters(has_texts=False))
        with pytest.raises(StoreRefused, match=f"its section '{section}' is damaged"):
            USES[section](segment)
        assert segment.damage() == f"its section '{section}' is damaged"
        with pytest.raises(StoreRefused, match=f"its section '{section}' is damaged"):
            segment.refuse_damage()


def test_damage_in_a_block_of_posts_is_refused_where_it_is_read_and_only_there(tmp_path: Path) -> None:
    segment, posts = many_posts(tmp_path, has_texts=False)
    path = segment.path
    data = bytearray(path.read_bytes())
    offset, size, _ = segment.entry.sections["posts"]
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


def test_an_id_that_cannot_be_encoded_names_no_document(tmp_path: Path) -> None:
    segment = written(tmp_path, CASE, has_texts=True)
    assert segment.documents.named(["\udcff", "other", "a\ud800", "caf\udce9.txt"]) == {1: 150}


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


@given(st.integers(0), st.integers(1, 255), st.booleans())
@settings(deadline=None, max_examples=examples(80))
def test_a_changed_byte_is_found_and_breaks_no_reader(place: int, change: int, has_texts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder), "one", CASE, has_texts=has_texts)
        path = Path(folder, "one.segment")
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= change
        path.write_bytes(data)
        try:
            segment = Segment(Path(folder), entry, parameters(has_texts=has_texts))
        except StoreRefused:
            return
        assert segment.damage()
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
        path = Path(folder, "one.segment")
        data = bytearray(path.read_bytes())
        for place, new in changes:
            start = 16 + place % (len(data) - 16)
            data[start : start + len(new)] = new[: len(data) - start]
        path.write_bytes(data)
        segment = Segment(Path(folder), entry, parameters(has_texts=has_texts))
        read_everything(segment)
        segment.close()


@given(st.integers(0))
@settings(deadline=None, max_examples=examples(50))
def test_a_file_that_was_cut_is_refused(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder), "one", CASE, has_texts=True)
        path = Path(folder, "one.segment")
        data = path.read_bytes()
        path.write_bytes(data[: size % len(data)])
        with pytest.raises(StoreRefused, match=r"one\.segment has \d+ bytes instead of"):
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
        lambda: segment.texts_of(digests),
        lambda: segment.texts_of(segment.digests),
        lambda: segment.documents.hosts,
        lambda: segment.documents.texts,
        lambda: segment.documents.host_numbers,
        lambda: segment.documents.foreign,
        lambda: segment.documents.named([document.doc_id for document in CASE.documents]),
        lambda: segment.stored_blobs(0, 3),
        *(lambda number=number: segment.documents.doc_id(number) for number in range(151)),
        *(lambda text=text: segment.blob(text) for text in range(3)),
        *(lambda text=text: segment.has_texts or segment.outline(text) for text in range(3)),
    ]
    for question in questions:
        try:
            question()
        except StoreRefused:
            continue
