"""What crawls need of each other.

A revisit is of no use without its original. So a crawl needs the crawls that its revisits refer to, and there the WACZ
files (containers), or the WARC files where a crawl has none. The index notes that when a revisit is entered; of crawls
that it has not seen whole nobody knows it all (:meth:`Dependencies.why_unknown`).

The index knows a container by its name alone. Where it lies is known from the crawl's WARC files, if they are in it,
or it lies in the folder for WACZ files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import holders
from .holders import is_bare
from .places import is_present, is_remote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from scrapy_dedupe.stores.base import CrawlInfo, Need

    from .index import CrawlIndex


@dataclass(frozen=True, slots=True)
class Needed:
    """A container or a WARC file of another crawl that revisits refer to.

    ``state`` is the state of that crawl, None if the index does not have it. ``name`` is the file name of the
    container or of the WARC file, None if the index knows neither. ``place`` is the path or URL where it is, or was
    when the index last heard of it. ``is_present`` is None where nobody knows the place.
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
        """Whether the index has the crawl, and what it holds."""
        return self.state in ("committed", "uncommitted")

    def __str__(self) -> str:
        return f"{self.crawl} ({self.name})" if self.name else self.crawl


@dataclass(frozen=True, slots=True)
class CrawlContainer:
    """A WACZ file of a crawl. ``place`` and ``is_present`` as those of :class:`Needed`."""

    filename: str
    hash: str | None
    size: int | None
    place: str | None
    is_present: bool | None


class Dependencies:
    """What each crawl of an index needs, as it was when this object was made.

    ``wacz_folder`` is where containers are looked for, besides the places that the index knows.
    """

    def __init__(self, index: CrawlIndex, wacz_folder: Path | None = None) -> None:
        self.crawls: Mapping[str, CrawlInfo] = {info.id: info for info in index.crawls()}
        self._index = index
        self._wacz_folder = wacz_folder
        self._importing = {source.crawl for source in index.unfinished_sources()}
        self._containers: dict[str, list[CrawlContainer | None]] = {}
        self._holding: dict[str, holders.Containers] = {}
        # Of a canceled crawl the index has forgotten what it needed.
        self._needs = {
            crawl: holders.needs_meant(crawl, index.needs(crawl), self.crawls, self._holding_of)
            for crawl in self.crawls
        }

    def needs(self, crawl: str) -> list[Needed]:
        """What a crawl needs, each container or file once, in the order of crawls."""
        found: dict[tuple[str, str | None], Needed] = {}
        for need in self._needs.get(crawl, ()):
            needed = self._needed(need)
            # Of the files in one container the one that is worst off counts.
            known = found.setdefault((needed.crawl, needed.name), needed)
            if _presence(needed) < _presence(known):
                found[needed.crawl, needed.name] = needed
        return list(found.values())

    def crawls_needed(self, crawl: str) -> list[str]:
        """The crawls that a crawl needs, in order of their ids."""
        return sorted({need.crawl for need in self._needs.get(crawl, ())})

    def needed_by(self, crawl: str) -> list[str]:
        """The crawls that need one, as far as is known."""
        return [other for other, needs in self._needs.items() if any(need.crawl == crawl for need in needs)]

    def files_needed(self, crawl: str) -> set[str]:
        """The places of what a crawl needs, as far as they are known: of containers and of WARC files."""
        files = {need.file for need in self._needs.get(crawl, ()) if need.file and not is_bare(need.file)}
        return files | {needed.place for needed in self.needs(crawl) if needed.place}

    def dependants(self, crawls: Collection[str]) -> list[tuple[str, Needed]]:
        """Which other crawls need something of *crawls*, and what."""
        gone = set(crawls)
        return [
            (other, needed)
            for other, needs in self._needs.items()
            if other not in gone and any(need.crawl in gone for need in needs)
            for needed in self.needs(other)
            if needed.crawl in gone
        ]

    def undecided(self, crawls: Collection[str]) -> list[tuple[str, str]]:
        """Which crawls besides *crawls* may need anything, and why nobody knows."""
        reasons = ((other, self.why_unknown(other)) for other in self._needs if other not in set(crawls))
        return [(other, reason) for other, reason in reasons if reason is not None]

    def why_unknown(self, crawl: str) -> str | None:
        """Why it is not known all that a crawl needs: the end of a sentence that begins with the crawl. Else None."""
        info = self.crawls[crawl]
        if info.state == "canceled":
            return None
        if crawl in self._importing or (info.imported and info.state == "uncommitted"):
            return "is being imported, or was until that was cut off"
        if info.incomplete:
            return "is running, or did not end well"
        if info.software is None and info.state == "uncommitted":
            return "was made by another program and may be running"
        if info.software is None and info.counts.dupe_urls and not self._needs[crawl]:
            return "was made by another program, which did not note what its revisits refer to"
        return None

    def containers(self, crawl: str) -> list[CrawlContainer]:
        """The containers of a crawl, without entries that cannot be read."""
        return [container for container in self._all_containers(crawl) if container is not None]

    def _needed(self, need: Need) -> Needed:
        info = self.crawls.get(need.crawl)
        state = None if info is None else info.state
        file = self._file(need, info)
        containers = self._all_containers(need.crawl)
        number = self._holding_of(need.crawl).place_for(need)
        container = None if number is None else containers[number]
        if container is None:
            # It is not packed yet, or holds other files, so the record is in the WARC file.
            name = _file_name(need.file) if need.file else None
            return Needed(need.crawl, state, name, file, is_present(file) if file else None)
        needed = Needed(need.crawl, state, container.filename, container.place, container.is_present)
        if container.is_present or file is None:
            return needed
        return replace(needed, place=file, is_present=is_present(file))

    def _holding_of(self, crawl: str) -> holders.Containers:
        self._all_containers(crawl)
        return self._holding[crawl]

    def _file(self, need: Need, info: CrawlInfo | None) -> str | None:
        """The place of the file that a need names; of a bare name the one that its crawl has."""
        if not need.file or not is_bare(need.file):
            return need.file
        files = info.files if info is not None else ()
        return next((file for file in files if _file_name(file) == need.file), None)

    def _all_containers(self, crawl: str) -> list[CrawlContainer | None]:
        if crawl not in self._containers:
            info = self.crawls.get(crawl)
            files = info.files if info is not None else ()
            known = self._index.containers(crawl)
            self._holding[crawl] = holders.Containers(known, info)
            self._containers[crawl] = [self._container(entry, files) for entry in known]
        return self._containers[crawl]

    def _container(self, entry: Mapping[str, object], files: Collection[str]) -> CrawlContainer | None:
        name, digest, size = (entry.get(field) for field in ("filename", "hash", "size"))
        if not isinstance(name, str) or not name:
            return None
        places = list(dict.fromkeys(place for file in files if (place := _place_in(file, name)) is not None))
        is_there = [place for place in places if is_remote(place) or Path(place).is_file()]
        folder = self._wacz_folder
        if not is_there and folder is not None and (folder / Path(name).name).is_file():
            is_there = [str((folder / Path(name).name).absolute())]
        place = next(iter([*is_there, *places]), None)
        return CrawlContainer(
            name,
            digest if isinstance(digest, str) else None,
            size if isinstance(size, int) else None,
            place,
            None if place is None else bool(is_there),
        )


def _place_in(file: str, container: str) -> str | None:
    """Where a container lies, if a WARC file is named as one that is in it.

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
    return file.partition("?")[0].rpartition("/")[2] if is_remote(file) else Path(file).name


def _presence(needed: Needed) -> int:
    return {False: 0, None: 1, True: 2}[needed.is_present]
