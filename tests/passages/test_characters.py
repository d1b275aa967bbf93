"""What every character is to a tokeniser: the tables against Python's own Unicode data, code point by code point."""

from __future__ import annotations

import unicodedata

import numpy as np

from scrapy_dedupe.passages import characters
from scrapy_dedupe.passages.characters import BREAK, IGNORED, INVISIBLE, SINGLE, WORD

EVERYTHING = [chr(point) for point in range(0x110000)]


def test_letters_marks_and_numbers_of_every_plane_are_of_words() -> None:
    expected = np.array([WORD if unicodedata.category(char)[0] in "LMN" else BREAK for char in EVERYTHING])
    expected[list(INVISIBLE)] = IGNORED
    assert np.array_equal(characters.words(), expected)


def test_every_code_point_is_folded_to_one() -> None:
    folded = characters.folded()
    for point, char in enumerate(EVERYTHING):
        fold = char.casefold() if len(char.casefold()) == 1 else char.lower()[0]
        assert folded[point] == (0xFFFD if 0xD800 <= point < 0xE000 else ord(fold))


def test_folding_twice_is_folding_once() -> None:
    folded = characters.folded()
    assert np.array_equal(folded[folded], folded)


def test_all_but_white_space_is_a_token_of_source_code() -> None:
    kinds = characters.code()
    words = characters.words()
    for point, char in enumerate(EVERYTHING):
        if point in INVISIBLE:
            expected = IGNORED
        elif char == "_" or words[point] == WORD:
            expected = WORD
        else:
            expected = BREAK if char.isspace() else SINGLE
        assert kinds[point] == expected, hex(point)


def test_scripts_without_spaces_are_cut_into_characters_and_no_others() -> None:
    kinds = characters.unspaced()
    for char in "漢字かなカナｶﾅไทยລາວខ្មမြန်မာㄅㆠꀀ々〇𠀀𰀀":
        assert kinds[ord(char)] == SINGLE, char
    for char in "aZéß한글ㅎབོ9١अकЖא":
        assert kinds[ord(char)] == WORD, char
    for char in "。、・「」\u3000\n":
        assert kinds[ord(char)] == BREAK, char


def test_the_values_of_characters_are_those_of_what_they_are_folded_to() -> None:
    values = characters.values(True)
    folded = characters.folded()
    is_word = characters.words() == WORD
    assert np.array_equal(values[is_word], values[folded[is_word]])
    assert len(np.unique(values[is_word])) == len(np.unique(folded[is_word]))
    # Written into every index: they never change.
    assert [hex(value) for value in values[[ord("a"), ord("A"), ord("é"), 0x20000]].tolist()] == [
        "0x4f5da978776a9db1",
        "0x4f5da978776a9db1",
        "0x2eb67620ec65912f",
        "0x77693ecbdae5868c",
    ]


def test_with_their_case_all_characters_have_a_value_of_their_own() -> None:
    values = characters.values(False)
    assert len(np.unique(values)) == 0x110000 - 0x800  # surrogates are U+FFFD
    assert values[0xD800] == values[0xFFFD]


def test_tables_cannot_be_changed() -> None:
    for table in (characters.words(), characters.folded(), characters.values(True), characters.code()):
        assert not table.flags.writeable
