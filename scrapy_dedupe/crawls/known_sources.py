"""Compares a source with what the index already has: the same source again, or another one with the same name.

A container is identified by its name; its size, and its hash if it is compared, show whether the file is the same. A
WARC file or a CDXJ is identified by its location, and the files that it is or names show which crawl has it.
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
    from scrapy_dedupe.stores.crawl_index import CrawlIndex


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
            hash_, size = sha256_and_size(file, alive)
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
