"""Dependencies between crawls.

A revisit cannot be replayed without its original. So a crawl needs the crawls that its revisits refer to: their WACZ
files (containers), or their WARC files if they have no WACZ. The index records this when a revisit is added. The needs
of crawls that the index has not seen completely are not fully known (:meth:`Dependencies.why_unknown`).

The index knows a container only by its name. Its location follows from the crawl's WARC files, if they are in it;
otherwise it is searched in the folder for WACZ files.

The name of a container is final once it is packed, that is, once its size or hash is known. The name is also final for
a running crawl that other crawls may refer to, since it will be packed under this name. A committed crawl of this
package whose container is not packed has no container: it may never be packed. Browsertrix's importer registers a WACZ
without size and hash if it does not know them, and assigns all records of the crawl to the first WACZ. So if a
committed crawl of another program has only one WACZ, this WACZ may lack both. A WARC file that was imported by itself
is in no container, even if its crawl has containers.

A need from the metadata of a WACZ has the bare name of a container or WARC file, since its crawl was unknown when it
was imported. The name identifies the file, but not its location. The crawl that the need names may be in the index
under another id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.remote import is_url

from .crawl_files import WACZ_SUFFIX, is_present

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo, Need
    from scrapy_dedupe.stores.crawl_index import CrawlIndex


_PRESENCE = {False: 0, None: 1, True: 2}


@dataclass(frozen=True, slots=True)
class Needed:
    """A container or a WARC file of another crawl that revisits refer to.

    ``state`` is the state of that crawl, None if it is not in the index. ``name`` is the file name of the
    container or of the WARC file, None if the index has neither. ``place`` is its path or URL, as last known to the
    index. ``is_present`` is None if the location is unknown.
    """

    crawl: str
    state: str | None
    name: str | None
    place: str | None
    is_present: bool | None

    @property
    def is_missing(self) -> bool:
        """Whether the crawl is not in the index, or the file is gone."""
        return not self.is_in_index or self.is_present is False

    @property
    def is_in_index(self) -> bool:
        """Whether the index has the crawl and its records."""
        return self.state in ("committed", "uncommitted")

    def __str__(self) -> str:
        return f"{self.crawl} ({self.name})" if self.name else self.crawl


@dataclass(frozen=True, slots=True)
class Container:
    """A WACZ file of a crawl. ``hash`` is its SHA-256 in hex, ``size`` in bytes; None where they are not known.

    ``place`` and ``is_present`` have the same meaning as in :class:`Needed`.
    """

    filename: str
    hash: str | None
    size: int | None
    place: str | None = None
    is_present: bool | None = None


class Dependencies:
    """The dependencies of the crawls of an index. ``crawls`` is read when this object is created.

    ``wacz_folder`` is searched for containers in addition to the locations in the index.
    """

    def __init__(self, index: CrawlIndex, wacz_folder: Path | None = None) -> None:
        self.crawls: Mapping[str, CrawlInfo] = {info.id: info for info in index.crawls()}
        self._index = index
        self._wacz_folder = wacz_folder
        self._importing = {source.crawl for source in index.unfinished_sources()}
        self._containers: dict[str, Containers] = {}
        self._located: dict[tuple[str, str], Container] = {}
        self._needs: dict[str, list[Need]] = {}

    def meant(self, crawl: str) -> list[Need]:
        """The needs of a crawl (see :func:`needs_meant`). The index has no needs of canceled crawls."""
        if crawl not in self._needs:
            needs = self._index.needs(crawl)
            self._needs[crawl] = needs_meant(crawl, needs, self.crawls, self.containers_of)
        return self._needs[crawl]

    def needs(self, crawl: str) -> list[Needed]:
        """The containers and files that a crawl needs, each once, in the order of crawls."""
        found: dict[tuple[str, str | None], Needed] = {}
        for need in self.meant(crawl):
            needed = self._needed(need)
            # A container counts as missing if any of its needed files is missing.
            known = found.setdefault((needed.crawl, needed.name), needed)
            if _PRESENCE[needed.is_present] < _PRESENCE[known.is_present]:
                found[needed.crawl, needed.name] = needed
        return list(found.values())

    def needs_by_crawl(self, crawl: str) -> dict[str, list[Needed]]:
        """The result of :meth:`needs` for each crawl that is needed."""
        found: dict[str, list[Needed]] = {}
        for needed in self.needs(crawl):
            found.setdefault(needed.crawl, []).append(needed)
        return found

    def crawls_needed(self, crawl: str) -> list[str]:
        """The crawls that a crawl needs, in order of their ids."""
        return sorted({need.crawl for need in self.meant(crawl)})

    def needed_by(self, crawl: str) -> list[str]:
        """The crawls that need this crawl, as far as known."""
        return [other for other in self.crawls if crawl in self.crawls_needed(other)]

    def files_needed(self, crawl: str) -> set[str]:
        """The known locations of the containers and WARC files that a crawl needs."""
        files = {need.file for need in self.meant(crawl) if need.file and not is_bare(need.file)}
        return files | {needed.place for needed in self.needs(crawl) if needed.place}

    def dependants(self, crawls: Collection[str]) -> list[tuple[str, Needed]]:
        """The other crawls that need something of *crawls*, and what they need."""
        gone = set(crawls)
        return [
            (other, needed)
            for other in self.crawls
            if other not in gone and not gone.isdisjoint(self.crawls_needed(other))
            for needed in self.needs(other)
            if needed.crawl in gone
        ]

    def undecided(self, crawls: Collection[str]) -> list[tuple[str, str]]:
        """The crawls besides *crawls* whose needs are not fully known, with the reason."""
        reasons = ((other, self.why_unknown(other)) for other in self.crawls if other not in set(crawls))
        return [(other, reason) for other, reason in reasons if reason is not None]

    def why_unknown(self, crawl: str) -> str | None:
        """Why the needs of a crawl are not fully known, as the end of a sentence that begins with the crawl; or None."""
        info = self.crawls.get(crawl)
        if info is None or info.state == "canceled":
            return None
        if crawl in self._importing or (info.imported and info.state == "uncommitted"):
            return "is being imported, or its import was interrupted"
        if info.incomplete:
            return "is running, or did not end well"
        if info.software is None and info.state == "uncommitted":
            return "was made by another program and may be running"
        if info.software is None and info.counts.dupe_urls and not self.meant(crawl):
            return "was made by another program, which did not record what its revisits refer to"
        return None

    def containers(self, crawl: str) -> list[Container]:
        """The containers of a crawl with their locations, without unreadable entries."""
        known = self.containers_of(crawl).known
        return [self._locate(crawl, container) for container in known if container is not None]

    def _needed(self, need: Need) -> Needed:
        info = self.crawls.get(need.crawl)
        state = None if info is None else info.state
        file = self._file(need, info)
        container = self.containers_of(need.crawl).meant(need)
        if container is None:
            # The crawl is not packed yet, or its container holds other files, so the record is in the WARC file.
            name = _file_name(need.file) if need.file else None
            return Needed(need.crawl, state, name, file, is_present(file) if file else None)
        container = self._locate(need.crawl, container)
        needed = Needed(need.crawl, state, container.filename, container.place, container.is_present)
        if container.is_present or file is None:
            return needed
        return replace(needed, place=file, is_present=is_present(file))

    def containers_of(self, crawl: str) -> Containers:
        """The containers of a crawl, without their locations."""
        if crawl not in self._containers:
            known = self._index.containers(crawl)
            self._containers[crawl] = Containers(known, self.crawls.get(crawl))
        return self._containers[crawl]

    def _file(self, need: Need, info: CrawlInfo | None) -> str | None:
        """The location of the file of a need; a bare name is looked up in the files of its crawl."""
        if not need.file or not is_bare(need.file):
            return need.file
        files = info.files if info is not None else ()
        return next((file for file in files if _file_name(file) == need.file), None)

    def _locate(self, crawl: str, container: Container) -> Container:
        name = container.filename
        if (crawl, name) not in self._located:
            files = self.crawls[crawl].files if crawl in self.crawls else ()
            places = list(dict.fromkeys(place for file in files if (place := _place_in(file, name))))
            present = [place for place in places if is_url(place) or Path(place).is_file()]
            folder = self._wacz_folder
            if not present and folder is not None and (folder / Path(name).name).is_file():
                present = [str((folder / Path(name).name).absolute())]
            place = next(iter([*present, *places]), None)
            is_there = None if place is None else bool(present)
            self._located[crawl, name] = replace(container, place=place, is_present=is_there)
        return self._located[crawl, name]


class Containers:
    """The containers of one crawl, as the index lists them; ``known`` has None for an unreadable entry.

    ``info`` is the crawl's entry in the index, None for a crawl that the index does not list.
    """

    def __init__(self, known: Sequence[Mapping[str, object]], info: CrawlInfo | None) -> None:
        self.known = [_read(container) for container in known]
        self._is_imported = info is not None and info.imported
        self._is_to_be_packed = info is not None and info.state == "uncommitted" and info.concurrent
        is_complete = info is not None and info.state == "committed" and info.is_foreign
        self._is_always_packed = is_complete and len(known) == 1

    def named(self, name: str) -> Container | None:
        """The container with this name, whether it is packed or not."""
        return next((container for container in self.known if container and container.filename == name), None)

    def meant(self, need: Need) -> Container | None:
        """The container that a need means; None if its record is in no container."""
        if need.file and is_bare(need.file):
            return self.named(need.file)
        is_in_it = not need.file or self.holding(need.wacz_index, need.file) is not None
        return self._at(need.wacz_index) if is_in_it else None

    def holding(self, place: int, file: str | None) -> Container | None:
        """The container at that position, if it holds, or will hold, a record that is in *file*."""
        container = self._at(place)
        # A manifest may give an imported WACZ any name.
        if container is None or not (self._is_imported or container.filename.endswith(WACZ_SUFFIX)):
            return None
        is_loose = file is not None and f"{WACZ_SUFFIX}/" not in file
        if self._is_imported and is_loose:
            return None
        is_packed = container.hash is not None or container.size is not None
        if not (is_packed or self._is_to_be_packed or self._is_always_packed):
            return None
        return replace(container, filename=wacz_name(container.filename, file))

    def _at(self, place: int) -> Container | None:
        return self.known[place] if 0 <= place < len(self.known) else None


def wacz_name(container: str, file: str | None) -> str:
    """The file name of a container with a WARC file in it. A manifest may give it another name.

    >>> wacz_name("c2", "/archive/two.wacz/archive/x.warc.gz"), wacz_name("a.wacz", None)
    ('two.wacz', 'a.wacz')
    """
    place, found, _ = (file or "").partition(f"{WACZ_SUFFIX}/")
    if container.endswith(WACZ_SUFFIX) or not found:
        return container
    return f"{place.rpartition('/')[2]}{WACZ_SUFFIX}"


def is_bare(file: str) -> bool:
    """Whether a need has only the name of a file, from the metadata of a WACZ.

    >>> is_bare("one.wacz"), is_bare("/archive/one.wacz"), is_bare("https://example.org/one.wacz")
    (True, False, False)
    """
    return not (is_url(file) or Path(file).is_absolute())


def needs_meant(
    crawl: str,
    needs: Sequence[Need],
    crawls: Mapping[str, CrawlInfo],
    containers_of: Callable[[str], Containers],
) -> list[Need]:
    """The needs of *crawl*, each with the id that the index has for the needed crawl.

    A bare name of a WACZ whose crawl is not in the index means the crawl that has a container with this name. It is
    ignored if that is *crawl* itself, since the WACZ was imported under the same id. A bare name that no crawl has is
    ignored if no revisit of the crawl waits: all originals were found under other names.
    """
    found: dict[Need, None] = {}
    for need in needs:
        if need.crawl == crawl:
            continue
        name = need.file
        if not name or not is_bare(name):
            found[need] = None
            continue
        if containers_of(need.crawl).named(name) is None and containers_of(crawl).named(name) is not None:
            continue
        info = crawls.get(need.crawl)
        if info is not None and info.state != "canceled":
            found[need] = None
            continue
        holders = (other for other in crawls if containers_of(other).named(name) is not None)
        if name.endswith(WACZ_SUFFIX) and (holder := next(holders, None)) is not None:
            found[replace(need, crawl=holder)] = None
        elif crawl not in crawls or crawls[crawl].waiting:
            found[need] = None
    return list(found)


def _read(container: Mapping[str, object]) -> Container | None:
    name, digest, size = (container.get(field) for field in ("filename", "hash", "size"))
    if not isinstance(name, str) or not name:
        return None
    return Container(
        name,
        digest if isinstance(digest, str) else None,
        size if isinstance(size, int) and not isinstance(size, bool) else None,
    )


def _place_in(file: str, container: str) -> str | None:
    """The location of a container, if a WARC file is named as a member of it.

    >>> _place_in("/archive/one.wacz/archive/one.warc.gz", "one.wacz")
    '/archive/one.wacz'
    >>> _place_in("/archive/one.warc.gz", "one.wacz") is None
    True
    """
    place, found, _ = file.partition(f"{container}/archive/")
    is_whole = not place or place.endswith(("/", "\\"))
    return f"{place}{container}" if found and is_whole else None


def _file_name(file: str) -> str:
    """The file name in a path or URL.

    >>> _file_name("https://example.org/a/one.warc.gz?version=2")
    'one.warc.gz'
    """
    return file.partition("?")[0].rpartition("/")[2] if is_url(file) else Path(file).name
