"""Prepare documents for indexing: compute everything that a segment stores of them, without an index.

This is the expensive part of indexing. `prepare` is a pure function whose arguments and result can be pickled, so it can
run in other processes.

A text is a str. A lone surrogate cannot be encoded as UTF-8 and counts as U+FFFD, which does not change offsets. The
digest of a text is the first 16 bytes of the SHA-256 of its UTF-8 and identifies the text. The blob of a text is its
UTF-8, or in an index without texts its outline, compressed as raw deflate (RFC 1951).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from deflate import deflate_compress

from scrapy_dedupe.errors import SettingError

from .blots import blotter_of, keys
from .groups import group_bounds
from .segment_layout import DIGEST_SIZE, encode_outline
from .tokens import tokeniser_named, tokens_of_all
from .values import Outline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from numpy.typing import NDArray

    from .blots import Blots, Blotter
    from .tokens import Tokens
    from .values import Parameters

    Item = TypeVar("Item")

LONGEST_NAME = 8_192
"""The maximum length of a document id or host name, in bytes of UTF-8."""

LARGEST_TEXT = (1 << 32) - 1
"""The maximum length of a text, in bytes of UTF-8."""

# Level 1 takes 8 ns per byte. Level 6 takes twice the time and saves a sixteenth of the space.
_LEVEL = 1
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# RFC 3986, section 3.2: [ user @ ] host [ : port ], where the host may be an address in brackets.
_AUTHORITY = re.compile(r"https?://(?:[^/?#@\\]*@)?(\[[^\]/?#]*\]|[^/?#:\\]*)", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w-]+(?:\.[\w-]+)*\.?)(?::[0-9]*)?")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Documents that are ready to be written. Each distinct text has a number.

    For each document: *doc_ids*, *hosts* and *texts*, the number of its text (int64).

    For each of n texts: *digests* (n x 16 uint8), *token_counts*, *char_counts*, *byte_counts* (of the UTF-8),
    *post_counts*, *raw_sizes* (of the blob before compression), *blob_checksums* (CRC-32), and *blob_bounds* (n + 1
    offsets in *blobs*), all int64.

    *keys* (uint64) are the keys of all texts, one text after another. In an index with texts, the keys of a text are
    sorted and distinct. In an index without texts, all keys are in text order.
    """

    doc_ids: tuple[str, ...]
    hosts: tuple[str, ...]
    texts: NDArray[np.int64]
    digests: NDArray[np.uint8]
    token_counts: NDArray[np.int64]
    char_counts: NDArray[np.int64]
    byte_counts: NDArray[np.int64]
    post_counts: NDArray[np.int64]
    raw_sizes: NDArray[np.int64]
    blob_checksums: NDArray[np.int64]
    blob_bounds: NDArray[np.int64]
    keys: NDArray[np.uint64]
    blobs: bytes


def batches_of(
    items: Iterable[Item], size_of: Callable[[Item], int], full_size: int, full_count: int | None = None
) -> Iterator[list[Item]]:
    """Yield *items* in batches. A batch ends when the sizes of its items reach *full_size*, or at *full_count* items."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= full_size or len(batch) == full_count:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def prepare(batch: Sequence[tuple[str, str | None, str]], parameters: Parameters) -> Prepared:
    """Prepare documents, each given as id, host and text. If the host is None, it is taken from an id that is a URL.

    Raises SettingError for an invalid id or host (see `checked_name`), and for a text of 4 GB or more.
    """
    numbers: dict[bytes, int] = {}
    texts: list[str] = []
    encoded: list[bytes] = []
    of_documents: list[int] = []
    for doc_id, _, text in batch:
        clean, data = _utf8(text)
        _refuse_large(doc_id, len(data))
        digest = sha256(data).digest()[:DIGEST_SIZE]
        number = numbers.setdefault(digest, len(texts))
        if number == len(texts):
            texts.append(clean)
            encoded.append(data)
        of_documents.append(number)
    blotter = blotter_of(parameters.blotter)
    tokens, bounds = tokens_of_all(texts, tokeniser_named(parameters.tokeniser))
    blots = blotter.blots(tokens.hashes, bounds)
    stored = keys(blots.values, blotter)
    first_blots = np.searchsorted(blots.starts, bounds)
    post_counts = np.diff(first_blots)
    char_counts = np.array([len(text) for text in texts], np.int64)
    if parameters.has_texts:
        stored, post_counts = _each_once(stored, post_counts, parameters.key_bits)
        raw = encoded
    else:
        raw = _outlines(tokens, bounds, blots, first_blots, blotter)
    blobs = [deflate_compress(data, _LEVEL) for data in raw]
    return Prepared(
        tuple(checked_name(doc_id) for doc_id, _, _ in batch),
        tuple(host_of(doc_id) if host is None else checked_host(host) for doc_id, host, _ in batch),
        np.array(of_documents, np.int64),
        np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, DIGEST_SIZE),
        np.diff(bounds),
        char_counts,
        np.array([len(data) for data in encoded], np.int64),
        post_counts,
        np.array([len(data) for data in raw], np.int64),
        np.array([crc32(blob) for blob in blobs], np.int64),
        np.array([0, *accumulate(map(len, blobs))], np.int64),
        stored,
        b"".join(blobs),
    )


def digest_of(text: str) -> bytes:
    """Return the digest of a text.

    >>> digest_of("").hex()
    'e3b0c44298fc1c149afbf4c8996fb924'
    """
    return sha256(_utf8(text)[1]).digest()[:DIGEST_SIZE]


def checked_name(doc_id: str) -> str:
    """Return *doc_id*. Raises SettingError if it is empty or too long, or contains NUL or a lone surrogate."""
    if not isinstance(doc_id, str) or not doc_id:
        raise SettingError(f"{doc_id!r} is not a valid document id. Give a non-empty string, such as a URL.")
    return _checked(doc_id, "The document id")


def checked_host(host: str) -> str:
    """Return *host*, which may be empty. Raises SettingError for the reasons of `checked_name`."""
    if not isinstance(host, str):
        raise SettingError(f"{host!r} is not a host. Give a string, or None for the host of the URL.")
    return _checked(host, "The host") if host else host


def host_of(doc_id: str) -> str:
    """Return the host of an http or https URL in lower case, without user and port. Otherwise return "".

    >>> host_of("https://me@Docs.Example.org:8080/a?b"), host_of("docs/a.txt")
    ('docs.example.org', '')
    """
    found = _AUTHORITY.match(doc_id)
    return found[1].lower() if found else ""


def checked_text(doc_id: str, text: str) -> str:
    """Return *text*. Raises SettingError if it is not a str or is too long."""
    if not isinstance(text, str):
        raise SettingError(f"The text of {doc_id!r} is {type(text).__name__}, not str. Decode it.")
    if len(text) > LARGEST_TEXT // 4:  # a character has at most four bytes
        _refuse_large(doc_id, len(_utf8(text)[1]))
    return text


def host_named(name: str) -> str:
    """Return *name* as `host_of` returns the host of a URL; "" stays "". Raises SettingError if it is not a host name.

    >>> host_named("Docs.Example.org:8080"), host_named("[::1]")
    ('docs.example.org', '[::1]')
    """
    found = _HOST.fullmatch(name)
    if name and found is None:
        raise SettingError(f"{name[:200]!r} is not a host name. Give one such as www.example.org.")
    return checked_host(found[1].lower()) if found else ""


def _refuse_large(doc_id: str, size_bytes: int) -> None:
    if size_bytes > LARGEST_TEXT:
        raise SettingError(
            f"The text of {doc_id!r} has {size_bytes:,} bytes; the maximum is {LARGEST_TEXT:,}."
        )


def _checked(name: str, what: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise SettingError(
            f"{what} has a lone surrogate at character {error.start}: {name[:200]!r}. Give valid Unicode text."
        ) from None
    if size > LONGEST_NAME:
        raise SettingError(
            f"{what} has {size:,} bytes; the maximum is {LONGEST_NAME:,}: {name[:60]!r}... Give a shorter one."
        )
    if "\0" in name:
        raise SettingError(f"{what} has a NUL character: {name[:200]!r}. Remove it.")
    return name


def _utf8(text: str) -> tuple[str, bytes]:
    try:
        return text, text.encode()
    except UnicodeEncodeError:
        clean = _LONE_SURROGATE.sub("\ufffd", text)
        return clean, clean.encode()


def _each_once(
    stored: NDArray[np.uint64], counts: NDArray[np.int64], key_bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sort the keys of each text and remove duplicates. Returns the keys, and how many each text has."""
    # Text and key are sorted as one integer.
    shift = np.uint64(key_bits)
    packed = np.repeat(np.arange(len(counts), dtype=np.uint64) << shift, counts)
    packed |= stored
    packed.sort()
    packed = packed[group_bounds(packed[1:] != packed[:-1], len(packed))[:-1]]
    firsts = np.searchsorted(packed, np.arange(len(counts) + 1, dtype=np.uint64) << shift)
    packed &= np.uint64((1 << key_bits) - 1)
    return packed, np.diff(firsts)


def _outlines(
    tokens: Tokens, bounds: NDArray[np.int64], blots: Blots, first_blots: NDArray[np.int64], blotter: Blotter
) -> list[bytes]:
    """The encoded outline of each text."""
    char_starts = tokens.starts[blots.starts]
    char_ends = tokens.ends[blots.starts + (blotter.span - 1)]
    outlines = []
    for number in range(len(bounds) - 1):
        own = slice(first_blots[number], first_blots[number + 1])
        outline = Outline(blots.starts[own] - bounds[number], char_starts[own], char_ends[own])
        outlines.append(encode_outline(outline))
    return outlines
