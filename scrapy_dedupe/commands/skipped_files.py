"""What is said of files in the folders of a call that were not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 20


def left_files(below: int, are_open: Sequence[str]) -> list[str]:
    """A line on so many files in folders below, and one on those that a crawl has open; none where there are none.

    >>> left_files(1, ["in/a.warc.gz.open"])[1]
    '1 file that a crawl has open, or left open, is left out: in/a.warc.gz.open.'
    """
    lines = []
    if below:
        files = "1 WARC or ARC file" if below == 1 else f"{number_text(below)} WARC or ARC files"
        lines.append(f"{files} in folders below left out; -r takes them, too.")
    if are_open:
        many = len(are_open) > 1
        files = f"{number_text(len(are_open))} files" if many else "1 file"
        more = len(are_open) - _SHOWN
        lines.append(
            f"{files} that a crawl has open, or left open, {'are' if many else 'is'} left out:"
            f" {', '.join(are_open[:_SHOWN])}{f' and {number_text(more)} more' if more > 0 else ''}."
        )
    return lines
