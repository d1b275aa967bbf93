from __future__ import annotations

import gzip
import pickle
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from passages.reading_pages import reading

from scrapy_dedupe.passages.blots import blotter_of, key_bits
from scrapy_dedupe.passages.text_reading import (
    PAGE,
    PLAIN,
    RawDocument,
    Skipped,
    decoded,
    prepare_batch,
    texts_of,
)
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from scrapy_dedupe.passages.text_reading import PreparedBatch, ReadingOptions, Text


def document(data: bytes | str, kind: str = PLAIN, **fields: object) -> RawDocument:
    return RawDocument("a", None, data, kind, "a place", **fields)  # type: ignore[arg-type]


def page(body: bytes, content_type: str | None = "text/html", coding: str = "") -> RawDocument:
    headers = (("Content-Type", content_type), ("Content-Encoding", coding))
    return document(
        body, PAGE, headers=tuple((name.encode(), value.encode()) for name, value in headers if value)
    )


def read_all(batch: list[RawDocument], how: ReadingOptions) -> tuple[list[Text], Skipped]:
    skipped = Skipped()
    return list(texts_of(batch, how, skipped)), skipped


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", [PLAIN, "html"])
def test_utf_8_and_what_has_a_byte_order_mark_is_read(encoding: str, kind: str) -> None:
    assert decoded("Größe 大小".encode(encoding), kind) == ("Größe 大小", False)


@given(st.binary(max_size=200), st.sampled_from([PLAIN, "html"]))
def test_any_bytes_are_read_and_what_is_wrong_is_told(data: bytes, kind: str) -> None:
    text, is_replaced = decoded(data, kind)
    assert not is_replaced or "\ufffd" in text
    text.encode()


def test_a_replacement_character_that_was_there_before_is_no_fault() -> None:
    assert decoded("a \ufffd".encode(), PLAIN) == ("a \ufffd", False)


def test_markup_says_its_own_encoding_and_http_says_it_louder() -> None:
    text = "<meta charset='windows-1251'>Привет"
    assert decoded(text.encode("cp1251"), "html") == (text, False)
    (read,), _ = read_all([page(text.encode(), "text/html; charset=utf-8")], reading())
    assert read == ("a", None, f"html:{text}")


@pytest.mark.parametrize("charset", ["hex", "rot13", "idna", "punycode", "undefined", "utf-7", "x-y"])
def test_a_charset_that_is_none_is_passed_over(charset: str) -> None:
    text = f"<meta charset='{charset}'>Größe +2AA-"
    assert decoded(text.encode(), "html") == (text, False)


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape"])
def test_a_long_page_is_not_read_by_a_codec_that_takes_time_without_bounds(charset: str) -> None:
    text = f"<meta charset={charset}>" + "x" * 400_000 + "-" + "a" * 400_000
    assert decoded(text.encode(), "html") == (text, False)
    for body, content_type in ((text, "text/html"), (text[50:], f"text/html; charset={charset}")):
        texts, skipped = read_all([page(body.encode(), content_type)], reading())
        assert (texts, skipped.counts, skipped.loud) == ([], {"encoding": 1}, 1)
        assert str(skipped.reported.first[0]) == "a place: its declared encoding is not a known charset"


def test_pages_are_told_by_the_function_that_was_given_and_plain_texts_are_left_alone() -> None:
    batch = [document(b" a  b\r\n"), document(b"<p>", "html"), document("c"), document(b"d", "text")]
    texts, skipped = read_all(batch, reading())
    assert [text for _, _, text in texts] == [" a  b\r\n", "html:<p>", "c", "text:d"]
    assert (skipped.counts, skipped.reported.count) == ({}, 0)


def test_codings_are_undone() -> None:
    body = gzip.compress(b"packed")
    texts, _ = read_all([page(body, None, "gzip")], reading())
    assert texts == [("a", None, "html:packed")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not packed", "damaged or incomplete"),
        (gzip.compress(bytes(2_000), mtime=0), "more than 1000 bytes"),
    ],
)
def test_a_body_that_cannot_be_unpacked_or_swells_is_named_and_counted(body: bytes, reason: str) -> None:
    texts, skipped = read_all([page(body, None, "gzip")], reading(1_000))
    assert texts == []
    assert skipped.counts == {"coding": 1}
    assert skipped.loud == 1
    assert reason in str(skipped.reported.first[0])
    assert str(skipped.reported.first[0]).startswith("a place: ")


def test_hostile_markup_is_named_and_counted() -> None:
    texts, skipped = read_all([document(b"hostile", "html"), document(b"kind", "html")], reading())
    assert len(texts) == 1
    assert (skipped.counts, str(skipped.reported.first[0])) == (
        {"hostile": 1},
        "a place: It would take too long",
    )


@pytest.mark.parametrize("content_type", ["", "text/plain; charset=utf-8", "text/html"])
@pytest.mark.parametrize("body", [bytes(9), b"\x01\x02\x03", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\x90"])
def test_what_a_server_calls_text_and_is_none_is_counted(content_type: str, body: bytes) -> None:
    texts, skipped = read_all([page(body, content_type)], reading())
    assert (texts, skipped.counts, skipped.loud) == ([], {"type": 1}, 0)


def test_texts_with_replaced_characters_are_counted() -> None:
    wrong = [document(b"\xff"), document(b"\xfe", "html"), page(b"\xff", "text/html; charset=utf-8")]
    texts, skipped = read_all([*wrong, document(b"a")], reading())
    assert (len(texts), skipped.counts, skipped.replaced, skipped.reported.count) == (4, {}, 3, 3)
    assert {str(one) for one in skipped.reported.first} == {
        "a place: it has invalid bytes in its encoding, replaced by U+FFFD"
    }


def test_what_reading_needs_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(reading())) == reading()


def test_what_two_processes_have_passed_over_is_added_up() -> None:
    one, other = Skipped(), Skipped()
    one.add("large", "a")
    other.add("large", "b")
    other.add("binary")
    other.replaced = 3
    one.merge(other)
    assert (one.counts, one.loud, one.replaced) == ({"large": 2, "binary": 1}, 2, 3)
    assert [fault.place for fault in one.reported.first] == ["a", "b"]


def test_bodies_that_swell_are_prepared_as_they_are_read() -> None:
    rng = random.Random(8)
    # 2 MB each, of 2 kB.
    bodies = [gzip.compress(b"%x " % rng.getrandbits(64) * 120_000) for _ in range(10)]
    batch = [page(body, "text/plain", "gzip") for body in bodies]
    few, _ = taken_within(batch[:4])
    most, taken = taken_within(batch)
    assert [len(piece.doc_ids) for piece in taken.prepared] == [3] * 3 + [1]
    assert taken.text_bytes > 10 * 2_000_000
    assert most < few + 3_000_000


def taken_within(batch: list[RawDocument]) -> tuple[int, PreparedBatch]:
    """What became of a batch, and the memory that it took."""
    blotter = blotter_of("rolling")
    parameters = Parameters("words/1", blotter.spec, True, key_bits(blotter))
    tracemalloc.start()
    taken = prepare_batch(batch, reading(10_000_000), parameters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, taken
