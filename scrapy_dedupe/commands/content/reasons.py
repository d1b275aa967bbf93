"""Explanations why a text is a copy of another one, and how the two differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.content.difference import unified_diff
from scrapy_dedupe.content.options import ALL_TYPES
from scrapy_dedupe.content.signature import CHANCE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.content import JudgeOptions

    from .archive import ArchivedText

_SHORT_DIFF: Final = 12

_NOT_JUDGED: Final = {
    "no text": "it has no text, or only in its title and <noscript>, like a page that JavaScript fills",
    "markup": "its markup would take too long to parse",
    "size": "it is larger than DEDUPE_CONTENT_MAX_BYTES",
    "type": "its Content-Type is not a text type",
    "encoding": "its content coding or declared encoding cannot be decoded",
}


@dataclass(frozen=True, slots=True)
class OriginalText:
    """The original of a copy: its first capture, and the time of it as ISO 8601 in UTC."""

    url: str
    crawl: str
    seen: str


@dataclass(frozen=True, slots=True)
class TextDifference:
    """A unified diff of the canonical texts, without its last ``left_out`` lines; or the reason why it is missing."""

    lines: list[str]
    left_out: int = 0
    missing: str | None = None


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help=f"show the whole diff, not {_SHORT_DIFF} lines")
    parser.add_argument(
        "--warc-dir",
        metavar="DIR",
        type=Path,
        help="the directory of the WARC files, if they are not where the index says (default: DEDUPE_WARC_DIR)",
    )


WAS_IMPORTED: Final = "QuarryCore had read a page with the same text; its hash was imported."


def why_equal(kind: str) -> str:
    """The reason for an ``exact`` or ``unchanged`` copy."""
    if kind == "unchanged":
        return "The canonical text is exactly the same as when this URL was read before."
    return "The canonical text is exactly that of the original."


def why_near(
    similarity: float, options: JudgeOptions, parameters: Mapping[str, str], mime: str | None
) -> str:
    """The similarity in rows and by estimate; ``parameters`` are the store's. Uses the defaults without a MIME type."""
    near = options.near_for(mime or ALL_TYPES)
    stored = parameters.get(f"near_num_perm[{mime}]") or parameters.get("near_num_perm")
    rows = near.num_perm if stored is None else int(stored)
    equal = round(rows * (similarity * (1 - CHANCE) + CHANCE))
    return (
        f"{equal} of {rows} rows of the signatures are equal, an estimated similarity of {similarity:.3f}; texts are near"
        f" from {near.threshold:g} (DEDUPE_NEAR_THRESHOLD)."
    )


def why_not_judged(reason: str | None) -> str:
    return f"It was not judged: {_NOT_JUDGED.get(str(reason), reason)}."


def difference(
    old: tuple[str, ArchivedText | str], new: tuple[str, ArchivedText | str], *, full: bool
) -> TextDifference:
    """The diff of two named texts; if one is a message that the text is missing, the message."""
    (old_name, old_text), (new_name, new_text) = old, new
    if isinstance(old_text, str) or isinstance(new_text, str):
        missing = dict.fromkeys(item for item in (old_text, new_text) if isinstance(item, str))
        return TextDifference([], missing=" ".join(missing))
    lines = unified_diff(old_text.text, new_text.text, old_name, new_name)
    if not lines:
        return TextDifference([], missing="The two texts differ only in white space.")
    kept = lines if full else lines[:_SHORT_DIFF]
    return TextDifference(kept, len(lines) - len(kept))


def difference_lines(found: TextDifference) -> Iterator[str]:
    if found.missing is not None:
        yield found.missing
    yield from found.lines
    if found.left_out:
        yield f"({found.left_out:,} more lines; --full shows them)"


def time_text(seen_ms: int) -> str:
    """A time as ISO 8601 in UTC, with milliseconds.

    >>> time_text(0)
    '1970-01-01T00:00:00.000Z'
    """
    seen = datetime.fromtimestamp(seen_ms / 1000, tz=UTC)
    return f"{seen:%Y-%m-%dT%H:%M:%S}.{seen_ms % 1000:03}Z"
