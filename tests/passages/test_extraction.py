"""What `extract` gives is what plain Python finds by trying everything."""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import SettingError, StoreUnavailable
from scrapy_dedupe.passages import repeats
from scrapy_dedupe.passages.blots import blotter_of, keys
from scrapy_dedupe.passages.index import PassageIndex
from scrapy_dedupe.passages.tokens import tokeniser_named
from scrapy_dedupe.passages.work_files import Items, WrittenTexts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.passages.blots import Blotter
    from scrapy_dedupe.passages.values import Passage

Found = set[tuple[tuple[str, ...], tuple[tuple[str, int], ...]]]

LEAST = 3
LINE = "one line of ten words that comes again and again "
BLOTTER = {"name": "rolling/1", "k": 2, "window": 2}


def all_repeats(texts: dict[str, list[str]], least: int, min_docs: int = 2) -> Found:
    """All maximal repeats, by their definition."""
    found: Found = set()
    longest = max(map(len, texts.values()), default=0)
    for length in range(least, longest + 1):
        occurrences = defaultdict(list)
        for name, words in texts.items():
            for start in range(len(words) - length + 1):
                occurrences[tuple(words[start : start + length])].append((name, start))
        for run, at in occurrences.items():
            places = apart(at, length)
            if len({name for name, _ in places}) < min_docs:
                continue
            befores = [texts[name][start - 1] if start else object() for name, start in places]
            behinds = [
                texts[name][start + length] if start + length < len(texts[name]) else object()
                for name, start in places
            ]
            if len(set(befores)) > 1 and len(set(behinds)) > 1:
                found.add((run, tuple(places)))
    return found


def apart(at: list[tuple[str, int]], length: int) -> list[tuple[str, int]]:
    """Those that do not overlap the one before."""
    return [
        (name, start)
        for number, (name, start) in enumerate(at)
        if not number or at[number - 1][0] != name or start - at[number - 1][1] >= length
    ]


def all_runs_of_blots(
    texts: dict[str, list[str]], blotter: Blotter
) -> set[tuple[int, tuple[tuple[str, int], ...]]]:
    """As `all_repeats`, of the blots that are kept and the steps between them: how many tokens, and where."""
    kept: dict[str, list[tuple[int, int]]] = {}
    for name, words in texts.items():
        hashes = tokeniser_named("words").tokens(" ".join(words)).hashes
        blots = blotter.blots(hashes, np.array([0, len(hashes)]))
        kept[name] = list(zip(keys(blots.values, blotter).tolist(), blots.starts.tolist(), strict=True))
    found = set()
    for length in range(1, max(map(len, kept.values())) + 1):
        occurrences = defaultdict(list)
        for name, blots_there in kept.items():
            for at in range(len(blots_there) - length + 1):
                part = blots_there[at : at + length]
                occurrences[tuple((key, start - part[0][1]) for key, start in part)].append((name, at))
        for run, all_places in occurrences.items():
            places = apart(all_places, length)
            if len({name for name, _ in places}) < 2:
                continue
            befores: set[object] = set()
            behinds: set[object] = set()
            for name, at in places:
                there, end = kept[name], at + length
                before, part, behind = there[:at], there[at:end], there[end:]
                befores.add((before[-1][0], part[0][1] - before[-1][1]) if before else object())
                behinds.add((behind[0][0], behind[0][1] - part[-1][1]) if behind else object())
            if len(befores) > 1 and len(behinds) > 1:
                found.add(
                    (run[-1][1] + blotter.span, tuple((name, kept[name][at][1]) for name, at in places))
                )
    return found


def made(path: Path, texts: dict[str, list[str]], **options: object) -> PassageIndex:
    index = PassageIndex(path, blotter=BLOTTER, **options)  # type: ignore[arg-type]
    index.add_all((name, " ".join(words)) for name, words in texts.items())
    return index


def as_found(passages: Iterator[Passage], texts: dict[str, list[str]]) -> Found:
    found: Found = set()
    for passage in passages:
        places = tuple((place.doc_id, place.token_start) for place in passage.places)
        for place in passage.places:
            assert place.token_end - place.token_start == passage.tokens
            written = " ".join(texts[place.doc_id])[place.char_start : place.char_end]
            assert written.split() == texts[place.doc_id][place.token_start : place.token_end]
        assert passage.text is not None
        item = (tuple(passage.text.split()), places)
        assert item not in found
        found.add(item)
    return found


few_words = st.lists(st.sampled_from("abc"), max_size=14)
periodic = st.builds(
    lambda head, part, times, tail: head + part * times + tail,
    few_words,
    st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
    st.integers(1, 12),
    few_words,
)


@settings(max_examples=examples(80), deadline=None)
@given(
    parts=st.lists(few_words | periodic, min_size=1, max_size=5),
    has_copy=st.booleans(),
)
def test_extract_gives_all_maximal_repeats(
    parts: list[list[str]], has_copy: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The last one has the text of the first.
    texts = {f"d{number}": words for number, words in enumerate([*parts, parts[0]][: len(parts) + has_copy])}
    with made(tmp_path_factory.mktemp("index"), texts) as index:
        assert as_found(index.extract(nested=True), texts) == all_repeats(texts, LEAST)


@settings(max_examples=examples(25), deadline=None)
@given(
    parts=st.lists(few_words, min_size=3, max_size=6),
    min_docs=st.integers(2, 4),
    min_tokens=st.integers(3, 6),
)
def test_limits_are_kept(
    parts: list[list[str]], min_docs: int, min_tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = {f"d{number}": words for number, words in enumerate(parts)}
    with made(tmp_path_factory.mktemp("index"), texts) as index:
        found = as_found(index.extract(nested=True, min_docs=min_docs, min_tokens=min_tokens), texts)
        assert found == all_repeats(texts, min_tokens, min_docs)
        most = as_found(index.extract(nested=True, max_docs=min_docs, min_tokens=min_tokens), texts)
        assert most == {
            item for item in all_repeats(texts, min_tokens) if len({name for name, _ in item[1]}) <= min_docs
        }


def words(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PassageIndex]:
    with PassageIndex(tmp_path / "index") as made:
        yield made


@pytest.mark.parametrize("count", [15, 25, 50])
def test_a_passage_is_found_whole_however_it_is_written(index: PassageIndex, count: int) -> None:
    passage = words("p", count)
    index.add("one", " ".join([*words("a", 40), *passage, *words("b", 40)]))
    index.add("two", "; ".join([*words("c", 9), *passage, *words("d", 3)]).upper())
    (found,) = index.extract()
    assert found.text == " ".join(passage)
    assert [(place.doc_id, place.token_start, place.token_end) for place in found.places] == [
        ("one", 40, 40 + count),
        ("two", 9, 9 + count),
    ]
    assert (found.documents, found.score) == (2, count)


def test_a_run_whose_parts_stand_elsewhere_is_one_passage(index: PassageIndex) -> None:
    run = words("p", 50)
    for name, part in {"one": run, "two": run, "first": run[:30], "last": run[20:]}.items():
        index.add(name, " ".join([*words(f"{name}x", 20), *part, *words(f"{name}y", 20)]))
    found = {(passage.tokens, tuple(place.doc_id for place in passage.places)) for passage in index.extract()}
    assert found == {(50, ("one", "two")), (30, ("one", "two", "first")), (30, ("one", "two", "last"))}


def test_a_text_with_two_names_is_a_passage_unless_copies_are_skipped(index: PassageIndex) -> None:
    for name in ("one", "two", "other"):
        index.add(name, " ".join(words("p" if name != "other" else "q", 20)))
    (found,) = index.extract()
    assert [(place.doc_id, place.token_start, place.token_end) for place in found.places] == [
        ("one", 0, 20),
        ("two", 0, 20),
    ]
    assert not list(index.extract(skip_copies=True))


def test_what_better_passages_cover_is_left_out_unless_nested(index: PassageIndex) -> None:
    run = words("p", 40)
    for number in range(4):
        # In two of them the passage goes on by a few words.
        more = words("more", 3) if number < 2 else []
        index.add(f"d{number}", " ".join([*words(f"x{number}", 5), *run, *more, *words(f"y{number}", 5)]))
    assert [passage.tokens for passage in index.extract()] == [40]
    assert [passage.tokens for passage in index.extract(nested=True)] == [40, 43]


@pytest.mark.parametrize("more", [3, 99, 100])
@pytest.mark.parametrize("is_behind", [True, False])
def test_what_one_better_passage_covers_is_left_out_even_if_a_still_better_one_stands_in_its_middle(
    index: PassageIndex, more: int, is_behind: bool
) -> None:
    middle = words("m", 90)
    run = [*words("p", 60), *middle, *words("q", 50)]
    added = words("more", more)
    longer = [*run, *added] if is_behind else [*added, *run]
    pages = {"a": longer, "b": longer, "c": run, "d": run, **{f"m{number}": middle for number in range(8)}}
    for name, part in pages.items():
        index.add(name, " ".join([*words(f"{name}x", 9), *part, *words(f"{name}y", 9)]))
    found = [(passage.tokens, passage.documents) for passage in index.extract()]
    # Of 299 tokens 200 are more than two thirds, of 300 they are not.
    assert found == [(90, 12), (200, 4), *([(300, 2)] if more == 100 else [])]
    assert (200 + more, 2) in {(passage.tokens, passage.documents) for passage in index.extract(nested=True)}


@pytest.mark.parametrize(("wholes", "expected"), [(4, [20, 20, 40]), (12, [20, 20])])
def test_a_menu_in_many_places_is_told_by_its_parts(
    index: PassageIndex, wholes: int, expected: list[int]
) -> None:
    menu = words("p", 40)
    for kind, part, count in (("whole", menu, wholes), ("first", menu[:20], 60), ("last", menu[20:], 60)):
        for number in range(count):
            page = f"{kind}{number}"
            index.add(page, " ".join([*words(f"{page}x", 5), *part, *words(f"{page}y", 5)]))
    assert [passage.tokens for passage in index.extract()] == expected
    assert [passage.tokens for passage in index.extract(nested=True)] == [20, 20, 40]


def test_a_passage_in_many_places_of_which_few_are_new_is_left_out(index: PassageIndex) -> None:
    run = words("p", 40)
    for number in range(32):
        part = run if number < 30 else run[:30]
        index.add(f"d{number}", " ".join([*words(f"x{number}", 5), *part, *words(f"y{number}", 5)]))
    assert [(passage.tokens, passage.documents) for passage in index.extract()] == [(40, 30)]
    assert {passage.tokens for passage in index.extract(nested=True)} == {40, 30}


@pytest.mark.parametrize(("others", "is_told"), [(2, False), (8, True)])
def test_one_place_in_ten_has_to_be_new_where_there_are_many(
    index: PassageIndex, others: int, is_told: bool
) -> None:
    # More places than are looked at; those that better passages leave open are spread over them.
    run = words("p", 40)
    for number in range(200):
        part = run if number % 40 >= others else run[:20]
        index.add(f"d{number:03}", " ".join([*words(f"x{number}y", 5), *part, *words(f"z{number}y", 5)]))
    assert (20 in {passage.tokens for passage in index.extract()}) is is_told
    assert 20 in {passage.tokens for passage in index.extract(nested=True)}


@settings(max_examples=examples(80), deadline=None)
@given(
    parts=st.lists(few_words | periodic, min_size=2, max_size=4),
    blotter=st.sampled_from(
        [{"name": "rolling/1", "k": k, "window": window} for k, window in ((2, 2), (3, 1), (2, 3))]
    ),
)
def test_without_texts_extract_gives_all_maximal_runs_of_blots(
    parts: list[list[str]], blotter: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = {f"d{number}": words for number, words in enumerate(parts)}
    with PassageIndex(tmp_path_factory.mktemp("index"), blotter=blotter, store_text=False) as index:
        index.add_all((name, " ".join(words)) for name, words in texts.items())
        found = [
            (passage.tokens, tuple((place.doc_id, place.token_start) for place in passage.places))
            for passage in index.extract(nested=True)
        ]
    assert len(found) == len(set(found))
    assert set(found) == all_runs_of_blots(texts, blotter_of(blotter))


def test_no_passage_goes_through_taboo_text(index: PassageIndex) -> None:
    notice = words("notice", 20)
    for name in ("one", "two"):
        index.add(
            name,
            " ".join([*words(name, 3), *words("p", 30), *notice, *words("q", 30), *words(f"{name}z", 3)]),
        )
    assert [passage.tokens for passage in index.extract()] == [80]
    assert [passage.text for passage in index.extract(taboo=[" ".join(notice)])] == [
        " ".join(words("p", 30)),
        " ".join(words("q", 30)),
    ]


def test_boilerplate_of_a_host_is_no_passage(index: PassageIndex) -> None:
    menu, story = words("menu", 30), words("story", 30)
    for number in range(12):
        page = [*menu, *words(f"p{number}x", 10), *(story if number < 2 else []), *words(f"q{number}x", 5)]
        index.add(f"https://example.com/{number}", " ".join(page))
    assert [passage.text for passage in index.extract()] == [" ".join(story)]
    kept = [passage.text for passage in index.extract(boilerplate_share=None)]
    assert kept == [" ".join(menu), " ".join(story)]


def test_sigma_leaves_out_what_is_not_frequent(index: PassageIndex) -> None:
    for number in range(20):
        rare = words(f"rare{number // 2}x", 30)
        index.add(f"d{number}", " ".join([*words("often", 20), *words(f"own{number}x", 30), *rare]))
    assert len(list(index.extract())) == 11
    assert [passage.documents for passage in index.extract(sigma=2)] == [20]


def test_without_texts_a_single_blot_is_a_passage(tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "index", store_text=False) as index:
        for name in ("one", "two"):
            index.add(name, " ".join("abcdefghijklmno"))
        (passage,) = index.extract()
    assert passage.tokens == 8
    assert [place.doc_id for place in passage.places] == ["one", "two"]


def test_without_texts_passages_are_told_by_position(tmp_path: Path) -> None:
    run = words("p", 60)
    with PassageIndex(tmp_path / "index", store_text=False) as index:
        index.add("one", " ".join([*words("a", 40), *run, *words("b", 40)]))
        index.add("two", " ".join([*words("c", 9), *run, *words("d", 3)]))
        (found,) = index.extract()
    assert found.text is None
    one, two = found.places
    assert 60 - 2 * 7 <= found.tokens <= 60
    assert 40 <= one.token_start < one.token_end <= 100
    assert (one.token_start - two.token_start, one.token_end - two.token_end) == (31, 31)
    text = " ".join([*words("a", 40), *run, *words("b", 40)])
    assert text[one.char_start : one.char_end].split() == text.split()[one.token_start : one.token_end]


@pytest.mark.parametrize(
    "texts",
    [
        ["a " * 60_000, "b " + "a " * 50_000],
        [LINE * 6_000 + "end", "start " + LINE * 5_000 + LINE[:20]],
        [f"x{number} " * 20 + "a b " * (number + 20) + f"y{number} " * 20 for number in range(400)],
        [" ".join(words("page", 2_000)) + f" {number}" for number in range(300)],
        [" ".join(words("page", number)) + " end" for number in range(20, 400)],
        ["a " * number for number in range(20, 400)],
        [
            "".join(
                ("a b c " if number % part % 2 else "a b ") * (5 + number * part % 41)
                for part in range(1, 60)
            )
            for number in range(1, 9)
        ],
    ],
    ids=["one word", "one line", "many lengths", "copies", "beginnings", "pages of one word", "two periods"],
)
def test_repetition_costs_no_more_than_its_length(
    index: PassageIndex, texts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared = 0
    split = repeats.Repeats._split

    def counted(self: repeats.Repeats, members: Any) -> Any:
        nonlocal compared
        compared += len(members)
        return split(self, members)

    monkeypatch.setattr(repeats.Repeats, "_split", counted)
    for number, text in enumerate(texts):
        index.add(f"d{number}", text)
    tokens = sum(len(text.split()) for text in texts)
    work = tmp_path / "work"
    work.mkdir()
    passages = index.extract(nested=True, work=work)
    assert next(passages).documents >= 2
    # Members of classes that were compared, and bytes of all files.
    assert compared <= 20 * tokens
    assert sum(file.stat().st_size for file in work.rglob("*") if file.is_file()) <= 200 * tokens
    passages.close()  # type: ignore[attr-defined]


def near_copies(count: int, size: int) -> list[str]:
    """A page with another word changed in each."""
    page = words("page", size)
    return [
        " ".join([*page[: number * 7 % size], f"own{number}", *page[number * 7 % size + 1 :]])
        for number in range(count)
    ]


def test_near_copies_are_told_by_few_passages(index: PassageIndex) -> None:
    for number, text in enumerate(near_copies(300, 200)):
        index.add(f"d{number}", text)
    planted = words("planted", 15)
    for name in ("one", "two"):
        index.add(name, " ".join([*words(name, 5), *planted, *words(f"{name}y", 5)]))
    found = list(index.extract())
    # The longer it is, the fewer copies have it: half of the page in half of them saves most.
    assert 95 <= found[0].tokens <= 105
    assert found[0].documents >= 145
    assert len(found) < 80
    assert sum(passage.text == " ".join(planted) for passage in found) == 1


def collision() -> tuple[str, str]:
    """Two words whose hashes have the same low 32 bits."""
    many = [f"w{number:07}" for number in range(300_000)]
    hashes = tokeniser_named("words").tokens(" ".join(many)).hashes & np.uint64(0xFFFFFFFF)
    order = np.argsort(hashes)
    same = int(np.flatnonzero(hashes[order][1:] == hashes[order][:-1])[0])
    return many[order[same]], many[order[same + 1]]


def test_words_that_only_seem_to_be_the_same_end_a_passage(index: PassageIndex) -> None:
    one, other = collision()
    run = " ".join(words("p", 30))
    index.add("one", f"start {run} {one} end")
    index.add("two", f"begin {run} {other} stop")
    assert [(passage.text, passage.documents) for passage in index.extract()] == [(run, 2)]
    # The first place is the odd one.
    index.add("three", f"head {run} {other} tail")
    assert {(passage.text, passage.documents) for passage in index.extract()} == {
        (run, 3),
        (f"{run} {other}", 2),
    }


def test_a_passage_is_written_as_in_its_first_place(index: PassageIndex) -> None:
    run = " ".join(words("p", 20))
    index.add("early", f"{run.upper()} tail")
    index.add("middle", f"head {run}")
    index.flush()
    index.delete("early")
    # The text is the first that is stored, its document the last.
    index.add("late", f"{run.upper()} tail")
    (found,) = index.extract()
    assert [place.doc_id for place in found.places] == ["middle", "late"]
    assert found.text == run


def test_boilerplate_of_other_texts_leaves_a_passage_whole_without_texts(tmp_path: Path) -> None:
    passage, menu = words("p", 200), words("menu", 300)
    with PassageIndex(tmp_path / "index", store_text=False) as index:
        index.add("http://a.org/", " ".join([*passage, *words("a", 5)]))
        index.add("http://b.org/", " ".join([*words("b", 5), *passage]))
        for name in "cd":
            index.add(f"http://{name}.org/", " ".join([*words(name, 50), *menu]))
        for number in range(20):
            index.add(f"http://site.org/{number}", " ".join([*menu, *words(f"own{number}x", 50)]))
        # Where a blot at an end is kept in one text alone, a piece of a few tokens is left over.
        sizes = [found.tokens for found in index.extract(top=2)]
    assert 300 - 14 <= sizes[0] <= 300
    assert 200 - 14 <= sizes[1] <= 200


def test_sigma_is_over_all_blots(index: PassageIndex) -> None:
    menu = words("menu", 40)
    for number in range(30):
        index.add(f"http://site.org/{number}", " ".join([*menu, *words(f"own{number}x", 20)]))
    for name in "abc":
        index.add(name, " ".join([*words(name, 5), *words("p", 30), *words(f"{name}y", 5)]))
    assert [found.documents for found in index.extract()] == [3]
    figures = index.inspect()
    sigma = (3.6 - figures.documents_a_key_mean) / figures.documents_a_key_sigma
    assert not list(index.extract(sigma=sigma))
    sigma = (3.4 - figures.documents_a_key_mean) / figures.documents_a_key_sigma
    assert [found.documents for found in index.extract(sigma=sigma)] == [3]


def test_a_full_disk_is_told_apart_from_an_index_that_cannot_be_read(
    index: PassageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        index.add(name, " ".join([name, *words("p", 30)]))
    work = tmp_path / "work"
    work.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def gone(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("scrapy_dedupe.passages.work_files.WrittenTexts.add", full)
    with pytest.raises(StoreUnavailable, match=r"cannot be written to .*work: No space left"):
        list(index.extract(work=work))
    assert not list(work.iterdir())
    monkeypatch.setattr("scrapy_dedupe.passages.snapshot.IndexSnapshot.text", gone)
    with pytest.raises(StoreUnavailable, match=r"The index .*index can no longer be read"):
        list(index.extract(work=work))
    assert not list(work.iterdir())


def test_no_file_is_left_open_when_the_disk_is_full(
    index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        index.add(name, " ".join([name, *words("p", 30)]))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = []

    class Noted(Items):
        def between(self, start: int, end: int) -> NDArray:
            items = super().between(start, end)
            opened.append(self)
            assert self._fd >= 0
            return items

    monkeypatch.setattr("scrapy_dedupe.passages.sequences.Items", Noted)
    monkeypatch.setattr("scrapy_dedupe.passages.sequences.PrefixSums", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        list(index.extract())
    assert {items._fd for items in opened} == {-1}


def test_the_work_folder_is_removed_whatever_happens(index: PassageIndex, tmp_path: Path) -> None:
    for name in ("one", "two"):
        index.add(name, " ".join([name, *words("p", 30), *words("q", 30)]))
    work = tmp_path / "work"
    work.mkdir()
    passages = index.extract(work=work)
    next(passages)
    assert len(list(work.iterdir())) == 1
    passages.close()  # type: ignore[attr-defined]
    assert not list(work.iterdir())


def test_a_work_folder_that_is_not_there_is_named(index: PassageIndex, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        list(index.extract(work=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "options",
    [
        {"min_docs": 1},
        {"min_docs": 3, "max_docs": 2},
        {"min_tokens": 0},
        {"top": -1},
        {"sigma": float("nan")},
    ],
)
def test_numbers_without_sense_are_refused(index: PassageIndex, options: dict[str, float]) -> None:
    index.add("one", " ".join(words("p", 20)))
    with pytest.raises(SettingError):
        index.extract(**options)


@given(
    texts=st.lists(st.text(max_size=8) | st.text("aé", max_size=8) | st.text("aあ", max_size=8), min_size=1)
)
def test_parts_of_written_texts_are_read_back(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = WrittenTexts(tmp_path_factory.mktemp("work") / "texts")
    written.add(texts)
    written.finish()
    for number, text in enumerate(texts):
        for start in range(len(text) + 1):
            assert written.slice(number, start, len(text)) == text[start:]
    written.close()
