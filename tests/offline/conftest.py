"""What all tests of this folder have in common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def unsynced() -> Iterator[None]:
    """No waiting for the disk, which is most of the time of small files; what is synced shows after a power cut alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield
