"""Reads a WACZ: its WARC files, its index, and its datapackage.json.

The file may be local or remote. Opening it reads only its ZIP directory, and refuses what `zip_members` refuses;
everything else is read on demand. The index may have any of its forms: ``indexes/NAME.cdx`` or ``.cdxj``, plain or in
gzip members (``.gz``). If an index exists in several forms with the same NAME, only one form is read. Indexes with
different NAMEs are all read.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.cdxj_reading import lines_of, unpacked
from scrapy_dedupe.warc.codings import DECODED, STORED
from scrapy_dedupe.warc.containers import archive_names
from scrapy_dedupe.warc.manifests import MAX_JSON_BYTES, bare_sha256, json_object
from scrapy_dedupe.warc.remote import open_in_order, read_errors, shown
from scrapy_dedupe.warc.wacz import Requirement
from scrapy_dedupe.warc.zip_members import ZipDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.warc.sources import ReadableFile
    from scrapy_dedupe.warc.zip_members import StoredMember

_DATAPACKAGE = "datapackage.json"
_INDEX = re.compile(r"(indexes/.+?)(\.cdxj?)(\.gz)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class WaczAbout:
    """The metadata of a WACZ. ``payload`` is ``stored`` or ``decoded`` if the WACZ states it explicitly."""

    crawl: str | None = None
    software: str | None = None
    payload: str | None = None
    requires: tuple[Requirement, ...] = ()


class StoredWacz:
    """A WACZ for reading. Raises ArchiveError if it cannot be read, DamagedInput if it is broken or refused."""

    def __init__(self, file: ReadableFile) -> None:
        self.file = file
        self._where = shown(str(file))
        self._directory = ZipDirectory(file)
        self._indexes = _one_of_each(self._directory.names)

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return self.file.name

    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
        return self._directory.size_bytes

    @property
    def files(self) -> list[StoredMember]:
        """Its WARC files, in order of their names. Raises DamagedInput if there are none."""
        return self._directory.members(archive_names(self._directory))

    @property
    def has_index(self) -> bool:
        """Whether it has an index in a supported form."""
        return bool(self._indexes)

    @property
    def about(self) -> WaczAbout:
        """The contents of its datapackage.json; empty if it has none. Raises DamagedInput for a broken one."""
        if _DATAPACKAGE not in self._directory.names:
            return WaczAbout()
        data = bytearray()
        for piece in self._directory.pieces(_DATAPACKAGE):
            data += piece
            if len(data) > MAX_JSON_BYTES:
                break
        about = json_object(data, self._broken)
        payload = about.get("dedupePayload")
        if payload not in (None, STORED, DECODED):
            raise self._broken(f"its dedupePayload is {str(payload)[:40]!r}, not {STORED} or {DECODED}")
        return WaczAbout(
            _text_or_none(about.get("crawlId")),
            _text_or_none(about.get("software")),
            payload,
            tuple(self._requirements(about.get("relation"))),
        )

    def index_lines(self) -> Iterator[bytes]:
        """Yield the lines of its index, without their ends; of a line that is too long, the beginning.

        Raises DamagedInput, after the preceding lines, where the index does not unpack to its end.
        """
        for name in self._indexes:
            packed = self._directory.packed_size(name)
            yield from lines_of(
                unpacked(self._directory.pieces(name), f"{self._where}/{name}", stored_bytes=packed)
            )

    def sha256(self) -> str:
        """The SHA-256 of the whole file in bare hex."""
        with read_errors(self.file), open_in_order(self.file) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _requirements(self, relation: object) -> Iterator[Requirement]:
        if relation is None:
            return
        requires = relation.get("requires", []) if isinstance(relation, dict) else None
        if not isinstance(requires, list):
            raise self._broken("its relation has no list of requirements")
        for entry in requires:
            if not isinstance(entry, dict):
                raise self._broken("its relation requires a value that is not an object")
            filename, crawl = _text_or_none(entry.get("filename")), _text_or_none(entry.get("crawlId"))
            if filename is None or crawl is None:
                raise self._broken("its relation has a requirement without filename or crawlId")
            size = entry.get("size")
            yield Requirement(
                filename, crawl, bare_sha256(entry.get("hash")), size if type(size) is int else None
            )

    def _broken(self, why: str) -> DamagedInput:
        return DamagedInput(f"{self._where}/{_DATAPACKAGE} is broken: {why}. Pack the WACZ again.")


def _one_of_each(names: list[str]) -> list[str]:
    """The indexes among the members. If some differ only in their suffixes, the one with the shortest name."""
    by_name: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        if match := _INDEX.fullmatch(name):
            by_name.setdefault(match[1], name)
    return sorted(by_name.values())


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
