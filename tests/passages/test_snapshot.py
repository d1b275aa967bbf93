from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from deflate import deflate_compress
from hypothesis import given, settings
from hypothesis import strategies as st
from passages.segment_cases import add_text
from passages.small_segments import (
    WITH_TEXTS,
    WITHOUT_TEXTS,
    deleted,
    digest_of,
    keys_of,
    outline_of,
    stored_keys,
    write_index,
    write_segment,
)
from sampling import examples
from waiting import wait_until

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages.catalogue import (
    MANIFEST,
    Manifest,
    begin,
    remove_orphans,
    replace_manifest,
    segment_name,
)
from scrapy_dedupe.passages.segment_layout import new_segment
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.values import IndexedDocument
from scrapy_dedupe.passages.writer import merge

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.passages.values import Parameters

ALL_CHARACTERS = "abcdefghij"


class Model:
    """An index as a dict, and the same as a folder: each change makes a new manifest."""

    def __init__(self, folder: Path, parameters: Parameters) -> None:
        self.folder = folder
        self.parameters = parameters
        self.manifest = begin(folder, parameters)
        self.documents: dict[str, tuple[str, str]] = {}  # doc id: host and text, in the order of adding
        self.places: dict[str, tuple[str, int]] = {}  # doc id: name of segment, number
        self.deleted: dict[str, set[int]] = defaultdict(set)
        self.stored: set[str] = set()

    def add(self, batch: dict[str, tuple[str, str]]) -> None:
        changed = {name: what for name, what in batch.items() if self.documents.get(name) != what}
        if not changed:
            return
        for name in changed:
            self._forget(name)
        generation = self.manifest.generation + 1
        segment = segment_name(generation)
        texts = list(dict.fromkeys(text for _, text in changed.values() if text not in self.stored))
        self.stored.update(texts)
        entry = write_segment(
            self.folder,
            segment,
            self.parameters,
            texts,
            [(name, host, text) for name, (host, text) in changed.items()],
        )
        for number, (name, what) in enumerate(changed.items()):
            self.documents[name] = what
            self.places[name] = segment, number
        self._replace((*self.manifest.segments, entry))

    def delete(self, name: str) -> None:
        if name in self.documents:
            self._forget(name)
            self._replace(self.manifest.segments)

    def _forget(self, name: str) -> None:
        if name in self.documents:
            del self.documents[name]
            segment, number = self.places.pop(name)
            self.deleted[segment].add(number)

    def _replace(self, segments: tuple) -> None:
        generation = self.manifest.generation + 1
        counts = {entry.name: entry.documents for entry in segments}
        files = {name: deleted(counts[name], *numbers) for name, numbers in self.deleted.items() if numbers}
        self.manifest = Manifest(generation, self.parameters, segments, files)
        replace_manifest(self.folder, self.manifest)
        remove_orphans(self.folder, self.manifest)

    @property
    def names(self) -> dict[str, list[str]]:
        """The documents of each text."""
        names: dict[str, list[str]] = {}
        for name, (_, text) in self.documents.items():
            names.setdefault(text, []).append(name)
        return names


def assert_same(snapshot: IndexSnapshot, model: Model) -> None:
    names = model.names
    assert list(snapshot.iter_documents()) == [
        IndexedDocument(name, host, len(text), len(text)) for name, (host, text) in model.documents.items()
    ]
    assert snapshot.document_count == len(model.documents)
    asked = np.frombuffer(b"".join(map(digest_of, (*model.stored, "never"))), np.uint8).reshape(-1, 16)
    *found, unknown = snapshot.texts_of_digests(asked).tolist()
    numbers = dict(zip(model.stored, found, strict=True))
    assert (sorted(found), unknown) == (list(range(snapshot.text_count)), -1)
    for text, number in numbers.items():
        assert snapshot.is_alive[number] == (text in names)
        documents = snapshot.document_numbers_of(number)
        hosts = [model.documents[name][0] for name in names.get(text, [])]
        assert [snapshot.doc_id(document) for document in documents] == names.get(text, [])
        assert [snapshot.host_of_document(document) for document in documents] == hosts
        assert snapshot.document_counts[number] == len(documents)
        assert snapshot.token_counts[number] == snapshot.char_counts[number] == len(text)
        first = snapshot.text_host[number]
        assert (first == -1) if not hosts else snapshot.host_names[first] == hosts[0]
        if model.parameters.has_texts:
            assert snapshot.text(number) == text
        else:
            assert snapshot.outline(number).char_ends.tolist() == outline_of(text).char_ends.tolist()
    for host, count in zip(snapshot.host_names, snapshot.documents_per_host, strict=True):
        assert count == sum(host == has for has, _ in model.documents.values())
    for name in ("a", "b", "c", "d", "never"):
        number = snapshot.document_number(name)
        assert (number is not None) == (name in model.documents)
        if number is not None:
            assert snapshot.text_numbers[number] == numbers[model.documents[name][1]]
    assert_same_posts(snapshot, model, {text: numbers[text] for text in names})


def assert_same_posts(snapshot: IndexSnapshot, model: Model, alive: dict[str, int]) -> None:
    expected = []
    for text, number in alive.items():
        for ordinal, key in enumerate(stored_keys(text, model.parameters)):
            expected.append((key, number, 0 if model.parameters.has_texts else ordinal))
    expected.sort()
    wanted = np.unique(np.array([*keys_of(ALL_CHARACTERS), 3, (1 << 40) - 1], np.uint64))
    keys, texts, where = snapshot.find(wanted)
    found = list(zip(wanted[keys].tolist(), texts.tolist(), where.tolist(), strict=True))
    assert sorted(found) == expected
    for most in (1, 100_000):
        scanned = []
        last = -1
        for posts in snapshot.scan(most):
            piece = list(zip(posts.keys.tolist(), posts.texts.tolist(), posts.where.tolist(), strict=True))
            assert piece[0][0] > last
            last = piece[-1][0]
            scanned += piece
        assert scanned == expected
    assert len(list(snapshot.scan(1000))) <= 1


batches = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(
        st.sampled_from(["", "h", "g"]), st.sampled_from(["", "abc", "bcdee", "fgh", "aaab", "jihgfedcba"])
    ),
    min_size=1,
    max_size=4,
)
changes = st.lists(st.one_of(batches, st.sampled_from("abcd")), max_size=6)


@settings(deadline=None, max_examples=examples(25))
@given(changes=changes, parameters=st.sampled_from([WITH_TEXTS, WITHOUT_TEXTS]))
def test_a_snapshot_is_what_was_added_and_not_deleted(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[dict[str, tuple[str, str]] | str],
    parameters: Parameters,
) -> None:
    model = Model(tmp_path_factory.mktemp("index"), parameters)
    for change in changes:
        model.delete(change) if isinstance(change, str) else model.add(change)
        with IndexSnapshot.open(model.folder) as snapshot:
            assert_same(snapshot, model)


def test_a_scan_gives_pieces_of_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    entries = []
    for number in range(3):
        name = f"s{number}"
        keys = np.arange(number, 1 << 40, 1 << 26, dtype=np.uint64)  # 16,384 of them
        with new_segment(tmp_path, name, WITH_TEXTS) as writer:
            add_text(writer, bytes([number]) * 16, 1, 1, len(keys), deflate_compress(b"x", 1), 1)
            writer.add_posts(keys, np.zeros(len(keys), np.int64))
            writer.add_document(name, "", 0)
        entries.append(writer.entry)
    write_index(tmp_path, WITH_TEXTS, entries)
    with IndexSnapshot.open(tmp_path) as snapshot:
        pieces = list(snapshot.scan(2_000))
    sizes = [len(posts.keys) for posts in pieces]
    assert sum(sizes) == 3 * 16_384
    assert max(sizes) <= 2_000 + 3 * 16
    assert len(sizes) <= 3 * 16_384 // 2_000 + 2
    keys = np.concatenate([posts.keys for posts in pieces])
    assert (np.diff(keys.astype(np.int64)) > 0).all()


def test_an_index_without_segments_is_empty(tmp_path: Path) -> None:
    begin(tmp_path, WITH_TEXTS)
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert snapshot.parameters == WITH_TEXTS
        assert snapshot.text_count == snapshot.document_count == 0
        assert snapshot.host_names == []
        assert [len(array) for array in snapshot.find(np.array([1, 2], np.uint64))] == [0, 0, 0]
        assert list(snapshot.scan()) == list(snapshot.iter_documents()) == []
        assert len(snapshot.text_host) == len(snapshot.token_counts) == len(snapshot.documents_per_host) == 0


def test_where_there_is_no_index_it_is_said_how_to_make_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreRefused, match=r"There is no passage index in .* Create one with"):
            IndexSnapshot.open(folder)


def test_a_text_lives_on_in_the_segment_of_another_name(tmp_path: Path) -> None:
    model = Model(tmp_path, WITH_TEXTS)
    model.add({"a": ("h", "abc")})
    model.add({"b": ("g", "abc")})
    model.delete("a")
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert list(snapshot.iter_documents()) == [IndexedDocument("b", "g", 3, 3)]
        assert list(map(snapshot.doc_id, snapshot.document_numbers_of(0))) == ["b"]
        assert snapshot.is_alive_document.tolist() == [False, True]
        assert snapshot.is_alive.tolist() == [True]
        assert len(snapshot.find(np.unique(np.array(keys_of("abc"), np.uint64)))[0]) == 3
    model.delete("b")
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert not snapshot.is_alive.any()
        assert list(snapshot.scan()) == []
    model.add({"c": ("", "abc")})
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert list(snapshot.iter_documents()) == [IndexedDocument("c", "", 3, 3)]
        assert list(map(snapshot.doc_id, snapshot.document_numbers_of(0))) == ["c"]


def test_a_text_that_no_segment_holds_is_damage_only_if_a_document_has_it(tmp_path: Path) -> None:
    entry = write_segment(tmp_path, "s", WITH_TEXTS, ["abc"], [("a", "", "abc"), ("b", "", "lost")])
    write_index(tmp_path, WITH_TEXTS, [entry])
    with pytest.raises(StoreRefused, match="has no text for document 1 of the segment s"):
        IndexSnapshot.open(tmp_path)
    write_index(tmp_path, WITH_TEXTS, [entry], {"s": deleted(2, 1)}, 2)
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert snapshot.text_numbers.tolist() == [0, -1]
        assert [document.doc_id for document in snapshot.iter_documents()] == ["a"]


def test_an_index_without_texts_says_so(tmp_path: Path) -> None:
    write_index(
        tmp_path, WITHOUT_TEXTS, [write_segment(tmp_path, "s", WITHOUT_TEXTS, ["ab"], [("a", "", "ab")])]
    )
    with IndexSnapshot.open(tmp_path) as snapshot, pytest.raises(StoreRefused, match="stores no texts"):
        snapshot.text(0)


def test_there_are_no_texts_beyond_the_last(tmp_path: Path) -> None:
    write_index(tmp_path, WITH_TEXTS, [write_segment(tmp_path, "s", WITH_TEXTS, ["ab"], [("a", "", "ab")])])
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert snapshot.text(0) == "ab"
        for number in (-1, 1):
            with pytest.raises(IndexError, match=f"no text {number}"):
                snapshot.text(number)


def test_a_snapshot_stays_as_it_is(tmp_path: Path) -> None:
    model = Model(tmp_path, WITH_TEXTS)
    model.add({"a": ("h", "abc"), "b": ("h", "bcdee")})
    with IndexSnapshot.open(tmp_path) as snapshot:
        before = list(snapshot.scan())
        model.delete("a")
        with IndexSnapshot.open(tmp_path) as after:
            entry = merge(after, slice(0, 1), "merged")
        remove_orphans(tmp_path, write_index(tmp_path, WITH_TEXTS, [entry], generation=9))
        assert not (tmp_path / "00000002.segment").exists()
        after = list(snapshot.scan())
        assert [posts.keys.tolist() for posts in before] == [posts.keys.tolist() for posts in after]
        assert snapshot.text(0) == "abc"
        assert len(list(snapshot.iter_documents())) == 2
    with IndexSnapshot.open(tmp_path) as snapshot:
        assert [document.doc_id for document in snapshot.iter_documents()] == ["b"]


def test_readers_never_see_half_a_change(tmp_path: Path) -> None:
    """Every state has documents 0 to n and as many texts, whose posts are all there, whoever merges meanwhile."""
    parameters = WITH_TEXTS
    manifest = begin(tmp_path, parameters)
    wanted = np.unique(np.array(keys_of("x"), np.uint64))
    is_done = threading.Event()
    states: list[set[int]] = [set(), set()]
    errors: list[BaseException] = []

    def read(seen: set[int]) -> None:
        try:
            while not is_done.is_set():
                with IndexSnapshot.open(tmp_path) as snapshot:
                    names = [document.doc_id for document in snapshot.iter_documents()]
                    assert names == [str(number) for number in range(len(names))]
                    assert len(snapshot.find(wanted)[1]) == len(names)
                    texts = [
                        snapshot.text(text) for text in range(snapshot.text_count) if snapshot.is_alive[text]
                    ]
                    assert texts == [f"x{name}" for name in names]
                    seen.add(len(names))
        except BaseException as error:
            errors.append(error)
            raise

    def wait_for_readers(looks: int) -> None:
        wait_until(lambda: errors or min(map(len, states)) >= looks)

    readers = [threading.Thread(target=read, args=(seen,)) for seen in states]
    for reader in readers:
        reader.start()
    try:
        wait_for_readers(1)
        for number in range(24):
            generation = manifest.generation + 1
            name = segment_name(generation)
            entry = write_segment(
                tmp_path, name, parameters, [f"x{number}"], [(str(number), "", f"x{number}")]
            )
            segments = (*manifest.segments, entry)
            manifest = write_index(tmp_path, parameters, segments, generation=generation)
            if len(segments) == 4:
                with IndexSnapshot.open(tmp_path) as snapshot:
                    merged = merge(snapshot, slice(0, 4), segment_name(generation + 1))
                manifest = write_index(tmp_path, parameters, [merged], generation=generation + 1)
            remove_orphans(tmp_path, manifest)
        wait_for_readers(2)
    finally:
        is_done.set()
        for reader in readers:
            reader.join()
    assert not errors
    assert all(len(seen) > 1 for seen in states)


def test_a_file_that_is_gone_although_it_is_named_is_damage(tmp_path: Path) -> None:
    model = Model(tmp_path, WITH_TEXTS)
    model.add({"a": ("h", "abc"), "b": ("h", "abc")})
    model.delete("a")
    for name in model.manifest.files - {MANIFEST}:
        path = tmp_path / name
        data = path.read_bytes()
        for spoil in ("missing", "pipe", "folder", "cut", "longer", "empty"):
            path.unlink()
            if spoil == "pipe":
                os.mkfifo(path)
            elif spoil == "folder":
                path.mkdir()
            elif spoil != "missing":
                path.write_bytes({"cut": data[:-1], "longer": data + b"\0", "empty": b""}[spoil])
            with pytest.raises(StoreRefused) as refusal:
                IndexSnapshot.open(tmp_path)
            assert name in str(refusal.value)
            assert "damaged" in str(refusal.value)
            if spoil == "folder":
                path.rmdir()
            elif spoil != "missing":
                path.unlink()
            path.write_bytes(data)
        IndexSnapshot.open(tmp_path).close()
