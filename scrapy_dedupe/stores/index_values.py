"""The values of the crawl index, in the form in which both stores write them.

**Browsertrix's entry** is the value of a digest in ``h:{crawl}``: ``{waczIndex} {date} {url} {size}``, four words
separated by single spaces. The date has 14 or 17 digits, the URL contains no white space, and the size is that of the
compressed record in bytes. Numbers are at most 2^63 - 1, the highest that SQLite stores.

**A packed digest** is short and can be converted back to the same text. Lower-case hex becomes the bytes themselves;
upper-case Base32 without padding becomes the byte 0x20 and the bytes; any other text becomes the byte 0x00 and the
text, with a second 0x00 where the length would otherwise be that of a hash. The forms are distinct, since no hash in
use has 17, 21, 29, 33, 49 or 65 bytes.

**A packed record id** is the 16 bytes of the UUID of ``<urn:uuid:…>``; any other id becomes the byte 0x00 and the
text, padded with 0x00 to at least 17 bytes.

**The details of a record** are its packed record id, or empty if the id is unknown. For an imported record with an
unusual status or spelling of the digest they are 3 bytes: the number of the spelling in :data:`FORMS`, and the HTTP
status, big-endian, 0 if it is unknown or 200.

**The place of a record** is 3 bytes for the number of its file within the crawl and 5 bytes for the offset, both
big-endian and all ones if unknown, followed by the details.

**A source in the queue** is JSON with ``name``, ``url`` (a path or URL), ``crawlId``, ``hash``, ``size`` and
``container`` (true or false).

**The hash of a URL** is 12 bytes of BLAKE2b of its UTF-8. Among 10^9 URLs the probability of a collision is 10^-11
(n^2 / 2^97), so the URL itself is not stored.

**The last capture of a URL** is 8 bytes, big-endian, with twice the date as a number of 17 digits, plus one if the
date had 17 digits and was not padded from 14; then 3 bytes for the number of its file within the crawl and 5 bytes for
the offset of its record, as in the place of a record; a byte with the length of the validators, and the validators; then
the packed digest. Of two such values, the later capture is the greater one.

**A need** is the other crawl, the number of the container in that crawl, and the name of the WARC file or nothing,
separated by spaces. In the crawl id, which another program may have chosen, a space is ``%20`` and a percent sign
``%25``; a file name may contain spaces.

**A container** is JSON without white space, as Browsertrix writes it: ``{"filename":…}``, and once it is packed
``{"filename":…,"hash":…,"size":…}``, with the SHA-256 of the file in hex without a label.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from scrapy_dedupe import __version__

from .base import Need, Source, UrlCapture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .base import Original

FORMS = (
    "",
    "sha-256 hex",
    "sha1 hex",
    "sha-1 hex",
    "sha-1 base32",
    "sha256 base32",
    "sha-256 base32",
)
"""The unusual spellings of a digest: label and alphabet. Usual are ``sha1:`` with Base32, other algorithms with hex."""

UNKNOWN_OFFSET = 2**40 - 1
UNKNOWN_FILE = 2**24 - 1
GREATEST_NUMBER = 2**63 - 1

_UUID = re.compile(r"<urn:uuid:([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})>")
_BASE32 = b"\x20"
_TEXT = b"\x00"
HASH_SIZES = frozenset({16, 20, 28, 32, 48, 64})
"""The sizes of MD5, SHA-1, SHA-224, SHA-256, SHA-384 and SHA-512. No packed Base32 digest has one of these lengths."""


def entry_text(original: Original) -> str:
    """The entry of a record, as Browsertrix writes it."""
    return f"{original.wacz_index} {original.date} {original.url} {original.size}"


def read_entry(value: bytes) -> tuple[int, str, str, int] | None:
    """Return container index, date, URL and size of an entry; None if *value* is not an entry.

    >>> read_entry(b"0 20260801120000123 https://example.com/ 1234")
    (0, '20260801120000123', 'https://example.com/', 1234)
    >>> read_entry(b"0 20260801120000123 https://example.com/a b 1234") is None
    True
    """
    words = value.split(b" ")
    if len(words) != 4:
        return None
    wacz_index, size = read_number(words[0]), read_number(words[3])
    if wacz_index is None or size is None or not is_date(words[1]) or not words[2]:
        return None
    try:
        return wacz_index, words[1].decode("ascii"), words[2].decode("utf-8"), size
    except UnicodeDecodeError:
        return None


def read_number(digits: bytes) -> int | None:
    """Parse a count or size of the index; None if it is not a number, or out of range."""
    # int() raises an exception for thousands of digits.
    if not digits.isdigit() or len(digits) > len(str(GREATEST_NUMBER)):
        return None
    number = int(digits)
    return number if number <= GREATEST_NUMBER else None


def is_date(digits: bytes) -> bool:
    """Whether *digits* are the 14 or 17 digits of a plausible date."""
    return (
        len(digits) in (14, 17)
        and digits.isdigit()
        and b"01" <= digits[4:6] <= b"12"
        and b"01" <= digits[6:8] <= b"31"
        and digits[8:10] <= b"23"
        and digits[10:12] <= b"59"
        and digits[12:14] <= b"60"
    )


def to_base32(raw: bytes) -> str:
    """Upper-case Base32 without padding."""
    return base64.b32encode(raw).rstrip(b"=").decode("ascii")


def from_base32(text: str) -> bytes:
    """The bytes of upper-case Base32 without padding. Raises :class:`ValueError` for any other text."""
    return base64.b32decode(text + "=" * (-len(text) % 8))


# An original and the capture of its URL have the same digest.
@lru_cache(2_048)
def packed_digest(digest: str) -> bytes:
    """The packed form of a digest without label."""
    try:
        raw = binascii.unhexlify(digest)
    except ValueError:
        raw = b""
    if len(raw) in HASH_SIZES and raw.hex() == digest:
        return raw
    try:
        raw = from_base32(digest)
    except ValueError:
        raw = b""
    if len(raw) in HASH_SIZES and to_base32(raw) == digest:
        return _BASE32 + raw
    packed = _TEXT + digest.encode("utf-8")
    return _TEXT + packed if len(packed) in HASH_SIZES else packed


def unpacked_digest(packed: bytes) -> str:
    """The digest of a packed form; reverses :func:`packed_digest`."""
    if len(packed) in HASH_SIZES:
        return packed.hex()
    if packed[:1] == _BASE32:
        return to_base32(packed[1:])
    return packed.lstrip(_TEXT).decode("utf-8")


def other_spelling(digest: str) -> str | None:
    """The same digest in Base32 if it is hex, in hex if it is Base32; None for any other text.

    >>> other_spelling("da39a3ee5e6b4b0d3255bfef95601890afd80709")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    packed = packed_digest(digest)
    if len(packed) in HASH_SIZES:
        return to_base32(packed)
    return packed[1:].hex() if packed[:1] == _BASE32 else None


def digest_key(digest: str) -> bytes:
    """The first 16 bytes of a packed digest, which are enough to distinguish the records of one crawl.

    A text in an unknown form is kept whole, since many such texts may have the same start.
    """
    packed = packed_digest(digest)
    return packed[:16] if len(packed) in HASH_SIZES or packed[:1] == _BASE32 else packed


def packed_record_id(record_id: str) -> bytes:
    """The packed form of a record id."""
    if uuid := _UUID.fullmatch(record_id):
        return bytes.fromhex("".join(uuid.groups()))
    return (_TEXT + record_id.encode("utf-8")).ljust(17, b"\0")


def unpacked_record_id(packed: bytes) -> str | None:
    """The record id of a packed form; reverses :func:`packed_record_id`. None for any other value."""
    if len(packed) == 16:
        word = packed.hex()
        return f"<urn:uuid:{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}>"
    try:
        return packed.strip(b"\0").decode("utf-8") or None
    except UnicodeDecodeError:
        return None


def packed_details(original: Original) -> bytes:
    """The stored details of a record."""
    status = 0 if original.status in (None, 200) else original.status
    if status or original.form:
        return bytes([FORMS.index(original.form)]) + int(status or 0).to_bytes(2, "big")
    return b"" if original.record_id is None else packed_record_id(original.record_id)


def read_details(packed: bytes) -> tuple[str | None, int | None, str]:
    """Record id, status and spelling of the digest, from the details of a record."""
    if len(packed) == 3:
        form = FORMS[packed[0]] if packed[0] < len(FORMS) else ""
        return None, int.from_bytes(packed[1:], "big") or None, form
    return unpacked_record_id(packed) if packed else None, None, ""


def packed_place(original: Original) -> bytes:
    """The place of a record without the number of its file; empty if nothing is known."""
    details = packed_details(original)
    if not details and original.file is None and original.offset is None:
        return b""
    offset = UNKNOWN_OFFSET if original.offset is None else original.offset
    return offset.to_bytes(5, "big") + details


def read_place(value: bytes) -> tuple[int | None, int | None, bytes] | None:
    """Return file number, offset and details of a place; None if *value* is not a place."""
    if len(value) < 8:
        return None
    number, offset = int.from_bytes(value[:3], "big"), int.from_bytes(value[3:8], "big")
    return (
        None if number == UNKNOWN_FILE else number,
        None if offset == UNKNOWN_OFFSET else offset,
        value[8:],
    )


def url_hash(url: str) -> bytes:
    """The 12-byte hash under which a URL is stored."""
    return blake2b(url.encode("utf-8"), digest_size=12).digest()


def packed_capture(capture: UrlCapture, file_number: int = UNKNOWN_FILE) -> bytes:
    """The stored form of the last capture of a URL, with the number of its file.

    >>> packed_capture(UrlCapture("https://example.com/", "00" * 16, "20260801120000")).hex()
    '008ff62ebb3eb000ffffffffffffffff0000000000000000000000000000000000'
    """
    return packed_capture_start(capture, file_number) + packed_digest(capture.digest)


def packed_capture_start(capture: UrlCapture, file_number: int) -> bytes:
    """The stored form of a capture up to its digest."""
    date = int(capture.date.ljust(17, "0")) * 2 + (len(capture.date) == 17)
    offset = UNKNOWN_OFFSET if capture.offset is None else capture.offset
    validators = capture.validators
    return b"%b%b%b%c%b" % (
        date.to_bytes(8, "big"),
        file_number.to_bytes(3, "big"),
        offset.to_bytes(5, "big"),
        len(validators),
        validators,
    )


def read_capture(url: str, value: bytes, file: str | None = None) -> UrlCapture | None:
    """Parse the stored form of the last capture of *url*, whose record is in *file*; None if *value* is not one."""
    date, has_milliseconds = divmod(int.from_bytes(value[:8], "big"), 2)
    digits = f"{date:017}" if has_milliseconds else f"{date:017}"[:-3]
    end = digest_start(value)
    if end is None or not is_date(digits.encode("ascii")):
        return None
    offset = int.from_bytes(value[11:16], "big")
    try:
        return UrlCapture(
            url,
            unpacked_digest(value[end:]),
            digits,
            value[17:end],
            file,
            None if offset == UNKNOWN_OFFSET else offset,
        )
    except UnicodeDecodeError:
        return None


def capture_file_number(value: bytes) -> int | None:
    """The number of the file in the stored form of a capture; None if it is unknown."""
    number = int.from_bytes(value[8:11], "big")
    return None if number == UNKNOWN_FILE or len(value) < 11 else number


def digest_start(value: bytes) -> int | None:
    """The position of the digest in the stored form of a capture; None if *value* is too short."""
    if len(value) <= 17:
        return None
    start = 17 + value[16]
    return start if len(value) > start else None


def need_text(need: Need) -> str:
    """The stored form of a need."""
    crawl = need.crawl.replace("%", "%25").replace(" ", "%20")
    return f"{crawl} {need.wacz_index} {need.file or ''}"


def read_need(value: bytes) -> Need | None:
    """Parse the stored form of a need; None if *value* is not one."""
    try:
        crawl, wacz_index, file = value.decode("utf-8").split(" ", 2)
    except ValueError:
        return None
    number = read_number(wacz_index.encode("utf-8"))
    if not crawl or number is None:
        return None
    return Need(crawl.replace("%20", " ").replace("%25", "%"), number, file or None)


def need_order(need: Need) -> tuple[str, int, str]:
    """The sort key of needs."""
    return need.crawl, need.wacz_index, need.file or ""


def container_fields(filename: str, sha256_hex: str | None, size: int | None) -> dict[str, object]:
    """A container with its known fields; ``size`` in bytes. A container without a size is not packed yet."""
    fields = {"filename": filename, "hash": sha256_hex, "size": size}
    return {name: value for name, value in fields.items() if value is not None}


def container_json(filename: str, sha256_hex: str | None = None, size: int | None = None) -> str:
    """A container in Browsertrix's JSON."""
    fields = container_fields(filename, sha256_hex, size)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def read_container(value: bytes) -> dict[str, object] | None:
    """Parse the JSON of a container; None if it is not a JSON object."""
    try:
        container = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return container if isinstance(container, dict) else None


def source_json(source: Source) -> str:
    """The stored form of a source in the queue."""
    entry = {
        "name": source.name,
        "url": source.place,
        "crawlId": source.crawl,
        "hash": source.hash,
        "size": source.size,
        "container": source.is_container,
    }
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def read_source(value: bytes | str) -> Source | None:
    """Parse a source in the queue; None if *value* is not one. A source of another program is a container."""
    try:
        entry = json.loads(value)
        name, place, crawl = entry["name"], entry["url"], entry["crawlId"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    digest, size, is_container = entry.get("hash"), entry.get("size"), entry.get("container", True)
    if not all(isinstance(word, str) and word for word in (name, place, crawl)):
        return None
    return Source(
        name,
        crawl,
        place,
        is_container is True,
        digest if isinstance(digest, str) else None,
        size if isinstance(size, int) and 0 <= size <= GREATEST_NUMBER else None,
    )


def utc_now() -> str:
    """The current time in the format of the index: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def software() -> str:
    """The name and version of this package, as recorded in the index."""
    return f"scrapy-dedupe {__version__}"


def stats_json(stats: Mapping[str, object] | None) -> str | None:
    """A crawl's statistics as JSON. Times become ISO 8601, other types that JSON does not support become text."""
    if stats is None:
        return None
    return json.dumps({str(name): stats[name] for name in stats}, default=_plain, skipkeys=True)


def read_canceled(value: str) -> dict[str, str]:
    """Parse the stored value of a canceled crawl: its start time and its software.

    >>> read_canceled("2026-08-01T12:00:00Z scrapy-dedupe 1.0")
    {'started': '2026-08-01T12:00:00Z', 'software': 'scrapy-dedupe 1.0'}
    """
    started, _, software = value.partition(" ")
    return {name: text for name, text in (("started", started), ("software", software)) if text}


def read_stats(text: str | bytes | None) -> dict[str, object] | None:
    """Parse the result of :func:`stats_json`; None if it is not a JSON object."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value, key=str)
    return str(value)


def unknown_file_message(crawl: str, name: str, url: str) -> str:
    """The error message for a file that cannot be renamed because the crawl does not have it."""
    return (
        f"The crawl {crawl} in the index {url} has no WARC file {name}, so it cannot be renamed. `scrapy dedupe"
        " crawls --json` lists the files of each crawl; use one of those names."
    )


def state_message(crawl: str, state: str, action: str, url: str) -> str:
    """The error message for *action* on a crawl in a *state* that does not allow it."""
    reason, remedy = {
        "unknown": ("is unknown", "`scrapy dedupe crawls` lists the crawls in the index."),
        "committed": (
            "is committed",
            f"Other crawls may refer to its records. Use another crawl id; `scrapy dedupe purge {crawl}` removes this crawl.",
        ),
        "canceled": ("was canceled", "Start it again, with the same id or another one."),
        "canceling": (
            "was canceled, but the cancellation was interrupted",
            f"Cancel it again: cancel {crawl}.",
        ),
        "committing": (
            "is being committed, or a commit was interrupted",
            "Commit it again, or start it.",
        ),
        "importing": (
            "is only partly imported because an import was interrupted",
            f"Import its sources again, or cancel it: cancel {crawl}.",
        ),
        "crawled": ("was crawled here", "Its records are in the index already; import into another crawl."),
        "uncommitted": ("is not committed", f"Commit it, or cancel it: cancel {crawl}."),
        "dropped": (
            "does not accept this source, which was not begun, or was lost when the index was emptied",
            "Import it again.",
        ),
        "taken": (
            "has a source that another process took over because this process did not renew its claim in time",
            "The other process continues with it.",
        ),
        "reopened": ("was started again while it was being committed", "Commit it when it has ended."),
        "resetting": (
            "is being reset, or a reset was interrupted",
            "Start it, and commit it when it has ended.",
        ),
        "extended": ("was extended while it was repaired", "Repair it again."),
    }[state]
    return f"The crawl {crawl} {reason} in the index {url}, so it cannot be {action}. {remedy}"


def payload_message(name: str, payload: str, mode: str, url: str) -> str:
    """The error message for a source with digests of *payload* and an index with digests of *mode*."""
    return (
        f"The source {name} holds digests of {payload} payloads, the index {url} of {mode} payloads. Import it into another"
        f" index (DEDUPE_INDEX_URL, --store), or use --payload {mode} if the file declares the wrong form."
    )


def payload_mode_message(payload: str, mode: str, index: str) -> str:
    """The error message for a crawl with digests of *payload* and an index with digests of *mode*."""
    return (
        f"The index {index} holds digests of {mode} payloads; this crawl computes digests of {payload} payloads. Set"
        f' DEDUPE_PAYLOAD = "{mode}", or use another index (DEDUPE_INDEX_URL).'
    )


def twice_message(source: Source, url: str) -> str:
    """The error message for a source that was imported before."""
    return (
        f"The source {source.name} was imported into the index {url} before, so it cannot be imported into the crawl"
        f" {source.crawl}. Purge the crawl that contains it first."
    )
