"""Shared by both stores of texts: keys of URLs, near candidates, captures of a URL, the check of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress
from struct import unpack
from typing import TYPE_CHECKING, Final, TypeVar

from scrapy_dedupe.errors import StoreRefused

from .base import NearAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from .base import SeenText, Signature, TextMatch

    FirstCapture: TypeAlias = Callable[[bytes, SeenText, float], TextMatch | None]
    """The first capture of a text for the answer to a capture, with the given similarity; None if it has none."""

B = TypeVar("B")
R = TypeVar("R")

# With fewer rows the share of equal rows says too little.
FEWEST_DECIDED: Final = 8

_DIGITS: Final = b"0" + 255 * b"1"

# Stores keep the first bytes of a band hash, and refer to a kept text by the first bytes of its digest. With ten million
# texts, one bucket in 7,000 is shared by accident: such a candidate is rejected, because its signature differs.
BAND_BYTES: Final = 5
REF_BYTES: Final = 5

# The keys of an identity, which scrapy_dedupe/content/pages.py describes.
KEY_BYTES: Final = 3
NOTHING: Final = bytes(KEY_BYTES)
NO_REST: Final = b"\xff" * KEY_BYTES

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


def bucket_numbers(bands: bytes) -> list[int]:
    """The numbers of the buckets of 8-byte band hashes, joined.

    >>> bucket_numbers(bytes(range(16)))
    [16909060, 34511391500]
    """
    return [number >> 8 * (8 - BAND_BYTES) for number in unpack(f">{len(bands) // 8}Q", bands)]


def compare_in_order(
    signatures: Sequence[Signature],
    places: Sequence[Sequence[B]],
    buckets: dict[B, R],
    kept: dict[R, tuple[bytes, bytes]],
    reference: Callable[[bytes], R],
    first_capture: FirstCapture,
    *,
    keep: bool,
) -> tuple[list[NearAnswer], list[int]]:
    """The near texts of *signatures*, and the numbers of the signatures whose texts are kept.

    ``places`` are the buckets of each signature; ``buckets`` has the references to the texts in them, ``kept`` the digests
    and stored signatures of these texts. Both are updated, so that a text is compared with the earlier ones.
    """
    answers, new = [], []
    for number, (signature, its_places) in enumerate(zip(signatures, places, strict=True)):
        digest = signature.capture.digest
        refs = {buckets[place] for place in its_places if place in buckets}
        candidates = [kept[ref] for ref in refs if ref in kept and kept[ref][0] != digest]
        answer = _nearest(signature, candidates, first_capture)
        if keep and answer.seen is None:
            ref = reference(digest)
            kept[ref] = digest, packed_signature(signature)
            buckets.update(dict.fromkeys(its_places[: len(signature.bands)], ref))
            new.append(number)
        answers.append(answer)
    return answers, new


def _nearest(
    signature: Signature, candidates: Sequence[tuple[bytes, bytes]], first_capture: FirstCapture
) -> NearAnswer:
    near, is_other = near_candidates(signature, candidates)
    for it in near:
        seen = first_capture(it.digest, signature.capture, it.equal / len(signature.rows))
        if seen is not None:
            return NearAnswer(seen, rest=it.rest, identity=it.identity)
    return NearAnswer(None, is_other)


@dataclass(frozen=True, slots=True, order=True)
class NearText:
    """A kept text that is near: the number of equal rows, its digest, its identity, and the share of equal rare rows.

    ``certainty`` is greater if fewer equal rows of the rests are enough.
    """

    certainty: int
    equal: int
    digest: bytes
    identity: bytes
    rest: float | None


def near_candidates(
    signature: Signature, candidates: Sequence[tuple[bytes, bytes]]
) -> tuple[list[NearText], bool]:
    """The near candidates, best first; and whether another text was similar, but is another page.

    ``candidates`` are digests with their stored signatures, as of :func:`packed_signature`.
    """
    near, is_other = [], False
    start, width = len(signature.identity), len(signature.rows)
    end = start + width
    for digest, packed in candidates:
        kept = packed[start:end]
        if len(kept) < width or (equal := equal_bytes(signature.rows, kept)) < signature.min_equal:
            continue
        kept_rare = _unpacked(kept, packed[end:])
        if kept_rare is None:
            # A signature of another length shares the bucket by accident.
            continue
        identity = packed[:start]
        least = _least_rest(signature, identity)
        rest = _equal_rest(signature, identity, kept, kept_rare)
        if least == 0 or (least is not None and rest is not None and rest[0] * width >= least * rest[1]):
            near.append(NearText(-least, equal, digest, identity, rest and rest[0] / rest[1]))
        else:
            is_other = True
    return sorted(near, reverse=True), is_other


def compared(signature: Signature, kept: Signature) -> NearAnswer:
    """What is compared of two signatures besides the whole texts."""
    rest = _equal_rest(signature, kept.identity, kept.rows, kept.rare_rows)
    return NearAnswer(rest=rest and rest[0] / rest[1], identity=kept.identity)


def packed_signature(signature: Signature) -> bytes:
    """A signature as it is stored: its identity, and its rows as of :func:`packed_rows`."""
    return signature.identity + packed_rows(signature.rows, signature.rare_rows)


def packed_rows(rows: bytes, rare_rows: bytes) -> bytes:
    r"""The row bytes of a signature as they are stored.

    The rows of the whole text come first. If there are rare rows, they follow: a bit for each row, the first one in the
    highest bit, which is 1 if its rare row differs from it; then the rare rows that differ. Most do not.

    >>> packed_rows(b"abcdefghi", b"abXdefghY")
    b'abcdefghi \x80XY'
    """
    if not rare_rows:
        return rows
    differs = _differences(rows, rare_rows)
    bits = int(differs.translate(_DIGITS), 2) << -len(rows) % 8
    return rows + bits.to_bytes(-(-len(rows) // 8), "big") + bytes(compress(rare_rows, differs))


def _unpacked(rows: bytes, packed: bytes) -> bytes | None:
    """The rare rows, empty if there are none. None if *rows* have another length than those that were packed."""
    if not packed:
        return b""
    size = -(-len(rows) // 8)
    bits = f"{int.from_bytes(packed[:size], 'big'):0{8 * size}b}"
    if bits.count("1") != len(packed) - size:
        return None
    different = iter(packed[size:])
    return bytes(next(different) if bit == "1" else row for row, bit in zip(rows, bits, strict=False))


@dataclass(frozen=True, slots=True)
class SameKeys:
    """Which keys of two identities are equal. None: at least one of the two pages says nothing.

    If one of the pages has a beginning in place of a title, ``beginning`` has the result and ``title`` is None.
    """

    url: bool | None = None
    tail: bool | None = None
    title: bool | None = None
    beginning: bool | None = None
    words: bool | None = None

    @classmethod
    def of(cls, own: bytes, kept: bytes) -> SameKeys:
        if not own:
            return cls()
        ours, its = _keys(own), _keys(kept)
        url, tail, title, name, words = map(_same_key, ours, its)
        # A page without a query may be the same as one with a query.
        if words is False and name and (ours[3] == ours[4] or its[3] == its[4]):
            words = True
        beginning = None
        if (ours[2][-1] | its[2][-1]) & 1:
            title, beginning = None, title
        return cls(url, tail, title, beginning, words)


def _keys(identity: bytes) -> list[bytes]:
    return [identity[place : place + KEY_BYTES] for place in range(0, len(identity), KEY_BYTES)]


def _same_key(own: bytes, kept: bytes) -> bool | None:
    return None if {own, kept} & {NOTHING, NO_REST} else own == kept


def _least_rest(signature: Signature, kept_identity: bytes) -> int | None:
    """How many rows of the rests must be equal so that a text whose whole is similar is near; None if it never is.

    See :class:`~.base.Signature`. Sync with content_claim.lua.
    """
    same = SameKeys.of(signature.identity, kept_identity)
    if same.url or (same.tail and same.title is not False):
        return 0
    if same.tail:
        return signature.min_equal_rare
    if same.title is False or same.words is False:
        return None
    if same.title or same.words:
        return signature.min_equal_named
    return None if same.beginning is False else signature.min_equal_rare


def _equal_rest(
    signature: Signature, kept_identity: bytes, kept: bytes, kept_rare: bytes
) -> tuple[int, int] | None:
    """The number of equal rows of the rests, and of the compared ones. None: these are too few, or a page has no rest."""
    if signature.identity.endswith(NO_REST) or kept_identity.endswith(NO_REST):
        return None
    rows, rare = signature.rows, signature.rare_rows
    if bool(rare) == bool(kept_rare):
        return equal_bytes(rare or rows, kept_rare or kept), len(rows)
    decided = [
        row == other
        for row, other, known, its_rare in zip(
            rows, kept, rows if rare else kept, rare or kept_rare, strict=True
        )
        if known == its_rare
    ]
    return (sum(decided), len(decided)) if len(decided) >= FEWEST_DECIDED else None


def equal_bytes(one: bytes, other: bytes) -> int:
    """The number of positions in which two byte strings of the same length are equal.

    >>> equal_bytes(b"abcd", b"abxd")
    3
    """
    return _differences(one, other).count(0)


def _differences(one: bytes, other: bytes) -> bytes:
    """Bytes that are 0 where two byte strings of the same length are equal."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


class CapturesByUrl:
    """Collects the captures of URLs: the texts first captured there, and other captures."""

    def __init__(self) -> None:
        self._known: dict[str, dict[bytes, SeenText]] = {}

    def add_first(self, capture: SeenText) -> None:
        """Add a text first captured at a URL. Call this before :meth:`add_noted`."""
        self._known.setdefault(capture.url, {})[capture.digest] = capture

    def add_noted(self, capture: SeenText) -> None:
        """Add another capture."""
        known = self._known.setdefault(capture.url, {})
        if capture.kind == "near" or capture.original is not None or capture.digest not in known:
            known[capture.digest] = capture

    def in_order(self) -> dict[str, list[SeenText]]:
        """The captures of each URL, oldest first."""
        return {
            url: sorted(known.values(), key=lambda capture: (capture.seen_ms, capture.digest))
            for url, known in self._known.items()
        }


def with_originals(
    captures: Iterable[SeenText], original: Callable[[SeenText], TextMatch | None]
) -> list[tuple[SeenText, TextMatch | None]]:
    """Captures, each with its original if that is another page."""
    return [(capture, None if capture.kind == "unique" else original(capture)) for capture in captures]


def refuse_other_parameters(url: str, stored: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    """Raise :class:`StoreRefused`, naming both values, for the first parameter that differs."""
    for name, value in parameters.items():
        if stored[name] != value:
            raise StoreRefused(
                f"The store {url} was written with {name} = {stored[name]}, but this version or setting uses"
                f" {name} = {value}. Use the version or setting that wrote it, or another store"
                " (DEDUPE_CONTENT_STORE_URL). To start again with an empty store: scrapy dedupe content purge --all"
            )
