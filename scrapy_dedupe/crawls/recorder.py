"""Writes the exchanges of one crawl: each payload once, then revisit records that refer to it.

For every capture, in this order: look up the payload, write a ``response`` or a ``revisit`` record with its
``request``, then add the new payload to the index. So a payload is never in the index before its record is in the
file. While the index is unavailable every payload counts as new, and the crawl is marked as incomplete: the missing
entries are read from the crawl's own files before the commit.

In an archive of decoded payloads each body is decoded first. A body that cannot be decoded, and an incomplete body,
which is not decoded, is written as received, with its Content-Encoding and without a payload digest, so that it is
never matched with another payload.

A body that no server sent in this form becomes a ``resource`` record, and the index is not changed.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts
from scrapy_dedupe.stores.normal_forms import formed_digest
from scrapy_dedupe.warc import codings, records
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.codings import DECODED
from scrapy_dedupe.warc.dates import date_from_digits

from .captured_records import RecentExchanges
from .entries import RevisitRules, conserved_size, entry_of_capture, entry_of_confirmation
from .live_index import LiveIndex
from .rebuilding import rebuild
from .reuse import RENEWAL_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.capture import Capture
    from scrapy_dedupe.warc.files import WarcWriter
    from scrapy_dedupe.warc.records import Record

    from .live_index import Confirmed, StoreGuard


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result for a capture. ``kind`` is ``response``, ``revisit``, ``resource`` or ``skipped``; sizes in bytes.

    A skipped capture has no record, since its URL was recorded recently with the same payload. ``date`` is the text of
    WARC-Date, ``digest`` the payload digest with its label, empty if there is no payload. ``conserved_size`` is the
    size of the original minus that of the revisit on disk; never negative. ``undecodable`` is the reason why a body was
    written as received in an archive of decoded payloads.
    """

    kind: str
    record_id: str
    file: str
    offset: int
    written: int
    date: str
    digest: str = ""
    conserved_size: int = 0
    refers_to: Original | None = None
    undecodable: str | None = None


@dataclass(eq=False)
class Recorder:
    """The archive of one crawl. Used on one thread, in the order of the exchanges.

    :meth:`record` raises :class:`~scrapy_dedupe.errors.ArchiveError` when the file cannot be written; errors of the
    index go to *guard*. With *containers_only* only records of other crawls that are in a WACZ are referred to.
    Within *blackout_s* seconds an unchanged payload of a URL is not recorded again. *payload* is ``stored`` or
    ``decoded``, the body that digests are computed from; *payload* and *concurrent* are those of
    :meth:`.CrawlIndex.start`. *on_finished* is called with the path of each finished file.
    """

    writer: WarcWriter
    index: InitVar[CrawlIndex]
    crawl: str
    guard: InitVar[StoreGuard]
    _: KW_ONLY
    rules: RevisitRules = field(default_factory=RevisitRules)
    digest: str = "sha256"
    check_files: InitVar[bool] = True
    blackout_s: float | None = None
    containers_only: InitVar[bool] = False
    payload: str = "stored"
    concurrent: bool = False
    on_finished: Callable[[Path], None] | None = None
    exchanges: RecentExchanges = field(default_factory=RecentExchanges)

    def __post_init__(
        self, index: CrawlIndex, guard: StoreGuard, check_files: bool, containers_only: bool
    ) -> None:
        self._path = ""
        self.writer.on_new_file = self._add_file
        self.writer.on_finished = self._file_finished
        self._index = LiveIndex(
            index,
            self.crawl,
            guard,
            statuses=self.rules.statuses,
            check_files=check_files,
            containers_only=containers_only,
            concurrent=self.concurrent,
            exchanges=self.exchanges,
        )

    @property
    def is_incomplete(self) -> bool:
        """Whether the index lacks records that are in the files."""
        return self._index.is_incomplete

    @property
    def has_unfinished(self) -> bool:
        """Whether a file of this run could not get its final name."""
        return self.writer.has_unfinished

    @property
    def paths(self) -> list[Path]:
        """The finished files of this run."""
        return [self.writer.folder / file.file for file in self.writer.files]

    def look_up(self, captures: Sequence[Capture]) -> list[str]:
        """Look up, in one round trip, the payloads of captures that are recorded next, in this order.

        Return their digests for :meth:`record`, empty for a capture that was not looked up. Captures that must be
        decoded first are not looked up, since all their decoded bodies would be held at once.
        """
        digests = [
            capture.payload_digest(self.digest)
            if self.rules.enabled
            and capture.status != 304
            and self.rules.admit_capture(capture)
            and not (self.payload == DECODED and codings.has_coding(capture))
            else ""
            for capture in captures
        ]
        self._index.look_up([digest for digest in digests if digest])
        return digests

    def record(self, capture: Capture, max_bytes: int = 0, digest: str = "") -> Recorded:
        """Write one exchange. A body with more than *max_bytes* when decoded is not decoded; 0: no limit.

        *digest* is that of :meth:`look_up`, if the payload was looked up.
        """
        if capture.rendering is not None:
            return self._record_rendered(capture)
        if capture.status == 304:
            return self._record_unmodified(capture)
        if self.payload == DECODED and codings.has_coding(capture):
            if not capture.is_complete:
                return self._record_as_it_came(capture)
            try:
                capture = codings.decoded(capture, max_bytes)
            except codings.Undecodable as error:
                return replace(self._record_as_it_came(capture), undecodable=str(error))
        is_admitted = bool(digest) or self.rules.admit_capture(capture)
        digest = digest or capture.payload_digest(self.digest)
        original = self._index.original_of(digest) if is_admitted and self.rules.enabled else None
        labelled = f"{self.digest}:{digest}" if capture.body else ""
        if original is None:
            principal = self._response(capture, digest)
        elif self.blackout_s is not None and self._index.is_repeated(capture, digest, self.blackout_s):
            return Recorded("skipped", "", "", 0, 0, "", labelled, refers_to=original)
        else:
            principal = self._revisit(capture, digest, original)
        return self._write(capture, principal, labelled, original, digest, is_admitted=is_admitted)

    def _record_as_it_came(self, capture: Capture) -> Recorded:
        digest = capture.payload_digest(self.digest)
        principal = self._response(capture, digest, has_payload_digest=False)
        return self._write(capture, principal, "", None)

    def _record_rendered(self, capture: Capture) -> Recorded:
        digest = capture.payload_digest(self.digest)
        resource = records.resource(capture, digest=digest, warcinfo_id=self.writer.warcinfo_id)
        (place,) = self.writer.write([resource])
        written = (resource.type, resource.id, place.file, place.offset, place.length, resource.date)
        return Recorded(*written, digest=f"{self.digest}:{digest}")

    def _record_unmodified(self, capture: Capture) -> Recorded:
        is_conditional = capture.method == "GET" and self.rules.enabled
        confirmed = self._index.confirmed_by(capture) if is_conditional else None
        if confirmed is None:
            # The digest of an empty payload is not written.
            principal = self._response(capture, capture.payload_digest(self.digest))
            return self._write(capture, principal, "", None)
        original = confirmed.original
        principal = self._revisit(capture, original.digest, original)
        if confirmed.renewal is not None:
            field = (RENEWAL_FIELD, confirmed.renewal.field)
            principal = records.Record((*principal.headers, field), principal.head)
        return self._write(
            capture, principal, str(parse_digest(original.digest)), original, confirmed=confirmed
        )

    def _response(self, capture: Capture, digest: str, *, has_payload_digest: bool = True) -> Record:
        warcinfo_id = self.writer.warcinfo_id
        return records.response(
            capture, digest=digest, has_payload_digest=has_payload_digest, warcinfo_id=warcinfo_id
        )

    def _revisit(self, capture: Capture, digest: str, original: Original) -> Record:
        make = records.not_modified if capture.status == 304 else records.revisit
        # None for the usual form.
        text = formed_digest(original.digest, original.form) if original.form else None
        return make(
            capture,
            digest=digest,
            refers_to=original.record_id,
            refers_to_uri=original.url,
            refers_to_date=date_from_digits(original.date),
            container=self._index.container_of(original),
            original_digest=text,
            warcinfo_id=self.writer.warcinfo_id,
        )

    def _write(
        self,
        capture: Capture,
        principal: Record,
        labelled: str,
        original: Original | None,
        digest: str | None = None,
        *,
        is_admitted: bool = False,
        confirmed: Confirmed | None = None,
    ) -> Recorded:
        """Write the exchange, then add it to the index.

        *is_admitted*: it may be an original or a revisit. *confirmed* is what a 304 confirms.
        """
        request = records.request(
            capture, concurrent_to=principal.id, warcinfo_id=self.writer.warcinfo_id, algorithm=self.digest
        )
        place, request_place = self.writer.write([principal, request])
        if confirmed is None:
            entry = entry_of_capture(
                capture, principal, place, self._path, self.crawl, digest, is_admitted=is_admitted
            )
        else:
            digest, renewal = confirmed.original.digest, confirmed.renewal
            entry = entry_of_confirmation(capture, place, self._path, digest, renewal)
        # The revisit of a 304 saves nothing.
        conserved = 0
        if original is not None and is_admitted:
            conserved = conserved_size(original.size, place.length)
        self._index.add(entry, conserved, original)
        return Recorded(
            kind=principal.type,
            record_id=principal.id,
            file=place.file,
            offset=place.offset,
            written=place.length + request_place.length,
            date=capture.warc_date,
            digest=labelled,
            conserved_size=conserved,
            refers_to=original,
        )

    def flush(self) -> None:
        """Add the waiting records to the index."""
        self._index.flush()

    def _add_file(self, name: str) -> None:
        self._path = str(self.writer.folder / name)
        self._index.add_file(self._path)

    def _file_finished(self, path: Path) -> None:
        # The index must have all records of the file first: an upload changes the name of the file.
        self.flush()
        if self.on_finished is not None:
            self.on_finished(path)

    def finish(self) -> list[Path]:
        """Close the files and update the index; return the paths of this run's files.

        Raises :class:`~scrapy_dedupe.errors.StoreError` when the index is unavailable, and
        :class:`~scrapy_dedupe.errors.CrawlStateError` when the crawl was committed in the meantime: the files are
        closed then, and the crawl stays incomplete.
        """
        try:
            # The last file stays locked until the index is up to date, so that no other process repairs the crawl.
            files = self.writer.finish()
            self._index.flush()
            index, crawl = self._index.index, self.crawl
            if self.is_incomplete:
                info = index.crawl(crawl)
                if info is not None and info.state == "canceled":
                    raise CrawlStateError(f"The crawl {crawl} was canceled while it ran. Its files stay.")
                if info is None or info.state != "uncommitted":
                    # The index was emptied in the meantime and no longer has the crawl.
                    index.start(crawl, self.payload, concurrent=self.concurrent)
                    index.mark_incomplete(crawl, True)
                rebuild(index, crawl, self.writer.folder, self.rules)
            else:
                size = sum(file.size_bytes for file in files)
                index.add(crawl, [], Counts(total_crawl_size=size))
                index.mark_incomplete(crawl, False)
            if self.writer.has_unfinished:
                # That file must be salvaged, and its records added, before the crawl is committed.
                index.mark_incomplete(crawl, True)
            return self.paths
        finally:
            self.writer.close()
