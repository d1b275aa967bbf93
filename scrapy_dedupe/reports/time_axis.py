"""The axis of the timeline, without the time between crawls.

There may be a month between two crawls that take a minute each. The axis is therefore broken where no crawl ran: a gap
takes a hundredth of it. A slice that is too narrow to be visible is drawn slightly wider.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from . import wording

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from .figures import TimeSlice

_LEAST_SHARE = 1 / 400
_GAP_SHARE = 1 / 100
_GAPS_SHARE = 1 / 4


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """A slice of the timeline with its position on the axis. ``is_after_gap``: the axis is broken before it."""

    slice: TimeSlice
    start: datetime
    end: datetime
    left: float
    right: float
    is_after_gap: bool

    @property
    def text(self) -> str:
        """The time span in words."""
        is_short = (self.end - self.start).total_seconds() < 60
        until = "%H:%M" if self.start.date() == self.end.date() else "%Y-%m-%d %H:%M"
        seconds = ":%S" if is_short or self.start.second or self.end.second else ""
        return f"{self.start:%Y-%m-%d %H:%M{seconds}} to {self.end:{until}{seconds}} UTC"


def placed(slices: Iterable[TimeSlice]) -> list[PlacedSlice]:
    """The slices in the order of time, with positions from 0 on. Slices with an invalid start are left out."""
    known = [(start, found) for found in slices if (start := wording.moment(found.start)) is not None]
    known.sort(key=lambda pair: (pair[0], pair[1].seconds))
    whole = sum(found.seconds for _, found in known) or 1
    gaps = sum(_is_gap(before, after) for before, after in pairwise(known))
    gap = whole * min(_GAP_SHARE, _GAPS_SHARE / (gaps or 1))
    right, answer = 0.0, []
    for number, (start, found) in enumerate(known):
        is_after_gap = number > 0 and _is_gap(known[number - 1], known[number])
        left = right + (gap if is_after_gap else 0)
        right = left + max(found.seconds, whole * _LEAST_SHARE)
        end = start + timedelta(seconds=found.seconds)
        answer.append(PlacedSlice(found, start, end, left, right, is_after_gap))
    return answer


def _is_gap(before: tuple[datetime, TimeSlice], after: tuple[datetime, TimeSlice]) -> bool:
    return (after[0] - before[0]).total_seconds() > before[1].seconds


def ticks(slices: list[PlacedSlice], most: int) -> list[tuple[float, list[str]]]:
    """At most *most* positions on the axis with the lines of their labels: the time, and the date where it changes.

    Starts after a gap have priority; labels keep enough distance not to touch each other.
    """
    if not slices:
        return []
    whole = slices[-1].right
    apart = whole / most
    chosen: list[PlacedSlice] = []
    for wanted in (slices[:1], [one for one in slices if one.is_after_gap], slices):
        for one in wanted:
            # Labels are to the right of their ticks, so the last one needs room too.
            if one.left <= whole - apart * 0.8 and all(
                abs(one.left - other.left) >= apart for other in chosen
            ):
                chosen.append(one)
    chosen.sort(key=lambda one: one.left)
    with_seconds = any(one.start.second for one in chosen) and whole < 600
    answer: list[tuple[float, list[str]]] = []
    for number, one in enumerate(chosen):
        is_new_day = number == 0 or one.start.date() != chosen[number - 1].start.date()
        clock = f"{one.start:%H:%M:%S}" if with_seconds else f"{one.start:%H:%M}"
        answer.append((one.left, [clock, f"{one.start:%Y-%m-%d}"] if is_new_day else [clock]))
    return answer
