"""Write the output files of a restoration. Each is written under a temporary name in the folder of its final path, and
renamed when all files are verified.

Records that the plan does not change are copied unchanged, including gaps and damaged places.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files.whole_file import put_in_place
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import raw_head
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.remote import place_file
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from .layout import output_names
from .record_files import RecordFile
from .restoration_plan import RestorationPlan
from .restored_heads import pointed_back, pointed_fields
from .restored_records import restored_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.warc.reading import StoredRecord

    from .inputs import Input
    from .restoration_plan import Change


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
            output.source.open("rb") as source,
            RecordFile(output.waiting, gzip=source.read(2) == GZIP_MAGIC[:2]) as target,
        ):
            copied = 0
            for change in plan.changes(output.number):
                record = read_record(output.source, change.offset)
                target.copy(source, copied, change.offset)
                _write_changed(target, record, change, plan)
                copied = change.offset + change.length
            target.copy(source, copied, None)
            target.finish(partial(shutil.copymode, output.source))
    except OSError as error:
        raise ArchiveError(f"{output.source} cannot be read: {error.strerror or error}.") from error


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


def _write_changed(target: RecordFile, record: StoredRecord, change: Change, plan: RestorationPlan) -> None:
    is_the_same = record.length == change.length and (record.type == "revisit" or not change.is_revisit)
    if not is_the_same or (change.is_revisit and record.http is None):
        raise ArchiveError(f"{record.path} has changed since it was read. Start again.")
    if not change.is_revisit:
        length = record.frame.block_length
        former = pointed_back(raw_head(record), pointed_fields(record)).to_bytes(length)
        held = record.frame.kept
        target.write(former, [held] if len(held) == length else open_block(record.path, record.frame), length)
        return
    assert change.original_file is not None
    assert change.original_offset is not None
    assert change.size is not None
    original = read_record(
        place_file(plan.place(change.original_file)),
        change.original_offset,
        block_position=change.original_position,
    )
    head, block_pieces, length = restored_record(record, original, change.size, is_named=plan.is_named)
    target.write(head.to_bytes(length), block_pieces(), length)
