"""Every block of code of the documentation does what the page says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sampling import sampled

from documentation import synopses
from documentation.pages import ROOT, pages, run_page
from documentation.worlds import WORLDS

if TYPE_CHECKING:
    from pathlib import Path

    from documentation.place import Programs


# These pages need several crawls or large archives, and take most of the time.
SLOW = (
    "docs/guides/",
    "docs/example.rst",
    "docs/setup.rst",
    "docs/start.rst",
    "docs/usage/near.rst",
    "docs/usage/offline.rst",
    "docs/usage/passages.rst",
    "docs/usage/report.rst",
)


@pytest.mark.parametrize("page", sampled(pages(), [page for page in pages() if not page.startswith(SLOW)]))
def test_every_block_of_a_page_works(page: str, tmp_path: Path, programs: Programs, redis_url: str) -> None:
    assert page in WORLDS, f"{page} has code and no world: give it one in tests/documentation/worlds.py"
    run_page(ROOT / page, WORLDS[page], tmp_path / "world", programs, redis_url)


def test_every_world_has_a_page() -> None:
    assert not [page for page in WORLDS if not (ROOT / page).exists()]


def test_every_option_of_a_verb_is_in_its_section_of_the_reference() -> None:
    page = (ROOT / "docs/reference/commands.rst").read_text(encoding="utf-8")
    assert synopses.undocumented(page) == []
    assert "purge  --older-than" in synopses.undocumented(page.replace("--older-than", "--older"))
