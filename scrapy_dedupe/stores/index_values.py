"""The values of the crawl index as both stores write them.

**Browsertrix's entry**, the value of a digest in ``h:{crawl}``: ``{waczIndex} {date} {url} {size}``, four
words with one space between them; the date has 14 or 17 digits, the URL no white space, the size is that of
the compressed record in bytes.

**A packed digest** is short and gives back the very text that went in: the bytes themselves for lower-case
hex; the byte 0x20 and the bytes for upper-case Base32 without padding; the byte 0x00 and the text for anything
else, with a second 0x00 where the length would be that of a hash. The forms cannot be mixed up, since no hash
in use has 17, 21, 29, 33, 49 or 65 bytes.

**A packed record id** is the 16 bytes of its UUID for ``<urn:uuid:…>``, or else the byte 0x00 and the text,
filled up with 0x00 to at least 17 bytes.

**The place of a record**: 3 bytes for the number of its file among the crawl's, 5 bytes for the offset, both
big-endian and all ones where unknown; then the packed record id, or nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .base import Original

UNKNOWN_OFFSET = 2**40 - 1
UNKNOWN_FILE = 2**24 - 1

_BASE32 = b"\x20"
_TEXT = b"\x00"
# Hex digests from MD5 to SHA-512, so that no packed Base32 digest has the length of a hex one.
_HASH_SIZES = frozenset({16, 20, 28, 32, 48, 64})


def entry_text(original: Original) -> str:
    """Browsertrix's entry for a record."""
    return f"{original.wacz_index} {original.date} {original.url} {original.size}"


def read_entry(value: bytes) -> tuple[int, str, str, int] | None:
    """Container index, date, URL and size of an entry, or None if it is not one.

    >>> read_entry(b"0 20260801120000123 https://example.com/ 1234")
    (0, '20260801120000123', 'https://example.com/', 1234)
    >>> read_entry(b"0 20260801120000123 https://example.com/a b 1234") is None
    True
    """
    words = value.split(b" ")
    if len(words) != 4:
        return None
    wacz_index, date, url, size = words
    if not (wacz_index.isdigit() and size.isdigit() and is_date(date) and url):
        return None
    try:
        return int(wacz_index), date.decode("ascii"), url.decode("utf-8"), int(size)
    except (UnicodeDecodeError, ValueError):
        return None


def is_date(digits: bytes) -> bool:
    """True for the 14 or 17 digits of a date that may exist."""
    return (
        len(digits) in (14, 17)
        and digits.isdigit()
        and b"01" <= digits[4:6] <= b"12"
        and b"01" <= digits[6:8] <= b"31"
        and digits[8:10] <= b"23"
        and digits[10:12] <= b"59"
        and digits[12:14] <= b"60"
    )


def packed_digest(digest: str) -> bytes:
    """The short form of a digest without label."""
    try:
        raw = binascii.unhexlify(digest)
    except ValueError:
        raw = b""
    if len(raw) in _HASH_SIZES and raw.hex() == digest:
        return raw
    try:
        raw = base64.b32decode(digest + "=" * (-len(digest) % 8))
    except ValueError:
        raw = b""
    if len(raw) in _HASH_SIZES and base64.b32encode(raw).rstrip(b"=").decode("ascii") == digest:
        return _BASE32 + raw
    packed = _TEXT + digest.encode("utf-8")
    return _TEXT + packed if len(packed) in _HASH_SIZES else packed


def unpacked_digest(packed: bytes) -> str:
    """The digest that :func:`packed_digest` packed."""
    if len(packed) in _HASH_SIZES:
        return packed.hex()
    if packed[:1] == _BASE32:
        return base64.b32encode(packed[1:]).rstrip(b"=").decode("ascii")
    return packed.lstrip(_TEXT).decode("utf-8")


def digest_key(digest: str) -> bytes:
    """The first 16 bytes of a packed digest: enough to tell the records of one crawl apart.

    A text of no known form is kept whole, since such a text may begin like another one.
    """
    packed = packed_digest(digest)
    return packed[:16] if len(packed) in _HASH_SIZES or packed[:1] == _BASE32 else packed


def packed_record_id(record_id: str) -> bytes:
    """The short form of a record id."""
    if record_id.startswith("<urn:uuid:") and len(record_id) == 47:
        try:
            raw = binascii.unhexlify(record_id[10:-1].replace("-", ""))
        except ValueError:
            raw = b""
        if len(raw) == 16 and unpacked_record_id(raw) == record_id:
            return raw
    return (_TEXT + record_id.encode("utf-8")).ljust(17, b"\0")


def unpacked_record_id(packed: bytes) -> str | None:
    """The record id that :func:`packed_record_id` packed; None if it was not packed by it."""
    if len(packed) == 16:
        word = packed.hex()
        return f"<urn:uuid:{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}>"
    try:
        return packed.strip(b"\0").decode("utf-8") or None
    except UnicodeDecodeError:
        return None


def packed_offset(offset: int | None) -> bytes:
    """The 5 bytes of an offset."""
    return (UNKNOWN_OFFSET if offset is None else offset).to_bytes(5, "big")


def read_place(value: bytes) -> tuple[int | None, int | None, str | None] | None:
    """File number, offset and record id of a place, or None if it is not one."""
    if len(value) < 8:
        return None
    number, offset = int.from_bytes(value[:3], "big"), int.from_bytes(value[3:8], "big")
    return (
        None if number == UNKNOWN_FILE else number,
        None if offset == UNKNOWN_OFFSET else offset,
        unpacked_record_id(value[8:]) if len(value) > 8 else None,
    )


def utc_now() -> str:
    """The present time as the index keeps it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def software() -> str:
    """The name of what writes, with its version."""
    return f"scrapy-dedupe {__version__}"


def stats_json(stats: Mapping[str, object] | None) -> str | None:
    """A crawl's statistics as JSON; times in ISO 8601, what JSON does not know as text."""
    if stats is None:
        return None
    return json.dumps({str(name): stats[name] for name in stats}, default=_plain, ensure_ascii=False)


def read_stats(text: str | bytes | None) -> dict[str, object] | None:
    """The statistics of :func:`stats_json`; None for what is no JSON object."""
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value, key=str)
    return str(value)


def state_message(crawl: str, state: str, action: str, url: str) -> str:
    """Why a crawl in *state* does not allow *action*, and what to do."""
    reason, remedy = {
        "unknown": ("is unknown", "The verb crawls lists those that the index knows."),
        "committed": ("is committed", "Others may refer to its records; start a crawl under another id."),
        "canceled": ("was canceled", "Start it again, under this id or another one."),
        "canceling": ("was canceled, but that was cut off", f"Cancel it once more: cancel {crawl}."),
        "committing": (
            "is being committed, or was until it was cut off",
            "Commit it once more, or start it.",
        ),
        "reopened": ("was started again while it was being committed", "Commit it when it has ended."),
    }[state]
    return f"The crawl {crawl} {reason} in the index {url}, so it cannot be {action}. {remedy}"
