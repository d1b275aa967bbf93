"""Progress bars on the terminal for long-running commands.

A separate thread draws the bars five times per second. Reporting progress therefore costs only an addition, and the
elapsed time keeps counting while the command waits for a store. Other output to stderr appears above the bars. The bars
are cleared at the end.
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
    """A `Progress` that draws on stderr. It draws nothing if stderr is not a terminal, with ``--json``, or with
    TQDM_DISABLE.

    The bar of a part that completes is first set to 100%. After an error or Ctrl-C the bars are cleared as they are.
    """

    def __init__(self, opts: argparse.Namespace) -> None:
        self.is_shown = (
            not opts.json
            and _is_terminal(sys.stderr)
            and not os.environ.get("TQDM_DISABLE")
            # Lines of the result on the same terminal would mix with the bars.
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
            # Nested parts may be numerous and short: they are drawn only if they last until the next redraw.
            if len(self._parts) == 1:
                self._start()
                self.draw()

    def advance(self, count: int) -> None:
        if self._parts:
            self._parts[-1].done += count

    def reach(self, done: float, total: int) -> None:
        """Set how much of the innermost part is done, and its total, which may have grown."""
        if self._parts:
            self._parts[-1].done, self._parts[-1].total = done, total

    def end(self) -> None:
        if not self._parts:
            return
        with self._lock:
            ended = self._parts.pop()
            # A part that an error has ended is not complete.
            if ended.total and sys.exc_info()[0] is None:
                ended.done = ended.total
            try:
                if ended.bar is not None:
                    ended.draw()
            finally:
                ended.close()

    @contextmanager
    def part(self, title: str, total: int, unit: str = "B") -> Iterator[None]:
        """Begin a part that ends with the block."""
        with part(self, title, total, unit):
            yield

    def counted(self, items: Iterable[T], title: str, total: int, unit: str) -> Iterator[T]:
        """Yield the *items*, and count each one when the next is requested."""
        with self.part(title, total, unit):
            yield from counted(items, self)

    @contextmanager
    def kinds(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        """Begin one part for each kind of entry for which a store reports progress (kind, done, total)."""
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
        """Redraw all bars."""
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
            wrapper, sys.stderr = self._stderr, self._stderr.stream
            for handler in self._handlers:
                handler.setStream(wrapper.stream)
            self._stderr = None
            wrapper.end()

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._stderr = sys.stderr = _StderrAboveBars(sys.stderr)
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
    """A part of the work. It has a bar from its first drawing on."""

    def __init__(self, title: str, total: int, unit: str, place: int) -> None:
        self.done: float = 0
        self.total = total
        self.bar: Any = None
        self._title = _printable(title)
        self._unit = unit if unit == "B" else f" {unit}"
        self._place = place
        self._began = time.time()

    def draw(self) -> None:
        # The terminal may be closed or unable to encode a character. Neither must stop the command.
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
                smoothing=0,  # some parts advance in a few large steps
                delay=1e-9,  # tqdm must not draw before start_t is set below
            )
            self.bar.start_t = self.bar.last_print_t = self._began
            self.bar.delay = 0
        if self.total:
            self.bar.total = self.total
        # tqdm drops the total when the count exceeds it.
        done = round(min(self.done, self.total) if self.total else self.done, 1)
        # While the command only waits, the elapsed time is all there is to show.
        self.bar.bar_format = _SHARE if self.total else _COUNT if done else _TIME
        self.bar.unit_scale = self._unit == "B" or max(done, self.total) >= _LARGE
        self.bar.ncols = columns
        # If refresh() took the lock, an error of the terminal would leave it locked.
        with tqdm.get_lock():
            self.bar.n = done
            self.bar.refresh(nolock=True)


class _StderrAboveBars:
    """Standard error while progress bars are shown: complete lines are written above the bars."""

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
        """Write the rest, which is not a complete line."""
        with suppress(OSError, ValueError):
            self.stream.write(self._begun)
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _columns() -> int:
    """Return how many columns of the terminal a bar may take."""
    # Some terminals report the size 0. With ncols=0 tqdm would print no bar at all.
    try:
        columns = os.get_terminal_size(_stream().fileno()).columns or 80
    except (OSError, ValueError):
        # For example the console of a development environment, which has no file descriptor.
        columns = 80
    return max(columns - 1, 1)


def _stream() -> Any:
    return sys.stderr.stream if isinstance(sys.stderr, _StderrAboveBars) else sys.stderr


def _printable(title: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in title[: 4 * _TITLE])
    if len(shown) > _TITLE:
        shown = f"{shown[: _TITLE - 1]}…"
    # A character that the terminal cannot encode would be escaped and make the line too long.
    encoding = _stream().encoding
    return shown.encode(encoding, "replace").decode(encoding)
