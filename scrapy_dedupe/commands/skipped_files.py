"""Report files in the input folders that a command did not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 20


def left_files(below: int, are_open: Sequence[str]) -> list[str]:
    """Lines about the number of files in subfolders, and about files that a crawl has open.

    >>> left_files(1, ["in/a.warc.gz.open"])[1]
    '1 file that a crawl has open, or did not close, is left out: in/a.warc.gz.open.'
    """
    lines = []
    if below:
        files = "1 WARC or ARC file" if below == 1 else f"{number_text(below)} WARC or ARC files"
        lines.append(f"{files} in subfolders left out; -r includes them.")
    if are_open:
        many = len(are_open) > 1
        files = f"{number_text(len(are_open))} files" if many else "1 file"
        more = len(are_open) - _SHOWN
        lines.append(
            f"{files} that a crawl has open, or did not close, {'are' if many else 'is'} left out:"
            f" {', '.join(are_open[:_SHOWN])}{f' and {number_text(more)} more' if more > 0 else ''}."
        )
    return lines
