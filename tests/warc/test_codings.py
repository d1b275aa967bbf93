"""Bodies are decoded whole or not at all. Names of charsets and of programs are known."""

from __future__ import annotations

import contextlib
import encodings
import gzip
import hashlib
import pkgutil
import random
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.warc import codings
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.codings import (
    Undecodable,
    codings_of,
    declared_encodings,
    decoded,
    decoded_body,
    is_charset,
    payload_mode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = random.Random(0).randbytes(3_000) * 100


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def brotli(data: bytes) -> bytes:
    package = next((found for name in ("brotli", "brotlicffi") if (found := module(name))), None)
    if package is None:
        pytest.skip("no package for br")
    return bytes(package.compress(data, quality=4))


def zstd(data: bytes) -> bytes:
    names = ("compression.zstd", "backports.zstd", "zstandard")
    package = next((found for name in names if (found := module(name))), None)
    if package is None:
        pytest.skip("no package for zstd")
    return bytes(package.compress(data))


def module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "x-gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "deflate without a header": raw_deflate,
    "br": brotli,
    "zstd": zstd,
}

every_coding = pytest.mark.parametrize("name", ENCODERS)


def coding(name: str) -> list[str]:
    return [name.split()[0]]


@every_coding
@pytest.mark.parametrize("data", [b"", b"a", TEXT], ids=["nothing", "a byte", "much"])
def test_a_body_comes_back_as_it_was(name: str, data: bytes) -> None:
    assert decoded_body(ENCODERS[name](data), coding(name)) == data


@every_coding
def test_a_body_that_is_cut_anywhere_is_refused(name: str) -> None:
    body = ENCODERS[name](TEXT[:4_000])
    for length in (*range(0, len(body), 97), len(body) - 1):
        with pytest.raises(Undecodable, match="damaged or incomplete"):
            decoded_body(body[:length], coding(name))


@every_coding
def test_what_stands_behind_a_body_is_not_passed_over(name: str) -> None:
    with pytest.raises(Undecodable, match="damaged or incomplete"):
        decoded_body(ENCODERS[name](TEXT) + b"junk", coding(name))


@every_coding
def test_the_limit_holds_to_the_byte_and_for_what_would_fill_the_memory(name: str) -> None:
    body = ENCODERS[name](TEXT)
    assert decoded_body(body, coding(name), len(TEXT)) == TEXT
    with pytest.raises(Undecodable, match=f"more than {len(TEXT) - 1} bytes"):
        decoded_body(body, coding(name), len(TEXT) - 1)
    with pytest.raises(Undecodable, match="more than 1000 bytes"):
        decoded_body(ENCODERS[name](bytes(20_000_000)), coding(name), 1_000)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_one_after_another_are_one_body(name: str) -> None:
    one, two = ENCODERS[name](TEXT), ENCODERS[name](b"more")
    assert decoded_body(one + two + one, [name]) == TEXT + b"more" + TEXT


def test_zeros_behind_a_gzip_member_are_padding() -> None:
    assert decoded_body(gzip.compress(TEXT) + bytes(100_000), ["gzip"]) == TEXT


def test_very_many_members_take_no_time_that_grows_with_the_square_of_their_number() -> None:
    assert decoded_body(gzip.compress(b"") * 20_000 + gzip.compress(b"end"), ["gzip"]) == b"end"


def test_a_damaged_checksum_is_noticed() -> None:
    body = bytearray(gzip.compress(TEXT))
    body[-6] ^= 1
    with pytest.raises(Undecodable, match="gzip"):
        decoded_body(bytes(body), ["gzip"])


@given(st.binary(max_size=2_000), st.lists(st.sampled_from(["gzip", "x-gzip", "deflate"]), max_size=5))
def test_several_codings_are_undone_from_the_last_to_the_first(data: bytes, names: list[str]) -> None:
    body = data
    for name in names:
        body = ENCODERS[name](body)
    assert decoded_body(body, names) == data


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br", "zstd"]))
def test_any_bytes_are_decoded_or_refused(data: bytes, name: str) -> None:
    with contextlib.suppress(Undecodable):
        assert len(decoded_body(data, [name], 100_000)) <= 100_000


def test_the_limit_holds_for_each_of_several_codings() -> None:
    body = gzip.compress(gzip.compress(bytes(20_000_000), 1))
    with pytest.raises(Undecodable, match="more than 10000 bytes"):
        decoded_body(body, ["gzip", "gzip"], 10_000)


def test_more_codings_than_anybody_applies_are_refused() -> None:
    with pytest.raises(Undecodable, match="6 content codings"):
        decoded_body(TEXT, ["gzip"] * 6)


def test_an_unknown_coding_is_named() -> None:
    with pytest.raises(Undecodable, match="'pack200-gzip' is not known"):
        decoded_body(gzip.compress(TEXT), ["pack200-gzip", "gzip"])


@pytest.mark.parametrize(("name", "package"), [("br", "brotli"), ("zstd", "backports.zstd")])
def test_a_coding_whose_package_is_missing_is_told_with_the_package(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(codings, "_module", lambda name: None)
    caches = (codings.decoder_of, codings.brotli_package, codings.zstd_package, codings.zstandard_package)
    for cached in caches:
        cached.cache_clear()
    try:
        with pytest.raises(Undecodable, match=f"install the package {package}"):
            decoded_body(b"x", [name])
    finally:
        for cached in caches:
            cached.cache_clear()


@pytest.mark.parametrize("name", ["zstandard"])
def test_the_other_package_for_zstandard_gives_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip(name)
    body = zstd(TEXT)
    monkeypatch.setattr(codings, "zstd_package", lambda: None)
    codings.decoder_of.cache_clear()
    try:
        assert decoded_body(body + body, ["zstd"]) == TEXT + TEXT
        for wrong in (body[:-1], body + b"junk", b"", b"x"):
            with pytest.raises(Undecodable, match="zstd"):
                decoded_body(wrong, ["zstd"])
        with pytest.raises(Undecodable, match="more than 1000 bytes"):
            decoded_body(zstd(bytes(20_000_000)), ["zstd"], 1_000)
    finally:
        codings.decoder_of.cache_clear()


def capture(body: bytes, *headers: tuple[bytes, bytes]) -> Capture:
    return Capture(
        url="http://example.org/",
        method="GET",
        status=200,
        date=datetime(2026, 11, 28, tzinfo=UTC),
        request_headers=(),
        request_body=b"",
        response_headers=headers,
        body=body,
    )


def test_a_decoded_capture_keeps_its_headers_in_order_and_the_coding_under_another_name() -> None:
    body = gzip.compress(TEXT)
    came = capture(
        body,
        (b"Server", b"a"),
        (b"content-encoding", b"gzip"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Vary", b"b"),
    )
    found = decoded(came)
    assert found == replace(
        came,
        body=TEXT,
        response_headers=(
            (b"Server", b"a"),
            (b"X-Orig-Content-Encoding", b"gzip"),
            (b"Content-Length", b"%d" % len(body)),
            (b"Vary", b"b"),
        ),
    )
    assert b"Content-Length: 300000\r\n" in found.response_head()
    assert found.payload_digest() == hashlib.sha256(TEXT).hexdigest()


def test_a_capture_without_coding_or_body_stays_as_it_is() -> None:
    for came in (capture(TEXT), capture(b"", (b"Content-Encoding", b"gzip"))):
        assert decoded(came) is came


def test_names_of_codings_are_read_in_any_case_and_in_several_fields() -> None:
    headers = ((b"Content-Encoding", b" GZIP ,identity,, Br"), (b"CONTENT-ENCODING", b"x-gzip"))
    assert codings_of(headers) == ["gzip", "br", "x-gzip"]


# Charsets


# Of the Encoding standard of the WHATWG; Python lacks "replacement", "x-user-defined" and "x-mac-cyrillic".
OF_THE_WEB = (  # noqa: SIM905 - it is a table
    "utf-8 ibm866 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8 iso-8859-10 iso-8859-13"
    " iso-8859-14 iso-8859-15 iso-8859-16 koi8-r koi8-u macintosh windows-874 windows-1250 windows-1251 windows-1252"
    " windows-1253 windows-1254 windows-1255 windows-1256 windows-1257 windows-1258 gbk gb18030 big5"
    " euc-jp iso-2022-jp shift_jis euc-kr utf-16be utf-16le latin1 us-ascii x-sjis gb2312 tis-620"
).split()
NONE = "punycode idna unicode_escape raw_unicode_escape undefined utf-7 charmap base64 rot13".split()  # noqa: SIM905


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


@pytest.mark.parametrize(
    ("software", "mode"),
    [
        ("Browsertrix-Crawler 1.14.1 (with warcio.js 2.4.7)", "decoded"),
        ("Webrecorder ArchiveWeb.page 0.15.2, using warcio.js 2.4.2", "decoded"),
        ("Webrecorder wabac.js/warcio.js", "decoded"),
        ("warcio.js", "decoded"),
        ("scrapy-dedupe 0.1.0", "stored"),
        ("Heritrix/3.4.0-20220727 http://archive.org", "stored"),
        ("Wget/1.21.3 (linux-gnu)", "stored"),
        ("Wget-AT 1.21.3", "stored"),
        ("warcprox 2.4.27", "stored"),
        ("brozzler 1.5", "stored"),
        ("wpull/2.0.3", "stored"),
        ("Zeno 2.0.1", "stored"),
        ("gowarc", "stored"),
        ("Webrecorder Platform v3.7", None),
        ("py-wacz 0.6.0", None),
        ("Scrapy/2.13", None),
        ("zenodo", None),
        ("", None),
        (None, None),
    ],
)
def test_the_software_tells_how_it_hashes_or_nothing_does(software: str | None, mode: str | None) -> None:
    assert payload_mode(software) == mode
