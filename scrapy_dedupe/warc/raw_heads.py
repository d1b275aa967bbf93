"""The head of a WARC record with its original bytes, for copying a record while changing some fields.

`StoredRecord.headers` holds leniently decoded text. A rewritten record must keep the bytes of every unchanged field,
whatever their encoding, and its version line, so an unusual head is read from the file again. Only white space around names
and values and the folding of long fields (ISO 28500, section 4: a line that begins with a space or tab continues the
one before) are normalized.

A head is at most 1 MiB, as in `framing`.

A usual head (`UsualHead`) gives the values of its fields by one pattern for all heads with the same fields. It has the form in
which we write heads, with printable ASCII, and the fields that most records have: it is not the head of a revisit or a segment,
refers to other records only by WARC-Concurrent-To, and has no ``Former-`` field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.framing import open_head, split_fields
from scrapy_dedupe.warc.sources import WARC_START, Broken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from scrapy_dedupe.warc.framing import Frame, _Layout
    from scrapy_dedupe.warc.reading import StoredRecord

_END = b"\r\n\r\n"
_LENGTH = b"Content-Length"
_TARGET_URI = b"WARC-Target-URI"
_MAX_USUAL_BYTES = 1 << 15
_UNUSUAL = ("former-", "warc-refers-to", "warc-profile", "warc-truncated", "warc-segment-")
_NEEDED = ("content-length", "warc-type")
_ONCE = (
    *_NEEDED,
    "content-type",
    "warc-block-digest",
    "warc-date",
    "warc-payload-digest",
    "warc-record-id",
    "warc-target-uri",
)


@dataclass(frozen=True, slots=True)
class RawHead:
    """The version line without its end, and the named fields in order. Immutable; changes return a new head."""

    version: bytes
    fields: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """Return the first field of that name, ignoring case."""
        name = name.lower()
        return next((value for field, value in self.fields if field.lower() == name), None)

    def get_all(self, name: bytes) -> list[bytes]:
        """Return every field of that name, in order."""
        name = name.lower()
        return [value for field, value in self.fields if field.lower() == name]

    def replaced(self, name: bytes, value: bytes) -> Self:
        """The head with exactly one field of that name: in the place of the first one, keeping its name, or at the end."""
        wanted, is_placed = name.lower(), False
        fields = []
        for field, old in self.fields:
            if field.lower() != wanted:
                fields.append((field, old))
            elif not is_placed:
                fields.append((field, _one_line(value)))
                is_placed = True
        if not is_placed:
            fields.append((name, _one_line(value)))
        return type(self)(self.version, tuple(fields))

    def added(self, *fields: tuple[bytes, bytes]) -> Self:
        """The head with more fields at its end."""
        more = tuple((name, _one_line(value)) for name, value in fields)
        return type(self)(self.version, self.fields + more)

    def without(self, names: Iterable[bytes]) -> Self:
        """The head without the fields *names*."""
        unwanted = {name.lower() for name in names}
        return type(self)(
            self.version, tuple(pair for pair in self.fields if pair[0].lower() not in unwanted)
        )

    def to_bytes(self, content_length: int) -> bytes:
        """The head as it is stored, with its blank line; *content_length* is the length of the block."""
        head = self.replaced(_LENGTH, b"%d" % content_length)
        lines = [head.version, *(b"%b: %b" % pair for pair in head.fields), b"", b""]
        return b"\r\n".join(lines)


def raw_head(record: StoredRecord) -> RawHead:
    """The head of a WARC record, which is read again unless it has the usual form. Raises DamagedInput if it is gone.

    Raises ValueError for an ARC record, whose head is one line of values.
    """
    if record.format != "warc":
        raise ValueError(f"{record.path}, offset {record.offset}: an ARC record has no named fields")
    usual = record.frame.head
    if usual is not None and (head := parsed_head(bytes(usual[1].group()))) is not None:
        return head
    version, _, lines = open_head(record.path, record.frame).partition(b"\n")
    try:
        return RawHead(version.rstrip(b"\r"), tuple(split_fields(lines)))
    except Broken:
        raise DamagedInput(
            f"{record.path}, offset {record.offset}: the head of the record has changed"
        ) from None


def parsed_head(data: bytes) -> RawHead | None:
    """The head in *data*, which ends with its blank line; None if a field is folded or invalid."""
    if not data.endswith(_END) or not WARC_START.match(data):
        return None
    version, *lines = data[: -len(_END)].split(b"\r\n")
    if b"\n" in version:
        return None
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or line[:1] in b" \t" or b"\n" in line:
            return None
        fields.append((name.strip(), value.strip()))
    return RawHead(version, tuple(fields))


class UsualHead:
    """The values of a usual head, in the order of the fields; *places* has the numbers of each field, from 1."""

    __slots__ = ("_places", "values")

    def __init__(self, places: Mapping[bytes, list[int]], values: tuple[bytes, ...]) -> None:
        self._places = places
        self.values = values

    def get(self, name: bytes) -> bytes | None:
        """The first field of that name, which is in lower case."""
        places = self._places.get(name)
        return self.values[places[0] - 1] if places else None

    def get_all(self, name: bytes) -> list[bytes]:
        """Every field of that name, which is in lower case, in order."""
        return [self.values[place - 1] for place in self._places.get(name, ())]


def usual_head(frame: Frame) -> UsualHead | None:
    """The head of a record; None if it is not usual."""
    if frame.head is None or frame.head_position:
        return None
    layout, stored = frame.head
    pattern, places = _usual_form(layout)
    if pattern is None or stored.end() - stored.start() > _MAX_USUAL_BYTES:
        return None
    found = pattern.fullmatch(stored.string, stored.start(), stored.end())
    return None if found is None else UsualHead(places, found.groups())


@lru_cache(1_024)
def _usual_form(layout: _Layout) -> tuple[re.Pattern[bytes] | None, Mapping[bytes, list[int]]]:
    """The pattern of usual heads with these fields, None if they are not usual, and the numbers of each field."""
    counts = {name: len(places) for name, places in layout.all_places.items()}
    is_usual = all(name in counts for name in _NEEDED) and all(counts.get(name, 0) <= 1 for name in _ONCE)
    if not is_usual or any(name.startswith(_UNUSUAL) for name in counts):
        return None, {}
    fields = b"".join(
        re.escape(name.encode("ascii")) + rb": ([!-~](?:[\t -~]*[!-~])?)\r\n" for name in layout.names
    )
    pattern = re.compile(rb"WARC/\d[^\r\n]*\r\n" + fields + rb"\r\n")
    return pattern, {name.encode("ascii"): places for name, places in layout.all_places.items()}


def stored_uri(record: StoredRecord, head: RawHead | None = None) -> bytes | None:
    """WARC-Target-URI as it is stored, without angle brackets; the URL of an ARC record in UTF-8.

    *head* is the head of the record, if it was already read. Raises DamagedInput as `raw_head`.
    """
    if record.format != "warc":
        return (record.target_uri or "").encode("utf-8") or None
    if head is None and record.frame.head is not None:
        # Its usual head, in ASCII, was read without a change.
        text = record.frame.first("warc-target-uri")
        uri = None if text is None else text.encode("ascii")
    else:
        uri = (head or raw_head(record)).get(_TARGET_URI)
    if uri is not None and uri.startswith(b"<") and uri.endswith(b">"):
        return uri[1:-1]
    return uri


def _one_line(value: bytes) -> bytes:
    if b"\n" in value or b"\r" in value:
        raise ValueError(f"a field of a record must not contain a line end: {value[:80]!r}")
    return value
