"""Progress reporting for long-running work."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class Progress(Protocol):
    """Receives progress, in the process and thread of the work. Parts can be nested."""

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        """A part of the work begins; it has about *total* bytes, or items called *unit* (0: unknown)."""

    def advance(self, count: int) -> None:
        """*count* more bytes or items of the current part are done."""

    def end(self) -> None:
        """The current part ends."""


class NoProgress:
    """Progress that is not reported."""

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


NO_PROGRESS: Final[Progress] = NoProgress()


@contextmanager
def part(watch: Progress, title: str, total: int, unit: str = "B") -> Iterator[None]:
    """Report the block as a part of the work."""
    watch.begin(title, total, unit)
    try:
        yield
    finally:
        watch.end()


class Reached:
    """Reports the progress of reading a file, given the offsets of its records."""

    def __init__(self, watch: Progress) -> None:
        self._watch = watch
        self._offset = 0

    def __call__(self, offset: int) -> None:
        """Everything before *offset* is done."""
        if offset > self._offset:
            self._watch.advance(offset - self._offset)
            self._offset = offset


def counted(items: Iterable[T], watch: Progress) -> Iterator[T]:
    """Yield *items*, and report each as done when the next one is requested."""
    for item in items:
        yield item
        watch.advance(1)
