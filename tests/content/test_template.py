from __future__ import annotations

import itertools
import random
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.content.signature import min_equal, row_bytes, rows_of, shingle_hashes
from scrapy_dedupe.content.template import MIN_OWN, MIN_RARE, MOST_PAGES, SLOTS, HostSketch, TemplateGuard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scrapy_dedupe.content.signature import Hashes

# One shingle in each of 20 counters.
GOLDEN_SLOTS = range(0, 20_000, 1_000)


def page(*slots: int, low: int = 7) -> Hashes:
    """A page with one shingle in each of these counters."""
    return np.array(sorted({(slot << 16) | low for slot in slots}), dtype=np.uint32)


def page_of(touched: NDArray[np.bool_]) -> Hashes:
    return np.flatnonzero(touched).astype(np.uint32) << np.uint32(16)


def some_page(seed: int, size: int) -> Hashes:
    return np.unique(np.random.default_rng(seed).integers(0, 1 << 32, size, dtype=np.uint32))


def sketch_of(*pages: Hashes) -> HostSketch:
    sketch = HostSketch()
    for one in pages:
        sketch.count(one)
    return sketch


def all_template(sketch: HostSketch) -> set[int]:
    """The counters that make template."""
    return set(np.flatnonzero(sketch.template(page(*range(SLOTS)))).tolist())


def packed(pages: int, touched: int, bits: bytes, version: int = 1) -> bytes:
    """The saved form as the docstring of the module spells it."""
    return b"sd-templ" + struct.pack("<H", version) + zlib.compress(struct.pack("<HI", pages, touched) + bits)


class Shelf(dict[str, bytes]):
    """What a store is to the guard; ``asked`` and ``given`` are the hosts it was called for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.given: list[str] = []

    def load(self, host: str) -> bytes | None:
        self.asked.append(host)
        return self.get(host)

    def keep(self, host: str, data: bytes) -> None:
        self.given.append(host)
        self[host] = data


def guard_on(shelf: Shelf, max_hosts: int = 256) -> TemplateGuard:
    return TemplateGuard(shelf.load, shelf.keep, max_hosts)


pages_of_few_slots = st.lists(
    st.sets(st.integers(0, 40), max_size=30).map(lambda slots: page(*slots)), max_size=40
)


# What is template


@pytest.mark.parametrize("counted", range(4))
def test_fewer_than_four_pages_make_no_template(counted: int) -> None:
    sketch = sketch_of(*[page(1, 2, 3)] * counted)
    assert not sketch.has_template
    assert not sketch.template(page(1, 2, 3)).any()
    assert not sketch.is_shared(page(1, 2, 3))
    assert sketch.first_own(page(1, 2, 3)) is None


def test_what_all_pages_have_is_template_from_the_fourth_page_on() -> None:
    sketch = sketch_of(*[page(1, 2, 100 + number) for number in range(4)])
    assert sketch.has_template
    assert sketch.template(page(1, 2, 100, 200)).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("on", "is_template"), [(14, False), (15, False), (16, True), (60, True)])
def test_a_shingle_on_a_seventh_of_the_pages_is_template(on: int, is_template: bool) -> None:
    # 100 pages, each with one counter of its own: f is about 1/65,536, which asks for a hair more than 15 pages.
    pages = [page(1, 1_000 + number) if number < on else page(1_000 + number) for number in range(100)]
    assert sketch_of(*pages).template(page(1)).tolist() == [is_template]


@pytest.mark.parametrize(("on", "is_shared"), [(10, False), (11, True), (15, True)])
def test_a_name_on_more_than_a_tenth_of_the_pages_is_shared(on: int, is_shared: bool) -> None:
    pages = [page(1, 2, 1_000 + number) if number < on else page(1_000 + number) for number in range(100)]
    sketch = sketch_of(*pages)
    assert sketch.is_shared(page(1, 2)) is is_shared
    assert not sketch.is_shared(page(1, 2, 3))


@pytest.mark.parametrize(("on", "is_common"), [(3, False), (4, True), (15, True)])
def test_a_shingle_on_four_pages_of_a_hundred_is_common_and_no_template(on: int, is_common: bool) -> None:
    pages = [page(1, 1_000 + number) if number < on else page(1_000 + number) for number in range(100)]
    sketch = sketch_of(*pages)
    assert sketch.classify(page(1, 2))[1].tolist() == [is_common, False]
    assert sketch.first_own(page(1, 2)) == (1 if is_common else 0)
    assert not sketch.template(page(1)).any()


def test_what_chance_explains_is_not_common() -> None:
    """Each counter is touched by 5 % of the pages; four deviations off are 18.7 of 200."""
    chance = np.random.default_rng(1)
    sketch = HostSketch()
    for _ in range(200):
        sketch.count(page_of(chance.random(SLOTS) < 0.05))
    assert sketch.classify(page(*range(SLOTS)))[1].mean() < 0.01


def test_nothing_is_common_on_a_new_host() -> None:
    assert not HostSketch().classify(page(1, 2))[1].any()
    assert not sketch_of(*[page(1, 2)] * 3).classify(page(1, 2))[1].any()


@pytest.mark.parametrize(
    ("shared", "own", "is_bare"),
    [(200, 63, True), (200, 64, False), (63, 63, False), (64, 63, True), (0, 5, False)],
)
def test_a_page_is_bare_if_it_has_few_shingles_of_its_own_and_more_others(
    shared: int, own: int, is_bare: bool
) -> None:
    assert MIN_OWN == 64
    guard = guard_on(Shelf())
    for number in range(10):
        guard.count("a", page(*range(shared), 10_000 + number))
    assert guard.classify("a", page(*range(shared), *range(20_000, 20_000 + own)))[1] == is_bare
    assert not guard.classify("b", page(*range(shared)))[1]


def test_a_page_counts_once_however_many_of_its_shingles_share_a_counter() -> None:
    crowded = np.array([(5 << 16) | low for low in range(50)], dtype=np.uint32)
    assert not sketch_of(crowded, page(1), page(2), page(3), page(4)).template(page(5)).any()


def test_the_saved_form_has_the_number_of_counters_that_were_touched_not_of_shingles() -> None:
    crowded = np.array([(5 << 16) | low for low in range(50)], dtype=np.uint32)
    body = zlib.decompress(sketch_of(*[crowded] * 4).to_bytes()[10:])
    assert struct.unpack_from("<HI", body) == (4, 4)


def test_an_empty_page_is_counted_and_has_no_template() -> None:
    nothing = np.array([], dtype=np.uint32)
    sketch = sketch_of(*[nothing] * 5)
    assert (sketch.pages, sketch.has_template, len(sketch.template(nothing))) == (5, False, 0)


@pytest.mark.parametrize("part", [0.02, 0.15, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("number", [5, 12, 30, 100, 254, 700])
def test_a_host_of_huge_pages_is_not_all_template(part: float, number: int) -> None:
    """Pages that have nothing in common but touch that part of the counters: 0.95 are 200,000 shingles."""
    chance = np.random.default_rng(number)
    sketch = HostSketch()
    for _ in range(number):
        sketch.count(page_of(chance.random(SLOTS) < part))
    assert sketch.template(page_of(chance.random(SLOTS) < part)).mean() < 0.02


@pytest.mark.parametrize("size", [300, 3_000, 30_000])
def test_the_template_of_huge_pages_is_found_too(size: int) -> None:
    shared = some_page(10_000, 500)
    sketch = sketch_of(*[np.union1d(shared, some_page(seed, size)) for seed in range(40)])
    assert sketch.template(shared).all()


def test_one_huge_page_changes_nothing_for_the_others() -> None:
    pages = [page(1, 2, 100 + number) for number in range(30)]
    before, after = sketch_of(*pages), sketch_of(*pages, some_page(1, 500_000))
    assert all_template(before) == all_template(after) == {1, 2}


# Bounds and forgetting


@settings(max_examples=examples(40), deadline=None)
@given(pages_of_few_slots, st.integers(1, 30))
def test_no_counter_ever_exceeds_the_number_of_pages(pages: list[Hashes], rounds: int) -> None:
    sketch = HostSketch()
    for one in pages * rounds:
        sketch.count(one)
        assert sketch.pages < MOST_PAGES
        assert int(sketch._counters.max()) <= sketch.pages


@settings(max_examples=examples(60), deadline=None)
@given(pages_of_few_slots)
def test_no_shingle_is_counted_too_low_before_the_first_halving(pages: list[Hashes]) -> None:
    sketch = sketch_of(*pages)
    for slot in range(41):
        assert int(sketch._counters[slot]) == sum(bool(np.isin(page(slot), one).all()) for one in pages)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, MOST_PAGES), min_size=2, max_size=20))
def test_halving_keeps_the_order_of_the_counters(times: list[int]) -> None:
    sketch = HostSketch()
    for number in range(MOST_PAGES):
        sketch.count(page(*[slot for slot, often in enumerate(times) if number < often]))
    assert sketch.pages == MOST_PAGES // 2
    assert [int(sketch._counters[slot]) for slot in range(len(times))] == [often // 2 for often in times]


def test_halving_changes_no_answer_that_is_not_close() -> None:
    sketch = HostSketch()
    for number in range(2_000):
        sketch.count(
            page(1, *([2] if number % 3 == 0 else []), *([3] if number % 10 == 0 else []), 100 + number)
        )
        if number >= 50:
            assert sketch.template(page(1, 2, 3)).tolist() == [True, True, False], number


def test_what_a_site_no_longer_shows_is_forgotten() -> None:
    sketch = sketch_of(*[page(1, 100 + number) for number in range(1_000)])
    assert all_template(sketch) == {1}
    for number in range(1_000):
        sketch.count(page(2, 100 + number))
    assert all_template(sketch) == {2}


def test_asking_changes_nothing() -> None:
    sketch = sketch_of(*[page(1, 100 + number) for number in range(10)])
    before = sketch.to_bytes()
    for number in range(300):
        sketch.template(page(50, number))
    assert sketch.to_bytes() == before


def test_the_hashes_of_a_page_are_left_as_they_are() -> None:
    one = some_page(1, 1_000)
    copy = one.copy()
    guard = guard_on(Shelf())
    for _ in range(5):
        guard.count("a", one)
        guard.template("a", one)
    assert np.array_equal(one, copy)


# The saved form


def test_the_saved_form_is_the_documented_one() -> None:
    sketch = sketch_of(*[page(*GOLDEN_SLOTS, 30_000 + number) for number in range(6)])
    bits = bytearray(SLOTS // 8)
    for slot in GOLDEN_SLOTS:
        bits[slot // 8] |= 1 << slot % 8
    data = sketch.to_bytes()
    assert data[:10].hex() == "73642d74656d706c0100"
    assert zlib.decompress(data[10:]) == struct.pack("<HI", 6, 6 * 21) + bits
    assert all_template(HostSketch.from_bytes(packed(6, 6 * 21, bytes(bits)))) == set(GOLDEN_SLOTS)


@settings(max_examples=examples(40), deadline=None)
@given(pages_of_few_slots.filter(lambda pages: len(pages) >= 4), st.integers(1, 8))
def test_the_saved_form_tells_the_same_template(pages: list[Hashes], rounds: int) -> None:
    sketch = sketch_of(*pages * rounds)
    again = HostSketch.from_bytes(sketch.to_bytes())
    assert all_template(again) == all_template(sketch)
    assert again.has_template == sketch.has_template
    assert not again.is_changed


def test_the_saved_form_is_small_however_much_is_template() -> None:
    sketch = HostSketch()
    half = np.flatnonzero(np.random.default_rng(1).random(SLOTS) < 0.3)
    for _ in range(60):
        sketch.count(page(*half.tolist()))
    assert sketch.has_template
    assert len(sketch.to_bytes()) <= 8_300
    assert len(sketch_of(*[page(*GOLDEN_SLOTS)] * 20).to_bytes()) < 150


def test_what_is_loaded_speaks_for_at_most_64_pages_of_the_same_size() -> None:
    sketch = sketch_of(*[page(1, 2, 100 + number) for number in range(200)])
    body = zlib.decompress(HostSketch.from_bytes(sketch.to_bytes()).to_bytes()[10:])
    assert struct.unpack_from("<HI", body) == (64, 64 * 3)


def test_newer_pages_have_their_say_after_loading() -> None:
    saved = sketch_of(*[page(1, 100 + number) for number in range(250)]).to_bytes()
    sketch = HostSketch.from_bytes(saved)
    assert sketch.pages == 64
    for number in range(300):
        sketch.count(page(2, 100 + number))
    assert all_template(sketch) == {2}


BITS = bytes(SLOTS // 8)
GOOD = packed(10, 1_000, BITS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not start with the magic bytes"),
        (b"sd-bloom" + GOOD[8:], "does not start with the magic bytes"),
        (GOOD[:9], "does not start with the magic bytes"),
        (packed(10, 1_000, BITS, version=2), "format version 2; this version reads 1"),
        (GOOD[:10], "is truncated"),
        (GOOD[:-1], "is truncated"),
        (GOOD[:30], "is truncated"),
        (GOOD[:10] + b"\xff" + GOOD[11:], "is damaged"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "is damaged"),
        (GOOD + b"more", "4 extra bytes follow"),
        (packed(10, 1_000, BITS[1:]), "is truncated"),
        (packed(10, 1_000, BITS + b"\0"), "longer than the expected 8198 bytes"),
        (packed(10, 1_000, bytes(20_000_000)), "longer than the expected 8198 bytes"),
        (packed(0, 0, BITS), "counts 0 pages"),
        (packed(3, 0, BITS), "counts 3 pages"),
        (packed(255, 0, BITS), "counts 255 pages"),
        (packed(4, 4 * SLOTS + 1, BITS), "touched counters, which is impossible"),
    ],
)
def test_a_damaged_or_foreign_form_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        HostSketch.from_bytes(data)


@settings(max_examples=examples(200))
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_changes_nothing(place: int, change: int) -> None:
    data = bytearray(GOOD)
    data[place] ^= change
    try:
        sketch = HostSketch.from_bytes(bytes(data))
    except ValueError:
        return
    # zlib has some bits that mean nothing: how hard it tried, and those that fill up its last byte.
    assert sketch.to_bytes() == HostSketch.from_bytes(GOOD).to_bytes()


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\."):
        HostSketch.from_bytes(b"sd-templ\x01\x00" + data)


# Hosts


def test_hosts_have_nothing_to_do_with_each_other() -> None:
    guard = guard_on(Shelf())
    for number in range(10):
        guard.count("a", page(1, 100 + number))
        guard.count("b", page(2, 100 + number))
    assert guard.template("a", page(1, 2)).tolist() == [True, False]
    assert guard.template("b", page(1, 2)).tolist() == [False, True]
    assert not guard.template("c", page(1, 2)).any()


def test_a_host_is_loaded_when_it_is_first_asked_about_and_only_then() -> None:
    shelf = Shelf()
    shelf["a"] = sketch_of(*[page(1)] * 10).to_bytes()
    guard = guard_on(shelf)
    assert shelf.asked == []
    assert guard.template("a", page(1)).all()
    guard.count("a", page(1))
    guard.count("b", page(1))
    assert shelf.asked == ["a", "b"]


def test_the_host_that_was_not_used_for_longest_makes_way_and_comes_back() -> None:
    shelf = Shelf()
    guard = guard_on(shelf, max_hosts=2)
    for host in ("a", "b"):
        for number in range(10):
            guard.count(host, page(1, 100 + number))
    guard.template("a", page(1))
    guard.count("c", page(1))
    assert (shelf.given, len(guard)) == (["b"], 2)
    assert guard.template("a", page(1)).all()
    assert shelf.asked == ["a", "b", "c"]
    assert guard.template("b", page(1, 100)).tolist() == [True, False]
    assert shelf.asked == ["a", "b", "c", "b"]
    assert len(guard) == 2


def test_a_host_without_a_template_is_not_saved() -> None:
    shelf = Shelf()
    guard = guard_on(shelf, max_hosts=1)
    for number in range(10):
        guard.count("a", page(number))
    guard.save()
    guard.count("b", page(1))
    assert shelf.given == []


def test_a_host_is_saved_only_if_pages_were_counted_since() -> None:
    shelf = Shelf()
    guard = guard_on(shelf, max_hosts=1)
    for _ in range(5):
        guard.count("a", page(1))
    guard.save()
    guard.save()
    guard.template("a", page(1))
    guard.count("b", page(1))
    assert guard.template("a", page(1)).all()
    guard.save()
    assert shelf.given == ["a"]
    guard.count("a", page(1))
    guard.save()
    assert shelf.given == ["a", "a"]


def test_a_host_whose_saving_failed_is_saved_the_next_time() -> None:
    shelf = Shelf()

    def keep(host: str, data: bytes) -> None:
        if not shelf.asked:
            raise ConnectionError("away")
        shelf.keep(host, data)

    guard = TemplateGuard(shelf.get, keep, max_hosts=1)
    for _ in range(5):
        guard.count("a", page(1))
    with pytest.raises(ConnectionError):
        guard.save()
    with pytest.raises(ConnectionError):
        guard.count("b", page(1))
    assert guard.template("a", page(1)).all()
    shelf.asked.append("the store is back")
    guard.save()
    assert shelf.given == ["a"]


def test_a_host_that_could_not_be_loaded_is_asked_for_again() -> None:
    saved = sketch_of(*[page(1)] * 5).to_bytes()
    asked: list[str] = []

    def load(host: str) -> bytes:
        asked.append(host)
        if len(asked) == 1:
            raise ConnectionError("away")
        return saved

    guard = TemplateGuard(load, Shelf().keep)
    with pytest.raises(ConnectionError):
        guard.count("a", page(1))
    assert len(guard) == 0
    assert guard.template("a", page(1)).all()


def test_a_damaged_saved_form_is_told_once_and_then_replaced() -> None:
    shelf = Shelf()
    shelf["www.example.org"] = GOOD[:-3]
    guard = guard_on(shelf)
    with pytest.raises(ValueError, match=r"template of www\.example\.org is unusable: it is truncated"):
        guard.template("www.example.org", page(1))
    for _ in range(5):
        guard.count("www.example.org", page(1))
    guard.save()
    assert all_template(HostSketch.from_bytes(shelf["www.example.org"])) == {1}


@pytest.mark.parametrize("max_hosts", [0, -1])
def test_a_guard_without_room_for_a_host_is_refused(max_hosts: int) -> None:
    with pytest.raises(ValueError, match=f"max_hosts is {max_hosts}"):
        guard_on(Shelf(), max_hosts)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sets(st.integers(0, 12), max_size=10)), max_size=60))
def test_the_same_pages_in_the_same_order_give_the_same_answers(visits: list[tuple[str, set[int]]]) -> None:
    def answers() -> list[list[bool]]:
        guard = guard_on(Shelf(), max_hosts=2)
        told = []
        for host, slots in visits:
            told.append(guard.template(host, page(*slots)).tolist())
            guard.count(host, page(*slots))
        return told

    assert answers() == answers()


# What it is for


def words(random_: random.Random, number: int) -> str:
    return " ".join("".join(random_.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(number))


def site(seed: int, number: int = 60) -> tuple[str, list[str]]:
    """A template of 1,200 words, and the 60 words that each page says itself."""
    random_ = random.Random(seed)
    return words(random_, 1_200), [words(random_, 60) for _ in range(number)]


def is_near(one: Hashes, other: Hashes, guard: TemplateGuard | None = None) -> bool:
    """As the judge asks: whether the whole texts are near, and what is no template is too."""
    for part in (False, True):
        if part and guard is not None:
            one, other = (hashes[~guard.template("host", hashes)] for hashes in (one, other))
            if min(len(one), len(other)) < MIN_RARE:
                return False
        rows = [np.frombuffer(row_bytes(rows_of(hashes)), dtype=np.uint8) for hashes in (one, other)]
        if int((rows[0] == rows[1]).sum()) < min_equal(0.85):
            return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_pages_that_share_a_template_part_and_versions_of_one_page_stay_together(seed: int) -> None:
    template, contents = site(seed)
    half = len(template) // 2
    pages = [shingle_hashes(f"{template[:half]} {said} {template[half:]}") for said in contents]
    # The next version: a new edition in the template, and one more word in the text.
    edition = f"{template[:half]} edition 2026"
    versions = [
        shingle_hashes(f"{edition} {said} {words(random.Random(said), 1)} {template[half:]}")
        for said in contents
    ]
    guard = guard_on(Shelf())
    for hashes in pages[:40]:
        guard.count("host", hashes)
    new, new_versions = pages[40:], versions[40:]
    neighbours = list(itertools.pairwise(new))
    assert sum(is_near(one, other) for one, other in neighbours) > 0.8 * len(neighbours)
    assert not any(is_near(one, other, guard) for one, other in neighbours)
    assert sum(is_near(one, other, guard) for one, other in zip(new, new_versions, strict=True)) >= 0.9 * len(
        new
    )
