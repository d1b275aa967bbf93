"""The index entries of responses and revisits: the single place that derives an index entry from a record.

A recording and an import add the entries, a rebuild replaces the entries of a crawl by them, a check compares them with
the index, and a repair adds the difference. :func:`derive` reads them from the records of a WARC file,
:func:`entry_of_capture` from a record that was just written, and :func:`entry_of_line` from a line of a CDXJ.

Every HTTP ``response`` and ``revisit`` is counted. :func:`may_be_original` decides which responses are originals, which
other records may refer to: only complete bodies of GET responses, since a replay program does not find a POST
(pywb#762) and shows some other statuses as 200, and a partial body must never replace a whole one. A complete GET
response, or a revisit that has its payload, is also the last capture of its URL: a later 304 may confirm it, and it may
answer a later request (see :mod:`.cached_pages`). This includes pages that are too small to be originals. A revisit
saves ``max(0, size of its original - its own size)`` bytes on disk; one that records a 304 saves nothing.

The values of an entry have the form of :mod:`~scrapy_dedupe.stores.normal_forms`, so the index does not check them
again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import DamagedInput, SettingError
from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture
from scrapy_dedupe.stores.normal_forms import EMPTY_PAYLOADS, digest_and_form, known_digest, plain_url
from scrapy_dedupe.stores.normal_forms import date_digits as plain_date
from scrapy_dedupe.warc.bodies import has_payload, why_no_original
from scrapy_dedupe.warc.capture import has_whole_page
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.references import is_unmodified

from .reuse import RENEWAL_FIELD, renewed_headers
from .sorted_entries import digits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.warc.capture import Capture, Headers
    from scrapy_dedupe.warc.cdxj_reading import CdxCapture
    from scrapy_dedupe.warc.files import Location
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.records import Record

    from .reuse import Renewal
    from .sorted_entries import SortedEntries

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')
_HASH_BYTES = 8
_NONE = bytes(_HASH_BYTES)

NEITHER = b"\0"
"""The stored validators of a response without validators and without a lifetime (``max-age`` or ``Expires``)."""

CONSERVES_NOTHING = 2**40 - 1
"""The size given for a revisit that records a 304: it saves nothing, regardless of the size of its original."""

# Indexers write this status for a server-not-modified revisit, or none if the record has no HTTP headers.
_NOT_MODIFIED = frozenset({None, 304})


class Revisit(NamedTuple):
    """A revisit whose original must be looked up, by its digest if it has one.

    ``size`` is the size of its record, or :data:`CONSERVES_NOTHING`.
    """

    digest: str | None
    size: int


class IndexEntry(NamedTuple):
    """The index entry of a response or revisit. ``revisit`` is None if no original must be looked up."""

    is_revisit: bool
    original: Original | None = None
    url: UrlCapture | None = None
    revisit: Revisit | None = None

    @property
    def counts(self) -> Counts:
        """The counts of the record, without the bytes that it saves."""
        return Counts(total_urls=1, dupe_urls=int(self.is_revisit))


@dataclass(frozen=True, slots=True)
class RevisitRules:
    """``min_size`` in bytes of the stored body; empty ``mime_types`` means all."""

    enabled: bool = True
    min_size: int = 1_024
    statuses: frozenset[int] = frozenset({200})
    mime_types: frozenset[str] = frozenset()

    def admit(
        self, *, method: str, status: int, content_type: str, size_bytes: int, is_complete: bool
    ) -> bool:
        """Whether this payload may be an original or a revisit.

        >>> RevisitRules().admit(
        ...     method="GET", status=200, content_type="text/html", size_bytes=2_000, is_complete=True
        ... )
        True
        """
        if not (is_complete and method == "GET" and status in self.statuses and has_whole_page(status)):
            return False
        if size_bytes < max(1, self.min_size):
            return False
        return not self.mime_types or content_type.partition(";")[0].strip().lower() in self.mime_types

    def admit_capture(self, capture: Capture) -> bool:
        """Like :meth:`admit`, but False for a body that differs from what the server sent."""
        return capture.rendering is None and self.admit(
            method=capture.method,
            status=capture.status,
            content_type=(capture.content_type or b"").decode("latin-1"),
            size_bytes=len(capture.body),
            is_complete=capture.is_complete,
        )


# A page that is too small to be an original is still a capture of its URL.
_PAGES = RevisitRules(min_size=1)


@dataclass(frozen=True, slots=True)
class EntryRules:
    """The rules for the entries of a file.

    ``wacz_index`` is the position of the container that holds it. ``revisits`` are the rules of a crawl of this package,
    None for imported records. ``known`` has the present entries of the crawl: a record that is an original there stays
    one, since the crawl may have had other rules, and a record without a digest keeps the digest of its entry, which
    came from an imported index. A check does not need captures of URLs (``has_urls``).
    """

    crawl: str
    wacz_index: int = 0
    revisits: RevisitRules | None = None
    known: SortedEntries | None = None
    has_urls: bool = True


def derive(
    records: Iterable[StoredRecord],
    file: str,
    rules: EntryRules,
    on_fault: Callable[[str], None] = lambda sentence: None,
) -> Iterator[tuple[StoredRecord, IndexEntry | None]]:
    """Yield each response and revisit among the *records* of a file, with its entry.

    The entry is None for a record that is neither added nor counted: one of another protocol than HTTP, and a faulty
    one, for which *on_fault* is called with a sentence.
    """
    # The request of a record of this package may be lost after a crash; other programs may write none.
    unknown_method = "GET" if rules.revisits is None else ""
    for record, method in exchanges(records, unknown_method=unknown_method):
        entry = None
        if is_http(record):
            try:
                entry = _entry_of_record(record, method, file, rules)
            except (SettingError, DamagedInput, ValueError) as error:
                on_fault(f"{file}, offset {record.offset}: {error}")
        yield record, entry


def entry_of_capture(
    capture: Capture,
    written: Record,
    location: Location,
    file: str,
    crawl: str,
    digest: str | None,
    *,
    is_admitted: bool,
) -> IndexEntry:
    """The entry of a record that a crawl has just written to *file*.

    ``digest`` is the payload digest, None for a 304 and for a body that could not be decoded. *is_admitted*: the record
    may be an original or a copy of one.
    """
    is_revisit = written.type == "revisit"
    if digest is None or not (is_admitted or _PAGES.admit_capture(capture)):
        return IndexEntry(is_revisit)
    uri, date = capture.target_uri, capture.date_digits
    url = UrlCapture(uri, digest, date, stored_validators(capture.response_headers), file, location.offset)
    if is_revisit or not is_admitted:
        return IndexEntry(is_revisit, None, url)
    original = Original(
        digest, crawl, date, uri, location.length, record_id=written.id, file=file, offset=location.offset
    )
    return IndexEntry(False, original, url)


def entry_of_confirmation(
    capture: Capture, location: Location, file: str, digest: str, renewal: Renewal | None
) -> IndexEntry:
    """The entry of a server-not-modified record that a crawl has just written to *file*.

    ``digest`` is that of the page that the 304 confirms, *renewal* that of :func:`~.reuse.renewal`: with it the record is
    the last capture of its URL.
    """
    if renewal is None:
        return IndexEntry(True)
    validators = stored_validators(renewal.headers)
    url = UrlCapture(capture.target_uri, digest, capture.date_digits, validators, file, location.offset)
    return IndexEntry(True, None, url)


def entry_of_line(line: CdxCapture, file: str | None, rules: EntryRules) -> IndexEntry:
    """The entry of a record in *file* that a line of a CDXJ describes.

    Raises :class:`~scrapy_dedupe.errors.SettingError` for a digest of an unknown form, and
    :class:`~scrapy_dedupe.errors.DamagedInput` for a possible original without a location.
    """
    digest, form = digest_and_form(line.digest)
    has_payload = digest is not None and digest not in EMPTY_PAYLOADS
    url, date = plain_url(line.url), plain_date(line.date)
    capture = None
    if digest is not None and has_payload and rules.has_urls and line.method == "GET" and line.status == 200:
        # A line has no validators.
        capture = UrlCapture(url, digest, date, b"", file, None if file is None else line.offset)
    if line.is_revisit:
        size = CONSERVES_NOTHING if line.status in _NOT_MODIFIED else line.length
        return IndexEntry(True, None, capture, Revisit(digest, size) if has_payload else None)
    if digest is None or not (has_payload and line.method == "GET" and has_whole_page(line.status)):
        return IndexEntry(False)
    if file is None or line.offset is None:
        raise DamagedInput("it has no location of the record, which needs a filename and an offset.")
    original = Original(
        digest,
        rules.crawl,
        date,
        url,
        line.length,
        wacz_index=rules.wacz_index,
        file=file,
        offset=line.offset,
        status=None if line.status == 200 else line.status,
        form=form,
    )
    return IndexEntry(False, original, capture)


def conserved_size(original_size: int, revisit_size: int) -> int:
    """The bytes on disk that a revisit saves."""
    return max(0, original_size - revisit_size)


def need_of(original: Original) -> Need:
    """The need of a crawl with a revisit that refers to this original of another crawl."""
    return Need(original.crawl, original.wacz_index, original.file)


def _entry_of_record(record: StoredRecord, method: str, file: str, rules: EntryRules) -> IndexEntry:
    """Raises SettingError, DamagedInput or ValueError for a record that is neither added nor counted."""
    digest, form = digest_and_form(record.get("WARC-Payload-Digest"))
    if not record.target_uri or not record.date:
        raise DamagedInput("the record has no WARC-Target-URI or no WARC-Date.")
    if not record.length:
        raise DamagedInput(
            "the record shares a gzip member with others, so no index can point to it. Compress every record of"
            " the file on its own."
        )
    # Only the first of the two is cached, and only the second raises.
    date = plain_date(digits_of(record.date) or date_digits(record.date))
    url = plain_url(record.target_uri)
    is_own = rules.revisits is not None
    original = revisit = None
    renewed = None
    if record.type == "revisit":
        is_copy = not is_unmodified(record)
        if not is_copy:
            renewed = renewed_headers((), record.get(RENEWAL_FIELD))
        if digest not in EMPTY_PAYLOADS:
            revisit = Revisit(digest, record.length if is_copy else CONSERVES_NOTHING)
        # A crawl of this package writes revisits only for GET requests.
        is_page = (is_copy or renewed is not None) and (is_own or method == "GET")
    else:
        if digest is None and rules.known is not None and not is_own:
            digest, form = rules.known.digest_at(file, record)
        is_kept = is_own and rules.known is not None and rules.known.has_entry(file, record.offset, digest)
        is_original = digest is not None and (is_kept or may_be_original(record, method, rules.revisits))
        is_page = is_original or (record.http_status == 200 and may_be_original(record, method))
        if digest is not None and is_original:
            status = None if is_own or record.http_status == 200 else record.http_status
            original = Original(
                digest,
                rules.crawl,
                date,
                url,
                record.length,
                wacz_index=rules.wacz_index,
                # The index keeps either the record id, or an unusual status or form.
                record_id=None if form or status else record.id,
                file=file,
                offset=record.offset,
                status=status,
                form=form,
            )
    capture = None
    # Only a 200 of another program is a page: an imported crawl may have originals with any status.
    is_page = is_page and (is_own or renewed is not None or record.http_status == 200)
    if rules.has_urls and digest is not None and digest not in EMPTY_PAYLOADS and is_page:
        validators = stored_validators(record.http_headers if renewed is None else renewed)
        capture = UrlCapture(url, digest, date, validators, file, record.offset)
    return IndexEntry(record.type == "revisit", original, capture, revisit)


def may_be_original(record: StoredRecord, method: str, rules: RevisitRules | None = None) -> bool:
    """Whether other records may refer to the payload of a stored record; *method* is the method of its request.

    ``rules`` are the rules of the crawl that wrote the record; None for an imported record. Raises
    :class:`~scrapy_dedupe.errors.DamagedInput` if a long block cannot be read again.
    """
    if method != "GET" or not is_whole_original(record):
        return False
    if rules is None:
        return True
    http = record.http
    return (
        http is not None
        and record.id is not None
        and rules.admit(
            method=method,
            status=http.status or 0,
            content_type=(http.get(b"Content-Type") or b"").decode("latin-1"),
            size_bytes=record.frame.block_length - http.length,
            is_complete=not record.is_truncated,
        )
    )


def is_whole_original(record: StoredRecord) -> bool:
    """Like :func:`may_be_original`, for a record whose request is unknown.

    An index that was imported without its WARC files may name records whose body was never checked.
    """
    return (
        is_http(record)
        and why_no_original(record) is None
        and has_payload(record)
        and known_digest(record) not in EMPTY_PAYLOADS
    )


def is_http(record: StoredRecord) -> bool:
    """Whether a record belongs to an HTTP exchange; others are DNS answers, for example."""
    return (record.target_uri or "http:").lower().startswith(("http:", "https:"))


def validators_of(headers: Headers) -> bytes:
    """The stored form of ETag and Last-Modified: 8 bytes of BLAKE2b each, zeros for a missing one.

    ``headers`` are the headers of a response. Empty if it has neither. The weakness prefix of an ETag is ignored.
    """
    tag = _tag_of(headers)
    modified = _first(headers, b"last-modified").strip()
    if not tag and not modified:
        return b""
    return (tag or _NONE) + (_hash(modified) if modified else _NONE)


def stored_validators(headers: Headers) -> bytes:
    """Like :func:`validators_of`, but :data:`NEITHER` for a response that a cache could only download again."""
    return validators_of(headers) or (b"" if _may_be_reused(headers) else NEITHER)


def _may_be_reused(headers: Headers) -> bool:
    # Some servers send an ETag without quotes, and confirm it.
    return any(
        (lower := name.lower()) in (b"etag", b"expires")
        or (lower == b"cache-control" and b"max-age" in value.lower())
        for name, value in headers
    )


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


def says_nothing_else(capture: Capture, validators: bytes) -> bool:
    """Whether the headers of a 304 do not contradict the version with these validators.

    If the request had several tags, the ETag of the 304 selects one.
    """
    tag = _tag_of(capture.response_headers)
    if tag:
        return _may_have_tag(validators, tag)
    asked = [value for name, value in capture.request_headers if name.lower() == b"if-none-match"]
    return len(_ENTITY_TAG.findall(b",".join(asked))) <= 1


def names_another(confirmation: Headers, validators: bytes) -> bool:
    """Whether the ETag of a 304 is that of another version than the one with these validators (RFC 9111, section 4.3.4).

    The weakness prefix is ignored: some servers add it to the ETag of a compressed page, and not to that of its 304.

    >>> names_another(((b"ETag", b'"b"'),), validators_of(((b"ETag", b'W/"b"'),)))
    False
    """
    tag = _tag_of(confirmation)
    return tag != b"" and not _may_have_tag(validators, tag)


def _may_have_tag(validators: bytes, tag: bytes) -> bool:
    """Whether the version with these validators has the ETag with this hash, or none."""
    return validators[:_HASH_BYTES] in (tag, _NONE)


def _tag_of(headers: Headers) -> bytes:
    """The hash of the ETag; empty if there is none."""
    tag = _ENTITY_TAG.fullmatch(_first(headers, b"etag").strip())
    return _hash(tag[1]) if tag else b""


def _hash(value: bytes) -> bytes:
    return blake2b(value, digest_size=_HASH_BYTES).digest()


def _first(headers: Headers, name: bytes) -> bytes:
    for header, value in headers:
        if header.lower() == name:
            return value
    return b""
