"""Whether the files that the index names still hold what it says.

A file of another crawl is opened once, at the first record of it that is to be referred to: a file or WACZ under the
same name may have taken its place. Of one at a URL, that it was moved there is taken as proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError, SettingError
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.reading import read_record

from .places import is_present, is_remote, readable
from .values import plain_digest, plain_url

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.reading import StoredRecord


class KnownFiles:
    """The files that were looked at so far. ``own`` is the crawl whose files are not doubted."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._good: set[str] = set()
        self._bad: set[str] = set()

    def hold(self, original: Original) -> bool:
        """Whether the file of an original is there, and is the one that the index means."""
        file = original.file
        if file is None or is_remote(file):
            return True
        if file in self._bad or not is_present(file):
            return False
        if original.crawl != self._own and file not in self._good and original.offset is not None:
            is_it = _is_there(original, file, original.offset)
            (self._good if is_it else self._bad).add(file)
            return is_it
        return True


def _is_there(original: Original, file: str, offset: int) -> bool:
    path = readable(file)
    if path is None:
        return False
    try:
        return _is_it(read_record(path, offset), original)
    except (DedupeError, OSError, ValueError):
        return False


def _is_it(record: StoredRecord, original: Original) -> bool:
    if record.type != "response" or not record.target_uri or not record.date:
        return False
    text = record.get("WARC-Payload-Digest")
    try:
        if text is not None and plain_digest(text) != original.digest:
            return False
    except SettingError:
        return False
    # The index may have seconds alone.
    return (
        plain_url(record.target_uri) == original.url and date_digits(record.date)[:14] == original.date[:14]
    )
