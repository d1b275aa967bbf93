"""``scrapy-dedupe VERB``: the verbs without Scrapy's command line, inside or outside of a project."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from scrapy_dedupe import __version__

from .running import run_verb
from .verbs import add_verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.settings import Settings

PROG = "scrapy-dedupe"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (see :mod:`.verbs`)."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Inspect and manage deduplication data. Inside a Scrapy project the stores are those of its"
        " settings, outside of one .scrapy/dedupe/dedupe.sqlite in the working folder; --store names another one.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    add_verbs(parser, PROG)
    opts = parser.parse_args(argv)
    if opts.verb is None:
        parser.print_help(sys.stderr)
        print(f"{PROG}: a verb is missing.", file=sys.stderr)
        return 2
    return run_verb(opts, _project_settings)


def _project_settings() -> Settings:
    from scrapy.utils.project import get_project_settings

    return get_project_settings()


if __name__ == "__main__":
    sys.exit(main())
