"""The source files of a restoration, and the check that they have not changed since its plan was made.

A run may continue days after a kill, and other programs may add records to a file during a long one. An output made from
an older version of a file is useless, and in place it would delete the new records. So the plan stores attributes of each
file that change with its content: size, modification time, inode, and the change time of the inode, which a copy that
preserves modification times cannot preserve. For a verified output, the change time is not stored, since renaming the file
changes it.
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
    """The files to restore, each with its final path, and other files that are searched for originals."""

    inputs: Sequence[Input]
    finals: Sequence[Path]
    others: Sequence[Input]
    in_place: bool

    def note(self, plan: RestorationPlan) -> None:
        """Store the attributes of the source files in the plan."""
        plan.set_fact(_FILES, [[given.name, _facts(given)] for given in self._all])

    def note_made(self, plan: RestorationPlan, outputs: Iterable[Output]) -> None:
        """Store the attributes of verified outputs that wait for their final names."""
        plan.set_fact(_MADE, {str(one.final): made_facts(one.waiting) for one in outputs})

    def are_current(self, plan: RestorationPlan) -> bool:
        """Whether a killed run can continue: each file is unchanged, or has been replaced by its verified output."""
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
        """The name of a file that has changed since the plan was made, of all files or only *number*; None if unchanged."""
        noted = plan.fact(_FILES)
        for index, given in enumerate(self._all):
            if number in (None, index) and [given.name, _facts(given)] != noted[index]:
                return given.name
        return None

    @property
    def _all(self) -> list[Input]:
        return [*self.inputs, *self.others]


def made_by(plan: RestorationPlan) -> dict[str, list[int]]:
    """The attributes of the verified outputs of a run, by their final paths."""
    return plan.fact(_MADE) or {}


def made_facts(path: Path) -> list[int] | None:
    """The attributes of a file that change when it is written, but not when it is renamed; None if it does not exist."""
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
