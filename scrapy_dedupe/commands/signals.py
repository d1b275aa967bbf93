"""Ctrl-C and SIGTERM: a verb puts away what it has open, says one sentence, and ends as the signal would have ended it."""

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
    """A signal asked for an end. What handles errors lets it pass, and what has something open closes it."""


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Raise `Stopped` at a signal that asks for an end, and give the list that its number is put in.

    A second signal ends the process at once. A signal that is ignored stays so, as below ``nohup``.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = [number for number in _ENDING if before[number] not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for other in heard:
            signal.signal(other, signal.SIG_DFL)
        raise SignalReceived

    for number in heard:
        signal.signal(number, stop)
    try:
        yield signals
    finally:
        if not signals:
            for number in heard:
                signal.signal(number, before[number])


def end_by(number: int) -> NoReturn:
    """End this process as one ends that does not handle the signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError("The signal did not end this process.")
