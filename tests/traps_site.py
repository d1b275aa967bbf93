"""A site with seven kinds of traps, and with what looks like one and is none.

Every page has the same menu and footer. The traps end somewhere, so that a crawl of all of it does.
"""

from __future__ import annotations

import calendar
import random
from hashlib import md5
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webserver import WebServer

_LETTERS = random.Random(1)
WORDS = [
    "".join(_LETTERS.choices("abcdefghijklmnopqrstuvwxyz", k=_LETTERS.randint(3, 9))) for _ in range(4_000)
]

TRAPS = {
    "calendar": "/calendar/{n}/{n}",
    "session": "/…?sid={value}",
    "filters": "/shoes?brand={value}&color={value}&size={value}",
    "orders": "/hats?sort={value}",
    "soft 404": "/old/{name}",
    "loop": "/…/{repeated}/…",
    "printer": "/article/{n}?print={n}",
}
"""The patterns that a report has to tell, behind the host."""

_COLORS, _SIZES, _BRANDS = ("red", "blue", "green"), ("s", "m", "l", "xl"), ("acme", "zeta", "nike")
_ORDERS = [
    f"{what}_{way}" for what in ("price", "name", "date", "stars", "stock", "brand") for way in ("up", "down")
]


def prose(of: object, words: int) -> str:
    """Always the same words of one thing, and others of each thing."""
    return " ".join(random.Random(str(of)).choices(WORDS, k=words))


def page(title: str, body: str, links: Iterable[str] = ()) -> str:
    shown = " ".join(f'<a href="{link.replace("&", "&amp;")}">more</a>' for link in links)
    return (
        f"<!doctype html><title>{title} - Acme</title><nav><p>{prose('menu', 40)}</nav>"
        f"<h1>{title}</h1>{body}<p>{shown}<footer><p>{prose('footer', 200)}</footer>"
    )


def months(first: int, last: int) -> Iterator[tuple[str, str]]:
    """Months without any event, each with a link to the next one."""
    for number in range(first, last):
        name, before, after = (
            f"{calendar.month_name[n % 12 + 1]} {n // 12}" for n in (number, number - 1, number + 1)
        )
        weeks = calendar.monthcalendar(number // 12, number % 12 + 1)
        days = "<tr>".join(" ".join(f"<td>{day or '-'}" for day in week) for week in weeks)
        following = number + 1
        yield (
            f"/calendar/{number // 12}/{number % 12 + 1}",
            page(
                f"Calendar of {name}",
                f"<p>There are no events in {name}.<p>{before} {after}<table><tr>{days}</table>",
                [f"/calendar/{following // 12}/{following % 12 + 1}"] if following < last else [],
            ),
        )


def sessions() -> Iterator[tuple[str, str]]:
    """Four pages, each with another session in every link to it."""
    names = ("cart", "help", "terms", "profile")
    ids = [md5(str(number).encode()).hexdigest()[:12] for number in range(12)]
    for number, sid in enumerate(ids):
        links = [f"/my/{name}?sid={ids[number + 1]}" for name in names] if number + 1 < len(ids) else []
        for name in names:
            yield f"/my/{name}?sid={sid}", page(name, f"<p>{prose(name, 150)}", links)


def _items(kind: str) -> list[tuple[str, ...]]:
    chosen = random.Random(kind)
    return [
        (chosen.choice(_COLORS), chosen.choice(_SIZES), chosen.choice(_BRANDS), prose((kind, number), 25))
        for number in range(15)
    ]


def _listed(items: Iterable[tuple[str, ...]]) -> str:
    return f"<ul><li>{'<li>'.join(' '.join(item) for item in items)}</ul>"


def filters() -> Iterator[tuple[str, str]]:
    """Shoes by color, size and brand; the parameters come in the order in which they were chosen."""
    items = _items("shoes")
    urls = []
    for color, size, brand in product(_COLORS, _SIZES, _BRANDS):
        found = [item for item in items if item[:3] == (color, size, brand)]
        chosen = (f"color={color}", f"size={size}", f"brand={brand}")
        for first, second in combinations(chosen, 2):
            third = next(one for one in chosen if one not in (first, second))
            urls.append(f"/shoes?{first}&{second}&{third}")
            yield urls[-1], page("Shoes", _listed(found))
    yield "/shoes", page("Shoes", _listed(items), urls)


def orders() -> Iterator[tuple[str, str]]:
    """Hats, in any order."""
    items = _items("hats")
    yield (
        "/hats",
        page("Hats", _listed(items), [f"/hats?sort={a},{b}" for a, b in combinations(_ORDERS, 2)][:30]),
    )
    for a, b in list(combinations(_ORDERS, 2))[:30]:
        order = random.Random(a + b).sample(items, len(items))
        yield f"/hats?sort={a},{b}", page("Hats", _listed(order))


def lost() -> Iterator[tuple[str, str]]:
    """Pages that are not there, but for their status, and that say the name."""
    paths = [f"/old/{prose(('lost', number), 2).replace(' ', '-')}" for number in range(110)]
    yield "/links", page("Old links", f"<p>{prose('links', 100)}", paths)
    for path in paths:
        yield (
            path,
            page("Not found", f"<p>We are sorry: {path} is not here. Look at our home page, or ask us."),
        )


def loop() -> Iterator[tuple[str, str]]:
    """Three pages with relative links that lack a slash."""
    names = ("about", "team", "contact")
    for depth in (1, 2, 3, 4):
        for path in product(names, repeat=depth):
            links = [f"{name}/" for name in names] if depth < 4 else []
            yield f"/us/{'/'.join(path)}/", page(path[-1], f"<p>{prose(path[-1], 150)}", links)


def articles() -> Iterator[tuple[str, str]]:
    """Articles, each also to be printed."""
    yield (
        "/articles",
        page("Articles", f"<p>{prose('all', 60)}", [f"/article/{number}" for number in range(30)]),
    )
    for number in range(30):
        text = f"<p>{prose(('article', number), 300)}"
        title = prose(("title", number), 4)
        yield f"/article/{number}", page(title, text, [f"/article/{number}?print=1"])
        yield f"/article/{number}?print=1", page(title, f"{text}<p>Printed from our site.")


def news() -> Iterator[tuple[str, str]]:
    """A list of many pages. Each has ten titles of its own."""
    for number in range(1, 31):
        titles = "".join(f"<li>{prose(('news', number, item), 7)}" for item in range(10))
        yield (
            f"/news?page={number}",
            page(
                f"News, page {number} of 30",
                f"<ul>{titles}</ul>",
                [f"/news?page={number + 1}"] if number < 30 else [],
            ),
        )


def manual() -> Iterator[tuple[str, str]]:
    """A manual with many short pages."""
    names = sorted({prose(("name", number), 1) for number in range(40)})
    yield "/manual/", page("Manual", f"<p>{prose('manual', 60)}", [f"/manual/{name}.html" for name in names])
    for number, name in enumerate(names):
        yield (
            f"/manual/{name}.html",
            page(f"The {name} command", f"<p>{prose(name, (15, 25, 40, 90)[number % 4])}"),
        )


def put(web: WebServer) -> int:
    """Put the site on *web*; how many pages it has."""
    parts = (
        months(24_312, 24_412),
        sessions(),
        filters(),
        orders(),
        lost(),
        loop(),
        articles(),
        news(),
        manual(),
    )
    pages = [one for part in parts for one in part]
    starts = [
        "/calendar/2026/1",
        next(path for path, _ in sessions()),
        "/shoes",
        "/hats",
        "/links",
        "/us/about/",
        "/articles",
        "/news?page=1",
        "/manual/",
    ]
    pages.append(("/", page("Home", f"<p>{prose('home', 200)}", starts)))
    for path, html in pages:
        web.page(path, html)
    return len(pages)
