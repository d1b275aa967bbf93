"""The files of a restoration: its sources, and the outputs, which are assembled from them and from the restored records.

Each output is written under a temporary name in the folder of its final path, and renamed when all files are verified.
Records that the plan does not change are copied unchanged, including gaps and damaged places. No other archive file is
opened for an output.

A run may continue days after a kill, and other programs may add records to a file during a long one. An output made from
an older version of a file is useless, and in place it would delete the new records. So the plan stores attributes of each
file that change with its content: size, modification time, inode, and the change time of the inode, which a copy that
preserves modification times cannot preserve. For a verified output, the change time is not stored, since renaming the file
changes it.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files.whole_file import put_in_place
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import raw_head

from .file_rewriting import RecordFile
from .layout import output_names
from .record_keys import RecordsInOrder
from .restoration_plan import RestorationPlan
from .restored_heads import pointed_back, pointed_fields
from .restored_records import made_path
from .windows import WindowedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .inputs import Input
    from .restoration_plan import Change

_FILES: Final = "files"
_MADE: Final = "made"


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write: its number in the plan, its source, its final path, and the number of changed records."""

    plan: Path
    number: int
    source: Path
    final: Path
    changes: int

    @property
    def waiting(self) -> Path:
        """Its temporary path until all files are verified."""
        return waiting_path(self.final)

    @property
    def size_before(self) -> int:
        """The size of its source."""
        with reading(self.source):
            return self.source.stat().st_size


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


def final_paths(inputs: Sequence[Input], output: Path | None) -> list[Path]:
    """The final path of each file below the folder *output*, or in place if *output* is None.

    Raises UsageError for a file that would overwrite itself.
    """
    if output is None:
        # Resolve links, so that the target is replaced and not the link.
        return [Path(given.name).resolve() for given in inputs]
    names = output_names(given.name for given in inputs)
    finals = [(output / names[given.name]).absolute() for given in inputs]
    for given, final in zip(inputs, finals, strict=True):
        if final.exists() and final.samefile(Path(given.name)):
            raise UsageError(
                f"{given.name} would overwrite itself. Choose another folder, or use --in-place."
            )
    return finals


def outputs_of(plan: RestorationPlan) -> list[Output]:
    """All files that a plan writes."""
    return [
        Output(plan.path, number, Path(place), Path(final), changes)
        for number, place, final, changes in plan.outputs()
    ]


def waiting_path(final: Path) -> Path:
    """The temporary path of a file until all are verified. Readers do not accept its name as an archive."""
    return final.with_name(f".{final.name}.restored")


def write_output(output: Output) -> None:
    """Write a file under its temporary name. Raises ArchiveError, and DamagedInput if a record cannot be read again."""
    try:
        with (
            RestorationPlan(output.plan, read_only=True) as plan,
            WindowedFile(output.source) as window,
            RecordFile(output.waiting, gzip=window.is_gzip_at(0)) as target,
        ):
            source, records = window.open("rb"), RecordsInOrder(window)
            copied = 0
            for change in plan.changes(output.number):
                target.copy(source, copied, change.offset)
                copied = change.offset + change.length
                if change.original_file is None:
                    _write_pointed_back(target, records, change, output)
                    continue
                assert change.rank is not None
                assert change.position is not None
                assert change.size is not None
                made = made_path(output.plan, change.rank, change.original_file, is_gzip=window.is_gzip_at(0))
                with reading(made), made.open("rb", buffering=0) as restored:
                    target.copy(restored, change.position, change.position + change.size)
            target.copy(source, copied, None)
            target.finish(partial(shutil.copymode, output.source))
    except OSError as error:
        raise ArchiveError(f"{output.source} cannot be read: {error.strerror or error}.") from error


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


def give_final_name(output: Output) -> None:
    """Rename a verified file to its final name, if that has not been done."""
    if not output.waiting.exists():
        return
    with writing(output.final):
        put_in_place(output.waiting, output.final)


def remove_waiting(plan: RestorationPlan) -> None:
    """Remove the temporary files of a run that is not continued."""
    for output in outputs_of(plan):
        with contextlib.suppress(FileNotFoundError), writing(output.waiting):
            output.waiting.unlink(missing_ok=True)


def _write_pointed_back(target: RecordFile, records: RecordsInOrder, change: Change, output: Output) -> None:
    found = records.at(change.offset)
    if found is None or found[0].length != change.length:
        raise ArchiveError(f"{output.source} has changed since it was read. Start again.")
    record = found[0]
    held, length = record.frame.kept, record.frame.block_length
    former = pointed_back(raw_head(record), pointed_fields(record)).to_bytes(length)
    target.write(former, [held] if len(held) == length else open_block(record.path, record.frame), length)


def _facts(given: Input) -> list[int] | None:
    if not isinstance(given.file, Path):
        return [given.size_bytes]
    try:
        stat = given.file.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns]
