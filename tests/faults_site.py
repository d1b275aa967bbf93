"""A site for the tests of faults: pages in a chain, with something that happens on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webserver import Page

if TYPE_CHECKING:
    from webserver import WebServer


def chain(web: WebServer, length: int, at: dict[int, Any]) -> None:
    """Pages that link to the next one; before page N is answered, ``at[N]()`` is called."""
    for number in range(length):
        text = (
            f"<title>{number}</title>" + f"<p>Log {number}: the level of the lake is {number * 37} mm." * 40
        )
        body = f'{text}<a href="/{number + 1}">next</a>'.encode()

        def answer(handler: Any, number: int = number, body: bytes = body) -> Page:
            if number in at:
                at.pop(number)()
            return Page(body)

        web.pages[f"/{number}"] = answer
    web.page(f"/{length}", "<p>The end.")
