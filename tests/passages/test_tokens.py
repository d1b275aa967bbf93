"""Tokens: against a plain Python tokeniser on any text, and the cases that went wrong elsewhere."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.passages import tokens as module
from scrapy_dedupe.passages.characters import INVISIBLE, UNSPACED
from scrapy_dedupe.passages.tokens import LONGEST, TOKENISERS, Tokens, tokeniser_named, tokens_of_all

M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

# Mostly what decides something, and now and then any character at all.
CHARS = st.one_of(
    st.sampled_from(
        "abzABZ09_ \n\t.-+é\u00dfİſǅ\u0301\u00ad\u200b\u200d\u2060\ufeff漢かไ한\u3000。𠀀😀\ud800\U000e0100١Ⅷ"
    ),
    st.characters(),
)
TEXTS = st.text(CHARS, max_size=60)
NAMES = st.sampled_from(sorted(TOKENISERS))


def mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & M64
    return value ^ (value >> 31)


def hash_of(word: str) -> int:
    total = 0
    for place, char in enumerate(word):
        total += mixed((ord(char) + GOLDEN) & M64) * pow(GOLDEN, place, 1 << 64)
    return mixed(total & M64)


def folded(char: str) -> str:
    if unicodedata.category(char) == "Cs":
        return "\ufffd"
    fold = char.casefold()
    return fold if len(fold) == 1 else char.lower()[0]


def kind(name: str, char: str) -> str:
    """What the character is: "w" of a word, "s" a token of its own, "p" passed over, " " between."""
    if ord(char) in INVISIBLE:
        return "p"
    is_word = unicodedata.category(char)[0] in "LMN"
    if name == "code/1":
        return "w" if is_word or char == "_" else " " if char.isspace() else "s"
    if is_word and name == "cjk/1" and any(first <= ord(char) <= last for first, last in UNSPACED):
        return "s"
    return "w" if is_word else " "


def plainly(name: str, text: str) -> list[tuple[str, int, int]]:
    """Tokens as a plain Python program finds them: the word, where it begins and where it ends."""
    kinds = "".join(kind(name, char) for char in text)
    result = []
    for match in re.finditer(r"s|w(?:p*w)*", kinds):
        kept = [place for place in range(match.start(), match.end()) if kinds[place] != "p"]
        for first in range(0, len(kept), LONGEST):
            part = kept[first : first + LONGEST]
            word = "".join(text[place] if name == "code/1" else folded(text[place]) for place in part)
            result.append((re.sub("[\ud800-\udfff]", "\ufffd", word), part[0], part[-1] + 1))
    return result


def listed(tokens: Tokens) -> list[tuple[int, int, int]]:
    return list(zip(tokens.hashes.tolist(), tokens.starts.tolist(), tokens.ends.tolist(), strict=True))


@given(NAMES, TEXTS)
@example("words/1", "The\u00ad re\u200bsult: 3.14\ufeff")
@example("code/1", "a_1 += b[\ud800]\n")
@example("cjk/1", "ABC漢字かなdef")
@example("words/1", "")
def test_tokens_are_those_of_a_plain_python_tokeniser(name: str, text: str) -> None:
    tokeniser = tokeniser_named(name)
    expected = plainly(name, text)
    assert listed(tokeniser.tokens(text)) == [(hash_of(word), start, end) for word, start, end in expected]
    assert tokeniser.words(text) == [word for word, _, _ in expected]


@given(NAMES, st.lists(TEXTS, max_size=8))
def test_texts_together_have_the_tokens_of_each(name: str, texts: list[str]) -> None:
    tokeniser = tokeniser_named(name)
    tokens, bounds = tokens_of_all(texts, tokeniser)
    assert bounds.dtype == np.int64
    assert len(bounds) == len(texts) + 1
    for text, (first, last) in zip(texts, pairwise(bounds.tolist()), strict=True):
        assert listed(tokens)[first:last] == listed(tokeniser.tokens(text))
    joined = tokeniser.tokens("\n".join(texts))
    assert joined.hashes.tolist() == tokens.hashes.tolist()


@given(NAMES, st.lists(TEXTS, max_size=4).map("".join), st.integers(2, 40), st.integers(1, 20))
def test_a_text_that_is_read_in_pieces_has_the_same_tokens(
    name: str, text: str, piece: int, longest: int
) -> None:
    tokeniser = tokeniser_named(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST", longest)
        expected = listed(tokeniser.tokens(text))
        patch.setattr(module, "_PIECE", max(piece, longest + 1))
        assert listed(tokeniser.tokens(text)) == expected
        assert listed(tokens_of_all([text, text], tokeniser)[0]) == expected * 2


def test_the_last_token_of_a_text_is_there() -> None:
    assert tokeniser_named("words").words("the last one") == ["the", "last", "one"]
    assert tokeniser_named("words").tokens("the last one").ends.tolist() == [3, 8, 12]


def test_case_and_punctuation_make_no_difference_but_order_of_letters_does() -> None:
    tokens = tokeniser_named("words").tokens("listen, SILENT! Listen (silent) ΣΊΣΥΦΟΣ σίσυφος")
    first, second, third, fourth, fifth, sixth = tokens.hashes.tolist()
    assert (first, second, fifth) == (third, fourth, sixth)
    assert first != second


def test_hyphenation_that_cannot_be_seen_makes_no_difference() -> None:
    plain = tokeniser_named("words").tokens("hyphenation here")
    soft = tokeniser_named("words").tokens("hy\u00adphen\u00adation\u00ad \u200bhere\ufeff")
    assert soft.hashes.tolist() == plain.hashes.tolist()
    assert (soft.starts.tolist(), soft.ends.tolist()) == ([0, 16], [13, 20])


def test_offsets_are_code_points_beyond_the_first_plane_too() -> None:
    text = "😀 𝔘𝔫𝔦 😀 code"
    tokens = tokeniser_named("words").tokens(text)
    assert [text[start:end] for _, start, end in listed(tokens)] == ["𝔘𝔫𝔦", "code"]


def test_hashes_never_change() -> None:
    # They are in every index that was written.
    words = tokeniser_named("words").tokens("Scrapy 2026 漢字").hashes.tolist()
    assert [f"{value:016x}" for value in words] == [
        "d3d3262d405d6271",
        "fbc17c8da326d700",
        "95639c5878584232",
    ]


@pytest.mark.parametrize("extra", [0, 1, LONGEST, LONGEST + 1])
def test_an_endless_word_is_cut_into_tokens(extra: int) -> None:
    text = "x " + "a" * (3 * LONGEST + extra) + " y"
    tokens = tokeniser_named("words").tokens(text)
    assert (tokens.ends - tokens.starts).tolist() == [
        1, *[LONGEST] * (3 + extra // LONGEST), *([extra % LONGEST] if extra % LONGEST else []), 1,
    ]  # fmt: skip
    assert tokens.hashes[1] == tokens.hashes[2] == hash_of("a" * LONGEST)


def test_a_megabyte_of_what_is_passed_over_does_not_end_a_word() -> None:
    text = "sym" + "\u00ad" * 1_000_000 + "biosis and " + "\u200b" * 300_000 + " more"
    tokens = tokeniser_named("words").tokens(text)
    assert tokens.hashes.tolist() == [hash_of("symbiosis"), hash_of("and"), hash_of("more")]
    assert tokens.starts.tolist() == [0, 1_000_010, 1_300_015]


@pytest.mark.parametrize("name", sorted(TOKENISERS))
def test_a_text_without_tokens_has_none(name: str) -> None:
    for text in ("", " \n\t ", "\ufeff", "\n" * 300_000):
        assert listed(tokeniser_named(name).tokens(text)) == []
    tokens, bounds = tokens_of_all([], tokeniser_named(name))
    assert (listed(tokens), bounds.tolist()) == ([], [0])


def test_an_unknown_tokeniser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"no tokeniser 'wrods'. Choose one of words, cjk, code\."):
        tokeniser_named("wrods")
