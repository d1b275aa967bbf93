"""How a piece of work tells somebody how far it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class Progress(Protocol):
    """Told by a step, in the process and thread that called it. A part may begin within another one."""

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        """A part of the work begins, of about so many bytes, or other things that *unit* names (0: unknown)."""

    def advance(self, count: int) -> None:
        """So many more of them are done, of the part that began last and is not over."""

    def end(self) -> None:
        """The part that began last is over."""


class NoProgress:
    """A `Watch` that says nothing."""

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


NO_PROGRESS: Final[Progress] = NoProgress()


@contextmanager
def part(watch: Progress, title: str, total: int, unit: str = "B") -> Iterator[None]:
    """A part of the work that is over at the end of the block."""
    watch.begin(title, total, unit)
    try:
        yield
    finally:
        watch.end()


class Reached:
    """Tells a watch how far a file has been read, by the offsets of its records."""

    def __init__(self, watch: Progress) -> None:
        self._watch = watch
        self._offset = 0

    def __call__(self, offset: int) -> None:
        """What stands before *offset* is done."""
        if offset > self._offset:
            self._watch.advance(offset - self._offset)
            self._offset = offset


def counted(items: Iterable[T], watch: Progress) -> Iterator[T]:
    """The *items*, each told to the watch when the next one is asked for."""
    for item in items:
        yield item
        watch.advance(1)
