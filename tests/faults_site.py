"""A site for the tests of faults: pages in a chain, with something that happens on the way, and a crawl held up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs import Program
from webserver import Page

if TYPE_CHECKING:
    from webserver import WebServer

KILLED_CRAWL = Path(__file__).parent / "faults" / "killed_crawl.py"


def start_crawl(settings: dict[str, Any], urls: str, **options: Any) -> Program:
    """A crawl in a process of its own."""
    if folder := settings.get("JOBDIR"):
        _remove_empty_state(Path(folder))
    return Program("python", KILLED_CRAWL, json.dumps(settings), urls, **options)


def _remove_empty_state(folder: Path) -> None:
    """Remove the files of Scrapy that a kill has left empty; Scrapy cannot resume a crawl with them.

    Scrapy writes both in place, at the end of a crawl that has no more requests.
    """
    for path in (folder / "spider.state", folder / "requests.queue" / "active.json"):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()


class Hold:
    """Holds a crawl up in its middle, for as long as a test looks at it: so many answers are given, then none."""

    def __init__(self, web: WebServer, answers: int) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._is_reached, self._is_over = threading.Event(), threading.Event()
        web.at_request = self._pass

    def _pass(self) -> None:
        with self._lock:
            self._answers -= 1
            is_held = self._answers < 0
        if is_held:
            self._is_reached.set()
            self._is_over.wait(240)

    def is_reached(self, process: Program) -> bool:
        """Wait for the first request that is held; False if the process ends without it."""
        while not self._is_reached.wait(0.05):
            if process.poll() is not None:
                return False
        return True

    def end(self) -> None:
        self._is_over.set()


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
