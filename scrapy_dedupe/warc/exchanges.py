"""Pairs the responses in a WARC file with their requests. WACZ, CDXJ, replay and the crawl index all use this rule.

A ``request`` record belongs to a ``response`` or ``revisit`` if one of the two names the other in WARC-Concurrent-To.
A request without this field belongs to a response or revisit with the same WARC-Target-URI and WARC-Date. A request
that names another record belongs to no other response.

Most programs write the request directly before or after its response; programs with several connections may mix the
exchanges. So the request is searched in the same file, among the `WINDOW_RECORDS` records before and after the
response; the nearest one counts. No request has two responses. ARC files have no requests. Replay also finds the other
requests whose record, or response, has a WARC-Concurrent-To.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.references import bare_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord

WINDOW_RECORDS = 16
_COOKIE_KEY_BYTES = 16
_WINDOW_BYTES = 16 << 20  # of blocks; a single record may have more


def exchanges(
    records: Iterable[StoredRecord], *, unknown_method: str = "GET"
) -> Iterator[tuple[StoredRecord, str]]:
    """Yield each response and revisit of a file with the method of its request, or *unknown_method* without one.

    Raises the exceptions of `paired`.
    """
    for record, request in paired(records):
        if _may_have_request(record):
            yield record, unknown_method if request is None else method_of(request)


def paired(
    records: Iterable[StoredRecord], on_unpaired: Callable[[StoredRecord], None] = lambda request: None
) -> Iterator[tuple[StoredRecord, StoredRecord | None]]:
    """Yield each record of a file that is not a request, in order, with its request or None.

    *on_unpaired* is called with each request without a response near it. If *records* raises DamagedInput, this is
    raised after the last record.
    """
    waiting: deque[_Unpaired] = deque()
    requests: deque[StoredRecord] = deque()  # requests without a response so far
    damage: DamagedInput | None = None
    try:
        for record in records:
            if record.type != "request":
                waiting.append(_Unpaired(record, _taken_request(requests, record)))
            elif (owner := _owner_of(record, waiting)) is not None:
                owner.request = record
            else:
                requests.append(record)
                if _is_full(requests):
                    on_unpaired(requests.popleft())
            while waiting and (waiting[0].is_settled or _is_full([one.record for one in waiting])):
                first = waiting.popleft()
                yield first.record, first.request
    except DamagedInput as error:
        damage = error
    for one in waiting:
        yield one.record, one.request
    for request in requests:
        on_unpaired(request)
    if damage is not None:
        raise damage


def method_of(request: StoredRecord) -> str:
    """The method of a request; empty if its block is not an HTTP request."""
    return request.http.first_line.partition(b" ")[0].decode("latin-1") if request.http else ""


def cookie_key(values: list[bytes]) -> bytes:
    """Return the key of the values of Cookie headers, regardless of their order; empty if there are none."""
    cookies = sorted(cookie for value in values for part in value.split(b";") if (cookie := part.strip()))
    return hashlib.blake2b(b";".join(cookies), digest_size=_COOKIE_KEY_BYTES).digest() if cookies else b""


@dataclass(slots=True)
class _Unpaired:
    """A record that waits for its request, or for that of an earlier record."""

    record: StoredRecord
    request: StoredRecord | None

    @property
    def is_settled(self) -> bool:
        return self.request is not None or not _may_have_request(self.record)


def _may_have_request(record: StoredRecord) -> bool:
    return record.type in ("response", "revisit")


def _owner_of(request: StoredRecord, waiting: deque[_Unpaired]) -> _Unpaired | None:
    free = [one for one in reversed(waiting) if not one.is_settled]
    return next((one for belong in _RULES for one in free if belong(request, one.record)), None)


def _taken_request(requests: deque[StoredRecord], record: StoredRecord) -> StoredRecord | None:
    """Remove the request of a record from *requests* and return it."""
    if not requests or not _may_have_request(record):
        return None
    nearest_first = list(reversed(requests))
    found = next((one for belong in _RULES for one in nearest_first if belong(one, record)), None)
    if found is not None:
        requests.remove(found)
    return found


def _are_concurrent(request: StoredRecord, response: StoredRecord) -> bool:
    return names(request, response) or names(response, request)


def _are_alike(request: StoredRecord, response: StoredRecord) -> bool:
    return (
        request.concurrent_to is None
        and request.target_uri == response.target_uri
        and request.date == response.date
    )


_RULES = (_are_concurrent, _are_alike)


def names(record: StoredRecord, other: StoredRecord) -> bool:
    """Whether a record names another one in WARC-Concurrent-To."""
    if record.concurrent_to is None or other.id is None:
        return False
    if record.concurrent_to == other.id:
        return True
    return bare_id(other.id) in [bare_id(name) for name in record.get_all("WARC-Concurrent-To")]


def _is_full(records: Collection[StoredRecord]) -> bool:
    return len(records) > 1 and (
        len(records) > WINDOW_RECORDS or sum(record.frame.block_length for record in records) > _WINDOW_BYTES
    )
