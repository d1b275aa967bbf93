"""The folder for what a command has to put down while it makes an output.

It stands beside the output and has a name that follows from the output's, so that the next run of the command removes
what one that was killed has left.
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
    """The folder that belongs to *output*, empty; ``-`` has one among the system's temporary files. Gone at the end.

    Raises ArchiveError if another process works on the same output, or the folder cannot be made.
    """
    with left_folder(output) as state:
        state.clear(keep=frozenset({LOCK}))
        yield state


@contextlib.contextmanager
def left_folder(output: Path) -> Iterator[StateFolder]:
    """As `work_folder`, with what an earlier run has left in it."""
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
        # A signal comes at any moment, and once: what it has kept from being removed goes now.
        gone = state.path.with_name(f".{state.path.name}.gone")
        shutil.rmtree(gone if gone.exists() else state.path, ignore_errors=True)
        raise
