"""Documents in JSON lines: one object per line, with one field for the id and one for the text.

Blank lines are ignored. A numeric id is used as it is written. A line that is not a JSON object, lacks a field, or has a
field that is not a string is a fault; the fault names the line. NaN and infinite numbers are accepted, since Python
writes them.

At most *max_bytes* of a line are read. Data outside of strings becomes Python objects of up to forty times its size, so
it has a separate limit, which is checked before parsing.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from .file_types import PLAIN
from .preparation import checked_name
from .text_reading import RawDocument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.tasks.faults import Faults

    from .text_reading import Skipped

_BOM: Final = b"\xef\xbb\xbf"
_PIECE: Final = 1 << 20
_MAX_BYTES_OUTSIDE_STRINGS: Final = 4 << 20
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Number(str):
    """A number as it is written. Used for ids, and because Python refuses integers of thousands of digits."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


@dataclass(frozen=True, slots=True)
class LineFields:
    """The names of the fields of id and text."""

    url: str = "url"
    text: str = "text"


def documents_in(
    file: IO[bytes],
    place: str,
    fields: LineFields,
    *,
    host: str | None,
    max_bytes: int,
    faults: Faults,
    skipped: Skipped,
) -> Iterator[RawDocument]:
    """Yield the documents of *file*; messages call it *place*. Raises OSError and the exceptions of `Faults.add`."""
    number = 0
    lines = _lines(file, max_bytes)
    while True:
        number += 1
        where = f"{place}, line {number}"
        try:
            line = next(lines, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            faults.add(where, f"the rest of the file cannot be decompressed ({error})")
            return
        if line is None:
            skipped.add("large", where, f"the line has more than {max_bytes} bytes")
            continue
        if not line:
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.isspace() or not line:
            continue
        if not _is_within_limit_outside_strings(line):
            skipped.add(
                "large",
                where,
                f"the line has more than {_MAX_BYTES_OUTSIDE_STRINGS} bytes outside of strings",
            )
            continue
        try:
            value, is_replaced = _parsed(line)
            doc_id, text = _values(value, fields)
        except ValueError as error:
            faults.add(where, str(error))
            continue
        # Only an escape sequence can produce a lone surrogate.
        if b"\\u" in line and _LONE_SURROGATE.search(text):
            text, is_replaced = _LONE_SURROGATE.sub("\ufffd", text), True
        if is_replaced:
            skipped.add_replaced(where)
        yield RawDocument(doc_id, host, text, PLAIN, where)


def _lines(file: IO[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines with their line ends; None for a line that is too long."""
    while line := file.readline(max_bytes + 2):
        if len(line.rstrip(b"\r\n")) <= max_bytes:
            yield line
            continue
        while not line.endswith(b"\n") and (line := file.readline(_PIECE)):
            pass
        yield None


def _is_within_limit_outside_strings(line: bytes) -> bool:
    """Whether the data outside of strings is within the limit, where each string counts as two bytes."""
    if len(line) <= _MAX_BYTES_OUTSIDE_STRINGS:
        return True
    # Without escapes, every quote begins or ends a string. A regular expression for strings takes memory per escape.
    bare = line.replace(rb"\\", b"").replace(rb"\"", b"")
    size = end = 0
    while (start := bare.find(b'"', end)) >= 0:
        size += start - end + 2
        if size > _MAX_BYTES_OUTSIDE_STRINGS:
            return False
        end = bare.find(b'"', start + 1) + 1
        if not end:
            return True  # not valid JSON
    return size + len(bare) - end <= _MAX_BYTES_OUTSIDE_STRINGS


def _parsed(line: bytes) -> tuple[Any, bool]:
    """The value of a line, and whether invalid UTF-8 was replaced. Raises ValueError with the reason."""
    try:
        text, is_replaced = line.decode(), False
    except UnicodeDecodeError:
        text, is_replaced = line.decode("utf-8", "replace"), True
    try:
        return _DECODER.decode(text), is_replaced
    except RecursionError as error:
        raise ValueError("it is not readable JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error


def _values(value: Any, fields: LineFields) -> tuple[str, str]:
    """The id and the text of a line. Raises ValueError (such as SettingError) with the reason."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the input, not of the call
    found = []
    for name, option in ((fields.url, "--url-field"), (fields.text, "--text-field")):
        if name not in value:
            raise ValueError(f"it has no field {name!r}; choose another field with {option}")
        if not isinstance(value[name], str) or (name == fields.text and isinstance(value[name], _Number)):
            raise ValueError(f"its field {name!r} is not a string; choose another field with {option}")
        found.append(str(value[name]))
    doc_id, text = found
    return checked_name(doc_id), text
