"""Normalized digests, dates and URLs of the crawl index.

Digests have no label; SHA-1 is in upper-case Base32 without padding, all others in lower-case hex, as in the annotated
WARC specification. Dates are 14 digits, or 17 with milliseconds. White space and control characters of URLs are
percent-encoded.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.warc.dates import date_from_digits

from .index_values import FORMS, HASH_SIZES, from_base32, to_base32

if TYPE_CHECKING:
    from scrapy_dedupe.warc.reading import StoredRecord

_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\s\ud800-\udfff]")
_TIME = re.compile(r"(?:[01][0-9]|2[0-3])[0-5][0-9][0-5][0-9](?:[0-9]{3})?")
_HEX = re.compile(r"[0-9a-fA-F]+")
_BASE32 = re.compile(r"[A-Za-z2-7]+")
_USUAL_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_SHA1_SIZE, _SHA1_BASE32, _SHA256_SIZE = 20, 32, 32
_HEX_LENGTHS = frozenset(2 * size for size in HASH_SIZES)
# SHA-1, SHA-256 and SHA-512 without padding.
_BASE32_LENGTHS = frozenset({32, 52, 103})


def plain_digest(digest: str) -> str:
    """A digest in the form of the index: without label, SHA-1 in Base32, others in hex.

    The length distinguishes Base32 from hex. If both have the same length (32 characters: SHA-1 in Base32, MD5 in hex)
    the label decides, or else the characters. Raises :class:`SettingError` for any other text.

    >>> plain_digest("SHA-1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    >>> plain_digest("sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    usual = _USUAL_DIGEST.fullmatch(digest)
    return usual[1] if usual else _plain_and_form(digest)[0]


def algorithm_of(digest: str) -> str:
    """The algorithm of a digest in the form of the index: ``sha256``, ``sha1`` or ``other``.

    >>> algorithm_of(plain_digest("sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709"))
    'sha1'
    >>> algorithm_of(plain_digest("md5:d41d8cd98f00b204e9800998ecf8427e"))
    'other'
    """
    if len(digest) == 2 * _SHA256_SIZE:
        return "sha256"
    return "sha1" if len(digest) == _SHA1_BASE32 and digest.isupper() else "other"


def digest_and_form(labelled: str | None) -> tuple[str | None, str]:
    """A digest in the form of the index, and the form in which it was written; ``(None, "")`` for none.

    The form is one of :data:`~scrapy_dedupe.stores.index_values.FORMS`, "" for the usual or an unknown one. Raises the
    exceptions of :func:`plain_digest`.

    >>> [digest_and_form(label + "0" * 64)[1] for label in ("sha-256:", "sha256:")]
    ['sha-256 hex', '']
    """
    if not labelled:
        return None, ""
    if usual := _USUAL_DIGEST.fullmatch(labelled):
        return usual[1], ""
    return _plain_and_form(labelled)


def known_digest(record: StoredRecord) -> str | None:
    """The payload digest of a record in the form of the index; None if there is none or its form is unknown."""
    try:
        return digest_and_form(record.get("WARC-Payload-Digest"))[0]
    except SettingError:
        return None


def formed_digest(digest: str, form: str) -> str:
    """A digest of the index in the form of a record, with its label.

    >>> formed_digest("0" * 64, "sha-256 hex") == "sha-256:" + "0" * 64
    True
    """
    label, _, alphabet = form.partition(" ")
    raw, _ = _decoded(f"{label}:{digest}")
    return f"{label}:{raw.hex() if alphabet == 'hex' else to_base32(raw)}"


def plain_url(url: str) -> str:
    """A URL in the form of the index: with white space and control characters percent-encoded (UTF-8).

    >>> plain_url("https://example.com/a b")
    'https://example.com/a%20b'
    """
    if not url:
        raise SettingError("A record without a URL cannot be added to the index.")
    return _NOT_IN_URLS.sub(_percent, url)


@lru_cache(1_024)
def _is_day(digits: str) -> bool:
    try:
        date_from_digits(f"{digits}000000")
    except ValueError:
        return False
    return True


def date_digits(date: str) -> str:
    """A date in the form of the index: 14 digits, or 17 with milliseconds.

    >>> date_digits("2026-08-01T12:00:00.123Z"), date_digits("2026-08-01T12:00:00Z")
    ('20260801120000123', '20260801120000')
    """
    digits = date if date.isdigit() else re.sub(r"[-:T.Z]", "", date)
    # No archive is older than the year 1000, and leading zeros would be lost in a number.
    if not digits.startswith("0"):
        # An import has millions of dates on few days.
        if _TIME.fullmatch(digits, 8) and _is_day(digits[:8]):
            return digits
        with suppress(ValueError):
            date_from_digits(digits)
            return digits
    raise SettingError(
        f"The date is {date!r}. Allowed: a UTC time in seconds or milliseconds, of the year 1000 or later, or its"
        " digits."
    )


def _plain_and_form(digest: str) -> tuple[str, str]:
    raw, alphabet = _decoded(digest)
    form = f"{digest.rpartition(':')[0]} {alphabet}"
    return to_base32(raw) if len(raw) == _SHA1_SIZE else raw.hex(), form if form in FORMS else ""


def _decoded(digest: str) -> tuple[bytes, str]:
    """The bytes of a digest with or without label, and the alphabet of its text: ``hex`` or ``base32``."""
    label, _, value = digest.rpartition(":")
    value = value.rstrip("=")
    may_be_hex = len(value) != _SHA1_BASE32 or label.lower().replace("-", "") != "sha1"
    if may_be_hex and len(value) in _HEX_LENGTHS and _HEX.fullmatch(value):
        return bytes.fromhex(value), "hex"
    if len(value) in _BASE32_LENGTHS and _BASE32.fullmatch(value):
        return from_base32(value.upper()), "base32"
    raise SettingError(
        f"The digest is {digest!r}. Allowed: a label such as sha256: and hex or Base32, or no label."
    )


def _percent(match: re.Match[str]) -> str:
    encoded = match[0].encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in encoded)


EMPTY_PAYLOADS = frozenset(
    plain_digest(hashlib.new(name, usedforsecurity=False).hexdigest())
    for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
) | {"af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"}
"""The digests of an empty payload; the last one is BLAKE3."""
