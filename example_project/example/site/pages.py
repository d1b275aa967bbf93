"""The pages of the bundled site: the web site of a nature reserve, about fifty URLs.

It has typical features of real sites:

- the same page at two URLs (``/`` and ``/index.html``, articles with ``?ref=newsletter``), and the same picture at two
  URLs;
- pages with nearly the same text (printer versions of four species);
- different pages with the same template (the species);
- moved pages, a page that redirects to itself, URLs that differ only in the order of the query or in the fragment, a
  broken link, and a page that robots.txt forbids.

The texts are in the TOML files in this folder.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from example.site.media import leaflet, reserve_map

HTML = "text/html; charset=utf-8"

ROBOTS_TXT = b"""\
# Saltmere Fen. Welcome, but leave the nests alone.
User-agent: *
Disallow: /private/
"""

#: Moved paths: status and target.
MOVED = {
    "/home": (302, "/"),
    "/today": (302, "/news/boardwalk-reopens"),
    "/directions.html": (301, "/visit/getting-here"),
    "/birds/bittern.html": (301, "/species/bittern"),
}

NAVIGATION = {
    "Home": "/",
    "Visit": "/visit/",
    "Species": "/species/",
    "News": "/news/",
    "About": "/about/",
}

FOOTER = """
<footer>
<p><a href="/index.html">Saltmere Fen Nature Reserve</a>, The Barn, Fen Lane, Salford Staithe. The trails are open from dawn until dusk.
Dogs on the Mill Path only, on a lead. No drones, no fires, no nets other than ours.</p>
<p>In an emergency call the head warden by the number on the gate, and give the number of the nearest post.
After rain the boards are slippery. Children under ten stay within reach of a grown-up at all times.</p>
<p>The trust lives from its members. Ask at the desk, or take the form that lies beside the cake.
Words and pictures may be copied for teaching, if the name of the reserve stands under them.</p>
</footer>
"""


@dataclass(frozen=True, slots=True)
class Resource:
    """The response for a URL. ``is_chunked`` and ``is_gzipped`` select its transfer and content coding."""

    body: bytes
    content_type: str = HTML
    is_chunked: bool = False
    is_gzipped: bool = False


@cache
def resources() -> dict[str, Resource]:
    """Return the resources with status 200 and constant content, by path and sorted query."""
    picture = Resource(reserve_map(), "image/png")
    site = {
        "/robots.txt": Resource(ROBOTS_TXT, "text/plain"),
        "/images/reserve-map.png": picture,
        "/images/map.png": picture,
        "/files/visitor-guide.pdf": Resource(leaflet(_guide()), "application/pdf"),
        "/private/nest-sites": Resource(_html("Nest sites", "<p>For wardens.</p>")),
    }
    for path, page in _prose("pages").items():
        site[path] = Resource(
            _html(page["title"], _paragraphs(page["text"]), links=page.get("links"), image=page.get("image"))
        )
    site["/index.html"] = site["/"]
    return site | _species() | _news() | _sightings()


def weather(time_of_day: str) -> Resource:
    """Return the only page that changes each time: its text contains ``time_of_day`` (HH:MM:SS.ffffff)."""
    text = f"""
    At {time_of_day} the station on the tower measured 11.4 degrees, wind from the south-west at nineteen
    miles an hour with gusts of thirty, and no rain since six in the morning. Visibility is good: the lighthouse
    can be seen. The Mill Path is open but muddy between posts 14 and 19, and the South Fen Round is wet.

    The mere stands at 62 centimetres on the gauge beside the sluice, two above the mark at which we would
    close the gate. Tide at the sea wall is high at twenty past four, and with this wind it may run over the
    lower step, so that the short way back from the Staithe is not advised before six.

    The instruments are read by the school at Salford Staithe, which has kept the record without a gap since
    the second of September 1949. If you borrow the key to the tower, please don't lean on the vane.
    """
    return Resource(_html("Weather at the mere", _paragraphs(text)), is_gzipped=True)


def _prose(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _species() -> dict[str, Resource]:
    species = _prose("species")
    site = {}
    for slug, page in species.items():
        title = f"{page['name']} ({page['latin']})"
        facts = "".join(
            f"<tr><th>{label}</th><td>{escape(page[key])}</td></tr>"
            for label, key in (
                ("Group", "group"),
                ("When to see it", "season"),
                ("Where to see it", "where"),
                ("How many", "count"),
            )
        )
        main = f"<table>{facts}</table>{_paragraphs(page['text'])}"
        links = {"All species": f"/species/#{page['group'].lower()}"}
        if page.get("print"):
            site[f"/species/{slug}/print"] = Resource(_html(title, main, is_printer_version=True))
            links["Printer version"] = f"/species/{slug}/print"
        site[f"/species/{slug}"] = Resource(_html(title, main, links=links), is_gzipped=True)
    links = {page["name"]: f"/species/{slug}" for slug, page in species.items()}
    links["The bittern's old page"] = "/birds/bittern.html"
    intro = """
    Of the four thousand kinds that have been found at Saltmere these are the ones that visitors ask for most.
    Each has a page that says when and where you may see it, and what we do to keep it here.

    The list is short on purpose. Moths alone would fill a book, and do: it lies on the window sill of Mere Hide,
    on a chain, with 614 kinds in it, and whoever adds one is owed a slice of cake. For beetles ask at the desk on
    a Thursday, when the man who knows them comes in to sort his trays. Fungi have a walk of their own in October.
    """
    site["/species/"] = Resource(
        _html("What lives here", _paragraphs(intro), links=links), is_chunked=True, is_gzipped=True
    )
    return site


def _news() -> dict[str, Resource]:
    news = _prose("news")
    site = {}
    for slug, article in news.items():
        main = f"<p><em>{article['date']}</em></p>{_paragraphs(article['text'])}"
        page = Resource(_html(article["title"], main), is_chunked=True)
        site[f"/news/{slug}"] = page
        if article["letter"]:
            site[f"/news/{slug}?ref=newsletter"] = page
    links = {article["title"]: f"/news/{slug}" for slug, article in news.items()}
    links["The newsletter"] = "/newsletter"
    intro = "News from the fen, the latest first. Older ones hang in a frame in the tea room."
    site["/news/"] = Resource(_html("News", _paragraphs(intro), links=links))
    links = {a["title"]: f"/news/{slug}?ref=newsletter" for slug, a in news.items() if a["letter"]}
    intro = """
    The newsletter goes to our members twice a year, on paper, folded by hand on the first Thursday of December
    and of July. This is the one before last, without the crossword. It can be had by anybody who leaves a
    stamped envelope at the desk.
    """
    site["/newsletter"] = Resource(_html("The newsletter", _paragraphs(intro), links=links))
    return site


def _sightings() -> dict[str, Resource]:
    site = {}
    for place, board in _prose("sightings").items():
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in board["rows"]
        )
        main = f"<table><tr><th>Date<th>Species<th>Notes<th>Seen by</tr>{rows}</table>"
        site[f"/sightings?month=may&place={place}"] = Resource(_html(board["title"], main))
    return site


def _guide() -> list[str]:
    lines = ["Saltmere Fen Nature Reserve: what lives here", ""]
    for page in _prose("species").values():
        lines += [f"{page['name']}: {page['season']}.", f"     {page['where']}. {page['count']}."]
    return lines


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part.strip(), quote=False)}</p>\n" for part in text.strip().split("\n\n"))


def _html(
    title: str,
    main: str,
    *,
    links: dict[str, str] | None = None,
    image: str | None = None,
    is_printer_version: bool = False,
) -> bytes:
    picture = f'<img src="{image}" alt="Map of the reserve" width="240" height="160">' if image else ""
    top = "<p>Version for printing.</p>" if is_printer_version else f"<nav>{_anchors(NAVIGATION)}</nav>"
    more = f"<ul>{_anchors(links, 'li')}</ul>" if links else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)} | Saltmere Fen</title></head>
<body>
{top}
<main>
<h1>{escape(title)}</h1>
{picture}
{main}
{more}
</main>
{FOOTER}
</body>
</html>
""".encode()


def _anchors(links: dict[str, str], tag: str = "span") -> str:
    return "\n".join(
        f'<{tag}><a href="{escape(href)}">{escape(text)}</a></{tag}>' for text, href in links.items()
    )
