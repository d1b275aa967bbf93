from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.passages.catalogue import (
    MANIFEST,
    Manifest,
    begin,
    orphans,
    read_deleted,
    read_manifest,
    refuse_other_parameters,
    remove_orphans,
    replace_manifest,
    segment_name,
    write_deleted,
)
from scrapy_dedupe.passages.segment_files import MappedFile
from scrapy_dedupe.passages.segment_layout import SegmentEntry
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARAMETERS = Parameters("words/1", {"name": "rolling/1", "k": 8, "window": 8}, True)
ENTRY = SegmentEntry("00000002", 7, 2, 3, 700, 90, 4_000_000_000, 12)
MANIFEST_VALUE = Manifest(3, PARAMETERS, (ENTRY,), {"00000002": "00000002.deleted-3"})

GOLDEN_MANIFEST = """{
 "format": "scrapy-dedupe passages",
 "version": 1,
 "generation": 3,
 "parameters": {
  "tokeniser": "words/1",
  "blotter": {
   "name": "rolling/1",
   "k": 8,
   "window": 8
  },
  "has_texts": true,
  "key_bits": 40
 },
 "segments": [
  {
   "name": "00000002",
   "posts": 7,
   "texts": 2,
   "documents": 3,
   "posts_size": 700,
   "blobs_size": 90,
   "posts_checksum": 4000000000,
   "blobs_checksum": 12
  }
 ],
 "deleted": {
  "00000002": "00000002.deleted-3"
 },
 "checksum": "CHECKSUM"
}
"""
SUMMED = (
    '{"deleted":{"00000002":"00000002.deleted-3"},"format":"scrapy-dedupe passages","generation":3,'
    '"parameters":{"blotter":{"k":8,"name":"rolling/1","window":8},"has_texts":true,"key_bits":40,'
    '"tokeniser":"words/1"},"segments":[{"blobs_checksum":12,"blobs_size":90,"documents":3,"name":"00000002",'
    '"posts":7,"posts_checksum":4000000000,"posts_size":700,"texts":2}],"version":1}'
)
# magic, version 1, zero, two documents: 1 and 258, CRC-32
GOLDEN_DELETED = bytes.fromhex("73642d676f6e6500 0100 0000 02000000 01000000 02010000 be093fa1")


def write(folder: Path, value: Any) -> None:
    """Write a manifest with the right checksum."""
    value.pop("checksum", None)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    value["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(value))


def test_a_manifest_has_these_bytes(tmp_path: Path) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    checksum = hashlib.sha256(SUMMED.encode()).hexdigest()
    assert (tmp_path / MANIFEST).read_text() == GOLDEN_MANIFEST.replace("CHECKSUM", checksum)
    assert read_manifest(tmp_path) == MANIFEST_VALUE


def test_a_file_of_deleted_documents_has_these_bytes(tmp_path: Path) -> None:
    name = write_deleted(tmp_path, "00000002", 3, np.array([258, 1, 258]))
    assert name == "00000002.deleted-3"
    assert (tmp_path / name).read_bytes() == GOLDEN_DELETED
    assert read_deleted(tmp_path, name, 259).tolist() == [1, 258]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_deleted_documents_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, documents: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("index")
    name = write_deleted(folder, "a", 1, np.array(documents, np.int64))
    assert read_deleted(folder, name, 2**32).tolist() == sorted(set(documents))


@pytest.mark.parametrize("documents", [[-1], [2**32]])
def test_what_is_no_document_is_not_written(tmp_path: Path, documents: list[int]) -> None:
    with pytest.raises(ValueError, match="document numbers must fit 32 bits"):
        write_deleted(tmp_path, "a", 1, np.array(documents))


def test_a_deleted_document_that_the_segment_does_not_have_is_refused(tmp_path: Path) -> None:
    name = write_deleted(tmp_path, "a", 1, np.array([3, 4]))
    with pytest.raises(StoreRefused, match="names documents outside of the 4 of its segment"):
        read_deleted(tmp_path, name, 4)
    with pytest.raises(StoreRefused, match="has more than"):
        read_deleted(tmp_path, name, 1)


@pytest.mark.parametrize("where", range(len(GOLDEN_DELETED)))
def test_every_flipped_byte_and_every_cut_of_a_file_of_deleted_documents_is_refused(
    tmp_path: Path, where: int
) -> None:
    path = tmp_path / "a.deleted-1"
    path.write_bytes(
        GOLDEN_DELETED[:where] + bytes([GOLDEN_DELETED[where] ^ 1]) + GOLDEN_DELETED[where + 1 :]
    )
    with pytest.raises(StoreRefused, match=r"damaged|version (0|257),"):
        read_deleted(tmp_path, path.name, 1000)
    path.write_bytes(GOLDEN_DELETED[:where])
    with pytest.raises(StoreRefused, match="damaged"):
        read_deleted(tmp_path, path.name, 1000)


def test_deleted_documents_of_a_newer_version_are_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / "a.deleted-1").write_bytes(GOLDEN_DELETED.replace(b"\0\1\0\0\0", b"\0\2\0\0\0", 1))
    with pytest.raises(StoreRefused, match="has format version 2, and this version of scrapy-dedupe reads 1"):
        read_deleted(tmp_path, "a.deleted-1", 1000)


def test_a_folder_that_is_not_there_or_is_empty_has_no_index(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "no" / "folder") is None
    (tmp_path / "lock").touch()
    (tmp_path / "manifest.json.new").write_text("{")
    assert read_manifest(tmp_path) is None


def test_a_folder_with_other_things_is_not_an_index(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(StoreRefused, match=r"is not a passage index: it contains 'thesis\.txt'"):
        read_manifest(tmp_path)
    with pytest.raises(StoreRefused, match="is not a folder"):
        read_manifest(tmp_path / "thesis.txt")


def test_an_index_that_lost_its_manifest_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "00000002.posts").touch()
    with pytest.raises(StoreRefused, match=r"has lost its manifest\.json"):
        begin(tmp_path, PARAMETERS)
    assert (tmp_path / "00000002.posts").exists()


def test_an_index_begins_with_a_manifest(tmp_path: Path) -> None:
    assert begin(tmp_path, PARAMETERS) == Manifest(1, PARAMETERS)
    assert read_manifest(tmp_path) == Manifest(1, PARAMETERS)
    assert begin(tmp_path, PARAMETERS) == Manifest(1, PARAMETERS)


def test_the_parameters_of_an_index_that_never_had_a_document_bind_nobody(tmp_path: Path) -> None:
    begin(tmp_path, PARAMETERS)
    others = replace(PARAMETERS, has_texts=False)
    assert begin(tmp_path, others) == read_manifest(tmp_path) == Manifest(1, others)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replace(PARAMETERS, tokeniser="cjk/1"), "the tokeniser words/1; the tokeniser cjk/1 was requested"),
        (replace(PARAMETERS, has_texts=False), "stored texts yes; stored texts no was"),
        (replace(PARAMETERS, key_bits=32), "keys of 40 bits; keys of 32 bits was"),
        (replace(PARAMETERS, blotter={"name": "xor/1"}), '"window": 8}; the blotter {"name": "xor/1"} was'),
    ],
)
def test_other_parameters_are_refused_with_both_values(tmp_path: Path, asked: Parameters, words: str) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    with pytest.raises(StoreRefused) as refusal:
        begin(tmp_path, asked)
    assert words in str(refusal.value)
    refuse_other_parameters(tmp_path, PARAMETERS, replace(PARAMETERS))


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    kept = [
        "00000002.posts",
        "00000002.blobs",
        "00000002.deleted-3",
        "lock",
        "README",
        "notes.blobs.txt",
        "x.new",
        "letter.txt.new",
        "out.jsonl.new",
        "recipes.posts",
        "00000003.txt.new",
    ]
    left = [
        "00000001.posts",
        "00000003.blobs",
        "00000003.posts.new",
        "00000002.deleted-2",
        "00000002.deleted-4.new",
        "manifest.json.new",
        "00000003-1.blobs",
    ]
    for name in (*kept, *left):
        (tmp_path / name).touch()
    assert orphans(tmp_path, MANIFEST_VALUE) == sorted(left)
    begin(tmp_path, PARAMETERS)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, MANIFEST}
    assert orphans(tmp_path, MANIFEST_VALUE) == []


def test_what_cannot_be_removed_is_left(tmp_path: Path) -> None:
    (tmp_path / "00000009.posts" / "below").mkdir(parents=True)
    (tmp_path / "00000009.blobs").touch()
    assert remove_orphans(tmp_path, MANIFEST_VALUE) == ["00000009.blobs"]
    assert orphans(tmp_path, MANIFEST_VALUE) == ["00000009.posts"]


def test_what_any_of_several_manifests_names_is_kept(tmp_path: Path) -> None:
    for name in ("00000002.posts", "00000002.blobs", "00000002.deleted-3", "00000001.posts", MANIFEST):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="manifest"):
        remove_orphans(tmp_path)
    assert remove_orphans(tmp_path, replace(MANIFEST_VALUE, segments=(), deleted={}), MANIFEST_VALUE) == [
        "00000001.posts"
    ]


def test_a_file_that_could_not_be_written_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    for error, raised in ((OSError(28, "No space left"), StoreUnavailable), (KeyboardInterrupt(), None)):

        def fail(fd: int, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(raised or KeyboardInterrupt):
            replace_manifest(tmp_path, replace(MANIFEST_VALUE, generation=9))
        assert read_manifest(tmp_path) == MANIFEST_VALUE
        assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_names_of_segments_do_not_repeat() -> None:
    names = {segment_name(generation, number) for generation in range(1, 200) for number in range(3)}
    assert len(names) == 199 * 3


@pytest.mark.parametrize("where", range(0, len(GOLDEN_MANIFEST), 7))
def test_a_manifest_that_is_cut_or_changed_is_refused(tmp_path: Path, where: int) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    path = tmp_path / MANIFEST
    data = path.read_bytes()
    path.write_bytes(data[:where])
    with pytest.raises(StoreRefused, match=r"manifest\.json"):
        read_manifest(tmp_path)
    if data[where : where + 1].isalnum():
        path.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])
        with pytest.raises(StoreRefused, match=r"manifest\.json"):
            read_manifest(tmp_path)


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no generation": lambda value: value.pop("generation"),
    "one field more": lambda value: value.update(more=1),
    "generation below 0": lambda value: value.update(generation=-1),
    "generation no number": lambda value: value.update(generation="3"),
    "generation huge": lambda value: value.update(generation=1 << 70),
    "generation true": lambda value: value.update(generation=True),
    "parameters no object": lambda value: value.update(parameters=[1]),
    "tokeniser no text": lambda value: value["parameters"].update(tokeniser=7),
    "tokeniser missing": lambda value: value["parameters"].pop("tokeniser"),
    "key bits huge": lambda value: value["parameters"].update(key_bits=65),
    "key bits 0": lambda value: value["parameters"].update(key_bits=0),
    "has texts a number": lambda value: value["parameters"].update(has_texts=1),
    "segments no list": lambda value: value.update(segments={}),
    "segment no object": lambda value: value.update(segments=[3]),
    "segment with a field more": lambda value: value["segments"][0].update(more=1),
    "posts below 0": lambda value: value["segments"][0].update(posts=-7),
    "posts a fraction": lambda value: value["segments"][0].update(posts=7.0),
    "name in another folder": lambda value: value["segments"][0].update(name="../00000002"),
    "name absolute": lambda value: value["segments"][0].update(name="/etc/passwd"),
    "name with a zero": lambda value: value["segments"][0].update(name="a\0b"),
    "name with a newline": lambda value: value["segments"][0].update(name="a\n"),
    "name with a surrogate": lambda value: value["segments"][0].update(name="\udc80"),
    "name empty": lambda value: value["segments"][0].update(name=""),
    "name a number": lambda value: value["segments"][0].update(name=2),
    "name twice": lambda value: value["segments"].append(value["segments"][0]),
    "deleted no object": lambda value: value.update(deleted=[]),
    "deleted of no segment": lambda value: value.update(deleted={"9": "9.deleted-3"}),
    "deleted in another folder": lambda value: value.update(deleted={"00000002": "../00000002.deleted-3"}),
    "deleted of another segment": lambda value: value.update(deleted={"00000002": "00000001.deleted-3"}),
    "deleted a file of another kind": lambda value: value.update(deleted={"00000002": "00000002.posts"}),
    "deleted no text": lambda value: value.update(deleted={"00000002": 3}),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_with_a_wrong_value_is_refused_even_if_its_checksum_is_right(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    value = json.loads((tmp_path / MANIFEST).read_text())
    write(tmp_path, value)
    assert read_manifest(tmp_path) == MANIFEST_VALUE
    change(value)
    write(tmp_path, value)
    with pytest.raises(StoreRefused, match=r"damaged: .*manifest\.json has an invalid value in: [a-z]"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"null",
        b'{"format": "other"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ],
    ids=lambda data: repr(data[:8]),
)
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(StoreRefused, match=r"manifest\.json is not"):
        read_manifest(tmp_path)


def test_a_manifest_whose_parts_are_nested_deeply_is_refused(tmp_path: Path) -> None:
    nested = '{"a":' * 980 + "1" + "}" * 980
    (tmp_path / MANIFEST).write_text(
        f'{{"format": "scrapy-dedupe passages", "version": 1, "parameters": {nested}}}'
    )
    with pytest.raises(StoreRefused, match="damaged"):
        read_manifest(tmp_path)


def test_a_manifest_of_another_version_is_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": "scrapy-dedupe passages", "version": 2}')
    with pytest.raises(StoreRefused, match="has format version 2, and this version of scrapy-dedupe reads 1"):
        read_manifest(tmp_path)


def test_a_manifest_that_is_huge_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreRefused, match="more than 16777216 bytes"):
        read_manifest(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreRefused, match=r"manifest\.json is not a regular file"):
        read_manifest(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreRefused, match=r"manifest\.json is not a regular file"):
        read_manifest(tmp_path)
    with pytest.raises(
        StoreUnavailable, match=r"manifest\.json cannot be written: Is a directory\. .* is unchanged"
    ):
        replace_manifest(tmp_path, MANIFEST_VALUE)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_files_of_a_segment_have_to_be_files_of_the_size_that_the_manifest_tells(tmp_path: Path) -> None:
    path = tmp_path / "00000002.blobs"
    with pytest.raises(FileNotFoundError):
        MappedFile(path, 90)
    os.mkfifo(path)
    with pytest.raises(StoreRefused, match=r"00000002\.blobs is not a regular file"):
        MappedFile(path, 90)
    path.unlink()
    path.write_bytes(bytes(89))
    with pytest.raises(StoreRefused, match=r"00000002\.blobs has 89 bytes instead of 90"):
        MappedFile(path, 90)
    path.write_bytes(bytes(90))
    MappedFile(path, 90).close()
