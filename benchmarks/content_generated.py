"""The generated sites of ``content_quality.py``, whose versions and different pages are known without a comparison.

All pages are made from a seed. The words are invented, with frequencies as in natural text; each site has a menu, a
sidebar and a footer of its own.
"""

from __future__ import annotations

import html
import random
from typing import TYPE_CHECKING

from content_corpus import Page, Site

from scrapy_dedupe.content import canonical_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PAGES = 120

# Name of the page, version, path and query, title, main text
_Row = tuple[str, int, str, str, str]


class _Writer:
    """Invents words, sentences and texts."""

    def __init__(
        self, seed: str, letters: str = "", space: str = " ", word_length: tuple[int, int] = (1, 4)
    ) -> None:
        self.random = random.Random(seed)
        self._space = space
        if letters:
            syllables = list(letters)
        else:
            syllables = [
                c + v for c in "bcdfghklmnprstvw" for v in ("a", "e", "i", "o", "u", "an", "er", "is")
            ]
        self._words = [
            "".join(self.random.choices(syllables, k=self.random.randint(*word_length))) for _ in range(3_000)
        ]
        self._weights = [1 / (rank + 5) for rank in range(len(self._words))]

    def words(self, count: int) -> list[str]:
        return self.random.choices(self._words, self._weights, k=count)

    def sentence(self, low: int = 6, high: int = 18) -> str:
        return self._space.join(self.words(self.random.randint(low, high))).capitalize() + "."

    def text(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))

    def title(self, count: int = 3) -> str:
        return self._space.join(word.capitalize() for word in self.random.choices(self._words, k=count))

    def edited(self, text: str, share: float = 0.02) -> str:
        """*text* with some sentences replaced, at least one, and one added."""
        sentences = text.split(". ")
        for _ in range(max(1, round(len(sentences) * share))):
            sentences[self.random.randrange(len(sentences))] = self.sentence().rstrip(".")
        return ". ".join([*sentences, self.sentence()])

    def number(self, digits: int) -> str:
        return str(self.random.randint(10 ** (digits - 1), 10**digits - 1))

    def price(self) -> str:
        return f"{self.number(3)}.{self.number(2)} EUR"

    def symbol(self) -> str:
        return "".join(self.random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=4))


def _slug(title: str) -> str:
    return "-".join(title.lower().split())


def _shop_with_one_title(w: _Writer) -> Iterator[_Row]:
    """Every product has the title of the shop and an opaque id. Later versions have another price and stock."""
    delivery = w.text(30)
    for _ in range(_PAGES):
        code, name = w.number(8), w.title()
        about = w.text(w.random.randint(2, 5))
        for version in range(2 if w.random.random() < 0.3 else 1):
            yield code, version, f"item/{code}", "Shop", _product(w, name, about, delivery)


def _shop_with_titles(w: _Writer) -> Iterator[_Row]:
    """Products with their names in title and path. A later version is in another category."""
    delivery = w.text(30)
    for _ in range(_PAGES):
        name, about = w.title(), w.text(w.random.randint(2, 5))
        for version in range(2 if w.random.random() < 0.3 else 1):
            path = f"{('all', 'sale')[version]}/{_slug(name)}"
            yield name, version, path, f"{name} - Shop", _product(w, name, about, delivery)


def _shop_with_variants(w: _Writer) -> Iterator[_Row]:
    """Products of which several differ only in a size, a colour and a price."""
    delivery = w.text(30)
    for _ in range(_PAGES // 6):
        name, about = w.title(), w.text(4)
        for size in ("small", "medium", "large"):
            for colour in ("black", "white"):
                title = f"{name} {size} {colour}"
                path = f"all/{_slug(title)}"
                yield title, 0, path, f"{title} - Shop", _product(w, title, about, delivery)


def _product(w: _Writer, name: str, about: str, delivery: str) -> str:
    return f"{name}. Price: {w.price()}. In stock: {w.random.randint(1, 90)}. {about} Delivery: {delivery}"


def _quotes(w: _Writer) -> Iterator[_Row]:
    """Prices of shares. Pages with the same text except for the symbol and the price."""
    for about in _families(w):
        for _ in range(w.random.randint(4, 16)):
            symbol = w.symbol()
            for version, path in _opaque_paths(w, "n/quote?id="):
                yield symbol, version, path, "Quotes", f"{symbol} {w.price()} {_again(w, about, version)}"


def _parts(w: _Writer) -> Iterator[_Row]:
    """A catalogue of parts. The name of a part comes after the text that it shares with others."""
    for about in _families(w):
        for _ in range(w.random.randint(4, 16)):
            name, code = w.title(2), f"{w.symbol()}-{w.number(4)}"
            for version, path in _opaque_paths(w, "part/"):
                text = f"{_again(w, about, version)} Part: {name}. Number: {code}. Price: {w.price()}"
                yield code, version, path, "Parts", text


def _jobs(w: _Writer) -> Iterator[_Row]:
    """Adverts of employers, who look for the same in several towns."""
    towns = [w.title(1) for _ in range(30)]
    for about in _families(w):
        wanted = w.title(2)
        for town in w.random.sample(towns, w.random.randint(4, 16)):
            for version, path in _opaque_paths(w, "job?key="):
                text = f"{wanted} in {town}. Since {w.number(2)} days. {_again(w, about, version)}"
                yield f"{wanted} {town}", version, path, "Jobs", text


def _homes(w: _Writer) -> Iterator[_Row]:
    """Adverts of flats with the description of their quarter. Several flats are in one street."""
    for about in _families(w):
        streets = [w.title(1) for _ in range(6)]
        for _ in range(w.random.randint(4, 16)):
            street = f"{w.random.choice(streets)} street {w.number(2)}"
            facts = f"{w.random.randint(1, 6)} rooms, {w.number(2)} m2, {street}"
            for version, path in _opaque_paths(w, "home/"):
                text = f"Price: {w.price()}. {facts}. {_again(w, about, version)}"
                yield facts, version, path, "Homes", text


def _section_with_one_title(w: _Writer) -> Iterator[_Row]:
    """Prices of shares as a tenth of the pages of a news site."""
    yield from _quotes(w)
    for _ in range(9 * _PAGES):
        headline = w.title(6)
        yield headline, 0, f"news/{_slug(headline)}", f"{headline} - News", f"{headline} {w.text(20)}"


def _families(w: _Writer) -> Iterator[str]:
    """Texts of 30 to 60 words, each for several pages."""
    for _ in range(_PAGES // 10):
        yield " ".join(w.words(w.random.randint(30, 60))).capitalize() + "."


def _opaque_paths(w: _Writer, start: str) -> Iterator[tuple[int, str]]:
    """The versions of a page, of which every third has two, at paths with random ids."""
    for version in range(2 if w.random.random() < 0.3 else 1):
        yield version, f"{start}{w.random.getrandbits(64):016x}"


def _again(w: _Writer, about: str, version: int) -> str:
    """*about* in this version: a few words are other ones in half of the later versions."""
    if not version or w.random.random() < 0.5:
        return about
    words = about.split()
    place = w.random.randrange(len(words) - 3)
    return " ".join([*words[:place], *w.words(2), *words[place + 2 :]])


def _forum(w: _Writer) -> Iterator[_Row]:
    """Threads of several pages, whose titles differ in the number of the page. Later versions have one more post."""
    for number in range(_PAGES // 2):
        title = w.title(5)
        for part in range(1, w.random.randint(2, 4)):
            posts = [f"{w.title(1)} wrote on 2024-05-{w.number(2)}: {w.text(4)}" for _ in range(10)]
            for version in range(2 if w.random.random() < 0.3 else 1):
                heading = title if part == 1 else f"{title} - page {part}"
                query = f"thread.php?t={4000 + number}" + ("" if part == 1 else f"&page={part}")
                shown = posts if version else posts[:-1]
                yield f"{number} {part}", version, query, heading, " ".join([title, *shown])


def _calendar(w: _Writer) -> Iterator[_Row]:
    """The days of some months, most of them without an event."""
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    rules = w.text(20)
    for day in range(2 * _PAGES):
        month, number = months[day // 28 % 12], day % 28 + 1
        date = f"{number} {month} {2024 + day // 336}"
        events = " ".join(w.sentence() for _ in range(w.random.choice((0, 0, 0, 1, 2))))
        days = " ".join(map(str, range(1, 29)))
        text = f"{date} {days} {events or 'No events.'} {rules}"
        yield date, 0, f"events/{2024 + day // 336}/{day // 28 % 12 + 1}/{number}", f"Events on {date}", text


def _lists(w: _Writer) -> Iterator[_Row]:
    """The pages of a list of products, and the same in other orders. All have the same title."""
    names = [f"{w.title()} {w.number(3)} EUR" for _ in range(20 * _PAGES)]
    for number in range(_PAGES):
        shown = names[20 * number : 20 * number + 20]
        yield f"page {number}", 0, f"products?page={number + 1}", "All products - Shop", " ".join(shown)


def _overlapping_lists(w: _Writer) -> Iterator[_Row]:
    """The pages of a list in steps of one entry, so that each page has nearly all entries of the one before."""
    names = [f"{w.title()} {w.number(3)} EUR" for _ in range(_PAGES + 40)]
    for number in range(_PAGES):
        shown = " ".join(names[number : number + 40])
        yield f"from {number}", 0, f"products?offset={number}", "All products - Shop", shown


def _news(w: _Writer, keeps_headline: bool, keeps_url: bool) -> Iterator[_Row]:
    for number in range(_PAGES):
        headline, text = w.title(6), w.text(w.random.randint(15, 60))
        changed = headline if keeps_headline else " ".join([*headline.split()[:4], w.title(2)])
        path = f"2024/{w.random.randint(1, 12)}/{_slug(headline)}-{w.number(6)}"
        new_path = path if keeps_url else f"2024/{w.random.randint(1, 12)}/{_slug(changed)}-{w.number(6)}"
        date = f"{w.random.randint(1, 28)} May 2024"
        yield str(number), 0, path, f"{headline} - News", f"{headline} {date} {text}"
        if w.random.random() < 0.5:
            again = f"{changed} {date}, updated {w.number(2)} minutes ago {w.edited(text)}"
            yield str(number), 1, new_path, f"{changed} - News", again


def _wiki(w: _Writer) -> Iterator[_Row]:
    """Long articles and short ones that are made from a template. Later versions are at the URL of an old revision."""
    for _ in range(_PAGES):
        name = w.title(2)
        if w.random.random() < 0.5:
            text = (
                f"{name} is a village in {w.title(1)}, in the north of the country. In the last census it had"
                f" {w.number(4)} inhabitants on {w.number(2)} square kilometres. The village is part of a municipality"
                f" with a school, a library and a station, which connects it with the capital. See also: list of"
                f" villages. References: statistical office, population by municipality and year of the census."
            )
        else:
            text = w.text(w.random.randint(20, 60))
        yield name, 0, f"wiki/{'_'.join(name.split())}", f"{name} - Wiki", f"{name} {text}"
        if w.random.random() < 0.4:
            path = f"w/index.php?title={'_'.join(name.split())}&oldid={w.number(7)}"
            yield name, 1, path, f"{name} - Wiki", f"{name} {w.edited(text)}"


def _short(w: _Writer) -> Iterator[_Row]:
    """Pages of 200 to 1,000 characters without a template."""
    for _ in range(2 * _PAGES):
        name, text = w.title(2), w.text(w.random.randint(3, 9))
        yield name, 0, f"notes/{_slug(name)}", name, text
        if w.random.random() < 0.5:
            words = text.split()
            words[w.random.randrange(len(words))] = w.words(1)[0]
            yield name, 1, f"archive/notes/{_slug(name)}", name, " ".join(words)


def _short_from_a_template(w: _Writer) -> Iterator[_Row]:
    """Pages of about 500 characters, of which two names and two numbers differ. No page has another version."""
    terms = w.text(5)
    for _ in range(_PAGES):
        name, code = w.title(2), w.number(6)
        text = f"Member {name}. Number {code}. City: {w.title(1)}. Member since 20{w.number(2)}. {terms}"
        yield code, 0, f"member?id={code}", f"{name} - Members", text


def _articles(w: _Writer) -> Iterator[_Row]:
    """Articles in another script. The words of URLs are not those of the text."""
    for number in range(_PAGES):
        title, text = w.title(3), w.text(w.random.randint(10, 40))
        yield str(number), 0, f"a/{700_000 + number}", title, f"{title} {text}"
        if w.random.random() < 0.5:
            yield str(number), 1, f"m/a/{700_000 + number}", title, f"{title} {w.edited(text)}"
    notice = w.text(25)
    for number in range(_PAGES // 2):
        title = w.title(2)
        text = f"{title} {w.text(1)} {w.number(5)} {notice}"
        yield f"product {number}", 0, f"p/{300_000 + number}", title, text


def _tables(w: _Writer) -> Iterator[_Row]:
    """Tables of numbers with the same labels. A tenth of the numbers differs in later versions."""
    labels = [w.title(2) for _ in range(40)]
    for number in range(_PAGES):
        place = w.title(1)
        values = [[w.number(5) for _ in range(6)] for _ in labels]
        for version in range(2 if w.random.random() < 0.4 else 1):
            if version:
                for row in w.random.sample(values, 2):
                    row[w.random.randrange(6)] = w.number(5)
            cells = " ".join(f"{label} {' '.join(row)}" for label, row in zip(labels, values, strict=True))
            path = f"{2024 + version}/district-{number}"
            yield place + str(number), version, path, f"{place} {number}: figures", f"{place} {cells}"


_CJK = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 1_200))
_ARABIC = "ابتثجحخدذرزسشصضطظعغفقكلمنهوي"
_THAI = "กขคงจชซญดตถทธนบปผฝพฟภมยรลวศสหอะาเแโใไ"

SITES: dict[str, tuple[Callable[[_Writer], Iterator[_Row]], int]] = {
    # The number of sentences in menu, sidebar and footer
    "shop-one-title": (_shop_with_one_title, 12),
    "shop-titles": (_shop_with_titles, 12),
    "shop-variants": (_shop_with_variants, 12),
    "quotes": (_quotes, 12),
    "parts": (_parts, 12),
    "jobs": (_jobs, 12),
    "homes": (_homes, 12),
    "quotes-section": (_section_with_one_title, 12),
    "forum": (_forum, 10),
    "calendar": (_calendar, 12),
    "lists": (_lists, 40),
    "lists-overlapping": (_overlapping_lists, 12),
    "news-same-headline": (lambda w: _news(w, True, False), 12),
    "news-same-url": (lambda w: _news(w, False, True), 12),
    "news-both": (lambda w: _news(w, True, True), 12),
    "wiki": (_wiki, 12),
    "short": (_short, 0),
    "short-template": (_short_from_a_template, 0),
    "chinese": (_articles, 6),
    "arabic": (_articles, 6),
    "thai": (_articles, 6),
    "tables": (_tables, 6),
}
_SCRIPTS = {
    "chinese": (_CJK, "", (1, 3)),
    "arabic": (_ARABIC, " ", (2, 7)),
    "thai": (_THAI, "", (3, 9)),
}


def generated_sites(seed: int) -> list[Site]:
    return [_site(name, seed) for name in SITES]


def _site(name: str, seed: int) -> Site:
    rows, sentences = SITES[name]
    writer = _Writer(f"{seed} {name}", *_SCRIPTS.get(name, ()))
    menu = " ".join(writer.title(2) for _ in range(sentences))
    footer = writer.text(sentences)
    pages = []
    for page, version, path, title, text in rows(writer):
        markup = (
            f"<!DOCTYPE html><title>{html.escape(title)}</title>"
            f"<body><nav>{menu}</nav><main>{html.escape(text)}</main><footer>{footer}</footer>"
        )
        url = f"http://{name}.example/{path}"
        pages.append(Page(name, page, version, url, markup, canonical_text(markup)))
    return Site(name, "generated", pages)
