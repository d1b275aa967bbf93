"""The input files that a command names, the names of these files in manifests, and the names of new files.

A word is a WARC, ARC or WACZ file, a multi-WACZ JSON, a URL, a folder, or a pattern with the wildcards of `glob`. A
folder means its own WARC and ARC files, or those of its subfolders too. The name of a file is its path as found from
the word, with ``/`` as separator; a path relative to the working folder stays relative. New files are named relative to
the common parent folder of all input files.
"""

from __future__ import annotations

import glob
import os
import posixpath
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.tasks.work import size_of
from scrapy_dedupe.warc.archive_names import archive_name
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.remote import is_url, place_file, real_place, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.warc.sources import ReadableFile

STATE_FOLDER = ".dedupe"
"""The folder for unfinished work. Nothing in it is an input, and no output file may be in it."""


@dataclass(frozen=True, slots=True)
class Input:
    """A WARC or ARC file, and its name in manifests."""

    name: str
    file: ReadableFile

    @property
    def size_bytes(self) -> int:
        """The stored size; 0 if it is unknown without reading the file."""
        return size_of(self.file)

    @property
    def is_member(self) -> bool:
        """Whether it is inside a container, such as a WACZ."""
        return hasattr(self.file, "container")


def find_inputs(
    words: Sequence[str], *, faults: Faults, recursive: bool = False, without: Path | None = None
) -> list[Input]:
    """The files that *words* mean, in order; the files of a folder are sorted. No file is listed twice.

    *recursive* includes the subfolders of a folder, except *without*. A file that is not an archive, or a container that
    is refused, is a fault. Raises UsageError for a word that matches no file, ArchiveError for a file that cannot be
    opened.
    """
    found: dict[str, Input] = {}
    for word in words:
        for place in _places(word, recursive, without):
            try:
                inputs = list(_inputs_in(place))
            except DamagedInput as error:
                faults.add(place, _reason(error, place))
                continue
            for given in inputs:
                found.setdefault(real_place(given.file), given)
    return list(found.values())


def left_out(
    words: Sequence[str], inputs: Iterable[Input], *, recursive: bool = False, without: Path | None = None
) -> tuple[int, tuple[str, ...]]:
    """The WARC and ARC files in the folders among *words* that `find_inputs` skips with the same options.

    Returns the number of files in subfolders (0 if *recursive* is set), and the names of the files that a crawl has open or
    did not close, and that may therefore grow. Files among *inputs* are in neither.
    """
    known = {real_place(given.file) for given in inputs}
    below: set[str] = set()
    are_open: dict[str, str] = {}
    folders = [Path(name) for word in words if not is_url(word) for name in _matches(word)]
    for folder in filter(Path.is_dir, folders):
        if not recursive:
            # Unreadable folders are reported when their files are read.
            below.update(map(os.path.realpath, _files_below(folder, True, without, is_strict=False)))
        for path in _open_files(folder, recursive, without):
            are_open.setdefault(os.path.realpath(path), Path(path).as_posix())
    return len(below - known), tuple(name for place, name in are_open.items() if place not in known)


def output_names(names: Iterable[str]) -> dict[str, PurePosixPath]:
    """The path of each new file, relative to the output folder.

    If some names lead out of the working folder, or if only some are absolute, all are made absolute first. Raises
    ArchiveError if two files would have the same path.

    >>> output_names(["in/2019/a.warc.gz", "in/2020/a.warc.gz"])["in/2019/a.warc.gz"]
    PurePosixPath('2019/a.warc.gz')
    """
    names = list(dict.fromkeys(names))
    parts = {name: _parts(name) for name in names}
    common = _common(parts.values())
    if any(".." in steps[common:] or steps[common] == "/" for steps in parts.values()):
        parts = {name: _parts(name if is_url(name) else Path(name).absolute().as_posix()) for name in names}
        common = _common(parts.values())
    found: dict[PurePosixPath, str] = {}
    for name, steps in parts.items():
        below = PurePosixPath(*[step for step in steps[common:] if step != "/"])
        if below in found:
            raise ArchiveError(
                f"{found[below]} and {name} would both be written to {below}. Write them in two runs, or use one name for each"
                " file in the manifests."
            )
        if below.parts[0] == STATE_FOLDER:
            raise ArchiveError(
                f"{name} cannot be written: {STATE_FOLDER} is reserved for unfinished work. Rename the file."
            )
        found[below] = name
    return {name: below for below, name in found.items()}


def refuse_own_folder(inputs: Iterable[Input], output: Path) -> None:
    """Raise ArchiveError if *output* is the folder of *inputs*, so that new files would overwrite them."""
    names = [given.name for given in inputs if not is_url(given.name)]
    places = {name: os.path.realpath(name) for name in names}
    own = os.path.realpath(output)
    finals = {os.path.realpath(output / below) for below in output_names(names).values()}
    for name, place in places.items():
        if os.path.dirname(place) == own or place in finals:  # noqa: PTH120 - a text as it is
            raise ArchiveError(
                f"{output} is the folder of {name}. Replace the files with --in-place, or choose another folder."
            )


def refuse_own_file(inputs: Iterable[Input], output: Path) -> None:
    """Raise ArchiveError if the file *output* is one of the inputs, or a container of one, so that it would be replaced."""
    if not output.exists():
        return
    for given in inputs:
        file = getattr(given.file, "container", given.file)
        if isinstance(file, Path) and file.exists() and output.samefile(file):
            raise ArchiveError(f"{output} is one of the files to read. Name another output.")


def refuse_equal_names(inputs: Iterable[Input], where: str, choices: str) -> None:
    """Raise UsageError for two inputs with the same name.

    The message has *where* the name is used, and the *choices* of the user, one or more sentences.
    """
    known: dict[str, Input] = {}
    for given in inputs:
        other = known.setdefault(given.name, given)
        if other is not given:
            raise UsageError(
                f"{given.file} and {other.file} both have the name {given.name} {where}. {choices}"
            )


def relative_to(inputs: Iterable[Input], base: Path) -> list[Input]:
    """The inputs with names relative to *base*; URLs do not change. Raises UsageError for a file outside of *base*."""
    named = []
    for given in inputs:
        name = given.name
        if not is_url(name):
            path = Path(os.path.abspath(name))  # noqa: PTH100 - does not resolve links
            try:
                name = path.relative_to(os.path.abspath(base)).as_posix()  # noqa: PTH100
            except ValueError:
                raise UsageError(
                    f"{given.name} is not below {base}. Set --base to a folder that contains all files."
                ) from None
        named.append(Input(name, given.file))
    return named


def _places(word: str, recursive: bool, without: Path | None) -> list[str]:
    if is_url(word):
        return [word]
    names = _matches(word)
    if not names:
        raise UsageError(
            f"{word!r} matches no file. Name WARC, ARC or WACZ files, a folder, or a pattern such as"
            " 'folder/*.warc.gz'."
        )
    places: list[str] = []
    for name in names:
        places += _files_below(Path(name), recursive, without) if Path(name).is_dir() else [name]
    if not places:
        if any(any(_open_files(Path(name), recursive, without)) for name in names):
            raise UsageError(
                f"{word!r} is a folder with only WARC and ARC files that a crawl has open, or did not close. Wait for the end"
                " of the crawl, or repair the files with warc salvage."
            )
        hint = "" if recursive else ", or include its subfolders with -r"
        raise UsageError(
            f"{word!r} is a folder without WARC and ARC files. Name another folder{hint}."
            f"{_wacz_hint(names, recursive)}{''.join(link_hint(Path(name)) for name in names)}"
        )
    return places


def link_hint(folder: Path) -> str:
    """A hint about a link to a folder in *folder*, with a leading space; empty if there is none."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_dir():
            return f" Links to folders, such as {path}, are not followed: name the folder to which it leads."
    return ""


def _wacz_hint(names: Iterable[str], recursive: bool) -> str:
    """A hint about WACZ files in the folders, with a leading space; empty if there are none."""
    for name in names:
        found = Path(name).rglob("*.wacz") if recursive else Path(name).glob("*.wacz")
        if (first := next(found, None)) is not None:
            return (
                f" To read its WACZ files, name them, for example with the pattern '{first.parent / '*.wacz'}'. To rewrite them"
                " with `dedupe`, extract their WARC files first (unzip) and name the folder with these files."
            )
    return ""


def _matches(word: str) -> list[str]:
    # A file may have a name that looks like a pattern.
    return [word] if Path(word).exists() else sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - also absolute


def _files_below(
    folder: Path,
    recursive: bool,
    without: Path | None,
    *,
    is_strict: bool = True,
    are_open: bool = False,
) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise unreadable(error.filename, error) from error

    for path, folders, files in os.walk(folder, onerror=refuse if is_strict else None):
        yield from (str(PurePath(path, name)) for name in sorted(files) if _is_input(name, are_open))
        folders[:] = sorted(
            name
            for name in folders
            if recursive and name != STATE_FOLDER and not _is(Path(path, name), without)
        )


def _is_input(name: str, is_open: bool) -> bool:
    # Other compressions than gzip cannot be read, but such files must be reported.
    found = archive_name(name)
    return found is not None and found.is_open == is_open


def _open_files(folder: Path, recursive: bool, without: Path | None) -> Iterator[str]:
    return _files_below(folder, recursive, without, is_strict=False, are_open=True)


def _is(folder: Path, other: Path | None) -> bool:
    return other is not None and other.exists() and folder.samefile(other)


def _reason(error: DamagedInput, place: str) -> str:
    """The reason of an error without the file name, which the report adds."""
    text, where = str(error), place if is_url(place) else str(Path(place).absolute())
    return (
        text.removeprefix(where).lstrip(":").lstrip() if text.startswith((f"{where}:", f"{where} ")) else text
    )


def _inputs_in(place: str) -> Iterator[Input]:
    file = place_file(place)
    if not isinstance(file, Path):
        yield from (Input(str(member) if member is not file else place, member) for member in files_in(file))
        return
    absolute = str(file.absolute())
    name = file.as_posix()
    for member in files_in(file):
        where = str(member)
        if where == absolute:
            yield Input(name, file)
        elif where.startswith(absolute + "/"):
            yield Input(name + where[len(absolute) :], member)
        else:  # a member of a multi-WACZ JSON
            yield Input(where if is_url(where) else PurePath(where).as_posix(), member)


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(name)).parts


def _common(all_parts: Iterable[tuple[str, ...]]) -> int:
    """The number of leading folders that all have in common."""
    levels = zip(*(parts[:-1] for parts in all_parts), strict=False)
    return sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
