"""What the index knows already: a source of a name that was imported is the same one again, or another one.

A container is told by its name; that the file is the same, its size says, and its hash where it is compared. A WARC
file or a CDXJ is told by its place, and the files that it is or names say which crawl has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.cdxj_reading import CdxCapture, cdxj_lines, read_cdxj
from scrapy_dedupe.warc.remote import place_file, shown

from .places import size_of
from .source_entry import files_beside, sha256_and_size
from .sources import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapy_dedupe.stores.base import Source

    from .index import CrawlIndex


class KnownSources:
    """What the crawls of an index hold, as it is when this is made."""

    def __init__(self, index: CrawlIndex) -> None:
        self._containers: dict[str, dict[str, dict[str, object]]] = {}
        self._owners: dict[str, set[str]] = {}
        self._crawls: set[str] = set()
        for info in index.crawls():
            self._crawls.add(info.id)
            for file in info.files:
                self._owners.setdefault(file, set()).add(info.id)
            for container in index.containers(info.id):
                # Crawls of another program may have containers of one name.
                self._containers.setdefault(str(container.get("filename")), {})[info.id] = container

    def owners(self, source: Source) -> Iterable[str]:
        """The crawls that have the source, or one of its name."""
        if source.is_container:
            return self._containers.get(source.name, {})
        return self._owners.get(source.name) or self._owners.get(_first_file(source), set())

    def difference(self, source: Source, *, verify: bool, alive: Callable[[], None]) -> str | None:
        """Why a source is not the one of its name that was imported, if it is another one or goes to another crawl.

        With *verify* the hash of a container is compared, if the index has one, and not only its size.
        """
        owners = self.owners(source)
        if source.crawl in owners:
            container = self._containers[source.name][source.crawl] if source.is_container else {}
            return _other_file(source, container, verify=verify, alive=alive)
        if owners:
            return _taken(source, f"the crawl {min(owners)}")
        # The files of a crawl may have been moved since.
        if source.is_container or source.crawl not in self._crawls:
            return _taken(source, "a crawl that it does not know any more")
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
        # It was imported when it could be read.
        pass
    return ""


def _other_file(
    source: Source, container: Mapping[str, object], *, verify: bool, alive: Callable[[], None]
) -> str | None:
    """Why the file of a source is another one than the container; None for the same one."""
    size, hash_ = source.size, source.hash
    try:
        file = place_file(source.place)
        if verify and container.get("hash") is not None:
            hash_, size = sha256_and_size(file, alive)
        elif size is None:
            size = size_of(file)
    except (OSError, DedupeError) as error:
        if verify:
            return f"It cannot be compared with what the index knows of it: {error}"
    for name, mine in (("size", size), ("hash", hash_)):
        known = container.get(name)
        if mine is not None and known is not None and mine != known:
            return (
                f"{shown(source.place)} has the {name} {mine}, but the index knows {source.name} of the crawl"
                f" {source.crawl} with {known}. It is another file: give it another name and another crawl."
            )
    return None


def _taken(source: Source, owner: str) -> str:
    return (
        f"{shown(source.place)} is to be imported under the crawl {source.crawl}, but the index knows {source.name} as one of"
        f" {owner}. Import it under that crawl, or rename it."
    )
