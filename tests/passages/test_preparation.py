from __future__ import annotations

import pickle
import zlib
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.passages.blots import blotter_of, key_bits, keys
from scrapy_dedupe.passages.preparation import Prepared, digest_of, host_of, prepare
from scrapy_dedupe.passages.segment_layout import decode_outline
from scrapy_dedupe.passages.tokens import tokeniser_named
from scrapy_dedupe.passages.values import Parameters


def parameters(blotter: Any = "rolling", tokeniser: str = "words/1", *, has_texts: bool = True) -> Parameters:
    made = blotter_of(blotter)
    return Parameters(tokeniser, made.spec, has_texts, key_bits(made))


def blob(prepared: Prepared, text: int) -> bytes:
    data = prepared.blobs[prepared.blob_bounds[text] : prepared.blob_bounds[text + 1]]
    raw = zlib.decompress(data, -15)
    assert len(raw) == prepared.raw_sizes[text]
    assert zlib.crc32(data) == prepared.blob_checksums[text]
    return raw


def keys_of(prepared: Prepared, text: int) -> list[int]:
    bounds = np.cumsum([0, *prepared.post_counts])
    return [int(key) for key in prepared.keys[bounds[text] : bounds[text + 1]]]


def expected_keys(text: str, given: Parameters) -> list[int]:
    """Of one text alone, each occurrence, in the order of the text."""
    blotter = blotter_of(given.blotter)
    tokens = tokeniser_named(given.tokeniser).tokens(text)
    blots = blotter.blots(tokens.hashes, np.array([0, len(tokens)], np.int64))
    return [int(key) for key in keys(blots.values, blotter)]


words = st.text("abc \n", max_size=200)


@given(st.lists(words, max_size=8), st.sampled_from(["rolling", "xor", "interleaved"]), st.booleans())
def test_texts_prepared_together_are_as_each_one_alone(
    texts: list[str], blotter: str, has_texts: bool
) -> None:
    how = parameters(blotter, has_texts=has_texts)
    prepared = prepare([(f"d{number}", "h", text) for number, text in enumerate(texts)], how)
    assert len(prepared.digests) == len(set(texts))
    assert len(prepared.keys) == prepared.post_counts.sum()
    for text, number in zip(texts, prepared.texts.tolist(), strict=True):
        assert prepared.digests[number].tobytes() == sha256(text.encode()).digest()[:16]
        assert prepared.token_counts[number] == len(tokeniser_named("words").tokens(text))
        assert prepared.char_counts[number] == len(text)
        expected = expected_keys(text, how)
        if has_texts:
            assert keys_of(prepared, number) == sorted(set(expected))
            assert blob(prepared, number).decode() == text
        else:
            assert keys_of(prepared, number) == expected
            assert len(decode_outline(blob(prepared, number)).token_starts) == len(expected)


def test_the_outline_tells_where_each_blot_stands() -> None:
    how = parameters({"name": "rolling/1", "k": 2, "window": 1}, has_texts=False)
    prepared = prepare([("before", "", "x y z"), ("a", "", "One, two; three")], how)
    outline = decode_outline(blob(prepared, 1))
    assert outline.token_starts.tolist() == [0, 1]
    assert outline.char_starts.tolist() == [0, 5]
    assert outline.char_ends.tolist() == [8, 15]


def test_a_text_that_comes_twice_is_prepared_once() -> None:
    prepared = prepare([("a", "", "one"), ("b", "", "two"), ("c", "", "one")], parameters())
    assert prepared.texts.tolist() == [0, 1, 0]
    assert prepared.doc_ids == ("a", "b", "c")
    assert len(prepared.digests) == 2


def test_a_lone_surrogate_counts_as_the_replacement_character() -> None:
    prepared = prepare([("a", "", "x\ud800y"), ("b", "", "x\ufffdy")], parameters())
    assert prepared.texts.tolist() == [0, 0]
    assert blob(prepared, 0).decode() == "x\ufffdy"
    assert digest_of("x\udfffy") == digest_of("x\ufffdy")


def test_nothing_is_prepared_of_nothing() -> None:
    prepared = prepare([], parameters())
    assert (len(prepared.digests), len(prepared.keys), prepared.blobs) == (0, 0, b"")


@pytest.mark.parametrize("text", ["", "   ", "\0", "!?"])
def test_a_text_without_tokens_is_kept_without_posts(text: str) -> None:
    prepared = prepare([("a", "", text)], parameters())
    assert (prepared.token_counts.tolist(), prepared.post_counts.tolist()) == ([0], [0])
    assert blob(prepared, 0).decode() == text


def test_what_is_prepared_travels_between_processes() -> None:
    prepared = prepare([("a", "", "some words " * 20)], parameters())
    again = pickle.loads(pickle.dumps(prepared))
    assert again.keys.tolist() == prepared.keys.tolist()
    assert again.blobs == prepared.blobs


@pytest.mark.parametrize(
    ("doc_id", "host"),
    [
        ("http://example.org/a", "example.org"),
        ("HTTPS://Example.ORG", "example.org"),
        ("https://user:secret@example.org:8443/?q=http://other.example/", "example.org"),
        ("http://[2001:db8::1]:80/a", "[2001:db8::1]"),
        ("http://example.org?a@b.example", "example.org"),
        ("http://münchen.example/", "münchen.example"),
        ("http:///a", ""),
        ("ftp://example.org/", ""),
        ("docs/http://example.org/", ""),
        ("a", ""),
    ],
)
def test_the_host_is_that_of_a_web_address(doc_id: str, host: str) -> None:
    assert host_of(doc_id) == host
    assert prepare([(doc_id, None, "")], parameters()).hosts == (host,)


@pytest.mark.parametrize("doc_id", ["", "a\0b", "a\ud800b", "ä" * 4_097, None, b"a"])
def test_a_name_that_cannot_be_one_is_refused(doc_id: Any) -> None:
    with pytest.raises(SettingError):
        prepare([(doc_id, "", "")], parameters())


@pytest.mark.parametrize("host", ["a\0b", "\ud800", "h" * 8_193, 5])
def test_a_host_that_cannot_be_one_is_refused(host: Any) -> None:
    with pytest.raises(SettingError, match="host"):
        prepare([("a", host, "")], parameters())
