"""Uploads of new files continue after a kill at any moment. No Spark is needed for this."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from offline.outputs import snapshot
from offline.planted import SITE, Copy, Planting, text

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import steps
from scrapy_dedupe.offline.steps import StepOptions, run_steps
from scrapy_dedupe.spark import uploads
from scrapy_dedupe.spark.uploads import dedupe_to_url, upload_file
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.tasks.progress import NoProgress

if TYPE_CHECKING:
    from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class StoredFiles(LocalFileSystem):
    """A server whose files are in folders of this machine, and are whole at once."""

    protocol = "stored"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("stored://"))

    def put_file(self, source: str, target: str, **options: Any) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - as in fsspec
        shutil.copyfile(source, f"{target}.part")
        os.replace(f"{target}.part", target)  # noqa: PTH105


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    register_implementation("stored", StoredFiles, clobber=True)
    p = Planting()
    for number, name in enumerate(("a.warc.gz", "b.warc.gz")):
        p.file(name)
        fate = Copy("same-0") if number else None
        p.exchange(name, f"same-{number}", f"{SITE}/same", text("same", 5_000), fate=fate)
    p.write(tmp_path / "in")
    return tmp_path


def dedupe(folder: Path, **others: Any) -> Any:
    inputs = find_inputs([str(folder / "in")], faults=Faults())
    options = StepOptions(work=folder / "work", **others)
    return dedupe_to_url(inputs, f"stored://{folder}/out", options, faults=Faults(), watch=NoProgress())


def killed(folder: Path, last: int) -> bool:
    """Whether a process was killed before its step *last*: a file or folder is made, opened for writing, or renamed."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    steps = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps
        is_write = event == "open" and isinstance(args[0], str) and args[2] & WRITING
        if (event in CHANGES or is_write) and not str(args[0]).startswith("/dev/"):
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(count)
        dedupe(folder)
    finally:
        os._exit(0)


def uploaded(folder: Path) -> dict[str, bytes]:
    found = snapshot(folder / "out")
    return {name: data for name, data in found.items() if name.endswith((".warc.gz", "manifest.txt"))}


@pytest.mark.parametrize(
    "stride", [pytest.param(23, id="some"), pytest.param(1, id="all", marks=pytest.mark.exhaustive)]
)
def test_the_same_call_continues_after_a_kill(folder: Path, stride: int) -> None:
    dedupe(folder)
    expected = uploaded(folder)
    assert sorted(expected) == [".dedupe/manifest.txt", "a.warc.gz", "b.warc.gz"]
    step = stride
    while True:
        shutil.rmtree(folder / "out")
        if not killed(folder, step):
            break
        if (folder / "out/.dedupe/report.json").exists():
            assert uploaded(folder) == expected
        # Without the folder for the work, either nothing was done, or only the removal of this folder was interrupted.
        is_left = (folder / "work").exists() or not (folder / "out").exists()
        with nullcontext() if is_left else pytest.raises(ArchiveError, match="is not empty"):
            dedupe(folder)
        assert uploaded(folder) == expected
        assert sorted(path.name for path in folder.iterdir()) == ["in", "out"]
        step += stride
    assert step > 20


def test_a_folder_with_other_files_is_not_used_for_the_work(folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work/other").write_bytes(b"kept")
    with pytest.raises(ArchiveError, match=r"work has other files, such as other, .* Move them"):
        dedupe(folder)
    assert (folder / "work/other").read_bytes() == b"kept"
    assert not (folder / "out").exists()


def test_a_dry_run_uploads_nothing_and_the_real_one_continues_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = dedupe(folder, dry_run=True)
    assert (tried.dry_run, tried.converted, tried.output) == (True, 1, f"stored://{folder}/out")
    assert not (folder / "out").exists()

    def never(*args: object, **options: object) -> None:
        raise AssertionError("the files are read again")

    monkeypatch.setattr(steps, "make_rows", never)
    assert dedupe(folder).converted == 1
    assert sorted(uploaded(folder)) == [".dedupe/manifest.txt", "a.warc.gz", "b.warc.gz"]
    assert not (folder / "work").exists()


def test_files_at_the_url_are_not_replaced_after_a_dry_run(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/a.warc.gz").write_bytes(b"kept")
    dedupe(folder, dry_run=True)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"out is not empty: it has a\.warc\.gz"):
            dedupe(folder)
    assert (folder / "out/a.warc.gz").read_bytes() == b"kept"
    assert not (folder / "out/.dedupe").exists()
    dedupe(folder, force=True)
    assert (folder / "out/a.warc.gz").read_bytes() == (folder / "in/a.warc.gz").read_bytes()


def test_a_work_folder_of_a_run_without_upload_is_refused(folder: Path) -> None:
    inputs = find_inputs([str(folder / "in")], faults=Faults())
    options = StepOptions(work=folder / "work", dry_run=True)
    run_steps(inputs, folder / "near", options, faults=Faults(), watch=NoProgress())
    with pytest.raises(ArchiveError, match="work holds other unfinished work: -o was not given"):
        dedupe(folder)


def test_a_dry_run_does_not_discard_new_files_that_are_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(task: Any) -> str:
        if task.name.startswith("a"):
            raise ArchiveError("the connection was lost.")
        return upload_file(task)

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "upload_file", fail)
        with pytest.raises(ArchiveError, match="the connection was lost"):
            dedupe(folder)
    with pytest.raises(ArchiveError, match=r"already verified\. Run the command without --dry-run to upload"):
        dedupe(folder, dry_run=True)
    assert dedupe(folder).converted == 1
