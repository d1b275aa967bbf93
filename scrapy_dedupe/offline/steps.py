"""All steps of the deduplication in one run: digests, comparison, originals, revisits, and verification.

The state folder is ``.dedupe`` in the output folder; in place, in the common parent folder of all inputs. With ``--work`` it
is another folder; then ``.dedupe`` in the output folder has only the new files, and a ``job.json`` that names this other
folder. The job is that of `rewriting`, with other steps before the plan, whose files are:

- ``arcs/``: WARC files converted from ARC files;
- ``rows/N.parquet``: the rows of file N;
- ``lines.parquet``, made from the rows, and ``manifest.txt``, the manifest of ten columns, made from the lines;
  ``numbered.json`` has their counts and is written last.

With ``--compare bytes``, ``sums.txt``, a manifest of digests, is made from the rows; `collisions` compares its records, and
the lines are made from the resulting manifest. Each file gets its name only when it is complete, so the same command
continues after a kill. At the end only ``manifest.txt`` and ``report.json`` are kept. If files are replaced in place again
later, the files of the earlier run are moved to ``earlier/1/``, ``earlier/2/`` and so on.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.stores.duckdb import require_engine
from scrapy_dedupe.tasks.faults import Fault
from scrapy_dedupe.tasks.inputs import STATE_FOLDER, Input, output_names, refuse_equal_names
from scrapy_dedupe.tasks.jobs import kept_processes
from scrapy_dedupe.tasks.outputs import refuse_other_files, work_folder
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, writing
from scrapy_dedupe.tasks.work import JOB, OutputTask, WorkFolder
from scrapy_dedupe.warc.archive_names import with_warc_suffix
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import real_place

from .arc_conversion import ConversionOptions, convert_arc
from .collisions import number_clusters
from .final_names import NewFiles, refuse_unwritable
from .manifest import read_lines
from .output_folder import NESTED, held_output, refuse_nested_work, refuse_other_work
from .places import Places
from .plan_lines import PlannedFile, list_lines, list_rows, number_rows, write_lines
from .rewriting import VERIFIED, RewriteOptions, Rewriting
from .row_scan import make_rows
from .rows import PURPOSE, SECOND, RowsTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance, SourceFiles

    from .eligibility import Savings

MANIFEST, REPORT, EARLIER = "manifest.txt", "report.json", "earlier"


@dataclass(frozen=True, slots=True)
class StepOptions(RewriteOptions):
    """Options of `run_steps`; ``work`` overrides the state folder.

    ``compare`` decides when payloads are the same. ``digest``: if the digest, BLAKE2b-256 and the size are
    equal. ``bytes``: if the digest and all bytes are equal. With ``digest``, the verification compares the new files with facts from the
    first reading of the old ones (`old_files`); with ``bytes``, it reads the old files again.
    """

    algorithm: str = "sha256"
    compare: str = "digest"
    convert_arc: bool = False
    work: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on."""
        own = {"--hash": self.algorithm, "--compare": self.compare, "--convert-arc": self.convert_arc}
        return own | RewriteOptions.to_json(self)


@dataclass(frozen=True, slots=True)
class Deduped:
    """The result of all steps, or of a dry run (``dry_run``).

    ``records`` counts the lines of the manifest. ``clusters`` counts digests of several records, ``collisions`` digests of
    different payloads. ``converted`` records became revisits, ``repointed`` records have updated references; ``left``
    counts the unchanged copies by reason. ``savings`` is only set in a dry run. ``verified`` records were read again.
    ``resolved`` revisits lead to their payload, ``by_digest`` of them only by their digest, since the record that they refer
    to is missing; ``dangling`` ones led nowhere before either. If there are ``findings``, no file has its final name, and
    the new files are in ``kept_in``. ``paths`` are the resulting files; ``state`` is the folder with the manifest and this
    report.
    """

    output: str
    in_place: bool
    dry_run: bool
    files: int
    arcs: int
    records: int
    clusters: int
    collisions: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings | None = None
    verified: int = 0
    resolved: int = 0
    by_digest: int = 0
    dangling: int = 0
    replayed: int = 0
    findings_count: int = 0
    findings: tuple[str, ...] = ()
    kept_in: str | None = None
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()
    paths: tuple[str, ...] = ()
    state: str | None = None

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are after deduplication."""
        return self.old_bytes - self.new_bytes

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Deduped:
        """The inverse of ``dataclasses.asdict`` for a report of finished work."""
        lists = {"findings": tuple(value["findings"]), "paths": tuple(value["paths"])}
        return cls(**value | lists | {"faults": tuple(Fault(**fault) for fault in value["faults"])})


def run_steps(
    inputs: Sequence[Input], output: Path | None, options: StepOptions, *, faults: Faults, watch: Progress
) -> Deduped:
    """Rewrite *inputs* to the folder *output* (None: in place), with a revisit for every eligible copy.

    *faults* has the faults that were found in the inputs so far. Continues an earlier run with the same inputs and options.
    Raises ArchiveError if the output or the state of another run exists, or if the state folder has other files; DamagedInput
    for the first fault unless *faults* is set to keep going; UsageError for inputs that cannot be rewritten; SettingError if
    DuckDB is not installed.
    """
    if not inputs:
        raise UsageError(
            "None of the files can be read as WARC or ARC. Name WARC or ARC files, or a folder with them."
        )
    for given in inputs:
        refuse_unwritable(given.name, given.file, in_place=options.in_place)
    converted = _converted_names(inputs) if options.convert_arc else {}
    with _work_folder(inputs, output, options) as work, ExitStack() as stack:
        if not options.dry_run:
            # The work of a running command is not unfinished.
            StateFolder(_output_folder(inputs, output) / STATE_FOLDER).check_free()
        refuse_files_in(work)
        if options.work is not None:
            _refuse_files_inside(work, inputs, output)
        require_engine(PURPOSE, work)
        new = folder = WorkFolder(work, command="dedupe")
        if options.in_place and not options.dry_run:
            refuse_other_work(_output_folder(inputs, output), work)
            # Other names of the same files may give other originals. If two commands replaced some of the files each, a payload
            # could be lost, also if their work folders differ.
            first = min(real_place(given.file) for given in inputs)
            stack.enter_context(held_output(Path(first).parent, work))
        elif output is not None and not options.dry_run:
            if (state := output / STATE_FOLDER).resolve() != work.resolve():
                # New files are written in the file system of the output.
                refuse_files_in(state)
                new = WorkFolder(state, command="dedupe")
            refuse_other_work(output, new.path)
            _refuse_output(output, work, options)
            if new is not folder:
                stack.enter_context(_begun_new_files(new, work, options))
        stack.enter_context(folder)
        jobs = stack.enter_context(kept_processes(options.jobs))
        options = replace(options, jobs=jobs)
        return _Steps(inputs, converted, output, options, folder, new, faults, watch).run()


@contextmanager
def _work_folder(inputs: Sequence[Input], output: Path | None, options: StepOptions) -> Iterator[Path]:
    if options.work is not None:
        yield options.work
    elif options.dry_run:
        with work_folder(Path("-")) as work:
            yield work.path.with_name(STATE_FOLDER)
    else:
        yield _output_folder(inputs, output) / STATE_FOLDER


@contextmanager
def _begun_new_files(new: WorkFolder, work: Path, options: StepOptions) -> Iterator[None]:
    """Lock the state folder of the output. Its new files belong to the run in the folder *work*, which its job names."""
    with new:
        if options.force:
            new.clear(keep=frozenset({LOCK}), last=(JOB,))
        own = options.to_json() | {"--work": str(work.resolve())}
        new.begin_or_continue(own, {}, {}, may_be_replaced=True)
        try:
            yield
        finally:
            if new.path.exists() and not {path.name for path in new.path.iterdir()} - {LOCK, JOB}:
                new.remove()


def refuse_files_in(work: Path) -> None:
    """Raise ArchiveError if the folder *work* has files of other programs, or unfinished work of another command.

    A run removes all files in this folder.
    """
    known = {LOCK, f"{JOB}.new"}
    if (work / REPORT).exists():
        known |= {REPORT, MANIFEST, EARLIER}
    if (work / EARLIER / "1" / REPORT).exists():  # killed after the files of the earlier run were moved there
        known.add(EARLIER)
    if (work / NESTED / LOCK).exists():  # left by warcrefs, which has not begun its work
        known.add(NESTED)
    refuse_nested_work(work)
    refuse_other_files(work, mark=JOB, known=known)


def _refuse_files_inside(work: Path, inputs: Sequence[Input], output: Path | None) -> None:
    """Raise UsageError if the output or an input is in the folder *work*, which is emptied at the end."""
    folder = work.resolve()
    for name, place in [(str(output), output), *((given.name, given.file) for given in inputs)]:
        if place is not None and Path(real_place(place)).is_relative_to(folder):
            raise UsageError(
                f"{name} is in {work}, whose files are removed at the end. Name another folder with --work."
            )


def _output_folder(inputs: Sequence[Input], output: Path | None) -> Path:
    """The folder for the new files; in place, the common parent folder of all inputs."""
    if output is not None:
        return output
    return Path(os.path.commonpath([Path(str(given.file)).absolute().parent for given in inputs]))


def _refuse_output(output: Path, work: Path, options: StepOptions) -> None:
    """Raise ArchiveError if the folder is not empty, unless it only has the state of a killed run."""
    is_begun = (work / JOB).exists() or (output / STATE_FOLDER / JOB).exists()
    if options.force or is_begun or not output.exists():
        return
    with writing(output):
        others = sorted(path.name for path in output.iterdir() if path.name != STATE_FOLDER)
    if others or (output / STATE_FOLDER / REPORT).exists():
        raise ArchiveError(
            f"{output} is not empty: it has {others[0] if others else STATE_FOLDER}. Choose another folder, or start again"
            " with --force, which replaces files of the same names."
        )


@dataclass(frozen=True, slots=True)
class _Steps:
    """One run, with the work folder locked, and the folder for new files, which may be another one."""

    inputs: Sequence[Input]
    converted_names: Mapping[int, str]
    output: Path | None
    options: StepOptions
    work: WorkFolder
    new: WorkFolder
    faults: Faults
    watch: Progress

    def run(self) -> Deduped:
        work, options = self.work, self.options
        is_verified = any((work.path / name).exists() for name in (VERIFIED, REPORT))
        if options.dry_run and is_verified and (work.path / JOB).exists():
            # To continue would move the new files, which may have replaced some of the old ones.
            raise ArchiveError(
                f"{work.path} holds unfinished work with new files that are already verified. Run the command without"
                " --dry-run to finish it, or name another folder with --work."
            )
        if options.force or not (work.path / JOB).exists():
            if options.in_place:
                self._keep_earlier()
            work.clear(keep=frozenset({LOCK, EARLIER} if options.in_place else {LOCK}), last=(JOB,))
        sources = work.begin_or_continue(
            options.to_json(),
            {given.name: given.file for given in self.inputs},
            {"replaces": options.force},
            may_be_replaced=any((work.path / name).exists() for name in (VERIFIED, REPORT)),
        )
        if (stored := work.read_json(REPORT)) is None:
            report = self._finished(sources)
            if report.dry_run or report.kept_in is not None:
                return report
            work.write_json(REPORT, asdict(report))
        else:
            report = Deduped.from_json(stored)
        if self.new is not work:
            self.new.remove()
        work.clear(keep=frozenset({MANIFEST, REPORT, EARLIER}), last=(VERIFIED, LOCK, JOB))
        return report

    def _keep_earlier(self) -> None:
        """Move the files of a finished run aside: the files that its manifest lists will be replaced again."""
        path, number = self.work.path, 1
        if not (path / REPORT).exists():
            return
        # The report is moved last, so if it exists, the manifest does too.
        while (earlier := path / EARLIER / str(number) / REPORT).exists():
            number += 1
        with writing(earlier):
            earlier.parent.mkdir(parents=True, exist_ok=True)
            if (path / MANIFEST).exists():
                (path / MANIFEST).rename(earlier.with_name(MANIFEST))
            (path / REPORT).rename(earlier)

    def _finished(self, sources: SourceFiles) -> Deduped:
        work, output, options = self.work, self.output, self.options
        inputs = self._converted()
        files = {given.name: given.file for given in inputs}
        new = NewFiles(
            files, {}, output_names(files), self.new.path / "new", output, sources.job.notes["replaces"]
        )
        if not (options.dry_run or (work.path / VERIFIED).exists()):
            new.check()
        places = Places(paths={name: str(file) for name, file in files.items()})
        algorithms = (options.algorithm, SECOND)
        tasks = [
            RowsTask(name, file, work.path / "rows" / str(number), options.eligibility, algorithms, True)
            for number, (name, file) in enumerate(files.items(), 1)
        ]
        numbered = work.step("numbered", lambda faults: self._numbered(tasks, places, faults), self.faults)
        counts, planned = numbered["counts"], [PlannedFile(*file) for file in numbered["files"]]
        rows = {task.name: task.target for task in tasks}
        done = Rewriting(work, places, planned, new, options, self.watch, self.faults).run(
            sources,
            {file.id: rows[file.name] for file in planned},
            trusts_rows=options.compare == "digest",
        )
        paths = [new.final(name) if output else files[name] for name in files]
        proof: dict[str, Any] = {"savings": done.savings}
        if (seen := done.verification) is not None:
            proof = {
                "verified": seen.records,
                "resolved": seen.resolved,
                "by_digest": seen.by_digest,
                "dangling": seen.dangling_before,
                "replayed": seen.replayed,
                "findings_count": seen.findings_count,
                "findings": tuple(map(str, seen.findings)),
                "paths": tuple(map(str, paths)),
                "state": str(work.path),
            }
        return Deduped(
            output=str(output or (work.path.parent if work.path.name == STATE_FOLDER else work.path)),
            in_place=options.in_place,
            dry_run=options.dry_run,
            files=len(files),
            arcs=sum(given is not before for given, before in zip(inputs, self.inputs, strict=True)),
            records=counts["lines"],
            clusters=counts["digests"],
            collisions=counts["collisions"],
            converted=done.converted,
            repointed=done.repointed,
            left=dict(done.left),
            # Files converted from ARC had another size before.
            old_bytes=sum(facts.size_bytes or 0 for facts in sources.job.files.values()),
            new_bytes=done.new_bytes,
            kept_in=done.kept_in,
            fault_count=done.faults_count,
            faults=done.faults,
            **proof,
        )

    def _converted(self) -> list[Input]:
        """The inputs, with ARC files replaced by WARC files if requested."""
        inputs, folder = list(self.inputs), self.work.path / "arcs"
        tasks = {
            number: _ConversionTask(
                inputs[number].name,
                inputs[number].file,
                folder / str(number),
                folder / str(number) / PurePosixPath(name).name,
                name,
            )
            for number, name in self.converted_names.items()
        }
        if tasks:
            jobs = self.options.jobs
            done = self.work.run(_convert, [*tasks.values()], jobs, self.watch, "converting", self.faults)
            for (number, task), is_converted in zip(tasks.items(), done, strict=True):
                if is_converted:
                    inputs[number] = Input(task.new_name, task.target)
        return inputs

    def _numbered(self, tasks: Sequence[RowsTask], places: Places, faults: Faults) -> dict[str, Any]:
        """Make the rows, the lines and the manifest; return the counts of the comparison, and the files of the lines."""
        work, options = self.work, self.options
        work.run(make_rows, tasks, options.jobs, self.watch, "summing", faults)
        rows = {task.name: task.target for task in tasks}
        manifest = work.path / MANIFEST
        if options.compare == "bytes":
            sums = work.path / "sums.txt"
            if not sums.exists():
                list_rows(rows, options.algorithm, sums)
            counts = number_clusters(
                sums, manifest, places, work, faults=faults, watch=self.watch, jobs=options.jobs
            )
            files, _ = write_lines(work.path, read_lines(manifest), (), list(rows), faults)
        else:
            with part(self.watch, "comparing", 0):
                files, counts = number_rows(work.path, rows, options.algorithm)
                list_lines(work.path, files, manifest)
        return {"counts": asdict(counts), "files": files}


@dataclass(frozen=True, slots=True)
class _ConversionTask(OutputTask):
    """An ARC file to convert; ``new_name`` is the name of the WARC file in manifests."""

    new_name: str


def _convert(task: _ConversionTask, faults: Faults, advance: Advance) -> bool:
    """Whether the file has ARC records, which are then in the WARC file."""
    options = ConversionOptions()
    return convert_arc(task.file, task.target, options=options, faults=faults, watch=NO_PROGRESS) is not None


def _converted_names(inputs: Sequence[Input]) -> dict[int, str]:
    """The names of the WARC files made from ARC files, by the numbers of the inputs.

    Raises UsageError if another file has one of these names.
    """
    names: dict[int, str] = {}
    for number, given in enumerate(inputs):
        if _is_arc(given):
            name = with_warc_suffix(given.name)
            names[number] = name if name != given.name else f"{name}.warc"
    named = [Input(names.get(number, given.name), given.file) for number, given in enumerate(inputs)]
    refuse_equal_names(named, "after --convert-arc", "Rename one, or process them in two runs.")
    return names


def _is_arc(given: Input) -> bool:
    with reading(given.file):
        first = next(read_records(given.file, on_damage=lambda damage: None), None)
    return first is not None and first.format == "arc"
