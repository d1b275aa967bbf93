"""Find near copies across archives, step by step. Each step writes files whose existence proves that it is complete.

Until the result is complete, the files are in ``OUTPUT.parts/``. A run that is started again after a kill continues after
the last complete step:

``FILE.pages.parquet``, ``FILE.captures.parquet``, ``FILE.json``
    The rows of one input file (`pages`); FILE is the SHA-256 of its name. The JSON file, which is written last, has the
    ``counts``; ``key``, everything that the rows depend on: the name, place, size, times and inode of the file, the options,
    and the version of this package; and ``id``, a random number. A file with another key is read again.
``KEY/``
    The later steps; KEY is a hash of the ids of all files. ``originals``, ``documents``, ``texts`` (`joins`),
    ``signatures-SHARE-ROUND`` (`signing`) and ``decisions-ROUND`` (`deciding`), all Parquet.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.offline.engine import require_engine
from scrapy_dedupe.offline.inputs import refuse_own_file
from scrapy_dedupe.offline.summing import change_of
from scrapy_dedupe.tasks.faults import KEPT, Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs, runs_here, thread_count
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import StateFolder, replay_faults, write_whole, writing

from .joins import (
    FORMATS,
    FileRows,
    count_groups,
    decide,
    find_originals,
    join_documents,
    join_texts,
    shares_of,
    write_groups,
)
from .pages import REPORTED_REASONS, FileCounts, PageOptions, read_file, storable
from .signing import EarlierRound, shares_to_sign_again, sign_texts
from .tables import PURPOSE, joining

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.offline.inputs import Input
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress

# The memory of the joins; what needs more goes to temporary files.
_MEMORY_LIMIT: Final = "1GB"


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
    _check_names(inputs)
    refuse_own_file(inputs, output)
    _check_output(output, options)
    require_engine(PURPOSE, _parts_folder(output))
    with StateFolder(_parts_folder(output)) as state:
        parts = [_part(state.path, given, options) for given in inputs]
        counts = _read_all(parts, options, watch)
        total = Counter[str]()
        for its in counts:
            total.update(its.skipped)
            replay_faults(faults, its.fault_count, its.faults)
        joined = _Joined(state.path, parts, options, watch)
        found = joined.run(output)
        in_rows = sum(its.documents for its in counts)
        documents = sum(found[kind] for kind in ("unique", "unchanged", "exact", "near"))
        if in_rows > documents:
            total["revisit"] = in_rows - documents
        done = NearCopies(
            output=str(output),
            files=len(parts),
            size_bytes=sum(it.key["size"] for it in parts),
            documents=documents,
            revisits=sum(its.revisits for its in counts) - total["revisit"],
            skipped=dict(sorted(total.items())),
            named=tuple(fault for its in counts for fault in its.named)[:KEPT],
            fault_count=faults.count,
            faults=tuple(faults.first),
            **found,
        )
        state.remove()
    return done


@dataclass(frozen=True, slots=True)
class _FileTask:
    """An input file and the files with its rows. ``path`` is theirs without suffix."""

    given: Input
    path: Path
    key: dict[str, Any]
    options: PageOptions
    keep_going: bool

    @property
    def rows(self) -> FileRows:
        name, file = storable(self.given.name), self.given.file
        return FileRows(name, file, Path(f"{self.path}.pages.parquet"), Path(f"{self.path}.captures.parquet"))

    @property
    def proof(self) -> Path:
        return Path(f"{self.path}.json")


def _part(folder: Path, given: Input, options: NearJobOptions) -> _FileTask:
    file, pages = given.file, options.pages
    name = hashlib.sha256(given.name.encode("utf-8", "surrogateescape")).hexdigest()
    key = {
        "name": given.name,
        "place": str(file.absolute() if isinstance(file, Path) else file),
        "size": given.size_bytes,
        "changed": change_of(file),
        "judge": asdict(pages.judge),
        "max_bytes": pages.max_bytes,
        "mimes": sorted(pages.mimes),
        "keep_going": options.keep_going,
        "version": __version__,
    }
    return _FileTask(given, folder / name, key, pages, options.keep_going)


def _read_all(parts: Sequence[_FileTask], options: NearJobOptions, watch: Progress) -> list[FileCounts]:
    """Read the files that were not read yet. Return the counts of all, in the order of *parts*."""
    counts: dict[Path, FileCounts] = {}
    with part(watch, "reading", sum(it.key["size"] for it in parts)):
        left = []
        for it in parts:
            if (known := _known(it)) is None:
                left.append(it)
            else:
                counts[it.path] = known
                watch.advance(it.key["size"])
        in_process = runs_here(options.jobs, len(left))
        if not in_process:
            # Largest first, so that no single process runs long after the others.
            left.sort(key=lambda it: -it.key["size"])
        reached = 0

        def advance(size_bytes: int) -> None:
            nonlocal reached
            reached += size_bytes
            watch.advance(size_bytes)

        function = partial(_read_part, advance=advance) if in_process else _read_part
        for it, found in run_jobs(function, left, options.jobs):
            counts[it.path] = found
            watch.advance(max(0, it.key["size"] - reached))
            reached = 0
    return [counts[it.path] for it in parts]


def _known(it: _FileTask) -> FileCounts | None:
    """The result of an earlier run for this file, if the file and the options are the same."""
    if it.key["changed"] is None:
        return None
    try:
        value = json.loads(it.proof.read_bytes())
        if value["key"] == it.key and it.rows.pages.is_file() and it.rows.captures.is_file():
            return FileCounts.from_json(value["counts"])
    except (OSError, ValueError, KeyError, TypeError):
        # An unusable result is made again.
        return None
    return None


def _read_part(it: _FileTask, advance: Callable[[int], None] = lambda size_bytes: None) -> FileCounts:
    it.proof.unlink(missing_ok=True)
    rows = it.rows
    counts = read_file(
        it.given.name,
        rows.file,
        rows.pages,
        rows.captures,
        it.options,
        keep_going=it.keep_going,
        advance=advance,
    )
    if change_of(rows.file) != it.key["changed"]:
        raise ArchiveError(f"{rows.file} has changed while it was read. Run the command again.")
    proof = {"key": it.key, "counts": asdict(counts), "id": uuid.uuid4().hex}
    write_whole(it.proof, json.dumps(proof, indent=1).encode())
    return counts


class _Joined:
    """The steps after all files were read."""

    def __init__(
        self, folder: Path, parts: Sequence[_FileTask], options: NearJobOptions, watch: Progress
    ) -> None:
        self._files = [it.rows for it in parts]
        self._options = options
        self._watch = watch
        ids = sorted(json.loads(it.proof.read_bytes())["id"] for it in parts)
        self._folder = folder / hashlib.sha256("".join(ids).encode()).hexdigest()[:32]

    def run(self, output: Path) -> dict[str, Any]:
        """Write the result, and return its counts."""
        with writing(self._folder):
            self._folder.mkdir(exist_ok=True)
        originals, documents, texts = map(self._path, ("originals", "documents", "texts"))
        threads = thread_count(self._options.jobs)
        with part(self._watch, "joining", 0), self._engine(threads) as engine:
            for path, step in (
                (originals, lambda: find_originals(engine, self._files, originals)),
                (documents, lambda: join_documents(engine, self._files, originals, documents)),
                (texts, lambda: join_texts(engine, self._files, documents, texts)),
            ):
                if not path.exists():
                    step()
            # The next steps need a file of signatures even if no text is compared.
            shares = shares_of(engine, texts) or [(0, 0)]
        signatures = {share: self._path(f"signatures-{share}-0") for share, _ in shares}
        tasks = [_SigningTask(signatures[share], share, count) for share, count in shares]
        rounds = 0
        while True:
            self._sign(texts, tasks)
            decisions = self._path(f"decisions-{rounds}")
            with part(self._watch, "comparing", 0), self._engine(threads) as engine:
                if not decisions.exists():
                    decide(engine, documents, signatures.values(), decisions)
                changed = shares_to_sign_again(engine, texts, signatures.values(), decisions)
                rounds += 1
                if not changed:
                    write_groups(engine, documents, decisions, output, self._options.format)
                    return {**count_groups(engine, documents, decisions), "rounds": rounds}
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

    def _engine(self, threads: int) -> Any:
        return joining(self._folder, memory_limit=_MEMORY_LIMIT, threads=threads)

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


def _parts_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


def _check_names(inputs: Sequence[Input]) -> None:
    places: dict[str, Input] = {}
    for given in inputs:
        other = places.setdefault(storable(given.name), given)
        if other is not given:
            raise UsageError(
                f"{given.file} and {other.file} both have the name {given.name} in the result. Rename one."
            )


def _check_output(output: Path, options: NearJobOptions) -> None:
    """Raise an error if *output* cannot be written or must not be replaced, before its parts folder is made."""
    if options.format not in FORMATS:
        raise UsageError(f"The format {options.format!r} is unknown. Allowed: {', '.join(FORMATS)}.")
    if not output.parent.is_dir():
        raise ArchiveError(
            f"{output} cannot be written: the folder {output.parent} does not exist. Create it, or choose another."
        )
    if output.is_dir():
        raise ArchiveError(f"{output} is a folder. Name a file.")
    if output.exists() and not options.force:
        state = StateFolder(_parts_folder(output))
        if state.is_left:  # by a run that was killed just before it removed this folder
            with state:
                state.remove()
        raise ArchiveError(f"{output} already exists. Name another output, or replace it with --force.")
