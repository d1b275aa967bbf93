"""A folder for the temporary data of a command that writes an output.

It is next to the output, and its name is derived from the output's, so that the next run of the command removes the
data of a killed run.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.tasks.state import LOCK, StateFolder, writing

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".work"


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[StateFolder]:
    """An empty folder for *output*; for ``-`` it is in the system's temporary folder. It is removed at the end.

    Raises ArchiveError if another process works on the same output, or if the folder cannot be created.
    """
    with left_folder(output) as state:
        state.clear(keep=frozenset({LOCK}))
        yield state


@contextlib.contextmanager
def left_folder(output: Path) -> Iterator[StateFolder]:
    """Like `work_folder`, but keeps the data of an earlier run."""
    with contextlib.ExitStack() as stack:
        if str(output) == "-":
            with writing(Path(tempfile.gettempdir())):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-dedupe-")))
            path = folder / SUFFIX
        else:
            path = output.with_name(f".{output.name}{SUFFIX}")
        state = stack.enter_context(StateFolder(path))
        stack.callback(_remove, state)
        yield state


def _remove(state: StateFolder) -> None:
    try:
        state.remove()
    except BaseException:
        # A signal can interrupt the removal, but only once, so remove the rest now.
        gone = state.path.with_name(f".{state.path.name}.gone")
        shutil.rmtree(gone if gone.exists() else state.path, ignore_errors=True)
        raise
