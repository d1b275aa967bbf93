"""The folder to which a command writes: the lock on it, and the unfinished work in it.

``dedupe`` works in ``OUTPUT/.dedupe``, ``warcrefs`` in ``OUTPUT/.dedupe/warcrefs`` and ``restore`` in ``OUTPUT/.restore``.
Each of them, and ``arc2warc``, holds the lock ``OUTPUT/.dedupe/lock`` while it runs, so only one of them at a time writes
to a folder. In place, OUTPUT is the common parent folder of the files for ``dedupe``, the folder of the first file for
``restore``, and the working folder for ``warcrefs``. ``dedupe`` then also locks the folder of the first file, in the order of
real paths.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.tasks.inputs import STATE_FOLDER
from scrapy_dedupe.tasks.state import LOCK, StateFolder
from scrapy_dedupe.tasks.work import JOB, unfinished_work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESTORE_FOLDER: Final = ".restore"
NESTED: Final = "warcrefs"
WARCREFS_FOLDER: Final = f"{STATE_FOLDER}/{NESTED}"
_COMMANDS: Final = {STATE_FOLDER: "dedupe", WARCREFS_FOLDER: "warcrefs", RESTORE_FOLDER: "restore"}


@contextmanager
def held_output(output: Path, work: Path | None = None) -> Iterator[None]:
    """Hold the lock of the folder *output* for a command that works in the folder *work*, if any.

    If *work* is the folder with the lock, the caller locks it. Raises ArchiveError if another process holds the lock, or if
    another command has unfinished work in *output*.
    """
    state = output / STATE_FOLDER
    is_new = not output.exists()
    with ExitStack() as stack:
        if work is None or state.resolve() != work.resolve():
            stack.callback(_remove_empty, output, is_new=is_new)
            stack.enter_context(StateFolder(state))
            stack.callback(_remove_lock, state)
        refuse_other_work(output, work)
        yield


def refuse_other_work(output: Path, work: Path | None = None) -> None:
    """Raise ArchiveError if the folder *output* has unfinished work in another folder than *work*."""
    own = None if work is None else work.resolve()
    for name, command in _COMMANDS.items():
        other = output / name
        if other.resolve() != own and (other / JOB).exists():
            raise unfinished_work(other, command)


def refuse_nested_work(work: Path) -> None:
    """Raise ArchiveError if ``warcrefs`` has unfinished work in the folder *work*, of which ``dedupe`` removes all files."""
    if (work / NESTED / JOB).exists():
        raise unfinished_work(work / NESTED, "warcrefs")


def _remove_lock(state: Path) -> None:
    with suppress(OSError):
        (state / LOCK).unlink()


def _remove_empty(output: Path, *, is_new: bool) -> None:
    for folder in (output / STATE_FOLDER, *([output] if is_new else ())):
        with suppress(OSError):
            folder.rmdir()
