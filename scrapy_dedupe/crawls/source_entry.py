"""Adds a claimed source completely: a WACZ, a WARC or ARC file, or a CDXJ.

A source is checked as a whole first: its type, its size and, if requested, its hash in the manifest, and whether its
index unpacks to the end. Only then are records added. A WACZ without an index is added from its WARC files.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DamagedInput, SettingError, TakenOver
from scrapy_dedupe.stores.base import Need
from scrapy_dedupe.stores.crawl_index import PAYLOAD_MODES
from scrapy_dedupe.stores.normal_forms import algorithm_of
from scrapy_dedupe.warc.cdxj_reading import CdxFault, cdxj_lines, read_cdxj
from scrapy_dedupe.warc.codings import payload_mode
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import is_url, place_file, shown, unreadable
from scrapy_dedupe.warc.wacz_reading import StoredWacz

from .crawl_files import PAYLOAD_FIELD, sha256_of, size_of, warcinfo_of
from .entries import EntryRules, derive, entry_of_line
from .entry_writer import EntryWriter
from .sources import files_beside, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.stores.base import Counts, Original, Source, UrlCapture, Waiting
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.sources import ReadableFile
    from scrapy_dedupe.warc.wacz import Requirement

MAX_FAULTS = 1_000
"""The number of faults of which the sentences are kept."""

_BATCH = 1_000


class Alive(Protocol):
    """Called often during the work on a source, whenever it may be stopped; ``share`` of it is done."""

    def __call__(self, share: float | None = None) -> None: ...


class SourceEntry(EntryWriter):
    """The addition of one claimed source.

    ``payload_of`` returns the payload mode of a source, given the mode in its metadata or None. ``verify``: the hash of a
    container is compared, not only its size. ``is_only``: its crawl has no other source. Otherwise revisits whose
    original is in another crawl wait, because another source may add the original to the crawl itself, and the order of
    sources must make no difference. ``skipped`` counts the skipped lines and records, and ``faults`` are the first
    sentences about them. ``absent`` are the missing WARC files that a CDXJ names. ``algorithms`` counts the added
    originals by the algorithms of their digests.
    """

    absent: Sequence[str] = ()
    skipped = 0

    def __init__(
        self,
        index: CrawlIndex,
        source: Source,
        *,
        payload_of: Callable[[str | None], str],
        verify: bool,
        is_only: bool,
        alive: Alive,
    ) -> None:
        super().__init__(index, source.crawl, settles_others=is_only)
        self._source = source
        self._payload_of = payload_of
        self._verify = verify
        self._alive = alive
        self.faults: list[str] = []
        self.algorithms: Counter[str] = Counter()
        self._files: dict[str, None] = {}
        self._rules = EntryRules(source.crawl)

    def enter(self) -> Counts | None:
        """Add the source completely; return its counts, None for a container that its crawl has under another name.

        Raises :class:`~scrapy_dedupe.errors.DamagedInput` or :class:`~scrapy_dedupe.errors.ArchiveError` for a broken
        source, and what the index raises: :class:`~scrapy_dedupe.errors.CrawlStateError` if it has lost the source in the
        meantime. Records that were already added are hidden then and must be dropped.
        """
        source = self._source
        try:
            with closing(self):
                file = place_file(source.place)
                kind = kind_of(file)
                if source.is_container != (kind == "wacz") or kind == "manifest":
                    wanted = "WACZ" if source.is_container else "WARC, ARC or CDXJ file"
                    raise DamagedInput(
                        f"{shown(str(file))} is not a {wanted}. Name another file, or correct the manifest."
                    )
                if kind == "wacz":
                    return self._enter_container(file)
                size = _checked_size(source, size_of(file))
                if self._verify and source.hash is not None:
                    _checked_hash(source, file, size, self._alive)
                return self._enter_records(file, size) if kind == "warc" else self._enter_lines(file)
        except OSError as error:
            # Temporary files may be full, and the source may become unreadable.
            raise ArchiveError(
                f"{shown(source.place)} cannot be imported: {error.strerror or error}. Check whether it exists, and the free"
                " space for temporary files (TMPDIR)."
            ) from error

    def _enter_container(self, file: ReadableFile) -> Counts | None:
        source = self._source
        wacz = StoredWacz(file)
        size = _checked_size(source, wacz.size_bytes)
        containers = self.index.containers(source.crawl)
        others = [entry for entry in containers if entry.get("filename") != source.name]
        may_be_known = any(entry.get("size") == size for entry in others)
        hash_ = source.hash
        if (hash_ is None and (isinstance(file, Path) or may_be_known)) or self._verify:
            hash_ = _checked_hash(source, file, size, self._alive)
        if hash_ is not None and any(entry.get("hash") == hash_ for entry in others):
            return None
        self._source = replace(source, hash=hash_, size=size)
        about = wacz.about
        members = wacz.files
        # A program that only packs WARC files does not decide how they were written.
        mode = (
            about.payload
            or payload_mode(about.software)
            or (_payload_of_warc(members[0]) if members else None)
        )
        if wacz.has_index:
            with _checked_lines(wacz.index_lines(), self._alive) as lines:
                self._begin(mode)
                sizes = {str(member): member.size_bytes for member in members}
                self.take_lines(lines, members_by_name(members), sizes)
        else:
            self._begin(mode)
            for number, member in enumerate(members):
                self._alive(number / len(members))
                self.take_records(member, lambda offset: self._alive())
        return self._result(size, required(self.index, about.requires, source.crawl))

    def _enter_records(self, file: ReadableFile, size: int) -> Counts:
        self._begin(_payload_of_warc(file))
        self.take_records(file, lambda offset: self._alive(offset / size))
        return self._result(size)

    def _enter_lines(self, file: ReadableFile) -> Counts:
        with _checked_lines(cdxj_lines(file), self._alive) as lines:
            self._begin(None)
            size = self.take_lines(lines, files_beside(self._source.place), {})
        counts = self._result(size)
        # Remote files are not checked, to avoid a request for each.
        self.absent = [name for name in self._files if not is_url(name) and not Path(name).is_file()]
        return counts

    def _begin(self, own_payload: str | None) -> None:
        wacz_index = self.index.begin_source(self._source, self._payload_of(own_payload))
        self._rules = EntryRules(self._source.crawl, wacz_index)

    def take_lines(
        self, lines: Iterable[bytes], file_of: Callable[[str], str], sizes: Mapping[str, int]
    ) -> int:
        """Process the lines of a CDXJ; return the total size of all records that they name.

        ``file_of`` returns the location of a WARC file that a line names, and raises
        :class:`~scrapy_dedupe.errors.DamagedInput` for a name that is not allowed. Raises this error too if a record
        would end after the end of its file; ``sizes`` are the known sizes of files in bytes.
        """
        size = 0
        for line in read_cdxj(lines):
            if isinstance(line, CdxFault):
                self._on_fault(f"line {line.line}: {line.reason}")
                continue
            size += line.length
            if not line.is_exchange:
                continue
            file = size_of_file = None
            try:
                if line.filename is not None:
                    file = file_of(line.filename)
                    size_of_file = sizes.get(file)
                    self._files[file] = None
                self.take(entry_of_line(line, file, self._rules))
            except (SettingError, DamagedInput) as error:
                self._on_fault(f"the line of {line.url}: {error}")
            end = (line.offset or 0) + line.length
            if file is not None and size_of_file is not None and end > size_of_file:
                raise DamagedInput(
                    f"{shown(file)} has {size_of_file} bytes, but the index of the WACZ names a record of {line.url} that"
                    f" ends at byte {end}. The file was cut, or the index is of another file: get the WACZ again."
                )
        return size

    def take_records(self, file: ReadableFile, progress: Callable[[int], None]) -> None:
        """Process the records of a WARC or ARC file.

        ``progress`` is called with the offset of each. Raises :class:`~scrapy_dedupe.errors.DamagedInput` for a file
        with any damage.
        """
        self._files[str(file)] = None
        try:
            records = self.captures.noted(read_records(file))
            for record, entry in derive(records, str(file), self._rules, self._on_fault):
                progress(record.offset)
                if entry is not None:
                    self.take(entry, record if entry.is_revisit else None)
        except OSError as error:
            raise unreadable(file, error) from error

    def _result(self, size_bytes: int, needs: Iterable[Need] = ()) -> Counts:
        """Finish the source (see :meth:`finish`).

        Raises :class:`~scrapy_dedupe.errors.DamagedInput` for a source without any response or revisit.
        """
        if not self.total:
            raise DamagedInput(
                f"{shown(self._source.place)} holds no record that can be added; nothing was imported."
                + (f" The first fault: {self.faults[0]}" if self.faults else "")
            )
        # Register files with only revisits too: a check must find them.
        with self._explaining_loss():
            self.index.add_imported(self._source, [], [], list(self._files))
        return self.finish(size_bytes, needs)

    def add(self, originals: Sequence[Original], urls: Sequence[UrlCapture]) -> None:
        self.algorithms.update(algorithm_of(original.digest) for original in originals)
        with self._explaining_loss():
            self.index.add_imported(self._source, originals, urls)

    def end(self, counts: Counts, needs: Sequence[Need], waiting: Iterable[Waiting]) -> None:
        self._alive()
        with self._explaining_loss():
            self.index.end_source(self._source, counts, needs, waiting)

    def check(self) -> None:
        self._alive()

    def on_unnamed(self, place: str) -> None:
        self._on_fault(
            f"{place}: the revisit has no payload digest, and the record that it refers to is not in the same"
            " source. The index finds records of other sources only by their digests"
        )

    def _on_fault(self, sentence: str) -> None:
        self.skipped += 1
        # Records that share an offset share their fault.
        if len(self.faults) < MAX_FAULTS and sentence not in self.faults[-1:]:
            self.faults.append(sentence)

    @contextmanager
    def _explaining_loss(self) -> Iterator[None]:
        """Explain the error if the index no longer knows the source that was begun here."""
        try:
            yield
        except TakenOver:
            raise
        except CrawlStateError as error:
            raise CrawlStateError(
                f"The index has lost {self._source.name} during its import: the index was emptied, or the crawl"
                f" {self._source.crawl} was canceled or purged. Import it again."
            ) from error


@contextmanager
def _checked_lines(lines: Iterable[bytes], alive: Alive) -> Iterator[Iterator[bytes]]:
    """Yield the lines of an index, which are kept in a temporary file until the index was read to its end.

    So an index that does not unpack to its end is refused before any line is added.
    """
    count = 0
    with tempfile.TemporaryFile(prefix="scrapy-dedupe-") as kept:
        for line in lines:
            count += 1
            kept.write(line.rstrip(b"\r\n") + b"\n")
            if not count % _BATCH:
                alive()
        kept.seek(0)

        def lines_again() -> Iterator[bytes]:
            for number, line in enumerate(kept):
                if not number % _BATCH:
                    alive(number / count)
                yield line

        yield lines_again()


def _payload_of_warc(file: ReadableFile) -> str | None:
    """The payload mode that the warcinfo of a WARC file names, or that its software has; None if unknown."""
    info = warcinfo_of(file)
    own = info.get(PAYLOAD_FIELD)
    return own if own in PAYLOAD_MODES else payload_mode(info.get("software"))


def _checked_size(source: Source, size: int) -> int:
    if source.size is not None and source.size != size:
        raise DamagedInput(
            f"{shown(source.place)} has {size} bytes, but the manifest says {source.size}: another or incomplete file."
            " Copy the file again, or correct the manifest."
        )
    return size


def _checked_hash(source: Source, file: ReadableFile, size: int, alive: Alive) -> str:
    digest, taken = sha256_of(file, lambda count: alive())
    if source.hash is not None and source.hash != digest:
        raise DamagedInput(
            f"{shown(source.place)} has the SHA-256 {digest}, but the manifest says {source.hash}: it is another file, or"
            " damaged. Copy the file again, or correct the manifest."
        )
    if taken != size:
        raise DamagedInput(
            f"{shown(source.place)} changed while it was read. Import it again when no other program writes to it."
        )
    return digest


def members_by_name(files: Sequence[ReadableFile]) -> Callable[[str], str]:
    """Return the location of the WARC files of a WACZ by their names in its index, with or without folders."""
    places: dict[str, list[str]] = {}
    for file in files:
        path = str(file).rpartition("/archive/")[2]
        for name in {path, file.name}:
            places.setdefault(name, []).append(str(file))

    @lru_cache(4_096)
    def file_of(filename: str) -> str:
        found = places.get(filename) or places.get(PurePosixPath(filename).name) or []
        if len(found) != 1:
            wrong = "are several files" if found else "is no file"
            raise DamagedInput(f"there {wrong} {filename!r} in the folder archive/ of the WACZ.")
        return found[0]

    return file_of


def required(index: CrawlIndex, requires: Sequence[Requirement], crawl: str) -> set[Need]:
    """Return what a WACZ of *crawl* needs, by its metadata. A container that is not in the index is given by file name."""

    @cache
    def names_of(other: str) -> list[object]:
        return [container.get("filename") for container in index.containers(other)]

    needs: set[Need] = set()
    for requirement in requires:
        other, name = requirement.crawl, requirement.filename
        if other and other != crawl:
            known = names_of(other)
            needs.add(Need(other, known.index(name)) if name in known else Need(other, 0, name))
    return needs
