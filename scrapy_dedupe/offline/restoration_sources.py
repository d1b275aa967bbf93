"""The files that a restoration reads, and whether they are still those that its plan was made of.

A run may be cut and go on days later, and a long one has time enough for somebody to add a record to a file. What was
made of a file that has changed since is of no use, and in place it would take the place of what came meanwhile. So the
plan notes of every file what changes with its bytes: size, time, inode, and the time of the inode, which a copy that
keeps the times of the first file cannot keep. Of a file that was made and verified the last is not noted, since a file
gets another one with its final name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .restored_files import waiting_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .inputs import Input
    from .restoration_plan import RestorationPlan
    from .restored_files import Output

_FILES: Final = "files"
_MADE: Final = "made"


@dataclass(frozen=True, slots=True)
class RestorationSources:
    """The files that are restored, each with its final path, and others in which originals are looked for."""

    inputs: Sequence[Input]
    finals: Sequence[Path]
    others: Sequence[Input]
    in_place: bool

    def note(self, plan: RestorationPlan) -> None:
        """Enter what tells whether the files are as they are now."""
        plan.set_fact(_FILES, [[given.name, _facts(given)] for given in self._all])

    def note_made(self, plan: RestorationPlan, outputs: Iterable[Output]) -> None:
        """Enter the same of files that were verified and wait for their final names."""
        plan.set_fact(_MADE, {str(one.final): made_facts(one.waiting) for one in outputs})

    def are_current(self, plan: RestorationPlan) -> bool:
        """Whether a run that was cut can go on: each file is as it was, or is what was made of it."""
        noted, made = plan.fact(_FILES) or [], made_by(plan)
        if len(noted) != len(self._all):
            return False
        for number, given in enumerate(self._all):
            is_same = [given.name, _facts(given)] == noted[number]
            wanted = made.get(str(self.finals[number])) if number < len(self.finals) else None
            if wanted is not None:
                final = self.finals[number]
                is_waiting = waiting_path(final).exists()
                if made_facts(waiting_path(final) if is_waiting else final) != wanted:
                    return False
                is_same = is_same or (self.in_place and not is_waiting)
            if not is_same:
                return False
        return True

    def changed(self, plan: RestorationPlan, number: int | None = None) -> str | None:
        """The name of a file that is not as it was when the plan was made, of all or of that *number*."""
        noted = plan.fact(_FILES)
        for index, given in enumerate(self._all):
            if number in (None, index) and [given.name, _facts(given)] != noted[index]:
                return given.name
        return None

    @property
    def _all(self) -> list[Input]:
        return [*self.inputs, *self.others]


def made_by(plan: RestorationPlan) -> dict[str, list[int]]:
    """The facts of the files that a run has made and verified, by their final paths."""
    return plan.fact(_MADE) or {}


def made_facts(path: Path) -> list[int] | None:
    """What a file keeps when it is renamed, and changes when it is written; None if it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _facts(given: Input) -> list[int] | None:
    if not isinstance(given.file, Path):
        return [given.size_bytes]
    try:
        stat = given.file.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns]
