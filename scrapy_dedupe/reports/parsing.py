"""Checks of stored plain values. Each raises :class:`ValueError` for an unexpected value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .texts import harmless

if TYPE_CHECKING:
    from typing import TypeGuard

MOST_PAGES = 2**50
"""A limit above any number of pages. The sum over thousands of crawls fits 64 bits, so that it can be drawn."""

MOST_BYTES = 2**50
"""A limit above the number of bytes that can be counted at once."""

_MOST_COUNT = 2**80
_MOST_CHARS = 3_000


def dict_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a dict")  # noqa: TRY004
    return value


def list_of(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")  # noqa: TRY004
    return value


def text_of(value: object) -> str:
    """A string of at most 3,000 characters, cleaned by `harmless`, since other programs may write to a shared store."""
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise ValueError("not a short string")
    return harmless(value, _MOST_CHARS)


def count_of(value: object, most: int = _MOST_COUNT) -> int:
    """An integer from 0 to *most*."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("not a count")
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number.

    >>> is_number(10**400), is_number(float("nan")), is_number(True)
    (True, False, False)
    """
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def number_of(value: object) -> int | float:
    """A finite number."""
    if not is_number(value):
        raise ValueError("not a number")
    return max(-_MOST_COUNT, min(value, _MOST_COUNT)) if isinstance(value, int) else value


def share_of(value: object) -> float:
    """A number from 0 to 1."""
    number = float(number_of(value))
    if not 0 <= number <= 1:
        raise ValueError("not a share")
    return number
