"""Work on a passage index that tests kill, and the documents for it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORDS = [f"w{number}" for number in range(400)]
SHARED = " ".join(f"s{number}" for number in range(30))


def text(number: int, version: int = 0) -> str:
    """A text; every third one has a passage in the middle, and every fifth one is a copy of the one before."""
    rng = random.Random(f"{number - (number % 5 == 4)} {version}")
    words = rng.choices(WORDS, k=120)
    return " ".join(words[:60]) + (f" {SHARED} " if number % 3 == 0 else " ") + " ".join(words[60:])


def documents(first: int, count: int, version: int = 0) -> Iterator[tuple[str, str]]:
    for number in range(first, first + count):
        yield f"https://kill.example/{number}", text(number, version)


def index(folder: Path) -> None:
    _add(folder, list(documents(0, 24)))


def append(folder: Path) -> None:
    """New documents, and new texts for old ones."""
    _add(folder, [*documents(24, 6), *documents(3, 4, version=1)])


def append_singly(folder: Path) -> None:
    """So many small segments that some are merged on the way."""
    for document in documents(100, 14):
        _add(folder, [document])


def delete(folder: Path) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        opened.delete_many([doc_id for doc_id, _ in documents(2, 7)])


def compact(folder: Path) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        opened.compact()


def _add(folder: Path, pairs: list[tuple[str, str]]) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        for doc_id, written in pairs:
            opened.add(doc_id, written)


WORK: dict[str, Callable[[Path], None]] = {
    work.__name__: work for work in (index, append, append_singly, delete, compact)
}
