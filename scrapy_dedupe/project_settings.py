"""What the settings file of the project says by itself, without the spider, the command line and a script."""

from __future__ import annotations

import os
import sys

from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.project import ENVVAR

from .settings import Settings, read_settings


def settings_of_file() -> Settings:
    """The settings that a command has in this folder. Raises :class:`~scrapy_dedupe.errors.SettingError`.

    A file that was not loaded for the crawl is not loaded here either: it may do anything.
    """
    found = ScrapySettings()
    module = sys.modules.get(os.environ.get(ENVVAR, ""))
    if module is not None:
        found.setmodule(module)
    return read_settings(found)
