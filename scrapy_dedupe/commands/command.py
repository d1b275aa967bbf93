"""``scrapy dedupe VERB``.

Every ``scrapy`` call loads this module, so it imports the rest of the package only when the command is used.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class HelpFormatter(ScrapyHelpFormatter):
    """Scrapy's formatter turns each line that ends in a colon into a heading. This one does not do so in help texts."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = super()._split_lines(text.replace(": ", ":\0"), width)
        return [line.replace("\0", " ") for line in lines]


class Command(ScrapyCommand):
    """The command that Scrapy finds through the entry point group ``scrapy.commands``."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "[options] VERB ..."

    def short_desc(self) -> str:
        return "Inspect and manage deduplication data"

    def long_desc(self) -> str:
        return (
            "Inspect and manage deduplication data: statistics, crawls, the crawl index and WARC files."
            ' "scrapy dedupe VERB --help" explains a verb.'
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        from scrapy_dedupe import __version__

        from .verbs import add_verbs

        super().add_options(parser)
        parser.formatter_class = HelpFormatter
        parser.add_argument("--version", action="version", version=f"scrapy-dedupe {__version__}")
        add_verbs(parser, "scrapy dedupe", _add_scrapy_options)

    def process_options(self, args: Sequence[str], opts: argparse.Namespace) -> None:
        opts.set = [*opts.set, *getattr(opts, "set_after", ())]
        super().process_options(list(args), opts)

    def run(self, args: Sequence[str], opts: argparse.Namespace) -> None:
        from .console import run_verb

        if args:
            raise UsageError(f"unrecognized arguments: {' '.join(args)}")
        if opts.verb is None:
            raise UsageError("a verb is missing, see scrapy dedupe --help")
        settings = self.settings
        assert settings is not None
        self.exitcode = run_verb(opts, lambda: settings)


def _add_scrapy_options(parser: argparse.ArgumentParser) -> None:
    # Scrapy's options are also allowed after the verb. A default here would override a value given before the verb.
    group = parser.add_argument_group("Scrapy's options")
    group.add_argument(
        "-s",
        "--set",
        dest="set_after",
        action="append",
        default=argparse.SUPPRESS,
        metavar="NAME=VALUE",
        help="set/override setting (may be repeated)",
    )
    absent = argparse.SUPPRESS
    group.add_argument("--logfile", metavar="FILE", default=absent, help="log file")
    group.add_argument("-L", "--loglevel", metavar="LEVEL", default=absent, help="log level")
    group.add_argument("--nolog", action="store_true", default=absent, help="disable logging completely")
