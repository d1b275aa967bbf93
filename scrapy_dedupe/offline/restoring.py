"""Restore archives: revisits become responses again, and updated references are reverted.

A revisit that was a response has this in its own fields (`restored_records`); such fields of other programs are not
touched. Its payload is that of its original, which is found by the rules of `warc.references` and must be verified by
its bytes. All other bytes of a file are copied unchanged. If a response was not stored in chunks, the restored record is
identical to the record before deduplication, byte for byte.

The work is done in the folder ``.restore`` (`tasks.work.WorkFolder`) next to the new files. Each step begins only when the
files of the previous step are synced to disk, so a killed run continues where it stopped and loses only unfinished files:

1. the files are read once; ``plan.sqlite`` has the changes (`restored_files`), ``searched.json`` what else was found; then
   ``job.json`` is written;
2. the originals are read, file by file, and verified; ``made/`` has the records that are restored from them;
3. the new files are written to ``new/`` and compared with their sources; ``verified.json`` has the facts about the new files;
4. the new files get their final names, and the folder is removed.

If a source file has changed meanwhile, the work starts again: an output made from an older version of a file is useless, and
in place it would delete new records. In place, files are replaced one by one: originals do not change, so any mixture of old
and new files is consistent.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline import final_names
from scrapy_dedupe.offline.output_folder import RESTORE_FOLDER, held_output
from scrapy_dedupe.offline.restored_files import (
    OriginalsTask,
    Output,
    RestorationScan,
    add_results,
    files_with_candidates,
    leave_unrestored,
    make_records,
    open_plan,
    search,
    write_output,
)
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.inputs import find_inputs, output_names, refuse_own_folder
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.outputs import refuse_other_files
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import LOCK, writing
from scrapy_dedupe.tasks.work import JOB, Job, WorkFolder, facts_of
from scrapy_dedupe.verification import DEFAULT_SAMPLE, verify

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.tasks.progress import Progress

AnyTask = TypeVar("AnyTask", OriginalsTask, Output)

_PLAN: Final = "plan.sqlite"
_VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restoration. ``all_writers``: also restore revisits of other programs whose original is found."""

    all_writers: bool = False
    jobs: int = 1
    keep_going: bool = False
    force: bool = False
    sample: int = DEFAULT_SAMPLE


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restoration; ``output`` is None in place.

    ``left`` counts the revisits of other programs that are not restored, by reason; ``not_ours`` counts records with
    Former- fields of other programs. ``left_revisits`` counts all revisits that should be restored but are not.
    """

    files: int
    files_changed: int
    restored: int
    repointed: int
    bytes_before: int
    bytes_after: int
    left: dict[str, int]
    left_revisits: int
    not_ours: int
    fault_count: int
    faults: tuple[Fault, ...]
    output: str | None = None


def restore(
    paths: Sequence[str],
    output: Path | None,
    *,
    originals: Sequence[str] = (),
    options: RestoreOptions,
    watch: Progress,
) -> Restored:
    """Restore the WARC files that *paths* name, to the folder *output*, or in place if *output* is None.

    Raises UsageError for files that cannot be rewritten, ArchiveError if an output exists, DamagedInput for a fault (unless
    the options are set to keep going) and for a difference found by the verification; then no output has its final name.
    """
    faults = Faults(keep_going=options.keep_going)
    inputs = find_inputs(paths, faults=faults, recursive=True, without=output)
    for given in inputs:
        if not isinstance(given.file, Path):
            raise UsageError(
                f"{given.name} is remote or inside a container, but restore can only write local WARC files. Extract it first."
            )
    if not inputs:
        raise UsageError(
            "None of the files can be read as WARC files. Name WARC files, or a folder with them."
        )
    known = {os.path.realpath(given.name) for given in inputs}
    others = find_inputs(originals, faults=faults, recursive=True) if originals else []
    others = [given for given in others if os.path.realpath(given.name) not in known]
    finals = _final_paths(inputs, others, output)
    target = finals[0].parent if output is None else output
    folder = target / RESTORE_FOLDER
    refuse_other_files(folder)
    with (
        held_output(target, folder),
        WorkFolder(folder, command="restore", restart=f"remove {folder} to start again") as work,
    ):
        restoration = _Restoration(work, inputs, others, finals, output is None, options, faults, watch)
        try:
            result = restoration.run()
        except DamagedInput:
            restoration.forget()
            raise
        finally:
            if not (folder / JOB).exists():
                work.remove()  # a later run could not continue from it
    return result if output is None else replace(result, output=str(output))


def _final_paths(inputs: Sequence[Input], others: Sequence[Input], output: Path | None) -> list[Path]:
    """The final path of each of *inputs*. Raises ArchiveError for a file that would overwrite one that is read."""
    if output is None:
        # Resolve links, so that the target is replaced and not the link.
        return [Path(given.name).resolve() for given in inputs]
    refuse_own_folder(inputs, output)
    names = output_names(given.name for given in inputs)
    read = {os.path.realpath(given.name) for given in others}
    finals = [(output / names[given.name]).absolute() for given in inputs]
    for final in finals:
        if os.path.realpath(final) in read:
            raise ArchiveError(f"{final} is one of the files to be read. Choose another folder.")
    return finals


@dataclass
class _Restoration:
    work: WorkFolder
    inputs: Sequence[Input]
    others: Sequence[Input]
    finals: Sequence[Path]
    in_place: bool
    options: RestoreOptions
    faults: Faults
    watch: Progress

    def __post_init__(self) -> None:
        self.plan = self.work.path / _PLAN
        self.files = [*self.inputs, *self.others]
        self.all_outputs = [
            Output(self.plan, number, Path(given.name), final, self.in_place)
            for number, (given, final) in enumerate(zip(self.inputs, self.finals, strict=True))
        ]
        options = {
            "finals": [str(one.final) for one in self.all_outputs],
            "files": [given.name for given in self.files],
            "all_writers": self.options.all_writers,
            "keep_going": self.options.keep_going,
        }
        self.job = Job(options, {given.name: facts_of(given.file) for given in self.files})
        self.made: Mapping[str, object] = {}  # facts about verified outputs, by their final paths

    def run(self) -> Restored:
        work, before = self.work, self.work.job()
        continues = False
        if before is not None and before.options == self.job.options:
            self.made = (work.read_json(f"{_VERIFIED}.json") or {"value": {}})["value"]
            continues = self._is_current(before)
        if continues and before is not None:
            self.job = before
        else:
            self.forget()
            self._refuse_existing(self.all_outputs)
            work.clear(keep=frozenset({LOCK}))
        scan = RestorationScan(**work.step("searched", self._searched, self.faults))
        if not continues:
            work.begin(self.job)
        with open_plan(self.plan, "rw") as plan:
            self._make_records(plan)
            leave_unrestored(plan, scan, [given.name for given in self.files], self.faults)
            ((restored,),) = plan.execute("SELECT count(*) FROM restored")
            ((repointed,),) = plan.execute("SELECT count(*) FROM pointed")
            rows = plan.execute("SELECT file FROM restored UNION SELECT file FROM pointed").fetchall()
        changed = {number for (number,) in rows}
        outputs = [one for one in self.all_outputs if one.number in changed or not self.in_place]
        work.step(_VERIFIED, lambda faults: self._verified(outputs, restored), self.faults)
        self._give_final_names([one for one in outputs if one.waiting.exists()])
        result = self._result(scan, len(changed), restored, repointed)
        self.forget()
        return result

    def forget(self) -> None:
        """Make the stored state unusable for a later run, which then starts again."""
        path = self.work.path / JOB
        with writing(path):
            path.unlink(missing_ok=True)

    def _is_current(self, before: Job) -> bool:
        """Whether a killed run can continue: each file is unchanged, or has been replaced by its verified output."""
        named = {one for one in self.all_outputs if str(one.final) in self.made and not one.waiting.exists()}
        if any(_made_facts(one.final) != self.made[str(one.final)] for one in named):
            return False
        replaced = {self.inputs[one.number].name for one in named} if self.in_place else set()
        kept = {name: facts for name, facts in self.job.files.items() if name not in replaced}
        return before.changed_file(kept) is None

    def _check_unchanged(self, files: Sequence[Input]) -> None:
        """Raise ArchiveError if a file has changed since it was read, so that records added during the run are not lost."""
        changed = self.job.changed_file({given.name: facts_of(given.file) for given in files})
        if changed is not None:
            self.forget()
            raise ArchiveError(
                f"{changed} has changed since it was read, so no more files get their final names. Start again."
            )

    def _refuse_existing(self, outputs: Sequence[Output]) -> None:
        """Raise ArchiveError if a file has the final name of an output, unless this run has made it."""
        if self.in_place or self.options.force:
            return
        for one in outputs:
            if one.final.exists() and self.made.get(str(one.final)) != _made_facts(one.final):
                raise ArchiveError(
                    f"{one.final} already exists. Choose another folder, or replace it with --force."
                )

    def _searched(self, faults: Faults) -> dict[str, Any]:
        """Step 1. Return the values of a `RestorationScan`."""
        with open_plan(self.plan, "rwc") as plan:
            scan = search(
                plan,
                self.inputs,
                self.others,
                all_writers=self.options.all_writers,
                faults=faults,
                watch=self.watch,
            )
        return asdict(scan)

    def _make_records(self, plan: sqlite3.Connection) -> None:
        """Step 2: try the first candidate of each revisit, then the second one if it has no original yet, and so on."""
        ((last,),) = plan.execute("SELECT coalesce(max(rank), -1) FROM candidate")
        for rank in range(last + 1):
            tasks = [
                OriginalsTask(self.plan, rank, number, self.files[number].file)
                for number in files_with_candidates(plan, rank)
            ]
            left = [task for task in tasks if not task.results.exists()]
            self._run(make_records, left, "restoring records")
            add_results(plan, tasks)

    def _run(self, function: Callable[[AnyTask], None], tasks: Sequence[AnyTask], title: str) -> None:
        sizes = [given.size_bytes for given in self.files]
        with part(self.watch, title, sum(sizes[task.number] for task in tasks)):
            for task, _ in run_jobs(function, tasks, self.options.jobs):
                self.watch.advance(sizes[task.number])

    def _verified(self, outputs: Sequence[Output], restored: int) -> dict[str, object]:
        """Step 3. Return the facts about the new files by their final paths."""
        self._run(write_output, [one for one in outputs if not one.waiting.exists()], "writing")
        new = {one.number: one.waiting for one in outputs}
        result = verify(
            [(one.source, new.get(one.number, one.source)) for one in self.all_outputs],
            originals=[given.file for given in self.others],
            sample=self.options.sample,
            jobs=self.options.jobs,
            work=self.work.path / "verify",
            watch=self.watch,
            keep_going=self.options.keep_going,
        )
        self._check_unchanged(self.files)
        if result.findings:
            more = result.findings_count - 1
            others = f" {more} other {'place is' if more == 1 else 'places are'} wrong too." if more else ""
            raise DamagedInput(f"{result.findings[0]}. No file got its final name.{others}")
        if result.restored != restored:
            raise DamagedInput(
                f"{result.restored} records were restored, but {restored} were planned. No file got its final name."
            )
        return {str(one.final): _made_facts(one.waiting) for one in outputs}

    def _give_final_names(self, outputs: Sequence[Output]) -> None:
        # Check again, since a file may have been created during the run. The verified files are kept meanwhile.
        self._refuse_existing(outputs)
        for one in outputs:
            if self.in_place:
                self._check_unchanged([self.inputs[one.number]])
            give_final_name(one)

    def _result(self, scan: RestorationScan, changed: int, restored: int, repointed: int) -> Restored:
        others = scan.not_ours_revisits if self.options.all_writers else 0
        return Restored(
            files=len(self.inputs),
            files_changed=changed,
            restored=restored,
            repointed=repointed,
            bytes_before=scan.size_bytes,
            bytes_after=sum(one.final.stat().st_size for one in self.all_outputs),
            left=scan.left,
            left_revisits=sum(scan.left.values()) + others,
            not_ours=scan.not_ours,
            fault_count=self.faults.count,
            faults=tuple(self.faults.first),
        )


def give_final_name(one: Output) -> None:
    """Move a verified file to its final name; a replaced file keeps its permissions."""
    (final_names.replace if one.is_replaced else final_names.move)(one.waiting, one.final)


def _made_facts(path: Path) -> list[object] | None:
    """The facts about a new file that change when it is written, but not when it is renamed; None if it is gone."""
    if not path.exists():
        return None
    facts = facts_of(path)
    return [facts.size_bytes, facts.inode, facts.modified_ns]
