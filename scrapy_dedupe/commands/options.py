"""The options of verbs. An option that several verbs have is declared here."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError, UsageError
from scrapy_dedupe.reports.wording import moment

if TYPE_CHECKING:
    import argparse
    from datetime import datetime


_AGE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([hdw]?)")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24, "": 24}


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


def time_before(age: str, now: datetime, option: str = "--older-than") -> datetime:
    """Return the time (UTC) that lies *age* before *now*: ``30d``, ``12h``, ``8w``, or a date or time.

    A number without a unit counts days.

    Raises :class:`~scrapy_dedupe.errors.SettingError`, which names *option*, for any other text.

    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> [time_before(age, now).isoformat()[:13] for age in ("1", "1.5d", "12h", "2w", "2026-01-01")]
    ['2026-03-01T12', '2026-03-01T00', '2026-03-02T00', '2026-02-16T12', '2026-01-01T00']
    """
    if match := _AGE.fullmatch(age):
        try:
            return now - timedelta(hours=float(match[1]) * _HOURS[match[2]])
        except OverflowError as error:
            raise SettingError(f"{option} is {age!r}, which is too long ago.") from error
    time = moment(age)
    if time is None:
        raise SettingError(
            f"{option} is {age!r}. Allowed: hours such as 12h, days such as 30d, weeks such as 8w, or a date or time"
            " such as 2026-01-01."
        )
    return time


CRAWL_ID: Final = Option("id", "ID", "the crawl's id, see `scrapy dedupe crawls`")
CRAWL_IDS: Final = Option("ids", "ID", "the ids of crawls, see `scrapy dedupe crawls`", nargs="*")
DRY_RUN: Final = flag("--dry-run", "show what would be done, and change nothing")
FORCE: Final = flag("--force", "replace existing files")
JOBS: Final = Option("--jobs", "N", "processes; 0 for all cores (default: %(default)s)", least=0, default=1)
KEEP_GOING: Final = flag("--keep-going", "skip damaged places, report them, and continue (exit code 4)")
RECURSIVE: Final = flag("-r --recursive", "include the subfolders of a folder")
WARC_DIR: Final = Option(
    "--warc-dir",
    "DIR",
    "where to look for WARC files (default: where the index says, and DEDUPE_WARC_DIR)",
    type=Path,
)
