"""The title of an HTML page."""

from __future__ import annotations

import re

from .markup import HostileMarkup, parse

_END_TAG = re.compile(r"</title\b", re.IGNORECASE)
# Nobody writes longer ones for people to read.
_MOST_CHARACTERS = 1_000


def title_of(html: str) -> str | None:
    r"""The text of ``<title>`` with its white space collapsed, at most 1,000 characters; None if there is none.

    >>> title_of("<html><head><title> Birds &amp;\n lakes </title></head><body>…")
    'Birds & lakes'
    """
    # Up to the first end tag, so that a large page costs no more than its head. An <svg> before it may have a title of
    # its own, but stands in the body.
    tag = _END_TAG.search(html)
    # If this one does not end, no later one does.
    end = html.find(">", tag.end()) if tag is not None else -1
    if end < 0:
        return None
    try:
        tree = parse(html[: end + 1].encode("utf-8", "replace"))
    except HostileMarkup:
        return None
    node = tree.css_first("head > title")
    title = " ".join(node.text().split()) if node is not None else ""
    return title[:_MOST_CHARACTERS] or None
