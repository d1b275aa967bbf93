"""The exchanges in WARC and ARC files of whatever program: which record is of HTTP, and how it was asked for.

:func:`imported_record` says what the index takes from a record that this package did not write. An import, a check and a
repair all ask it, so that a check finds in the index what an import entered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, SettingError
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.references import is_unmodified

from .originals import validators_of
from .rules import is_http, may_be_original
from .values import EMPTY_PAYLOADS, digest_and_form, plain_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord


@dataclass(frozen=True, slots=True)
class ImportedRecord:
    """What the index takes from a response or revisit, in its own forms.

    ``digest`` is None for a record that names none. ``validators`` are those of a page that a later 304 may confirm,
    else empty.
    """

    digest: str | None
    form: str
    date: str
    url: str
    is_original: bool
    validators: bytes


def imported_record(record: StoredRecord, method: str) -> ImportedRecord:
    """What the index takes from a response or revisit over HTTP, whose request had this method.

    Raises :class:`~scrapy_dedupe.errors.SettingError`, :class:`~scrapy_dedupe.errors.DamagedInput` or ValueError for a
    record of which it takes nothing and which is not counted.
    """
    digest, form = digest_and_form(record.get("WARC-Payload-Digest"))
    if not record.target_uri or not record.date:
        raise DamagedInput("the record has no WARC-Target-URI or no WARC-Date.")
    if not record.length:
        raise DamagedInput(
            "the record shares a gzip member with others, so that no index can point at it. Compress every record of"
            " the file on its own."
        )
    date, url = date_digits(record.date), plain_url(record.target_uri)
    is_original = may_be_original(record, method)
    is_copy = record.type == "revisit" and method == "GET" and not is_unmodified(record)
    is_page = digest is not None and digest not in EMPTY_PAYLOADS and (is_original or is_copy)
    validators = validators_of(record.http_headers) if is_page and record.http_status == 200 else b""
    return ImportedRecord(digest, form, date, url, is_original, validators)


def counted_record(record: StoredRecord, method: str) -> ImportedRecord | None:
    """As :func:`imported_record`; None for a record that an import does not count."""
    if not is_http(record):
        return None
    try:
        return imported_record(record, method)
    except (SettingError, DamagedInput, ValueError):
        return None


def exchanges(records: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, str]]:
    """Each response and revisit with the method of its request, which stands right before or after it.

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
