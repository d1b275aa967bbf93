"""A bar on the terminal for each part of a long piece of work.

A thread of its own draws the bars, some times a second. So what works has only to add a number, whatever it does a
million times, and what waits for a store is seen to go on. What is written to stderr meanwhile stands above the bars,
which leave nothing behind when they are over.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.tasks.progress import counted, part

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

_SECONDS: Final = 0.2
_TITLE: Final = 40
_LARGE: Final = 10_000
_SHARE: Final = (
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
)
_COUNT: Final = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}]"
_TIME: Final = "{desc} [{elapsed}]"


class Bars:
    """A `Watch` that draws on stderr; it says nothing where that is no terminal, with ``--json`` or TQDM_DISABLE.

    The bar of a part that ends by itself goes to 100 % first. Others vanish where they are, at an error or Ctrl-C.
    """

    def __init__(self, opts: argparse.Namespace) -> None:
        self.is_shown = (
            not opts.json
            and _is_terminal(sys.stderr)
            and not os.environ.get("TQDM_DISABLE")
            # A terminal that shows the result line by line has no place for a bar.
            and not (str(getattr(opts, "output", None)) == "-" and sys.stdout.isatty())
        )
        self._parts: list[_BarPart] = []
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._stderr: Any = None
        self._handlers: list[logging.StreamHandler[Any]] = []

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        if not self.is_shown:
            return
        with self._lock:
            self._parts.append(_BarPart(title, total, unit, len(self._parts)))
            # Parts of parts may be many and short; they are drawn if they are still there at the next time.
            if len(self._parts) == 1:
                self._start()
                self.draw()

    def advance(self, count: int) -> None:
        if self._parts:
            self._parts[-1].done += count

    def reach(self, done: float, total: int) -> None:
        """So much is done of the part that began last, of what may be more in all than it was."""
        if self._parts:
            self._parts[-1].done, self._parts[-1].total = done, total

    def end(self) -> None:
        if not self._parts:
            return
        with self._lock:
            ended = self._parts.pop()
            # Nothing is done that an error has ended.
            if ended.total and sys.exc_info()[0] is None:
                ended.done = ended.total
            try:
                if ended.bar is not None:
                    ended.draw()
            finally:
                ended.close()

    @contextmanager
    def part(self, title: str, total: int, unit: str = "B") -> Iterator[None]:
        """A part that is over at the end of the block."""
        with part(self, title, total, unit):
            yield

    def counted(self, items: Iterable[T], title: str, total: int, unit: str) -> Iterator[T]:
        """The *items*, each counted when the next one is asked for."""
        with self.part(title, total, unit):
            yield from counted(items, self)

    @contextmanager
    def kinds(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        """A part, and then one for each kind of things of which a store tells how many are done."""
        last = ""

        def on_done(what: str, done: int, total: int) -> None:
            nonlocal last
            if what != last:
                self.end()
                self.begin(f"{title} {what}", total, what)
                last = what
            self.reach(done, total)

        self.begin(title, 0)
        try:
            yield on_done
        finally:
            self.end()

    def draw(self) -> None:
        """Show how far everything is now."""
        with self._lock:
            for each in self._parts:
                each.draw()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self._parts:
            self._parts.pop().close()
        if self._stderr is not None:
            beside, sys.stderr = self._stderr, self._stderr.stream
            for handler in self._handlers:
                handler.setStream(beside.stream)
            self._stderr = None
            beside.end()

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._stderr = sys.stderr = _Beside(sys.stderr)
        self._handlers = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is self._stderr.stream
        ]
        for handler in self._handlers:
            handler.setStream(self._stderr)
        self._thread = threading.Thread(target=self._run, name="bars", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_SECONDS):
            self.draw()


class _BarPart:
    """A part of the work, and its bar as soon as it has been drawn."""

    def __init__(self, title: str, total: int, unit: str, place: int) -> None:
        self.done: float = 0
        self.total = total
        self.bar: Any = None
        self._title = _printable(title)
        self._unit = unit if unit == "B" else f" {unit}"
        self._place = place
        self._began = time.time()

    def draw(self) -> None:
        # The terminal may be gone, or take no such character, which is no matter of the work.
        with suppress(OSError, ValueError):
            self._draw()

    def close(self) -> None:
        if self.bar is not None:
            with suppress(OSError, ValueError):
                self.bar.close()

    def _draw(self) -> None:
        from tqdm import tqdm

        columns = _columns()
        if self.bar is None:
            self.bar = tqdm(
                total=self.total or None,
                desc=self._title,
                unit=self._unit,
                file=_stream(),
                leave=False,
                position=self._place,
                ncols=columns,
                mininterval=0,
                miniters=0,
                smoothing=0,  # some parts come in few large steps
                delay=1e-9,  # not before its begin is known
            )
            self.bar.start_t = self.bar.last_print_t = self._began
            self.bar.delay = 0
        if self.total:
            self.bar.total = self.total
        # Above its total tqdm would forget that.
        done = round(min(self.done, self.total) if self.total else self.done, 1)
        # Of what is only waited for nothing is known but the time.
        self.bar.bar_format = _SHARE if self.total else _COUNT if done else _TIME
        self.bar.unit_scale = self._unit == "B" or max(done, self.total) >= _LARGE
        self.bar.ncols = columns
        # An error of the terminal would keep the lock, if refresh() took it.
        with tqdm.get_lock():
            self.bar.n = done
            self.bar.refresh(nolock=True)


class _Beside:
    """Standard error while there are bars: whole lines are written above them."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        from tqdm import tqdm

        with tqdm.get_lock():
            lines, end, self._begun = (self._begun + text).rpartition("\n")
            if end:
                with tqdm.external_write_mode(file=self.stream):
                    self.stream.write(lines + end)
        return len(text)

    def end(self) -> None:
        """Write what is not a whole line."""
        with suppress(OSError, ValueError):
            self.stream.write(self._begun)
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _columns() -> int:
    """How many columns of the terminal a bar may take."""
    # Some terminals do not know their size and say 0, which would let tqdm cut its line for ever.
    try:
        columns = os.get_terminal_size(_stream().fileno()).columns or 80
    except (OSError, ValueError):
        # The window of a development environment, which is no device.
        columns = 80
    return max(columns - 1, 1)


def _stream() -> Any:
    return sys.stderr.stream if isinstance(sys.stderr, _Beside) else sys.stderr


def _printable(title: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in title[: 4 * _TITLE])
    if len(shown) > _TITLE:
        shown = f"{shown[: _TITLE - 1]}…"
    # What a terminal cannot show would be written in more characters than a bar counts.
    encoding = _stream().encoding
    return shown.encode(encoding, "replace").decode(encoding)
