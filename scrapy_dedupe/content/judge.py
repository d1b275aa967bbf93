"""Judges texts: first whether the very text was read before, then whether a similar one was.

The exact layer keys a text by 16 bytes of the SHA-256 of the canonicaliser's name and version and the
canonical text. The near layer (:mod:`.signature`) is asked for new texts of at least ``near_min_chars``
characters alone. A text is compared with kept texts only, and a near copy is not kept, so that a chain of
small changes never makes two unlike pages copies of each other.

A page without any text, or with none beside its title and ``<noscript>``, is not judged: the shell of every page
that JavaScript fills would be a copy of every other. Its verdict is ``unknown`` with the reason ``no text``, and the store hears nothing of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import SettingError

from . import signature
from .canonical import CANONICALIZERS, canonical, is_shell, version
from .verdict import Verdict

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import ContentStore

NO_TEXT: Final = "no text"

DIGEST_BYTES: Final = 16

# Looking for a shell means to parse once more, which only short texts are worth.
_LONGEST_SHELL: Final = 500

PARAMETERS: Final = {
    "near_shingle_size": str(signature.SHINGLE_SIZE),
    "near_num_perm": str(signature.ROWS),
    "near_bands": str(signature.BANDS),
    "near_signature": signature.VERSION,
}


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How texts are compared. Raises :class:`SettingError` for a value that is not allowed.

    ``near_threshold`` is the estimated Jaccard similarity from which on a text is near; 1 turns the near
    layer off. ``near_min_chars`` counts characters of the canonical text.
    """

    canonicalizer: str = "text"
    near_threshold: float = 0.85
    near_min_chars: int = 200

    def __post_init__(self) -> None:
        if self.canonicalizer not in CANONICALIZERS:
            raise SettingError(
                f"canonicalizer is {self.canonicalizer!r}. Allowed: {', '.join(map(repr, CANONICALIZERS))}."
            )
        if not _is_number(self.near_threshold) or not 0.5 <= self.near_threshold <= 1:
            raise SettingError(f"near_threshold is {self.near_threshold!r}. Allowed: a number from 0.5 to 1.")
        if not isinstance(self.near_min_chars, int) or self.near_min_chars < 0:
            raise SettingError(
                f"near_min_chars is {self.near_min_chars!r}. Allowed: a whole number of at least 0."
            )


class Judge:
    """Judges pages against one store. Raises :class:`StoreRefused` if its near layer has other parameters."""

    def __init__(self, store: ContentStore, options: JudgeOptions | None = None) -> None:
        self._store = store
        self._options = options or JudgeOptions()
        self._namespace = version(self._options.canonicalizer)
        self._min_equal = signature.min_equal(self._options.near_threshold)
        store.check_parameters(PARAMETERS)

    def judge(
        self, text: str, *, url: str, crawl: str, kind: str = "html", seen_ms: int | None = None
    ) -> Verdict:
        """The verdict on the page at *url* whose decoded body is *text*; the text is remembered if it is new.

        *kind* is one of :data:`.canonical.KINDS`, *seen_ms* the time of the capture (default: now). Raises
        :class:`~scrapy_dedupe.errors.StoreError`.
        """
        wanted = canonical(kind, text, self._options.canonicalizer)
        if not wanted or wanted.isspace() or (len(wanted) <= _LONGEST_SHELL and is_shell(kind, text)):
            return Verdict("unknown", reason=NO_TEXT)
        if seen_ms is None:
            seen_ms = time.time_ns() // 1_000_000
        digest = self.digest(wanted)
        seen = self._store.claim_text(digest, url, crawl, seen_ms)
        if seen is not None:
            return Verdict.of("unchanged" if seen.had_this_url else "exact", seen, 1.0)
        if len(wanted) < self._options.near_min_chars or self._options.near_threshold == 1:
            return Verdict("unique")
        rows = signature.minhash(wanted)
        bands = signature.bands(rows, self._namespace)
        seen = self._store.claim_near(digest, bands, signature.row_bytes(rows), self._min_equal, url)
        if seen is None:
            return Verdict("unique")
        # The store tells the share of equal row bytes and knows nothing of how to read it.
        return Verdict.of("near", seen, signature.similarity(round(seen.similarity * signature.ROWS)))

    def digest(self, canonical_text: str) -> bytes:
        """The key of a canonical text in the exact layer: 16 bytes."""
        return sha256(f"{self._namespace}\0{canonical_text}".encode()).digest()[:DIGEST_BYTES]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
