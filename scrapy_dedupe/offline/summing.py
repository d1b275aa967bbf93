"""Make a manifest of digests from files.

Files are processed independently, in any process. The lines of the manifest are in the order of the files, and of the
offsets within each file. Until the manifest is complete, the result of each file is kept in ``OUTPUT.parts/`` (`tasks.work`):
a run that is started again after a kill only processes the remaining files. The result of a file is its lines, as in a text
manifest with six columns, and its counts (`FileSums`).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DedupeError, UsageError
from scrapy_dedupe.files.whole_file import put_in_free_place, put_in_place
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.inputs import refuse_equal_names, refuse_own_file
from scrapy_dedupe.tasks.outputs import check_output, parts_folder
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import LOCK, writing
from scrapy_dedupe.tasks.work import OutputTask
from scrapy_dedupe.warc.remote import real_place

from .digests import Digester, DigestOptions, FileSums
from .manifest import LineWriter, format_of, read_lines, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance, WorkFolder

COLUMNS = 6


@dataclass(frozen=True, slots=True)
class SumOptions:
    """Options of `sum_files`. ``format`` None: the format of the manifest that is extended, else text.

    ``append`` adds files that an existing manifest does not list; ``force`` replaces an existing manifest.
    """

    digests: DigestOptions = field(default_factory=DigestOptions)
    format: str | None = None
    append: bool = False
    force: bool = False
    keep_going: bool = False
    jobs: Jobs = 1


@dataclass(slots=True, kw_only=True)
class Sums(FileSums):
    """The result of `sum_files`. ``listed`` are the inputs that the manifest already listed; see `FileSums` for the counts.

    ``left_below`` counts files in subfolders of the named folders that were not included, and ``left_open`` are files that a
    crawl has open or did not close; the caller sets both.
    """

    output: str
    files: int
    listed: tuple[str, ...]
    size_bytes: int
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()
    left_below: int = 0
    left_open: tuple[str, ...] = ()


def sum_files(
    inputs: Sequence[Input],
    output: Path,
    options: SumOptions = SumOptions(),
    *,
    faults: Faults | None = None,
    watch: Progress | None = None,
) -> Sums:
    """Write the manifest of *inputs*. *faults* has the faults that were found in them so far.

    Raises ArchiveError if *output* is an input, exists and must not be replaced or extended, or cannot be written;
    UsageError for two files of one name; DamagedInput for the first fault, unless ``keep_going`` is set.
    """
    watch = watch or NoProgress()
    faults = faults or Faults(keep_going=options.keep_going)
    if str(output) == "-":
        raise UsageError(
            "warcsum keeps its state in a folder next to the manifest. Name a file for the manifest."
        )
    refuse_equal_names(inputs, "in the manifest", "Rename one, or make separate manifests.")
    refuse_own_file(inputs, output)
    may_exist = options.append or options.force
    check_output(output, may_exist=may_exist, choices="extend it with --append, or replace it with --force")
    with parts_folder(output, "warcsum") as work:
        # Check after locking: another process may have added files until now.
        is_added_to = options.append and output.exists()
        listed = _listed(output, options, work) if is_added_to else frozenset()
        known = _in_manifest(inputs, listed)
        new = [given for given in inputs if given.name not in known]
        tasks = [
            _SumTask(given.name, given.file, path, path.with_suffix(".txt"), options.digests)
            for given in new
            for path in (work.task_path(given.name),)
        ]
        done = Sums(
            output=str(output),
            files=len(new),
            listed=tuple(known),
            size_bytes=sum(given.size_bytes for given in new),
        )
        for sums in work.run(_sum_file, tasks, options.jobs, watch, "summing", faults):
            done.add(FileSums.from_json(sums))
        done.fault_count, done.faults = faults.count, tuple(faults.first)
        file_format = options.format or (format_of(output) if is_added_to else "text")
        # In the state folder, so that a killed run leaves no other file.
        whole = work.path / "manifest"
        with LineWriter(whole, columns=COLUMNS, format=file_format, force=True) as writer:
            for path in [*([output] if is_added_to else ()), *(task.target for task in tasks)]:
                for line in read_lines(path):
                    writer.write(line)
        with writing(output):
            (put_in_place if may_exist else put_in_free_place)(whole, output)
        work.remove()
    return done


@dataclass(frozen=True, slots=True)
class _SumTask(OutputTask):
    """A file to sum; ``target`` gets its lines."""

    options: DigestOptions

    @property
    def depends_on(self) -> object:
        return asdict(self.options)


def _sum_file(task: _SumTask, faults: Faults, advance: Advance) -> object:
    digester = Digester(task.file, task.name, task.options, faults=faults, advance=advance)
    write_text(task.target, digester.lines(), columns=COLUMNS)
    return asdict(digester.sums)


def _listed(output: Path, options: SumOptions, work: WorkFolder) -> frozenset[str]:
    """The files that a manifest lists. Raises ArchiveError if it cannot be extended."""
    found: set[str] = set()
    label = options.digests.label
    try:
        for line in read_lines(output):
            if line.extension is not None:
                raise ArchiveError(
                    f"{output} has columns of later steps and cannot be extended. Name the manifest that warcsum"
                    " has written."
                )
            if line.digest.partition(":")[0] != label:
                raise ArchiveError(
                    f"{output} has the digest {line.digest}, not {label}. Use the same algorithm, or another output."
                )
            found.add(line.file)
    except DedupeError:
        # Nothing was done, so leave no state folder.
        if all(path.name == LOCK for path in work.path.iterdir()):
            work.remove()
        raise
    return frozenset(found)


def _in_manifest(inputs: Sequence[Input], listed: frozenset[str]) -> dict[str, None]:
    """The names of the inputs that a manifest lists, possibly under another name of the file."""
    if not listed:
        return {}
    # Names in the manifest are relative to the working folder, or to the folder of --base.
    bases = {"", *(_base_of(given) for given in inputs)}
    places = {real_place(os.path.join(base, name)) for base in bases for name in listed}  # noqa: PTH118
    return dict.fromkeys(
        given.name for given in inputs if given.name in listed or real_place(given.file) in places
    )


def _base_of(given: Input) -> str:
    """The folder to which the name of an input is relative."""
    place = os.path.abspath(str(given.file))  # noqa: PTH100 - does not resolve links
    name = os.path.normpath(given.name)
    return place.removesuffix(os.sep + name) + os.sep if place.endswith(os.sep + name) else ""
