"""A site whose pages have several URLs, and crawls of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webserver import WebServer

PAGES = 30


def text(number: int, more: str = "") -> str:
    return f"<title>Page {number}</title><p>The text of page {number}{more}."


def add_site(web: WebServer, *variants: str, pages: int = PAGES, lists: Iterable[str] = ()) -> None:
    """Serve page N at ``/pN`` and, for each variant such as ``?sid=x``, at ``/pN?sid=x``; ``/`` has links to all.

    The text of a variant with ``part=`` differs. *lists* are the texts of further links on ``/``.
    """
    paths = [
        (number, f"/p{number}{variant}", " part" if "part=" in variant else "")
        for variant in ("", *variants)
        for number in range(pages)
    ]
    for number, path, more in paths:
        web.page(path, text(number, more))
    links = [path for _, path, _ in paths] + list(lists)
    web.page("/", "".join(f'<a href="{path}">link</a>' for path in links))
