"""Checks a container: whether it exists, and has the size and the hash in the index."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.warc.remote import place_file

if TYPE_CHECKING:
    from typing import IO

    from scrapy_dedupe.tasks.progress import Progress

_PIECE: Final = 1 << 20


def container_fault(place: str, size: int | None, digest: str | None, watch: Progress) -> str | None:
    """What is wrong with the container at a path or URL, as the end of a sentence; None if nothing is.

    ``size`` is in bytes, ``digest`` a SHA-256 in bare hex; None skips the comparison.
    """
    try:
        with place_file(place).open("rb") as stream:
            found = stream.seek(0, 2)
            if size is not None and found != size:
                return f"has {found} bytes, the index says {size}"
            if digest is not None:
                stream.seek(0)
                with part(watch, PurePosixPath(place).name, found):
                    made = _sha256(stream, watch)
                if made != digest:
                    return f"has the SHA-256 {made}, the index says {digest}"
    except (OSError, DedupeError) as error:
        return f"cannot be read: {error}"
    return None


def _sha256(stream: IO[bytes], watch: Progress) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(_PIECE):
        digest.update(piece)
        watch.advance(len(piece))
    return digest.hexdigest()
