"""The title of an HTML page."""

from __future__ import annotations

import re

from .markup import HostileMarkup, parse

_END_TAG = re.compile(r"</title\b", re.IGNORECASE)
# Longer titles are not meant for readers.
_MOST_CHARACTERS = 1_000


def title_of(html: str) -> str | None:
    r"""The text of ``<title>`` with collapsed white space, at most 1,000 characters; None if there is no title.

    >>> title_of("<html><head><title> Birds &amp;\n lakes </title></head><body>…")
    'Birds & lakes'
    """
    # Parse only up to the first end tag, so that a large page costs no more than its head. That end tag may belong to
    # the title of an <svg>, but an <svg> is in the body, whose titles are not used below.
    tag = _END_TAG.search(html)
    # If this tag does not end, no later tag does.
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
