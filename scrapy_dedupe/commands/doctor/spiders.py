"""Spiders: whether they can be loaded, and whether their ``custom_settings`` are right."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.settings.placement import PLACES, named_components
from scrapy_dedupe.settings.specs import faults_of, unknown_names

from .context import loading_spiders, spider_loader
from .finding import CheckFinding, note, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from .context import DoctorContext

_MAX_REPORTED: Final = 5


def check(context: DoctorContext) -> Iterator[CheckFinding]:
    """Check all spiders with ``custom_settings``. Yields nothing with ``--spider`` or ``--store``."""
    if context.spider is not None or context.is_store_given:
        return
    try:
        spiders = _spiders(context.given)
    except SettingError as error:
        yield problem(str(error), "Correct it: no spider of the project starts.")
        return
    reported = 0
    for spider in spiders:
        for result in _setting_faults(spider, context):
            if reported == _MAX_REPORTED:
                yield note("More spiders have wrong custom_settings.", "--spider NAME checks one of them.")
                return
            reported += 1
            yield result


def with_components(context: DoctorContext) -> list[str]:
    """Return the names of the spiders whose own settings name a class of this package."""
    try:
        spiders = _spiders(context.given)
    except SettingError:
        return []
    return [
        spider.name
        for spider in spiders
        if any(path in PLACES for _, path in named_components(_settings_of(spider, context)))
    ]


def _spiders(settings: BaseSettings) -> list[type[Spider]]:
    with loading_spiders(), warnings.catch_warnings():
        # With SPIDER_LOADER_WARN_ONLY Scrapy warns each time about spiders that it cannot load.
        warnings.simplefilter("ignore")
        loader = spider_loader(settings)
        return [loader.load(name) for name in sorted(loader.list())]


def _settings_of(spider: type[Spider], context: DoctorContext) -> BaseSettings:
    settings = context.given.copy()
    with loading_spiders():
        spider.update_settings(settings)
    return settings


def _setting_faults(spider: type[Spider], context: DoctorContext) -> Iterator[CheckFinding]:
    if not spider.custom_settings:
        return
    settings = _settings_of(spider, context)
    for fault in faults_of(settings):
        if fault not in context.faults:
            yield warning(
                f"The spider {spider.name} has a wrong setting. {fault}",
                f"Correct it in its custom_settings: no crawl of {spider.name} starts with it.",
            )
    known = {name for name, _ in unknown_names(context.given)}
    for name, nearest in unknown_names(settings):
        if name not in known:
            yield warning(
                f"The setting {name} of the spider {spider.name} is unknown and has no effect.",
                f"Did you mean {nearest}?" if nearest else "Remove it; the reference lists all settings.",
            )
