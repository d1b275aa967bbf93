"""Determines from the files of a crawl what its digests are computed from: stored or decoded bodies.

The first record of a file has the field ``dedupe-payload`` with ``stored`` or ``decoded``; without it, ``stored``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.warc.codings import DECODED, STORED
from scrapy_dedupe.warc.files import warc_files
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

FIELD = "dedupe-payload"


def payload_of_files(crawl: str, folder: Path) -> str | None:
    """The mode of the files in *folder*, finished or not, whose warcinfo names *crawl*; None if there are none.

    Raises :class:`~scrapy_dedupe.errors.CrawlStateError` if the files have different modes.
    """
    found: dict[str, Path] = {}
    for path in warc_files(folder, unfinished=True):
        info = _info(path)
        if info.get("ispartof") == crawl:
            found.setdefault(DECODED if info.get(FIELD) == DECODED else STORED, path)
    if len(found) > 1:
        raise CrawlStateError(
            f"The crawl {crawl} has files with stored payloads ({found[STORED]}) and with decoded ones"
            f" ({found[DECODED]}), but an index holds only one kind. Move those of one kind to another folder."
        )
    return next(iter(found), None)


def _info(path: Path) -> dict[str, str]:
    try:
        first = next(read_records(path, on_damage=lambda damage: None), None)
    except OSError:
        return {}
    return first.info() if first is not None and first.type == "warcinfo" else {}
