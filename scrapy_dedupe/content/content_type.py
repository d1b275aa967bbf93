"""Parsing of the Content-Type header."""

from __future__ import annotations


def mime_of(content_type: str) -> str:
    """The MIME type in lower case, without parameters.

    >>> mime_of("Text/HTML; charset=utf-8")
    'text/html'
    """
    return content_type.partition(";")[0].strip().lower()
