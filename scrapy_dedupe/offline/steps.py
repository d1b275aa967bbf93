"""All steps of the deduplication in one run: digests, comparison, originals, revisits, and verification.

The state folder is ``.dedupe`` in the output folder; in place, in the common parent folder of all inputs. It holds
``job.json`` (the options and files); ``arcs/`` (WARC files converted from ARC files); ``rows/N.parquet`` (the rows of file N,
see `rows`); with ``--compare bytes``, ``sums.txt`` (a manifest of digests) and the files of `collisions`;
``manifest.txt`` (the manifest of ten columns) and ``numbered.json`` (its counts); the files of `rewriting`; and ``rewritten.json`` (its report, when all files have their final names). Each file gets its name only when
it is complete, so the same command continues after a kill. At the end only ``manifest.txt`` and ``report.json`` are kept.
If files are replaced in place again later, the files of the earlier run are moved to ``earlier/1/``, ``earlier/2/`` and
so on.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, replay_faults, writing
from scrapy_dedupe.warc.reading import read_records

from .arc_conversion import ConversionOptions, convert_arc
from .collisions import number_clusters
from .engine import require_engine
from .inputs import STATE_FOLDER, Input
from .layout import output_names
from .manifest import read_lines
from .places import Places
from .rewriting import RewriteOptions, rewrite, rewriting_folder
from .rewritten import report_of
from .row_numbering import list_rows, number_rows
from .row_scan import RowsTask, make_all_rows
from .rows import PURPOSE, SECOND, read_sums
from .step_reports import Deduped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scrapy_dedupe.tasks.progress import Progress

    from .digests import FileSums
    from .rewriting import Rewritten
    from .step_reports import StepOptions

JOB, NUMBERED, MANIFEST = "job.json", "numbered.json", "manifest.txt"
REWRITING, REWRITTEN, REPORT, EARLIER = "rewriting.json", "rewritten.json", "report.json", "earlier"

_ARC_SUFFIX = re.compile(r"\.arc(?=(\.gz)?\Z)", re.IGNORECASE)


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
        if given.is_member or not isinstance(given.file, Path):
            where = "in a container" if given.is_member else "remote"
            raise UsageError(
                f"{given.name} is {where} and cannot be rewritten. Download or extract it first."
            )
    with _work_folder(inputs, output, options) as work:
        require_engine(PURPOSE, work)
        if output is not None and not options.dry_run:
            _refuse_output(output, work, options)
        with StateFolder(work) as state:
            target = output if output is not None else _rewriting_folder(work)
            return _Steps(inputs, target, options, state, faults, watch).run()


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


def _rewriting_folder(work: Path) -> Path:
    """The parent of the folder ``.dedupe`` in which `rewriting` works, if files are replaced in place."""
    return work.parent if work.name == STATE_FOLDER else work


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
    """One run, with the state folder locked. *output* is passed to `rewriting`."""

    def __init__(
        self,
        inputs: Sequence[Input],
        output: Path,
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
        self._replaces = options.force

    def run(self) -> Deduped:
        state = self._state
        self._begin()
        if (stored := state.read_json(REPORT)) is not None:
            report = Deduped.from_json(stored)
        else:
            report = self._report()
            if report.dry_run or report.kept_in is not None:
                return report
            state.write_json(REPORT, asdict(report))
        state.clear(keep=frozenset({MANIFEST, REPORT, EARLIER}), last=(REWRITTEN, REWRITING, LOCK, JOB))
        return report

    def _begin(self) -> None:
        """Start a new run, or check that the earlier one has the same inputs and options."""
        state, options = self._state, self._options
        job = {
            "version": __version__,
            "replaces": options.force,
            "options": options.to_json(),
            "inputs": [_input_json(given) for given in self._inputs],
        }
        earlier = state.read_json(JOB)
        if earlier is None or options.force:
            if options.in_place:
                self._keep_earlier()
            state.clear(keep=frozenset({LOCK, EARLIER} if options.in_place else {LOCK}), last=(JOB,))
            state.write_json(JOB, job)
            return
        self._replaces = earlier["replaces"]
        with_sizes = not (options.in_place and self._is_replacing())
        if difference := _difference(earlier, job, with_sizes=with_sizes):
            raise ArchiveError(
                f"{state.path} holds other unfinished work: {difference}. Repeat that command to finish it, or start again"
                " with --force."
            )

    def _is_replacing(self) -> bool:
        """Whether this run may have replaced files: `rewriting` knows which; if a report exists, it has replaced all."""
        if any((self._state.path / name).exists() for name in (REWRITTEN, REPORT)):
            return True
        # If the state of `rewriting` is gone, only the file sizes show it.
        return (self._state.path / REWRITING).exists() and StateFolder(rewriting_folder(self._output)).is_left

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

    def _report(self) -> Deduped:
        options, state = self._options, self._state
        inputs, arcs = self._converted()
        places = Places(paths={given.name: str(given.file) for given in inputs})
        rows, sums = self._rows(inputs)
        counts = self._numbered(rows, places)
        names = [given.name for given in inputs]
        report = Deduped(
            output=str(self._output),
            in_place=options.in_place,
            dry_run=options.dry_run,
            files=len(inputs),
            arcs=arcs,
            records=sum(found.lines for found in sums),
            clusters=counts["digests"],
            collisions=counts["collisions"],
            converted=0,
            repointed=0,
            left={},
            old_bytes=sum(given["size"] for given in state.read_json(JOB)["inputs"]),
            new_bytes=sum(given.size_bytes for given in inputs),
            fault_count=self._faults.count,
            faults=tuple(self._faults.first),
            paths=self._paths(inputs),
            state=None if options.dry_run else str(state.path),
        )
        if (stored := state.read_json(REWRITTEN)) is not None:
            self._remove_rewriting_state()
            return self._with_rewritten(report, report_of(stored))
        if state.read_json(REWRITING) is None:
            # From here on `rewriting` checks this.
            self._check_unchanged()
        if not options.dry_run:
            state.write_json(REWRITING, {})
        rewritten = rewrite(
            read_lines(state.path / MANIFEST),
            names,
            places,
            self._output,
            RewriteOptions(
                eligibility=options.eligibility,
                dry_run=options.dry_run,
                in_place=options.in_place,
                keep_going=self._faults.keep_going,
                jobs=options.jobs,
                sample=options.sample,
                force=self._replaces,
                trusts_rows=options.compare == "digest",
            ),
            self._watch,
            rows=rows,
            # From here on the files differ from the manifest.
            before_end=lambda done: state.write_json(REWRITTEN, asdict(done)),
        )
        return self._with_rewritten(report, rewritten)

    def _remove_rewriting_state(self) -> None:
        """Remove the state of `rewriting`, which a kill may have interrupted while removing it."""
        left = StateFolder(rewriting_folder(self._output))
        if left.is_left:
            with left:
                left.remove()

    def _with_rewritten(self, report: Deduped, rewritten: Rewritten) -> Deduped:
        known = {fault.place for fault in report.faults}
        # Damage that was found while computing digests is found again, with another reason.
        new = [fault for fault in rewritten.faults if fault.place not in known]
        self._faults.take(rewritten.faults_count - (len(rewritten.faults) - len(new)), tuple(new))
        report = replace(
            report,
            converted=rewritten.converted,
            repointed=rewritten.repointed,
            left=dict(rewritten.left),
            # Files converted from ARC had another size before.
            old_bytes=report.old_bytes if self._options.convert_arc else rewritten.old_bytes,
            new_bytes=rewritten.new_bytes,
            savings=rewritten.savings if rewritten.is_dry_run else None,
            kept_in=rewritten.kept_in,
            fault_count=self._faults.count,
            faults=tuple(self._faults.first),
        )
        if (seen := rewritten.verification) is None:
            return report
        return replace(
            report,
            verified=seen.records,
            resolved=seen.resolved,
            by_digest=seen.by_digest,
            dangling=seen.dangling_before,
            replayed=seen.replayed,
            findings_count=seen.findings_count,
            findings=tuple(str(finding) for finding in seen.findings),
        )

    def _paths(self, inputs: Sequence[Input]) -> tuple[str, ...]:
        """The resulting files."""
        if self._options.dry_run:
            return ()
        if self._options.in_place:
            return tuple(str(given.file) for given in inputs)
        names = output_names(given.name for given in inputs)
        return tuple(str(self._output / name) for name in names.values())

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
        """Make the rows of all files that have none yet; return them by name, with their counts."""
        state, options = self._state, self._options
        folder = state.path / "rows"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        rows = {given.name: folder / f"{number}.parquet" for number, given in enumerate(inputs)}
        tasks = [
            RowsTask(
                given.file,
                given.name,
                rows[given.name],
                options.eligibility,
                (options.algorithm, SECOND),
                True,
                self._faults.keep_going,
                options.dry_run,
            )
            for given in inputs
            if not rows[given.name].exists()
        ]
        make_all_rows(tasks, options.jobs, self._watch, "summing")
        sums = read_sums(list(rows.values()))
        for found in sums:
            replay_faults(self._faults, found.fault_count, found.faults)
        return rows, sums

    def _numbered(self, rows: Mapping[str, Path], places: Places) -> dict[str, Any]:
        """Compare and number the records, if this has not been done; return the stored counts."""
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
            else:
                self._watch.begin("comparing", 0)
                counts = number_rows(rows, options.algorithm, manifest)
                self._watch.end()
            faults = [asdict(fault) for fault in own.first]
            result = asdict(counts) | {"fault_count": own.count, "faults": faults}
            state.write_json(NUMBERED, result)
        replay_faults(self._faults, result["fault_count"], [Fault(**fault) for fault in result["faults"]])
        return result

    def _check_unchanged(self) -> None:
        """Raise ArchiveError if a file has changed since its rows were made."""
        for given in self._state.read_json(JOB)["inputs"]:
            path = Path(given["path"])
            with reading(path):
                stat = path.stat()
            recorded = [given[key] for key in ("size", "changed", "inode")]
            if [stat.st_size, stat.st_mtime_ns, stat.st_ino] != recorded:
                raise ArchiveError(
                    f"{given['name']} has changed since this work began. Start again with --force."
                )


def _input_json(given: Input) -> dict[str, Any]:
    path = Path(str(given.file)).absolute()
    with reading(path):
        stat = path.stat()
    return {
        "name": given.name,
        "path": str(path),
        "size": stat.st_size,
        "changed": stat.st_mtime_ns,
        "inode": stat.st_ino,
    }


def _difference(earlier: dict[str, Any], job: dict[str, Any], *, with_sizes: bool) -> str | None:
    """The first difference between an earlier run and this one, for a message; None if they are the same."""
    if earlier["version"] != job["version"]:
        return f"it was started by version {earlier['version']}, but this is {job['version']}"
    for name, value in job["options"].items():
        if earlier["options"].get(name) != value:
            return f"{name} was {earlier['options'].get(name)}"
    before = {given["name"]: given for given in earlier["inputs"]}
    now = {given["name"]: given for given in job["inputs"]}
    for name in [*before, *now]:
        if name not in now or name not in before:
            return f"{name} was {'one of its files' if name in before else 'none of its files'}"
        for key in ("path", "size", "changed") if with_sizes else ("path",):
            if before[name][key] != now[name][key]:
                return f"{name} {'was another file' if key == 'path' else 'has changed since'}"
    return None if list(before) == list(now) else "its files had another order"


def _is_arc(given: Input) -> bool:
    with reading(given.file):
        first = next(read_records(given.file, on_damage=lambda damage: None), None)
    return first is not None and first.format == "arc"
