"""Spiders: whether they can be loaded, and whether the settings that each has of its own are right."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.settings.names import unknown_names
from scrapy_dedupe.settings.placement import PLACES, named_components
from scrapy_dedupe.settings.specs import faults_of

from .context import loading_spiders, spider_loader
from .finding import Said, note, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from .context import DoctorContext

_TOLD: Final = 5


def check(patient: DoctorContext) -> Iterator[Said]:
    """Nothing is said of spiders that have no settings of their own, nor if one of them is looked at by its name."""
    if patient.spider is not None or patient.is_store_given:
        return
    try:
        spiders = _spiders(patient.given)
    except SettingError as error:
        yield problem(str(error), "Correct it: no spider of the project starts.")
        return
    told = 0
    for spider in spiders:
        for said in _of(spider, patient):
            if told == _TOLD:
                yield note(
                    "More spiders have wrong settings of their own.", "--spider NAME looks at one of them."
                )
                return
            told += 1
            yield said


def with_components(patient: DoctorContext) -> list[str]:
    """The names of the spiders whose own settings name a class of this package."""
    try:
        spiders = _spiders(patient.given)
    except SettingError:
        return []
    return [
        spider.name
        for spider in spiders
        if any(path in PLACES for _, path in named_components(_settings_of(spider, patient)))
    ]


def _spiders(settings: BaseSettings) -> list[type[Spider]]:
    with loading_spiders(), warnings.catch_warnings():
        # With SPIDER_LOADER_WARN_ONLY Scrapy tells of those that it cannot load each time.
        warnings.simplefilter("ignore")
        loader = spider_loader(settings)
        return [loader.load(name) for name in sorted(loader.list())]


def _settings_of(spider: type[Spider], patient: DoctorContext) -> BaseSettings:
    settings = patient.given.copy()
    with loading_spiders():
        spider.update_settings(settings)
    return settings


def _of(spider: type[Spider], patient: DoctorContext) -> Iterator[Said]:
    if not spider.custom_settings:
        return
    settings = _settings_of(spider, patient)
    for fault in faults_of(settings):
        if fault not in patient.faults:
            yield warning(
                f"The spider {spider.name} has a wrong setting. {fault}",
                f"Correct it in its custom_settings: no crawl of {spider.name} starts with it.",
            )
    known = {name for name, _ in unknown_names(patient.given)}
    for name, nearest in unknown_names(settings):
        if name not in known:
            yield warning(
                f"The setting {name} of the spider {spider.name} is unknown and has no effect.",
                f"Did you mean {nearest}?" if nearest else "Take it out; the reference lists all settings.",
            )
