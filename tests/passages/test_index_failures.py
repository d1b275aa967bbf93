"""Errors in the middle of writing: the index has what its manifest names, and says truly what is written and what not."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.passages import PassageIndex, catalogue, writer
from scrapy_dedupe.passages import index as index_module
from scrapy_dedupe.passages.catalogue import MANIFEST, read_manifest
from scrapy_dedupe.passages.folder_files import WriterLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Cut(Exception):
    """What ends a piece of work in a test."""


def words(seed: int, count: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(count))


def filled(folder: Path, documents: int = 3) -> PassageIndex:
    """An index with as many segments as documents, opened."""
    with PassageIndex(folder) as index:
        for number in range(documents):
            index.add(f"d{number}", words(number))
            index.flush()
    return PassageIndex(folder)


def names(folder: Path) -> list[str]:
    with PassageIndex(folder, create=False) as index:
        assert index.check(full=True).problems == ()
        return [document.doc_id for document in index.documents]


def segments(folder: Path) -> int:
    manifest = read_manifest(folder)
    assert manifest is not None
    return len(manifest.segments)


def has_no_leftovers(folder: Path) -> bool:
    manifest = read_manifest(folder)
    assert manifest is not None
    return {path.name for path in folder.iterdir()} - {"lock"} == manifest.files


class Fault:
    """Makes a function of a module fail at its *turn*-th call from now on, counted from 1; or at each one (0)."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.calls = 0
        self._turn = -1
        self._act: Callable[[], object] = lambda: None
        self._real = getattr(module, name)
        patch.setattr(module, name, self)

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self._turn in (0, self.calls):
            self._act()
        return self._real(*args)

    def arm(self, act: Callable[[], object], turn: int = 0) -> None:
        self._turn, self._act, self.calls = turn, act, 0

    def mend(self) -> None:
        self._turn = -1


def io_error() -> None:
    raise OSError(5, "Input/output error")


def interrupt() -> None:
    # A process that a shell has started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def no_space() -> None:
    raise StoreUnavailable("There is no space.")


# After the manifest was replaced


@pytest.mark.parametrize(
    ("act", "error"), [(io_error, StoreUnavailable), (interrupt, KeyboardInterrupt)], ids=["error", "Ctrl-C"]
)
@pytest.mark.parametrize("work", ["add", "compact", "delete"])
def test_files_that_the_manifest_names_stay_whatever_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], error: type, work: str
) -> None:
    index = filled(tmp_path)
    sync = Fault(monkeypatch, whole_file, "sync_folder")
    if work == "add":
        index.add("new", words(9))
    # A segment is written before the manifest.
    turn = 1 if work == "delete" else 2
    sync.arm(act, turn=turn)
    with pytest.raises(error):
        {"add": index.flush, "compact": index.compact, "delete": lambda: index.delete("d1")}[work]()
    assert sync.calls == turn
    sync.mend()
    expected = {"add": ["d0", "d1", "d2", "new"], "compact": ["d0", "d1", "d2"], "delete": ["d0", "d2"]}[work]
    assert names(tmp_path) == expected
    assert [document.doc_id for document in index.documents] == expected
    assert has_no_leftovers(tmp_path)


def test_what_is_stored_is_not_pending_even_if_an_error_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(tmp_path)
    sync = Fault(monkeypatch, whole_file, "sync_folder")
    index.add("new", words(9))
    sync.arm(io_error, turn=2)
    with pytest.raises(StoreUnavailable, match="was written, but") as raised:
        index.flush()
    assert "as it was" not in str(raised.value)
    sync.mend()
    assert (index.pending_bytes, index.pending_documents) == (0, 0)
    index.flush()
    assert index.added.documents == 1
    assert index.added.unchanged == 0
    assert segments(tmp_path) == 4


def test_a_write_that_failed_is_pending_and_written_by_the_next_one_of_the_same_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(tmp_path)
    with index.writing():
        replace = Fault(monkeypatch, catalogue, "replace_manifest")
        index.add("new", words(9))
        replace.arm(no_space)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="no space"):
                index.flush()
            assert index.pending_documents == 1
            # what could not be added takes no room meanwhile
            assert has_no_leftovers(tmp_path)
        replace.mend()
        index.flush()
        assert index.pending_documents == 0
        assert names(tmp_path) == ["d0", "d1", "d2", "new"]
    assert index.added.documents == 1


def test_nothing_is_removed_while_the_manifest_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(tmp_path)
    sync = Fault(monkeypatch, whole_file, "sync_folder")
    with suppress(StoreUnavailable), index.writing():
        read = Fault(monkeypatch, catalogue, "read_manifest")
        sync.arm(io_error, turn=2)
        read.arm(no_space)
        index.add("new", words(9))
        with pytest.raises(StoreUnavailable, match="was written, but"):
            index.flush()
        with pytest.raises(StoreUnavailable, match="is unknown"):
            index.flush()
    sync.mend()
    read.mend()
    assert names(tmp_path) == ["d0", "d1", "d2", "new"]


# Merges


def test_a_merge_that_fails_costs_no_document_and_is_not_tried_at_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(tmp_path, 7)
    now = [1_000.0]
    monkeypatch.setattr(index_module.time, "monotonic", lambda: now[0])
    merge = Fault(monkeypatch, writer, "merge")
    merge.arm(no_space)
    for number in range(7, 12):
        index.add(f"d{number}", words(number))
        index.flush()
        assert index.pending_documents == 0
    assert merge.calls == 1
    assert "no space" in str(index.merge_error)
    assert index.delete("d3")
    now[0] += index_module.FIRST_MERGE_PAUSE_S
    index.add("later", words(40))
    index.flush()
    assert merge.calls == 2
    now[0] += index_module.FIRST_MERGE_PAUSE_S  # twice as long is waited after a second failure
    index.add("again", words(41))
    index.flush()
    assert merge.calls == 2
    assert len(index) == 13
    assert has_no_leftovers(tmp_path)
    merge.mend()
    now[0] += index_module.FIRST_MERGE_PAUSE_S
    index.add("last", words(42))
    index.flush()
    assert index.merge_error is None
    assert segments(tmp_path) < 8
    assert len(names(tmp_path)) == 14


def test_a_damaged_segment_does_not_keep_others_from_being_added(tmp_path: Path) -> None:
    index = filled(tmp_path, 7)
    manifest = catalogue.read_manifest(tmp_path)
    assert manifest is not None
    entry = manifest.segments[0]
    damaged = tmp_path / f"{entry.name}.segment"
    data = bytearray(damaged.read_bytes())
    data[entry.sections["posts"][0]] ^= 1
    damaged.write_bytes(bytes(data))
    for number in range(7, 12):
        index.add(f"d{number}", words(number))
        index.flush()
    assert index.added.documents == 5
    assert isinstance(index.merge_error, StoreRefused)
    with pytest.raises(StoreRefused, match=damaged.name):
        index.compact()


def test_a_file_that_is_gone_is_named_by_whoever_would_write(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with filled(folder, 2) as index:
        index.add("more", words(8))
        index.add("most", words(9))
        index.flush()
        assert index.delete("more")
    gone = max(folder.glob("*.segment"))
    gone.unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    sentence = f"damaged: {folder} lacks the file {gone}"
    with PassageIndex(folder) as index:
        for work in (index.compact, lambda: index.delete("d0"), lambda: index.like(words(0))):
            with pytest.raises(StoreRefused, match=sentence):
                work()
        index.add("new", words(12))
        with pytest.raises(StoreRefused, match=sentence):
            index.flush()
        assert index.pending_documents == 1
        with pytest.raises(StoreRefused, match=sentence):
            index.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before


def test_a_program_that_cannot_wait_merges_small_segments_alone(tmp_path: Path) -> None:
    with PassageIndex(tmp_path, largest_merge_posts=500) as index:
        for number in range(20):
            index.add(f"d{number}", words(number))  # with some 15 posts
            index.flush()
        assert segments(tmp_path) < 8
        for number in range(20, 40):
            index.add(f"d{number}", words(number, 600))  # with some 150
            index.flush()
        assert segments(tmp_path) >= 16
    with PassageIndex(tmp_path) as index:
        index.add("last", words(50))
        index.flush()
        assert segments(tmp_path) < 8
    assert len(names(tmp_path)) == 41


# Work at once


def test_a_piece_of_work_in_another_one_is_a_part_of_that(tmp_path: Path) -> None:
    index = filled(tmp_path, 1)
    with suppress(Cut), index.writing("outer", atomic=True):
        index.add("a", words(10))
        for atomic in (False, True):
            with index.writing("inner", atomic=atomic):
                index.add(f"b{atomic}", words(11 + atomic))
            assert segments(tmp_path) == 1
        raise Cut
    assert names(tmp_path) == ["d0"]
    assert index.added.documents == 0
    with index.writing("outer"), pytest.raises(RuntimeError, match="atomic=True"), index.writing(atomic=True):
        pass


def test_work_at_once_leaves_no_files_that_neither_the_old_nor_the_new_index_has(tmp_path: Path) -> None:
    index = filled(tmp_path, 3)
    committed = read_manifest(tmp_path).files  # type: ignore[union-attr]
    most = 0
    with index.writing(atomic=True):
        for number in range(10, 80):
            index.add(f"d{number}", words(number))
            index.flush()
            found = {path.name for path in tmp_path.iterdir()}
            assert committed <= found
            most = max(most, len(found - committed))
    assert most <= 1 + 2 * 14
    assert has_no_leftovers(tmp_path)
    assert len(names(tmp_path)) == 73


# Copies of a process


def in_a_child(work: Callable[[], object]) -> str:
    """What is raised by *work* in a fork of this process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_write_with_the_lock_of_its_parent(tmp_path: Path) -> None:
    index = filled(tmp_path, 1)

    def add() -> None:
        with index:
            index.add("child", words(10))
            index.flush()

    def begin() -> None:
        with index.writing("own"):
            pass

    with index.writing("work", atomic=True):
        index.add("a", words(11))
        index.flush()
        for work in (add, begin, index.compact, lambda: index.delete_many(["d0"])):
            said = in_a_child(work)
            assert f"StoreUnavailable: The index {tmp_path} is being written by process {os.getpid()}" in said
        index.add("b", words(12))
    assert names(tmp_path) == ["d0", "a", "b"]


# Where the index was, and where it is closed


def test_an_index_that_is_not_to_be_made_is_not_made_where_one_vanished(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(folder, 1).close()
    index = PassageIndex(folder, create=False)
    folder.rename(tmp_path / "elsewhere")
    for work in (lambda: len(index), index.flush, index.compact, lambda: index.delete("d0"), index.snapshot):
        with pytest.raises(StoreRefused, match="no passage index"):
            work()
    index.add("a", words(10))
    with pytest.raises(StoreRefused, match="no passage index"):
        index.close()
    assert not folder.exists()


def test_an_index_that_vanished_is_not_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    for index in (PassageIndex(folder), PassageIndex(folder)):  # the one that made it, and one that found it
        index.add("a", words(10))
        assert [hit.doc_id for hit in index.like(words(10))] == ["a"]
        folder.rename(tmp_path / "elsewhere")
        for work in (lambda: index.like(words(10)), lambda: len(index), index.compact):  # noqa: B023
            with pytest.raises(StoreRefused, match=f"There is no passage index in {folder}"):
                work()
        assert not folder.exists()
        index.close()  # nothing is lost
        (tmp_path / "elsewhere").rename(folder)
    index = PassageIndex(folder)
    folder.rename(tmp_path / "elsewhere")
    index.add("b", words(11))
    with pytest.raises(StoreRefused, match="no passage index"):
        index.close()
    assert not folder.exists()
    assert names(tmp_path / "elsewhere") == ["a"]


def test_a_new_index_that_nobody_wrote_to_answers_that_nothing_is_found(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "index") as index:
        assert index.like(words(1)) == []
        assert len(index) == 0


def test_an_error_of_the_work_is_not_replaced_by_one_of_the_index(tmp_path: Path) -> None:
    with WriterLock(tmp_path, "other"), suppress(Cut), PassageIndex(tmp_path) as index:
        index.add("a", words(1))
        raise Cut
    assert not (tmp_path / MANIFEST).exists()


def test_two_changes_in_the_same_instant_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with PassageIndex(folder) as other:
        other.add_all([(f"d{number}", words(number)) for number in range(3)])
        other.delete("d0")
    index = PassageIndex(folder)
    assert len(index) == 2
    path, kept = folder / MANIFEST, tmp_path / "kept"
    before = path.stat()
    os.link(path, kept)
    with PassageIndex(folder) as other:
        other.delete("d1")
    # A file system may give the new file the number of the one that has gone, and the same time.
    kept.write_bytes(path.read_bytes())
    kept.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_size,
    )
    assert [document.doc_id for document in index.documents] == ["d2"]


USES: dict[str, Callable[[PassageIndex], object]] = {
    "add": lambda index: index.add("a", "text"),
    "add_all": lambda index: index.add_all([("a", "text")]),
    "flush": lambda index: index.flush(),
    "delete": lambda index: index.delete("d0"),
    "compact": lambda index: index.compact(),
    "writing": lambda index: index.writing().__enter__(),
    "like": lambda index: index.like("text"),
    "extract": lambda index: index.extract(),
    "text": lambda index: index.text("d0"),
    "documents": lambda index: index.documents,
    "len": len,
    "in": lambda index: "d0" in index,
    "check": lambda index: index.check(),
    "inspect": lambda index: index.inspect(),
    "snapshot": lambda index: index.snapshot(),
    "with": lambda index: index.__enter__(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_closed_index_says_so(tmp_path: Path, use: Callable[[PassageIndex], object]) -> None:
    index = filled(tmp_path, 1)
    index.close()
    with pytest.raises(ValueError, match=r"^The index .* is closed\. Open it again\.$"):
        use(index)
    index.close()
    assert (index.pending_bytes, index.pending_documents) == (0, 0)


@pytest.mark.parametrize("store_text", [True, False])
def test_answers_that_are_not_read_to_their_end_say_that_the_index_was_closed(
    tmp_path: Path, store_text: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with PassageIndex(tmp_path / "index", store_text=store_text) as index:
        for number in range(5):
            index.add(f"d{number}", f"{words(number)} {words(90)} {words(10 + number)} {words(91, 30)}")
        begun, waiting, documents = index.extract(work=work), index.extract(work=work), index.documents
        next(begun)
        next(documents)
    for answers in (begun, waiting, documents):
        with pytest.raises(ValueError, match="is closed"):
            list(answers)
    assert list(work.iterdir()) == []


def test_threads_take_turns(tmp_path: Path) -> None:
    index = PassageIndex(tmp_path)
    errors: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 12):
                index.add(f"d{number}", words(number))
                if number % 3 == 0:
                    index.flush()
                elif number % 3 == 1:
                    with index.writing():
                        index.add(f"more{number}", words(number, 20))
                else:
                    assert [hit.doc_id for hit in index.like(words(number), top=1)] == [f"d{number}"]
                assert f"d{number}" in index
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    index.close()
    assert len(names(tmp_path)) == 4 * 16
