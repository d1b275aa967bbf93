"""A bar on the terminal for each part of a long piece of work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from types import TracebackType
    from typing import Self


class Bars:
    """A `Watch` of the room `afterwards` that draws on stderr; it says nothing where stderr is no terminal."""

    def __init__(self, opts: argparse.Namespace) -> None:
        self._is_shown = not opts.json and sys.stderr.isatty()
        self._bars: list[Any] = []

    def begin(self, title: str, total_bytes: int) -> None:
        if not self._is_shown:
            return
        from tqdm import tqdm

        bar = tqdm(
            total=total_bytes or None,
            desc=title,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            leave=False,
            position=len(self._bars),
        )
        self._bars.append(bar)

    def advance(self, size_bytes: int) -> None:
        if self._bars:
            self._bars[-1].update(size_bytes)

    def end(self) -> None:
        if self._bars:
            self._bars.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._bars:
            self.end()
