"""What an index answers: documents like a text, the blots of a text, and where blots stand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.passages.index import PassageIndex
from scrapy_dedupe.passages.queries import blots_of, like, unblot
from scrapy_dedupe.passages.tokens import tokeniser_named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.passages.values import Hit, Place

WORDS = tokeniser_named("words").words


def text_of(seed: int, count: int = 200) -> str:
    """A text whose words stand in no other one."""
    return " ".join(f"w{seed}x{number}" for number in range(count))


def shared(count: int, name: str = "same") -> str:
    return " ".join(f"{name}{number}" for number in range(count))


@pytest.fixture(params=["texts", "outlines"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PassageIndex]:
    with PassageIndex(tmp_path / "index", store_text=request.param == "texts") as index:
        yield index


@pytest.fixture
def with_texts(tmp_path: Path) -> Iterator[PassageIndex]:
    with PassageIndex(tmp_path / "index") as index:
        yield index


def ids(hits: list[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def cut(text: str, place: Place) -> list[str]:
    return WORDS(text[place.char_start : place.char_end])


def test_a_shared_run_is_told_with_its_places_in_both_texts(with_texts: PassageIndex) -> None:
    there = f"{text_of(1)}. {shared(15).upper()}! {text_of(2)}"
    with_texts.add("there", there)
    with_texts.add("other", text_of(3))
    here = f"{text_of(4, 30)} — {shared(15)}, {text_of(5, 55)}"
    (hit,) = with_texts.like(here)
    (passage,) = hit.passages
    assert (hit.doc_id, hit.score) == ("there", 0.15)
    assert passage.text == shared(15).upper()
    assert passage.tokens == 15
    assert passage.asked is not None
    assert (passage.asked.token_start, passage.asked.token_end) == (30, 45)
    assert here[passage.asked.char_start : passage.asked.char_end] == shared(15)
    (place,) = passage.places
    assert (place.doc_id, place.token_start, place.token_end) == ("there", 200, 215)
    assert there[place.char_start : place.char_end] == shared(15).upper()


@pytest.mark.parametrize("top", [1, 5])
@pytest.mark.parametrize("asked_tokens", [300, 120])
def test_a_text_that_is_the_asked_one_is_told_where_words_are_few(
    index: PassageIndex, asked_tokens: int, top: int
) -> None:
    rng = random.Random(7)
    asked = " ".join(rng.choices("01", k=asked_tokens))
    for number in range(200):
        index.add(f"d{number}", " ".join(rng.choices("01", k=asked_tokens)))
    index.add("copy", asked)
    index.add("again", asked)
    copy, *others = index.like(asked, top)
    assert copy.doc_id == "copy"
    assert copy.score > 0.95  # without texts it ends with the last blots
    assert ids(others[:1]) == ["again"][: top - 1]
    assert ids(index.like(asked, 1, left_out={"copy"})) == ["again"]
    assert index.delete_many(["copy", "again"]) == [True, True]
    assert len(index.like(asked, top)) == top


def test_what_repeats_within_a_text_does_not_break_what_is_shared(index: PassageIndex) -> None:
    paragraphs = " ".join(f"{text_of(number, 30)} {shared(20)}" for number in range(33))
    index.add("there", f"{text_of(40, 20)} {paragraphs}")
    for least in (15, 100):
        (hit,) = index.like(f"{text_of(41, 20)} {paragraphs} {text_of(42, 20)}", min_tokens=least)
        (passage,) = hit.passages
        # Without texts it ends with the last blots, up to seven tokens before its own end.
        assert 1650 - 14 <= passage.tokens <= 1650
        assert hit.score == passage.tokens / 1690


@pytest.mark.parametrize("times", [33, 300])
def test_a_line_that_repeats_is_shared_as_a_whole(times: int, index: PassageIndex) -> None:
    lines = " ".join([shared(10)] * times)
    index.add("there", f"start {lines} end")
    for least in (15, 150):
        (hit,) = index.like(f"begin {lines} finish", min_tokens=least)
        (passage,) = hit.passages
        assert 10 * times - 14 <= passage.tokens <= 10 * times


def test_a_page_whose_lines_repeat_often_is_about_itself(index: PassageIndex) -> None:
    page = " ".join(f"{shared(9)} {text_of(number, 12)} {shared(16, 'end')}" for number in range(60))
    index.add("page", page)
    (hit,) = index.like(page, min_tokens=100)
    assert len(hit.passages) == 1
    assert hit.score > 0.99


def test_a_lone_surrogate_counts_as_a_replacement_character(index: PassageIndex) -> None:
    index.add("there", f"{shared(20)} \ud800 x\udfffy {shared(20, 'more')} {text_of(1)}")
    taboo = f"{shared(12)} \udabc"
    for text in (
        f"{shared(20)} \ufffd x\ufffdy {shared(20, 'more')}",
        f"{shared(20)} \udc01 x\ud900y {shared(20, 'more')}",
    ):
        ((whole,), (part,)) = (
            hit.passages for given in ([], [taboo]) for hit in index.like(text, taboo=given)
        )
        assert 42 - 14 <= whole.tokens <= 42
        assert part.tokens < whole.tokens
        assert part.asked is not None
        assert part.asked.token_start >= 12


def test_a_menu_of_one_host_is_found_on_another_each_time(index: PassageIndex) -> None:
    menu = shared(60, "menu")
    index.add_all((f"http://a.org/{number}", f"{menu} {text_of(number, 40)}") for number in range(100))
    index.add("http://b.org/", f"before {menu} behind")
    # What is remembered of a template from the first question does not change the second.
    assert [ids(index.like(menu)) for _ in range(2)] == [["http://b.org/"]] * 2


def test_fourteen_tokens_are_too_few_unless_fewer_are_asked_for(with_texts: PassageIndex) -> None:
    with_texts.add("there", f"{text_of(1)} {shared(14)} {text_of(2)}")
    assert with_texts.like(f"{text_of(3)} {shared(14)}") == []
    assert [hit.passages[0].tokens for hit in with_texts.like(shared(14), min_tokens=10)] == [14]


def test_longer_passages_alone_if_they_are_asked_for(with_texts: PassageIndex) -> None:
    with_texts.add("short", f"{text_of(1)} {shared(30)} {text_of(2)}")
    with_texts.add("long", f"{text_of(3)} {shared(60)} {text_of(4)}")
    asked = f"{text_of(5)} {shared(60)} {text_of(6)}"
    assert ids(with_texts.like(asked)) == ["long", "short"]
    assert ids(with_texts.like(asked, min_tokens=31)) == ["long"]


def test_the_best_come_first_and_of_equal_ones_the_first_added(index: PassageIndex) -> None:
    for number in (0, 1, 2, 3):
        tokens = 120 if number == 2 else 60
        index.add(f"doc{number}", f"{shared(tokens)} {text_of(number)}")
    hits = index.like(f"{shared(120)} {text_of(9, 120)}")
    assert ids(hits) == ["doc2", "doc0", "doc1", "doc3"]
    assert hits[0].score > hits[1].score == hits[2].score
    assert ids(index.like(shared(120), 2)) == ["doc2", "doc0"]


def test_of_equal_ones_the_first_added_is_first_also_if_its_text_was_there_before(
    index: PassageIndex,
) -> None:
    index.add("old", f"{shared(60)} {text_of(1)}")
    index.add("b", f"{shared(60)} {text_of(2)}")
    index.flush()
    index.delete("old")
    index.add("c", f"{shared(60)} {text_of(1)}")
    index.add("d", f"{shared(60)} {text_of(2)}")
    index.flush()
    assert ids(index.like(shared(60), min_tokens=40)) == ["b", "c", "d"]
    blots = [row.blot for row in blots_of(shared(60), index.snapshot().parameters)]
    found = [passage for passage in unblot(index.snapshot(), blots).values() if passage.documents == 3]
    assert found
    for passage in found:
        assert [place.doc_id for place in passage.places] == ["b", "c", "d"]


@pytest.mark.parametrize(("run", "least", "top"), [(15, None, 10), (20, None, 1), (60, 50, 10), (16, 16, 1)])
def test_a_run_is_found_whatever_many_others_share_shorter_ones(
    with_texts: PassageIndex, run: int, least: int | None, top: int
) -> None:
    phrases = [shared((least or 15) - 1, f"p{number}x") for number in range(4)]
    for number in range(60):
        others = " ".join(f"{text_of(number * 10 + at, 10)} {phrase}" for at, phrase in enumerate(phrases))
        with_texts.add(f"noise{number}", f"{others} {text_of(number * 10 + 9, 10)}")
    with_texts.add("copy", f"{text_of(900)} {shared(run)} {text_of(901)}")
    asked = " ".join(f"{text_of(910 + at, 20)} {phrase}" for at, phrase in enumerate(phrases))
    hits = with_texts.like(
        f"{asked} {text_of(950, 20)} {shared(run)} {text_of(951, 20)}", top, min_tokens=least
    )
    assert [(hit.doc_id, hit.passages[0].tokens) for hit in hits] == [("copy", run)]


def test_a_line_or_a_word_without_end_is_told_in_few_passages(with_texts: PassageIndex) -> None:
    line = "the quick brown fox jumps over the lazy dog again\n"
    for number in range(5):
        with_texts.add(f"line{number}", f"start{number} {line * 20}")
        with_texts.add(f"word{number}", "a " * (1_000 + number))
    hits = with_texts.like(line * 5_000 + "a " * 5_000)
    assert {hit.doc_id for hit in hits} == {
        f"{name}{number}" for name in ("line", "word") for number in range(5)
    }
    for hit in hits:
        assert hit.score == (50_000 if hit.doc_id.startswith("line") else 5_000) / 55_000
        assert sum(passage.tokens * len(passage.places) for passage in hit.passages) < 200_000


@pytest.mark.parametrize(
    ("k", "window", "least"), [(4, 16, None), (4, 16, 60), (2, 16, None), (8, 16, 60), (8, 32, 70)]
)
def test_without_texts_a_passage_is_one_also_if_its_blots_do_not_touch(
    tmp_path: Path, k: int, window: int, least: int | None
) -> None:
    blotter = {"name": "rolling", "k": k, "window": window}
    with PassageIndex(tmp_path / "index", store_text=False, blotter=blotter) as index:
        index.add("a", f"{text_of(1, 50)} {shared(120)} {text_of(2, 50)}")
        index.add("b", f"{text_of(3, 10)} {shared(120)}")
        hits = index.like(f"{text_of(4, 30)} {shared(120)} {text_of(5, 30)}", min_tokens=least)
    assert sorted(ids(hits)) == ["a", "b"]
    for hit in hits:
        (passage,) = hit.passages
        assert 120 - 2 * (window - 1) <= passage.tokens <= 120


def test_every_name_of_a_text_is_a_hit_but_those_left_out(index: PassageIndex) -> None:
    for name in ("a", "b", "c"):
        index.add(name, shared(100))
    hits = index.like(shared(100), left_out={"b"})
    assert ids(hits) == ["a", "c"]
    assert {place.doc_id for place in hits[1].passages[0].places} == {"c"}


def test_deleted_documents_are_no_hits(index: PassageIndex) -> None:
    index.add("a", shared(50))
    index.add("b", shared(60))
    index.delete("b")
    assert ids(index.like(shared(60))) == ["a"]


def test_a_passage_that_stands_twice_has_both_places(with_texts: PassageIndex) -> None:
    with_texts.add("twice", f"{shared(20)} {text_of(1)} {shared(20)} {text_of(2)}")
    (hit,) = with_texts.like(f"{text_of(3, 20)} {shared(20)}")
    (passage,) = hit.passages
    assert [place.token_start for place in passage.places] == [0, 220]
    assert hit.score == 0.5


def test_what_repeats_itself_is_one_passage(with_texts: PassageIndex) -> None:
    with_texts.add("line", "never again " * 500)
    (hit,) = with_texts.like("never again " * 500)
    assert hit.score == 1
    assert [(passage.tokens, len(passage.places)) for passage in hit.passages] == [(1_000, 1)]


@pytest.mark.parametrize("asked", ["", " .,;", "too short", "\ud800", text_of(7)])
def test_a_text_that_shares_nothing_has_no_hits(index: PassageIndex, asked: str) -> None:
    index.add("a", shared(50))
    assert index.like(asked) == []


def test_an_empty_index_has_no_hits(index: PassageIndex) -> None:
    assert index.like(shared(50)) == []


def test_boilerplate_counts_for_nothing_and_stops_passages(index: PassageIndex) -> None:
    menu = shared(60, "menu")
    for number in range(15):
        index.add(f"https://a.example/{number}", f"{menu} {text_of(number)}")
    index.add("https://a.example/copy", f"{menu} {text_of(50)} {shared(40)} {text_of(51)}")
    index.add("https://b.example/", f"{menu} {text_of(60)}")
    asked = f"{menu} {shared(40)}"
    for _ in range(2):  # what is remembered of a template gives the same as what is read
        hits = index.like(asked)
        assert set(ids(hits)) == {"https://a.example/copy", "https://b.example/"}
        (passage,) = next(hit for hit in hits if hit.doc_id.endswith("copy")).passages
        assert passage.asked is not None
        assert passage.asked.token_start >= 60
    assert len(index.like(asked, 20, boilerplate_share=None)) == 17
    assert len(index.like(asked, 20, boilerplate_share=1.0)) == 17


def test_what_a_long_list_of_boilerplate_hides_stays_hidden_when_it_is_asked_again(
    index: PassageIndex,
) -> None:
    menu = shared(60, "menu")
    for number in range(100):
        index.add(f"https://a.example/{number}", f"{menu} {text_of(number)}")
    snapshot = index.snapshot()
    first = like(snapshot, f"{menu} {text_of(7)}")
    assert ids(first) == ["https://a.example/7"]
    assert like(snapshot, f"{menu} {text_of(7)}") == first


def test_taboo_texts_are_no_passages(index: PassageIndex) -> None:
    licence = shared(80, "licence")
    index.add("a", f"{licence} {text_of(1)}")
    index.add("b", f"{text_of(2)} {shared(40)} {licence}")
    hits = index.like(f"{shared(40)} {licence}", taboo=[licence])
    assert ids(hits) == ["b"]
    (passage,) = hits[0].passages
    assert passage.asked is not None
    assert passage.asked.token_end <= 40


@pytest.mark.parametrize("options", [{"top": 0}, {"min_tokens": 0}, {"boilerplate_share": 2.0}])
def test_numbers_that_make_no_sense_are_refused(with_texts: PassageIndex, options: dict[str, Any]) -> None:
    with_texts.add("a", shared(50))
    with pytest.raises(SettingError):
        with_texts.like(shared(50), **options)


def test_without_texts_a_passage_is_told_by_position(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "index", store_text=False) as index:
        there = f"{text_of(1)} {shared(60)} {text_of(2)}"
        index.add("a", there)
        (hit,) = index.like(f"{text_of(3)} {shared(60)} {text_of(4)}")
        (passage,) = hit.passages
        assert passage.text is None
        assert 60 - 2 * 7 <= passage.tokens <= 60
        (place,) = passage.places
        assert passage.asked is not None
        assert place.token_start == passage.asked.token_start
        assert " ".join(cut(there, place)) in shared(60)
        assert len(cut(there, place)) == passage.tokens


def test_without_texts_the_shortest_run_is_found_as_the_blots_in_it(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "index", store_text=False) as index:
        index.add("a", f"{text_of(1)} {shared(15)} {text_of(2)}")
        (hit,) = index.like(f"{text_of(3)} {shared(15)} {text_of(4)}")
        assert 8 <= hit.passages[0].tokens <= 15


ALPHABET = st.sampled_from(["a", "b", "c"])


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(ALPHABET, max_size=60).map(" ".join), min_size=1, max_size=4),
    st.lists(ALPHABET, max_size=60).map(" ".join),
    st.integers(8, 20),
)
def test_hits_are_those_that_comparing_all_words_gives(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], asked: str, least: int
) -> None:
    words = WORDS(asked)
    with PassageIndex(tmp_path_factory.mktemp("index")) as index:
        for number, text in enumerate(texts):
            index.add(str(number), text)
        hits = {hit.doc_id: hit for hit in index.like(asked, min_tokens=least)}
    runs = {" ".join(words[i : i + least]) for i in range(len(words) - least + 1)}
    for number, text in enumerate(texts):
        own = WORDS(text)
        if least >= 15:
            windows = {" ".join(own[i : i + least]) for i in range(len(own) - least + 1)}
            assert (str(number) in hits) == bool(runs & windows)
        covered = set()
        for passage in hits[str(number)].passages if str(number) in hits else ():
            assert passage.asked is not None
            assert passage.tokens >= least
            covered |= set(range(passage.asked.token_start, passage.asked.token_end))
            for place in passage.places:
                assert cut(text, place) == cut(asked, passage.asked)
                assert own[place.token_start : place.token_end] == cut(text, place)
        if str(number) in hits:
            assert hits[str(number)].score == len(covered) / len(words)


def test_blots_of_a_text_are_those_that_the_index_holds(index: PassageIndex) -> None:
    text = f"{shared(50)} {text_of(1, 30)}."
    index.add("a", text)
    rows = blots_of(text, index.snapshot().parameters)
    found = unblot(index.snapshot(), [row.blot for row in rows])
    for row in rows:
        places = [
            (place.token_start, place.token_end, place.char_start, place.char_end)
            for place in found[row.blot].places
        ]
        assert places == [(row.token_start, row.token_end, row.char_start, row.char_end)]
        assert len(WORDS(text[row.char_start : row.char_end])) == 8
    every = blots_of(text, index.snapshot().parameters, every=True)
    assert len(every) == 80 - 8 + 1
    assert {row.blot for row in rows} <= {row.blot for row in every}


def test_a_text_of_eight_tokens_has_one_blot_and_of_seven_none(with_texts: PassageIndex) -> None:
    with_texts.add("a", "one two three four five six seven eight")
    parameters = with_texts.snapshot().parameters
    assert len(blots_of("one two three four five six seven", parameters)) == 0
    (row,) = blots_of("One, two three four five six seven EIGHT!", parameters)
    assert (row.token_start, row.token_end, row.char_start, row.char_end) == (0, 8, 0, 40)
    (found,) = unblot(with_texts.snapshot(), [row.blot]).values()
    assert found.text == "one two three four five six seven eight"


def test_unblot_tells_every_place_also_those_that_winnowing_leaves_out(with_texts: PassageIndex) -> None:
    text = f"{shared(15)} {text_of(1, 20)} {shared(15)}"
    with_texts.add("a", text)
    with_texts.add("b", f"{text_of(2, 9)} {shared(15)} {text_of(3)}")
    common = {row.blot for row in blots_of(shared(15), with_texts.snapshot().parameters)}
    for found in unblot(with_texts.snapshot(), sorted(common)).values():
        first = found.places[0]
        assert found.documents == 2
        assert [place.doc_id for place in found.places] == ["a", "a", "b"]
        assert [place.token_start - first.token_start for place in found.places] == [0, 35, 9]


def test_unblot_leaves_out_what_stands_nowhere_and_refuses_what_is_no_blot(index: PassageIndex) -> None:
    index.add("a", shared(50))
    assert unblot(index.snapshot(), [1, 2, 3]) == {}
    with pytest.raises(SettingError, match="64 bits"):
        unblot(index.snapshot(), [1 << 64])


@pytest.mark.parametrize("blotter", ["xor", "interleaved"])
@pytest.mark.parametrize("store_text", [True, False])
def test_other_blotters_find_what_they_are_sure_to_find(
    tmp_path: Path, blotter: str, store_text: bool
) -> None:
    rng = random.Random(3)
    with PassageIndex(tmp_path / "index", blotter=blotter, store_text=store_text) as index:
        texts = [f"{text_of(seed)} {shared(10 + seed)} {text_of(seed + 90)}" for seed in range(5)]
        rng.shuffle(texts)
        for number, text in enumerate(texts):
            index.add(str(number), text)
        hits = index.like(f"{text_of(300)} {shared(40)} {text_of(301)}")
    assert sorted(passage.tokens for hit in hits for passage in hit.passages) == [10, 11, 12, 13, 14]


def test_unblot_tells_all_names_of_a_text_in_turn(index: PassageIndex) -> None:
    text = f"{shared(30)} {text_of(1, 9)} {shared(30)}"
    for name in ("a", "b"):
        index.add(name, text)
    common = {row.blot for row in blots_of(shared(30), index.snapshot().parameters)}
    for found in unblot(index.snapshot(), sorted(common)).values():
        assert [place.doc_id for place in found.places] == ["a", "a", "b", "b"]
