"""Rewrite files with a revisit for every copy, and verify them before any file gets its final name.

This is one job in a state folder, which continues after a kill: `rewrite` begins with manifests and works in
``OUTPUT/.dedupe/warcrefs``; `steps` begins with files and works in ``OUTPUT/.dedupe``. The folder has:

1. ``job.json``: the version of the formats, the options, and facts about the source files (`final_names.Fact`);
2. ``lines.parquet``: the numbered lines (`plan_lines`);
3. ``rows/N.parquet``: the rows of file N (`rows`);
4. ``slices/file=N/``: the changes to file N; ``plan.json``: their counts (`plan`);
5. ``new/NAME``: the new files (`file_rewriting`); ``done/N.json``: the number of changes to each file;
6. ``verified.json``: the report, after the new files have been compared with the old files, or with facts about them
   (`verifying`).

Finally the new files are moved to their final names, or replace the old ones (``in_place``). Each file gets its name only
when it is complete and synced to disk, so a kill loses at most one unfinished file for each process. If the verification finds
a difference, no file gets its final name. While files are replaced in place, every mixture of old and new files is a valid
archive, because originals never change.

The plan covers all files in the manifests, even if only some of them are rewritten in this run: several machines can
rewrite different files from the same manifests.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.eligibility import Eligibility, Savings
from scrapy_dedupe.offline.file_rewriting import FileRewrite, RewriteTask, rewrite_file
from scrapy_dedupe.offline.final_names import NewFiles, SourceFiles, fact_of
from scrapy_dedupe.offline.inputs import STATE_FOLDER, output_names
from scrapy_dedupe.offline.plan import PlanCounts, PlanTask, make_plan, slice_folder
from scrapy_dedupe.offline.plan_lines import marks_of, read_notes, write_lines
from scrapy_dedupe.offline.restored_records import is_own_revisit
from scrapy_dedupe.offline.old_files import RowFacts
from scrapy_dedupe.offline.row_scan import make_all_rows
from scrapy_dedupe.offline.rows import SECOND, RowsTask, read_sums
from scrapy_dedupe.offline.verifying import DEFAULT_SAMPLE, Verification, verify
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, replay_faults, writing
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.digests import FileSums
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

JOB: Final = "job.json"
VERIFIED: Final = "verified.json"
VERSION: Final = 5
"""The version of the formats in the state folder."""

_FOLDER: Final = "warcrefs"
_PLAN: Final = "plan.json"


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
    with _state_folder(output, options) as state:
        is_begun = (state.path / JOB).exists()
        asked_marks = marks_of(lines, originals) if is_begun else None
        if not is_begun:
            # Without job.json, the other files in this folder are not reliable.
            state.clear(keep=frozenset({LOCK}))
            write_lines(state.path, lines, originals, files, faults)
        planned, marks = read_notes(state.path)
        sources = {file.name: places.file(file.name) for file in planned if file.is_output or file.is_used}
        _check_inputs(planned, sources, options)
        new = NewFiles(
            {file.name: sources[file.name] for file in planned if file.is_output},
            {
                name: file
                for name, file in sources.items()
                if name not in {one.name for one in planned if one.is_output}
            },
            # Computed for all files, so that several machines use the same paths.
            output_names(file.name for file in planned if file.is_main),
            state.path / "new",
            None if options.in_place else output,
            options.force,
        )
        rewriting = Rewriting(state, places, planned, new, options, watch, faults)
        if options.dry_run:
            return rewriting.tried(rewriting.make_rows())
        if not (state.path / VERIFIED).exists():
            new.check()
        asked = options.to_json() | {
            "--files": None if files is None else list(files),
            "the hash of the manifests": marks if asked_marks is None else asked_marks,
        }
        begun_with = begin(
            state,
            f"{VERSION}",
            asked,
            sources,
            replaces=options.force,
            fresh=f"remove {state.path} to start again",
            remedy=f"Remove {state.path} and start again with a new manifest of it.",
        )
        try:
            report = rewriting.finished(begun_with)
        except DamagedInput as error:
            raise _explained(error, new) from error
        if report.kept_in is None:
            # Without job.json, the rest of the folder is not kept.
            (state.path / JOB).unlink()
        return report


@contextlib.contextmanager
def _state_folder(output: Path, options: RewriteOptions) -> Iterator[StateFolder]:
    """The folder for the work. It is removed at the end, unless a later run can continue from it."""
    if options.dry_run:
        with tempfile.TemporaryDirectory(prefix="dedupe-") as folder, StateFolder(Path(folder)) as state:
            yield state
        return
    path = output / STATE_FOLDER / _FOLDER
    try:
        with StateFolder(path) as state:
            try:
                yield state
            finally:
                if not (state.path / JOB).exists():
                    state.remove()
    finally:
        # The parent folders may hold other files, so remove them only if they are empty.
        for parent in (path.parent, output):
            with contextlib.suppress(OSError):
                parent.rmdir()


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


def begin(
    state: StateFolder,
    version: str,
    options: dict[str, Any],
    sources: Mapping[str, ReadableFile],
    *,
    replaces: bool,
    fresh: str,
    remedy: str,
    may_be_replaced: Sequence[str] = (VERIFIED,),
) -> SourceFiles:
    """Write ``job.json``, or check that the unfinished job in the folder has the same version, options and files.

    *fresh* says how to start again; *replaces* and *remedy* are those of `SourceFiles`. If one of the files *may_be_replaced* is
    in the folder, files may have been replaced. Raises ArchiveError for another job, and for a source file that has changed.
    """
    job: dict[str, Any] = {
        "version": version,
        "options": options,
        "replaces": replaces,
        "inputs": [fact_of(name, file) for name, file in sources.items()],
    }
    earlier = state.read_json(JOB)
    if earlier is None:
        state.write_json(JOB, job)
    elif difference := _difference(earlier, job):
        raise ArchiveError(
            f"{state.path} holds unfinished work of another command: {difference}. Repeat that command to finish it, or"
            f" {fresh}."
        )
    else:
        job = earlier
    begun_with = SourceFiles(sources, {fact[0]: fact for fact in job["inputs"]}, job["replaces"], remedy)
    if not any((state.path / name).exists() for name in may_be_replaced):
        begun_with.check_unchanged()
    return begun_with


def _difference(earlier: dict[str, Any], job: dict[str, Any]) -> str | None:
    """The first difference between an earlier job and this one, for a message; None if they are the same."""
    if earlier["version"] != job["version"]:
        return f"it was started by version {earlier['version']}, but this is {job['version']}"
    for name, value in job["options"].items():
        if earlier["options"].get(name) != value:
            return f"{name} was {earlier['options'].get(name)}"
    before, now = ({fact[0]: fact for fact in one["inputs"]} for one in (earlier, job))
    for name in [*before, *now]:
        if name not in now or name not in before:
            return f"{name} was {'one of its files' if name in before else 'none of its files'}"
        if before[name][1] != now[name][1]:
            return f"{name} was another file"
    return None if list(before) == list(now) else "its files had another order"


def made_rows(
    tasks: Sequence[RowsTask], jobs: Jobs, watch: Progress, title: str, faults: Faults
) -> list[FileSums]:
    """Make the rows of the files that have none yet; return the counts of all. The faults of all are added to *faults*."""
    for folder in {task.target.parent for task in tasks}:
        with writing(folder):
            folder.mkdir(exist_ok=True)
    make_all_rows([task for task in tasks if not task.target.exists()], jobs, watch, title)
    sums = read_sums([task.target for task in tasks])
    for found in sums:
        replay_faults(faults, found.fault_count, found.faults)
    return sums


class Rewriting:
    """The steps of a job with lines: plan, new files, verification and final names."""

    def __init__(
        self,
        state: StateFolder,
        places: Places,
        files: Iterable[PlannedFile],
        new: NewFiles,
        options: RewriteOptions,
        watch: Progress,
        faults: Faults,
    ) -> None:
        self._state = state
        self._places = places
        self._files = [file for file in files if file.is_output or file.is_used]
        self._new = new
        self._options = options
        self._watch = watch
        self._faults = faults

    def make_rows(self) -> dict[int, Path]:
        """The rows of all files, by their numbers. Of a remote file that is only read, no rows are made."""
        options, tasks = self._options, {}
        for file in self._files:
            place = self._places.file(file.name)
            if file.is_output or isinstance(place, Path):
                tasks[file.id] = RowsTask(
                    place,
                    file.name,
                    self._state.path / "rows" / f"{file.id}.parquet",
                    options.eligibility,
                    tuple(file.labels) or (SECOND,),
                    False,
                    options.keep_going,
                    options.dry_run,
                )
        made_rows([*tasks.values()], options.jobs, self._watch, "survey", self._faults)
        return {number: task.target for number, task in tasks.items()}

    def tried(self, rows: Mapping[int, Path]) -> Rewritten:
        """The report of a dry run."""
        counts = make_plan(self._plan_task(rows))
        self._take_faults(counts)
        old_bytes = sum(map(_size, self._new.files.values()))
        savings = counts.savings
        return self._report(
            counts, savings.records, 0, old_bytes, old_bytes - savings.saved_bytes, savings=savings
        )

    def finished(
        self, sources: SourceFiles, rows: Mapping[int, Path] | None = None, *, trusts_rows: bool = False
    ) -> Rewritten:
        """Do all steps that have not been done. If the verification finds a difference, no file gets its final name.

        Without *rows*, they are made. *trusts_rows*: the verification uses facts from the rows instead of reading the old
        files again (`old_files`).
        """
        stored = self._state.read_json(VERIFIED)
        if stored is None:
            report, changed = self._verified(sources, self.make_rows() if rows is None else rows, trusts_rows)
            if report.kept_in is not None:
                return report
            stored = {"report": asdict(report), "changed": changed}
            self._state.write_json(VERIFIED, stored)
        self._new.move(stored["changed"], sources)
        return Rewritten.from_json(stored["report"])

    def _plan_task(self, rows: Mapping[int, Path]) -> PlanTask:
        options = self._options
        return PlanTask(
            self._state.path,
            self._files,
            rows,
            self._places,
            options.eligibility,
            options.keep_going,
            options.dry_run,
            options.jobs,
        )

    def _take_faults(self, counts: PlanCounts) -> None:
        """Add the faults of the plan. Damage that was found while rows were made is found again, with another reason."""
        known = {fault.place for fault in self._faults.first}
        new = tuple(fault for fault in counts.faults if fault.place not in known)
        self._faults.take(counts.fault_count - (len(counts.faults) - len(new)), new)

    def _verified(
        self, sources: SourceFiles, rows: Mapping[int, Path], trusts_rows: bool
    ) -> tuple[Rewritten, list[str]]:
        """The report, and the names of the files that change."""
        options, state, new = self._options, self._state, self._new
        if (stored := state.read_json(_PLAN)) is None:
            stored = make_plan(self._plan_task(rows)).to_json()
            state.write_json(_PLAN, stored)
        counts = PlanCounts.from_json(stored)
        self._take_faults(counts)
        sources.check_unchanged()
        rewrites = self._rewritten()
        sources.check_unchanged()
        # An unchanged file need not be replaced.
        changed = [
            name
            for name, done in rewrites.items()
            if new.output is not None or done.converted or done.repointed
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
                work=state.path / "verify",
                watch=self._watch,
                faults=Faults(keep_going=options.keep_going),
            )
        except OSError as error:
            raise ArchiveError(f"The new files cannot be verified: {error.strerror or error}.") from error
        total = {name: sum(getattr(one, name) for one in rewrites.values()) for name in FileRewrite.__slots__}
        report = self._report(
            counts,
            **total,
            verification=verification,
            kept_in=None if verification.is_right else str(new.folder.parent),
        )
        return report, changed

    def _report(
        self,
        counts: PlanCounts,
        converted: int,
        repointed: int,
        old_bytes: int,
        new_bytes: int,
        **others: Any,
    ) -> Rewritten:
        return Rewritten(
            output=str(self._new.output or Path()),
            is_dry_run=self._options.dry_run,
            files=len(self._new.files),
            converted=converted,
            repointed=repointed,
            left=counts.left,
            old_bytes=old_bytes,
            new_bytes=new_bytes,
            unlisted=self._new.unlisted(),
            faults_count=self._faults.count,
            faults=tuple(self._faults.first),
            **others,
        )

    def _rewritten(self) -> dict[str, FileRewrite]:
        """Write the new files that do not exist yet. Return the changes to each file."""
        with writing(self._state.path):
            (self._state.path / "done").mkdir(exist_ok=True)
        done: dict[str, FileRewrite] = {}
        tasks = []
        names = {file.id: file.name for file in self._files if file.is_output}
        for number, name in names.items():
            stored = self._state.read_json(f"done/{number}.json")
            target = self._new.waiting(name)
            if stored is not None and target.is_file() and target.stat().st_size == stored["new_bytes"]:
                done[name] = FileRewrite(**stored)
            else:
                slices = slice_folder(self._state.path, number)
                tasks.append(RewriteTask(number, self._new.files[name], slices, target))
        self._watch.begin("rewrite", sum(_size(task.file) for task in tasks))
        for task, rewritten in run_jobs(rewrite_file, tasks, self._options.jobs):
            self._state.write_json(f"done/{task.number}.json", asdict(rewritten))
            done[names[task.number]] = rewritten
            self._watch.advance(rewritten.old_bytes)
        self._watch.end()
        return done


def _size(file: ReadableFile) -> int:
    return file.stat().st_size if isinstance(file, Path) else 0
