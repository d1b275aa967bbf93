"""The earlier records that a capture may refer to.

An original is a ``response`` record with the same payload. A 304 (Not Modified) has no payload; it refers to the
record that was last written of its URL, and only if that record's own validator (ETag, or Last-Modified) is the one
that the request asked about (RFC 9110, section 13.1): a server may as well confirm an older version than the last.
"""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.dates import date_from_digits, parse_date
from scrapy_dedupe.warc.reading import read_record

from .places import is_present, readable

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.capture import Capture, Headers
    from scrapy_dedupe.warc.reading import HttpHead

    from .guarded import GuardedIndex

logger = logging.getLogger(__name__)

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')


class Originals:
    """Finds originals in an index. With ``check_files``, those whose file is gone count as not there."""

    def __init__(self, index: GuardedIndex, *, check_files: bool = True) -> None:
        self._index = index
        self._check_files = check_files
        self._has_told_of_missing_file = False

    def of_payload(self, digest: str) -> Original | None:
        """The original of a payload."""
        original = self._index.find(digest)
        if original is None or original.file is None or not self._check_files or is_present(original.file):
            return original
        if not self._has_told_of_missing_file:
            self._has_told_of_missing_file = True
            logger.warning(
                "The index names originals in %s, which is not there any more; their payloads are stored anew."
                " If files of this index are moved after a crawl or lie on another machine, set"
                " DEDUPE_WARC_CHECK_FILES = False.",
                original.file,
            )
        return None

    def of_unmodified(self, capture: Capture) -> Original | None:
        """The original that a 304 confirms; None on any doubt."""
        last = self._index.find_url(capture.target_uri)
        original = self.of_payload(last.digest) if last is not None else None
        if original is None or original.url != capture.target_uri:
            return None
        head = _head_of(original)
        return original if head is not None and _is_confirmed(capture.request_headers, head) else None

    def is_repeated(self, capture: Capture, digest: str, seconds: float) -> bool:
        """Whether the same payload of the same URL was recorded within so many seconds before."""
        last = self._index.find_url(capture.target_uri)
        if last is None or last.digest != digest:
            return False
        age = capture.date - parse_date(date_from_digits(last.date))
        return timedelta(0) <= age < timedelta(seconds=seconds)


def _head_of(original: Original) -> HttpHead | None:
    # Nobody waits for a network here.
    path = readable(original.file, remote=False) if original.file is not None else None
    if path is None or original.offset is None:
        return None
    try:
        record = read_record(path, original.offset)
    except (DamagedInput, OSError):
        return None
    return record.http if record.type == "response" and record.id == original.record_id else None


def _is_confirmed(request_headers: Headers, head: HttpHead) -> bool:
    """Whether the request asked about the very version that a stored head describes."""
    asked = _values(request_headers, b"if-none-match")
    if asked:
        # If-Modified-Since is ignored beside it; tags are compared weakly (RFC 9110, sections 13.1.2, 13.1.3).
        tag = _ENTITY_TAG.fullmatch(head.get(b"ETag") or b"")
        return tag is not None and any(tag[1] == match[1] for match in _ENTITY_TAG.finditer(b",".join(asked)))
    since = _values(request_headers, b"if-modified-since")
    return bool(since) and since[0].strip() == head.get(b"Last-Modified")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for header, value in headers if header.lower() == name]
