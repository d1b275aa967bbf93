"""The browser of the tests that need one."""

from __future__ import annotations

import os
import shutil

import pytest


def browser() -> str:
    """The path of Chromium; the test fails if there is none."""
    for name in (os.environ.get("CHROMIUM_BIN"), "chromium", "google-chrome", "chromium-browser"):
        if name and (found := shutil.which(name)):
            return found
    pytest.fail("No Chromium is there. Install it, or name its program in CHROMIUM_BIN.")
