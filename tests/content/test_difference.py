from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.content.difference import lines_of, unified_diff

MENU = " ".join(f"item{number}" for number in range(400))


def words(text: str) -> list[str]:
    return text.split()


@given(st.text(st.characters(codec="utf-8")))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    assert "".join(words("".join(lines_of(text)))) == "".join(words(text))


@given(st.text("ab.! 。\n", max_size=500))
def test_no_line_is_longer_than_eighty_characters(text: str) -> None:
    assert all(0 < len(line) <= 80 for line in lines_of(text))


def test_a_text_is_broken_after_its_sentences() -> None:
    assert lines_of('He said: "No." Why? Version 2.19 is out. 好。是的。') == [
        'He said: "No."',
        "Why?",
        "Version 2.19 is out.",
        "好。",
        "是的。",
    ]


def test_a_word_more_in_a_text_without_sentences_moves_few_breaks() -> None:
    changed = MENU.replace("item200", "item200 more")
    diff = unified_diff(MENU, changed, "old", "new")
    moved = [line for line in diff[2:] if line[0] in "+-"]
    assert 2 <= len(moved) <= 12
    assert any("more" in line for line in moved)


def test_a_diff_names_both_texts_and_shows_what_changed() -> None:
    assert unified_diff("One. Two. Three. Four. Five.", "One. Two. 3. Four. Five.", "old", "new") == [
        "--- old",
        "+++ new",
        "@@ -2,3 +2,3 @@",
        " Two.",
        "-Three.",
        "+3.",
        " Four.",
    ]


def test_equal_texts_have_no_diff() -> None:
    assert unified_diff(MENU, MENU, "old", "new") == []
