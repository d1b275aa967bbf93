"""The index values of records that other programs wrote.

Import, check and repair all use :func:`imported_record`, so that a check expects exactly what an import added.
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
    """As :func:`imported_record`; None for a record that an import does not count."""
    if not is_http(record):
        return None
    try:
        return imported_record(record, method)
    except (SettingError, DamagedInput, ValueError):
        return None
