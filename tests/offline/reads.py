"""The bytes that this process has read, as the system counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

_COUNTS = Path("/proc/self/io")
needs_counts = pytest.mark.skipif(
    not _COUNTS.exists(), reason="the system does not count the bytes that a process reads"
)


def bytes_read() -> int:
    """The bytes that this process has read so far, also in copies by the kernel."""
    return int(_COUNTS.read_text().partition("rchar: ")[2].split()[0])
