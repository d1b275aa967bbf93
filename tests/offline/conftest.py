"""What the tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _unsynced(unsynced: None) -> None:
    """For all tests of this folder."""
