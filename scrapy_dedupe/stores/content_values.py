"""Shared by both stores of texts: keys of URLs, near candidates, captures of a URL, the check of parameters."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .base import SeenText, Signature, TextMatch


# With fewer rows the share of equal rows says too little.
FEWEST_DECIDED: Final = 8

# Stores keep the first bytes of a band hash, and refer to a kept text by the first bytes of its digest. With ten million
# texts, one bucket in 7,000 is shared by accident: such a candidate is rejected, because its signature differs.
BAND_BYTES: Final = 5
REF_BYTES: Final = 5

_SCHEMES = ("https://", "http://", "")


def url_key(url: str) -> bytes:
    """An 8-byte hash of a URL."""
    return blake2b(raw(url), digest_size=8).digest()


def split_url(url: str) -> tuple[int, str | bytes]:
    """Scheme and rest of a URL, as stored."""
    if url.startswith("https://"):
        return 0, kept_text(url[8:])
    if url.startswith("http://"):
        return 1, kept_text(url[7:])
    return 2, kept_text(url)


def kept_text(text: str) -> str | bytes:
    """The form that SQLite can store: text, or bytes if the text contains lone surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return raw(text)
    return text


def joined_url(scheme: int, rest: str | bytes) -> str:
    """The URL of a scheme and rest; reverses :func:`split_url`."""
    return _SCHEMES[scheme] + (rest if isinstance(rest, str) else rest.decode("utf-8", "surrogatepass"))


def raw(text: str) -> bytes:
    r"""A URL or host as bytes, even if it contains lone surrogates.

    >>> raw("http://a/\ud800").decode("utf-8", "surrogatepass") == "http://a/\ud800"
    True
    """
    return text.encode("utf-8", "surrogatepass")


def near_candidates(
    signature: Signature, candidates: Sequence[tuple[bytes, bytes]]
) -> tuple[list[tuple[int, bytes]], bool]:
    """The near candidates as (equal rows, digest), best first; and whether others were excluded because of templates.

    ``candidates`` are digests with their stored row bytes: of the whole text, then, if a template was known,
    those of the rest.
    """
    near, is_template = [], False
    width = len(signature.rows)
    for digest, kept in candidates:
        if len(kept) not in (width, 2 * width):
            # A signature of another length shares the bucket by accident.
            continue
        equal = equal_bytes(signature.rows, kept[:width])
        if equal < signature.min_equal:
            continue
        if _rests_are_near(signature, kept[:width], kept[width:]):
            near.append((equal, digest))
        else:
            is_template = True
    return sorted(near, reverse=True), is_template


def _rests_are_near(signature: Signature, kept: bytes, kept_rare: bytes) -> bool:
    rows, rare, wanted = signature.rows, signature.rare_rows, signature.min_equal_rare
    if bool(rare) == bool(kept_rare):
        return equal_bytes(rare or rows, kept_rare or kept) >= wanted
    decided = [
        row == other
        for row, other, known, its_rare in zip(
            rows, kept, rows if rare else kept, rare or kept_rare, strict=True
        )
        if known == its_rare
    ]
    return len(decided) >= FEWEST_DECIDED and sum(decided) * len(rows) >= wanted * len(decided)


def equal_bytes(one: bytes, other: bytes) -> int:
    """The number of positions in which two byte strings of the same length are equal.

    >>> equal_bytes(b"abcd", b"abxd")
    3
    """
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big").count(0)


def all_captures(
    first: dict[bytes, SeenText],
    noted: Iterable[SeenText],
    original: Callable[[SeenText], TextMatch | None],
) -> list[tuple[SeenText, TextMatch | None]]:
    """The captures of a URL, oldest first, each with its original if that is another page.

    ``first`` are the texts first captured at the URL, by digest; ``noted`` are its other captures.
    """
    known = first.copy()
    for capture in noted:
        if capture.kind == "near" or capture.original is not None or capture.digest not in known:
            known[capture.digest] = capture
    return [
        (capture, None if capture.kind == "unique" else original(capture))
        for capture in sorted(known.values(), key=lambda capture: (capture.seen_ms, capture.digest))
    ]


def refuse_other_parameters(url: str, stored: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    """Raise :class:`StoreRefused`, naming both values, for the first parameter that differs."""
    for name, value in parameters.items():
        if stored[name] != value:
            raise StoreRefused(
                f"The store {url} was written with {name} = {stored[name]}, but this version or setting uses"
                f" {name} = {value}. Use the version or setting that wrote it, or another store"
                " (DEDUPE_CONTENT_STORE_URL). To start again with an empty store: scrapy dedupe content purge --all"
            )
