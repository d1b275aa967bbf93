"""Work folders next to the output of a command, with names derived from the name of the output.

The temporary files of a command are in ``.OUTPUT.work`` (`work_folder`), which the next run of the command removes after a
kill. A job that continues after a kill keeps its results in ``OUTPUT.parts`` (`parts_folder`).
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.tasks.state import LOCK, reading, writing
from scrapy_dedupe.tasks.work import WorkFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[WorkFolder]:
    """An empty work folder next to *output*, or in the system's temporary folder if *output* is ``-``. It is removed at the end.

    Raises ArchiveError if another process works on the same output, or if the folder cannot be created.
    """
    with left_folder(output) as work:
        work.clear(keep=frozenset({LOCK}))
        yield work


@contextlib.contextmanager
def left_folder(output: Path) -> Iterator[WorkFolder]:
    """Like `work_folder`, but keeps the files of an earlier run."""
    with contextlib.ExitStack() as stack:
        if str(output) == "-":
            with writing(Path(tempfile.gettempdir())):
                path = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-dedupe-")), ".work"
                )
        else:
            path = _work_path(output)
        refuse_other_files(path)
        work = WorkFolder(path)
        try:
            stack.enter_context(work)
        except BaseException:
            # A signal may come before the folder is locked. The folder of another process is not empty.
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        stack.callback(work.remove_at_end)
        yield work


def _work_path(output: Path) -> Path:
    return output.with_name(f".{output.name}.work")


def parts_folder(output: Path, command: str) -> WorkFolder:
    """The work folder of a *command* that writes the file *output*, and that continues after a kill.

    Raises ArchiveError if the folder has files of other programs.
    """
    path = _parts_path(output)
    refuse_other_files(path)
    return WorkFolder(path, command=command, restart="run the command again")


def _parts_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


def _is_continued(parts: Path, output: Path) -> bool:
    """Whether the job in the folder *parts* began after *output* was written, and will replace it with ``--force``."""
    lock = parts / LOCK
    return lock.exists() and lock.stat().st_mtime_ns > output.stat().st_mtime_ns


def refuse_other_files(path: Path, *, mark: str = LOCK, known: Collection[str] = ()) -> None:
    """Raise ArchiveError if the folder *path* has files of other programs, which a job in it would remove.

    The folder is from an earlier run if it has the file *mark*. Without this file, it may only have the names in *known*.
    """
    with reading(path):
        others = _other_files(path, mark, known)
    if others:
        raise ArchiveError(
            f"{path} has other files, such as {others[0]}, which would be removed. Move them to another folder, or choose"
            " another folder for the work or the output."
        )


def _other_files(path: Path, mark: str = LOCK, known: Collection[str] = ()) -> list[str]:
    found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    return [] if mark in found else sorted(found.difference(known))


def check_output(output: Path, *, may_exist: bool, choices: str) -> None:
    """Raise ArchiveError if the file *output* cannot be written, or must not be replaced.

    *choices* says what the user can do about an existing file.
    """
    if not output.parent.is_dir():
        raise ArchiveError(
            f"{output} cannot be written: the folder {output.parent} does not exist. Create it, or choose another."
        )
    if output.is_dir():
        raise ArchiveError(f"{output} is a folder. Name a file.")
    if output.exists() and not may_exist:
        # A run that was killed just before it removed these folders may have left them.
        left = [_work_path(output)]
        if not _is_continued(_parts_path(output), output):
            left.append(_parts_path(output))
        for work in map(WorkFolder, left):
            if work.is_left and not _other_files(work.path):
                with work:
                    work.remove()
        raise ArchiveError(f"{output} already exists. Name another output, {choices}.")
