"""Path maps: text files with the locations of files that a manifest names.

Each line is ``NAME PLACE``: a name from the manifest, one space, and a path or URL. A name or path may contain escapes
such as ``%20`` for a space or ``%25`` for a percent sign; a URL is not unescaped. Empty lines and lines that begin with
``#`` are ignored. A file that begins with ``{`` is a JSON object that maps names to places instead. Relative paths are
relative to the folder of the map.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.warc.remote import is_url

if TYPE_CHECKING:
    from pathlib import Path


def read_path_map(path: Path) -> dict[str, str]:
    """The place of each name. Raises ArchiveError if the file cannot be read, UsageError if it is not a path map."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a path map: it is not UTF-8 text.") from error
    places: dict[str, str] = {}
    for where, name, place in (
        _of_json(path, text) if text.lstrip().startswith("{") else _of_lines(path, text)
    ):
        place = place if is_url(place) else str(path.parent / place)
        if places.setdefault(name, place) != place:
            raise UsageError(f"{where}: {name} has two places, {places[name]} and {place}. Remove one.")
    return places


def _of_lines(path: Path, text: str) -> list[tuple[str, str, str]]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise UsageError(
                f"{path}, line {number}: expected a name and a place, separated by one space. Write spaces inside of"
                " them as %20."
            )
        name, place = words
        found.append((f"{path}, line {number}", unquote(name), place if is_url(place) else unquote(place)))
    return found


def _of_json(path: Path, text: str) -> list[tuple[str, str, str]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        raise UsageError(f"{path} is not a path map: {error}.") from error
    for name, place in pairs:
        if not isinstance(place, str):
            raise UsageError(f"{path}: the place of {name} is not a string. Give a path or URL.")
    return [(str(path), name, place) for name, place in pairs]
