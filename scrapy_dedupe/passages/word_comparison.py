"""Compare the words of texts, mostly without tokenising them.

The places of a passage usually differ only in case, layout and punctuation. In ASCII text, the words of two tokenisers are
the series of letters and digits, ignoring case, so such texts are compared by these series. Other texts are compared by a
digest of their words, which is computed once for each distinct text.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .tokens import Tokeniser

_PLAIN: Final = ("words/1", "cjk/1")
_RUNS: Final = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256)
)


class Wording:
    """Compares other texts with the words of *shown*."""

    def __init__(self, shown: str, tokeniser: Tokeniser) -> None:
        self._shown = shown
        self._tokeniser = tokeniser
        self._runs: list[bytes] | None = None
        self._words = ""
        self._of_written: dict[bytes, str] = {}

    def group(self, written: str) -> str:
        """Return the same string for texts with the same words, and "" for the words of *shown*."""
        if written == self._shown or self._has_same_runs(written):
            return ""
        key = hashlib.sha256(written.encode("utf-8", "surrogatepass")).digest()
        if key not in self._of_written:
            self._of_written[key] = self._digest(written)
        self._words = self._words or self._digest(self._shown)
        return "" if self._of_written[key] == self._words else self._of_written[key]

    def _has_same_runs(self, written: str) -> bool:
        if not (written.isascii() and self._shown.isascii()):
            return written.split() == self._shown.split()
        if self._tokeniser.name not in _PLAIN:
            return False
        if self._runs is None:
            self._runs = _runs_of(self._shown)
        return self._runs == _runs_of(written)

    def _digest(self, written: str) -> str:
        """A digest of the words of a text."""
        words = "\0".join(self._tokeniser.words(written))
        return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def _runs_of(text: str) -> list[bytes]:
    return text.encode("ascii").translate(_RUNS).split()
