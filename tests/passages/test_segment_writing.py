from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from deflate import deflate_compress
from passages.segment_cases import Case, Name, Text, parameters, posts_of, spot_of, write

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.passages.checking import check_segment
from scrapy_dedupe.passages.packing import PostStream
from scrapy_dedupe.passages.segment_writing import SegmentWriter
from scrapy_dedupe.passages.segments import Segment

if TYPE_CHECKING:
    from pathlib import Path

CASE = Case((Text("one", (5, 3, 5)), Text("two", (3,))), (Name("a", "h", 0), Name("b", "h", 1)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_segment_has_its_names_only_when_it_is_whole(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, "one", parameters(has_texts=True)) as writer:
        writer.add_text(bytes(16), 1, 1, 0, b"", 0)
        assert names(tmp_path) == ["one.blobs.new", "one.posts.new"]
        writer.close()
        assert names(tmp_path) == ["one.blobs", "one.posts"]
    assert names(tmp_path) == ["one.blobs", "one.posts"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with SegmentWriter(tmp_path, "one", parameters(has_texts=True)) as writer:
            writer.add_text(bytes(16), 1, 1, 0, bytes(3_000_000), 0)
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert names(tmp_path) == []


def test_the_same_is_written_in_whatever_order_posts_come(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    wanted = (tmp_path / "one.posts").read_bytes()
    with SegmentWriter(tmp_path, "other", parameters(has_texts=True)) as writer:
        for text, count in zip(CASE.texts, (2, 1), strict=True):
            writer.add_text(text.digest, 9, 3, count, b"", 3)
        for document in CASE.documents:
            writer.add_document(document.doc_id, document.host, document.text)
        spots = np.array([spot_of(3), spot_of(5)], np.uint8)
        writer.add_posts(np.array([3, 5], np.uint64), np.array([1, 0]), spots)
        writer.add_posts(np.array([3], np.uint64), np.array([0]), spots[:1])
        other = writer.close()
    assert (tmp_path / "other.posts").read_bytes() == wanted
    assert (other.posts, other.posts_checksum) == (entry.posts, entry.posts_checksum)


def test_keys_are_not_changed_by_being_added(tmp_path: Path) -> None:
    keys = np.array([9, 5, 7], np.uint64)
    with SegmentWriter(tmp_path, "one", parameters(has_texts=True)) as writer:
        writer.add_text(bytes(16), 1, 1, 3, b"", 0)
        writer.add_posts(keys, np.zeros(3, np.int64))
        writer.close()
    assert keys.tolist() == [9, 5, 7]


def test_posts_of_a_text_without_texts_may_come_in_pieces(tmp_path: Path) -> None:
    given_parameters = parameters(has_texts=False)
    with SegmentWriter(tmp_path, "one", given_parameters) as writer:
        for count in (3, 0, 2):
            writer.add_text(bytes([count]) * 16, 1, 1, count, b"", 0)
        writer.add_posts(np.array([9, 5], np.uint64), np.array([0, 0]))
        writer.add_posts(np.array([5, 7, 9], np.uint64), np.array([0, 2, 2]))
        segment = Segment(tmp_path, writer.close(), given_parameters)
    found = segment.posts_between(0, 4096)
    assert posts_of(found.keys, found.texts, found.where) == [
        (5, 0, 1),
        (5, 0, 2),
        (7, 2, 0),
        (9, 0, 0),
        (9, 2, 1),
    ]


@pytest.mark.parametrize(
    ("has_texts", "spots", "reason"),
    [
        (True, [2, 3], "a post was added twice"),
        (True, [2, 0], "0 is not a valid spot"),
        (True, [2], "the same length"),
        (False, [2, 3], "has no spots"),
    ],
)
def test_spots_that_cannot_be_are_refused(
    tmp_path: Path, has_texts: bool, spots: list[int], reason: str
) -> None:
    def write_them() -> None:
        with SegmentWriter(tmp_path, "one", parameters(has_texts=has_texts)) as writer:
            writer.add_text(bytes(16), 1, 1, 2, b"", 0)
            writer.add_posts(np.array([7, 7], np.uint64), np.zeros(2, np.int64), np.array(spots, np.uint8))
            writer.close()

    with pytest.raises(ValueError, match=reason):
        write_them()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("has_texts", "keys", "texts", "reason"),
    [
        (True, [3, 3], [0, 0], "a post was added twice"),
        (True, [3], [0], "do not match its post count"),
        (True, [3, 4], [0, 1], "do not match its post count"),
        (True, [3, 4096], [0, 0], "too large"),
        (True, [3, 4], [0, 2], "a text that was not added"),
        (True, [3, 4], [0, -1], "a text that was not added"),
        (True, [3, 4], [0], "the same length"),
        (False, [3, 4], [1, 0], "in the order of their texts"),
        (False, [3, 4], [0, 1], "do not match its post count"),
        (False, [], [], "do not match its post count"),
    ],
)
def test_posts_that_contradict_the_texts_are_refused(
    tmp_path: Path, has_texts: bool, keys: list[int], texts: list[int], reason: str
) -> None:
    def write_them() -> None:
        with SegmentWriter(tmp_path, "one", parameters(has_texts=has_texts)) as writer:
            writer.add_text(bytes(16), 1, 1, 2, b"", 0)
            writer.add_text(b"1" * 16, 1, 1, 0, b"", 0)
            writer.add_posts(np.array(keys, np.uint64), np.array(texts, np.int64))
            writer.close()

    with pytest.raises(ValueError, match=reason):
        write_them()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("doc_id", "host", "text"),
    [
        ("a\0b", "", 0),
        ("a", "h\0", 0),
        ("a\ud800", "", 0),
        ("a", "\ud800", 0),
        ("a", "", 1),
        ("a", "", -1),
        ("a", "", b"1"),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused(
    tmp_path: Path, doc_id: str, host: str, text: int | bytes
) -> None:
    given_parameters = parameters(has_texts=True)
    with SegmentWriter(tmp_path, "one", given_parameters) as writer:
        writer.add_text(Text("", ()).digest, 0, 0, 0, deflate_compress(b""), 0)
        with pytest.raises(ValueError, match=r"NUL character|was not added|surrogates|digest"):
            writer.add_document(doc_id, host, text)
        writer.add_document("good", "host", 0)
        segment = Segment(tmp_path, writer.close(), given_parameters)
    assert list(segment.documents.doc_ids()) == ["good"]
    assert list(check_segment(segment)) == []


@pytest.mark.parametrize("name", ["one.posts", "one.blobs"])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_full_disk_is_told_in_one_sentence_and_leaves_nothing(tmp_path: Path, name: str, size: int) -> None:
    (tmp_path / f"{name}.new").symlink_to("/dev/full")

    def write_them() -> None:
        with SegmentWriter(tmp_path, "one", parameters(has_texts=True)) as writer:
            writer.add_text(bytes(16), 1, 1, 0, bytes(size), 0)
            writer.close()

    with pytest.raises(
        StoreUnavailable, match=rf"{name} cannot be written: No space left on device\. Check the free space"
    ):
        write_them()
    assert names(tmp_path) == []


def test_a_folder_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"one\.posts cannot be written: No such file or directory"):
        SegmentWriter(tmp_path / "gone", "one", parameters(has_texts=True))


def test_values_that_leave_no_room_beside_the_key_are_sorted_too() -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 1 << 40, 3000, dtype=np.uint64)
    keys[::3] = keys[0]
    values = rng.permutation(1 << 20)[:3000] << 12
    pieces: list[bytes] = []
    stream = PostStream(pieces.append, 40, 15, 32)
    stream.add(keys.copy(), values)
    stream.finish()
    small: list[bytes] = []
    other = PostStream(small.append, 40, 15, 32)
    order = np.lexsort((values, keys))
    for start in range(0, 3000, 1001):
        some = order[start : start + 1001]
        other.add(keys[some], values[some])
    other.finish()
    assert b"".join(pieces) == b"".join(small)
    assert np.array_equal(
        stream.bucket_counts, np.bincount((keys >> np.uint64(25)).astype(np.int64), minlength=1 << 15)
    )


def test_pieces_that_fall_back_are_refused() -> None:
    stream = PostStream(len, 12, 0, 4)
    stream.add(np.array([5, 9], np.uint64), np.array([1, 2]))
    with pytest.raises(ValueError, match="after larger posts"):
        stream.add(np.array([8], np.uint64), np.array([1]))
