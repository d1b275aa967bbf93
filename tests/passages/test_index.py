from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.passages import IndexedDocument, PassageIndex, preparation
from scrapy_dedupe.passages.catalogue import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COPIED = (
    "the copied paragraph stands in two documents and has enough different words to be found in both of them"
)


def words(seed: int, count: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(count))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def segments(folder: Path) -> int:
    manifest = read_manifest(folder)
    assert manifest is not None
    return len(manifest.segments)


class Cut(Exception):
    """What ends a piece of work in a test."""


def found(index: PassageIndex, text: str) -> dict[str, float]:
    return {hit.doc_id: hit.score for hit in index.like(text, top=1_000)}


# What a newcomer does


def test_a_copied_paragraph_is_found_and_told_where_it_stands(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "passages") as index:
        index.add("https://a.example/1", f"{words(1)} {COPIED} {words(2)}")
        index.add("https://b.example/2", f"{words(3)} {COPIED.upper()}! {words(4)}")
        index.add("https://c.example/3", words(5))
        hits = index.like(COPIED)
        assert {hit.doc_id for hit in hits} == {"https://a.example/1", "https://b.example/2"}
        assert all(hit.score == 1.0 for hit in hits)
        (passage,) = index.extract()
        assert passage.text == COPIED
        assert passage.documents == 2
        place = passage.places[1]
        assert index.text(place.doc_id)[place.char_start : place.char_end] == COPIED.upper()


def test_an_index_is_there_the_next_time(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", f"{COPIED} {words(1)}")
    with PassageIndex(tmp_path, create=False) as index:
        assert list(found(index, COPIED)) == ["a"]
        index.add("b", f"{words(2)} {COPIED}")
        assert list(found(index, COPIED)) == ["a", "b"]
        assert [(found.doc_id, found.host) for found in index.documents] == [("a", ""), ("b", "")]
        assert len(index) == 2
        assert "b" in index
        assert "c" not in index
        assert index.text("a").startswith(COPIED)
        with pytest.raises(KeyError):
            index.text("c")


def test_a_new_index_is_empty_and_sound(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "new") as index:
        assert index.like(COPIED) == []
        assert list(index.extract()) == []
        assert list(index.documents) == []
        assert index.check(full=True).problems == ()
        assert index.inspect().documents == 0
        assert not index.compact()
        assert not index.delete("a")


def test_an_index_that_is_not_there_is_not_made_unless_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="no passage index"):
        PassageIndex(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


# Names


def test_another_text_under_the_same_name_replaces_it(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        index.add("b", words(1))
        index.flush()
        index.add("a", words(2))
        assert found(index, COPIED) == {}
        assert index.text("a") == words(2)
        assert [document.doc_id for document in index.documents] == ["b", "a"]
        assert (index.added.documents, index.added.replaced, index.added.unchanged) == (3, 1, 0)
        assert index.check(full=True).problems == ()


def test_the_same_text_under_the_same_name_changes_nothing(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("https://a.example/", COPIED)
        index.flush()
        before = files(tmp_path)
        index.add("https://a.example/", COPIED)
        index.flush()
        assert files(tmp_path) == before
        assert (index.added.documents, index.added.unchanged) == (1, 1)


def test_another_host_is_another_document(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        index.flush()
        index.add("a", COPIED, host="a.example")
        assert list(index.documents) == [IndexedDocument("a", "a.example", 19, len(COPIED))]
        assert index.added.texts == 1


def test_of_several_texts_under_one_name_the_last_counts(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", words(1))
        index.add("b", words(2))
        index.add("a", COPIED)
        assert index.text("a") == COPIED
        assert [document.doc_id for document in index.documents] == ["b", "a"]
        assert found(index, words(1)) == {}
        assert index.added.texts == 2


@pytest.mark.parametrize("flushed", [False, True])
def test_a_text_is_there_as_long_as_one_of_its_names(tmp_path: Path, flushed: bool) -> None:
    with PassageIndex(tmp_path) as index:
        for name in ("a", "b", "c"):
            index.add(name, COPIED)
            if flushed:
                index.flush()
        assert list(found(index, COPIED)) == ["a", "b", "c"]
        assert index.added.texts == 1
        assert index.delete("a")
        assert not index.delete("a")
        assert list(found(index, COPIED)) == ["b", "c"]
        index.add("b", words(1))
        assert list(found(index, COPIED)) == ["c"]
        assert index.text("c") == COPIED
        assert index.compact()
        assert list(found(index, COPIED)) == ["c"]
        assert index.delete("c")
        assert found(index, COPIED) == {}
        assert list(found(index, words(1))) == ["b"]
        index.add("d", COPIED)
        assert list(found(index, COPIED)) == ["d"]
        assert index.check(full=True).problems == ()


def test_many_are_deleted_as_one_change(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        for number in range(6):
            index.add(f"d{number}", words(number))
            if number % 2:
                index.flush()
        generation = read_manifest(tmp_path).generation  # type: ignore[union-attr]
        assert index.delete_many(["d1", "x", "d4", "d1", "d2"]) == [True, False, True, False, True]
        assert read_manifest(tmp_path).generation == generation + 1  # type: ignore[union-attr]
        assert [document.doc_id for document in index.documents] == ["d0", "d3", "d5"]
        assert index.delete_many([]) == []
        assert index.check(full=True).problems == ()


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "ä/ö?ü#%20",
        "\ud7ff\ue000𝔘",
        "-",
        "../a",
        "a\nb\tc",
        " ",
        "x" * 8_192,
        "http://[::1",
        "\x7f\x01",
    ],
)
def test_any_name_is_kept_as_it_is(tmp_path: Path, name: str) -> None:
    with PassageIndex(tmp_path) as index:
        index.add(name, COPIED)
        index.add("other", COPIED)
        assert list(found(index, COPIED)) == [name, "other"]
        assert index.delete(name)
        assert list(found(index, COPIED)) == ["other"]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 8_193, "\ud800", None, b"a", 5])
def test_what_cannot_be_a_name_is_refused_at_once(tmp_path: Path, name: Any) -> None:
    with PassageIndex(tmp_path) as index:
        with pytest.raises(SettingError):
            index.add(name, "text")
        with pytest.raises(SettingError):
            index.add_all([(name, "text")])
        with pytest.raises(SettingError, match="Decode"):
            index.add("a", b"text")  # type: ignore[arg-type]
        assert list(index.documents) == []


# Texts


@pytest.mark.parametrize(
    "text", ["", " \n", "\0", "...", "one", "one two three", "\0".join(["a"] * 40), "́" * 30]
)
@pytest.mark.parametrize("store_text", [True, False])
def test_odd_texts_are_documents_like_others(tmp_path: Path, text: str, store_text: bool) -> None:
    with PassageIndex(tmp_path, store_text=store_text) as index:
        index.add("odd", text)
        index.add("same", text)
        index.add("other", COPIED)
        assert len(index) == 3
        assert "other" in found(index, COPIED)
        if store_text:
            assert index.text("same") == text
        assert index.check(full=True).problems == ()
        assert index.delete("odd")
        index.compact()
        assert [document.doc_id for document in index.documents] == ["same", "other"]


def test_a_lone_surrogate_keeps_the_offsets(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", f"\ud800\udfff x {COPIED}")
        assert index.text("a") == f"\ufffd\ufffd x {COPIED}"
        (hit,) = index.like(COPIED)
        assert hit.passages[0].places[0].char_start == 5
        assert list(found(index, f"\udc00 {COPIED}")) == ["a"]


def test_a_text_that_is_too_large_is_refused_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LARGEST_TEXT", 1_000)
    with PassageIndex(tmp_path) as index:
        index.add("before", "é" * 500)
        with pytest.raises(SettingError, match="'large' has 1,002 bytes; the maximum is 1,000"):
            index.add("large", "é" * 501)
        index.add("behind", "x" * 1_000)
    with PassageIndex(tmp_path) as index:
        assert [document.doc_id for document in index.documents] == ["before", "behind"]


def test_a_text_of_ten_megabytes_is_indexed_whole(tmp_path: Path) -> None:
    long = f"{words(1, 750_000)} {COPIED} {words(2, 750_000)}"
    assert len(long) > 8_000_000
    with PassageIndex(tmp_path) as index:
        index.add("long", long)
        (hit,) = index.like(COPIED)
        place = hit.passages[0].places[0]
        assert long[place.char_start : place.char_end] == COPIED
        assert index.text("long") == long


# How it grows


def test_many_single_additions_leave_few_segments(tmp_path: Path) -> None:
    most = 0
    for number in range(150):
        with PassageIndex(tmp_path) as index:
            index.add(f"https://a.example/{number}", f"{words(number)} {COPIED if number % 100 == 7 else ''}")
        most = max(most, segments(tmp_path))
    assert most <= 12
    assert len(files(tmp_path)) == 1 + segments(tmp_path)
    with PassageIndex(tmp_path) as index:
        assert list(found(index, COPIED)) == [f"https://a.example/{number}" for number in (7, 107)]
        assert len(index) == 150
        assert index.check(full=True).problems == ()


@pytest.mark.parametrize("store_text", [True, False])
def test_compaction_keeps_the_answers(tmp_path: Path, store_text: bool) -> None:
    with PassageIndex(tmp_path, store_text=store_text) as index:
        for number in range(40):
            index.add(f"d{number}", f"{words(number)} {COPIED if number % 3 else ''} {words(number % 5, 30)}")
            if number % 9 == 0:
                index.flush()
        index.delete_many([f"d{number}" for number in range(0, 40, 4)])
        index.add("d1", words(99))
        index.flush()
        asked = [COPIED, words(2, 30), words(11), words(99), words(4)]
        before = [index.like(text, top=100) for text in asked]
        documents = list(index.documents)
        extracted = list(index.extract())
        assert segments(tmp_path) > 1
        assert index.compact()
        assert segments(tmp_path) == 1
        assert [index.like(text, top=100) for text in asked] == before
        assert list(index.documents) == documents
        assert list(index.extract()) == extracted
        assert not index.compact()
        assert index.check(full=True).problems == ()


def test_a_segment_of_which_nothing_is_needed_goes_at_once(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        for name, text in (("a", COPIED), ("b", words(1)), ("c", COPIED)):
            index.add(name, text)
            index.flush()
        index.delete("b")
        assert segments(tmp_path) == 2
        index.delete("a")
        # what "c" says is kept in the segment of "a"
        assert segments(tmp_path) == 2
        assert list(found(index, COPIED)) == ["c"]
        index.delete("c")
        assert set(files(tmp_path)) == {"manifest.json"}


def test_a_compacted_index_without_documents_has_no_segments(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        index.delete("a")
        index.compact()
        assert set(files(tmp_path)) == {"manifest.json"}
        assert found(index, COPIED) == {}


def test_much_is_written_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_dedupe.passages.index.MAX_PENDING_BYTES", 10_000)
    index = PassageIndex(tmp_path)
    most = 0
    for number in range(100):
        index.add_all([(f"d{number}", words(number))])
        most = max(most, index.pending_bytes)
    assert most < 10_000
    assert segments(tmp_path) > 1
    index.close()
    assert index.pending_bytes == 0


@pytest.mark.parametrize("store_text", [True, False])
def test_several_processes_make_the_same_index(tmp_path: Path, store_text: bool) -> None:
    documents = [(f"https://a.example/{number}", words(number, 2_000)) for number in range(200)]
    documents[100] = ("again", documents[3][1])
    documents[150] = (documents[7][0], "another text")
    with PassageIndex(tmp_path / "one", store_text=store_text) as one:
        one.add_all(documents)
    with PassageIndex(tmp_path / "two", store_text=store_text, jobs=2) as two:
        two.add_all(iter(documents))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert one.added == two.added


def test_an_error_of_the_documents_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    def documents() -> Iterator[tuple[str, str]]:
        yield "a", COPIED
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError), PassageIndex(tmp_path) as index:
        index.add_all(documents())
    with PassageIndex(tmp_path) as index:
        assert list(index.documents) == []


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
        st.tuples(st.sampled_from(["flush", "compact", "reopen"]), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60))
@given(Steps, st.booleans())
def test_an_index_is_a_mapping_of_names_to_texts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], store_text: bool
) -> None:
    folder = tmp_path_factory.mktemp("index")
    texts = [words(number, 20) for number in range(5)]
    model: dict[str, int] = {}
    index = PassageIndex(folder, store_text=store_text)
    for step, name, text in steps:
        doc_id = f"d{name}"
        if step == "add":
            if model.get(doc_id) != text:
                model.pop(doc_id, None)
                model[doc_id] = text
            index.add(doc_id, texts[text])
        elif step == "delete":
            assert index.delete(doc_id) == (model.pop(doc_id, None) is not None)
        elif step == "reopen":
            index.close()
            index = PassageIndex(folder)
        else:
            getattr(index, step)()
    # What was replaced and put back before it was written has stayed, and may stand before others.
    assert sorted(document.doc_id for document in index.documents) == sorted(model)
    for number, text in enumerate(texts):
        assert sorted(found(index, text)) == sorted(doc_id for doc_id, of in model.items() if of == number)
    assert index.check(full=True).problems == ()
    index.close()


# Parameters


@pytest.mark.parametrize(
    ("options", "has", "asked"),
    [
        ({"tokeniser": "cjk"}, "words/1", "cjk/1"),
        ({"blotter": "xor"}, "rolling/1", "xor/1"),
        ({"blotter": {"name": "rolling", "k": 5}}, '"k": 8', '"k": 5'),
        ({"store_text": False}, "yes", "no"),
    ],
)
def test_an_index_made_with_other_parameters_is_refused(
    tmp_path: Path, options: dict[str, Any], has: str, asked: str
) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
    before = files(tmp_path)
    with pytest.raises(StoreRefused, match="was made with") as raised:
        PassageIndex(tmp_path, **options)
    assert has in str(raised.value)
    assert asked in str(raised.value)
    assert files(tmp_path) == before


def test_an_index_says_itself_how_it_was_made(tmp_path: Path) -> None:
    made = {"tokeniser": "code", "blotter": {"name": "rolling", "k": 4, "window": 4}, "store_text": False}
    with PassageIndex(tmp_path, **made) as index:  # type: ignore[arg-type]
        index.add("a", "if (x == y): return z + 1; else: pass")
    with PassageIndex(tmp_path) as index:
        assert index.parameters.tokeniser == "code/1"
        assert index.parameters.blotter["k"] == 4
        assert list(found(index, "if (x == y): return z")) == ["a"]
        with pytest.raises(StoreRefused):
            index.text("a")
    with PassageIndex(tmp_path, **made):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("options", [{"tokeniser": "klingon"}, {"blotter": "cubic"}, {"jobs": -1}])
def test_parameters_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        PassageIndex(tmp_path, **options)


# Several at once


WRITER = """
import sys
from pathlib import Path
from scrapy_dedupe.passages import PassageIndex

if __name__ == "__main__":
    with PassageIndex(sys.argv[1], command="passages index") as index:
        index.add("kept", "what was there before")
        index.flush()
        with index.writing():
            for number in range(int(sys.argv[2])):
                index.add(f"w{number}", f"text {number} " * 30)
                index.flush()
            print("writing", flush=True)
            sys.stdin.readline()
"""


@contextmanager
def writer(folder: Path, count: int = 3) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "writing\n"
        try:
            yield program
        finally:
            program.kill()


def test_a_second_writer_is_told_who_the_first_is_and_writes_after_it(tmp_path: Path) -> None:
    with writer(tmp_path) as first, PassageIndex(tmp_path) as index:
        assert len(index) == 4
        index.add("second", COPIED)
        with pytest.raises(StoreUnavailable) as raised:
            index.flush()
        assert f"process {first.pid}" in str(raised.value)
        assert "passages index" in str(raised.value)
        with pytest.raises(StoreUnavailable), index.writing():
            pass
        index.add("second", COPIED)
        first.communicate("\n", timeout=240)
        assert first.returncode == 0
        assert list(found(index, COPIED)) == ["second"]
        assert len(index) == 5
    with PassageIndex(tmp_path) as index:
        assert index.check(full=True).problems == ()


def test_whoever_is_refused_is_told_the_command_of_the_work_or_else_that_of_the_index(tmp_path: Path) -> None:
    for command, told in (("a repair", "a repair"), ("", "nightly")):
        with PassageIndex(tmp_path, command="nightly") as index, index.writing(command):
            other = PassageIndex(tmp_path)
            with pytest.raises(StoreUnavailable, match=rf"\({told}\)"):
                other.delete("a")


def test_a_writer_waits_for_another_one_if_it_may(tmp_path: Path) -> None:
    with writer(tmp_path) as first, PassageIndex(tmp_path, lock_timeout_s=240) as index:
        index.add("second", COPIED)
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert list(found(index, COPIED)) == ["second"]


def test_two_indexes_of_one_folder_see_what_the_other_writes(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as one, PassageIndex(tmp_path) as other:
        one.add("a", COPIED)
        one.flush()
        assert list(found(other, COPIED)) == ["a"]
        other.add("b", COPIED)
        other.delete("a")
        assert list(found(one, COPIED)) == ["b"]
        one.add("b", words(1))
        one.flush()
        assert found(other, COPIED) == {}
        assert len(one) == len(other) == 1


def test_a_killed_writer_leaves_what_it_had_written_and_no_lock(tmp_path: Path) -> None:
    with writer(tmp_path) as first:
        (tmp_path / "00000099.segment.new").write_bytes(b"half")
        first.send_signal(signal.SIGKILL)
        first.wait(240)
    with PassageIndex(tmp_path) as index:
        assert [document.doc_id for document in index.documents] == ["kept", "w0", "w1", "w2"]
        assert index.check(full=True).problems == ()
        index.add("next", COPIED)
        index.flush()
        assert not (tmp_path / "00000099.segment.new").exists()


def test_a_snapshot_stays_as_it_is(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        index.add("b", COPIED)
        index.flush()
        snapshot = index.snapshot()
        index.delete("a")
        index.compact()
        assert [document.doc_id for document in snapshot.iter_documents()] == ["a", "b"]
        assert snapshot.text(0) == COPIED
        assert [document.doc_id for document in index.documents] == ["b"]


# A longer piece of work


def test_what_is_written_at_once_is_seen_at_its_end(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        with index.writing("index", atomic=True):
            for name in ("b", "c"):
                index.add(name, f"{words(1)} {COPIED}")
                index.flush()
            index.delete("a")
            assert segments(tmp_path) == 1
        assert list(found(index, COPIED)) == ["b", "c"]
        assert len(files(tmp_path)) == len(read_manifest(tmp_path).files)  # type: ignore[union-attr]


def test_of_what_is_written_at_once_nothing_stays_after_an_error(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        index.flush()
        before = files(tmp_path)
        with suppress(Cut), index.writing("index", atomic=True):
            index.add("b", COPIED)
            index.flush()
            index.delete("a")
            index.add("c", COPIED)
            raise Cut
        assert files(tmp_path) == before
        assert list(found(index, COPIED)) == ["a"]


def test_of_other_long_work_what_was_written_stays_after_an_error(tmp_path: Path) -> None:
    with PassageIndex(tmp_path) as index:
        with suppress(Cut), index.writing("index"):
            index.add("a", COPIED)
            index.flush()
            index.add("b", COPIED)
            raise Cut
        assert list(found(index, COPIED)) == ["a"]


def test_an_error_drops_what_is_pending(tmp_path: Path) -> None:
    with suppress(Cut), PassageIndex(tmp_path) as index:
        index.add("a", COPIED)
        raise Cut
    with PassageIndex(tmp_path) as index:
        assert list(index.documents) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError), PassageIndex(tmp_path / "index") as index:
        index.add("a", COPIED)
