"""Settings: their values, those of spiders, and the components that they place.

Unknown names, wrong values and contradictions; spiders that cannot be loaded, or whose ``custom_settings`` are wrong;
components of this package in the wrong setting or order.
"""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from scrapy.utils.misc import load_object

from scrapy_dedupe.commands.output import listed
from scrapy_dedupe.commands.stores import spider_loader
from scrapy_dedupe.errors import DedupeError, SettingError
from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.settings.placement import (
    PLACES,
    archive_faults,
    cache_faults,
    is_cache,
    misplaced,
    named_components,
    order_faults,
    rules_faults,
)
from scrapy_dedupe.settings.specs import faults_of, set_names, unknown_names

from .context import Finding, from_error, loading_spiders, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from scrapy_dedupe.settings.specs import Settings

    from .context import DoctorContext

_MAX_REPORTED: Final = 5
_WORDS: Final = {
    "urls": "the URL filter",
    "content": "the content layer",
    "archive": "the archive",
    "passages": "the passage index",
}


def check_settings(context: DoctorContext) -> Iterator[Finding]:
    for name, nearest in unknown_names(context.given):
        yield _unknown(f"The setting {name}", nearest)
    for fault in context.faults:
        yield problem(fault, "Correct it: no crawl starts with it.")
    if context.settings is None:
        return
    names = len(set_names(context.given))
    yield ok(
        f"{counted(names, 'DEDUPE_ setting')} set, all with allowed values."
        if names
        else "No DEDUPE_ setting is set; all have their defaults."
    )
    yield from _contradictions(context, context.settings)


def _unknown(setting: str, nearest: str | None) -> Finding:
    return warning(
        f"{setting} is unknown and has no effect.",
        f"Did you mean {nearest}?" if nearest else "Remove it; the reference lists all settings.",
    )


def _contradictions(context: DoctorContext, settings: Settings) -> Iterator[Finding]:
    layers = context.layers
    if "content" in layers and settings.content.action_unchanged == "drop":
        yield note(
            "Unchanged pages are dropped together with their links: an unchanged start page ends the crawl.",
            'To avoid this, set DEDUPE_ACTION_UNCHANGED = "mark", or meta["dedupe_action"] of the request.',
        )
    if "archive" in layers:
        if settings.warc.scope == "items":
            yield note(
                'With DEDUPE_WARC_SCOPE = "items" only responses that the spider yields as WarcItem(response) are archived;'
                " the doctor cannot check whether it does so."
            )
        if settings.warc.crawl_id is not None:
            yield note(
                f"All crawls have the id {settings.warc.crawl_id} (DEDUPE_CRAWL_ID). After a crawl with this id has been"
                " committed, no other one can start.",
                "Set it on the command line of each crawl, or remove it.",
            )
        if is_cache(context.scrapy_settings):
            yield ok(
                "Scrapy's HTTP cache reads the archive, with the policy"
                f" {context.scrapy_settings['HTTPCACHE_POLICY']}."
            )
        elif context.scrapy_settings.getbool("HTTPCACHE_ENABLED"):
            yield note(
                "Scrapy's HTTP cache is on. Its responses are not exchanges with a server and are not archived.",
                "Turn HTTPCACHE_ENABLED off for crawls that must be archived completely.",
            )
    for faults in (archive_faults, cache_faults, rules_faults):
        for sentence, remedy in faults(context.scrapy_settings):
            yield warning(sentence, remedy)
    if settings.replay.files and settings.replay.missing == "fail":
        yield note(
            "Requests are answered from an archive (DEDUPE_REPLAY); nothing is fetched, and nothing archived."
        )
    if "urls" in layers and settings.urls.store_url is None and context.is_queue_shared:
        yield warning(
            "The request queue is shared through Redis (SCHEDULER), but the URL filter is not, so several processes"
            " request the same pages.",
            "Set DEDUPE_URL_STORE_URL to the URL of the Redis server.",
        )


def check_spiders(context: DoctorContext) -> Iterator[Finding]:
    """Check all spiders with ``custom_settings``. Yields nothing with ``--spider`` or ``--store``."""
    if context.spider is not None or context.is_store_given:
        return
    try:
        spiders = _spiders(context.given)
    except SettingError as error:
        yield problem(str(error), "Correct it: no spider of the project starts.")
        return
    faults = chain.from_iterable(_setting_faults(spider, context) for spider in spiders)
    yield from islice(faults, _MAX_REPORTED)
    if next(faults, None) is not None:
        yield note("More spiders have wrong custom_settings.", "--spider NAME checks one of them.")


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


def _setting_faults(spider: type[Spider], context: DoctorContext) -> Iterator[Finding]:
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
            yield _unknown(f"The setting {name} of the spider {spider.name}", nearest)


def check_components(context: DoctorContext) -> Iterator[Finding]:
    unloadable = list(_unloadable(context))
    yield from unloadable
    if isinstance(context.addon_error, DedupeError):
        yield from_error(context.addon_error, "No crawl starts with it.")
    elif context.addon_error is not None and not unloadable:
        yield problem(
            f"An add-on cannot be loaded ({type(context.addon_error).__name__}: {context.addon_error}).",
            "Correct the setting ADDONS; no crawl starts with it.",
        )
    wrong_places = misplaced(context.scrapy_settings)
    for sentence in wrong_places:
        yield problem(sentence, "No crawl starts with it.")
    layers = context.layers
    faults = order_faults(context.scrapy_settings) if "content" in layers else []
    if layers:
        has_addon = any(path == "scrapy_dedupe.Addon" for _, path in named_components(context.given))
        way = "the add-on" if has_addon else "classes in the settings"
        words = [word for layer, word in _WORDS.items() if layer in layers]
        if not (wrong_places or context.addon_error or any(fault.is_refused for fault in faults)):
            all_words = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
            yield ok(f"Crawls have {all_words}, through {way}.")
        yield from _other_filter(context, layers)
    elif not (unloadable or wrong_places or context.faults or context.addon_error):
        yield _nothing_set(context)
    if "content" in layers:
        for fault in faults:
            yield (
                problem(fault.sentence, "No crawl starts with it.")
                if fault.is_refused
                else warning(fault.sentence, "Correct DOWNLOADER_MIDDLEWARES.")
            )
        if not faults:
            yield ok("The content layer is placed where pages are decoded and redirects are followed.")


def _unloadable(context: DoctorContext) -> Iterator[Finding]:
    """Report names of this package that cannot be loaded, such as misspelt ones."""
    for setting, path in dict.fromkeys(named_components(context.given)):
        if path in PLACES or not _is_meant_for_package(path):
            continue
        try:
            component = load_object(path)
        except Exception as error:  # noqa: BLE001 - loading a module may raise any exception
            reason = f"{type(error).__name__}: {error}"
        else:
            if isinstance(component, type):
                continue
            reason = "it is not a class"
        wanted = [known for known, place in PLACES.items() if place == setting] or list(PLACES)
        nearest = get_close_matches(path, wanted, n=1, cutoff=0.3) or wanted[:1]
        yield problem(
            f"The name {path!r} in the setting {setting} cannot be loaded ({reason}).", f"Write {nearest[0]}."
        )


def _is_meant_for_package(path: str) -> bool:
    package = path.partition(".")[0].lower().replace("-", "_")
    return bool(get_close_matches(package, ["scrapy_dedupe"], cutoff=0.88))


def _other_filter(context: DoctorContext, layers: set[str]) -> Iterator[Finding]:
    if "urls" in layers or context.settings is None or not context.settings.urls.enabled:
        return
    if not _is_meant_for_package(dict(named_components(context.given))["DUPEFILTER_CLASS"]):
        other = context.scrapy_settings.get("DUPEFILTER_CLASS")
        name = other if isinstance(other, str) else f"{other.__module__}.{other.__qualname__}"
        yield note(
            f"The URL filter is not used: DUPEFILTER_CLASS is {name}.",
            'Remove it from the settings, or set DUPEFILTER_CLASS = "scrapy_dedupe.dupefilters.BloomDupeFilter".',
        )


def _nothing_set(context: DoctorContext) -> Finding:
    if context.is_store_given:
        return note("No crawl with these settings uses this package; only the store was checked.")
    if names := _with_components(context):
        return note(
            "Only the settings of some spiders use this package, not those of the project:"
            f" {listed(names, _MAX_REPORTED)}.",
            f"Check each of them: `scrapy dedupe doctor --spider {names[0]}`.",
        )
    return warning(
        "No crawl with these settings uses this package.",
        'Set ADDONS = {"scrapy_dedupe.Addon": 500} in settings.py, and run the doctor in the folder of the project;'
        " --spider NAME checks the settings of one spider.",
    )


def _with_components(context: DoctorContext) -> list[str]:
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
