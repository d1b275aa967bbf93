"""How a step tells somebody how far it is."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Told by a step, in the process and thread that called it."""

    def begin(self, title: str, total_bytes: int) -> None:
        """A part of the work begins, of about so many bytes (0: unknown)."""

    def advance(self, size_bytes: int) -> None:
        """So many more bytes are done."""

    def end(self) -> None:
        """The part that began last is over."""


class Unwatched:
    """A `Watch` that says nothing."""

    def begin(self, title: str, total_bytes: int) -> None:
        pass

    def advance(self, size_bytes: int) -> None:
        pass

    def end(self) -> None:
        pass
