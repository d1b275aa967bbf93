"""How a manifest spells the names of files and URIs, so that no space or line end in them can break a line.

A *break* is white space (Unicode's too), a control character, or a byte that is not UTF-8. It is written as percent
signs and the hexadecimal digits of its UTF-8 bytes; all other characters stay as they are.

- **File names**: breaks and percent signs are written so: ``my crawl.warc.gz`` is ``my%20crawl.warc.gz``, ``5%.warc`` is
  ``5%25.warc``. A ``{`` or ``PAR1`` at the beginning, which would pass for another format of manifests, is ``%7B`` and
  ``%50AR1``. When read, ``%`` and two hexadecimal digits are that byte; any other percent sign is itself.
- **URIs** have percent signs of their own, and the C tools write them unchanged, so ``http://a/b%20c`` has to stay what it
  is. A URI without breaks is written as it is. One with a break is escaped as a whole, as a file name is, and its first
  character besides, which tells the two apart: ``http://a/b c`` is ``%68ttp://a/b%20c``. So a URI that begins with a
  percent sign has been escaped. Two that would be misread for other reasons are escaped too: ``-`` is ``%2D``, and one
  that begins with a percent sign. An empty URI is ``%`` alone.

Reading what was written gives the same text again, for all text that comes from bytes.
"""

from __future__ import annotations

import re
from typing import Final

_BREAK: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME_BREAK: Final = re.compile(r"[%\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# How JSON lines and Parquet begin, which a manifest of text must not.
_FORMAT_STARTS: Final = ("{", "PAR1")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def file_text(name: str) -> str:
    """How a manifest spells a file name.

    >>> file_text("my crawl/100%.warc.gz")
    'my%20crawl/100%25.warc.gz'
    """
    if name.startswith(_FORMAT_STARTS):
        return _escape(name[0]) + _escaped(name[1:])
    return _escaped(name)


def file_of(text: str) -> str:
    """The file name that is spelt so.

    >>> file_of("my%20crawl/100%25.warc.gz")
    'my crawl/100%.warc.gz'
    """
    return _ESCAPES.sub(_unescape, text) if "%" in text else text


def uri_text(uri: str) -> str:
    """How a manifest spells a URI.

    >>> uri_text("http://a/b%20c"), uri_text("http://a/b c")
    ('http://a/b%20c', '%68ttp://a/b%20c')
    """
    if uri and uri[0] != "%" and uri != "-" and not _BREAK.search(uri):
        return uri
    return _escape(uri[:1]) + _escaped(uri[1:]) if uri else "%"


def uri_of(text: str) -> str:
    """The URI that is spelt so. Raises ValueError for an escaped one with a percent sign that escapes nothing.

    >>> uri_of("http://a/b%20c"), uri_of("%68ttp://a/b%20c")
    ('http://a/b%20c', 'http://a/b c')
    """
    if text[:1] != "%":
        return text
    if text == "%":
        return ""
    if _NO_ESCAPE.search(text):
        raise ValueError("the URI begins with a percent sign and has one that escapes nothing")
    return file_of(text)


def _escaped(text: str) -> str:
    return _NAME_BREAK.sub(_escape, text) if _NAME_BREAK.search(text) else text


def _escape(found: re.Match[str] | str) -> str:
    char = found if isinstance(found, str) else found[0]
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogateescape")
