"""Read the text of a file that is given to a command, in the same way as ``passages index``."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import Final

from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.passages.text_reading import (
    ARCHIVE,
    BINARY,
    LINES,
    OPEN,
    PLAIN,
    START_BYTES,
    decoded,
    form_of,
)
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.sources import GZIP_MAGIC

STDIN: Final = "-"

_MOST_BYTES: Final = 64_000_000


def given_text(name: str) -> str:
    """Return the text of a file, or of standard input for ``-``. For HTML and XML, return the canonical text.

    Raises ArchiveError if the file cannot be read, UsageError if it is not a single text, and DamagedInput if it cannot be
    decompressed or parsed.
    """
    shown = "Standard input" if name == STDIN else name
    data = _data(name, shown)
    form = form_of(name, data[:START_BYTES])
    if form in (ARCHIVE, OPEN, LINES):
        raise UsageError(
            f"{shown} contains many documents, not a single text. Index it, and name one of its documents by the URL."
        )
    if form == BINARY:
        raise UsageError(f"{shown} does not contain text. Give a text or HTML file.")
    text, _ = decoded(data, form)
    if form == PLAIN:
        return text
    try:
        return read(form, text).text
    except HostileMarkup as error:
        raise DamagedInput(f"{shown} cannot be parsed: {error}") from error


def _data(name: str, shown: str) -> bytes:
    with reading(shown):
        if name == STDIN:
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
    if data.startswith(GZIP_MAGIC) and form_of(name, data[:START_BYTES]) not in (ARCHIVE, OPEN):
        data = _unpacked(data, shown)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{shown} has more than {_MOST_BYTES:,} bytes. Give a part of it.")
    return data


def _unpacked(data: bytes, shown: str) -> bytes:
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{shown} cannot be decompressed: {error}.") from error
