"""The plan of a rewriting: which records become revisits of which originals, found by joins over lines and rows.

Lines come from the manifests (`plan_lines`), rows from the files (`rows`). The statements are in `plan_queries`; DuckDB runs
them here. The result is one slice for each file that changes (`slices`), and ``plan.json`` with the counts, which is
written last. Both depend only on manifests and archive files.

The original of a copy is the earliest record of its payload, by the copy numbers of the manifest, that a revisit can
refer to: it is eligible (`eligibility`), and its URL, date, id and digest can be read back unchanged. A copy that is
stored without transfer chunks needs an original without them, since a replay program would show the chunks.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.line_checks import CheckTask, check_lines
from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.plan_joins import open_joins
from scrapy_dedupe.offline.plan_lines import LINES_FILE
from scrapy_dedupe.offline.plan_queries import (
    CHOICES,
    CONVERTED,
    LEFT_COPIES,
    NO_RECORD,
    OUTCOMES,
    SAVED,
    SLICE_ROWS,
    SLICES,
    SMALL_COPIES,
    SURVEYED,
    UNMATCHED,
)
from scrapy_dedupe.offline.rows import COLUMNS
from scrapy_dedupe.offline.savings import Savings, add_up
from scrapy_dedupe.offline.slices import SLICES_FOLDER
from scrapy_dedupe.offline.usual_rows import ADDED_BYTES
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_joins import Joins
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.jobs import Jobs


@dataclass(frozen=True, slots=True)
class PlanTask:
    """What the plan is made from: lines in *folder*, and the rows of files, by the number of the file.

    Of a used file without rows, only the records of its lines are read.
    """

    folder: Path
    files: Sequence[PlannedFile]
    rows: Mapping[int, Path]
    places: Places
    eligibility: Eligibility
    keep_going: bool
    is_dry_run: bool
    jobs: Jobs


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """What the plan will change. ``left`` counts the unchanged copies by reason, a key of `eligibility.LEFT`."""

    converted: int
    left: dict[str, int]
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()
    savings: Savings = field(default_factory=Savings)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlanCounts:
        """The inverse of `to_json`."""
        return cls(**{**value, "faults": tuple(Fault(**fault) for fault in value["faults"])})

    def to_json(self) -> dict[str, Any]:
        """All values except the savings, which only a dry run needs."""
        return {name: value for name, value in asdict(self).items() if name != "savings"}


def make_plan(task: PlanTask) -> PlanCounts:
    """Make the slices of all files. Raises ArchiveError, and DamagedInput for the first fault unless set to keep going."""
    scratch = task.folder / "scratch"
    slices = task.folder / SLICES_FOLDER
    made = slices.with_name(f"{SLICES_FOLDER}.new")
    with writing(slices):
        for left in (scratch, slices, made):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        size_bytes = sum(path.stat().st_size for path in (task.folder / LINES_FILE, *task.rows.values()))
        with open_joins(task.jobs, size_bytes, scratch, slices) as joins:
            counts = _Plan(task, joins).made(made)
        if made.exists():
            for path in sorted(made.rglob("*.parquet")):
                whole_file.sync_file(path)
            whole_file.put_in_place(made, slices)
        shutil.rmtree(scratch, ignore_errors=True)
    return counts


class _Plan:
    def __init__(self, task: PlanTask, joins: Joins) -> None:
        self._task = task
        self._joins = joins
        self._faults = Faults(keep_going=task.keep_going)

    def made(self, slices: Path) -> PlanCounts:
        joins, task = self._joins, self._task
        joins.add_lines(task.folder / LINES_FILE)
        columns = {"file": "BIGINT", "is_output": "BOOLEAN"}
        joins.add("file", columns, ((file.id, file.is_output) for file in task.files))
        joins.add_rows(task.rows)
        self._check_lines()
        joins.run([*SURVEYED, *CHOICES])
        all_copies = "TRUE" if task.is_dry_run else "FALSE"
        joins.add_sizes(SMALL_COPIES.format(added=ADDED_BYTES, all_copies=all_copies))
        joins.run([*(statement.format(added=ADDED_BYTES) for statement in OUTCOMES), *SLICES])
        joins.write_by_file(SLICE_ROWS, slices)
        ((converted,),) = joins.fetch(CONVERTED)
        savings = Savings()
        if task.is_dry_run:
            savings = add_up(
                (bytes(uri).decode("utf-8", "surrogatepass"), mime, saved)
                for uri, mime, saved in joins.fetch(SAVED)
            )
        left = dict(joins.fetch(LEFT_COPIES))
        return PlanCounts(converted, left, self._faults.count, tuple(self._faults.first), savings)

    def _check_lines(self) -> None:
        """Read the records of lines that do not match their rows. A line that differs from its record is a fault."""
        joins, task = self._joins, self._task
        lines: dict[int, list[tuple[int, ManifestLine]]] = {}
        files = {file.id: file for file in task.files}
        for number, file, offset, length, uri, date, label, value in joins.fetch(UNMATCHED):
            text = bytes(uri).decode("utf-8", "surrogatepass")
            line = ManifestLine(files[file].name, offset, length, text, date, f"{label}:{value.hex()}")
            lines.setdefault(file, []).append((number, line))
        tasks = [
            CheckTask(task.places, task.eligibility, tuple(some), task.keep_going, task.is_dry_run)
            for some in lines.values()
        ]
        checked: list[Sequence[Any]] = []
        for _, (rows, count, faults) in run_jobs(check_lines, tasks, task.jobs):
            checked += rows
            self._faults.take(count, faults)
        joins.add("checked", {"line": "BIGINT", **COLUMNS}, checked)
        for file, offset in joins.fetch(NO_RECORD):
            place = task.places.file(files[file].name)
            self._faults.add(f"{place}, offset {offset}", "no record begins at the offset in the manifest")
