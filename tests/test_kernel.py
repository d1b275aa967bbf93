"""The compiled kernel does what the Python code does."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe import kernel
from scrapy_dedupe.content import markup, signature, template
from scrapy_dedupe.content.canonical import _MAY_CHANGE, _collapse, _composed
from scrapy_dedupe.live.urls import fingerprints
from scrapy_dedupe.urls import bloom

if TYPE_CHECKING:
    from pathlib import Path

compiled: Any = pytest.importorskip("scrapy_dedupe._kernel", reason="no C compiler", exc_type=ImportError)

any_text = st.text(st.characters(exclude_categories=()), max_size=300)
# Repeated words, and enough of them for several steps of a loop.
long_text = st.builds(
    lambda words, count: " ".join(words * count), st.lists(any_text, max_size=4), st.integers(0, 400)
)
hash_arrays = st.lists(st.integers(0, 0xFFFFFFFF), max_size=300).map(lambda list_: np.array(list_, np.uint32))


@given(any_text | long_text, st.integers(2, 64))
def test_shingle_hashes(text: str, size: int) -> None:
    one, other = signature._room_for_hashes(text, size), signature._room_for_hashes(text, size)
    count = signature._distinct_hashes(text, size, one)
    assert compiled.distinct_hashes(text, size, other) == count
    assert np.array_equal(one[:count], other[:count])


@pytest.mark.parametrize("size", [2, 3, 7, 8, 33, 64])
@pytest.mark.parametrize("length", [4_095, 4_096, 4_097, 4_102, 4_103, 8_200, 50_000])
def test_shingle_hashes_of_long_texts(length: int, size: int) -> None:
    numbers = np.random.default_rng(length)
    text = "".join(map(chr, numbers.integers(0, 0x110000, length)))
    one, other = signature._room_for_hashes(text, size), signature._room_for_hashes(text, size)
    assert compiled.distinct_hashes(text, size, other) == signature._distinct_hashes(text, size, one)
    assert np.array_equal(one, other)


@given(hash_arrays, st.integers(16, 512), st.integers(0, 20), st.data())
def test_rows(hashes: np.ndarray, num_perm: int, copies: int, data: st.DataObject) -> None:
    hashes = np.concatenate([hashes + np.uint32(copy) for copy in range(copies)] or [hashes])
    is_template = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(hashes), max_size=len(hashes))), bool
    )
    permutations = signature._permutations(num_perm)
    found = []
    for lower, lower_parts in (
        (signature._lower, signature._lower_parts),
        (compiled.lower, compiled.lower_parts),
    ):
        rows = np.full((3, num_perm), 0xFFFFFFFF, np.uint32)
        lower(rows[0], hashes, *permutations)
        lower_parts(rows[1], rows[2], hashes, is_template, *permutations)
        found.append(rows)
    assert np.array_equal(*found)


@given(
    st.binary(max_size=600),
    st.integers(1, 300),
    st.integers(0, 32),
    st.binary(max_size=16),
    st.binary(max_size=200),
    st.integers(0, 0xFF00),
)
def test_bands(rows: bytes, width: int, bands: int, namespace: bytes, key: bytes, first: int) -> None:
    rows *= -(-width * bands // max(len(rows), 1))
    arguments = (rows or bytes(width * bands), width, bands, namespace, key, first)
    assert compiled.hash_bands(*arguments) == signature._hash_bands(*arguments)


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257, 2_048])
def test_bands_at_the_ends_of_blocks(length: int) -> None:
    for key in (b"", b"abc"):
        arguments = (bytes(range(256)) * 24, length - len(key), 2, b"text/1", key, 7)
        assert compiled.hash_bands(*arguments) == signature._hash_bands(*arguments)


@given(st.lists(hash_arrays, min_size=1, max_size=8), st.integers(0, 255), st.integers(0, 255))
def test_sketches(pages: list[np.ndarray], needed: int, needed_common: int) -> None:
    found: list[Any] = []
    for add_page, classify in (
        (template._add_page, template._classify),
        (compiled.add_page, compiled.classify),
    ):
        counters = np.zeros(template.SLOTS, np.uint8)
        touched = [add_page(counters, page >> np.uint32(shift)) for page in pages for shift in (0, 15)]
        masks = np.empty((2, len(pages[0])), bool)
        classify(counters, pages[0], needed, needed_common, *masks)
        found.append((touched, counters.tobytes(), masks.tobytes()))
    assert found[0] == found[1]


PIECES = (
    "<p> </p> <div> </div> <b> </b> <b\ta> <BIG\n> <font\tsize=1> <code\tclass='x'> <tt/> <i <u> <a> <! <? </ < > x \u00e9"
    " \u4e00 <!-- --> <script> </script> <svg> </svg> <td> <table> <li>"
)
pages = st.lists(st.sampled_from([*PIECES.split(" "), " ", "\xa0", "\n"]), max_size=60).map("".join)


@given(pages | any_text, st.integers(0, 3))
@example("", 0)
@example("<", 0)
@example("</", 0)
@example("<b", 0)
def test_tag_counts(page: str, copies: int) -> None:
    source = (page * 10**copies).encode("utf-8", "replace")
    tables = (markup._KEYS, markup._LEVELS, markup._FORMATTING_LENGTHS, 40)
    assert compiled.count_tags(source, *tables) == markup._count_tags(source, *tables)


FORMATTING = (
    "<b> <B> </b> </B> <i> </i> <font <FONT <big> <c> <bode> <code <em> </em> <span </span> <tt> <var> x < > / \t = ' \" \ta=1"
    " \tb='2' \tc=\"3\" \td=/ \te='<' \tf \u00e9 </ ."
)
formatting = st.lists(st.sampled_from(FORMATTING.split(" ")), max_size=40).map("".join)


@given(formatting | pages | any_text)
@example("<b>x<i>y</i></b>")
@example("<b>x<i\ta=1>y</i></B>")
@example("<b\ta=b/><b\ta=''b><b\ta='b'/ ><bx>")
@example("<b" + "\ta" * 50 + "><b" + "\ta" * 51 + ">")
def test_formatting_tags(page: str) -> None:
    source = page.encode("utf-8", "replace")
    assert compiled.left_open(source) == markup._left_open(source)
    positions = [at for at, byte in enumerate(source) if byte == 0x3C]
    assert compiled.simple_tags(source, positions) == markup._simple_tags(source, positions)
    for at in positions:
        assert compiled.simple_tags(source, [at]) == markup._simple_tags(source, [at])


def test_tags_of_a_page_for_which_the_gil_is_released() -> None:
    source = b"".join(b"<b a=%d>x<i>" % number for number in range(40_000))
    tables = (markup._KEYS, markup._LEVELS, markup._FORMATTING_LENGTHS, 8)
    assert compiled.count_tags(source, *tables) == markup._count_tags(source, *tables)
    assert compiled.left_open(source) == markup._left_open(source)


# Characters of each class, in runs that are longer and shorter than the eight bytes that are read at once.
spaced_text = st.lists(
    st.sampled_from(
        ["eight by", "plain", "a b", " ", "  ", "\t", "~", "\x7f", "\0", "\x1f", "\xa0", "\xad", "\u0301"]
    )
).map("".join)


@given(any_text | spaced_text)
def test_collapsed_text(text: str) -> None:
    found, may_change = compiled.collapse(text)
    assert (found, may_change) == _collapse(text)
    assert may_change or _composed(found, True) == found


def test_collapsed_characters() -> None:
    for plane in range(0, 0x110000, 0x1000):
        text = "x".join(map(chr, range(plane, plane + 0x1000)))
        assert compiled.collapse(text) == _collapse(text)


def test_collapsed_pairs_of_characters_at_each_place_of_eight_bytes() -> None:
    for first, second in product(map(chr, range(0x180)), " \t~\x7fx\xe9"):
        text = " ".join(f"{'x' * place}{first}{second}{'x' * 9}" for place in range(8))
        assert compiled.collapse(text) == _collapse(text), ascii(first + second)


def test_characters_that_nfc_is_not_asked_for_are_never_changed_by_it() -> None:
    """Alone, and next to each other."""
    seconds = {*map(chr, range(0x1161, 0x1176)), *map(chr, range(0x11A8, 0x11C3))}
    for code in range(0x110000):
        decomposed = unicodedata.decomposition(chr(code))
        if " " in decomposed and not decomposed.startswith("<"):
            seconds.add(chr(int(decomposed.split()[-1], 16)))
    for start in range(0, 0x110000, 0x1000):
        found = {
            character: compiled.collapse(character) for character in map(chr, range(start, start + 0x1000))
        }
        stable = [character for character in found if found[character] == (character, False)]
        unstable = [character for character in found if found[character] == (character, True)]
        for character in found.keys() - {*stable, *unstable}:
            assert found[character] == _collapse(character), hex(ord(character))
        # The Python code is slow for a short text, so it gets these characters in one text.
        for characters, may_change in ((stable, False), (unstable, True)):
            text = "x".join(characters)
            assert _collapse(text) == (text, may_change and text != ""), hex(start)
        assert _MAY_CHANGE.findall("".join([*stable, *unstable])) == unstable, hex(start)
        for character in stable:
            assert not unicodedata.combining(character), hex(ord(character))
            assert unicodedata.is_normalized("NFC", character), hex(ord(character))
            assert character not in seconds, hex(ord(character))


def url_filters(
    capacity: int, error_rate: float
) -> tuple[bloom.GrowingBloomFilter, bloom.GrowingBloomFilter]:
    """Two equal filters, of which the first uses the Python code."""
    one, other = (bloom.GrowingBloomFilter(capacity, error_rate) for _ in range(2))
    one._newest.add_key = one._newest.has_key = one._newest.add_keys = None
    return one, other


def assert_equal(one: bloom.GrowingBloomFilter, other: bloom.GrowingBloomFilter) -> None:
    assert other._newest.bitarray == one._newest.bitarray
    assert [layer.count for layer in other._layers] == [layer.count for layer in one._layers]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "in", "add_all_unless"]),
            st.lists(st.binary(max_size=2) | st.binary(), min_size=2, max_size=5),
        ),
        max_size=100,
    ),
    st.integers(1, 300),
    st.sampled_from([1e-6, 0.01, 0.5]),
)
def test_bits_of_url_filters(calls: list[tuple[str, list[bytes]]], capacity: int, error_rate: float) -> None:
    one, other = url_filters(capacity, error_rate)
    for name, (first, *rest) in calls * 2:
        if name == "add":
            assert other.add(first) is one.add(first)
        elif name == "in":
            assert (first in other) is (first in one)
        else:
            assert other.add_all_unless(first, rest) is one.add_all_unless(first, rest)
    assert_equal(one, other)


def test_bits_of_long_fingerprints() -> None:
    """A block of BLAKE2b has 128 bytes."""
    one, other = url_filters(1_000, 1e-6)
    for length in [*range(600), 65_535]:
        fingerprint = bytes(range(256)) * 256
        assert fingerprint[:length] not in other
        assert other.add(fingerprint[:length]) is one.add(fingerprint[:length]) is True
        assert fingerprint[:length] in other
    assert_equal(one, other)


@given(st.lists(st.text("ab-0=&", max_size=4), max_size=80).map("&".join))
@example("")
@example("&".join(f"{number % 7}={number}" for number in range(10_000)))
def test_sorted_queries(query: str) -> None:
    assert compiled.sorted_query(query) == fingerprints._sorted_query(query)


WRONG_CALLS = {
    "bits": lambda: compiled.add_key(bytearray(9), 15, 5, b""),
    "hashes": lambda: compiled.has_key(bytearray(99), 17, 5, b""),
    "no hashes": lambda: compiled.has_key(bytearray(99), 0, 5, b""),
    "slices": lambda: compiled.add_keys(bytearray(99), 15, 0, [b""], b""),
    "wide slices": lambda: compiled.add_keys(bytearray(99), 15, 1 << 32, [b""], b""),
    "size": lambda: compiled.distinct_hashes("text", 65, np.empty(9, np.uint32)),
    "room": lambda: compiled.distinct_hashes("text" * 9, 7, np.empty(29, np.uint32)),
    "rows": lambda: compiled.lower(*(np.empty(number, np.uint32) for number in (16, 9, 16, 15))),
    "parts": lambda: compiled.lower_parts(
        *(np.empty(number, np.uint32) for number in (16, 16, 9, 9, 16, 16))
    ),
    "counters": lambda: compiled.add_page(np.empty(9, np.uint8), np.empty(9, np.uint32)),
    "masks": lambda: compiled.classify(bytes(0x10000), bytes(8), 1, 1, bytearray(2), bytearray(1)),
    "bands": lambda: compiled.hash_bands(bytes(63), 8, 8, b"", b"", 0),
    "namespace": lambda: compiled.hash_bands(bytes(64), 8, 8, bytes(17), b"", 0),
    "first band": lambda: compiled.hash_bands(bytes(64), 8, 8, b"", b"", 0xFFF9),
    "positions": lambda: compiled.simple_tags(b"<p>", [3]),
    "tables": lambda: compiled.count_tags(b"<p>", bytes(9), bytes(8), bytes(16), 9),
}


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_arrays_of_wrong_lengths_are_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=r"not allowed|differ|lengths|have to be|not in the page"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda bits: compiled.add_key(bits, 15, 5),
        lambda bits: compiled.add_key(bytes(bits), 15, 5, b"a"),
        lambda bits: compiled.add_key(bits, 15, "5", b"a"),
        lambda bits: compiled.add_key(bits, 15, 5, "a"),
        lambda bits: compiled.has_key(bits, 15, 5, None),
        lambda bits: compiled.add_keys(bits, 15, 5, [b"a"], "b"),
        lambda bits: compiled.add_keys(bits, 15, 5, ["a"], b"b"),
        lambda bits: compiled.add_keys(bits, 15, 5, b"a", b"b"),
    ],
)
def test_arguments_of_wrong_types_are_refused(call: Any) -> None:
    bits = bytearray(10)
    with pytest.raises((TypeError, BufferError)):
        call(bits)
    assert not any(bits)


def test_failures_to_allocate_memory_are_reported() -> None:
    """In a process of its own: Python itself may end for lack of memory."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


WITHOUT_MEMORY = """
import _testcapi
from scrapy_dedupe import _kernel
from scrapy_dedupe.content import markup
# No arrays: when numpy has no memory for a buffer, Python raises TypeError.
page = "<p>a<b c>" * 500
rows = [bytearray(64) for _ in range(5)]
tables = [bytes(table) for table in (markup._KEYS, markup._LEVELS, markup._FORMATTING_LENGTHS)]
calls = {
    _kernel.distinct_hashes: (page, 7, bytearray(20_000)),
    _kernel.lower_parts: (*rows[:3], bytes(16), *rows[3:]),
    _kernel.count_tags: (page.encode(), *tables, 0),
    _kernel.left_open: (page.encode(),),
    _kernel.simple_tags: (page.encode(), list(range(4, 1500, 9))),
    _kernel.collapse: ("\\xe9",),
    _kernel.hash_bands: (bytes(64), 8, 8, b"n", b"k", 0),
    _kernel.sorted_query: ("&".join(40 * ["b=1", "a=2"]),),
}
for function, arguments in calls.items():
    wanted = function(*arguments)
    for number in range(10_000):
        found = None
        _testcapi.set_nomemory(number, number + 1)
        try:
            found = function(*arguments)
        except MemoryError:
            pass
        _testcapi.remove_mem_hooks()
        if found is not None:
            break
    assert number and found == wanted, function
print("ok")
"""


# Which one is used


@pytest.fixture
def other_kernel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("other_kernel")
    monkeypatch.setitem(sys.modules, "other_kernel", module)
    return module


@pytest.mark.parametrize("wanted", ["auto", "require"])
def test_a_kernel_of_this_version_is_used(
    other_kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv(kernel.VARIABLE, wanted)
    other_kernel.VERSION = compiled.VERSION  # type: ignore[attr-defined]
    assert kernel._load("other_kernel") is other_kernel
    monkeypatch.setenv(kernel.VARIABLE, "no")
    assert kernel._load("other_kernel") is None


def test_a_kernel_of_another_version_is_not_used(
    other_kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other_kernel.VERSION = 0  # type: ignore[attr-defined]
    monkeypatch.setenv(kernel.VARIABLE, "auto")
    assert kernel._load("other_kernel") is None
    assert "version 0 instead of" in caplog.text
    monkeypatch.setenv(kernel.VARIABLE, "require")
    with pytest.raises(ImportError, match="cannot be used: it has version 0 instead of"):
        kernel._load("other_kernel")


def test_without_a_kernel_python_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    assert kernel._load("no_kernel") is None
    assert not caplog.text
    monkeypatch.setenv(kernel.VARIABLE, "require")
    with pytest.raises(ImportError, match=r"it was not built\. Install a C compiler"):
        kernel._load("no_kernel")


def test_a_kernel_that_cannot_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "auto")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_kernel.py").write_text("raise ImportError('no such symbol')")
    assert kernel._load("broken_kernel") is None
    assert "it cannot be loaded (no such symbol)" in caplog.text


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "yes")
    with pytest.raises(ValueError, match=r"SCRAPY_DEDUPE_KERNEL is 'yes'\. Set it to auto, require or no"):
        kernel._load()
