"""Rewrite files with a revisit for every copy, and verify them before any file gets its final name.

This is one job in a work folder (`tasks.work`), which continues after a kill: `rewrite` begins with manifests and works in
``OUTPUT/.dedupe/warcrefs``; `steps` begins with files and works in ``OUTPUT/.dedupe``. Its steps and their files:

1. ``lines.parquet``: the numbered lines (`plan_lines`); ``job.json``: the options and the source files;
2. ``rows/N.parquet``, ``rows/N.json``: the rows of file N (`rows`), and the proof with their counts;
3. ``slices/file=N/``, ``plan.json``: the changes to file N, and their counts (`plan`);
4. ``new/NAME``, ``done/N.json``: the new files, and the number of changes to each (`file_rewriting`);
5. ``verified.json``: the report, after the new files have been compared with the old files, or with facts about them
   (`verification`), and the names of the files that change;
6. the new files are moved to their final names, or replace the old ones (``in_place``).

If the verification finds a difference, no file gets its final name. While files are replaced in place, every mixture of old
and new files is a valid archive, because originals never change.

The plan covers all files in the manifests, even if only some of them are rewritten in this run: several machines can
rewrite different files from the same manifests.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.eligibility import Eligibility, Savings
from scrapy_dedupe.offline.file_rewriting import RewriteTask, rewrite_file
from scrapy_dedupe.offline.final_names import NewFiles, refuse_unwritable
from scrapy_dedupe.offline.output_folder import WARCREFS_FOLDER, held_output
from scrapy_dedupe.offline.plan import PlanTask, make_plan, slice_folder
from scrapy_dedupe.offline.plan_lines import write_lines
from scrapy_dedupe.offline.restored_records import is_own_revisit
from scrapy_dedupe.offline.row_scan import make_rows
from scrapy_dedupe.offline.rows import SECOND, RowsTask
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.inputs import output_names
from scrapy_dedupe.tasks.jobs import kept_processes
from scrapy_dedupe.tasks.outputs import refuse_other_files, work_folder
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.state import LOCK, reading
from scrapy_dedupe.tasks.work import JOB, WorkFolder, size_of
from scrapy_dedupe.verification import DEFAULT_SAMPLE, Verification, verify
from scrapy_dedupe.verification.old_files import RowFacts
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import SourceFiles

VERIFIED: Final = "verified.json"


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Options of `rewrite`. ``sample`` new revisits are replayed, chosen at random."""

    eligibility: Eligibility = field(default_factory=Eligibility)
    dry_run: bool = False
    in_place: bool = False
    keep_going: bool = False
    jobs: Jobs = 1
    sample: int = DEFAULT_SAMPLE
    force: bool = False

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on."""
        return self.eligibility.to_json() | {"--in-place": self.in_place}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a rewriting, or of a dry run (``is_dry_run``).

    ``converted`` copies became revisits, ``repointed`` other records have updated references, ``left`` counts the
    unchanged copies by reason, a key of `eligibility.LEFT`. Sizes are totals of whole files; in a dry run they are estimated.
    ``savings`` is only filled in a dry run. ``kept_in`` is the folder that is kept if the verification found a difference;
    then no file has its final name. ``unlisted`` are files in the folders of the rewritten files that no manifest names:
    their references to the copies are not updated.
    """

    output: str
    is_dry_run: bool
    files: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings = field(default_factory=Savings)
    verification: Verification | None = None
    kept_in: str | None = None
    unlisted: tuple[str, ...] = ()
    faults_count: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are after the rewriting."""
        return self.old_bytes - self.new_bytes

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Rewritten:
        """The inverse of ``dataclasses.asdict`` for a verified report without findings."""
        proof, faults = stored["verification"], tuple(Fault(**fault) for fault in stored["faults"])
        seen = {
            "faults": tuple(Fault(**fault) for fault in proof["faults"]),
            "findings": (),
            "notes": tuple(proof["notes"]),
        }
        own = {"faults": faults, "savings": Savings(), "unlisted": tuple(stored["unlisted"])}
        return cls(**{**stored, **own, "verification": Verification(**proof | seen)})


def rewrite(
    lines: Iterable[ManifestLine],
    files: Sequence[str] | None,
    places: Places,
    output: Path,
    options: RewriteOptions | None = None,
    watch: Progress | None = None,
    *,
    originals: Iterable[ManifestLine] = (),
    faults: Faults | None = None,
) -> Rewritten:
    """Rewrite *files* (None: all files in *lines*) to the folder *output*, with the paths of `inputs.output_names`.

    *lines* come from numbered manifests. Copies in *lines* may refer to records in *originals*, of which only the first
    eight of each payload are used. With ``in_place``, *output* only holds the unfinished work. *faults* may be the caller's
    collection.

    Raises UsageError for unusable manifests or files; ArchiveError if an output exists, if a file is missing, not
    writable or changed during the work, or if *output* has the unfinished work of another run; DamagedInput for the
    first fault, unless set to keep going.
    """
    options = options or RewriteOptions()
    watch = watch or NO_PROGRESS
    faults = Faults(keep_going=options.keep_going) if faults is None else faults
    with _work_folder(output, options) as work, kept_processes(options.jobs) as kept:
        options = replace(options, jobs=kept)
        if work.job() is None:
            # Without job.json, the other files in this folder are not reliable.
            work.clear(keep=frozenset({LOCK}))
        planned, marks = write_lines(work.path, lines, originals, files, faults)
        used = [file for file in planned if file.is_output or file.is_used]
        sources = {file.name: places.file(file.name) for file in used}
        for file in used:
            if file.is_output:
                refuse_unwritable(file.name, sources[file.name], in_place=options.in_place)
            elif file.is_main and options.in_place and not options.dry_run:
                raise UsageError(
                    f"--in-place must replace all files of the manifests: {file.name} is in them but not selected, and its"
                    " records could not be found afterwards. Leave --files out, or write to a folder with -o."
                )
        new = NewFiles(
            {file.name: sources[file.name] for file in used if file.is_output},
            {file.name: sources[file.name] for file in used if not file.is_output},
            # Computed for all files, so that several machines use the same paths.
            output_names(file.name for file in planned if file.is_main),
            work.path / "new",
            None if options.in_place else output,
            options.force,
        )
        is_verified = (work.path / VERIFIED).exists()
        if not (is_verified or options.dry_run):
            new.check()
        asked = options.to_json() | {
            "--files": None if files is None else list(files),
            "the hash of the manifests": marks,
        }
        begun_with = work.begin_or_continue(asked, sources, {}, may_be_replaced=is_verified)
        rewriting = Rewriting(work, places, used, new, options, watch, faults)
        try:
            rows = {} if is_verified else rewriting.make_rows()
            report = rewriting.run(begun_with, rows)
        except DamagedInput as error:
            raise _explained(error, new) from error
        if report.kept_in is None:
            # Without job.json, the rest of the folder is not kept.
            (work.path / JOB).unlink()
        return report


@contextmanager
def _work_folder(output: Path, options: RewriteOptions) -> Iterator[WorkFolder]:
    """The folder for the work. It is removed at the end, unless a later run can continue from it."""
    if options.dry_run:
        with work_folder(Path("-")) as work:
            yield work
        return
    path = output / WARCREFS_FOLDER
    refuse_other_files(path)
    with (
        held_output(output, path),
        WorkFolder(path, command="warcrefs", restart=f"remove {path} and start again") as work,
    ):
        try:
            yield work
        finally:
            if not (work.path / JOB).exists():
                work.remove()


def _explained(error: DamagedInput, new: NewFiles) -> DamagedInput:
    """The error; if an earlier run has replaced the files, with this explanation."""
    for name, file in new.files.items() if new.output is None else ():
        with reading(file):
            if any(is_own_revisit(record) for record in read_records(file, on_damage=lambda _: None)):
                return DamagedInput(
                    f"{error} {name} already has revisits that were responses before: if an earlier run has replaced"
                    " these files, there is nothing left to do."
                )
    return error


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The steps of a job that follow its lines, until the new files have their final names."""

    work: WorkFolder
    places: Places
    files: Sequence[PlannedFile]
    new: NewFiles
    options: RewriteOptions
    watch: Progress
    faults: Faults

    def make_rows(self) -> dict[int, Path]:
        """The rows of the files, by number. No rows are made of a remote file that is only read."""
        tasks = {}
        for file in self.files:
            place = self.places.file(file.name)
            if file.is_output or isinstance(place, Path):
                path, labels = self.work.path / "rows" / str(file.id), tuple(file.labels) or (SECOND,)
                tasks[file.id] = RowsTask(file.name, place, path, self.options.eligibility, labels, False)
        self.work.run(make_rows, [*tasks.values()], self.options.jobs, self.watch, "survey", self.faults)
        return {number: task.target for number, task in tasks.items()}

    def run(self, sources: SourceFiles, rows: Mapping[int, Path], *, trusts_rows: bool = False) -> Rewritten:
        """Make the plan and the new files, verify them, and give them their final names; or continue an earlier run.

        *rows* are by the number of the file. *trusts_rows*: the verification uses facts from the rows instead of reading the
        old files again (`old_files`).
        """
        work, new = self.work, self.new
        place = os.path.relpath(new.folder, work.path)
        verified = work.read_json(VERIFIED)
        if verified is None:
            if self.options.dry_run:
                return self._tried(rows)
            report, changed = self._verified(sources, rows, trusts_rows=trusts_rows)
            if report.kept_in is not None:
                return report
            verified = {"report": asdict(report), "changed": changed, "new": place}
            work.write_json(VERIFIED, verified)
        elif verified["new"] != place:
            raise work.other_work(f"-o was {verified['report']['output']}")
        new.move(verified["changed"], sources)
        return Rewritten.from_json(verified["report"])

    def _tried(self, rows: Mapping[int, Path]) -> Rewritten:
        """The report of a dry run."""
        left, savings = self._planned(rows, self.faults)
        old_bytes = sum(map(size_of, self.new.files.values()))
        counts = {"converted": savings.records, "repointed": 0, "old_bytes": old_bytes}
        return self._report(left, counts, new_bytes=old_bytes - savings.saved_bytes, savings=savings)

    def _verified(
        self, sources: SourceFiles, rows: Mapping[int, Path], *, trusts_rows: bool
    ) -> tuple[Rewritten, list[str]]:
        """The report on the verified new files, and the names of the files that change."""
        options, work, new = self.options, self.work, self.new
        left = work.step("plan", lambda faults: self._planned(rows, faults)[0], self.faults)
        sources.check_unchanged()
        rewrites = self._rewritten()
        sources.check_unchanged()
        # An unchanged file need not be replaced.
        changed = [
            name
            for name, done in rewrites.items()
            if new.output is not None or done["converted"] or done["repointed"]
        ]
        try:
            verification = verify(
                [(file, new.waiting(name) if name in changed else file) for name, file in new.files.items()],
                facts=[RowFacts(rows[file.id]) for file in self.files] if trusts_rows else (),
                originals=[*new.others.values()],
                sample=options.sample,
                jobs=options.jobs,
                work=work.path / "verify",
                watch=self.watch,
                keep_going=options.keep_going,
            )
        except OSError as error:
            raise ArchiveError(
                f"The new files cannot be verified: {error.strerror or error}. Check the free space and the permissions, then"
                " repeat the command: it continues."
            ) from error
        total: Counter[str] = Counter()
        for done in rewrites.values():
            total.update(done)
        kept_in = None if verification.is_right else str(new.folder.parent)
        return self._report(left, total, verification=verification, kept_in=kept_in), changed

    def _planned(self, rows: Mapping[int, Path], faults: Faults) -> tuple[dict[str, int], Savings]:
        options = self.options
        found = Faults(keep_going=options.keep_going)
        task = PlanTask(
            self.work.path,
            self.files,
            rows,
            self.places,
            options.eligibility,
            options.dry_run,
            options.jobs,
        )
        planned = make_plan(task, found)
        # Damage that was found while rows were made is found again, with another reason.
        known = {fault.place for fault in self.faults.first}
        new = tuple(fault for fault in found.first if fault.place not in known)
        faults.take(found.count - (len(found.first) - len(new)), new)
        return planned

    def _rewritten(self) -> dict[str, dict[str, int]]:
        """Write the new files that do not exist yet. Return the counts of each file."""
        tasks = [
            RewriteTask(
                file.name,
                self.new.files[file.name],
                self.work.path / "done" / str(file.id),
                self.new.waiting(file.name),
                slice_folder(self.work.path, file.id),
            )
            for file in self.files
            if file.is_output
        ]
        done = self.work.run(rewrite_file, tasks, self.options.jobs, self.watch, "rewrite", self.faults)
        return {task.name: counts for task, counts in zip(tasks, done, strict=True)}

    def _report(self, left: dict[str, int], counts: Mapping[str, Any], **others: Any) -> Rewritten:
        return Rewritten(
            output=str(self.new.output or Path()),
            is_dry_run=self.options.dry_run,
            files=len(self.new.files),
            left=left,
            unlisted=self.new.unlisted(),
            faults_count=self.faults.count,
            faults=tuple(self.faults.first),
            **counts,
            **others,
        )
