"""Waiting for what another thread or process does: until a condition holds, never for a fixed time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Far more than anything takes on a busy machine.
LONGEST_S = 240.0


def wait_until(condition: Callable[[], object], shown: Callable[[], object] = lambda: "") -> None:
    """Call *condition* until its result is true; fail with what *shown* returns if that takes minutes."""
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end, shown()
        time.sleep(0.005)
