"""All steps of the deduplication in one run: digests, comparison, originals, revisits, and verification.

The state folder is ``.dedupe`` in the output folder; in place, in the common parent folder of all inputs. The job in it is
that of `rewriting`, with other steps before the plan, whose files are:

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
import re
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.tasks.faults import Fault
from scrapy_dedupe.tasks.jobs import kept_processes
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import LOCK, reading, writing
from scrapy_dedupe.tasks.work import JOB, WorkFolder
from scrapy_dedupe.warc.reading import read_records

from .arc_conversion import ConversionOptions, convert_arc
from .collisions import number_clusters
from .engine import require_engine
from .final_names import NewFiles, begin
from .inputs import STATE_FOLDER, Input, output_names, refuse_equal_names
from .manifest import read_lines
from .places import Places
from .plan_lines import list_lines, list_rows, number_rows, read_notes, write_lines
from .rewriting import VERIFIED, RewriteOptions, Rewriting, rewriting_folder, rows_task
from .row_scan import make_rows
from .rows import PURPOSE, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

    from .eligibility import Savings
    from .final_names import SourceFiles

MANIFEST, REPORT, EARLIER = "manifest.txt", "report.json", "earlier"

_ARC_SUFFIX: Final = re.compile(r"\.arc(?=(\.gz)?\Z)", re.IGNORECASE)


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
    Raises ArchiveError if the output or the state of another run exists, or if ``work`` has other files; DamagedInput for the
    first fault unless *faults* is set to keep going; UsageError for inputs that cannot be rewritten; SettingError if DuckDB is
    not installed.
    """
    if not inputs:
        raise UsageError("None of the files can be read as WARC or ARC.")
    for given in inputs:
        if given.is_member:
            raise UsageError(f"{given.name} is in a container and cannot be rewritten. Extract it first.")
        if options.in_place and not isinstance(given.file, Path):
            raise UsageError(
                f"{given.name} is remote and cannot be replaced. Write to a folder with -o, or download it first."
            )
    converted = _converted_names(inputs) if options.convert_arc else {}
    if options.work is not None:
        refuse_other_files(options.work)
    with _work_folder(inputs, output, options) as work:
        require_engine(PURPOSE, work)
        if output is not None and not options.dry_run:
            _refuse_output(output, work, options)
        with ExitStack() as stack:
            new = folder = stack.enter_context(WorkFolder(work))
            if output is not None and options.work is not None and not options.dry_run:
                # New files are written in the file system of the output.
                new = stack.enter_context(WorkFolder(rewriting_folder(output)))
            jobs = stack.enter_context(kept_processes(options.jobs))
            options = replace(options, jobs=jobs)
            return _Steps(inputs, converted, output, options, folder, new, faults, watch).run()


@contextmanager
def _work_folder(inputs: Sequence[Input], output: Path | None, options: StepOptions) -> Iterator[Path]:
    if options.work is not None:
        yield options.work
    elif options.dry_run:
        with writing(Path(tempfile.gettempdir())):
            folder = tempfile.TemporaryDirectory(prefix="scrapy-dedupe-")
        with folder as name:
            yield Path(name) / STATE_FOLDER
    elif output is not None:
        yield output / STATE_FOLDER
    else:
        yield _common_folder(inputs) / STATE_FOLDER


def refuse_other_files(work: Path) -> None:
    """Raise ArchiveError if the folder *work* has files that are not from an earlier run: a run removes all its files."""
    with reading(work):
        found = {path.name for path in work.iterdir()} if work.is_dir() else set()
    known = {LOCK, f"{JOB}.new"} | ({REPORT, MANIFEST, EARLIER} if REPORT in found else set())
    if (work / EARLIER / "1" / REPORT).exists():  # killed after the files of the earlier run were moved there
        known.add(EARLIER)
    if JOB not in found and (others := sorted(found - known)):
        raise ArchiveError(
            f"{work} has other files, such as {others[0]}, which would be removed. Name an empty or a new folder with --work."
        )


def _common_folder(inputs: Sequence[Input]) -> Path:
    """The common parent folder of all inputs."""
    return Path(os.path.commonpath([Path(str(given.file)).absolute().parent for given in inputs]))


def _refuse_output(output: Path, work: Path, options: StepOptions) -> None:
    """Raise ArchiveError if the folder is not empty, unless it only has the state of a killed run."""
    if options.force or (work / JOB).exists() or not output.exists():
        return
    with writing(output):
        others = sorted(path.name for path in output.iterdir() if path.name != STATE_FOLDER)
    state = output / STATE_FOLDER
    if state != work and (state / JOB).exists():
        raise ArchiveError(
            f"{state} holds other unfinished work. Repeat that command to finish it, or start again with --force."
        )
    if others or (state / REPORT).exists():
        raise ArchiveError(
            f"{output} is not empty: it has {others[0] if others else STATE_FOLDER}. Choose another folder, or start again"
            " with --force, which replaces files of the same names."
        )


class _Steps:
    """One run, with the work folder locked, and the folder for new files, which may be another one."""

    def __init__(
        self,
        inputs: Sequence[Input],
        converted: Mapping[int, str],
        output: Path | None,
        options: StepOptions,
        work: WorkFolder,
        new: WorkFolder,
        faults: Faults,
        watch: Progress,
    ) -> None:
        self._inputs = inputs
        self._converted_names = converted
        self._output = output
        self._options = options
        self._work = work
        self._new = new
        self._faults = faults
        self._watch = watch

    def run(self) -> Deduped:
        work, options = self._work, self._options
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
        sources = begin(
            work,
            options.to_json(),
            {given.name: given.file for given in self._inputs},
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
        if self._new is not work:
            self._new.remove()
            with suppress(OSError):
                self._new.path.parent.rmdir()
        work.clear(keep=frozenset({MANIFEST, REPORT, EARLIER}), last=(VERIFIED, LOCK, JOB))
        return report

    def _keep_earlier(self) -> None:
        """Move the files of a finished run aside: the files that its manifest lists will be replaced again."""
        path, number = self._work.path, 1
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
        work, output = self._work, self._output
        inputs, arcs = self._converted()
        files = {given.name: given.file for given in inputs}
        replaces = sources.job.notes["replaces"]
        new = NewFiles(files, {}, output_names(files), self._new.path / "new", output, replaces)
        if (verified := work.read_json(VERIFIED)) is None:
            report, changed = self._verified(sources, new, arcs)
            if report.dry_run or report.kept_in is not None:
                return report
            verified = {"report": asdict(report), "changed": changed, "new": os.path.realpath(new.folder)}
            work.write_json(VERIFIED, verified)
        elif self._new is not work and verified["new"] != os.path.realpath(new.folder):
            raise work.other_work(f"-o was {verified['report']['output']}")
        new.move(verified["changed"], sources)
        return Deduped.from_json(verified["report"])

    def _verified(self, sources: SourceFiles, new: NewFiles, arcs: int) -> tuple[Deduped, list[str]]:
        """The report, and the names of the files that change."""
        options, work, output, files = self._options, self._work, self._output, new.files
        if not options.dry_run:
            new.check()
        places = Places(paths={name: str(file) for name, file in files.items()})
        rows, records = self._rows(files)
        counts = work.step("numbered", lambda faults: self._numbered(rows, places, faults), self._faults)
        planned, _ = read_notes(work.path)
        rewriting = Rewriting(work, places, planned, new, options, self._watch, self._faults)
        by_number = {file.id: rows[file.name] for file in planned}
        changed: list[str] = []
        if options.dry_run:
            done = rewriting.tried(by_number)
        else:
            trusts_rows = options.compare == "digest"
            done, changed = rewriting.verified(sources, by_number, trusts_rows=trusts_rows)
        paths = [] if options.dry_run else [new.final(name) if output else files[name] for name in files]
        verified: dict[str, Any] = {}
        if (seen := done.verification) is not None:
            verified = {
                "verified": seen.records,
                "resolved": seen.resolved,
                "by_digest": seen.by_digest,
                "dangling": seen.dangling_before,
                "replayed": seen.replayed,
                "findings_count": seen.findings_count,
                "findings": tuple(map(str, seen.findings)),
            }
        report = Deduped(
            output=str(output or (work.path.parent if work.path.name == STATE_FOLDER else work.path)),
            in_place=options.in_place,
            dry_run=options.dry_run,
            files=len(files),
            arcs=arcs,
            records=records,
            clusters=counts["digests"],
            collisions=counts["collisions"],
            converted=done.converted,
            repointed=done.repointed,
            left=dict(done.left),
            # Files converted from ARC had another size before.
            old_bytes=sum(fact.size_bytes or 0 for fact in sources.job.files.values()),
            new_bytes=done.new_bytes,
            savings=done.savings if options.dry_run else None,
            kept_in=done.kept_in,
            fault_count=done.faults_count,
            faults=done.faults,
            paths=tuple(map(str, paths)),
            state=None if options.dry_run else str(work.path),
            **verified,
        )
        return report, changed

    def _converted(self) -> tuple[list[Input], int]:
        """The inputs, with ARC files replaced by converted WARC files if requested, and the number of these."""
        inputs, names = list(self._inputs), self._converted_names
        with part(self._watch, "converting", 0) if names else nullcontext():
            for number, name in names.items():
                inputs[number] = self._converted_one(number, name) or inputs[number]
        return inputs, sum(given is not before for given, before in zip(inputs, self._inputs, strict=True))

    def _converted_one(self, number: int, name: str) -> Input | None:
        file = self._inputs[number].file
        path = self._work.path / "arcs" / str(number) / PurePosixPath(name).name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)

        def convert(faults: Faults) -> bool:
            options = ConversionOptions(algorithm="sha256")
            return convert_arc(file, path, options=options, faults=faults, watch=self._watch) is not None

        return Input(name, path) if self._work.step(f"arcs/{number}", convert, self._faults) else None

    def _rows(self, files: Mapping[str, ReadableFile]) -> tuple[dict[str, Path], int]:
        """The rows of all files, by name, and the number of records with a line."""
        work, options, algorithms = self._work, self._options, (self._options.algorithm, SECOND)
        tasks = [
            rows_task(work, options, number, name, file, algorithms, is_summed=True)
            for number, (name, file) in enumerate(files.items(), 1)
        ]
        sums = work.run(make_rows, tasks, options.jobs, self._watch, "summing", self._faults)
        return {task.name: task.target for task in tasks}, sum(found["lines"] for found in sums)

    def _numbered(self, rows: Mapping[str, Path], places: Places, faults: Faults) -> dict[str, Any]:
        """Make the lines and the manifest; return the counts of the comparison."""
        work, options = self._work, self._options
        manifest = work.path / MANIFEST
        if options.compare == "bytes":
            sums = work.path / "sums.txt"
            if not sums.exists():
                list_rows(rows, options.algorithm, sums)
            counts = number_clusters(
                sums, manifest, places, work, faults=faults, watch=self._watch, jobs=options.jobs
            )
            write_lines(work.path, read_lines(manifest), (), list(rows), faults)
        else:
            with part(self._watch, "comparing", 0):
                counts = number_rows(work.path, rows, options.algorithm)
                list_lines(work.path, manifest)
        return asdict(counts)


def _converted_names(inputs: Sequence[Input]) -> dict[int, str]:
    """The names of the WARC files made from ARC files, by the numbers of the inputs.

    Raises UsageError if another file has one of these names.
    """
    names: dict[int, str] = {}
    for number, given in enumerate(inputs):
        if _is_arc(given):
            name = _ARC_SUFFIX.sub(".warc", given.name)
            names[number] = name if name != given.name else f"{name}.warc"
    named = [Input(names.get(number, given.name), given.file) for number, given in enumerate(inputs)]
    refuse_equal_names(named, "after --convert-arc", "Rename one, or process them in two runs.")
    return names


def _is_arc(given: Input) -> bool:
    with reading(given.file):
        first = next(read_records(given.file, on_damage=lambda damage: None), None)
    return first is not None and first.format == "arc"
