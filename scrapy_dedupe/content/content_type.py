"""What a declared Content-Type says."""

from __future__ import annotations


def mime_of(content_type: str) -> str:
    """The MIME type alone, in lower case.

    >>> mime_of("Text/HTML; charset=utf-8")
    'text/html'
    """
    return content_type.partition(";")[0].strip().lower()
