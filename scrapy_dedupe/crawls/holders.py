"""Determines which container of a crawl holds a record.

A container is a WACZ file. Its name is final once it is packed, that is, once its size or hash is known. The name is
also final for a running crawl that other crawls may refer to, since it will be packed under this name. A committed
crawl of this package whose container is not packed has no container: it may never be packed.
Browsertrix's importer registers a WACZ without size and hash if it does not know them, and assigns all records of the
crawl to the first WACZ. So if a committed crawl of another program has only one WACZ, this WACZ may lack both.

A WARC file that was imported by itself is in no container, even if its crawl has containers.

A need from the metadata of a WACZ has the bare name of a container or WARC file, since its crawl was unknown when it
was imported. The name identifies the file, but not its location. The crawl that the need names may be in the index
under another id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .places import WACZ_SUFFIX, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo, Need


@dataclass(frozen=True, slots=True)
class Container:
    """A WACZ file. ``hash`` is its SHA-256 in hex, ``size`` in bytes; None where they are not known."""

    name: str
    hash: str | None
    size: int | None


class Containers:
    """The containers of one crawl, as the index lists them.

    ``info`` is the crawl's entry in the index, None for a crawl that the index does not list.
    """

    def __init__(self, known: Sequence[Mapping[str, object]], info: CrawlInfo | None) -> None:
        self._known = [_read(container) for container in known]
        self._is_imported = info is not None and info.imported
        self._is_to_be_packed = info is not None and info.state == "uncommitted" and info.concurrent
        is_foreign = (
            info is not None and info.state == "committed" and (info.imported or info.software is None)
        )
        self._is_always_packed = is_foreign and len(known) == 1

    def named(self, place: int) -> Container | None:
        """The container at that position, whether it is packed or not."""
        return self._known[place] if 0 <= place < len(self._known) else None

    def place_of(self, name: str) -> int | None:
        """The position of the container with this name, whether it is packed or not."""
        return next(
            (place for place, container in enumerate(self._known) if container and container.name == name),
            None,
        )

    def place_for(self, need: Need) -> int | None:
        """The position of the container that a need means; None if its record is in no container."""
        if need.file and is_bare(need.file):
            return self.place_of(need.file)
        is_in_it = not need.file or self.holding(need.wacz_index, need.file) is not None
        return need.wacz_index if is_in_it and self.named(need.wacz_index) is not None else None

    def holding(self, place: int, file: str | None) -> Container | None:
        """The container at that position, if it holds, or will hold, a record that is in *file*."""
        container = self.named(place)
        # A manifest may give an imported WACZ any name.
        if container is None or not (self._is_imported or container.name.endswith(WACZ_SUFFIX)):
            return None
        is_loose = file is not None and f"{WACZ_SUFFIX}/" not in file
        if self._is_imported and is_loose:
            return None
        is_packed = container.hash is not None or container.size is not None
        if not (is_packed or self._is_to_be_packed or self._is_always_packed):
            return None
        return replace(container, name=wacz_name(container.name, file))


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
    return not (is_remote(file) or Path(file).is_absolute())


def is_own(need: Need, own: Containers, others: Containers) -> bool:
    """Whether a need is met within its own crawl, since the WACZ that it names was imported under the same id.

    ``own`` are the containers of the crawl itself, ``others`` those of the crawl that the need names.
    """
    if not need.file or not is_bare(need.file):
        return False
    return others.place_of(need.file) is None and own.place_of(need.file) is not None


def needs_meant(
    crawl: str,
    needs: Sequence[Need],
    crawls: Mapping[str, CrawlInfo],
    containers_of: Callable[[str], Containers],
) -> list[Need]:
    """The needs of *crawl*, each with the id that the index has for the needed crawl.

    A bare name of a WACZ whose crawl is not in the index means the crawl that has a container with this name. A bare
    name that no crawl has is ignored if no revisit of the crawl waits: all originals were found under other names.
    """
    found: dict[Need, None] = {}
    for need in needs:
        if need.crawl == crawl:
            continue
        if not need.file or not is_bare(need.file):
            found[need] = None
            continue
        if is_own(need, containers_of(crawl), containers_of(need.crawl)):
            continue
        info = crawls.get(need.crawl)
        if info is not None and info.state != "canceled":
            found[need] = None
        elif (holder := _holder(need.file, crawls, containers_of)) is not None:
            found[replace(need, crawl=holder)] = None
        elif crawl not in crawls or crawls[crawl].waiting:
            found[need] = None
    return list(found)


def _holder(
    name: str, crawls: Mapping[str, CrawlInfo], containers_of: Callable[[str], Containers]
) -> str | None:
    if not name.endswith(WACZ_SUFFIX):
        return None
    return next((crawl for crawl in crawls if containers_of(crawl).place_of(name) is not None), None)


def _read(container: Mapping[str, object]) -> Container | None:
    name, digest, size = (container.get(field) for field in ("filename", "hash", "size"))
    if not isinstance(name, str):
        return None
    return Container(
        name,
        digest if isinstance(digest, str) else None,
        size if isinstance(size, int) and not isinstance(size, bool) else None,
    )
