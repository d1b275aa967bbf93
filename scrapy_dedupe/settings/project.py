"""The Scrapy command that runs: whether there is one, whether it crawls, and the settings it would have in this folder."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.project import ENVVAR

from .specs import Settings, read_settings

if TYPE_CHECKING:
    from types import FrameType

    from scrapy.crawler import Crawler

# `scrapy view` runs the code of `scrapy fetch`.
_LOOKING: Final = ("scrapy.commands.check", "scrapy.commands.fetch", "scrapy.commands.parse")
_SHELL: Final = "scrapy.commands.shell"
_COMMAND_LINE: Final = "scrapy.cmdline"


def is_crawl(crawler: Crawler) -> bool:
    """Whether *crawler* runs a crawl, and not ``scrapy check``, ``parse``, ``fetch``, ``view`` or ``shell``.

    These commands only show pages: nothing is recorded for later crawls.
    """
    # The first four commands replace the spider's start() by a function of their own.
    if getattr(getattr(crawler.spidercls, "start", None), "__module__", None) in _LOOKING:
        return False
    # The shell never calls crawl(). In its crawler, the shell's default settings have the priority "command" or,
    # if the project sets them, a higher one.
    shell = sys.modules.get(_SHELL)
    return (
        shell is None
        or crawler.crawling
        or any(
            (crawler.settings.getpriority(name) or 0) < SETTINGS_PRIORITIES["command"]
            for name in shell.Command.default_settings
        )
    )


def is_run_by_command() -> bool:
    """Whether a Scrapy command runs this code, and not a program that uses Scrapy. Call it on the thread of the crawl."""
    # The command calls the event loop, which calls all code of the crawl. No setting tells that a command runs.
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _COMMAND_LINE:
            return True
        frame = frame.f_back
    return False


def settings_of_file() -> Settings:
    """The settings that a command would have in this folder. Raises :class:`~scrapy_dedupe.errors.SettingError`.

    If the settings module was not imported for the crawl, it is not imported here either, since importing it may have
    side effects.
    """
    found = ScrapySettings()
    module = sys.modules.get(os.environ.get(ENVVAR, ""))
    if module is not None:
        found.setmodule(module)
    return read_settings(found)
