"""Which names of encodings are charsets of pages.

A page may declare any name, and Python knows codecs under many that are no charsets: Punycode takes a time that grows
with the square of the length, escapes make text of what is none, UTF-7 hides markup and gives halves of surrogate pairs.
So charsets are told by what they are, not by what they are not; another package may register codecs as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, resolve_encoding

if TYPE_CHECKING:
    from collections.abc import Iterator

# By the names that Python's codecs call themselves: more than the Encoding standard has, and all of them linear.
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
    """Whether *name* is that of a charset.

    >>> is_charset("Latin1"), is_charset("gb2312"), is_charset("punycode"), is_charset("no-such-thing")
    (True, True, False, False)
    """
    try:
        codec = resolve_encoding(name)
    except ValueError:  # a NUL in it
        return False
    return codec is not None and _CHARSET.fullmatch(codec) is not None


def declared_encodings(content_type: str | None, body: bytes) -> Iterator[str]:
    """Yield what encodings HTTP and then the page itself declare, charsets or not."""
    for declared in (http_content_type_encoding(content_type), html_body_declared_encoding(body)):
        if declared is not None:
            yield declared
