"""The options of verbs. An option that several verbs have is declared here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import UsageError

if TYPE_CHECKING:
    import argparse


class Option:
    """An option with its short and long name, or a positional argument, whose name has no dash.

    *least* makes the value a whole number with this minimum.
    """

    def __init__(
        self, names: str, metavar: str | None, text: str, *, least: int | None = None, **settings: Any
    ) -> None:
        self._names = names.split()
        self._least = least
        self._settings = {"help": text, **settings}
        if metavar is not None:
            self._settings["metavar"] = metavar
        if least is not None:
            self._settings["type"] = int

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument(*self._names, **self._settings)

    def check(self, opts: argparse.Namespace) -> None:
        """Raise UsageError if the value is too small."""
        if self._least is None:
            return
        name = self._names[-1]
        value = getattr(opts, name.removeprefix("--").replace("-", "_"))
        if value is not None and value < self._least:
            raise UsageError(f"{name} is {value}. Give a number of at least {self._least}.")


class Exclusive:
    """Options of which at most one may be given, or exactly one if *required*."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self._options = options
        self._required = required

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=self._required)
        for option in self._options:
            option.add_to(group)

    def check(self, opts: argparse.Namespace) -> None:
        for option in self._options:
            option.check(opts)


def flag(names: str, text: str, **settings: Any) -> Option:
    """An option without a value."""
    return Option(names, None, text, action="store_true", **settings)


def is_standard_output(opts: argparse.Namespace) -> bool:
    """Whether ``-o`` names standard output."""
    return str(getattr(opts, "output", None)) in ("-", "/dev/stdout")


CRAWL_ID: Final = Option("id", "ID", "the crawl's id, as the verb crawls lists it")
CRAWL_IDS: Final = Option("ids", "ID", "the ids of crawls, as the verb crawls lists them", nargs="*")
DRY_RUN: Final = flag("--dry-run", "show what would be done, and change nothing")
FORCE: Final = flag("--force", "replace existing files")
JOBS: Final = Option("--jobs", "N", "processes; 0 for all cores (default: %(default)s)", least=0, default=1)
KEEP_GOING: Final = flag("--keep-going", "skip damaged places, report them, and continue (exit code 4)")
RECURSIVE: Final = flag("-r --recursive", "include the subfolders of a folder")
WARC_DIR: Final = Option(
    "--warc-dir",
    "DIR",
    "the folder of the WARC files, if they are not where the index says (default: DEDUPE_WARC_DIR)",
    type=Path,
)
