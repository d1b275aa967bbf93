"""All steps of the deduplication in one run: digests, comparison, originals, revisits, and verification.

The state folder is ``.dedupe`` in the output folder; in place, in the common parent folder of all inputs. The job in it is
that of `rewriting`, with other steps before the plan: ``arcs/`` (WARC files converted from ARC files); ``rows/N.parquet``, the
rows of file N; ``numbered.json``, the counts, after ``lines.parquet`` was made from the rows, and ``manifest.txt`` (the
manifest of ten columns) from the lines. With ``--compare bytes``, ``sums.txt`` (a manifest of digests) is made from the rows
and compared with the files of `collisions`, and the lines are made from the manifest. Each file gets its name only when it is
complete, so the same command continues after a kill. At the end only ``manifest.txt`` and ``report.json`` are kept. If files
are replaced in place again later, the files of the earlier run are moved to ``earlier/1/``, ``earlier/2/`` and so on.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, replay_faults, writing
from scrapy_dedupe.warc.reading import read_records

from .arc_conversion import ConversionOptions, convert_arc
from .collisions import number_clusters
from .engine import require_engine
from .final_names import NewFiles
from .inputs import STATE_FOLDER, Input
from .layout import output_names
from .manifest import read_lines
from .places import Places
from .plan_lines import list_lines, number_rows, read_notes, write_lines
from .rewriting import JOB, VERIFIED, VERSION, RewriteOptions, Rewriting, begin, made_rows
from .row_numbering import list_rows
from .row_scan import RowsTask
from .rows import PURPOSE, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scrapy_dedupe.tasks.progress import Progress

    from .digests import FileSums
    from .eligibility import Savings
    from .final_names import SourceFiles

NUMBERED, MANIFEST, REPORT, EARLIER = "numbered.json", "manifest.txt", "report.json", "earlier"

_ARC_SUFFIX: Final = re.compile(r"\.arc(?=(\.gz)?\Z)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StepOptions(RewriteOptions):
    """Options of `run_steps`; ``work`` overrides the state folder.

    ``compare`` decides when payloads are the same. ``digest``: the digest, BLAKE2b-256 and the size are equal. ``bytes``:
    the digest is equal, and then all bytes are. With ``digest``, the verification compares the new files with facts from the
    first reading of the old ones (`row_facts`); with ``bytes``, it reads the old files again.
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
    Raises ArchiveError if the output or the state of another run exists, DamagedInput for the first fault unless *faults*
    is set to keep going, UsageError for inputs that cannot be rewritten, SettingError if DuckDB is not installed.
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
    with _work_folder(inputs, output, options) as work:
        require_engine(PURPOSE, work)
        if output is not None and not options.dry_run:
            _refuse_output(output, work, options)
        with StateFolder(work) as state:
            return _Steps(inputs, output, options, state, faults, watch).run()


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


def _common_folder(inputs: Sequence[Input]) -> Path:
    """The common parent folder of all inputs."""
    return Path(os.path.commonpath([Path(str(given.file)).absolute().parent for given in inputs]))


def _refuse_output(output: Path, work: Path, options: StepOptions) -> None:
    """Raise ArchiveError if the folder is not empty, unless it only has the state of a killed run."""
    if options.force or (work / JOB).exists() or not output.exists():
        return
    with writing(output):
        others = sorted(path.name for path in output.iterdir() if path.name != STATE_FOLDER)
    if others or (work / REPORT).exists():
        raise ArchiveError(
            f"{output} is not empty: it has {others[0] if others else STATE_FOLDER}. Choose another folder, or start again"
            " with --force, which replaces files of the same names."
        )


class _Steps:
    """One run, with the state folder locked."""

    def __init__(
        self,
        inputs: Sequence[Input],
        output: Path | None,
        options: StepOptions,
        state: StateFolder,
        faults: Faults,
        watch: Progress,
    ) -> None:
        self._inputs = inputs
        self._output = output
        self._options = options
        self._state = state
        self._faults = faults
        self._watch = watch

    def run(self) -> Deduped:
        state, options = self._state, self._options
        if options.force or not (state.path / JOB).exists():
            if options.in_place:
                self._keep_earlier()
            state.clear(keep=frozenset({LOCK, EARLIER} if options.in_place else {LOCK}), last=(JOB,))
        sources = begin(
            state,
            f"{__version__}, format {VERSION}",
            options.to_json(),
            {given.name: given.file for given in self._inputs},
            replaces=options.force,
            fresh="start again with --force",
            remedy="Start again with --force.",
            may_be_replaced=(VERIFIED, REPORT),
        )
        if (stored := state.read_json(REPORT)) is not None:
            report = Deduped.from_json(stored)
        else:
            report = self._report(sources)
            if report.dry_run or report.kept_in is not None:
                return report
            state.write_json(REPORT, asdict(report))
        state.clear(keep=frozenset({MANIFEST, REPORT, EARLIER}), last=(VERIFIED, LOCK, JOB))
        if self._new_folder().exists():  # of an output outside of the state folder
            with writing(self._new_folder()):
                shutil.rmtree(self._new_folder())
            with suppress(OSError):
                self._new_folder().parent.rmdir()
        return report

    def _keep_earlier(self) -> None:
        """Move the files of a finished run aside: the files that its manifest lists will be replaced again."""
        path, number = self._state.path, 1
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

    def _new_folder(self) -> Path:
        """The folder for the new files until they get their final names, in the file system of the output."""
        return (self._state.path if self._output is None else self._output / STATE_FOLDER) / "new"

    def _report(self, sources: SourceFiles) -> Deduped:
        options, state, output = self._options, self._state, self._output
        inputs, arcs = self._converted()
        files = {given.name: given.file for given in inputs}
        new = NewFiles(files, {}, output_names(files), self._new_folder(), output, sources.replaces)
        if not (options.dry_run or (state.path / VERIFIED).exists()):
            new.check()
        places = Places(paths={name: str(file) for name, file in files.items()})
        rows, sums = self._rows(inputs)
        counts = self._numbered(rows, places)
        planned, _ = read_notes(state.path)
        rewriting = Rewriting(state, places, planned, new, options, self._watch, self._faults)
        by_number = {file.id: rows[file.name] for file in planned}
        if options.dry_run:
            done = rewriting.tried(by_number)
        else:
            done = rewriting.finished(sources, by_number, trusts_rows=options.compare == "digest")
        paths = (
            ()
            if options.dry_run
            else tuple(str(new.final(name) if output else files[name]) for name in files)
        )
        seen = done.verification
        return Deduped(
            output=str(output or (state.path.parent if state.path.name == STATE_FOLDER else state.path)),
            in_place=options.in_place,
            dry_run=options.dry_run,
            files=len(inputs),
            arcs=arcs,
            records=sum(found.lines for found in sums),
            clusters=counts["digests"],
            collisions=counts["collisions"],
            converted=done.converted,
            repointed=done.repointed,
            left=dict(done.left),
            # Files converted from ARC had another size before.
            old_bytes=sources.size_bytes,
            new_bytes=done.new_bytes,
            savings=done.savings if options.dry_run else None,
            kept_in=done.kept_in,
            fault_count=done.faults_count,
            faults=done.faults,
            paths=paths,
            state=None if options.dry_run else str(state.path),
            **{}
            if seen is None
            else {
                "verified": seen.records,
                "resolved": seen.resolved,
                "by_digest": seen.by_digest,
                "dangling": seen.dangling_before,
                "replayed": seen.replayed,
                "findings_count": seen.findings_count,
                "findings": tuple(map(str, seen.findings)),
            },
        )

    def _converted(self) -> tuple[list[Input], int]:
        """The inputs, with ARC files replaced by converted WARC files if requested, and the number of these."""
        if not self._options.convert_arc:
            return list(self._inputs), 0
        inputs, count = [], 0
        self._watch.begin("converting", 0)
        for number, given in enumerate(self._inputs):
            converted = self._converted_one(number, given) if _is_arc(given) else None
            inputs.append(converted or given)
            count += converted is not None
        self._watch.end()
        return inputs, count

    def _converted_one(self, number: int, given: Input) -> Input | None:
        state, result_name = self._state, f"arcs/{number}.json"
        name = _ARC_SUFFIX.sub(".warc", given.name)
        name = name if name != given.name else f"{name}.warc"
        path = state.path / "arcs" / str(number) / PurePosixPath(name).name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        result = state.read_json(result_name)
        if result is None:
            own = Faults(keep_going=self._faults.keep_going)
            options = ConversionOptions(algorithm="sha256")
            found = convert_arc(given.file, path, options=options, faults=own, watch=self._watch)
            result = {
                "is_converted": found is not None,
                "fault_count": own.count,
                "faults": [asdict(fault) for fault in own.first],
            }
            state.write_json(result_name, result)
        replay_faults(self._faults, result["fault_count"], [Fault(**fault) for fault in result["faults"]])
        return Input(name, path) if result["is_converted"] else None

    def _rows(self, inputs: Sequence[Input]) -> tuple[dict[str, Path], list[FileSums]]:
        """The rows of all files, by name, with their counts."""
        options = self._options
        tasks = [
            RowsTask(
                given.file,
                given.name,
                self._state.path / "rows" / f"{number}.parquet",
                options.eligibility,
                (options.algorithm, SECOND),
                True,
                self._faults.keep_going,
                options.dry_run,
            )
            for number, given in enumerate(inputs, 1)
        ]
        sums = made_rows(tasks, options.jobs, self._watch, "summing", self._faults)
        return {task.name: task.target for task in tasks}, sums

    def _numbered(self, rows: Mapping[str, Path], places: Places) -> dict[str, Any]:
        """Make the lines and the manifest, if this has not been done; return the stored counts."""
        state, options = self._state, self._options
        result: dict[str, Any] | None = state.read_json(NUMBERED)
        if result is None:
            own = Faults(keep_going=self._faults.keep_going)
            manifest = state.path / MANIFEST
            if options.compare == "bytes":
                if not (state.path / "sums.txt").exists():
                    list_rows(rows, options.algorithm, state.path / "sums.txt")
                counts = number_clusters(
                    state.path / "sums.txt",
                    manifest,
                    places,
                    state,
                    faults=own,
                    watch=self._watch,
                    jobs=options.jobs,
                )
                write_lines(state.path, read_lines(manifest), (), list(rows), own)
            else:
                self._watch.begin("comparing", 0)
                counts = number_rows(state.path, rows, options.algorithm)
                list_lines(state.path, manifest)
                self._watch.end()
            faults = [asdict(fault) for fault in own.first]
            result = asdict(counts) | {"fault_count": own.count, "faults": faults}
            state.write_json(NUMBERED, result)
        replay_faults(self._faults, result["fault_count"], [Fault(**fault) for fault in result["faults"]])
        return result


def _is_arc(given: Input) -> bool:
    with reading(given.file):
        first = next(read_records(given.file, on_damage=lambda damage: None), None)
    return first is not None and first.format == "arc"
