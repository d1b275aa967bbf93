from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.tasks import work
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.work import WorkFolder, size_of
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.tasks.work import Advance, Job


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies a file, byte by byte. A star in the file is a fault."""

    name: str
    file: Path | RemoteFile
    path: Path
    times: int = 1

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.path.with_suffix(".copy"),)

    @property
    def depends_on(self) -> object:
        return ("times", self.times)


def copy(task: Copy, faults: Faults, advance: Advance) -> object:
    assert isinstance(task.file, Path)
    text = task.file.read_text()
    if "*" in text:
        faults.add(task.name, "it has a star")
    task.outputs[0].write_text(text * task.times)
    advance(len(text))
    return {"chars": len(text)}


class Given:
    """Two files, and the tasks of a work folder that copy them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [folder / "a", folder / "b"]
        for file in self.files:
            file.write_text(f"text of {file.name}")

    def run(
        self, *, jobs: int = 1, times: int = 1, keep_going: bool = True
    ) -> tuple[list[object], Faults, list[str]]:
        """The results, the faults, and the files for which the function was called."""
        called: list[str] = []

        def watched(task: Copy, faults: Faults, advance: Advance) -> object:
            called.append(task.name)
            return copy(task, faults, advance)

        faults = Faults(keep_going=keep_going)
        with WorkFolder(self.folder / "work") as folder:
            tasks = [Copy(file.name, file, folder.task_path(file.name), times) for file in self.files]
            function = watched if jobs == 1 else copy
            results = folder.run(function, tasks, jobs, NO_PROGRESS, "copying", faults)
        return results, faults, called

    def copies(self) -> list[str]:
        return sorted(path.read_text() for path in (self.folder / "work").glob("*.copy"))


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_in_the_order_of_the_tasks(given: Given, jobs: int) -> None:
    given.files[1].write_text("a longer text, which is first in several processes")
    results, faults, _ = given.run(jobs=jobs)
    assert results == [{"chars": 9}, {"chars": 50}]
    assert (faults.count, len(given.copies())) == (0, 2)


def test_finished_tasks_are_not_run_again(given: Given) -> None:
    before = given.run()
    assert before[2] == ["a", "b"]
    results, _, called = given.run()
    assert (results, called) == (before[0], [])


def replaced_with_its_time(given: Given) -> None:
    stat = given.files[0].stat()
    other = given.folder / "other"
    other.write_text("TEXT of a")
    other.replace(given.files[0])
    os.utime(given.files[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))


CHANGES: dict[str, Callable[[Given], object]] = {
    "file": lambda given: given.files[0].write_text("other"),
    "file of the same size and time": replaced_with_its_time,
    "output": lambda given: proof(given, "a").with_suffix(".copy").write_text("cut"),
    "no output": lambda given: proof(given, "a").with_suffix(".copy").unlink(),
    "proof": lambda given: proof(given, "a").write_text('{"key'),
    "no proof": lambda given: proof(given, "a").unlink(),
}


def proof(given: Given, name: str) -> Path:
    return WorkFolder(given.folder / "work").task_path(name).with_suffix(".json")


@pytest.mark.parametrize("change", CHANGES)
def test_a_task_is_run_again_after_a_change(given: Given, change: str) -> None:
    given.run()
    CHANGES[change](given)
    assert given.run()[2] == ["a"]
    assert given.copies() == sorted(file.read_text() for file in given.files)


def test_a_remote_file_is_read_again_if_it_has_changed(given: Given) -> None:
    def run() -> list[object]:
        with WorkFolder(given.folder / "work") as folder:
            task = Copy("a", RemoteFile(given.files[0].as_uri()), folder.task_path("a"))
            return folder.run(measured, [task], 1, NO_PROGRESS, "reading", Faults())

    sizes: list[int] = []

    def measured(task: Copy, faults: Faults, advance: Advance) -> object:
        with task.file.open("rb") as file:
            sizes.append(len(file.read()))
        return sizes[-1]

    assert (run(), run()) == ([9], [9])
    given.files[0].write_text("a longer text")
    assert (run(), sizes) == ([13], [9, 13])


def test_tasks_are_run_again_with_other_options_or_another_version(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.run()
    assert given.run(times=2)[2] == ["a", "b"]
    monkeypatch.setattr(work, "__version__", "0.0.1")
    assert given.run(times=2)[2] == ["a", "b"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_faults_of_an_earlier_run_are_found_again(given: Given, jobs: int) -> None:
    given.files[1].write_text("a *")
    for _ in range(2):
        _, faults, _ = given.run(jobs=jobs)
        assert (faults.count, faults.first) == (1, [Fault("b", "it has a star")])
    with pytest.raises(DamagedInput, match="b: it has a star"):
        given.run(jobs=jobs, keep_going=False)


def test_a_file_that_changes_while_it_is_read_is_named(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(task: Copy, faults: Faults, advance: Advance) -> object:
        given.files[0].write_text("grown")
        return None

    monkeypatch.setitem(globals(), "copy", growing)
    with pytest.raises(
        ArchiveError, match=r"a has changed since this work began\. Start again with --force\."
    ):
        given.run()


def test_a_step_runs_once_and_its_faults_are_found_again(tmp_path: Path) -> None:
    runs: list[int] = []

    def run(own: Faults) -> object:
        runs.append(1)
        own.add("a.warc", "it is broken")
        return {"lines": 3}

    for _ in range(2):
        faults = Faults(keep_going=True)
        with WorkFolder(tmp_path / "work") as folder:
            assert folder.step("sorted", run, faults) == {"lines": 3}
        assert faults.first == [Fault("a.warc", "it is broken")]
    assert len(runs) == 1
    with WorkFolder(tmp_path / "work") as folder, pytest.raises(DamagedInput, match="it is broken"):
        folder.step("sorted", run, Faults())


def begin(given: Given, files: Sequence[Path], *, may_be_replaced: bool = False, **options: object) -> Job:
    """Begin a job, or continue it; return the job with which the folder was begun."""
    named = {file.name: file for file in files}
    with WorkFolder(given.folder / "work") as folder:
        asked = {"--hash": "sha1"} | options
        return folder.begin_or_continue(asked, named, {"pid": 1}, may_be_replaced=may_be_replaced).job


def test_a_job_is_continued_with_the_same_options_and_files(given: Given) -> None:
    before = begin(given, given.files)
    assert before.notes == {"pid": 1}
    assert begin(given, given.files) == before


@pytest.mark.parametrize(
    ("files", "options", "reason"),
    [
        (["a", "b"], {"--hash": "md5"}, "--hash was sha1"),
        (["a", "b"], {"--new": 1}, "--new was not given"),
        (["a", "b"], {"--in-place": True}, "--in-place was not given"),
        (["a"], {}, "b was one of its files"),
        (["a", "b", "c"], {}, "c was none of its files"),
        (["b", "a"], {}, "its files had another order"),
        (["other/a", "b"], {}, "a was another file"),
    ],
)
def test_another_job_is_refused(
    given: Given, files: list[str], options: dict[str, object], reason: str
) -> None:
    begin(given, given.files)
    (given.folder / "other").mkdir()
    for name in ("c", "other/a"):
        (given.folder / name).write_text("text of a")
    with pytest.raises(
        ArchiveError, match=f"work holds other unfinished work: {reason}\\. Repeat .* --force"
    ):
        begin(given, [given.folder / name for name in files], **options)


def test_an_option_that_was_zero_is_named_with_its_value(given: Given) -> None:
    begin(given, given.files, **{"--min-size": 0})
    with pytest.raises(ArchiveError, match="--min-size was 0"):
        begin(given, given.files, **{"--min-size": 1})


@pytest.mark.parametrize("change", ["file", "file of the same size and time"])
def test_a_file_that_changed_is_refused_unless_it_may_be_replaced(given: Given, change: str) -> None:
    begin(given, given.files)
    CHANGES[change](given)
    with pytest.raises(
        ArchiveError, match=r"a has changed since this work began\. Start again with --force\."
    ):
        begin(given, given.files)
    begin(given, given.files, may_be_replaced=True)


def test_a_file_with_other_permissions_has_not_changed(given: Given) -> None:
    begin(given, given.files)
    given.files[0].chmod(0o600)
    begin(given, given.files)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ({"version": "0.1", "asked": {}}, "it was started by version 0.1, but this is "),
        ({"format": 0, "version": work.__version__}, "its files have format 0, but "),
    ],
)
def test_work_of_another_version_or_format_is_refused(tmp_path: Path, stored: object, reason: str) -> None:
    with WorkFolder(tmp_path / "work", restart="remove the folder to start again") as folder:
        (folder.path / "job.json").write_text(json.dumps(stored))
        with pytest.raises(ArchiveError, match=rf"{reason}.*, or remove the folder to start again\."):
            folder.job()


def test_the_size_of_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="gone cannot be read"):
        size_of(tmp_path / "gone")
