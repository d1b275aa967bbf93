"""Texts with planted passages, and the truth about where each of them stands.

The pages are put together word by word here, so that the offsets are known without any tokeniser of the package. Words
follow Zipf's law, as those of a language do. What is planted stands between words that occur nowhere else, so a passage
ends exactly where it was planted to end; a copy is upper-cased and punctuated anew.

`tokens_of` is a tokeniser in plain Python, slow and without any table, to compare what is reported with.
"""

from __future__ import annotations

import random
import unicodedata
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_dedupe.passages.values import Passage, Place

CALM = (" ",)
VARIED = (" ", ", ", ". ", " - ", "; ", "\n", " (", ") ", " “", "” ", "…\n\n")
_IGNORABLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_UNSPACED = (("\u3400", "\u9fff"), ("\u3040", "\u30ff"), ("\u0e00", "\u0eff"))
"""Han, kana, Thai and Lao: the part of the scripts without spaces that the tests use."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where words were written."""

    doc_id: str
    token_start: int
    token_end: int
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True)
class Planted:
    """Words that stand in several pages, and where."""

    words: tuple[str, ...]
    places: tuple[Span, ...]


class Page:
    """A document that is being written."""

    def __init__(self, doc_id: str, host: str = "") -> None:
        self.doc_id = doc_id
        self.host = host
        self._written: list[str] = []
        self._tokens = 0
        self._chars = 0

    @property
    def text(self) -> str:
        return "".join(self._written)

    def write(self, words: Sequence[str], rng: random.Random, separators: Sequence[str] = CALM) -> Span:
        """Write words, each with a separator behind it."""
        token_start, char_start, char_end = self._tokens, self._chars, self._chars
        for word in words:
            separator = rng.choice(separators)
            self._written += word, separator
            char_end = self._chars + len(word)
            self._chars = char_end + len(separator)
        self._tokens += len(words)
        return Span(self.doc_id, token_start, self._tokens, char_start, char_end)


class Language:
    """Draws words by Zipf's law, and words that occur once."""

    def __init__(self, rng: random.Random, size: int = 5_000) -> None:
        self.rng = rng
        letters = "abcdefghijklmnoprstuvwz"
        made = {"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(size)}
        self.words = sorted(made)
        rng.shuffle(self.words)
        self._weights = list(accumulate(1 / rank for rank in range(1, len(self.words) + 1)))
        self._once = 0

    def draw(self, count: int) -> list[str]:
        return self.rng.choices(self.words, cum_weights=self._weights, k=count)

    def once(self) -> str:
        self._once += 1
        return f"once{self._once}"


@dataclass
class Garden:
    """Documents in the order in which they are to be added, and what was planted in them."""

    pages: list[Page] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    boilerplate: dict[str, tuple[str, ...]] = field(default_factory=dict)
    taboo: tuple[str, ...] = ()
    """Words of a licence that stands in some pages."""
    copies: tuple[str, ...] = ()
    """Names of documents that have one and the same text."""

    @property
    def documents(self) -> list[tuple[str, str, str]]:
        """Id, text and host of each."""
        return [(page.doc_id, page.text, page.host) for page in self.pages]

    @property
    def texts(self) -> dict[str, str]:
        return {page.doc_id: page.text for page in self.pages}


def garden(
    *, seed: int = 1, pages: int = 72, each: int = 4, lengths: Sequence[int] = (15, 25, 50), filler: int = 120
) -> Garden:
    """Pages of three hosts, with *each* passages of each of the *lengths*, in two or three pages each.

    A host's pages begin and end with its navigation and its footer; two pages of different hosts have a licence; one
    text has three names.
    """
    rng = random.Random(seed)
    language = Language(rng)
    hosts = [f"{name}.example" for name in ("alder", "birch", "clover")]
    made = Garden(taboo=tuple(language.draw(60)))
    made.pages = [
        Page(f"https://{hosts[number % 3]}/page/{number} of {pages}", hosts[number % 3])
        for number in range(pages)
    ]
    made.boilerplate = {host: tuple(language.draw(40)) for host in hosts}

    to_plant: dict[int, list[tuple[int, list[str]]]] = {}
    places: dict[int, list[Span]] = {}
    passages: list[tuple[str, ...]] = []
    for length in lengths:
        for _ in range(each):
            number = len(passages)
            passages.append(tuple(language.draw(length)))
            for turn, page in enumerate(sorted(rng.sample(range(pages), rng.choice((2, 2, 3))))):
                words = [word.upper() for word in passages[-1]] if turn else list(passages[-1])
                to_plant.setdefault(page, []).append((number, words))
    licensed = set(rng.sample(range(pages), 2))

    for number, page in enumerate(made.pages):
        frame = made.boilerplate[page.host]
        page.write([*frame[:25], language.once()], rng, (" | ",))
        for planted, words in to_plant.get(number, ()):
            page.write([*language.draw(rng.randint(1, filler)), language.once()], rng, VARIED)
            places.setdefault(planted, []).append(
                page.write(words, rng, VARIED if words[0].isupper() else CALM)
            )
            page.write([language.once()], rng)
        if number in licensed:
            page.write([*made.taboo, language.once()], rng)
        page.write([*language.draw(rng.randint(1, filler)), language.once(), *frame[25:]], rng, VARIED)
    made.planted = [Planted(words, tuple(places[number])) for number, words in enumerate(passages)]

    copied = Page("https://alder.example/copied", "alder.example")
    copied.write(language.draw(80), rng, VARIED)
    made.pages.append(copied)
    for name in ("birch", "clover"):
        page = Page(f"https://{name}.example/copied", f"{name}.example")
        page._written = list(copied._written)
        made.pages.append(page)
    made.copies = tuple(page.doc_id for page in made.pages[-3:])
    return made


# Plain tokenisers


def tokens_of(text: str, tokeniser: str = "words") -> list[tuple[str, int, int]]:
    """The tokens of a text as they are compared, with the characters where they begin and end."""
    found: list[tuple[str, int, int]] = []
    is_open = False
    for at, character in enumerate(text):
        kind = _kind(character, tokeniser)
        if kind == "ignored":
            continue
        if kind == "alone":
            found.append((_folded(character, tokeniser), at, at + 1))
        elif kind == "inside":
            if is_open:
                word, start, _ = found.pop()
                found.append((word + _folded(character, tokeniser), start, at + 1))
            else:
                found.append((_folded(character, tokeniser), at, at + 1))
        is_open = kind == "inside"
    return found


def words_of(text: str, tokeniser: str = "words") -> list[str]:
    return [word for word, _, _ in tokens_of(text, tokeniser)]


def _kind(character: str, tokeniser: str) -> str:
    if tokeniser == "code":
        if character.isspace():
            return "between"
        is_inside = character == "_" or unicodedata.category(character)[0] in "LMN"
        return "inside" if is_inside else "alone"
    if character in _IGNORABLE:
        return "ignored"
    if unicodedata.category(character)[0] not in "LMN":
        return "between"
    if tokeniser == "cjk" and any(first <= character <= last for first, last in _UNSPACED):
        return "alone"
    return "inside"


def _folded(character: str, tokeniser: str) -> str:
    if tokeniser == "code":
        return character
    folded = character.casefold()
    return folded if len(folded) == 1 else character.lower()[:1]


# Comparisons


def assert_place_is_right(
    place: Place, texts: Mapping[str, str], tokeniser: str = "words"
) -> tuple[str, ...]:
    """That a place's characters are its tokens. Gives their words."""
    tokens = tokens_of(texts[place.doc_id], tokeniser)
    assert 0 <= place.token_start < place.token_end <= len(tokens), place
    first, last = tokens[place.token_start], tokens[place.token_end - 1]
    assert (place.char_start, place.char_end) == (first[1], last[2]), place
    return tuple(word for word, _, _ in tokens[place.token_start : place.token_end])


def assert_is_right(passage: Passage, texts: Mapping[str, str], tokeniser: str = "words") -> tuple[str, ...]:
    """That the same words stand in all places of a passage, each told once. Gives the words."""
    assert passage.places
    found = {assert_place_is_right(place, texts, tokeniser) for place in passage.places}
    assert len(found) == 1, passage
    (words,) = found
    assert len(words) == passage.tokens
    assert len(set(passage.places)) == len(passage.places)
    if passage.text is not None:
        first = passage.places[0]
        assert passage.text == texts[first.doc_id][first.char_start : first.char_end]
    return words


def spans(places: Iterable[Place]) -> set[Span]:
    return {
        Span(place.doc_id, place.token_start, place.token_end, place.char_start, place.char_end)
        for place in places
    }


def is_within(words: Sequence[str], longer: Sequence[str]) -> bool:
    """Whether words stand in a row in others."""
    count = len(words)
    return any(list(longer[at : at + count]) == list(words) for at in range(len(longer) - count + 1))
