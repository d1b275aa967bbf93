from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from deflate import deflate_compress
from passages.segment_cases import Case, Name, Text, add_text, parameters, posts_of, write

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.passages.segment_layout import _PostsSection, _SectionWriter, new_segment
from scrapy_dedupe.passages.segments import Segment
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from pathlib import Path

CASE = Case((Text("one", (5, 3, 5)), Text("two", (3,))), (Name("a", "h", 0), Name("b", "h", 1)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_segment_has_its_names_only_when_it_is_whole(tmp_path: Path) -> None:
    with new_segment(tmp_path, "one", parameters(has_texts=True)) as writer:
        add_text(writer, bytes(16), 1, 1, 0, b"", 0)
        assert names(tmp_path) == ["one.segment.new"]
    assert names(tmp_path) == ["one.segment"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with new_segment(tmp_path, "one", parameters(has_texts=True)) as writer:
            add_text(writer, bytes(16), 1, 1, 0, bytes(3_000_000), 0)
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert names(tmp_path) == []


def test_the_same_is_written_in_whatever_order_posts_come(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", CASE, has_texts=True)
    with new_segment(tmp_path, "other", parameters(has_texts=True)) as writer:
        for text, count in zip(CASE.texts, (2, 1), strict=True):
            raw = text.text.encode()
            add_text(writer, text.digest, 9, 3, count, deflate_compress(raw), len(raw))
        for document in CASE.documents:
            writer.add_document(document.doc_id, document.host, document.text)
        writer.add_posts(np.array([3, 5], np.uint64), np.array([1, 0]))
        writer.add_posts(np.array([3], np.uint64), np.array([0]))
    assert (tmp_path / "other.segment").read_bytes() == (tmp_path / "one.segment").read_bytes()
    assert replace(writer.entry, name="one") == entry


def test_keys_are_not_changed_by_being_added(tmp_path: Path) -> None:
    keys = np.array([9, 5, 7], np.uint64)
    with new_segment(tmp_path, "one", parameters(has_texts=True)) as writer:
        add_text(writer, bytes(16), 1, 1, 3, b"", 0)
        writer.add_posts(keys, np.zeros(3, np.int64))
    assert keys.tolist() == [9, 5, 7]


def test_posts_of_a_text_without_texts_may_come_in_pieces(tmp_path: Path) -> None:
    given_parameters = parameters(has_texts=False)
    with new_segment(tmp_path, "one", given_parameters) as writer:
        for count in (3, 0, 2):
            add_text(writer, bytes([count]) * 16, 1, 1, count, b"", 0)
        writer.add_posts(np.array([9, 5], np.uint64), np.array([0, 0]))
        writer.add_posts(np.array([5, 7, 9], np.uint64), np.array([0, 2, 2]))
    segment = Segment(tmp_path, writer.entry, given_parameters)
    found = segment.posts_between(0, 4096)
    assert posts_of(found.keys, found.texts, found.where) == [
        (5, 0, 1),
        (5, 0, 2),
        (7, 2, 0),
        (9, 0, 0),
        (9, 2, 1),
    ]


@pytest.mark.parametrize("has_texts", [True, False])
def test_posts_that_contradict_the_texts_are_refused(tmp_path: Path, has_texts: bool) -> None:
    def write_them() -> None:
        with new_segment(tmp_path, "one", parameters(has_texts=has_texts)) as writer:
            add_text(writer, bytes(16), 1, 1, 2, b"", 0)
            writer.add_posts(np.array([3], np.uint64), np.array([0]))

    with pytest.raises(ValueError, match="1 posts were added, but the texts have 2"):
        write_them()
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_full_disk_is_told_in_one_sentence_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    (tmp_path / "one.segment.new").symlink_to("/dev/full")

    def write_them() -> None:
        with new_segment(tmp_path, "one", parameters(has_texts=True)) as writer:
            add_text(writer, bytes(16), 1, 1, 0, bytes(size), 0)

    with pytest.raises(
        StoreUnavailable,
        match=r"one\.segment cannot be written: No space left on device\. Check the free space",
    ):
        write_them()
    assert names(tmp_path) == []


def test_a_folder_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreUnavailable, match=r"one\.segment cannot be written: No such file or directory"),
        new_segment(tmp_path / "gone", "one", parameters(has_texts=True)),
    ):
        pass


def test_values_that_leave_no_room_beside_the_key_are_sorted_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 1 << 40, 3000, dtype=np.uint64)
    keys[::3] = keys[0]
    values = rng.permutation(1 << 20)[:3000] << 12
    order = np.lexsort((values, keys))
    paths = tmp_path / "together", tmp_path / "pieces"
    for path, size in zip(paths, (3000, 1001), strict=True):
        with path.open("wb") as file:
            with_texts = Parameters("words/1", {}, True)
            section = _PostsSection(_SectionWriter(file), with_texts, 1 << 32, 3000)
            for start in range(0, 3000, size):
                some = order[start : start + size]
                section.add(keys[some][::-1], values[some][::-1])
            section.finish(3000)
    assert paths[0].read_bytes() == paths[1].read_bytes()
