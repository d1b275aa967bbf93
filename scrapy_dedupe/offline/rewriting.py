"""Rewrite files with a revisit for every copy, and verify them before any file gets its final name.

The work is done in ``OUTPUT/.dedupe/warcrefs``, and continues after a kill:

1. ``lines.parquet`` is made from the manifests (`plan_lines`); ``job.json`` has the options and the files;
2. ``rows/N.parquet``: the rows of file N (`rows`), unless they are given;
3. ``slices/file=N/``: the changes to file N (`slices`); ``plan.json``: their counts (`plan`);
4. ``new/NAME``: the new files; ``done/N.json``: the number of changes to each file;
5. the new files are read and compared with the old files, or with facts about them (`verifying`); ``verified.json`` has the
   report;
6. the new files are moved to their final names, or replace the old ones (``in_place``), and the folder is removed.

Each of these files gets its name only when it is complete and synced to disk, so a kill loses at most one unfinished file
for each process. If the verification finds a difference, step 6 is not done. While files are replaced in place, every
mixture of old and new files is a valid archive, because originals never change.

The plan covers all files in the manifests, even if only some of them are rewritten in this run: several machines can
rewrite different files from the same manifests.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.file_rewriting import FileRewrite, RewriteTask, rewrite_file
from scrapy_dedupe.offline.final_names import (
    check_free,
    check_in_place,
    check_outputs,
    check_unchanged,
    facts_of,
    has_own_revisit,
    is_replaced,
    move,
    replace,
    unlisted_files,
)
from scrapy_dedupe.offline.layout import WORK_FOLDER, output_names
from scrapy_dedupe.offline.old_files import RowFacts
from scrapy_dedupe.offline.plan import PlanCounts, PlanTask, make_plan
from scrapy_dedupe.offline.plan_lines import LINES_FILE, marks_of, read_notes, write_lines
from scrapy_dedupe.offline.rewritten import RewriteOptions, Rewritten, report_of
from scrapy_dedupe.offline.row_scan import RowsTask, make_all_rows
from scrapy_dedupe.offline.rows import SECOND, read_sums
from scrapy_dedupe.offline.slices import slice_folder
from scrapy_dedupe.offline.verifying import verify
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import StateFolder, writing
from scrapy_dedupe.warc.files import prove_writable
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

__all__ = ["RewriteOptions", "Rewritten", "rewrite", "rewriting_folder"]

_FOLDER: Final = "warcrefs"
_JOB: Final = "job.json"
_VERIFIED: Final = "verified.json"
_PLAN_COUNTS: Final = "plan.json"
_PLAN: Final = 4  # the version of the folder's format


def rewrite(
    lines: Iterable[ManifestLine],
    files: Sequence[str] | None,
    places: Places,
    output: Path,
    options: RewriteOptions | None = None,
    watch: Progress | None = None,
    *,
    originals: Iterable[ManifestLine] = (),
    rows: Mapping[str, Path] | None = None,
    faults: Faults | None = None,
    before_end: Callable[[Rewritten], None] | None = None,
) -> Rewritten:
    """Rewrite *files* (None: all files in *lines*) to the folder *output*, with the paths of `layout`.

    *lines* come from numbered manifests. Copies in *lines* may refer to records in *originals*, of which only the first
    eight of each payload are used. *rows* are files of rows that were already made, by the name of the file; their digests
    must be those of the manifest. With ``in_place``, *output* only holds the unfinished work. *faults* may be the caller's
    collection. *before_end* is called with the report after all files have their final names and before the unfinished
    work is removed. After a kill between the two it is called again. It is not called for a dry run, or if the verification
    found a difference.

    Raises UsageError for unusable manifests or files; ArchiveError if an output exists, if a file is missing, not
    writable or changed during the work, or if *output* has the unfinished work of another run; DamagedInput for the
    first fault, unless set to keep going.
    """
    options = options or RewriteOptions()
    watch = watch or NoProgress()
    faults = Faults(keep_going=options.keep_going) if faults is None else faults
    if options.dry_run:
        with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
            run = _Run(StateFolder(Path(folder)), places, output, options, watch, faults, rows or {})
            run.take_lines(lines, originals, files)
            return run.tried()
    with _state_folder(rewriting_folder(output)) as state:
        run = _Run(state, places, output, options, watch, faults, rows or {})
        return _Work(state, run).done(lines, originals, files, before_end)


def rewriting_folder(output: Path) -> Path:
    """The folder for the unfinished work of `rewrite`."""
    return output / WORK_FOLDER / _FOLDER


@contextlib.contextmanager
def _state_folder(path: Path) -> Iterator[StateFolder]:
    """The folder for the work. It is removed at the end, unless a later run can continue from it."""
    try:
        with StateFolder(path) as state:
            try:
                yield state
            finally:
                if not (state.path / _JOB).exists():
                    state.remove()
    finally:
        # The parent folders may hold other files, so remove them only if they are empty.
        for folder in (path.parent, path.parent.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


class _Run:
    """The steps that write the new files, in the folder of *state*."""

    def __init__(
        self,
        state: StateFolder,
        places: Places,
        output: Path,
        options: RewriteOptions,
        watch: Progress,
        faults: Faults,
        rows: Mapping[str, Path],
    ) -> None:
        self.folder = state.path
        self.marks = ""
        self._state = state
        self._rows = rows
        self.places = places
        self.output = output
        self.options = options
        self.watch = watch
        self.faults = faults
        self.files: list[PlannedFile] = []  # the files to rewrite
        self.others: list[PlannedFile] = []
        self.names: dict[str, PurePosixPath] = {}
        self.rows: dict[int, Path] = {}  # by the number of the file, after the plan is made

    def take_lines(
        self, lines: Iterable[ManifestLine], originals: Iterable[ManifestLine], files: Sequence[str] | None
    ) -> None:
        """Step 1, and the files and names that follow from it."""
        if not (self.folder / LINES_FILE).exists():
            write_lines(self.folder, lines, originals, files, self.faults)
        all_files, self.marks = read_notes(self.folder)
        self.files = [file for file in all_files if file.is_output]
        self.others = [file for file in all_files if not file.is_output and file.is_used]
        # Computed for all files, so that several machines use the same paths.
        self.names = output_names(file.name for file in all_files if file.is_main)
        for file in self.files:
            self._check_input(file.name)

    def _check_input(self, name: str) -> None:
        place = self.places.file(name)
        if isinstance(place, Path) or (isinstance(place, RemoteFile) and not self.options.in_place):
            return
        if isinstance(place, RemoteFile):
            raise UsageError(f"{name} is remote and cannot be replaced there. Write to a folder with -o.")
        raise UsageError(
            f"{name} is in a WACZ, which cannot be rewritten. Extract its WARC files (unzip), name the folder with them, and"
            " pack the new files with `scrapy dedupe warc pack`."
        )

    def make_plan(self) -> PlanCounts:
        """Steps 2 and 3."""
        options = self.options
        files = [*self.files, *self.others]
        rows = self.rows = self._make_rows(files)
        stored = self._state.read_json(_PLAN_COUNTS)
        if stored is None:
            places, eligibility = self.places, options.eligibility
            task = PlanTask(
                self.folder,
                files,
                rows,
                places,
                eligibility,
                options.keep_going,
                options.dry_run,
                options.jobs,
            )
            counts = make_plan(task)
            self._state.write_json(_PLAN_COUNTS, counts.to_json())
        else:
            counts = PlanCounts.from_json(stored)
        known = {fault.place for fault in self.faults.first}
        new = tuple(fault for fault in counts.faults if fault.place not in known)
        self.faults.take(counts.fault_count - (len(counts.faults) - len(new)), new)
        return counts

    def _make_rows(self, files: Sequence[PlannedFile]) -> dict[int, Path]:
        """Read all files of which no rows are given. Of a remote file that is only read, no rows are made."""
        folder, options = self.folder / "rows", self.options
        with writing(folder):
            folder.mkdir(exist_ok=True)
        rows = {}
        left = []
        for file in files:
            place, given = self.places.file(file.name), self._rows.get(file.name)
            if given is None and not (file.is_output or isinstance(place, Path)):
                continue
            rows[file.id] = given or folder / f"{file.id}.parquet"
            if not rows[file.id].exists():
                left.append(
                    RowsTask(
                        place,
                        file.name,
                        rows[file.id],
                        options.eligibility,
                        tuple(file.labels) or (SECOND,),
                        False,
                        options.keep_going,
                        options.dry_run,
                    )
                )
        make_all_rows(left, options.jobs, self.watch, "survey")
        own = [rows[file.id] for file in files if file.id in rows and file.name not in self._rows]
        for sums in read_sums(own):
            self.faults.take(sums.fault_count, tuple(sums.faults))
        return rows

    def tried(self) -> Rewritten:
        """The report of a dry run."""
        counts = self.make_plan()
        savings, left = counts.savings, counts.left
        old_bytes = sum(_size(self.places.file(file.name)) for file in self.files)
        return Rewritten(
            output=str(self.output),
            is_dry_run=True,
            files=len(self.files),
            unlisted=unlisted_files(self.files, self.others, self.places),
            converted=savings.records,
            repointed=0,
            left=left,
            old_bytes=old_bytes,
            new_bytes=old_bytes - savings.saved_bytes,
            savings=savings,
            faults_count=self.faults.count,
            faults=tuple(self.faults.first),
        )

    def final(self, name: str) -> Path:
        """The final path of a new file that does not replace the old one."""
        return self.output / self.names[name]

    def new_file(self, name: str) -> Path:
        """The path of a new file until it gets its final name."""
        return self.folder / "new" / self.names[name]

    def rewrite_files(self, state: StateFolder) -> dict[str, FileRewrite]:
        """Step 4. Return the changes to each file."""
        with writing(self.folder):
            (self.folder / "done").mkdir(exist_ok=True)
        done: dict[str, FileRewrite] = {}
        tasks = []
        for file in self.files:
            stored = state.read_json(f"done/{file.id}.json")
            target = self.new_file(file.name)
            if stored is not None and target.is_file() and target.stat().st_size == stored["new_bytes"]:
                done[file.name] = FileRewrite(**stored)
            else:
                place = self.places.file(file.name)
                tasks.append(RewriteTask(file.id, place, slice_folder(self.folder, file.id), target))
        names = {file.id: file.name for file in self.files}
        self.watch.begin("rewrite", sum(_size(task.file) for task in tasks))
        for task, rewritten in run_jobs(rewrite_file, tasks, self.options.jobs):
            state.write_json(f"done/{task.number}.json", asdict(rewritten))
            done[names[task.number]] = rewritten
            self.watch.advance(rewritten.old_bytes)
        self.watch.end()
        return done


class _Work:
    """All steps with their stored state, including the final names."""

    def __init__(self, state: StateFolder, run: _Run) -> None:
        self._state = state
        self._run = run
        self._options = run.options
        self._begun_with: list[list[object]] = []

    def done(
        self,
        lines: Iterable[ManifestLine],
        originals: Iterable[ManifestLine],
        files: Sequence[str] | None,
        before_end: Callable[[Rewritten], None] | None,
    ) -> Rewritten:
        run = self._run
        job = self._state.read_json(_JOB)
        asked = self._asked(files)
        verified = None
        if job is not None:
            marks = marks_of(lines, originals)
            verified = self._state.read_json(_VERIFIED)
            run.take_lines((), (), None)
            if job["asked"] != asked or job["marks"] != marks:
                raise ArchiveError(
                    f"{self._state.path} holds unfinished work with other options, manifests or files. Repeat that command to"
                    " finish it, or remove the folder to start again."
                )
            self._begun_with = job["inputs"]
            if verified is None:
                self._check_unchanged()
        else:
            # Without job.json, the other files in this folder are not reliable.
            self._state.clear(keep=frozenset({"lock"}))
            run.take_lines(lines, originals, files)
            marks = run.marks
        if verified is None:
            self._check_outputs()
            if job is None:
                names = [file.name for file in [*run.files, *run.others]]
                self._begun_with = facts_of(names, run.places)
                self._state.write_json(_JOB, {"asked": asked, "marks": marks, "inputs": self._begun_with})
            report = self._verified()
            if report.kept_in is not None:
                return report
        else:
            report = report_of(verified["report"])
        self._move()
        if before_end is not None:
            before_end(report)
        # Without job.json, the rest of the folder is not kept.
        (self._state.path / _JOB).unlink()
        return report

    def _asked(self, files: Sequence[str] | None) -> dict[str, Any]:
        """The options that the result depends on, besides the manifests and files."""
        options, statuses = self._options, self._options.eligibility.statuses
        return {
            "plan": _PLAN,
            "files": None if files is None else list(files),
            "min_size": options.eligibility.min_size,
            "statuses": None if statuses is None else sorted(statuses),
            "in_place": options.in_place,
        }

    def _check_unchanged(self) -> None:
        check_unchanged(self._begun_with, self._run.places, self._state.path)

    def _check_outputs(self) -> None:
        """Raise an error if an output exists. Done first, so that it does not fail after hours of work."""
        run = self._run
        prove_writable(run.output, "The new files")
        if self._options.in_place:
            check_in_place(run.files, run.others, run.places)
            return
        finals = {file.name: run.final(file.name) for file in run.files}
        check_outputs(run.files, run.others, run.places, finals, replaces=self._options.force)

    def _verified(self) -> Rewritten:
        """Steps 2 to 5."""
        run, options = self._run, self._options
        try:
            counts = run.make_plan()
        except DamagedInput as error:
            raise self._explained(error) from error
        self._check_unchanged()
        rewrites = run.rewrite_files(self._state)
        self._check_unchanged()
        pairs: list[tuple[ReadableFile, ReadableFile]] = []
        for file in run.files:
            before, done = run.places.file(file.name), rewrites[file.name]
            # An unchanged file need not be replaced.
            is_same = options.in_place and not done.converted and not done.repointed
            pairs.append((before, before if is_same else run.new_file(file.name)))
        try:
            verification = verify(
                pairs,
                facts=[RowFacts(run.rows[file.id]) for file in run.files] if options.trusts_rows else (),
                originals=[run.places.file(file.name) for file in run.others],
                sample=options.sample,
                seed=options.seed,
                jobs=options.jobs,
                work=self._state.path / "verify",
                watch=run.watch,
                faults=Faults(keep_going=options.keep_going),
            )
        except OSError as error:
            raise ArchiveError(f"The new files cannot be verified: {error.strerror or error}.") from error
        report = Rewritten(
            output=str(run.output),
            is_dry_run=False,
            files=len(run.files),
            unlisted=unlisted_files(run.files, run.others, run.places),
            converted=sum(one.converted for one in rewrites.values()),
            repointed=sum(one.repointed for one in rewrites.values()),
            left=counts.left,
            old_bytes=sum(one.old_bytes for one in rewrites.values()),
            new_bytes=sum(one.new_bytes for one in rewrites.values()),
            verification=verification,
            kept_in=None if verification.is_right else str(self._state.path),
            faults_count=run.faults.count,
            faults=tuple(run.faults.first),
        )
        if verification.is_right:
            changed = [
                file.name
                for file, (before, after) in zip(run.files, pairs, strict=True)
                if before is not after
            ]
            self._state.write_json(_VERIFIED, {"report": asdict(report), "changed": changed})
        return report

    def _explained(self, error: DamagedInput) -> DamagedInput:
        """The error; if an earlier run has replaced the files, with this explanation."""
        for file in self._run.files:
            path = self._run.places.file(file.name)
            if self._options.in_place and has_own_revisit(path):
                return DamagedInput(
                    f"{error} {file.name} already has revisits that were responses before: if an earlier run has replaced"
                    " these files, there is nothing left to do."
                )
        return error

    def _move(self) -> None:
        """Step 6. A changed file that is not in the folder any more already has its final name."""
        run, in_place = self._run, self._options.in_place
        changed = self._state.read_json(_VERIFIED)["changed"]
        facts = {str(fact[0]): fact for fact in self._begun_with}
        waiting = {name: new for name in changed if (new := run.new_file(name)).exists()}
        if in_place:
            for name, new in list(waiting.items()):
                if is_replaced(new, Path(str(run.places.file(name))), facts[name]):
                    with writing(new):
                        waiting.pop(name).unlink()
            for name in set(changed) - set(waiting):
                # The file has been replaced, so it differs from the file that was read.
                del facts[name]
        check_unchanged(facts.values(), run.places, self._state.path)
        for name, new in waiting.items():
            if in_place:
                check_unchanged([facts[name]], run.places, self._state.path)
                replace(new, Path(os.path.realpath(str(run.places.file(name)))))
            else:
                check_free(name, run.final(name), replaces=self._options.force)
                move(new, run.final(name))


def _size(file: ReadableFile) -> int:
    return file.stat().st_size if isinstance(file, Path) else 0
