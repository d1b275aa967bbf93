"""Finds the original of a capture: an earlier record that it may refer to.

An original is a ``response`` record with the same payload. A 304 (Not Modified) has no payload; it refers to the
original of the last record of its URL, and only if that record had the same validator (ETag, or Last-Modified) as in
the request (RFC 9110, section 13.1): a server may confirm an older version than the last one.

A record of another crawl is read before it is referred to: a file or WACZ with the same name may have replaced the
indexed one, and a file that was deduplicated in place may still have the same first record. This takes about 100 us for
a page of usual size; a crawl needs milliseconds for a page. Remote files are not read; it is assumed that they exist.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError, StoreError
from scrapy_dedupe.stores.normal_forms import known_digest
from scrapy_dedupe.warc.dates import date_digits, date_from_digits, parse_date
from scrapy_dedupe.warc.raw_heads import stored_uri
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import can_be_referred_to
from scrapy_dedupe.warc.remote import is_url

from .places import is_present, readable
from .rules import is_whole_original

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.capture import Capture, Headers
    from scrapy_dedupe.warc.reading import StoredRecord

    from .guarded_index import GuardedIndex

logger = logging.getLogger(__name__)

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')
_HASH_BYTES = 8
_NONE = bytes(_HASH_BYTES)


@dataclass(eq=False)
class Originals:
    """Finds originals in an index.

    Originals with a known status that is not in ``statuses`` are ignored, since replay programs may show another status
    as 200. Originals that a revisit cannot name reliably for every reader are ignored too. ``check_files`` ignores
    originals whose file is gone or was replaced; ``containers_only`` ignores originals of other crawls that are in no
    WACZ.
    """

    index: GuardedIndex
    statuses: Collection[int]
    check_files: bool
    containers_only: bool
    _has_warned_about_file: bool = False
    _warned_crawls: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._files = KnownFiles(self.index.crawl)

    def of_payload(self, digest: str) -> Original | None:
        """The original of a payload."""
        original = self.index.find(digest)
        if original is None or (original.status is not None and original.status not in self.statuses):
            return None
        if not _can_be_referred_to(original):
            return None
        return original if self._has_its_file(original) and self._is_in_a_container(original) else None

    def of_unmodified(self, capture: Capture) -> Original | None:
        """The original that a 304 confirms; None if there is any doubt."""
        last = self.index.find_url(capture.target_uri)
        if last is None or not is_confirmed(capture.request_headers, last.validators):
            return None
        if not _says_nothing_else(capture, last.validators):
            return None
        return self.of_payload(last.digest)

    def is_repeated(self, capture: Capture, digest: str, seconds: float) -> bool:
        """Whether the same payload of the same URL was recorded within the last *seconds*."""
        last = self.index.find_url(capture.target_uri)
        if last is None or last.digest != digest:
            return False
        age = capture.date - parse_date(date_from_digits(last.date))
        return timedelta(0) <= age < timedelta(seconds=seconds)

    def _has_its_file(self, original: Original) -> bool:
        if not self.check_files or self._files.hold(original):
            return True
        if not self._has_warned_about_file:
            self._has_warned_about_file = True
            logger.warning(
                "The index names originals in %s, but the file is gone or was replaced; their payloads are stored"
                " again. If the files were changed, `scrapy dedupe check --repair` updates the index; if files are"
                " moved after a crawl or are on another machine, set DEDUPE_WARC_CHECK_FILES = False.",
                original.file,
            )
        return False

    def _is_in_a_container(self, original: Original) -> bool:
        if not self.containers_only or original.crawl == self.index.crawl:
            return True
        if self.index.container_of(original) is not None:
            return True
        if original.crawl not in self._warned_crawls:
            self._warned_crawls.add(original.crawl)
            logger.warning(
                "The crawl %s has no WACZ through which its records could be replayed, so its payloads are stored"
                " again.%s",
                original.crawl,
                self._advice(original.crawl),
            )
        return False

    def _advice(self, crawl: str) -> str:
        """How a crawl can get a WACZ. An imported crawl can only have the WACZ files that it was imported with."""
        try:
            info = next((info for info in self.index.index.crawls() if info.id == crawl), None)
        except StoreError:
            return ""
        if info is None:
            return ""
        if info.imported:
            return " Import its WACZ, if there is one."
        if info.software is None:
            return (
                f" Another program added it. Remove it with `scrapy dedupe purge {crawl}`, then import its WACZ files"
                " with `scrapy dedupe import`."
            )
        return f" `scrapy dedupe warc pack {crawl}` creates one for later crawls."


class KnownFiles:
    """Checks whether files still hold the indexed records. ``own`` is the crawl whose files are not checked."""

    def __init__(self, own: str) -> None:
        self._own = own
        # A crawl may receive the same page repeatedly.
        self._is_there = lru_cache(10_000)(_is_there)

    def hold(self, original: Original) -> bool:
        """Whether the file of an original exists and holds the indexed record."""
        if original.file is None or is_url(original.file):
            return True
        if not is_present(original.file):
            return False
        is_own = original.crawl == self._own
        return is_own or original.offset is None or self._is_there(original.file, original.offset, original)


def _is_there(file: str, offset: int, original: Original) -> bool:
    path = readable(file)
    try:
        return path is not None and _is_it(read_record(path, offset), original)
    except (DedupeError, OSError, ValueError):
        return False


def _is_it(record: StoredRecord, original: Original) -> bool:
    if record.type != "response" or not record.target_uri or not record.date:
        return False
    text = record.get("WARC-Payload-Digest")
    # An index that was imported without its WARC files may also name truncated records.
    if (text is not None and known_digest(record) != original.digest) or not is_whole_original(record):
        return False
    # A revisit must name the URL exactly as it is stored. In the index white space is percent-encoded, or stripped by a
    # reader. The date in the index may have only seconds.
    is_its_url = stored_uri(record) == original.url.encode("utf-8", "surrogatepass")
    return is_its_url and date_digits(record.date)[:14] == original.date[:14]


def _can_be_referred_to(original: Original) -> bool:
    uri, record_id = (
        None if text is None else text.encode("utf-8", "surrogatepass")
        for text in (original.url, original.record_id)
    )
    return can_be_referred_to(uri, date_from_digits(original.date).encode("ascii"), record_id)


def validators_of(headers: Headers) -> bytes:
    """The stored form of ETag and Last-Modified: 8 bytes of BLAKE2b each, zeros for a missing one.

    ``headers`` are the headers of a response. Empty if it has neither. The weakness prefix of an ETag is ignored.
    """
    tag = _ENTITY_TAG.fullmatch(_first(headers, b"etag").strip())
    modified = _first(headers, b"last-modified").strip()
    if tag is None and not modified:
        return b""
    return (_hash(tag[1]) if tag else _NONE) + (_hash(modified) if modified else _NONE)


def is_confirmed(request_headers: Headers, validators: bytes) -> bool:
    """Whether a conditional request names the version with these validators, so that a 304 confirms it.

    If-Modified-Since is ignored if there is If-None-Match, whose tags are compared weakly (RFC 9110, sections 13.1.2
    and 13.1.3).

    >>> is_confirmed(((b"If-None-Match", b'"a", W/"b"'),), validators_of(((b"ETag", b'"b"'),)))
    True
    """
    tag, modified = validators[:_HASH_BYTES], validators[_HASH_BYTES:]
    asked = [value for name, value in request_headers if name.lower() == b"if-none-match"]
    if asked:
        tags = _ENTITY_TAG.finditer(b",".join(asked))
        return tag not in (b"", _NONE) and any(_hash(match[1]) == tag for match in tags)
    since = _first(request_headers, b"if-modified-since").strip()
    return bool(since) and modified == _hash(since)


def _says_nothing_else(capture: Capture, validators: bytes) -> bool:
    """Whether the headers of a 304 do not contradict the version with these validators.

    If the request had several tags, the ETag of the 304 selects one.
    """
    tag = validators_of(capture.response_headers)[:_HASH_BYTES]
    if tag not in (b"", _NONE):
        return tag == validators[:_HASH_BYTES] or validators[:_HASH_BYTES] == _NONE
    asked = [value for name, value in capture.request_headers if name.lower() == b"if-none-match"]
    return len(_ENTITY_TAG.findall(b",".join(asked))) <= 1


def _hash(value: bytes) -> bytes:
    return blake2b(value, digest_size=_HASH_BYTES).digest()


def _first(headers: Headers, name: bytes) -> bytes:
    return next((value for header, value in headers if header.lower() == name), b"")
