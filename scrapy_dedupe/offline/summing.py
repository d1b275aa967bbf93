"""Make a manifest of digests from files.

Files are processed independently, in any process. The lines of the manifest are in the order of the files, and of the
offsets within each file. Until the manifest is complete, the result of each file is kept in ``OUTPUT.parts/``: a run that
is started again after a kill only processes the remaining files. A part has two files, named by the SHA-256 of the name of
the input: ``.txt`` has the lines, as in a text manifest with six columns; ``.json``, which is written last, has ``sums``
(the counts) and ``key``, everything that the lines depend on: the file's name, place, size, times and inode, the options,
and the version of this package. A part with another key is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError, DedupeError, UsageError
from scrapy_dedupe.files.whole_file import put_in_place
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_watched
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, replay_faults, write_whole, writing
from scrapy_dedupe.warc.remote import is_url

from .digests import COUNTED, Digester, DigestOptions, FileSums
from .inputs import refuse_own_file
from .manifest import LineWriter, read_lines, refuse_existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress

    from .inputs import Input
    from .manifest import ManifestLine

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


@dataclass(frozen=True, slots=True)
class Sums:
    """The result of `sum_files`. ``listed`` are the inputs that the manifest already listed; see `FileSums` for the counts.

    ``left_below`` counts files in subfolders of the named folders that were not included, and ``left_open`` are files that a
    crawl has open or did not close; the caller sets both.
    """

    output: str
    files: int
    listed: tuple[str, ...]
    size_bytes: int
    lines: int
    stored: int
    computed: int
    hashed_bytes: int
    empty: int
    headless: int
    verified: int
    unverifiable: int
    mismatch_count: int
    mismatches: tuple[Fault, ...]
    fault_count: int
    faults: tuple[Fault, ...]
    left_below: int = 0
    left_open: tuple[str, ...] = ()


def sum_files(
    inputs: Sequence[Input],
    output: Path,
    options: SumOptions = SumOptions(),
    *,
    faults: Faults | None = None,
    watch: Progress | None = None,
    before_end: Callable[[Sums], None] = lambda sums: None,
) -> Sums:
    """Write the manifest of *inputs*. *faults* has the faults that were found in them so far.

    *before_end* is called after the manifest has its final name and before the parts are removed.

    Raises ArchiveError if *output* is an input, exists and must not be replaced or extended, or cannot be written;
    UsageError for two files of one name; DamagedInput for the first fault, unless ``keep_going`` is set.
    """
    watch = watch or NoProgress()
    faults = faults or Faults(keep_going=options.keep_going)
    _check_names(inputs)
    refuse_own_file(inputs, output)
    _check_output(output, options)
    with StateFolder(_parts_folder(output)) as state:
        # Check after locking: another process may have added files until now.
        is_added_to = options.append and output.exists()
        listed = _listed(output, options, state) if is_added_to else frozenset()
        known = _in_manifest(inputs, listed)
        new = [given for given in inputs if given.name not in known]
        parts = [_part(state.path, given, options) for given in new]
        total = FileSums()
        sums = _sum_parts(parts, options, watch)
        for part in parts:
            total.add(sums[part.path])
            replay_faults(faults, sums[part.path].fault_count, sums[part.path].faults)
        file_format = options.format or (_format_of(output) if is_added_to else "text")
        # In the state folder, so that a killed run leaves no other file.
        whole = state.path / "manifest"
        with LineWriter(whole, columns=COLUMNS, format=file_format, force=True) as writer:
            if is_added_to:
                _write(writer, read_lines(output))
            for part in parts:
                _write(writer, read_lines(part.lines))
        with writing(output):
            refuse_existing(output, force=options.force or options.append)
            put_in_place(whole, output)
        done = Sums(
            output=str(output),
            files=len(new),
            listed=tuple(known),
            size_bytes=sum(part.key["size"] for part in parts),
            mismatches=tuple(total.mismatches),
            fault_count=faults.count,
            faults=tuple(faults.first),
            **{name: getattr(total, name) for name in _FIGURES},
        )
        before_end(done)
        state.remove()
    return done


_FIGURES = (*COUNTED, "mismatch_count")


@dataclass(frozen=True, slots=True)
class _Part:
    given: Input
    path: Path
    """The path of its two files, without suffix."""
    key: dict[str, Any]
    options: DigestOptions
    keep_going: bool

    @property
    def lines(self) -> Path:
        return self.path.with_suffix(".txt")


def _part(folder: Path, given: Input, options: SumOptions) -> _Part:
    file = given.file
    name = hashlib.sha256(given.name.encode("utf-8", "surrogateescape")).hexdigest()
    key = {
        "name": given.name,
        "place": str(file.absolute() if isinstance(file, Path) else file),
        "size": given.size_bytes,
        "changed": change_of(file),
        "options": asdict(options.digests),
        "version": __version__,
    }
    return _Part(given, folder / name, key, options.digests, options.keep_going)


def change_of(file: object) -> list[int] | None:
    """Values that change if a file, or the container of a member, is replaced or changed; None for a remote file, which
    is always processed again.
    """
    here = file if isinstance(file, Path) else getattr(file, "container", None)
    if not isinstance(here, Path):
        return None
    with reading(here):
        found = here.stat()
    # A program that replaces the file can preserve its modification time.
    return [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _sum_parts(parts: Sequence[_Part], options: SumOptions, watch: Progress) -> dict[Path, FileSums]:
    sums: dict[Path, FileSums] = {}
    watch.begin("summing", sum(part.key["size"] for part in parts))
    left = []
    for part in parts:
        known = _known(part)
        if known is None:
            left.append(part)
        else:
            sums[part.path] = known
            watch.advance(part.key["size"])
    for part, found in run_watched(_sum_part, left, options.jobs, watch, lambda part: part.key["size"]):
        sums[part.path] = found
    watch.end()
    return sums


def _known(part: _Part) -> FileSums | None:
    """The result of an earlier run for this file, if the file and the options are the same."""
    if part.key["changed"] is None:
        return None
    try:
        value = json.loads(part.path.with_suffix(".json").read_bytes())
        if value["key"] == part.key and part.lines.is_file():
            return FileSums.from_json(value["sums"])
    except (OSError, ValueError, KeyError, TypeError):
        # An unusable result is made again.
        return None
    return None


def _sum_part(part: _Part, advance: Callable[[int], None] = lambda size_bytes: None) -> FileSums:
    summary = part.path.with_suffix(".json")
    summary.unlink(missing_ok=True)
    faults = Faults(keep_going=part.keep_going)
    digester = Digester(part.given.file, part.given.name, part.options, faults=faults, advance=advance)
    with LineWriter(part.lines, columns=COLUMNS, force=True) as writer:
        for line in digester.lines():
            writer.write(line)
    write_whole(summary, json.dumps({"key": part.key, "sums": asdict(digester.sums)}, indent=1).encode())
    return digester.sums


def _write(writer: LineWriter, lines: Iterable[ManifestLine]) -> None:
    for line in lines:
        writer.write(line)


def _parts_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


def _check_names(inputs: Sequence[Input]) -> None:
    places: dict[str, Input] = {}
    for given in inputs:
        other = places.setdefault(given.name, given)
        if other is not given:
            raise UsageError(
                f"{given.file} and {other.file} both have the name {given.name} in the manifest. Rename one, or make separate"
                " manifests."
            )


def _check_output(output: Path, options: SumOptions) -> None:
    """Raise an error if *output* cannot be written or must not be replaced, before its parts folder is made."""
    if str(output) == "-":
        raise UsageError(
            "warcsum keeps its state in a folder next to the manifest. Name a file for the manifest."
        )
    if not output.parent.is_dir():
        raise ArchiveError(
            f"{output} cannot be written: the folder {output.parent} does not exist. Create it, or choose another."
        )
    if not output.exists():
        return
    refuse_existing(output, force=True)
    if not (options.append or options.force):
        parts = StateFolder(_parts_folder(output))
        if parts.is_left:  # by a run that was killed just before it removed this folder
            with parts:
                parts.remove()
        raise ArchiveError(
            f"{output} already exists. Name another output, extend it with --append, or replace it with --force."
        )


def _listed(output: Path, options: SumOptions, state: StateFolder) -> frozenset[str]:
    """The files that a manifest lists."""
    try:
        return frozenset(_files_of(output, options))
    except DedupeError:
        # Nothing was done, so leave no state folder.
        if all(path.name == LOCK for path in state.path.iterdir()):
            state.remove()
        raise


def _in_manifest(inputs: Sequence[Input], listed: frozenset[str]) -> dict[str, None]:
    """The names of the inputs that a manifest lists, possibly under another name of the file."""
    if not listed:
        return {}
    # Names in the manifest are relative to the working folder, or to the folder of --base.
    bases = {"", *(_base_of(given) for given in inputs)}
    places = {os.path.realpath(os.path.join(base, name)) for base in bases for name in listed}  # noqa: PTH118
    return dict.fromkeys(
        given.name
        for given in inputs
        if given.name in listed
        or (not is_url(str(given.file)) and os.path.realpath(str(given.file)) in places)
    )


def _base_of(given: Input) -> str:
    """The folder to which the name of an input is relative."""
    place = os.path.abspath(str(given.file))  # noqa: PTH100 - does not resolve links
    name = os.path.normpath(given.name)
    return place.removesuffix(os.sep + name) + os.sep if place.endswith(os.sep + name) else ""


def _files_of(output: Path, options: SumOptions) -> Iterator[str]:
    label = options.digests.label
    last = None
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
        if line.file != last:
            last = line.file
            yield last


def _format_of(output: Path) -> str:
    with output.open("rb") as file:
        start = file.read(4)
    return "parquet" if start == b"PAR1" else "jsonl" if start.startswith(b"{") else "text"
