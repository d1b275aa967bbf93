from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.passages.catalogue import (
    MANIFEST,
    Manifest,
    begin,
    encoded_deleted,
    orphans,
    read_manifest,
    refuse_other_parameters,
    remove_orphans,
    replace_manifest,
    segment_name,
)
from scrapy_dedupe.passages.segment_layout import SegmentEntry
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from pathlib import Path

PARAMETERS = Parameters("words/1", {"name": "rolling/1", "k": 8, "window": 8}, True)
ENTRY = SegmentEntry("00000002", 7, 2, 3, 1, 700, {"blobs": [16, 90, 12], "posts": [112, 43, 4_000_000_000]})
# of three documents the second is deleted: 0b01000000, compressed with zlib, in Base85
MANIFEST_VALUE = Manifest(3, PARAMETERS, (ENTRY,), {"00000002": "DELETED"})

GOLDEN_MANIFEST = """{
 "format": "scrapy-dedupe passages",
 "version": 2,
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
   "bucket_bits": 1,
   "size": 700,
   "sections": {
    "blobs": [
     16,
     90,
     12
    ],
    "posts": [
     112,
     43,
     4000000000
    ]
   }
  }
 ],
 "deleted": {
  "00000002": "DELETED"
 },
 "checksum": "CHECKSUM"
}
"""
SUMMED = (
    '{"deleted":{"00000002":"DELETED"},"format":"scrapy-dedupe passages","generation":3,'
    '"parameters":{"blotter":{"k":8,"name":"rolling/1","window":8},"has_texts":true,"key_bits":40,'
    '"tokeniser":"words/1"},"segments":[{"bucket_bits":1,"documents":3,"name":"00000002","posts":7,'
    '"sections":{"blobs":[16,90,12],"posts":[112,43,4000000000]},"size":700,"texts":2}],"version":2}'
)


def test_a_manifest_has_these_bytes(tmp_path: Path) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    checksum = hashlib.sha256(SUMMED.encode()).hexdigest()
    assert (tmp_path / MANIFEST).read_text() == GOLDEN_MANIFEST.replace("CHECKSUM", checksum)
    assert read_manifest(tmp_path) == MANIFEST_VALUE


@given(st.lists(st.booleans(), max_size=50))
def test_deleted_documents_are_read_as_they_were_written(is_deleted: list[bool]) -> None:
    entry = replace(ENTRY, documents=len(is_deleted))
    manifest = Manifest(3, PARAMETERS, (entry,), {entry.name: encoded_deleted(np.array(is_deleted, bool))})
    assert (~manifest.living(entry)).tolist() == is_deleted


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
    (tmp_path / "00000002.segment").touch()
    with pytest.raises(StoreRefused, match=r"has lost its manifest\.json"):
        begin(tmp_path, PARAMETERS)
    assert (tmp_path / "00000002.segment").exists()


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
        "00000002.segment",
        "lock",
        "README",
        "notes.segment.txt",
        "x.new",
        "letter.txt.new",
        "out.jsonl.new",
        "recipes.segment",
        "00000003.txt.new",
    ]
    left = [
        "00000001.segment",
        "00000003.segment.new",
        "manifest.json.new",
        "00000003-1.segment",
    ]
    for name in (*kept, *left):
        (tmp_path / name).touch()
    assert orphans(tmp_path, MANIFEST_VALUE) == sorted(left)
    begin(tmp_path, PARAMETERS)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, MANIFEST}
    assert orphans(tmp_path, MANIFEST_VALUE) == []


def test_what_cannot_be_removed_is_left(tmp_path: Path) -> None:
    (tmp_path / "00000009.segment" / "below").mkdir(parents=True)
    (tmp_path / "00000008.segment").touch()
    assert remove_orphans(tmp_path, MANIFEST_VALUE) == ["00000008.segment"]
    assert orphans(tmp_path, MANIFEST_VALUE) == ["00000009.segment"]


def test_what_any_of_several_manifests_names_is_kept(tmp_path: Path) -> None:
    for name in ("00000002.segment", "00000001.segment", MANIFEST):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="manifest"):
        remove_orphans(tmp_path)
    assert remove_orphans(tmp_path, replace(MANIFEST_VALUE, segments=(), deleted={}), MANIFEST_VALUE) == [
        "00000001.segment"
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
        f'{{"format": "scrapy-dedupe passages", "version": 2, "parameters": {nested}}}'
    )
    with pytest.raises(StoreRefused, match="damaged"):
        read_manifest(tmp_path)


def test_a_manifest_of_another_version_is_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": "scrapy-dedupe passages", "version": 1}')
    with pytest.raises(StoreRefused, match="has format version 1, and this version of scrapy-dedupe reads 2"):
        read_manifest(tmp_path)


def test_a_manifest_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_manifest(tmp_path, MANIFEST_VALUE)
    monkeypatch.setattr("scrapy_dedupe.passages.catalogue._MAX_MANIFEST_BYTES", 4_000)
    with pytest.raises(StoreRefused, match=r"at most 4000 are read\. It is unchanged; compact it"):
        replace_manifest(tmp_path, replace(MANIFEST_VALUE, deleted={"00000002": "x" * 4_000}))
    assert read_manifest(tmp_path) == MANIFEST_VALUE


def test_a_manifest_that_is_huge_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreRefused, match="more than 67108864 bytes"):
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
