from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import StateFolder, write_whole, writing

if TYPE_CHECKING:
    from pathlib import Path


def test_one_process_at_a_time_has_the_folder(tmp_path: Path) -> None:
    with (
        StateFolder(tmp_path / "state"),
        pytest.raises(ArchiveError, match="Another process"),
        StateFolder(tmp_path / "state"),
    ):
        pass
    with StateFolder(tmp_path / "state"):
        pass


def test_what_was_written_is_read_by_the_next_one(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        assert state.read_json("a.json") is None
        state.write_json("a.json", {"name": "ä\udc80", "size": 1 << 40})
    with StateFolder(tmp_path / "state") as state:
        assert state.read_json("a.json") == {"name": "ä\udc80", "size": 1 << 40}


def test_a_broken_state_is_not_taken_for_none(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        (state.path / "a.json").write_text('{"cut')
        with pytest.raises(ArchiveError, match=r"a\.json .*--force"):
            state.read_json("a.json")


def test_all_but_what_is_kept_is_removed(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        (state.path / "deep" / "deeper").mkdir(parents=True)
        for name in ("deep/deeper/a", "b", "kept"):
            (state.path / name).write_text(name)
        state.clear(keep=frozenset({"kept"}), last=("b",))
        assert [path.name for path in state.path.iterdir()] == ["kept"]
        state.remove()
    assert not list(tmp_path.iterdir())


def test_the_folder_goes_as_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StateFolder(tmp_path / "state") as state:
        state.write_json("a.json", 1)

        def die(path: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            context.setattr("shutil.rmtree", die)
            state.remove()
        assert not state.path.exists()
    with StateFolder(tmp_path / "state") as state:
        assert state.read_json("a.json") is None
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_what_a_process_left_is_removed_by_the_one_that_has_the_folder_alone(tmp_path: Path) -> None:
    left = tmp_path / ".state.gone" / "a.json"
    with StateFolder(tmp_path / "state"):
        left.parent.mkdir()
        left.write_text("1")
        with pytest.raises(ArchiveError, match="Another process"), StateFolder(tmp_path / "state"):
            pass
        assert left.exists()
    with StateFolder(tmp_path / "state"):
        assert not left.parent.exists()


def test_two_processes_may_remove_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = shutil.rmtree, []

    def disturbed(path: Path) -> None:
        calls.append(path)
        if len(calls) % 2:
            (path / "lock").unlink(missing_ok=True)
            raise FileNotFoundError(path)
        real(path)

    with StateFolder(tmp_path / "state") as state:
        state.write_json("a.json", 1)
        (tmp_path / ".state.gone").mkdir()
        monkeypatch.setattr("shutil.rmtree", disturbed)
        state.remove()
    assert not list(tmp_path.iterdir())
    assert len(calls) == 4


def test_what_is_named_last_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StateFolder(tmp_path / "state") as state:
        for name in "abc":
            (state.path / name).write_text(name)
        removed: list[str] = []
        unlink = type(tmp_path).unlink

        def note(path: Path, missing_ok: bool = False) -> None:
            removed.append(path.name)
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(type(tmp_path), "unlink", note)
        state.clear(last=("b", "lock", "a"))
    assert removed == ["c", "b", "lock", "a"]


def test_a_file_that_cannot_be_written_whole_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"before")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match=r"a\.json cannot be written: No space left"):
        write_whole(path, b"after")
    assert [(other.name, other.read_bytes()) for other in tmp_path.iterdir()] == [("a.json", b"before")]


def test_only_what_the_system_refuses_is_told_as_a_failure_to_write(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError


def test_faults_of_an_earlier_run_are_told_again() -> None:
    first = [Fault("a.warc, offset 1", "it is broken"), Fault("b.warc", "the file is empty")]
    faults = Faults(keep_going=True)
    faults.replay(5, first)
    assert (faults.count, faults.first) == (5, first)
    with pytest.raises(DamagedInput, match=r"a\.warc, offset 1: it is broken"):
        Faults().replay(5, first)
    Faults().replay(0, [])


def test_two_processes_can_remove_their_folders_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def rmtree(path: Path) -> None:
        if not removed:
            # Just before this process removes the empty folder, another one renames its own folder to the same path.
            (path / "lock").unlink()
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "lock").touch()
            (tmp_path / "other").rename(path)
        removed.append(path)
        if len(removed) > 1:
            real(path)
        else:
            path.rmdir()

    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with StateFolder(tmp_path / "work") as work:
        work.remove()
    assert len(removed) == 2
    assert not list(tmp_path.iterdir())


def test_a_kill_while_a_folder_is_emptied_leaves_no_file_without_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rmtree(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with StateFolder(tmp_path / "work") as work:
        for name in "abcdef":
            (work.path / name).mkdir()
            (work.path / f"{name}.json").touch()
        with pytest.raises(KeyboardInterrupt):
            work.clear(keep=frozenset({"lock"}), last=("b.json",))
        assert sorted(path.name for path in work.path.iterdir()) == [*"ab", "b.json", *"cdef", "lock"]
