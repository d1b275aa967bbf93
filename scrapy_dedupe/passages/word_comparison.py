"""Whether two written texts have the same words, without finding the words of all that is compared.

Most places of a passage are written alike but for case, layout and punctuation. Of texts in ASCII the words of two of the
tokenisers are the runs of letters and digits without regard to case; so such texts are compared by these runs, in one
step. What is left is told by a digest of its words, each text that is written differently once.
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
    """The words of *shown*, with which others are compared."""

    def __init__(self, shown: str, tokeniser: Tokeniser) -> None:
        self._shown = shown
        self._tokeniser = tokeniser
        self._runs: list[bytes] | None = None
        self._words = ""
        self._of_written: dict[bytes, str] = {}

    def group(self, written: str) -> str:
        """What texts with the same words have in common: the empty string for those of the text shown."""
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
        """What tells the words of a text."""
        words = "\0".join(self._tokeniser.words(written))
        return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def _runs_of(text: str) -> list[bytes]:
    return text.encode("ascii").translate(_RUNS).split()
