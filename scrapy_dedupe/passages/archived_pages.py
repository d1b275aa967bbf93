"""The pages in WARC and ARC files, as they were stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, SettingError
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import shown

from .forms import PAGE
from .intake import RawDocument
from .preparation import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .intake import Skipped


@dataclass(frozen=True, slots=True)
class PageRules:
    """What tells pages from other records.

    *kind_of* tells the kind of a page from a declared Content-Type, None for what is no text. *exchanges* gives each
    response and revisit among records with the method that it was asked for with.
    """

    kind_of: Callable[[str], str | None]
    exchanges: Callable[[Iterable[StoredRecord]], Iterator[tuple[StoredRecord, str]]]


def pages_in(
    file: ReadableFile,
    rules: PageRules,
    *,
    host: str | None,
    max_bytes: int,
    faults: Faults,
    skipped: Skipped,
) -> Iterator[RawDocument]:
    """Yield the responses with status 200 to GET whose Content-Type is one of text, in the order of the file.

    Raises OSError if the file cannot be read, and what `Faults.add` raises.
    """
    for record, method in rules.exchanges(read_records(file, on_damage=faults.add_damage)):
        if reason := _reason_against(record, method):
            skipped.add(reason)
            continue
        assert record.http is not None
        # Scrapy reads the last one. What a page without Content-Type is will be seen in its body.
        *_, content_type = b"", *record.http.get_all(b"Content-Type")
        if content_type and rules.kind_of(content_type.decode("latin-1")) is None:
            skipped.add("type")
            continue
        place = f"{shown(str(file))}, offset {record.offset}"
        try:
            url = checked_name(record.target_uri or "")
        except SettingError as error:
            faults.add(place, str(error))
            continue
        # What HTTP says of it is a small part of a block, so the block tells whether the body can be held.
        if record.frame.block_length - record.http.length > max_bytes:
            skipped.add("large", place, f"{url} has more than {max_bytes} bytes")
            continue
        try:
            body = record.payload()
        except DamagedInput as error:
            faults.add(place, str(error))
            continue
        yield RawDocument(url, host, body, PAGE, f"{place} ({url})", tuple(record.http.headers))


def _reason_against(record: StoredRecord, method: str) -> str | None:
    if record.type == "revisit":
        return "revisit"
    if record.http is None or record.http.status is None:
        return "type"
    if record.http.status != 200:
        return "status"
    return None if method.upper() == "GET" else "method"
