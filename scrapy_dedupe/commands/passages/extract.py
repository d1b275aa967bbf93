"""``passages extract``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import UsageError

from .roots import add_root

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.place import Place

HELP = "List the passages that stand in several documents."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root(parser)


def run(place: Place, opts: argparse.Namespace) -> Any:
    raise UsageError("passages extract is not there yet.")


def text(result: Any) -> str:
    return ""
