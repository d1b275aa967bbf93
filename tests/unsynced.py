"""What writes files without waiting for the disk: most of the time of small files is such waiting.

Only a power failure shows the difference; a kill loses nothing that was written.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any


def fsync(fd: int) -> None:
    """Stands for :func:`os.fsync`."""


class _Connection(sqlite3.Connection):
    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous=NORMAL", "synchronous=OFF"), *parameters)


connect = partial(sqlite3.connect, factory=_Connection)
"""Stands for :func:`sqlite3.connect`."""
