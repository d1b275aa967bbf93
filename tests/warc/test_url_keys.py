from __future__ import annotations

import json
import subprocess
import sys
import warnings
from io import BytesIO
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.warc import url_keys
from scrapy_dedupe.warc.url_keys import lookup, pywb_query, url_key, wabac_key, wabac_query

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # both have sources that newer Pythons warn about
    from cdxj_indexer.postquery import append_method_query
    from surt import surt

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=XyZ"
PARTS = (
    b'--XyZ\r\nContent-Disposition: form-data; name="a"\r\n\r\n1 2\r\n'
    b'--XyZ\r\nContent-Disposition: form-data; name="f"; filename="x.bin"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n\xff\r\nline\r\n--XyZ--\r\n"
)


def test_key_of_a_url_is_the_surt_that_pywb_looks_for():
    assert url_key("http://www.Example.org:80/A/?c=2&b=1#top") == "org,example)/a?b=1&c=2"


@given(st.text(max_size=40))
def test_no_key_contains_a_space_or_a_control_character(url: str):
    for key in (
        url_key(f"http://example.org/{url}"),
        url_key(url),
        wabac_key(f"http://{url}"),
        wabac_key(url),
    ):
        assert all(0x21 <= ord(char) < 0x7F for char in key)


def test_a_url_without_a_surt_is_its_own_key():
    with pytest.raises(ValueError, match="Port out of range"):
        surt("http://example.org:99999/a b")
    assert url_key("http://example.org:99999/a b") == "http://example.org:99999/a%20b"


def test_get_has_neither_method_nor_body():
    assert lookup("http://example.org/", "get") == ("org,example)/", None, None)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_other_methods_are_not_listed_among_the_captures_of_get(method: str):
    found = lookup("http://example.org/?a=1", method, "text/plain", b"ignored")
    assert found == (f"org,example)/?__wb_method={method.lower()}&a=1", method, None)


def test_post_is_found_by_its_form():
    found = lookup("http://example.org/find?page=1", "POST", FORM, b"q=two+words&z=%C3%A9%2F")
    assert found.key == "org,example)/find?__wb_method=post&page=1&q=two%20words&z=%c3%a9/"
    assert (found.method, found.body) == ("POST", "q=two+words&z=é%2F")


# The text of a body for pywb


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(
    # cdxj-indexer has True and None for true and null, and whole floats with their zero; pywb has not
    st.integers()
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def by_cdxj_indexer(content_type: str, body: bytes) -> str:
    query, _ = append_method_query("POST", content_type, str(len(body)), BytesIO(body), "http://x/")
    return query or ""


@given(st.dictionaries(TEXT, TEXT, max_size=4))
def test_form_is_that_of_cdxj_indexer(form: dict[str, str]):
    body = urlencode(form).encode()
    assert pywb_query(FORM, body) == by_cdxj_indexer(FORM, body)


@given(st.binary(max_size=60), st.sampled_from([FORM, "", "application/octet-stream"]))
def test_bytes_are_those_of_cdxj_indexer(body: bytes, content_type: str):
    assert pywb_query(content_type, body) == (by_cdxj_indexer(content_type, body) if body else "")


@given(JSON, st.sampled_from(["application/json; charset=utf-8", "text/plain"]))
def test_json_is_that_of_cdxj_indexer(value: object, content_type: str):
    body = json.dumps(value).encode()
    assert pywb_query(content_type, body) == by_cdxj_indexer(content_type, body)


def test_json_values_have_the_text_that_pywb_gives_them():
    body = b'{"a": [true, false, null, 2.0, 2.5, 1e3], "b": {"a": "x y"}, "": {"": 1}}'
    assert pywb_query("application/json", body) == (
        "a=true&a.2_=false&a.3_=null&a.4_=2&a.5_=2.5&a.6_=1000&a.7_=x+y"
    )


def test_parts_are_those_of_cdxj_indexer():
    assert pywb_query(MULTIPART, PARTS) == by_cdxj_indexer(MULTIPART, PARTS) == "a=1+2&f=%FF%0D%0Aline"


@pytest.mark.parametrize(
    ("content_type", "body", "query"),
    [
        ("application/json", b"{broken", ""),
        ("application/json", b"[" * 100_000, ""),
        ("text/plain", b"plain", "__wb_post_data=cGxhaW4="),
        ("multipart/form-data", b"no boundary", "__wb_post_data=bm8gYm91bmRhcnk="),
        (MULTIPART, b"no parts", ""),
        (MULTIPART, b"--XyZ\r\nno disposition\r\n\r\nx", ""),
        ("application/x-amf", b"\0\3", "__wb_post_data=AAM="),
    ],
)
def test_broken_bodies_are_taken_as_they_are(content_type: str, body: bytes, query: str):
    assert pywb_query(content_type, body) == query


def test_long_bodies_are_cut():
    assert len(pywb_query("", bytes(10_000))) == len(wabac_query("", bytes(10_000))) == 4096


# The text of a body for wabac.js; expected values come from postToGetUrl of warcio.js 2.4.11 in Node


@pytest.mark.parametrize(
    ("content_type", "body", "query"),
    [
        (
            "application/json",
            '{"b":1,"a":[1,2.50,true,null,"",{"a":"x y"}],"10":1e21,"2":1e-7,"ü":"é\\ud800&=+%/"}',
            "2=1e-7&10=1e%2B21&b=1&a=1&a.2_=2.5&a.3_=true&a.4_=null&a.5_=x+y&ü=é\ufffd%26%3D%2B%%2F",
        ),
        (
            "application/json",
            '{"a":123456789012345678901234567890,"b":0.1,"c":-0.0,"d":-1.5e-9,"e":1e400,"f":12345.678,"a.2_":1}',
            "a=1.2345678901234568e%2B29&b=0.1&c=0&d=-1.5e-9&e=Infinity&f=12345.678&a.2_=1",
        ),
        ("application/json", '{"a":0,"a.2_":1,"b":{"a":2}}', "a=0&a.2_=2"),
        ("application/json", "5", "=5"),
        ("application/json", "null", "=null"),
        ("application/json", "nope", ""),
        (FORM, "a=b+c&d=%C3%A9%2F%7e", "a=b+c&d=é%2F~"),
        (FORM, "a=b+c&d=%C3%A9%2F%zz", ""),
        ("text/plain", "hello", ""),
        ("text/plain", '{"a":"b"}', "a=b"),
        ("", "éx", "__wb_post_data=6Xg="),
        ("application/octet-stream", "€", "__wb_post_data="),
        (
            MULTIPART,
            PARTS.decode("latin-1").replace("\r\nContent-Type: application/octet-stream", ""),
            "a=1+2&x.bin=ÿ",
        ),
        (MULTIPART, PARTS.decode("latin-1"), "a=1+2"),
        (MULTIPART, '--XyZ\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n--XyZ--\r\n', ""),
    ],
)
def test_body_has_the_text_that_a_browser_looks_for(content_type: str, body: str, query: str):
    assert wabac_query(content_type, body.encode()) == query


def test_wabac_js_reads_integers_that_no_float_holds_as_infinity():
    body = b'{"a":1%b,"b":-1%b}' % (b"0" * 400, b"0" * 400)
    assert wabac_query("application/json", body) == "a=Infinity&b=-Infinity"


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://www.Example.org/A/?b=2&a=1", "org,example)/a/?a=1&b=2"),
        ("https://example.org:443/a/", "org,example)/a/"),
        ("http://ex.org:8080/x%C3%A4{y}?q='a'|b^`", "org,ex:8080)/x%c3%a4%7By%7D?q=%27a%27|b^`"),
        ("http://u:p@ex.org/a/../b/./c", "org,ex)/b/c"),
        ("http://ex.org", "org,ex)/"),
        ("http://ex.org?x", "org,ex)/?x"),
        ("http://[::1]/a", "[::1])/a"),
        ("http://1.2.3.4/a", "4,3,2,1)/a"),
        ("urn:a:b", "urn:a:b"),
        ("http://ex.org/a//b/", "org,ex)/a//b/"),
        ("http://ex.org/?__wb_method=POST&a=b c&d=ü#x", "org,ex)/?__wb_method=post&a=b%20c&d=%C3%BC"),
        ("http://ex.org:99999/", "http://ex.org:99999/"),
        ("http://www2.ex.org/%zz\\a", "org,ex)/%zz/a"),
        ("http://ex.org/a?b=1&&a&B", "org,ex)/a?&a&b&b=1"),
    ],
)
def test_key_for_wabac_is_that_of_warcio_js(url: str, key: str):
    # expected values come from getSurt of warcio.js 2.4.11 in Node
    assert wabac_key(url) == key


# The package surt


def test_without_surt_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(url_keys, "_surt", None)
    monkeypatch.setitem(sys.modules, "surt", None)
    with pytest.raises(SettingError, match=r'pip install "scrapy-dedupe\[wacz\]"'):
        url_key("http://example.org/")


def test_surt_is_imported_where_warnings_are_errors_and_nothing_is_compiled_yet(tmp_path):
    code = "from scrapy_dedupe.warc.url_keys import url_key; print(url_key('http://example.org/'))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", f"pycache_prefix={tmp_path}", "-c", code],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "org,example)/\n", "")
