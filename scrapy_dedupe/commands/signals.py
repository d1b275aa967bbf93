"""Ctrl-C and SIGTERM: a verb releases its resources, prints one sentence, and ends by the signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class SignalReceived(KeyboardInterrupt):
    """SIGINT or SIGTERM was received. Like KeyboardInterrupt it passes ``except Exception``, and ``finally`` releases resources."""


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Raise `SignalReceived` at SIGINT or SIGTERM, and append the number of the signal to the returned list.

    A second signal ends the process immediately. Ignored signals stay ignored, as under ``nohup``.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    handled = [number for number in _ENDING if before[number] not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for other in handled:
            signal.signal(other, signal.SIG_DFL)
        raise SignalReceived

    for number in handled:
        signal.signal(number, stop)
    try:
        yield signals
    finally:
        if not signals:
            for number in handled:
                signal.signal(number, before[number])


def end_by(number: int) -> NoReturn:
    """End this process like one that does not handle the signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError("The signal did not end this process.")
