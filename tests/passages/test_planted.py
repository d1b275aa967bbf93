"""What was planted is found, as one passage, in all its places and nowhere else; boilerplate and taboo are not."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest
from offline.calling import call, done
from passages.planted import (
    Garden,
    assert_is_right,
    assert_place_is_right,
    garden,
    is_within,
    spans,
    words_of,
)

from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.passages.values import Passage


@pytest.fixture(scope="module")
def planting() -> Garden:
    return garden()


@pytest.fixture(scope="module", params=["with texts", "without texts"])
def index(
    request: pytest.FixtureRequest, planting: Garden, tmp_path_factory: pytest.TempPathFactory
) -> PassageIndex:
    """In three segments."""
    index = PassageIndex(
        tmp_path_factory.mktemp("planted") / "index", store_text=request.param == "with texts"
    )
    for start in range(0, len(planting.pages), 30):
        for doc_id, text, host in planting.documents[start : start + 30]:
            index.add(doc_id, text, host)
        index.flush()
    return index


def by_places(passages: list[Passage]) -> dict[frozenset[object], Passage]:
    return {frozenset(spans(passage.places)): passage for passage in passages}


def test_every_planted_passage_is_extracted_as_one_with_all_its_places(
    index: PassageIndex, planting: Garden
) -> None:
    found = by_places(list(index.extract(taboo=[" ".join(planting.taboo)])))
    has_texts = index.snapshot().parameters.has_texts
    for planted in planting.planted:
        if has_texts:
            assert frozenset(planted.places) in found, planted
            passage = found.pop(frozenset(planted.places))
            assert passage.tokens == len(planted.words)
            assert assert_is_right(passage, planting.texts) == planted.words
        elif len(planted.words) >= 25:
            # Without texts a passage is told as far as its blots reach: inside of what was planted.
            (passage,) = (passage for passage in found.values() if _is_inside(passage, planted.places))
            assert {place.doc_id for place in passage.places} == {span.doc_id for span in planted.places}


def _is_inside(passage: Passage, wholes: tuple[object, ...]) -> bool:
    return all(
        any(
            place.doc_id == whole.doc_id  # type: ignore[attr-defined]
            and whole.token_start <= place.token_start < place.token_end <= whole.token_end  # type: ignore[attr-defined]
            for whole in wholes
        )
        for place in passage.places
    )


def test_nothing_is_extracted_but_what_was_planted(index: PassageIndex, planting: Garden) -> None:
    # An index without texts tells passages of a single blot too, as one may be all that is kept of 15 tokens.
    passages = list(index.extract(taboo=[" ".join(planting.taboo)], min_tokens=15))
    wanted = [planted.places for planted in planting.planted]
    for passage in passages:
        for place in passage.places:
            assert_place_is_right(place, planting.texts)
        if {place.doc_id for place in passage.places} != set(planting.copies):
            assert any(_is_inside(passage, whole) for whole in wanted), passage


def test_passages_come_by_what_it_would_save_to_have_them_once(index: PassageIndex) -> None:
    scores = [passage.score for passage in index.extract()]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) > 10
    assert [passage.score for passage in index.extract(top=5)] == scores[:5]


def test_a_text_of_three_names_is_a_passage_unless_copies_are_skipped(
    index: PassageIndex, planting: Garden
) -> None:
    def of_the_copies(passages: list[Passage]) -> list[Passage]:
        return [p for p in passages if {place.doc_id for place in p.places} & set(planting.copies)]

    (whole,) = of_the_copies(list(index.extract()))
    assert tuple(place.doc_id for place in whole.places) == planting.copies
    if index.snapshot().parameters.has_texts:
        assert whole.tokens == 80
    assert not of_the_copies(list(index.extract(skip_copies=True)))


def test_boilerplate_of_a_host_is_set_apart_unless_told_otherwise(
    index: PassageIndex, planting: Garden
) -> None:
    frame = {
        host: {page.doc_id for page in planting.pages if page.host == host} for host in planting.boilerplate
    }

    def widest(passages: list[Passage]) -> int:
        return max(passage.documents for passage in passages if passage.tokens >= 15)

    assert widest(list(index.extract())) == 3
    with_frames = list(index.extract(boilerplate_share=None))
    for host, names in frame.items():
        pages = names - set(planting.copies)
        (passage, *_) = (p for p in with_frames if {place.doc_id for place in p.places} == pages)
        if index.snapshot().parameters.has_texts:
            assert assert_is_right(passage, planting.texts) == planting.boilerplate[host][:25]


def test_a_taboo_text_is_left_out(index: PassageIndex, planting: Garden) -> None:
    def licensed(passages: list[Passage]) -> list[Passage]:
        return [
            passage
            for passage in passages
            if is_within(assert_place_is_right(passage.places[0], planting.texts), planting.taboo)
        ]

    assert len(licensed(list(index.extract()))) == 1
    assert not licensed(list(index.extract(taboo=["  …".join(planting.taboo).upper()])))


def test_like_finds_every_planted_passage_from_its_copy(index: PassageIndex, planting: Garden) -> None:
    texts = planting.texts
    has_texts = index.snapshot().parameters.has_texts
    for planted in planting.planted:
        first, *others = planted.places
        hits = {
            hit.doc_id: hit
            for hit in index.like(texts[first.doc_id], top=100, taboo=[" ".join(planting.taboo)])
        }
        assert hits[first.doc_id].score > 0.5
        for other in others:
            hit = hits[other.doc_id]
            assert 0 < hit.score < 1
            if not has_texts:
                continue
            (passage,) = (
                passage
                for passage in hit.passages
                if passage.asked and passage.asked.token_start == first.token_start
            )
            assert passage.asked
            assert passage.asked.token_end == first.token_end
            assert (passage.asked.char_start, passage.asked.char_end) == (first.char_start, first.char_end)
            assert spans(passage.places) == {other}
            assert assert_is_right(passage, texts) == planted.words


def test_like_of_a_text_that_shares_nothing_finds_nothing(index: PassageIndex) -> None:
    assert index.like(" ".join(f"new{number}" for number in range(200))) == []


def test_what_was_planted_is_gone_with_its_document_and_the_rest_stays(
    planting: Garden, tmp_path: Path
) -> None:
    planted = next(planted for planted in planting.planted if len(planted.places) == 2)
    with PassageIndex(tmp_path / "index") as index:
        index.add_all(planting.documents)
        before = by_places(list(index.extract()))
        assert frozenset(planted.places) in before
        gone = planted.places[0].doc_id
        assert index.delete(gone)
        assert not index.delete(gone)
        deleted = by_places(list(index.extract()))
        assert frozenset(planted.places) not in deleted
        assert all(span.doc_id != gone for places in deleted for span in places)  # type: ignore[attr-defined]
        for places, passage in before.items():
            if gone not in {place.doc_id for place in passage.places}:
                assert deleted[places] == passage
        index.compact()
        assert by_places(list(index.extract())) == deleted
        assert index.check(full=True).problems == ()


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_index_is_the_same_however_it_was_added(planting: Garden, tmp_path: Path, jobs: int) -> None:
    with PassageIndex(tmp_path / "one") as one, PassageIndex(tmp_path / "other") as other:
        one.add_all(planting.documents, jobs=jobs)
        for number, (doc_id, text, host) in enumerate(planting.documents):
            other.add(doc_id, text, host)
            if number % 7 == 0:
                other.flush()
        assert list(one.extract()) == list(other.extract())
        text = planting.pages[0].text
        assert one.like(text) == other.like(text)


# The command line


@pytest.fixture(scope="module")
def place(planting: Garden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index that the command line has made from JSON lines."""
    folder = tmp_path_factory.mktemp("lines")
    with (folder / "pages.jsonl").open("w") as stream:
        for page in planting.pages:
            stream.write(json.dumps({"url": page.doc_id, "text": page.text}) + "\n")
    done(folder, "passages", "index", "pages.jsonl", "--root", "index")
    (folder / "licence").write_text(" ".join(planting.taboo))
    return folder


def test_the_command_line_extracts_every_planted_passage(place: Path, planting: Garden) -> None:
    called = done(place, "passages", "extract", "--root", "index", "--format", "jsonl", "--taboo", "licence")
    found = {
        frozenset(tuple(place_.values()) for place_ in passage["places"]): passage
        for passage in map(json.loads, called.out.splitlines())
    }
    for planted in planting.planted:
        places = frozenset(
            (span.doc_id, span.token_start, span.token_end, span.char_start, span.char_end)
            for span in planted.places
        )
        assert places in found, planted
        assert words_of(found[places]["text"]) == [word.casefold() for word in planted.words]


def test_the_command_line_gives_each_place_a_line_of_csv(place: Path, planting: Garden) -> None:
    called = done(place, "passages", "extract", "--root", "index", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(called.out)))
    names = [row["doc_id"] for row in rows]
    assert set(names) >= {span.doc_id for planted in planting.planted for span in planted.places}
    assert set(names) <= set(planting.texts)


def test_the_command_line_finds_what_a_file_shares_with_the_index(place: Path, planting: Garden) -> None:
    planted = next(planted for planted in planting.planted if len(planted.words) == 50)
    (place / "asked.txt").write_text("Before it. " + "; ".join(planted.words).title() + ". Behind it.")
    called = done(place, "passages", "like", "asked.txt", "--root", "index", "--json")
    names = {span.doc_id for span in planted.places}
    assert names <= set(_doc_ids(called.json))


def _doc_ids(value: object) -> list[str]:
    """Every ``doc_id`` in a JSON value."""
    if isinstance(value, dict):
        own = [value["doc_id"]] if "doc_id" in value else []
        return own + [name for part in value.values() for name in _doc_ids(part)]
    return [name for part in value for name in _doc_ids(part)] if isinstance(value, list) else []


def test_a_question_about_no_index_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("some words")
    called = call(tmp_path, "passages", "like", "asked.txt", "--root", "nothing")
    assert called.code == 3
    assert called.sentences.count("\n") == 1
    assert "nothing" in called.err
