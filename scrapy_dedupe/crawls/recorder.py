"""Writes the exchanges of one crawl: each payload once, then revisit records that refer to it.

For every capture, in this order: look the payload up, write a ``response`` or a ``revisit`` record with its
``request``, then enter the new payload in the index. A payload is never in the index before its record is in
the file. While the index is away every payload counts as new, and the crawl is marked as incomplete: what is
missing from the index is read from the crawl's own files before the commit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scrapy_dedupe.errors import CrawlStateError, StoreError
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.dates import date_digits, date_from_digits

from .rebuilding import rebuild
from .rules import RevisitRules

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.warc.capture import Capture
    from scrapy_dedupe.warc.files import WarcWriter

    from .index import CrawlIndex

logger = logging.getLogger(__name__)


class Guard(Protocol):
    """Tells whether the index may be asked, and is told how that went."""

    @property
    def open(self) -> bool: ...

    def failed(self, error: BaseException) -> None: ...

    def worked(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a capture. ``kind`` is ``response`` or ``revisit``; sizes in bytes.

    ``conserved_size`` is what the revisit takes less than its original on disk; never negative.
    """

    kind: str
    record_id: str
    file: str
    offset: int
    written: int
    conserved_size: int = 0
    refers_to: Original | None = None


class Recorder:
    """The archive of one crawl. Used on one thread, in the order of the exchanges.

    :meth:`record` raises :class:`~scrapy_dedupe.errors.ArchiveError` when the file cannot be written; errors
    of the index go to *guard*.
    """

    def __init__(
        self,
        writer: WarcWriter,
        index: CrawlIndex,
        crawl: str,
        guard: Guard,
        *,
        rules: RevisitRules | None = None,
        digest: str = "sha256",
        check_files: bool = True,
    ) -> None:
        self._writer = writer
        self._index = index
        self._crawl = crawl
        self._guard = guard
        self._rules = rules or RevisitRules()
        self._digest = digest
        self._check_files = check_files
        self._has_told_of_missing_file = False
        self._has_told_of_state = False
        self.is_incomplete = False

    def record(self, capture: Capture) -> Recorded:
        """Write one exchange."""
        digest = capture.payload_digest(self._digest)
        is_admitted = self._admits(capture)
        original = self._find(digest) if is_admitted and self._rules.enabled else None
        if original is None:
            principal = records.response(capture, digest=digest, warcinfo_id=self._writer.warcinfo_id)
        else:
            principal = records.revisit(
                capture,
                digest=digest,
                refers_to=original.record_id,
                refers_to_uri=original.url,
                refers_to_date=date_from_digits(original.date),
                warcinfo_id=self._writer.warcinfo_id,
            )
        request = records.request(
            capture,
            concurrent_to=principal.id,
            warcinfo_id=self._writer.warcinfo_id,
            algorithm=self._digest,
        )
        place, beside = self._writer.write([principal, request])
        conserved = max(0, original.size - place.length) if original is not None else 0
        entries = []
        if is_admitted and original is None:
            entries.append(
                Original(
                    digest=digest,
                    crawl=self._crawl,
                    date=date_digits(principal.date),
                    url=capture.target_uri,
                    size=place.length,
                    record_id=principal.id,
                    file=str(self._writer.folder / place.file),
                    offset=place.offset,
                )
            )
        counts = Counts(total_urls=1, dupe_urls=int(original is not None), conserved_size=conserved)
        self._ask(lambda: self._index.add(self._crawl, entries, counts))
        return Recorded(
            kind="revisit" if original is not None else "response",
            record_id=principal.id,
            file=place.file,
            offset=place.offset,
            written=place.length + beside.length,
            conserved_size=conserved,
            refers_to=original,
        )

    def add_file(self, name: str) -> None:
        """A new file was begun; note it in the index."""
        self._ask(lambda: self._index.add_file(self._crawl, str(self._writer.folder / name)))

    def finish(self) -> list[Path]:
        """Close the files and bring the index up to date; the paths of this run's files.

        Raises :class:`~scrapy_dedupe.errors.StoreError` when the index is away, and
        :class:`~scrapy_dedupe.errors.CrawlStateError` when somebody else has committed the crawl meanwhile: the
        files are closed then, and the crawl stays incomplete.
        """
        finished = [self._writer.folder / file.file for file in self._writer.close()]
        if self.is_incomplete:
            # An index that was emptied meanwhile does not know the crawl any more.
            self._index.start(self._crawl)
            rebuild(self._index, self._crawl, self._writer.folder, self._rules)
        else:
            size = sum(path.stat().st_size for path in finished)
            self._index.add(self._crawl, [], Counts(total_crawl_size=size))
            self._index.mark_incomplete(self._crawl, False)
        return finished

    def _admits(self, capture: Capture) -> bool:
        return self._rules.admit(
            method=capture.method,
            status=capture.status,
            content_type=_content_type(capture),
            size_bytes=len(capture.body),
            is_complete=capture.is_complete,
        )

    def _find(self, digest: str) -> Original | None:
        found: list[Original | None] = []
        self._ask(lambda: found.extend(self._index.find(self._crawl, [digest])))
        original = found[0] if found else None
        if original is None or original.file is None or not self._check_files:
            return original
        path = Path(original.file)
        if path.exists() or path.with_name(f"{path.name}.open").exists():
            return original
        if not self._has_told_of_missing_file:
            self._has_told_of_missing_file = True
            logger.warning(
                "The index names originals in %s, which is not there any more; their payloads are stored anew."
                " If files of this index are moved after a crawl or lie on another machine, set"
                " DEDUPE_WARC_CHECK_FILES = False.",
                path,
            )
        return None

    def _ask(self, call: Callable[[], object]) -> None:
        """Ask the index if it answers; if not, the crawl's entries will be read from its files."""
        if self._guard.open:
            self.is_incomplete = True
            return
        try:
            call()
        except CrawlStateError as error:
            # The store answers. Somebody has committed, canceled or deleted the crawl while it runs.
            self.is_incomplete = True
            if not self._has_told_of_state:
                self._has_told_of_state = True
                logger.error("%s Until the end of the crawl nothing more is entered in the index.", error)
        except StoreError as error:
            self.is_incomplete = True
            self._guard.failed(error)
        else:
            self._guard.worked()


def _content_type(capture: Capture) -> str:
    values = (value for name, value in capture.response_headers if name.lower() == b"content-type")
    return next(values, b"").decode("latin-1")
