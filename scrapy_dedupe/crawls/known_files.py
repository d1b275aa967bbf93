"""Checks whether the files that the index names still hold the indexed records.

A record of another crawl is read before it is referred to: a file or WACZ with the same name may have replaced the
indexed one, and a file that was deduplicated in place may begin as before. This takes some 100 us for a page of usual
size, compared to milliseconds that a crawl needs for a page. Remote files are not read; it is assumed that they exist.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.stores.normal_forms import known_digest
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.raw_heads import stored_uri
from scrapy_dedupe.warc.reading import read_record

from .places import is_present, is_remote, readable
from .rules import is_whole_original

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.reading import StoredRecord

# For a crawl that receives the same page repeatedly.
_MOST_KEPT: Final = 10_000


class KnownFiles:
    """The results so far. ``own`` is the crawl whose files are not checked."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._answers: OrderedDict[tuple[str, int], bool] = OrderedDict()

    def hold(self, original: Original) -> bool:
        """Whether the file of an original exists and holds the indexed record."""
        file = original.file
        if file is None or is_remote(file):
            return True
        if not is_present(file):
            return False
        if original.crawl == self._own or original.offset is None:
            return True
        place = (file, original.offset)
        if place in self._answers:
            self._answers.move_to_end(place)
            return self._answers[place]
        answer = self._answers[place] = _is_there(original, file, original.offset)
        if len(self._answers) > _MOST_KEPT:
            self._answers.popitem(last=False)
        return answer


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
    # An index that was imported without its WARC files may also name truncated records.
    if (text is not None and known_digest(record) != original.digest) or not is_whole_original(record):
        return False
    # A revisit must name the URL exactly as it is stored. In the index white space is percent-encoded, or stripped by a
    # reader. The date in the index may have only seconds.
    is_its_url = stored_uri(record) == original.url.encode("utf-8", "surrogatepass")
    return is_its_url and date_digits(record.date)[:14] == original.date[:14]
