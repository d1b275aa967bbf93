"""Find near copies across archives, step by step. Each step writes files whose existence proves that it is complete.

Until the result is complete, the files are in ``OUTPUT.parts/``. A run that is started again after a kill continues after
the last complete step:

``FILE.pages.parquet``, ``FILE.captures.parquet``, ``FILE.json``
    The rows of one input file (`pages`), and the proof that they are complete (`tasks.work`), with its counts; FILE is the
    SHA-256 of its name.
``KEY/``
    The tables of the later steps, as Parquet files or folders of them: ``originals``, ``documents``, ``texts`` (`joins`),
    ``signatures-SHARE-ROUND`` (`signing`), ``decisions-ROUND`` (`deciding`) and ``groups``, the rows of the result. KEY is a
    hash of the ids in the proofs of all files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.stores.duckdb import require_engine
from scrapy_dedupe.tasks.faults import KEPT, Fault, Faults
from scrapy_dedupe.tasks.inputs import Input, refuse_equal_names, refuse_own_file
from scrapy_dedupe.tasks.jobs import job_count, join_workers, run_jobs, thread_count
from scrapy_dedupe.tasks.outputs import check_output, parts_folder
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.tasks.work import proof_id

from .joins import (
    FORMATS,
    MOST_SHARES,
    FileRows,
    count_groups,
    decide,
    find_originals,
    join_documents,
    join_groups,
    join_texts,
    shares_of,
    shares_to_sign_again,
    write_groups,
)
from .pages import REPORTED_REASONS, FileCounts, PageOptions, read_file, storable
from .signing import EarlierRound, sign_texts
from .tables import PURPOSE, Tables, joining

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.sources import ReadableFile


# The memory of DuckDB for the joins; what needs more goes to temporary files.
_MEMORY_LIMIT: Final = "1GB"
_SHARES_PER_JOB: Final = 4


@dataclass(frozen=True, slots=True)
class NearJobOptions:
    """Options of `find_near_copies`. ``format`` is one of `FORMATS`; ``force`` replaces an existing result."""

    pages: PageOptions
    format: str = "parquet"
    force: bool = False
    keep_going: bool = False
    jobs: Jobs = 1


@dataclass(frozen=True, slots=True)
class NearCopies:
    """The result of `find_near_copies`.

    ``unique``, ``unchanged``, ``exact`` and ``near`` are numbers of documents by verdict. ``groups`` is the number of
    components with several documents, ``largest`` the number of documents in the largest one. ``skipped`` counts records that
    are not documents, by the reasons of `pages`; ``named`` are the first records with one of the `REPORTED_REASONS`. ``rounds``
    is how often the texts were compared. ``left_below`` and ``left_open`` are as in `Sums`; the caller sets them.
    """

    output: str
    files: int
    size_bytes: int
    documents: int
    revisits: int
    unique: int
    unchanged: int
    exact: int
    near: int
    groups: int
    largest: int
    rounds: int
    skipped: dict[str, int]
    named: tuple[Fault, ...]
    fault_count: int
    faults: tuple[Fault, ...]
    left_below: int = 0
    left_open: tuple[str, ...] = field(default=())

    @property
    def reported(self) -> int:
        """How many records were left out for a reason that the user must know about."""
        return sum(self.skipped.get(reason, 0) for reason in REPORTED_REASONS)


def find_near_copies(
    inputs: Sequence[Input],
    output: Path,
    options: NearJobOptions,
    *,
    faults: Faults | None = None,
    watch: Progress = NO_PROGRESS,
) -> NearCopies:
    """Write the documents in *inputs*, with their groups, to *output*. *faults* has the faults that were found so far.

    The result does not depend on the order of *inputs*, on the number of jobs, or on interruptions. Raises ArchiveError if
    *output* is an input, exists and must not be replaced, or cannot be written; UsageError for two files of one name;
    SettingError if DuckDB is not installed; DamagedInput for the first fault, unless ``keep_going`` is set.
    """
    faults = faults or Faults(keep_going=options.keep_going)
    if options.format not in FORMATS:
        raise UsageError(f"The format {options.format!r} is unknown. Allowed: {', '.join(FORMATS)}.")
    inputs = [Input(storable(given.name), given.file) for given in inputs]
    refuse_equal_names(inputs, "in the result", "Rename one.")
    refuse_own_file(inputs, output)
    check_output(output, may_exist=options.force, choices="or replace it with --force")
    folder = parts_folder(output, "near")
    require_engine(PURPOSE, folder.path)
    with folder as work:
        tasks = [
            _ReadTask(given.name, given.file, work.task_path(given.name), options.pages) for given in inputs
        ]
        read = work.run(_read_file, tasks, options.jobs, watch, "reading", faults)
        counts = [FileCounts.from_json(value) for value in read]
        total = Counter[str]()
        for its in counts:
            total.update(its.skipped)
        joined = _Joined(work.path, tasks, options, watch)
        found = joined.run(output)
        in_rows = sum(its.documents for its in counts)
        documents = sum(found[kind] for kind in ("unique", "unchanged", "exact", "near"))
        if in_rows > documents:
            total["revisit"] = in_rows - documents
        done = NearCopies(
            output=str(output),
            files=len(tasks),
            size_bytes=sum(given.size_bytes for given in inputs),
            documents=documents,
            revisits=sum(its.revisits for its in counts) - total["revisit"],
            skipped=dict(sorted(total.items())),
            named=tuple(fault for its in counts for fault in its.named)[:KEPT],
            fault_count=faults.count,
            faults=tuple(faults.first),
            **found,
        )
        work.remove()
    return done


@dataclass(frozen=True, slots=True)
class _ReadTask:
    """An input file to read; its rows go to files whose names begin with *path*."""

    name: str
    file: ReadableFile
    path: Path
    options: PageOptions

    @property
    def rows(self) -> FileRows:
        return FileRows(self.name, self.file, *self.outputs)

    @property
    def outputs(self) -> tuple[Path, Path]:
        return Path(f"{self.path}.pages.parquet"), Path(f"{self.path}.captures.parquet")

    @property
    def depends_on(self) -> object:
        options = self.options
        return [asdict(options.judge), options.max_bytes, sorted(options.mimes)]


def _read_file(task: _ReadTask, faults: Faults, advance: Advance) -> object:
    counts = read_file(task.name, task.file, *task.outputs, task.options, faults=faults, advance=advance)
    return asdict(counts)


class _Joined:
    """The steps after all files were read."""

    def __init__(
        self, folder: Path, tasks: Sequence[_ReadTask], options: NearJobOptions, watch: Progress
    ) -> None:
        self._files = [task.rows for task in tasks]
        self._options = options
        self._watch = watch
        ids = sorted(map(proof_id, tasks))
        self._folder = folder / hashlib.sha256("".join(ids).encode()).hexdigest()[:32]

    def run(self, output: Path) -> dict[str, Any]:
        """Write the result, and return its counts."""
        with writing(self._folder):
            self._folder.mkdir(exist_ok=True)
        originals, documents, texts = map(self._path, ("originals", "documents", "texts"))
        most_shares = max(MOST_SHARES, _SHARES_PER_JOB * job_count(self._options.jobs))
        with part(self._watch, "joining", 0), self._tables() as tables:
            for path, step in (
                (originals, lambda: find_originals(tables, self._files, originals)),
                (documents, lambda: join_documents(tables, self._files, originals, documents)),
                (texts, lambda: join_texts(tables, self._files, documents, texts, most_shares)),
            ):
                if not path.exists():
                    step()
            # The next steps need a file of signatures even if no text is compared.
            shares = shares_of(tables, texts) or [(0, 0)]
        signatures = {share: self._path(f"signatures-{share}-0") for share, _ in shares}
        tasks = [_SigningTask(signatures[share], share, count) for share, count in shares]
        rounds = 0
        while True:
            self._sign(texts, tasks)
            decisions = self._path(f"decisions-{rounds}")
            with part(self._watch, "comparing", 0), self._tables() as tables:
                if not decisions.exists():
                    decide(tables, documents, signatures.values(), decisions)
                changed = shares_to_sign_again(tables, texts, signatures.values(), decisions)
                rounds += 1
                if not changed:
                    groups = self._path("groups")
                    if not groups.exists():
                        join_groups(tables, documents, decisions, groups)
                    found = count_groups(tables, groups)
                    write_groups(groups, output, self._options.format)
                    return {**found, "rounds": rounds}
            # Each round makes the decisions on some more of the first texts final, so this ends.
            tasks = [
                _SigningTask(
                    self._path(f"signatures-{share}-{rounds}"),
                    share,
                    count,
                    EarlierRound(signatures[share], decisions),
                )
                for share, count in shares
                if share in changed
            ]
            signatures |= {task.share: task.path for task in tasks}

    def _sign(self, texts: Path, tasks: Sequence[_SigningTask]) -> None:
        with part(self._watch, "signing", sum(task.count for task in tasks), "texts"):
            left = []
            for task in tasks:
                if task.path.exists():
                    self._watch.advance(task.count)
                else:
                    left.append(task)
            function = partial(_sign_share, texts, self._options.pages)
            for task, _ in run_jobs(function, left, self._options.jobs):
                self._watch.advance(task.count)

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        """Tables of workers if there are many rows, else of DuckDB in this process."""
        scratch = self._folder / "scratch"
        with writing(scratch):
            size_bytes = sum(rows.pages.stat().st_size for rows in self._files)
        if (workers := join_workers(self._options.jobs, size_bytes)) is not None:
            with workers.joins(scratch) as tables:
                yield tables
            return
        threads = thread_count(self._options.jobs)
        with joining(self._folder, memory_limit=_MEMORY_LIMIT, threads=threads) as engine:
            yield Tables(engine)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.parquet"


@dataclass(frozen=True, slots=True)
class _SigningTask:
    """A share of *count* texts to sign; its signatures go to *path*."""

    path: Path
    share: int
    count: int
    earlier: EarlierRound | None = None


def _sign_share(texts: Path, options: PageOptions, task: _SigningTask) -> None:
    sign_texts(texts, task.share, task.path, options.judge, task.earlier)
