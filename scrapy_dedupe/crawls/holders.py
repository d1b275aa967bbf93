"""Which container of a crawl holds a record of it.

A container is a WACZ file. Its name can be relied upon once it is packed, that is, once its size or hash is known;
and before that for a crawl which others may refer to while it runs, since it will be packed under the name that it
has. A committed crawl whose container is not packed has none: nobody knows whether it ever will be.

A WARC file that was imported by itself lies in no container, whichever others its crawl has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .places import WACZ_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo


@dataclass(frozen=True, slots=True)
class Container:
    """A WACZ file. ``hash`` is its SHA-256 in hex, ``size`` in bytes; None where they are not known."""

    name: str
    hash: str | None
    size: int | None


class Containers:
    """The containers of one crawl, as the index lists them.

    ``info`` is what the index knows of the crawl, None for a crawl that it does not list.
    """

    def __init__(self, known: Sequence[Mapping[str, object]], info: CrawlInfo | None) -> None:
        self._known = [_read(container) for container in known]
        self._is_imported = info is not None and info.imported
        self._is_to_be_packed = info is not None and info.state == "uncommitted" and info.concurrent

    def named(self, place: int) -> Container | None:
        """The container in that place, whether it is packed or not."""
        return self._known[place] if 0 <= place < len(self._known) else None

    def holding(self, place: int, file: str | None) -> Container | None:
        """The container in that place, if it holds, or will hold, a record that is in *file*."""
        container = self.named(place)
        if container is None or not container.name.endswith(WACZ_SUFFIX):
            return None
        # A need may name the container itself, before its crawl was known.
        is_loose = file is not None and f"{WACZ_SUFFIX}/" not in file and not file.endswith(WACZ_SUFFIX)
        if self._is_imported and is_loose:
            return None
        is_packed = container.hash is not None or container.size is not None
        return container if is_packed or self._is_to_be_packed else None


def _read(container: Mapping[str, object]) -> Container | None:
    name, digest, size = (container.get(field) for field in ("filename", "hash", "size"))
    if not isinstance(name, str):
        return None
    return Container(
        name,
        digest if isinstance(digest, str) else None,
        size if isinstance(size, int) and not isinstance(size, bool) else None,
    )
