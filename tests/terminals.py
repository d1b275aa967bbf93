"""A terminal for what writes to stderr: a pseudo terminal of the system, and what somebody would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, TextIO

COLUMNS = 110
# Characters of control that no program writes here.
_HERE, _END = b"\x05", b"\x04"
_STEPS = re.compile(r"\x1b\[A|.", re.DOTALL)


class Terminal:
    """A context manager; ``stream`` writes to the terminal. ``code`` is for the exit code of who has written."""

    def __init__(self, columns: int = COLUMNS, encoding: str = "utf-8") -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.stream: TextIO = os.fdopen(
            os.dup(self.slave), "w", buffering=1, encoding=encoding, errors="backslashreplace"
        )
        self.code = 0
        self._read = b""
        self._marks = 0
        self._has_more = threading.Condition()
        self._reader = threading.Thread(target=self._run)
        self._reader.start()

    @property
    def written(self) -> str:
        """All that was written until now."""
        self._mark(_HERE)
        return self._read.replace(_HERE, b"").partition(_END)[0].decode(self.stream.encoding)

    @property
    def screen(self) -> list[str]:
        """The lines that are to be seen now, without empty ones at the end."""
        return screen_of(self.written)

    @property
    def frames(self) -> list[str]:
        """Everything that stood on a line at some time, in order."""
        return [frame.rstrip() for frame in re.split(r"[\r\n]+|\x1b\[A", self.written) if frame.strip()]

    def hang_up(self) -> None:
        """The window is closed: whatever is written is an error."""
        self._mark(_END)
        self._reader.join()
        os.close(self._master)
        self._master = -1

    def _mark(self, mark: bytes) -> None:
        if self._master >= 0:
            with self._has_more:
                self._marks += 1
                os.write(self.slave, mark)
                # Others may go on writing.
                while self._read.count(_HERE) + self._read.count(_END) < self._marks:
                    self._has_more.wait()

    def _run(self) -> None:
        # As long as the other side is open somewhere, reading is no error.
        while _END not in self._read:
            piece = os.read(self._master, 65_536)
            with self._has_more:
                self._read += piece
                self._has_more.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._master >= 0:
            with suppress(OSError):
                self.stream.flush()
            self.hang_up()
        os.close(self.slave)
        with suppress(OSError):
            self.stream.close()


def screen_of(written: str) -> list[str]:
    """What is seen after all that was written, as a terminal without an end shows it.

    >>> screen_of("one\\r\\nten\\rt\\r\\n\\x1b[Aw")
    ['one', 'wen']
    """
    lines: list[list[str]] = [[]]
    row = column = 0
    for step in _STEPS.findall(written):
        if step == "\r":
            column = 0
        elif step == "\n":
            row += 1
            lines += [[]] * (row == len(lines))
            lines[row] = list(lines[row])
        elif step == "\x1b[A":
            row = max(0, row - 1)
        else:
            line = lines[row]
            line += " " * (column + 1 - len(line))
            line[column] = step
            column += 1
    shown = ["".join(line).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    return shown
