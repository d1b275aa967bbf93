"""Convert many ARC files to WARC: choose inputs and output names, and add up the results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.work import run_tasks, size_of

from .arc_conversion import Conversion, ConversionOptions, convert_arc, is_gzip, warc_name
from .file_rewriting import remove_parts
from .inputs import find_inputs, output_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path, PurePosixPath

    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.sources import ReadableFile

    from .inputs import Input

_ARC_NAME: Final = re.compile(r".+\.arc(\.gz)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Converted:
    """The result for all files; earlier runs had converted ``files_found`` of the ``files``."""

    output: str
    files: int
    files_found: int
    responses: int
    resources: int
    metadata: int
    bytes_before: int
    bytes_after: int
    fault_count: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    source: ReadableFile
    output: Path
    options: ConversionOptions


def convert_files(
    words: Sequence[str],
    folder: Path,
    *,
    options: ConversionOptions,
    recursive: bool,
    jobs: int,
    keep_going: bool,
    watch: Progress,
) -> Converted:
    """Convert the ARC files that *words* name to *folder*. Each file gets its name when it is complete and verified.

    From folders, only files named ``*.arc`` or ``*.arc.gz`` are taken. Raises the errors of `find_inputs` and
    `convert_arc`.
    """
    faults = Faults(keep_going=keep_going)
    inputs = find_inputs(words, faults=faults, recursive=recursive, without=folder)
    chosen = [given for given in inputs if given.name in words or _ARC_NAME.fullmatch(given.name)]
    if not chosen and not faults.count:
        raise UsageError(
            "None of the files is an ARC file (*.arc, *.arc.gz). Name them, or search folders with -r."
        )
    tasks = [
        _Task(given.file, output, options)
        for given, output in zip(chosen, _outputs(chosen, folder, options), strict=True)
    ]
    done: list[Conversion] = []
    with part(watch, "converting", sum(given.size_bytes for given in chosen)):
        results = run_tasks(
            _convert, tasks, jobs, watch, lambda task: size_of(task.source), keep_going=keep_going
        )
        try:
            for _, outcome in results:
                faults.take(outcome.fault_count, outcome.faults)
                if outcome.value is not None:
                    done.append(outcome.value)
        except BaseException:
            results.close()  # stops the processes that write parts
            remove_parts(task.output for task in tasks)
            raise
    return Converted(
        output=str(folder),
        files=len(done),
        files_found=sum(one.was_there for one in done),
        responses=sum(one.responses for one in done),
        resources=sum(one.resources for one in done),
        metadata=sum(one.metadata for one in done),
        bytes_before=sum(one.bytes_before for one in done),
        bytes_after=sum(one.bytes_after for one in done),
        fault_count=faults.count,
        faults=tuple(faults.first),
    )


def _outputs(inputs: Sequence[Input], folder: Path, options: ConversionOptions) -> list[Path]:
    names = output_names(given.name for given in inputs)
    taken: dict[PurePosixPath, str] = {}
    for given in inputs:
        if given.is_member:
            raise UsageError(f"{given.name} is inside a container. Extract the file before converting it.")
        gzip = is_gzip(given.file) if options.gzip is None else options.gzip
        below = names[given.name].with_name(warc_name(names[given.name].name, gzip=gzip))
        if below in taken:
            raise ArchiveError(
                f"{taken[below]} and {given.name} would both become {below}. Convert them in two runs."
            )
        taken[below] = given.name
    return [folder / below for below in taken]


def _convert(task: _Task, faults: Faults, advance: Advance) -> Conversion | None:
    return convert_arc(task.source, task.output, options=task.options, faults=faults, watch=NO_PROGRESS)
