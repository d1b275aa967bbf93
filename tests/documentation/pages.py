"""A page as a whole: its blocks are run in their order."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from documentation import console, python_blocks, synopses
from documentation.blocks import Block, blocks_of
from documentation.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from documentation.place import Interpreter, Programs
    from documentation.worlds import World

ROOT = Path(__file__).parents[2]
SHOWN = {"text", "none", "html", "xml", "rst", "diff", ""}
"""Languages of blocks that are only shown."""


def pages() -> list[str]:
    """Pages with a block that is to be run or checked."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]
    return [
        str(file.relative_to(ROOT))
        for file in files
        if "_build" not in file.parts and any(block.language not in SHOWN for block in blocks_of(file))
    ]


def run_page(file: Path, world: World, folder: Path, programs: Programs, redis_url: str) -> None:
    """Run all blocks of a page in their order."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    interpreters: list[Interpreter] = []

    def interpreter() -> Interpreter:
        if not interpreters:
            interpreters.append(place.interpreter())
            printed, error = interpreters[0].run(world.scripts)
            assert error is None, printed + error
        return interpreters[0]

    with Place(world, folder, programs, port) as place:
        try:
            for block in [*_steps_before(world), *blocks_of(file)]:
                run_block(place, block, interpreter)
        finally:
            for started in interpreters:
                started.close()


def _steps_before(world: World) -> list[Block]:
    """The blocks of the page that was followed before, up to its first crawl."""
    blocks = blocks_of(ROOT / world.after) if world.after else []
    return list(takewhile(lambda block: "$ scrapy crawl" not in block.text, blocks))


def run_block(place: Place, block: Block, interpreter: Callable[[], Interpreter]) -> None:
    if block.caption is not None:
        target = place.home / block.caption
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.name == "settings.py":
            python_blocks.add_settings(target if target.exists() else place.settings, block.text)
        else:
            target.write_text(block.text + "\n", encoding="utf-8")
    elif block.language in {"console", "shell-session"}:
        if place.world.synopses:
            synopses.check(block)
        else:
            console.run(place, block)
    elif block.language in {"python", "py", "pycon"}:
        python_blocks.run(place, block, interpreter)
    elif block.language in {"json", "toml", "yaml"}:
        python_blocks.check_data(block)
    else:
        assert block.language in SHOWN, f"{block.page}:{block.line}: {block.language} is not run"
