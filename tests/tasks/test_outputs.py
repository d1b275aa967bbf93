from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.tasks.outputs import check_output, left_folder, parts_folder, work_folder


def test_a_folder_for_temporary_files_is_empty_and_removed_at_the_end(tmp_path: Path) -> None:
    with left_folder(tmp_path / "out") as folder, pytest.raises(ZeroDivisionError):  # noqa: PT012
        (folder.path / "left").write_text("")
        with work_folder(tmp_path / "other") as other:
            assert [path.name for path in other.path.iterdir()] == ["lock"]
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_for_standard_output_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with work_folder(Path("-")) as folder:
        assert tmp_path not in folder.path.parents
    assert not folder.path.parent.exists()
    assert not list(tmp_path.iterdir())


def test_an_output_must_not_exist_and_its_folder_must(tmp_path: Path) -> None:
    output = tmp_path / "out"
    check_output(output, may_exist=False, choices="or replace it")
    with pytest.raises(ArchiveError, match=r"the folder .*gone does not exist"):
        check_output(tmp_path / "gone" / "out", may_exist=False, choices="")
    with pytest.raises(ArchiveError, match=r"is a folder\. Name a file"):
        check_output(tmp_path, may_exist=True, choices="")
    output.write_text("before")
    check_output(output, may_exist=True, choices="")
    with parts_folder(output, "near"):  # left by a run that was killed at its very end
        os.utime(output.with_name("out.parts") / "lock", (0, 0))
    with pytest.raises(ArchiveError, match=r"out already exists\. Name another output, or replace it\."):
        check_output(output, may_exist=False, choices="or replace it")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_job_that_replaces_an_older_output_is_kept_if_the_option_is_forgotten(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("before")
    os.utime(output, (0, 0))
    with parts_folder(output, "near") as work:
        (work.path / "1.json").touch()
    with pytest.raises(ArchiveError, match="out already exists"):
        check_output(output, may_exist=False, choices="or replace it with --force")
    assert sorted(path.name for path in work.path.iterdir()) == ["1.json", "lock"]


@pytest.mark.parametrize(
    ("opened", "name"), [(partial(parts_folder, command="near"), "out.parts"), (work_folder, ".out.work")]
)
def test_a_folder_with_files_of_others_is_refused_and_kept(tmp_path: Path, opened: Any, name: str) -> None:
    kept = tmp_path / name / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("kept")
    with (
        pytest.raises(
            ArchiveError,
            match=rf"{name} has other files, such as notes\.txt, which would be removed\. Move them",
        ),
        opened(tmp_path / "out"),
    ):
        pass
    (tmp_path / "out").touch()
    with pytest.raises(ArchiveError, match="out already exists"):
        check_output(tmp_path / "out", may_exist=False, choices="or replace it")
    assert kept.read_text() == "kept"
    assert [path.name for path in kept.parent.iterdir()] == ["notes.txt"]


def test_unfinished_work_of_another_command_is_refused_and_kept(tmp_path: Path) -> None:
    with parts_folder(tmp_path / "out", "near") as work:
        (work.path / "1.json").write_text("read")
    sentence = r"out\.parts has unfinished work of near\. Repeat that command to finish it, or remove .*out\.parts to discard"
    for _ in range(2):
        with pytest.raises(ArchiveError, match=sentence), parts_folder(tmp_path / "out", "warcsum"):
            pass
    with parts_folder(tmp_path / "out", "near") as work:
        assert (work.path / "1.json").read_text() == "read"
        (work.path / "1.json").unlink()
    with parts_folder(tmp_path / "out", "warcsum") as work:  # nothing is left of the other work
        work.remove()
