"""The values of the crawl index as both stores write them.

**Browsertrix's entry**, the value of a digest in ``h:{crawl}``: ``{waczIndex} {date} {url} {size}``, four
words with one space between them; the date has 14 or 17 digits, the URL no white space, the size is that of
the compressed record in bytes. Numbers are at most 2^63 - 1, the greatest that SQLite holds.

**A packed digest** is short and gives back the very text that went in: the bytes themselves for lower-case
hex; the byte 0x20 and the bytes for upper-case Base32 without padding; the byte 0x00 and the text for anything
else, with a second 0x00 where the length would be that of a hash. The forms cannot be mixed up, since no hash
in use has 17, 21, 29, 33, 49 or 65 bytes.

**A packed record id** is the 16 bytes of its UUID for ``<urn:uuid:…>``, or else the byte 0x00 and the text,
filled up with 0x00 to at least 17 bytes.

**Details of a record** are its packed record id; or nothing where that is not known; or, for an imported record that
has an unusual status or form of digest, 3 bytes: the number of the form in :data:`FORMS`, and the HTTP
status, big-endian, 0 where it is not known or 200.

**The place of a record**: 3 bytes for the number of its file among the crawl's, 5 bytes for the offset, both
big-endian and all ones where unknown; then the details.

**A source in the queue** is JSON with ``name``, ``url`` (a path or URL), ``crawlId``, ``hash``, ``size`` and
``container`` (true or false).

**The hash of a URL**: 12 bytes of BLAKE2b of its UTF-8. Among a thousand million URLs two have one hash with a
probability of 10^-11 (n^2 / 2^97), so the URL itself is not kept.

**What was recorded last of a URL**: 8 bytes big-endian for twice the date in 17 digits, plus one if it had that
many and was not filled up from 14; a byte for the length of the validators, and these; then the packed
digest. Of two such values the later capture is the greater one.

**A need**: the other crawl, the number of the container among that crawl's, and the name of the WARC file or
nothing, with a space between them. In the crawl, which another program may have named, a space is ``%20`` and a
percent sign ``%25``; a file name may have spaces.

**A container** is JSON without white space, as Browsertrix writes it: ``{"filename":…}``, and once it is packed
``{"filename":…,"hash":…,"size":…}``, with the SHA-256 of the file in hex without label.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
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
"""The ways to write a digest that are not usual: label and alphabet. Usual are ``sha1:`` in Base32, others in hex."""

UNKNOWN_OFFSET = 2**40 - 1
UNKNOWN_FILE = 2**24 - 1
GREATEST_NUMBER = 2**63 - 1

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
        entry = int(wacz_index), date.decode("ascii"), url.decode("utf-8"), int(size)
    except (UnicodeDecodeError, ValueError):
        return None
    return entry if max(entry[0], entry[3]) <= GREATEST_NUMBER else None


def read_number(digits: bytes) -> int | None:
    """A count or size of the index, or None if it is no number, or one that cannot be."""
    # Python refuses to read thousands of digits.
    if not digits.isdigit() or len(digits) > len(str(GREATEST_NUMBER)):
        return None
    number = int(digits)
    return number if number <= GREATEST_NUMBER else None


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


def other_spelling(digest: str) -> str | None:
    """The same digest in Base32 if it is hex, in hex if it is Base32; None for a text that is neither.

    >>> other_spelling("da39a3ee5e6b4b0d3255bfef95601890afd80709")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    packed = packed_digest(digest)
    if len(packed) in _HASH_SIZES:
        return base64.b32encode(packed).rstrip(b"=").decode("ascii")
    return packed[1:].hex() if packed[:1] == _BASE32 else None


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


def packed_details(original: Original) -> bytes:
    """The details of a record."""
    status = 0 if original.status in (None, 200) else original.status
    if status or original.form:
        return bytes([FORMS.index(original.form)]) + int(status or 0).to_bytes(2, "big")
    return b"" if original.record_id is None else packed_record_id(original.record_id)


def read_details(packed: bytes) -> tuple[str | None, int | None, str]:
    """Record id, status and form of digest, from the details of a record."""
    if len(packed) == 3:
        form = FORMS[packed[0]] if packed[0] < len(FORMS) else ""
        return None, int.from_bytes(packed[1:], "big") or None, form
    return unpacked_record_id(packed) if packed else None, None, ""


def packed_place(original: Original) -> bytes:
    """The place of a record without the number of its file; empty if nothing is known of it."""
    details = packed_details(original)
    if not details and original.file is None and original.offset is None:
        return b""
    offset = UNKNOWN_OFFSET if original.offset is None else original.offset
    return offset.to_bytes(5, "big") + details


def read_place(value: bytes) -> tuple[int | None, int | None, bytes] | None:
    """File number, offset and details of a place, or None if it is not one."""
    if len(value) < 8:
        return None
    number, offset = int.from_bytes(value[:3], "big"), int.from_bytes(value[3:8], "big")
    return (
        None if number == UNKNOWN_FILE else number,
        None if offset == UNKNOWN_OFFSET else offset,
        value[8:],
    )


def url_hash(url: str) -> bytes:
    """The 12 bytes under which a URL is looked up."""
    return blake2b(url.encode("utf-8"), digest_size=12).digest()


def packed_capture(capture: UrlCapture) -> bytes:
    """What is kept of the last capture of a URL.

    >>> packed_capture(UrlCapture("https://example.com/", "00" * 16, "20260801120000")).hex()
    '008ff62ebb3eb0000000000000000000000000000000000000'
    """
    date = int(capture.date.ljust(17, "0")) * 2 + (len(capture.date) == 17)
    validators = len(capture.validators).to_bytes(1, "big") + capture.validators
    return date.to_bytes(8, "big") + validators + packed_digest(capture.digest)


def read_capture(url: str, value: bytes) -> UrlCapture | None:
    """The last capture of *url* from what is kept of it, or None if it is not one."""
    date, has_milliseconds = divmod(int.from_bytes(value[:8], "big"), 2)
    digits = f"{date:017}" if has_milliseconds else f"{date:017}"[:-3]
    if len(value) <= 9 or not is_date(digits.encode("ascii")):
        return None
    end = 9 + value[8]
    if len(value) <= end:
        return None
    try:
        return UrlCapture(url, unpacked_digest(value[end:]), digits, value[9:end])
    except UnicodeDecodeError:
        return None


def need_text(need: Need) -> str:
    """The words of a need."""
    crawl = need.crawl.replace("%", "%25").replace(" ", "%20")
    return f"{crawl} {need.wacz_index} {need.file or ''}"


def read_need(value: bytes) -> Need | None:
    """The need of :func:`need_text`, or None if it is not one."""
    try:
        crawl, wacz_index, file = value.decode("utf-8").split(" ", 2)
        if not crawl or not wacz_index.isascii() or not wacz_index.isdigit():
            return None
        number = int(wacz_index)
    except ValueError:
        return None
    if number > GREATEST_NUMBER:
        return None
    return Need(crawl.replace("%20", " ").replace("%25", "%"), number, file or None)


def need_order(need: Need) -> tuple[str, int, str]:
    """What needs are sorted by."""
    return need.crawl, need.wacz_index, need.file or ""


def container_json(filename: str, sha256_hex: str | None = None, size: int | None = None) -> str:
    """A container as Browsertrix lists it; ``size`` in bytes. Without a size it is not packed yet."""
    container: dict[str, object] = {"filename": filename}
    if sha256_hex is not None:
        container["hash"] = sha256_hex
    if size is not None:
        container["size"] = size
    return json.dumps(container, ensure_ascii=False, separators=(",", ":"))


def read_container(value: bytes) -> dict[str, object] | None:
    """A container from its JSON, or None if that is no JSON object."""
    try:
        container = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return container if isinstance(container, dict) else None


def source_json(source: Source) -> str:
    """A source as the queue has it."""
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
    """The source of :func:`source_json`, or None if it is not one. One of another program is a container."""
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
    """The present time as the index keeps it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def software() -> str:
    """The name of what writes, with its version."""
    return f"scrapy-dedupe {__version__}"


def stats_json(stats: Mapping[str, object] | None) -> str | None:
    """A crawl's statistics as JSON; times in ISO 8601, what JSON does not know as text."""
    if stats is None:
        return None
    return json.dumps({str(name): stats[name] for name in stats}, default=_plain)


def read_canceled(value: bytes) -> dict[str, bytes]:
    """What is kept of a canceled crawl: when it was started, and its software.

    >>> read_canceled(b"2026-08-01T12:00:00Z scrapy-dedupe 1.0")
    {'started': b'2026-08-01T12:00:00Z', 'software': b'scrapy-dedupe 1.0'}
    """
    started, _, software = value.partition(b" ")
    return {name: text for name, text in (("started", started), ("software", software)) if text}


def read_stats(text: str | bytes | None) -> dict[str, object] | None:
    """The statistics of :func:`stats_json`; None for what is no JSON object."""
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
    """Why a file cannot be renamed, and what to do."""
    return (
        f"The crawl {crawl} in the index {url} has no WARC file {name}, so it cannot be renamed. The verb crawls,"
        " with --json, lists the files of each crawl; name one of them."
    )


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
        "importing": (
            "was imported only in part, since that was cut off",
            f"Import its sources again, or cancel it: cancel {crawl}.",
        ),
        "crawled": ("was crawled here", "What it holds is in the index already; import into another crawl."),
        "uncommitted": ("is not committed", f"Commit it, or cancel it: cancel {crawl}."),
        "dropped": (
            "does not take this source, which was not begun, or was lost when the index was emptied",
            "Import it again.",
        ),
        "taken": (
            "has a source that another process took over, since this one was silent for too long",
            "Leave it to that process.",
        ),
        "reopened": ("was started again while it was being committed", "Commit it when it has ended."),
        "resetting": (
            "is being reset, or was until that was cut off",
            "Start it, and commit it when it has ended.",
        ),
        "extended": ("was added to while it was repaired", "Repair it again."),
    }[state]
    return f"The crawl {crawl} {reason} in the index {url}, so it cannot be {action}. {remedy}"


def payload_message(name: str, payload: str, mode: str, url: str) -> str:
    """Why a source with digests of *payload* cannot be imported into an index with those of *mode*, and what to do."""
    return (
        f"The source {name} holds digests of {payload} payloads, the index {url} of {mode} ones. Import it into another"
        f" index (DEDUPE_INDEX_URL, --store), or say --payload {mode} if the file is wrong about itself."
    )
