"""A manifest of digests, made of files.

Each file is summed by itself, in any process; the lines come into the manifest in the order of the files and of the
offsets in them. What is known of a file is kept below ``OUTPUT.parts/`` until the manifest is whole: a run that was
cut goes on with the files that are left. Two files a part, named by the SHA-256 of the file's name: ``.txt`` has the
lines, as in a text manifest with six columns; ``.json``, which comes last, has ``key``, that is what the lines
depend on (the file's name, place, size, times and inode, the options, the version of this package), and ``sums``,
the figures. A part with another key is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError, DedupeError, UsageError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import job_count, run_jobs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, replay_faults, write_whole, writing
from scrapy_dedupe.warc.files import sync_folder
from scrapy_dedupe.warc.remote import is_url

from .digests import COUNTED, Digester, DigestOptions, FileSums
from .manifest import LineWriter, read_lines, refuse_existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.tasks.progress import Progress

    from .inputs import Input
    from .manifest import ManifestLine

COLUMNS = 6


@dataclass(frozen=True, slots=True)
class SumOptions:
    """What `sum_files` does. ``format`` None: that of the manifest that is added to, else text.

    ``append`` adds files that the manifest does not list yet; ``force`` replaces a manifest that is there.
    """

    digests: DigestOptions = field(default_factory=DigestOptions)
    format: str | None = None
    append: bool = False
    force: bool = False
    keep_going: bool = False
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Sums:
    """What `sum_files` did. ``listed`` are the files that the manifest had already; see `FileSums` for the figures.

    ``left_below`` counts files below the folders that were named, which nobody asked for, and ``left_open`` are those
    that a crawl has open, or left so; whoever named the folders knows.
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
    """Write the manifest of *inputs*. *faults* has what was wrong with them before.

    *before_end* is called when the manifest has its name, and before the parts are removed.

    Raises ArchiveError if *output* is there and may not be replaced or added to, or cannot be written; UsageError for
    two files of one name; DamagedInput for the first fault, unless ``keep_going``.
    """
    watch = watch or NoProgress()
    faults = faults or Faults(keep_going=options.keep_going)
    _check_names(inputs)
    _check_output(output, options)
    with StateFolder(_parts_folder(output)) as state:
        # Only now, since the process that had the folder before may have added files.
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
        # Whatever a kill leaves of it goes with the folder.
        whole = state.path / "manifest"
        with LineWriter(whole, columns=COLUMNS, format=file_format, force=True) as writer:
            if is_added_to:
                _write(writer, read_lines(output))
            for part in parts:
                _write(writer, read_lines(part.lines))
        with writing(output):
            refuse_existing(output, force=options.force or options.append)
            whole.replace(output)
            sync_folder(output.parent)
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
    """Of its two files, without suffix."""
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
        "changed": _change_of(file),
        "options": asdict(options.digests),
        "version": __version__,
    }
    return _Part(given, folder / name, key, options.digests, options.keep_going)


def _change_of(file: object) -> list[int] | None:
    """What tells that a file, or the container of a member, is another or was changed; None for what lies elsewhere,
    which is summed anew each time.
    """
    here = file if isinstance(file, Path) else getattr(file, "container", None)
    if not isinstance(here, Path):
        return None
    with reading(here):
        found = here.stat()
    # The time of change alone can be kept by whoever copies another file over this one.
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
    in_process = job_count(options.jobs) == 1 or len(left) == 1
    told = _Told(watch)
    function = partial(_sum_part, advance=told.advance) if in_process else _sum_part
    if not in_process:
        # The largest first, so that at the end no process works alone for long.
        left.sort(key=lambda part: -part.key["size"])
    for part, found in run_jobs(function, left, options.jobs):
        sums[part.path] = found
        watch.advance(max(0, part.key["size"] - told.take()))
    watch.end()
    return sums


class _Told:
    """Counts what a watch was told of one file."""

    def __init__(self, watch: Progress) -> None:
        self._watch = watch
        self._size_bytes = 0

    def advance(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._watch.advance(size_bytes)

    def take(self) -> int:
        size_bytes, self._size_bytes = self._size_bytes, 0
        return size_bytes


def _known(part: _Part) -> FileSums | None:
    """What an earlier run has made of this file, if it is the same file and it was asked the same."""
    if part.key["changed"] is None:
        return None
    try:
        value = json.loads(part.path.with_suffix(".json").read_bytes())
        if value["key"] == part.key and part.lines.is_file():
            return FileSums.from_json(value["sums"])
    except (OSError, ValueError, KeyError, TypeError):
        # What cannot be used is made anew.
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
                f"{given.file} and {other.file} both have the name {given.name} in the manifest. Rename one, or sum them"
                " into manifests of their own."
            )


def _check_output(output: Path, options: SumOptions) -> None:
    """Refuse what cannot be written or must not be replaced, before anything is made beside it."""
    if str(output) == "-":
        raise UsageError("warcsum keeps its state beside the manifest. Name a file for it.")
    if not output.parent.is_dir():
        raise ArchiveError(
            f"{output} cannot be written: there is no folder {output.parent}. Make it, or name another."
        )
    if not output.exists():
        return
    refuse_existing(output, force=True)
    if not (options.append or options.force):
        parts = StateFolder(_parts_folder(output))
        if parts.is_left:  # by a run that was killed when all but this was done
            with parts:
                parts.remove()
        raise ArchiveError(
            f"{output} is there already. Name another output, add to it with --append, or replace it with --force."
        )


def _listed(output: Path, options: SumOptions, state: StateFolder) -> frozenset[str]:
    """The files that a manifest lists already."""
    try:
        return frozenset(_files_of(output, options))
    except DedupeError:
        # Nothing was done, so nothing is left behind.
        if all(path.name == LOCK for path in state.path.iterdir()):
            state.remove()
        raise


def _in_manifest(inputs: Sequence[Input], listed: frozenset[str]) -> dict[str, None]:
    """The names of those inputs that a manifest lists, maybe by another name of the file."""
    if not listed:
        return {}
    # Its names are relative to the working folder, or to what --base was.
    bases = {"", *(_base_of(given) for given in inputs)}
    places = {os.path.realpath(os.path.join(base, name)) for base in bases for name in listed}  # noqa: PTH118
    return dict.fromkeys(
        given.name
        for given in inputs
        if given.name in listed
        or (not is_url(str(given.file)) and os.path.realpath(str(given.file)) in places)
    )


def _base_of(given: Input) -> str:
    """The folder that the name of an input is relative to."""
    place = os.path.abspath(str(given.file))  # noqa: PTH100 - a link keeps its name
    name = os.path.normpath(given.name)
    return place.removesuffix(os.sep + name) + os.sep if place.endswith(os.sep + name) else ""


def _files_of(output: Path, options: SumOptions) -> Iterator[str]:
    label = options.digests.label
    last = None
    for line in read_lines(output):
        if line.extension is not None:
            raise ArchiveError(
                f"{output} has columns of later steps, so that nothing can be added to it. Name the manifest that warcsum"
                " has written."
            )
        if line.digest.partition(":")[0] != label:
            raise ArchiveError(
                f"{output} has the digest {line.digest}, and not {label}. Use its algorithm, or another output."
            )
        if line.file != last:
            last = line.file
            yield last


def _format_of(output: Path) -> str:
    with output.open("rb") as file:
        start = file.read(4)
    return "parquet" if start == b"PAR1" else "jsonl" if start.startswith(b"{") else "text"
