"""Progress bars on the terminal for long-running verbs."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.reports.wording import clean, shortened
from scrapy_dedupe.tasks.progress import counted, part

from .options import is_standard_output

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Self

T = TypeVar("T")

_TITLE_CHARS: Final = 40
_LARGE: Final = 10_000
# Nested parts may be numerous and short.
_NESTED_DELAY_S: Final = 0.2


class Bars:
    """A `Progress` that draws bars of tqdm on stderr, one for each part, and clears them at the end.

    It draws nothing if stderr is not a terminal, with ``--json``, or with the environment variable TQDM_DISABLE.
    """

    def __init__(self, opts: argparse.Namespace) -> None:
        self.is_shown = (
            not opts.json
            and sys.stderr is not None
            and not sys.stderr.closed
            and sys.stderr.isatty()
            and not os.environ.get("TQDM_DISABLE")
            # Lines of the result on the same terminal would mix with the bars.
            and not (is_standard_output(opts) and sys.stdout.isatty())
        )
        self._bars: list[Any] = []
        self._stack = ExitStack()

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        if not self.is_shown:
            return
        from tqdm import tqdm

        with self._drawing():
            bar = tqdm(
                desc=shortened(clean(title), _TITLE_CHARS),
                total=total or None,
                unit=unit if unit == "B" else f" {unit}",
                unit_scale=unit == "B" or total >= _LARGE,
                leave=False,
                dynamic_ncols=True,
                delay=_NESTED_DELAY_S if self._bars else 0,
            )
            self._bars.append(bar)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            # The terminal was closed, which must not stop the work.
            self.is_shown = False
            self._bars.clear()

    def advance(self, count: int) -> None:
        if self._bars:
            with self._drawing():
                self._bars[-1].update(count)

    def reach(self, done: float, total: int) -> None:
        """Set how much of the innermost part is done, and its total, which may have grown."""
        if self._bars:
            bar = self._bars[-1]
            with self._drawing():
                bar.update(done - bar.n)
                if bar.total != (total or None):
                    bar.total = total or None
                    bar.refresh()

    def end(self) -> None:
        if self._bars:
            with self._drawing():
                self._bars.pop().close()

    def part(self, title: str, total: int, unit: str = "B") -> AbstractContextManager[None]:
        """Begin a part that ends with the block."""
        return part(self, title, total, unit)

    def counted(self, items: Iterable[T], title: str, total: int, unit: str) -> Iterator[T]:
        """Yield the *items*, and count each one when the next is requested."""
        with self.part(title, total, unit):
            yield from counted(items, self)

    @contextmanager
    def kinds(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        """Begin one part for each kind of entry for which a store reports progress (kind, done, total)."""
        last = ""

        def on_done(kind: str, done: int, total: int) -> None:
            nonlocal last
            if kind != last:
                self.end()
                self.begin(f"{title} {kind}", total, kind)
                last = kind
            self.reach(done, total)

        self.begin(title, 0)
        try:
            yield on_done
        finally:
            self.end()

    def tell(self, sentence: str) -> None:
        """Print a sentence to stderr, above the bars."""
        if self.is_shown:
            from tqdm import tqdm

            with self._drawing():
                tqdm.write(sentence, file=sys.stderr)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self.is_shown:
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._stack.enter_context(logging_redirect_tqdm())
        return self

    def __exit__(self, *error: object) -> None:
        while self._bars:
            self.end()
        self._stack.close()
