"""The HTTP exchanges in WARC and ARC files of any program, with the method of each request.

:func:`imported_record` determines what the index takes from a record that this package did not write. Import, check and
repair all use it, so that a check expects exactly what an import added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, SettingError
from scrapy_dedupe.stores.normal_forms import EMPTY_PAYLOADS, digest_and_form, plain_url
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.references import is_unmodified

from .originals import validators_of
from .rules import is_http, may_be_original

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord


@dataclass(frozen=True, slots=True)
class ImportedRecord:
    """The index values of a response or revisit, normalized.

    ``digest`` is None for a record without one. ``validators`` are set for a page that a later 304 may confirm, else
    empty.
    """

    digest: str | None
    form: str
    date: str
    url: str
    is_original: bool
    validators: bytes


def imported_record(record: StoredRecord, method: str) -> ImportedRecord:
    """The index values of an HTTP response or revisit; *method* is that of its request.

    Raises :class:`~scrapy_dedupe.errors.SettingError`, :class:`~scrapy_dedupe.errors.DamagedInput` or ValueError for a
    record that is neither added nor counted.
    """
    digest, form = digest_and_form(record.get("WARC-Payload-Digest"))
    if not record.target_uri or not record.date:
        raise DamagedInput("the record has no WARC-Target-URI or no WARC-Date.")
    if not record.length:
        raise DamagedInput(
            "the record shares a gzip member with others, so no index can point to it. Compress every record of"
            " the file on its own."
        )
    date, url = date_digits(record.date), plain_url(record.target_uri)
    is_original = may_be_original(record, method)
    is_copy = record.type == "revisit" and method == "GET" and not is_unmodified(record)
    is_page = digest is not None and digest not in EMPTY_PAYLOADS and (is_original or is_copy)
    validators = validators_of(record.http_headers) if is_page and record.http_status == 200 else b""
    return ImportedRecord(digest, form, date, url, is_original, validators)


def counted_record(record: StoredRecord, method: str) -> ImportedRecord | None:
    """Like :func:`imported_record`, but None for a record that an import does not count."""
    if not is_http(record):
        return None
    try:
        return imported_record(record, method)
    except (SettingError, DamagedInput, ValueError):
        return None


def exchanges(records: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, str]]:
    """Each response and revisit with the method of its request, which directly precedes or follows it.

    Without a request the method is GET.
    """
    waiting: StoredRecord | None = None
    request: StoredRecord | None = None
    for record in records:
        if record.type == "request":
            if waiting is not None:
                is_its_own = _belong_together(waiting, record)
                yield waiting, _method(record) if is_its_own else "GET"
                waiting = None
                if is_its_own:
                    continue
            request = record
        elif record.type in ("response", "revisit"):
            if waiting is not None:
                yield waiting, "GET"
                waiting = None
            if request is not None and _belong_together(record, request):
                yield record, _method(request)
            else:
                waiting = record
            request = None
    if waiting is not None:
        yield waiting, "GET"


def _belong_together(principal: StoredRecord, request: StoredRecord) -> bool:
    return principal.target_uri == request.target_uri and (
        principal.id in request.get_all("WARC-Concurrent-To")
        or request.id in principal.get_all("WARC-Concurrent-To")
    )


def _method(request: StoredRecord) -> str:
    return request.http.first_line.partition(b" ")[0].decode("latin-1") if request.http else ""
