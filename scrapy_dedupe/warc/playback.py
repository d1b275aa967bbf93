"""Responses from an archive: what a server once sent for a method, a URL and a body.

The newest whole capture is the answer; within its crawl, captures with the same request cookies come first. A
truncated capture or a range (206) is used only if there is no whole one. If a URL is not found, its canonical form is
looked up, so that the order of query parameters does not matter.

A revisit answers with its own HTTP head, if it has one, and the payload of its original (see `references`). If the
original is missing, the next older capture is used. A 304, or a revisit with the server-not-modified profile, answers
only a conditional request; for any other request the original, or the next older capture, is used.

Transfer coding is removed and Content-Length is corrected. The content coding is kept as it was sent, since payload
and header belong together: if the head of a revisit names another coding, it gets the coding of its original.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.exchanges import paired
from scrapy_dedupe.warc.playback_index import PlaybackIndex
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import reference_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.playback_index import AnswerPlace
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

logger = logging.getLogger(__name__)

_NOT_MODIFIED = 304
_BODILESS = (204, _NOT_MODIFIED)


@dataclass(frozen=True, slots=True)
class PlayedOriginal:
    """The original of a revisit; `crawl` is the isPartOf value of its warcinfo."""

    record_id: str | None
    url: str | None
    date: str | None
    crawl: str | None


@dataclass(frozen=True, slots=True)
class Playable:
    """An answer, with the record that it comes from.

    `payload` has its content coding and no transfer coding; `headers` are in order. `type` is ``response`` or
    ``revisit``, `date` the text of WARC-Date, `digest` the payload digest with its label. `truncated` is the
    reason for a truncated payload, or None.
    """

    url: str
    status: int
    headers: Headers
    payload: bytes
    ip_address: str | None
    protocol: str | None
    record_id: str | None
    file: str
    offset: int
    type: str
    date: str | None
    digest: str | None
    truncated: str | None
    refers_to: PlayedOriginal | None


class TooLarge(Exception):
    """The answer is larger than allowed."""


class Playback:
    """The captures in *files*. For use on one thread: create, `read`, `find`, `close`.

    `unresolved` counts the revisits that could not be used because their original is missing; `is_complete` is True
    once all files were read.
    """

    def __init__(self, files: Sequence[ReadableFile]) -> None:
        self._files = list(files)
        self._index = PlaybackIndex()
        self._has_warned = False
        self._max_bytes = 0
        self.unresolved = 0
        self.is_complete = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(
        self, *, on_damage: Callable[[Damage], None], is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Read every record of the files and return the number of exchanges. Call once, before `find`.

        *on_damage* is called for every damaged place. Reading ends early when *is_wanted* returns False. Raises
        ArchiveError if a file cannot be read.
        """
        count = 0
        for number, file in enumerate(self._files):
            shares_members = False
            try:
                for record, request in paired(read_records(file, on_damage=on_damage)):
                    if not is_wanted():
                        return count
                    if self._index.add(number, record, request):
                        count += 1
                        shares_members = shares_members or record.length == 0
            except OSError as error:
                raise ArchiveError(f"{file} cannot be read: {error.strerror or error}.") from error
            except sqlite3.Error as error:
                raise _index_error(error) from error
            if shares_members:
                logger.warning(
                    "%s has several records in one gzip member. Each lookup decompresses the member from its beginning,"
                    " which is slow for a large file; `warcio recompress` gives every record its own member.",
                    file,
                )
        try:
            self._index.finish()
        except sqlite3.Error as error:
            raise _index_error(error) from error
        self.is_complete = True
        return count

    def close(self) -> None:
        """Delete the index."""
        self._index.close()

    def find(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        cookies: bytes = b"",
        is_conditional: bool = False,
        max_bytes: int = 0,
    ) -> Playable | None:
        """Return the answer to a request, None if there is none.

        *cookies* is the value of its Cookie header. *is_conditional*: whether the request allows a 304 (Not Modified).
        Raises TooLarge for an answer with a body of more than *max_bytes*, unless that is 0; ArchiveError and
        DamagedInput if a record cannot be read again.
        """
        self._max_bytes = max_bytes
        try:
            return self._find(method, url, body, cookies, is_conditional)
        except OSError as error:
            raise ArchiveError(f"The archive with {url} can no longer be read: {error}.") from error

    def _find(
        self, method: str, url: str, body: bytes, cookies: bytes, is_conditional: bool
    ) -> Playable | None:
        unresolved = 0
        for canonical in (False, True):
            for place in self._index.answers(method, body, url, cookies, canonical=canonical):
                if place.status == _NOT_MODIFIED and place.kind == "response" and not is_conditional:
                    continue
                record = self._record(place)
                if place.kind == "response" or (place.kind == "unmodified" and is_conditional):
                    return self._playable(record, method, record)
                original = self._original(record)
                if original is not None:
                    stored, crawl = original
                    reference = PlayedOriginal(stored.id, stored.target_uri, stored.date, crawl)
                    return self._playable(
                        record, method, stored, reference, is_unmodified=place.kind == "unmodified"
                    )
                if place.kind == "revisit":
                    self.unresolved += 1
                    self._warn_about_missing_original(record)
                else:
                    unresolved += 1
        # Count these only now: an older capture might still have been the answer.
        self.unresolved += unresolved
        return None

    def _record(self, place: AnswerPlace) -> StoredRecord:
        return read_record(self._files[place.file], place.offset, block_position=place.block_position)

    def _original(self, revisit: StoredRecord) -> tuple[StoredRecord, str | None] | None:
        """The record that has the payload of a revisit, and the name of its crawl."""
        originals = self._index.originals
        found = originals.original(reference_of(revisit))
        return None if found is None else (originals.record_of(found), self._index.crawl_of(found))

    def _playable(
        self,
        record: StoredRecord,
        method: str,
        source: StoredRecord,
        refers_to: PlayedOriginal | None = None,
        *,
        is_unmodified: bool = False,
    ) -> Playable:
        """The answer of *record* with the payload of *source*, whose head is used for a 304."""
        head = source if record.http_status is None or is_unmodified else record
        status = 200 if head.type == "resource" else head.http_status
        if status is None:
            # A server-not-modified revisit without a head has only a status.
            status = _NOT_MODIFIED
        size = source.frame.block_length - (source.http.length if source.http else 0)
        if self._max_bytes and size > self._max_bytes:
            raise TooLarge(f"The answer to {record.target_uri} has {size} bytes.")
        payload = source.payload()
        has_body = method.upper() != "HEAD" and status not in _BODILESS
        headers = head.http_headers
        if head.type == "resource" and (content_type := head.get("Content-Type")):
            headers = ((b"Content-Type", content_type.encode("latin-1", "replace")),)
        if head is not source:
            headers = _with_coding_of(source, headers)
        digest = record.payload_digest
        return Playable(
            url=record.target_uri or "",
            status=status,
            headers=_true_headers(headers, len(payload) if has_body else None),
            payload=payload if has_body else b"",
            ip_address=record.get("WARC-IP-Address") or record.get("ip-address"),
            protocol=_protocol(record) or _protocol(head),
            record_id=record.id,
            file=str(record.path),
            offset=record.offset,
            type=record.type,
            date=record.date,
            digest=str(digest) if digest else None,
            truncated=source.truncated if source.is_truncated else None,
            refers_to=refers_to,
        )

    def _warn_about_missing_original(self, revisit: StoredRecord) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "The revisit of %s in %s, offset %d, refers to %s of %s, but no file of the archive has that payload."
            " Add the files of the crawl that has it. Further missing originals are only counted.",
            revisit.target_uri,
            revisit.path,
            revisit.offset,
            revisit.refers_to_uri or revisit.refers_to or "no URL",
            revisit.refers_to_date or "no date",
        )


def _index_error(error: sqlite3.Error) -> ArchiveError:
    return ArchiveError(
        f"The index of the archive cannot be written to a temporary file: {error}. Free some space in the temporary"
        " folder, or set the environment variable TMPDIR to another one."
    )


def _true_headers(headers: Headers, length: int | None) -> Headers:
    """*headers* without Transfer-Encoding, and with this Content-Length; None leaves the length unchanged."""
    kept = []
    has_length = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"transfer-encoding":
            continue
        if lower == b"content-length" and length is not None:
            if has_length:
                continue
            has_length = True
            value = b"%d" % length
        kept.append((name, value))
    return tuple(kept)


def _with_coding_of(source: StoredRecord, headers: Headers) -> Headers:
    def codings(pairs: Headers) -> Headers:
        return tuple((name, value) for name, value in pairs if name.lower() == b"content-encoding")

    own, true = codings(headers), codings(source.http_headers)
    if [value for _, value in own] == [value for _, value in true]:
        return headers
    return (*(pair for pair in headers if pair not in own), *true)


def _protocol(record: StoredRecord) -> str | None:
    """The HTTP version in HTTP's own notation: ``HTTP/1.1``, ``h2``."""
    for value in record.get_all("WARC-Protocol"):
        name = value.strip().lower()
        if name.startswith("http/"):
            return name.upper()
        if name in ("h2", "h2c", "h3"):
            return name
    first = record.http.first_line.split(None, 1)[0] if record.http else b""
    return first.decode("latin-1").upper() or None
