"""Restore archives: revisits become responses again, and updated references are reverted.

A revisit that was a response has this in its own fields (`restored_heads`); such fields of other programs are not
touched. Its payload is that of its original, which is found by the rules of `warc.references` and must be verified by
its bytes (`restored_records`). All other bytes of a file are copied unchanged. If a response was not stored in
chunks, the restored record is identical to the record before deduplication, byte for byte.

The work has four steps. Each begins only when the previous step is synced to disk:

1. the files are read once (`restoration_search`), and the changes are stored in a plan (`restoration_plan`);
2. the originals are read, file by file; each is verified, and the records that are restored from it are written to the
   work folder;
3. the files are assembled under temporary names in the folders of their final ones, and compared with their sources;
4. they get their final names.

A killed run continues where it stopped and loses only the unfinished files; if a source file has changed, it starts again.
In place, files are replaced one by one: originals do not change, so any mixture of old and new files is consistent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.state import StateFolder
from scrapy_dedupe.warc.reading import read_record

from .file_rewriting import remove_parts
from .inputs import Input, find_inputs
from .restoration_plan import RestorationPlan
from .restoration_search import NO_ORIGINAL, RestorationScan, search
from .restored_files import (
    Output,
    RestorationSources,
    final_paths,
    give_final_name,
    made_by,
    made_facts,
    outputs_of,
    remove_waiting,
    write_output,
)
from .restored_heads import former
from .restored_records import OriginalsTask, make_records
from .verifying import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.tasks.progress import Progress

WORK_FOLDER: Final = ".restore"
_SEARCHED: Final = "searched"
_LOCK: Final = "lock"
_PLAN: Final = "plan.sqlite"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restoration. ``all_writers``: also restore revisits of other programs whose original is found."""

    all_writers: bool = False
    jobs: int = 1
    keep_going: bool = False
    force: bool = False
    sample: int = 100


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
        raise UsageError("None of the files can be read as WARC files; there is nothing to restore.")
    others = find_inputs(originals, faults=faults, recursive=True) if originals else []
    finals = final_paths(inputs, output)
    folder = (finals[0].parent if output is None else output) / WORK_FOLDER
    with StateFolder(folder) as state:
        work = _Restoration(state, inputs, others, finals, output is None, options, faults, watch)
        result = work.run()
    return result if output is None else replace(result, output=str(output))


class _Restoration:
    def __init__(
        self,
        state: StateFolder,
        inputs: Sequence[Input],
        others: Sequence[Input],
        finals: Sequence[Path],
        in_place: bool,
        options: RestoreOptions,
        faults: Faults,
        watch: Progress,
    ) -> None:
        self._state = state
        self._inputs = inputs
        known = {os.path.realpath(given.name) for given in inputs}
        self._others = [given for given in others if os.path.realpath(given.name) not in known]
        self._finals = finals
        self._in_place = in_place
        self._sources = RestorationSources(inputs, finals, self._others, in_place)
        self._made: dict[str, list[int]] = {}
        self._options = options
        self._faults = faults
        self._watch = watch

    def run(self) -> Restored:
        path = self._state.path / _PLAN
        stage = self._stage_before(path)
        if stage is None:
            if (final := self._blocking_file(self._finals)) is not None:
                self._state.remove()
                self._refuse(final)
            self._state.clear(keep=frozenset({_LOCK}))
        with RestorationPlan(path) as plan:
            if stage is not None:
                faults = tuple(Fault(place, reason) for place, reason in plan.fact("faults"))
                self._faults = Faults(keep_going=self._options.keep_going)
                self._faults.take(plan.fact("fault_count"), faults)
            if stage is None:
                self._search_or_clear(plan)
            if stage in (None, _SEARCHED):
                self._make_records(plan)
            outputs = [one for one in outputs_of(plan) if one.changes or not self._in_place]
            if stage != "verified":
                self._write(outputs)
                self._verify(plan)
                self._sources.note_made(plan, outputs)
                plan.set_fact("stage", "verified")
                plan.commit()
            self._give_final_names(plan, [one for one in outputs if one.waiting.exists()])
            result = self._result(plan)
        self._state.remove()
        return result

    def _stage_before(self, path: Path) -> str | None:
        """The stage of a killed run with the same options and files; None: start again."""
        if not path.exists():
            return None
        with RestorationPlan(path) as plan:
            stage: str | None = plan.fact("stage") if plan.fact("call") == self._call() else None
            if stage is not None and not self._sources.are_current(plan):
                # The outputs of this run do not block themselves.
                self._made = made_by(plan)
                stage = None
            if stage is None:
                remove_waiting(plan)
        return stage

    def _call(self) -> object:
        options = self._options
        return [
            [given.name for given in self._inputs],
            [given.name for given in self._others],
            [str(final) for final in self._finals],
            options.all_writers,
            options.keep_going,
        ]

    def _blocking_file(self, finals: Sequence[Path]) -> Path | None:
        if self._in_place or self._options.force:
            return None
        for final in finals:
            if final.exists() and self._made.get(str(final)) != made_facts(final):
                return final
        return None

    @staticmethod
    def _refuse(final: Path) -> NoReturn:
        raise ArchiveError(f"{final} already exists. Choose another folder, or replace it with --force.")

    def _give_final_names(self, plan: RestorationPlan, outputs: Sequence[Output]) -> None:
        # Check again, since a file may have been created during the run. The verified files are kept meanwhile.
        if (final := self._blocking_file([one.final for one in outputs])) is not None:
            self._refuse(final)
        for one in outputs:
            # Check again, so that records added during the run are not lost.
            if self._in_place and (name := self._sources.changed(plan, one.number)) is not None:
                self._give_up(plan)
                raise ArchiveError(
                    f"{name} has changed since it was read, and was not replaced. Start again."
                )
            give_final_name(one)

    def _search_or_clear(self, plan: RestorationPlan) -> None:
        try:
            self._search(plan)
        except BaseException:  # including KeyboardInterrupt: an incomplete plan is useless
            self._give_up(plan)
            raise

    def _give_up(self, plan: RestorationPlan) -> None:
        """Remove everything, so that a later run starts again."""
        remove_waiting(plan)
        self._state.remove()

    def _search(self, plan: RestorationPlan) -> None:
        """Read all files once, and store the revisits and their possible originals in the plan."""
        plan.set_fact("call", self._call())
        self._sources.note(plan)
        scan = search(
            plan,
            self._inputs,
            self._others,
            self._finals,
            all_writers=self._options.all_writers,
            faults=self._faults,
            watch=self._watch,
        )
        plan.set_fact("scan", scan.to_json())
        plan.set_fact("bytes_before", sum(given.size_bytes for given in self._inputs))
        self._set_stage(plan, _SEARCHED)

    def _make_records(self, plan: RestorationPlan) -> None:
        """Verify the originals and make the restored records; then decide about the revisits that have no original."""
        files = [*self._inputs, *self._others]
        for rank in plan.ranks():
            tasks = [
                OriginalsTask(plan.path, rank, number, files[number].file)
                for number in plan.files_with_candidates(rank)
            ]
            left = [task for task in tasks if not task.results.exists()]
            self._watch.begin("restoring records", sum(files[task.number].size_bytes for task in left))
            for task, _ in run_jobs(make_records, left, self._options.jobs):
                self._watch.advance(files[task.number].size_bytes)
            self._watch.end()
            for task in tasks:
                plan.take_made(rank, task.number, task.made)
            plan.commit()
        scan = RestorationScan(**plan.fact("scan"))
        try:
            self._report_unresolved(plan, scan)
        except DamagedInput:
            self._give_up(plan)
            raise
        plan.set_fact("left", scan.left)
        plan.set_fact("not_ours", scan.not_ours)
        others = scan.not_ours_revisits if self._options.all_writers else 0
        plan.set_fact("left_revisits", sum(scan.left.values()) + others)
        plan.set_fact("counts", plan.counts())
        remove_waiting(plan)  # left by a run with other options
        self._set_stage(plan, "planned")

    def _set_stage(self, plan: RestorationPlan, stage: str) -> None:
        plan.set_fact("fault_count", self._faults.count)
        plan.set_fact("faults", [[fault.place, fault.reason] for fault in self._faults.first])
        plan.set_fact("stage", stage)
        plan.commit()

    def _report_unresolved(self, plan: RestorationPlan, scan: RestorationScan) -> None:
        for revisit, reason in plan.unresolved():
            if reason is None and revisit.former_id is None:
                scan.left[NO_ORIGINAL] += 1
                continue
            where = f"{plan.place(revisit.file)}, offset {revisit.offset}"
            self._faults.add(
                where,
                reason
                or f"its original {revisit.words} is in none of the files; name the file with --originals",
            )
        if plan.leave_unresolved():
            self._keep_references_to_them(plan)

    def _keep_references_to_them(self, plan: RestorationPlan) -> None:
        """Leave records unchanged that refer to a revisit that is not restored."""
        for file, offset in plan.pointed():
            record = read_record(self._inputs[file].file, offset)
            uri = former(record, "WARC-Refers-To-Target-URI") or record.refers_to_uri
            date = former(record, "WARC-Refers-To-Date") or record.refers_to_date
            ids = [*record.get_all("Former-WARC-Concurrent-To"), former(record, "WARC-Refers-To")]
            if plan.stays(None, uri, date) or any(plan.stays(one, None, None) for one in ids):
                plan.remove_change(file, offset)

    def _write(self, outputs: Sequence[Output]) -> None:
        tasks = [one for one in outputs if not one.waiting.exists()]
        self._watch.begin("writing", sum(one.size_before for one in tasks))
        results = run_jobs(write_output, tasks, self._options.jobs)
        try:
            for one, _ in results:
                self._watch.advance(one.size_before)
        except BaseException:
            results.close()  # stops the processes that write parts
            remove_parts(one.waiting for one in tasks)
            raise
        self._watch.end()

    def _verify(self, plan: RestorationPlan) -> None:
        pairs = [
            (one.source, one.waiting if one.changes or not self._in_place else one.source)
            for one in outputs_of(plan)
        ]
        result = verify(
            pairs,
            originals=[given.file for given in self._others],
            sample=self._options.sample,
            jobs=self._options.jobs,
            work=self._state.path / "verify",
            watch=self._watch,
            keep_going=self._options.keep_going,
        )
        if (name := self._sources.changed(plan)) is not None:
            self._give_up(plan)
            raise ArchiveError(f"{name} changed while it was read. No file got its final name; start again.")
        restored, _ = plan.counts()
        if not result.findings and result.restored != restored:
            self._give_up(plan)
            raise DamagedInput(
                f"{result.restored} records were restored, but {restored} were planned. No file got its final name."
            )
        if result.findings:
            self._give_up(plan)
            more = result.findings_count - 1
            others = f" {more} other {'place is' if more == 1 else 'places are'} wrong too." if more else ""
            raise DamagedInput(f"{result.findings[0]}. No file got its final name.{others}")

    def _result(self, plan: RestorationPlan) -> Restored:
        every = outputs_of(plan)
        restored, repointed = plan.fact("counts")
        return Restored(
            files=len(every),
            files_changed=sum(bool(one.changes) for one in every),
            restored=restored,
            repointed=repointed,
            bytes_before=plan.fact("bytes_before"),
            bytes_after=sum(one.final.stat().st_size for one in every),
            left=plan.fact("left"),
            left_revisits=plan.fact("left_revisits"),
            not_ours=plan.fact("not_ours"),
            fault_count=self._faults.count,
            faults=tuple(self._faults.first),
        )
