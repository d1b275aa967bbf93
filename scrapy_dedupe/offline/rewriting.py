"""Rewrite files with a revisit for every copy, and verify them before any file gets its final name.

This is one job in a work folder (`tasks.work`), which continues after a kill: `rewrite` begins with manifests and works in
``OUTPUT/.dedupe/warcrefs``; `steps` begins with files and works in ``OUTPUT/.dedupe``. Its steps and their files:

1. ``lines.parquet``: the numbered lines (`plan_lines`); ``job.json``: the options and the source files;
2. ``rows/N.parquet``, ``rows/N.json``: the rows of file N (`rows`), and their counts;
3. ``slices/file=N/``, ``plan.json``: the changes to file N, and their counts (`plan`);
4. ``new/NAME``, ``done/N.json``: the new files, and the number of changes to each (`file_rewriting`);
5. ``verified.json``: the report, after the new files have been compared with the old files, or with facts about them
   (`verifying`), and the names of the files that change;
6. the new files are moved to their final names, or replace the old ones (``in_place``).

If the verification finds a difference, no file gets its final name. While files are replaced in place, every mixture of old
and new files is a valid archive, because originals never change.

The plan covers all files in the manifests, even if only some of them are rewritten in this run: several machines can
rewrite different files from the same manifests.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.eligibility import Eligibility, Savings
from scrapy_dedupe.offline.file_rewriting import RewriteTask, rewrite_file
from scrapy_dedupe.offline.final_names import NewFiles, begin
from scrapy_dedupe.offline.inputs import STATE_FOLDER, output_names
from scrapy_dedupe.offline.old_files import RowFacts
from scrapy_dedupe.offline.plan import PlanTask, make_plan, slice_folder
from scrapy_dedupe.offline.plan_lines import marks_of, read_notes, write_lines
from scrapy_dedupe.offline.restored_records import is_own_revisit
from scrapy_dedupe.offline.row_scan import make_rows
from scrapy_dedupe.offline.rows import SECOND, RowsTask
from scrapy_dedupe.offline.verifying import DEFAULT_SAMPLE, Verification, verify
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import kept_processes
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.state import LOCK, reading, writing
from scrapy_dedupe.tasks.work import JOB, WorkFolder, size_of
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.final_names import SourceFiles
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan import PlanCounts
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

VERIFIED: Final = "verified.json"
_FOLDER: Final = "warcrefs"


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Options of `rewrite`. ``sample`` new revisits are replayed, chosen at random with ``seed`` if given."""

    eligibility: Eligibility = field(default_factory=Eligibility)
    dry_run: bool = False
    in_place: bool = False
    keep_going: bool = False
    jobs: Jobs = 1
    sample: int = DEFAULT_SAMPLE
    seed: int | None = None
    force: bool = False

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on."""
        statuses = self.eligibility.statuses
        return {
            "--min-size": self.eligibility.min_size,
            "--status": "all" if statuses is None else sorted(statuses),
            "--in-place": self.in_place,
        }


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
        is_begun = work.job() is not None
        if not is_begun:
            # Without job.json, the other files in this folder are not reliable.
            work.clear(keep=frozenset({LOCK}))
            write_lines(work.path, lines, originals, files, faults)
        planned, marks = read_notes(work.path)
        sources = {file.name: places.file(file.name) for file in planned if file.is_output or file.is_used}
        _check_inputs(planned, sources, options)
        rewritten = {file.name for file in planned if file.is_output}
        new = NewFiles(
            {name: file for name, file in sources.items() if name in rewritten},
            {name: file for name, file in sources.items() if name not in rewritten},
            # Computed for all files, so that several machines use the same paths.
            output_names(file.name for file in planned if file.is_main),
            work.path / "new",
            None if options.in_place else output,
            options.force,
        )
        rewriting = Rewriting(work, places, planned, new, options, watch, faults)
        if options.dry_run:
            return rewriting.tried(rewriting.make_rows())
        is_verified = (work.path / VERIFIED).exists()
        if not is_verified:
            new.check()
        asked = options.to_json() | {
            "--files": None if files is None else list(files),
            "the hash of the manifests": marks_of(lines, originals) if is_begun else marks,
        }
        begun_with = begin(work, asked, sources, {}, may_be_replaced=is_verified)
        if not is_verified:
            try:
                report, changed = rewriting.verified(begun_with, rewriting.make_rows())
            except DamagedInput as error:
                raise _explained(error, new) from error
            if report.kept_in is not None:
                return report
            work.write_json(VERIFIED, {"report": asdict(report), "changed": changed})
        verified = work.read_json(VERIFIED)
        new.move(verified["changed"], begun_with)
        # Without job.json, the rest of the folder is not kept.
        (work.path / JOB).unlink()
        return Rewritten.from_json(verified["report"])


@contextlib.contextmanager
def _work_folder(output: Path, options: RewriteOptions) -> Iterator[WorkFolder]:
    """The folder for the work. It is removed at the end, unless a later run can continue from it."""
    if options.dry_run:
        with tempfile.TemporaryDirectory(prefix="dedupe-") as folder, WorkFolder(Path(folder)) as work:
            yield work
        return
    path = rewriting_folder(output)
    try:
        with WorkFolder(path, restart=f"remove {path} and start again") as work:
            try:
                yield work
            finally:
                if not (work.path / JOB).exists():
                    work.remove()
    finally:
        # The parent folders may hold other files, so remove them only if they are empty.
        for parent in (path.parent, output):
            with contextlib.suppress(OSError):
                parent.rmdir()


def rewriting_folder(output: Path) -> Path:
    """The folder for unfinished work of `rewrite`, and for new files of `steps` if its own work is elsewhere."""
    return output / STATE_FOLDER / _FOLDER


def _check_inputs(
    planned: Sequence[PlannedFile], sources: Mapping[str, ReadableFile], options: RewriteOptions
) -> None:
    """Raise UsageError if a file cannot be rewritten."""
    for file in planned:
        place = sources.get(file.name)
        if (
            options.in_place
            and not options.dry_run
            and file.is_main
            and not file.is_output
            and place is not None
        ):
            raise UsageError(
                f"--in-place must replace all files of the manifests: {file.name} is in them but not selected, and its records"
                " could not be found afterwards. Leave --files out, or write to a folder with -o."
            )
        if not file.is_output or isinstance(place, Path):
            continue
        if not isinstance(place, RemoteFile):
            raise UsageError(
                f"{file.name} is in a WACZ, which cannot be rewritten. Extract its WARC files (unzip), name the folder with"
                " them, and pack the new files with `scrapy dedupe warc pack`."
            )
        if options.in_place:
            raise UsageError(
                f"{file.name} is remote and cannot be replaced there. Write to a folder with -o."
            )


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


def rows_task(
    work: WorkFolder,
    options: RewriteOptions,
    number: int,
    name: str,
    file: ReadableFile,
    algorithms: tuple[str, ...],
    *,
    is_summed: bool = False,
) -> RowsTask:
    """The task that makes the rows of file *number* in the work folder."""
    target = work.path / "rows" / f"{number}.parquet"
    return RowsTask(file, name, target, options.eligibility, algorithms, is_summed, options.dry_run)


class Rewriting:
    """The steps of a job that follow its lines, until the new files are verified."""

    def __init__(
        self,
        work: WorkFolder,
        places: Places,
        files: Iterable[PlannedFile],
        new: NewFiles,
        options: RewriteOptions,
        watch: Progress,
        faults: Faults,
    ) -> None:
        self._work = work
        self._places = places
        self._files = [file for file in files if file.is_output or file.is_used]
        self._new = new
        self._options = options
        self._watch = watch
        self._faults = faults

    def make_rows(self) -> dict[int, Path]:
        """The rows of all files, by their numbers. Of a remote file that is only read, no rows are made."""
        tasks = []
        for file in self._files:
            place = self._places.file(file.name)
            if file.is_output or isinstance(place, Path):
                labels = tuple(file.labels) or (SECOND,)
                tasks.append(rows_task(self._work, self._options, file.id, file.name, place, labels))
        self._work.run(make_rows, tasks, self._options.jobs, self._watch, "survey", self._faults)
        return {int(task.target.stem): task.target for task in tasks}

    def tried(self, rows: Mapping[int, Path]) -> Rewritten:
        """The report of a dry run."""
        counts = self._planned(rows, self._faults)
        old_bytes = sum(map(size_of, self._new.files.values()))
        savings = counts.savings
        sizes = {"old_bytes": old_bytes, "new_bytes": old_bytes - savings.saved_bytes}
        return self._report(
            counts.left, {"converted": savings.records, "repointed": 0, **sizes}, savings=savings
        )

    def verified(
        self, sources: SourceFiles, rows: Mapping[int, Path], *, trusts_rows: bool = False
    ) -> tuple[Rewritten, list[str]]:
        """Make the plan and the new files, and verify them; return the report, and the names of the files that change.

        *trusts_rows*: the verification uses facts from the rows instead of reading the old files again (`old_files`).
        """
        options, work, new = self._options, self._work, self._new
        left = work.step("plan", lambda faults: self._planned(rows, faults).left, self._faults)
        sources.check_unchanged()
        rewrites = self._rewritten()
        sources.check_unchanged()
        # An unchanged file need not be replaced.
        changed = [
            name
            for name, done in rewrites.items()
            if new.output is not None or done["converted"] or done["repointed"]
        ]
        numbers = {file.name: file.id for file in self._files}
        try:
            verification = verify(
                [(file, new.waiting(name) if name in changed else file) for name, file in new.files.items()],
                facts=[RowFacts(rows[numbers[name]]) for name in new.files] if trusts_rows else (),
                originals=[*new.others.values()],
                sample=options.sample,
                seed=options.seed,
                jobs=options.jobs,
                work=work.path / "verify",
                watch=self._watch,
                faults=Faults(keep_going=options.keep_going),
            )
        except OSError as error:
            raise ArchiveError(f"The new files cannot be verified: {error.strerror or error}.") from error
        total: Counter[str] = Counter()
        for done in rewrites.values():
            total.update(done)
        kept_in = None if verification.is_right else str(new.folder.parent)
        return self._report(left, total, verification=verification, kept_in=kept_in), changed

    def _planned(self, rows: Mapping[int, Path], faults: Faults) -> PlanCounts:
        options = self._options
        found = Faults(keep_going=options.keep_going)
        task = PlanTask(
            self._work.path,
            self._files,
            rows,
            self._places,
            options.eligibility,
            options.keep_going,
            options.dry_run,
            options.jobs,
        )
        counts = make_plan(task, found)
        # Damage that was found while rows were made is found again, with another reason.
        known = {fault.place for fault in self._faults.first}
        new = tuple(fault for fault in found.first if fault.place not in known)
        faults.take(found.count - (len(found.first) - len(new)), new)
        return counts

    def _rewritten(self) -> dict[str, dict[str, int]]:
        """Write the new files that do not exist yet. Return the counts of each file."""
        folder = self._work.path / "done"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        tasks = [
            RewriteTask(
                file.name,
                self._new.files[file.name],
                folder / str(file.id),
                slice_folder(self._work.path, file.id),
                self._new.waiting(file.name),
            )
            for file in self._files
            if file.is_output
        ]
        done = self._work.run(rewrite_file, tasks, self._options.jobs, self._watch, "rewrite", self._faults)
        return {task.name: counts for task, counts in zip(tasks, done, strict=True)}

    def _report(self, left: dict[str, int], counts: Mapping[str, Any], **others: Any) -> Rewritten:
        return Rewritten(
            output=str(self._new.output or Path()),
            is_dry_run=self._options.dry_run,
            files=len(self._new.files),
            left=left,
            unlisted=self._new.unlisted(),
            faults_count=self._faults.count,
            faults=tuple(self._faults.first),
            **counts,
            **others,
        )
