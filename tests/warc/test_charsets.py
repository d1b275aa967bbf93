from __future__ import annotations

import encodings
import pkgutil

import pytest

from scrapy_dedupe.warc.codings import declared_encodings, is_charset

# Of the Encoding standard of the WHATWG; Python lacks "replacement", "x-user-defined" and "x-mac-cyrillic".
OF_THE_WEB = (  # noqa: SIM905 - it is a table
    "utf-8 ibm866 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8 iso-8859-10 iso-8859-13"
    " iso-8859-14 iso-8859-15 iso-8859-16 koi8-r koi8-u macintosh windows-874 windows-1250 windows-1251 windows-1252"
    " windows-1253 windows-1254 windows-1255 windows-1256 windows-1257 windows-1258 gbk gb18030 big5"
    " euc-jp iso-2022-jp shift_jis euc-kr utf-16be utf-16le latin1 us-ascii x-sjis gb2312 tis-620"
).split()
NONE = [
    "punycode",
    "idna",
    "unicode_escape",
    "raw_unicode_escape",
    "undefined",
    "utf-7",
    "charmap",
    "base64",
    "rot13",
]


@pytest.mark.parametrize("name", OF_THE_WEB)
def test_what_pages_are_written_in_is_a_charset(name: str) -> None:
    assert is_charset(name)


@pytest.mark.parametrize("name", [*NONE, "Puny-Code", "no-such-thing", "", "\0", "ä"])
def test_other_codecs_and_other_names_are_none(name: str) -> None:
    assert not is_charset(name)


def test_every_charset_reads_whatever_bytes_there_are() -> None:
    names = [module.name for module in pkgutil.iter_modules(encodings.__path__) if is_charset(module.name)]
    assert len(names) > 80
    data = b"x" * 200_000 + b"-" + b"a~{\x1b$B\xff\x81" * 50_000
    for name in names:
        assert data.decode(name, "replace"), name


def test_what_is_declared_is_given_charset_or_not() -> None:
    page = b"<meta charset='punycode'>"
    assert list(declared_encodings("text/html; charset=koi8-r", page)) == ["koi8-r", "punycode"]
    assert list(declared_encodings(None, b"<p>")) == []
