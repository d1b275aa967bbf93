"""The axis of the timeline: time as it passed while crawls ran.

Between two crawls there may be a month, and a crawl may take a minute. Where no crawl ran, the axis is broken: a gap
takes a hundredth of it. A slice that would be too narrow to be seen is drawn a little wider.
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
    """A slice of the timeline, with its place on the axis. ``is_after_gap``: the axis is broken before it."""

    slice: TimeSlice
    start: datetime
    end: datetime
    left: float
    right: float
    is_after_gap: bool

    @property
    def text(self) -> str:
        """When it was."""
        is_short = (self.end - self.start).total_seconds() < 60
        until = "%H:%M" if self.start.date() == self.end.date() else "%Y-%m-%d %H:%M"
        seconds = ":%S" if is_short or self.start.second or self.end.second else ""
        return f"{self.start:%Y-%m-%d %H:%M{seconds}} to {self.end:{until}{seconds}} UTC"


def placed(slices: Iterable[TimeSlice]) -> list[PlacedSlice]:
    """Slices in the order of time, each with its place from 0 on. One whose start is no time is left out."""
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
    """At most *most* places of the axis, each with the lines of its label: the time, and the date where it changes.

    The starts of what follows a gap come first; no two labels are so near that they would touch.
    """
    if not slices:
        return []
    whole = slices[-1].right
    apart = whole / most
    chosen: list[PlacedSlice] = []
    for wanted in (slices[:1], [one for one in slices if one.is_after_gap], slices):
        for one in wanted:
            # A label stands to the right of its tick, and the last one needs room too.
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
