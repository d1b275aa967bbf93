"""Read the records of manifest lines one by one, and make rows for them.

This is done for lines that do not match the rows of their file: a URI or date may be written in another form, or the
record may be of another type. Of a remote file that is only read, the records of all lines are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.row_scan import RowScan
from scrapy_dedupe.offline.rows import RecordRow, RowsTask
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.warc.bodies import payload_digests
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Numbered lines of one file. For a dry run, the heads of all records are kept."""

    places: Places
    eligibility: Eligibility
    lines: tuple[tuple[int, ManifestLine], ...]
    keep_going: bool
    is_dry_run: bool


def check_lines(task: CheckTask) -> tuple[list[tuple[Any, ...]], int, tuple[Fault, ...]]:
    """The rows of the lines, each after the number of its line; the number of faults, and the first of them.

    The row of a line that differs from its record has the reason ``damaged``. Raises ArchiveError, and DamagedInput for
    the first fault unless set to keep going.
    """
    faults = Faults(keep_going=task.keep_going)
    rows: list[tuple[Any, ...]] = []
    for number, line in task.lines:
        try:
            row = _row(task, line)
        except DamagedInput as error:
            place = f"{task.places.file(line.file)}, offset {line.offset}"
            faults.add(place, str(error).removeprefix(f"{place}: "))
            row = RecordRow(
                line.offset, line.length, "response", reason="damaged", unfit="damaged", is_chunked=False
            )
        rows.append((number, *row))
    return rows, faults.count, tuple(faults.first)


def _row(task: CheckTask, line: ManifestLine) -> RecordRow:
    record = task.places.record(line)
    algorithm, _, value = line.digest.partition(":")
    (digest,) = payload_digests(record, (algorithm,))
    if digest.hex != value:
        raise DamagedInput(
            f"{record.path}, offset {line.offset}: the manifest does not match the file: the digest of the payload"
            " differs. Create the manifest again with warcsum --recompute."
        )
    with record.path.open("rb") as file:
        file.seek(record.offset)
        is_gzip = file.read(2) == GZIP_MAGIC[:2]
    scan = RowScan(
        RowsTask(
            record.path,
            line.file,
            Path(),
            task.eligibility,
            (algorithm,),
            False,
            task.keep_going,
            task.is_dry_run,
        )
    )
    return scan.captured(record, {algorithm: digest})._replace(is_gzip=is_gzip)
