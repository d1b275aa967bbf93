"""Finds the sources of an import for paths, patterns, folders and URLs, and the crawl of each source.

The name and the first bytes of a file decide its type: a WACZ, a multi-WACZ JSON, a WARC or ARC file, or a CDXJ. A
folder is replaced by its WACZ files or, if it has none, by its WARC files.

The crawl id of a source comes from the manifest, else from the caller, else from the file itself, if it is a valid id;
else it is the file's name without suffixes, with hyphens for characters that are not allowed in ids.

A source with a known name is compared with what the index already has: it may be the same source again, or another one.
A container is identified by its name; its size, and its hash if it is compared, show whether the file is the same. A
WARC file or a CDXJ is identified by its location, and the files that it is or names show which crawl has it.
"""

from __future__ import annotations

import glob
import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, DedupeError, UsageError
from scrapy_dedupe.stores.base import Source
from scrapy_dedupe.stores.crawl_index import checked_crawl_id, is_crawl_id
from scrapy_dedupe.warc.archive_names import is_archive_name
from scrapy_dedupe.warc.cdxj_reading import CdxCapture, cdxj_lines, read_cdxj
from scrapy_dedupe.warc.containers import ZIP_MAGIC
from scrapy_dedupe.warc.manifests import ListedFile, read_manifest
from scrapy_dedupe.warc.remote import check_regular, is_url, place_file, shown, unreadable
from scrapy_dedupe.warc.sources import ARC_LINE, GZIP_MAGIC, WARC_START
from scrapy_dedupe.warc.wacz_reading import StoredWacz

from .crawl_files import WACZ_SUFFIX, sha256_of, size_of, warcinfo_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.sources import ReadableFile

_INDEX_NAME = re.compile(r".+\.cdxj?(\.gz)?", re.IGNORECASE | re.DOTALL)
_SUFFIXES = re.compile(r"(\.(wacz|w?arc|cdxj?|gz|open))+\Z", re.IGNORECASE)
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_ID_LENGTH = 128
_HEAD_BYTES = 4_096
_QUERY = re.compile(r"[?#]")


@dataclass(frozen=True, slots=True)
class FailedSource:
    """A source that was not imported, and why."""

    source: str
    reason: str


@dataclass(slots=True)
class FoundSources:
    """The sources for the words of a call; ``crawl`` is the crawl id for sources without one in a manifest.

    ``listed`` are the files that manifests and words name, with the crawl of each source if it is known.
    ``has_manifest``: at least one manifest was read. ``doubts`` explain why a manifest may not have named all crawls.
    """

    crawl: str | None
    allow_outside: bool
    check: Callable[[], None]
    failed: list[FailedSource] = field(default_factory=list)
    listed: list[ListedFile] = field(default_factory=list)
    has_manifest: bool = False
    doubts: list[str] = field(default_factory=list)
    _sources: dict[str, Source] = field(default_factory=dict)

    @property
    def sources(self) -> list[Source]:
        """The sources, in order and without duplicates."""
        return list(self._sources.values())

    def take(self, place: str) -> None:
        """Add a file, or all files that a manifest names."""
        self.check()
        try:
            _check_text(place)
            if kind_of(place_file(place)) == "manifest":
                self._take_manifest(place)
                return
            source = source_at(place, crawl=self.crawl)
            self.listed.append(ListedFile(source.name, place, source.hash, source.size, source.crawl))
            self._add(source)
        except DedupeError as error:
            self._fail(place, str(error), is_doubt=place.lower().endswith(".json"))

    def _take_manifest(self, place: str) -> None:
        def on_fault(sentence: str) -> None:
            self._fail(place, sentence, is_doubt=True)

        self.has_manifest = True
        try:
            for listed in read_manifest(place, allow_outside=self.allow_outside, on_fault=on_fault):
                self.check()
                # Add failed sources too: their crawl is not missing from the manifest.
                crawl = listed.crawl
                try:
                    source = source_at(listed.place, listed=listed, crawl=self.crawl)
                    crawl = source.crawl
                    self._add(source)
                except DedupeError as error:
                    self._fail(listed.place, str(error), is_doubt=False)
                self.listed.append(replace(listed, crawl=crawl))
        except DedupeError as error:
            on_fault(str(error))

    def _add(self, source: Source) -> None:
        other = self._sources.setdefault(source.name, source)
        if other == source:
            return
        is_same = (source.crawl, _key(source.place)) == (other.crawl, _key(other.place))
        for mine, known in ((source.hash, other.hash), (source.size, other.size)):
            is_same = is_same and (mine == known or None in (mine, known))
        if not is_same:
            raise DamagedInput(
                f"{shown(source.place)}, for the crawl {source.crawl}, has the same name {source.name!r} as"
                f" {shown(other.place)}, for the crawl {other.crawl}, but is another source. Rename one of them."
            )
        size = source.size if other.size is None else other.size
        self._sources[source.name] = replace(other, hash=other.hash or source.hash, size=size)

    def _fail(self, place: str, reason: str, *, is_doubt: bool) -> None:
        self.failed.append(FailedSource(_printable(place), reason))
        if is_doubt and reason not in self.doubts:
            self.doubts.append(reason)


def find_sources(
    words: Sequence[str],
    *,
    crawl: str | None = None,
    allow_outside: bool = False,
    check: Callable[[], None] = lambda: None,
) -> FoundSources:
    """The sources for paths, patterns, folders and URLs.

    ``crawl`` is the crawl id for sources without one in a manifest; ``allow_outside`` lets manifests name files that
    are not below their folder; ``check`` is called before each file. Raises
    :class:`~scrapy_dedupe.errors.UsageError` for a word without a file.
    """
    places = [place for word in words for place in places_of(word)]
    found = FoundSources(crawl, allow_outside, check)
    for place in places:
        found.take(place)
    return found


def places_of(word: str) -> list[str]:
    """The absolute paths or URLs for a path, pattern, folder or URL. Raises UsageError if there are none."""
    if is_url(word):
        file = place_file(word)
        if not isinstance(file, Path):
            return [word]
        word = str(file)
    # The name of an existing file may look like a pattern.
    names = [word] if Path(word).exists() else sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - absolute ones
    places = [place for name in names for place in _files_at(Path(name), is_named=len(names) == 1)]
    if not places:
        wrong = "is a folder without WACZ and WARC files" if Path(word).is_dir() else "matches no file"
        raise UsageError(
            f"{word!r} {wrong}. Name a WACZ, WARC or CDXJ file, a multi-WACZ JSON, a pattern such as"
            " 'folder/*.wacz', or a folder with such files."
        )
    return places


def kind_of(file: ReadableFile) -> str:
    """The type of a file, by its name and first bytes: ``wacz``, ``manifest``, ``index`` or ``warc``.

    Raises :class:`~scrapy_dedupe.errors.DamagedInput` for any other file, and
    :class:`~scrapy_dedupe.errors.ArchiveError` for an unreadable one.
    """
    try:
        check_regular(file)
        with file.open("rb") as stream:
            start = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise unreadable(file, error) from error
    name = file.name.lower()
    if start.startswith(ZIP_MAGIC) or name.endswith(WACZ_SUFFIX):
        return "wacz"
    if start.startswith(GZIP_MAGIC):
        start = _unpacked(start)
    line = start.partition(b"\n")[0] + b"\n"
    if WARC_START.match(line):
        return "warc"
    # The lines of an old CDX look like those of an ARC file.
    if _INDEX_NAME.fullmatch(name):
        return "index"
    if ARC_LINE.fullmatch(line) or is_archive_name(name, may_be_open=True):
        return "warc"
    if name.endswith(".json"):
        return "manifest"
    raise DamagedInput(
        f"{shown(str(file))} is not a WACZ, WARC, ARC or CDXJ file or a multi-WACZ JSON (*.json). Leave it"
        " out, or copy it again if it should be one."
    )


def source_at(place: str, *, listed: ListedFile | None = None, crawl: str | None = None) -> Source:
    """The source at a path or URL; ``listed`` is its entry in a manifest, ``crawl`` the caller's crawl id.

    Raises :class:`~scrapy_dedupe.errors.DedupeError` if it cannot be read, or its crawl id is invalid.
    """
    _check_text(place)
    file = place_file(place)
    if isinstance(file, Path):
        place = _absolute(file)
        file = Path(place)
    # A container that a manifest lists with its crawl is not opened before it is imported.
    kind = "wacz" if file.name.lower().endswith(WACZ_SUFFIX) else kind_of(file)
    if kind == "wacz":
        # A missing container is still identified by its name.
        with suppress(OSError):
            check_regular(file)
    if kind == "manifest":
        raise DamagedInput(
            f"{shown(place)} is a multi-WACZ JSON, but a file of an archive is expected here. Name the files that it lists."
        )
    if kind == "warc" and isinstance(file, Path):
        # A WARC file is identified by its location, and manifests name the target of a link.
        place = os.path.realpath(file)
    _check_text(place)
    given = (listed.crawl if listed else None) or crawl
    crawl = checked_crawl_id(given) if given else _own_crawl(file, kind)
    is_container = kind == "wacz"
    name = (listed.name if listed and listed.name else file.name) if is_container else place
    return Source(
        name=name,
        crawl=crawl,
        place=place,
        is_container=is_container,
        hash=listed.hash if listed else None,
        size=listed.size if listed else None,
    )


def _own_crawl(file: ReadableFile, kind: str) -> str:
    own: str | None = None
    if kind == "wacz":
        own = StoredWacz(file).about.crawl
    elif kind == "warc":
        try:
            own = warcinfo_of(file).get("ispartof")
        except OSError as error:
            raise unreadable(file, error) from error
    return own if own and is_crawl_id(own) else crawl_id_of_name(file.name)


def crawl_id_of_name(name: str) -> str:
    """The crawl id for a file name.

    >>> crawl_id_of_name("my crawl, example.com.warc.gz")
    'my-crawl-example.com'
    """
    stem = _NOT_IN_IDS.sub("-", _SUFFIXES.sub("", name)).strip("-")
    return stem[:_MAX_ID_LENGTH] or "import"


def _files_at(path: Path, *, is_named: bool) -> Iterator[str]:
    if not path.is_dir():
        yield _absolute(path)
    elif is_named:
        files = sorted(file for file in path.iterdir() if file.is_file())
        containers = [file for file in files if file.suffix.lower() == WACZ_SUFFIX]
        for file in containers or [file for file in files if is_archive_name(file.name, may_be_open=True)]:
            yield _absolute(file)


def _check_text(place: str) -> None:
    if _printable(place) != shown(place):
        raise DamagedInput(
            f"{_printable(place)} has a name that is not UTF-8, which an index cannot hold. Rename it."
        )


def _printable(place: str) -> str:
    """A place for messages, with escapes for bytes that are not valid text."""
    return shown(place).encode(errors="backslashreplace").decode()


def _key(place: str) -> str:
    return place if is_url(place) else str(Path(place).resolve())


def _absolute(path: Path) -> str:
    # The path of a file is independent of the working directory; a link keeps its own name.
    return os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118


def _unpacked(start: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(start, _HEAD_BYTES)
    except zlib.error:
        return b""


def files_beside(place: str) -> Callable[[str], str]:
    """Return the location of the WARC files that a CDXJ names: relative paths at or below its own folder."""
    # The query of a URL may have slashes too.
    path = _QUERY.split(place, maxsplit=1)[0] if is_url(place) else place
    folder, slash, _ = path.rpartition("/")

    @lru_cache(4_096)
    def file_of(filename: str) -> str:
        name = PurePosixPath(filename)
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in filename:
            raise DamagedInput(f"the file {filename!r} is not below the folder of the CDXJ.")
        return f"{folder}{slash}{name}"

    return file_of


class KnownSources:
    """The contents of the crawls of an index, as of the creation of this object."""

    def __init__(self, index: CrawlIndex) -> None:
        self._containers: dict[str, dict[str, dict[str, object]]] = {}
        self._owners: dict[str, set[str]] = {}
        self._crawls: set[str] = set()
        for info in index.crawls():
            self._crawls.add(info.id)
            for file in info.files:
                self._owners.setdefault(file, set()).add(info.id)
            for container in index.containers(info.id):
                # Crawls of another program may have containers with the same name.
                self._containers.setdefault(str(container.get("filename")), {})[info.id] = container

    def owners(self, source: Source) -> Iterable[str]:
        """The crawls that have the source, or another one with its name."""
        if source.is_container:
            return self._containers.get(source.name, {})
        return self._owners.get(source.name) or self._owners.get(_first_file(source), set())

    def difference(self, source: Source, *, verify: bool, alive: Callable[[], None]) -> str | None:
        """Why a source is not the imported one with its name, or belongs to another crawl; None if it is the same.

        With *verify* the hash of a container is compared too, if the index has one, not only its size.
        """
        owners = self.owners(source)
        if source.crawl in owners:
            container = self._containers[source.name][source.crawl] if source.is_container else {}
            return _other_file(source, container, verify=verify, alive=alive)
        if owners:
            return _taken(source, f"the crawl {min(owners)}")
        # The files of a crawl may have been moved since.
        if source.is_container or source.crawl not in self._crawls:
            return _taken(source, "a crawl that it no longer knows")
        return None


def _first_file(source: Source) -> str:
    """The first WARC file that a CDXJ names; empty for anything else."""
    file_of = files_beside(source.place)
    try:
        file = place_file(source.place)
        if kind_of(file) == "index":
            for line in read_cdxj(cdxj_lines(file)):
                if isinstance(line, CdxCapture) and line.is_exchange and line.filename is not None:
                    return file_of(line.filename)
    except (OSError, DedupeError):
        # The source was imported when it was readable.
        pass
    return ""


def _other_file(
    source: Source, container: Mapping[str, object], *, verify: bool, alive: Callable[[], None]
) -> str | None:
    """Why the file of a source is not the container; None if it is."""
    size, hash_ = source.size, source.hash
    try:
        file = place_file(source.place)
        if verify and container.get("hash") is not None:
            hash_, size = sha256_of(file, lambda count: alive())
        elif size is None:
            size = size_of(file)
    except (OSError, DedupeError) as error:
        if verify:
            return f"It cannot be compared with the index: {error}"
    for name, mine in (("size", size), ("hash", hash_)):
        known = container.get(name)
        if mine is not None and known is not None and mine != known:
            return (
                f"{shown(source.place)} has the {name} {mine}, but {source.name} of the crawl {source.crawl} has {known} in"
                " the index. It is another file: give it another name and another crawl."
            )
    return None


def _taken(source: Source, owner: str) -> str:
    return (
        f"{shown(source.place)} would be imported into the crawl {source.crawl}, but in the index {source.name} belongs to"
        f" {owner}. Import it into that crawl, or rename it."
    )
