"""Escaping of file names and URIs in a manifest, so that spaces and line ends in them cannot break a line.

A *break* is white space (including Unicode's), a control character, or a byte that is not UTF-8. It is written as a
percent sign and two hexadecimal digits for each of its UTF-8 bytes; all other characters are written unchanged.

- **File names**: breaks and percent signs are escaped: ``my crawl.warc.gz`` is ``my%20crawl.warc.gz``, ``5%.warc`` is
  ``5%25.warc``. A leading ``{`` or ``PAR1``, which would look like another manifest format, is ``%7B`` or ``%50AR1``.
  When read, ``%`` and two hexadecimal digits are that byte; any other percent sign is literal.
- **URIs** contain percent signs of their own, and the C tools write them unchanged, so ``http://a/b%20c`` must stay
  unchanged. A URI without breaks is written unchanged. A URI with a break is escaped like a file name, and its first
  character is escaped too, as a mark: ``http://a/b c`` is ``%68ttp://a/b%20c``. So a URI that begins with a percent
  sign is escaped. Two more kinds of URI are escaped because they would be misread: ``-`` is ``%2D``, and a URI that
  begins with a percent sign. An empty URI is a single ``%``.

Escaping and unescaping returns the same text, for all text that was decoded from bytes.
"""

from __future__ import annotations

import re
from typing import Final

_BREAK: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME_BREAK: Final = re.compile(r"[%\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# The first characters of JSON lines and Parquet; a text manifest must not begin with them.
_FORMAT_STARTS: Final = ("{", "PAR1")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def file_text(name: str) -> str:
    """Escape a file name for a manifest.

    >>> file_text("my crawl/100%.warc.gz")
    'my%20crawl/100%25.warc.gz'
    """
    if name.startswith(_FORMAT_STARTS):
        return _escape(name[0]) + _escaped(name[1:])
    return _escaped(name)


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
    return _escape(uri[:1]) + _escaped(uri[1:]) if uri else "%"


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


def _escaped(text: str) -> str:
    return _NAME_BREAK.sub(_escape, text) if _NAME_BREAK.search(text) else text


def _escape(found: re.Match[str] | str) -> str:
    char = found if isinstance(found, str) else found[0]
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogateescape")
