"""Which names of encodings are charsets of pages.

A page may declare any name, and Python has many codecs that are not charsets: Punycode takes quadratic time, escape
codecs turn any bytes into text, UTF-7 hides markup and yields lone surrogates. Other packages may register more codecs.
Therefore this is a list of allowed charsets, not of forbidden ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, resolve_encoding

if TYPE_CHECKING:
    from collections.abc import Iterator

# The names that Python's codecs report: more than in the Encoding standard, all of them decode in linear time.
_CHARSET: Final = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|kz1048|ptcp154|tis-620|hp-roman8"
    r"|palmos|big5(hkscs)?|gb(2312|k|18030)|hz|iso2022_(jp|kr)\w*|euc_\w+|shift_jis\w*|johab"
)


@dataclass(frozen=True, slots=True)
class DecodedPage:
    """The text of a page with its kind, the encoding it was decoded from, and its declared or assumed Content-Type."""

    text: str
    encoding: str
    kind: str
    content_type: str


def is_charset(name: str) -> bool:
    """Whether *name* is the name of a charset.

    >>> is_charset("Latin1"), is_charset("gb2312"), is_charset("punycode"), is_charset("no-such-thing")
    (True, True, False, False)
    """
    try:
        codec = resolve_encoding(name)
    except ValueError:  # a NUL in it
        return False
    return codec is not None and _CHARSET.fullmatch(codec) is not None


def declared_encodings(content_type: str | None, body: bytes) -> Iterator[str]:
    """Yield the encodings that HTTP and then the page itself declare, charsets or not."""
    for declared in (http_content_type_encoding(content_type), html_body_declared_encoding(body)):
        if declared is not None:
            yield declared
