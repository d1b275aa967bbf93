"""Lines of manifests: their fields, and their forms in text and JSON (see `manifest`).

In text, spaces and line ends in file names and URIs are escaped, so that they cannot break a line. A *break* is white space
(including Unicode's), a control character, or a byte that is not UTF-8. It is written as a percent sign and two hexadecimal
digits for each of its UTF-8 bytes; all other characters are written unchanged.

- **File names**: breaks and percent signs are escaped: ``my crawl.warc.gz`` is ``my%20crawl.warc.gz``, ``5%.warc`` is
  ``5%25.warc``. A leading ``{`` or ``PAR1``, which would look like another manifest format, is ``%7B`` or ``%50AR1``.
  When read, ``%`` and two hexadecimal digits are that byte; any other percent sign is literal.
- **URIs** contain percent signs of their own, and the C tools write them unchanged, so ``http://a/b%20c`` must stay
  unchanged. A URI without breaks is written unchanged. A URI with a break is escaped like a file name, and its first
  character is escaped too, as a mark: ``http://a/b c`` is ``%68ttp://a/b%20c``. So a percent sign at the beginning means
  that a URI is escaped. Two more kinds of URI are escaped because they would be misread: ``-``, which is written as
  ``%2D``, and a URI that begins with a percent sign. An empty URI is written as a single ``%``.

Unescaping an escaped text returns the text, if it was decoded from bytes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from scrapy_dedupe.warc.dates import is_date, parse_date

_DIGITS: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
ALGORITHMS: Final = tuple(_DIGITS)
COLUMNS: Final = (6, 7, 10)
MAX_LINE_BYTES: Final = 1 << 20
MAX_OWN_BYTES: Final = MAX_LINE_BYTES // 2 - 256
"""The limit for a line with six columns. A later step adds the URI of another record, which may be as long."""
DECODED: Final = "decoded-"
"""The prefix of the label for digests of payloads without their content coding."""

_DIGEST: Final = re.compile(
    f"(?:{DECODED})?(?:{'|'.join(f'{name}:[0-9a-f]{{{digits}}}' for name, digits in _DIGITS.items())})"
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_MAX_NUMBER: Final = (1 << 63) - 1
_BREAK: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME_BREAK: Final = re.compile(r"[%\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# The first characters of JSON lines and Parquet; a text manifest must not begin with them.
_FORMAT_STARTS: Final = ("{", "PAR1")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class ManifestLine(NamedTuple):
    """A record and its relation to its duplicates.

    ``file`` is the unescaped name of the file in the manifest; ``offset`` and ``length`` count stored bytes; ``date``
    is the text of WARC-Date; ``digest`` is ``label:hex`` in lower case, where the label is an algorithm, or
    ``decoded-`` and an algorithm for the payload without its content coding. ``extension`` (7th column, from 1)
    distinguishes records with the same digest and different bytes. ``copy`` (8th) is 1 for the original of a cluster and
    2, 3, … for its copies, whose ``refers_to_uri`` and ``refers_to_date`` (9th, 10th) are those of the original.
    """

    file: str
    offset: int
    length: int
    uri: str
    date: str
    digest: str
    extension: int | None = None
    copy: int | None = None
    refers_to_uri: str | None = None
    refers_to_date: str | None = None

    @property
    def cluster(self) -> tuple[str, int]:
        """The key that all records with the same payload share."""
        return self.digest, self.extension or 1

    @property
    def is_copy(self) -> bool:
        """Whether this record may become a revisit."""
        return self.copy is not None and self.copy > 1

    @property
    def is_decoded(self) -> bool:
        """Whether the digest is of the payload without its content coding."""
        return self.digest.startswith(DECODED)

    @property
    def columns(self) -> int:
        """The number of columns with values: 6, 7 or 10."""
        if self.copy is not None:
            return 10
        return 6 if self.extension is None else 7


NAMES: Final = ManifestLine._fields
NUMBERS: Final = frozenset({"offset", "length", "extension", "copy"})


def digest_of(text: str) -> str:
    """Normalize a digest of a manifest. Raises ValueError if it is invalid.

    >>> digest_of("MD5:D41D8CD98F00B204E9800998ECF8427E")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    digest = text.lower()
    if _DIGEST.fullmatch(digest):
        return digest
    label, colon, value = digest.partition(":")
    digits = _DIGITS.get(label.removeprefix(DECODED))
    if not colon or digits is None:
        raise ValueError(f"the digest {text[:80]!r} does not begin with {', '.join(ALGORITHMS)} and a colon")
    raise ValueError(f"the digest {text[:160]!r} needs {digits} hexadecimal digits, but has {value[:130]!r}")


def text_line(line: ManifestLine, columns: int) -> str:
    """A line of a text manifest with this number of columns, without its line end. Raises ValueError if one is empty."""
    text = (
        f"{file_text(line.file)} {line.offset} {line.length} {uri_text(line.uri)} {line.date} {line.digest}"
    )
    if columns == 6:
        return text
    if line.extension is None or (columns == 10 and line.copy is None):
        raise ValueError(f"{line} does not fill {columns} columns")
    if columns == 7:
        return f"{text} {line.extension}"
    uri = "-" if line.refers_to_uri is None else uri_text(line.refers_to_uri)
    return f"{text} {line.extension} {line.copy} {uri} {line.refers_to_date or '-'}"


def json_line(line: ManifestLine, columns: int) -> str:
    """A line of a JSON manifest. See `text_line`."""
    text_line(line, columns)  # raises ValueError for an empty column
    members = {name: value for name in NAMES[:columns] if (value := getattr(line, name)) is not None}
    text = json.dumps(members, ensure_ascii=False)
    return json.dumps(members) if _SURROGATE.search(text) else text


def parse_text_line(text: str) -> ManifestLine:
    """Parse a line of text without its line end. Raises ValueError with the reason."""
    if not text.isprintable() and _CONTROL.search(text):
        raise ValueError("it has a control character")
    if not text:
        raise ValueError("it is empty")
    columns = text.split(" ")
    if len(columns) not in COLUMNS:
        raise ValueError(f"it has {len(columns)} columns; a manifest has 6, 7 or 10")
    if "" in columns:
        raise ValueError("a column is empty: it has two spaces in a row, or one at its start or end")
    file, offset, length, uri, date, digest, *rest = columns
    return _checked(
        ManifestLine(
            file_of(file),
            _number(offset, "offset"),
            _number(length, "length"),
            uri_of(_as_uri(uri)),
            date,
            digest,
            _number(rest[0], "extension") if rest else None,
            _number(rest[1], "copy number") if rest[1:] else None,
            uri_of(_as_uri(rest[2])) if rest[2:] and rest[2] != "-" else None,
            rest[3] if rest[3:] and rest[3] != "-" else None,
        )
    )


def why_unwritable(line: ManifestLine) -> str | None:
    """Why a line of six columns would not be read back unchanged; None if it would.

    The values of a record are arbitrary, and the reader rejects a whole manifest for one invalid line.
    """
    try:
        text = text_line(line, 6)
        size_bytes = len(text.encode())
        # A URI may take more bytes in JSON, but at most 8 times as many.
        if size_bytes * 8 > MAX_OWN_BYTES:
            size_bytes = max(size_bytes, len(json_line(line, 6).encode()))
        if size_bytes > MAX_OWN_BYTES:
            return f"the URI is too long: the line has {size_bytes} bytes, but at most {MAX_OWN_BYTES} can be read"
        found = parse_text_line(text)
    except UnicodeError:
        return "it has an unpaired surrogate, which UTF-8 cannot encode"
    except ValueError as error:
        return str(error)
    if found == line:
        return None
    changed = [name for name in NAMES if getattr(found, name) != getattr(line, name)]
    return f"its {' and '.join(changed)} would be read back with another value"


def parse_json_line(text: str) -> ManifestLine:
    """Parse a line of JSON. Raises ValueError with the reason."""
    if not text.strip():
        raise ValueError("it is empty")
    try:
        members = json.loads(text, object_pairs_hook=_members)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(members, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the reader of a manifest catches ValueError
    for name, value in members.items():
        if name not in NAMES:
            raise ValueError(f"{name[:80]!r} is not a member of a manifest line")
        if type(value) is not (int if name in NUMBERS else str):
            raise ValueError(f"{name} is not {'an integer' if name in NUMBERS else 'a string'}")
        if isinstance(value, str):
            members[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    if missing := [name for name in NAMES[:6] if name not in members]:
        raise ValueError(f"it has no {' and no '.join(missing)}")
    return _checked(ManifestLine(**members))


def _checked(line: ManifestLine) -> ManifestLine:
    """The line with its digest in lower case. Raises ValueError if a value is invalid."""
    if not _DIGEST.fullmatch(line.digest):
        return _checked(line._replace(digest=digest_of(line.digest)))
    for date in (line.date, line.refers_to_date):
        if date is not None and not is_date(date):
            parse_date(date)  # raises ValueError with the reason
    if not 0 <= line.offset <= _MAX_NUMBER or not 0 <= line.length <= _MAX_NUMBER:
        raise ValueError(f"the offset {line.offset} or the length {line.length} is out of range")
    if not line.file:
        raise ValueError("the file name is empty")
    if line.extension is None:
        if line.copy is not None:
            raise ValueError("it has a copy number but no extension")
    elif not 1 <= line.extension <= _MAX_NUMBER:
        raise ValueError(f"the extension {line.extension} is not 1 or more")
    has_uri, has_date = line.refers_to_uri is not None, line.refers_to_date is not None
    if line.copy is None or line.copy == 1:
        if has_uri or has_date:
            raise ValueError("it has a reference but is not a copy")
    elif not 1 <= line.copy <= _MAX_NUMBER:
        raise ValueError(f"the copy number {line.copy} is not 1 or more")
    elif not (has_uri and has_date):
        raise ValueError(f"it is copy {line.copy} but has no URI and date of its original")
    return line


def _number(text: str, what: str) -> int:
    if text.isdigit() and text.isascii() and len(text) < 20:
        return int(text)
    raise ValueError(f"the {what} {text[:80]!r} is not an integer of 0 or more")


def _as_uri(text: str) -> str:
    # The C tools copy the bytes of the record's head, which readers decode as Latin-1 if they are not UTF-8.
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("it has the same member twice")
    return members


@lru_cache(256)  # many lines have the same file
def file_text(name: str) -> str:
    """Escape a file name for a manifest.

    >>> file_text("my crawl/100%.warc.gz")
    'my%20crawl/100%25.warc.gz'
    """
    text = _NAME_BREAK.sub(_escape, name)
    return _escape(text[0]) + text[1:] if text.startswith(_FORMAT_STARTS) else text


def file_of(text: str) -> str:
    """Unescape a file name.

    >>> file_of("my%20crawl/100%25.warc.gz")
    'my crawl/100%.warc.gz'
    """
    return _ESCAPES.sub(_unescape, text) if "%" in text else text


def uri_text(uri: str) -> str:
    """Escape a URI for a manifest.

    >>> uri_text("http://a/b%20c"), uri_text("http://a/b c")
    ('http://a/b%20c', '%68ttp://a/b%20c')
    """
    if uri and uri[0] != "%" and uri != "-" and not _BREAK.search(uri):
        return uri
    return _escape(uri[:1]) + _NAME_BREAK.sub(_escape, uri[1:]) if uri else "%"


def uri_of(text: str) -> str:
    """Unescape a URI. Raises ValueError if an escaped URI has a percent sign without two hexadecimal digits.

    >>> uri_of("http://a/b%20c"), uri_of("%68ttp://a/b%20c")
    ('http://a/b%20c', 'http://a/b c')
    """
    if text[:1] != "%":
        return text
    if text == "%":
        return ""
    if _NO_ESCAPE.search(text):
        raise ValueError(
            "the URI begins with a percent sign and has another one without two hexadecimal digits"
        )
    return file_of(text)


def _escape(found: re.Match[str] | str) -> str:
    char = found if isinstance(found, str) else found[0]
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogateescape")
