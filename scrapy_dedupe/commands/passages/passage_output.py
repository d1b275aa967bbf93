"""The output formats of passages.

``text``
    For reading.
``jsonl``
    One object per line with ``rank``, ``score``, ``tokens``, ``documents``, ``text`` (null if the index keeps no texts)
    and ``places``, a list of objects with ``doc_id``, ``token_start``, ``token_end``, ``char_start`` and ``char_end``.
``csv``
    A header line, then one line per place: rank, score, tokens, documents, the fields of the place, and the text. Fields
    are quoted as in RFC 4180.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.passages.values import Place

from .snippets import place_text, printable, snippet

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.passages.values import Passage


class Writer(Protocol):
    """Writes passages, one per call."""

    def write(self, passage: Passage) -> None: ...


class TextWriter:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._encoding = file.encoding or "utf-8"
        self._rank = 0

    def write(self, passage: Passage) -> None:
        self._rank += 1
        head = (
            f"{number_text(self._rank)}. {number_text(passage.tokens)} tokens in {number_text(passage.documents)}"
            f" documents, score {number_text(passage.score)}"
        )
        lines = [head if passage.text is None else f"{head}: {snippet(passage.text)}"]
        lines += [f"     {printable(place.doc_id)}: {place_text(place)}" for place in passage.places]
        written = "\n".join(lines) + "\n"
        self._file.write(written.encode(self._encoding, "backslashreplace").decode(self._encoding))


class JsonLinesWriter:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rank = 0

    def write(self, passage: Passage) -> None:
        self._rank += 1
        row = {
            "rank": self._rank,
            "score": passage.score,
            "tokens": passage.tokens,
            "documents": passage.documents,
            "text": passage.text,
            "places": [asdict(place) for place in passage.places],
        }
        # json.dumps escapes all non-ASCII characters, so any encoding works, and so no character ends the line.
        self._file.write(json.dumps(row) + "\n")


class CsvWriter:
    def __init__(self, file: TextIO) -> None:
        self._encoding = file.encoding or "utf-8"
        self._rows = csv.writer(file)
        self._rank = 0
        names = [field.name for field in fields(Place)]
        self._rows.writerow(["rank", "score", "tokens", "documents", *names, "text"])

    def write(self, passage: Passage) -> None:
        self._rank += 1
        head = (self._rank, passage.score, passage.tokens, passage.documents)
        written = self._encodable(passage.text or "")
        for place in passage.places:
            doc_id, *numbers = astuple(place)
            self._rows.writerow([*head, self._encodable(doc_id), *numbers, written])

    def _encodable(self, text: str) -> str:
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)


WRITERS: Final[dict[str, Callable[[TextIO], Writer]]] = {
    "text": TextWriter,
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
}
"""All writers by the name of their format."""
