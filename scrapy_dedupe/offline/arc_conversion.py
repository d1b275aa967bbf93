"""Convert ARC files to WARC (see `warc.arc_records`), and verify that nothing was lost.

The new file begins with a ``warcinfo`` record, which has the date of the ARC's version block and names the source file. Both
files are read again and compared record by record: type, URI, date, digests of payload and block, in order. The new file
gets its final name only after this comparison.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.inputs import find_inputs, output_names
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached, part
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.tasks.work import run_tasks, size_of
from scrapy_dedupe.warc.arc_records import (
    converted_record,
    converted_warcinfo,
    digest_of_pieces,
    warcinfo_id,
)
from scrapy_dedupe.warc.archive_names import is_archive_name
from scrapy_dedupe.warc.bodies import payload_digest
from scrapy_dedupe.warc.dates import is_date
from scrapy_dedupe.warc.framing import is_compressed, open_block
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import shown

from .file_rewriting import RecordFile, remove_parts
from .output_folder import held_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path, PurePosixPath

    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.arc_records import ConvertedRecord
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of a conversion.

    ``gzip`` None: compress the output if the input is compressed. ``software`` is written to the warcinfo.
    """

    algorithm: str = "sha256"
    gzip: bool | None = None
    force: bool = False
    software: str = "scrapy-dedupe"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result for one file. ``was_there``: an earlier run made the output, and it is correct."""

    responses: int
    resources: int
    metadata: int
    bytes_before: int
    bytes_after: int
    was_there: bool = False


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


def convert_arc(
    source: ReadableFile, output: Path, *, options: ConversionOptions, faults: Faults, watch: Progress
) -> Conversion | None:
    """Write the WARC file *output* from an ARC file; return None if *source* has no ARC record.

    A record that is damaged or has no date is a fault. If *output* exists, it is compared with the ARC file and
    accepted if it is correct. Raises ArchiveError if *output* differs and must not be replaced; DamagedInput for the
    first fault, unless *faults* is set to keep going, and if the files differ after the conversion.
    """
    if output.exists() and not options.force:
        return _found(source, output, faults)
    began = faults.count
    date = _first_date(source, faults)
    if date is None:
        if faults.count == began:
            faults.add(shown(str(source)), "it has no ARC record with a date")
        return None
    counts = Counter[str]()
    with RecordFile(output, gzip=_is_gzip(source, options)) as target:
        head, block = converted_warcinfo(
            source.name, output.name, date, software=options.software, algorithm=options.algorithm
        )
        target.write(head.to_bytes(len(block)), (block,), len(block))
        reached = Reached(watch)
        for new in _converted_records(source, date, faults):
            length = new.block_length
            head = new.head(source.name, options.algorithm)
            target.write(head.to_bytes(length), new.block(), length)
            counts[new.type] += 1
            reached(new.record.offset)
        known = Faults(keep_going=True)  # they were added to *faults* when the records were converted
        target.finish(check=lambda path: _compared(source, path, date, known))
    return _conversion(counts, source, output)


def warc_name(name: str, *, gzip: bool) -> str:
    """The name of the WARC file for an ARC file.

    >>> warc_name("IA-000001.arc.gz", gzip=True), warc_name("old.ARC", gzip=False)
    ('IA-000001.warc.gz', 'old.warc')
    """
    stem = re.sub(r"(\.arc)?(\.gz)?\Z", "", name, flags=re.IGNORECASE)
    return f"{stem}.warc{'.gz' if gzip else ''}"


def _is_gzip(source: ReadableFile, options: ConversionOptions) -> bool:
    if options.gzip is not None:
        return options.gzip
    with reading(source):
        return is_compressed(source)


def _found(source: ReadableFile, output: Path, faults: Faults) -> Conversion:
    try:
        first = next(read_records(output), None)
        if first is None or first.id != warcinfo_id(source.name) or first.date is None:
            raise DamagedInput("it was made from a different file")
        counts = _compared(source, output, first.date, faults)
    except DamagedInput as error:
        raise ArchiveError(
            f"{output} already exists ({error}). Choose another folder, or replace it with --force."
        ) from error
    return _conversion(counts, source, output, was_there=True)


def _conversion(
    counts: Counter[str], source: ReadableFile, output: Path, *, was_there: bool = False
) -> Conversion:
    with source.open("rb") as file:
        size_bytes = file.seek(0, 2)
    numbers = (counts["response"], counts["resource"], counts["metadata"])
    return Conversion(*numbers, size_bytes, output.stat().st_size, was_there)


def _first_date(source: ReadableFile, faults: Faults) -> str | None:
    """The first valid date of an ARC file."""
    for record in _arc_records(source, lambda _: None):
        if record.format != "arc":
            faults.add(shown(str(source)), "it already holds WARC records; there is nothing to convert")
            return None
        if record.date and is_date(record.date):
            return record.date
    return None


def _converted_records(source: ReadableFile, first_date: str, faults: Faults) -> Iterator[ConvertedRecord]:
    """The records of an ARC file that can be converted. Others are faults."""
    for record in _arc_records(source, faults.add_damage):
        if record.format != "arc":
            faults.add(_place(record), "a WARC record is in an ARC file")
            continue
        new = converted_record(record, first_date)
        if is_date(new.date):
            yield new
        else:
            faults.add(_place(record), f"the date {record.get('archive-date')!r} is invalid")


def _arc_records(source: ReadableFile, on_damage: Callable[[Damage], None]) -> Iterator[StoredRecord]:
    with reading(source):
        yield from read_records(source, on_damage=on_damage)


def _compared(source: ReadableFile, path: Path, first_date: str, faults: Faults) -> Counter[str]:
    """Compare both files record by record, and count the records by type. Raises DamagedInput for the first difference."""
    counts = Counter[str]()
    before = _converted_records(source, first_date, faults)
    after = (record for record in read_records(path) if record.type != "warcinfo")
    for old, new in zip_longest(before, after):
        if old is None or new is None or _values_before(old) != _values_after(new):
            there = f"{path}, offset {new.offset}" if new is not None else f"the end of {path}"
            here = _place(old.record) if old is not None else f"the end of {shown(str(source))}"
            raise DamagedInput(
                f"{here} differs from {there}. The file has changed during the conversion; convert it again."
            )
        counts[old.type] += 1
    return counts


def _values_before(old: ConvertedRecord) -> tuple[Any, ...]:
    block = digest_of_pieces(old.block())
    payload = f"sha256:{payload_digest(old.record).hex}" if old.type == "response" else block
    return old.type, old.uri, old.date, payload, block


def _values_after(new: StoredRecord) -> tuple[Any, ...]:
    block = digest_of_pieces(open_block(new.path, new.frame))
    return new.type, new.target_uri, new.date, f"sha256:{payload_digest(new).hex}", block


def _place(record: StoredRecord) -> str:
    return f"{shown(str(record.path))}, offset {record.offset}"


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
    chosen = [
        given for given in inputs if given.name in words or is_archive_name(given.name, formats=("arc",))
    ]
    if not chosen and not faults.count:
        raise UsageError(
            "None of the files is an ARC file (*.arc, *.arc.gz). Name them, or search folders with -r."
        )
    tasks = [
        _Task(given.file, output, options)
        for given, output in zip(chosen, _outputs(chosen, folder, options), strict=True)
    ]
    done: list[Conversion] = []
    with held_output(folder), part(watch, "converting", sum(given.size_bytes for given in chosen)):
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
    names = ("responses", "resources", "metadata", "bytes_before", "bytes_after")
    return Converted(
        output=str(folder),
        files=len(done),
        files_found=sum(one.was_there for one in done),
        fault_count=faults.count,
        faults=tuple(faults.first),
        **{name: sum(getattr(one, name) for one in done) for name in names},
    )


def _outputs(inputs: Sequence[Input], folder: Path, options: ConversionOptions) -> list[Path]:
    names = output_names(given.name for given in inputs)
    taken: dict[PurePosixPath, str] = {}
    for given in inputs:
        if given.is_member:
            raise UsageError(f"{given.name} is inside a container. Extract the file before converting it.")
        name = warc_name(names[given.name].name, gzip=_is_gzip(given.file, options))
        below = names[given.name].with_name(name)
        if below in taken:
            raise ArchiveError(
                f"{taken[below]} and {given.name} would both become {below}. Convert them in two runs."
            )
        taken[below] = given.name
    return [folder / below for below in taken]


def _convert(task: _Task, faults: Faults, advance: Advance) -> Conversion | None:
    return convert_arc(task.source, task.output, options=task.options, faults=faults, watch=NO_PROGRESS)
