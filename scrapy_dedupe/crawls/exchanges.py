"""The exchanges in WARC and ARC files of whatever program: which record is of HTTP, and how it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord


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


def is_http(record: StoredRecord) -> bool:
    """Whether a record is one of an exchange over HTTP; others are DNS answers and the like."""
    return (record.target_uri or "http:").lower().startswith(("http:", "https:"))


def is_not_modified(record: StoredRecord) -> bool:
    """Whether a revisit stands for a 304, in any version of its profile or without one."""
    if (record.profile or "").endswith("server-not-modified"):
        return True
    return record.http is not None and record.http.status == 304


def _belong_together(principal: StoredRecord, request: StoredRecord) -> bool:
    return principal.target_uri == request.target_uri and (
        principal.id in request.get_all("WARC-Concurrent-To")
        or request.id in principal.get_all("WARC-Concurrent-To")
    )


def _method(request: StoredRecord) -> str:
    return request.http.first_line.partition(b" ")[0].decode("latin-1") if request.http else ""
