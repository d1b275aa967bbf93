"""Checks that the components of this package are in the right settings and in the right order.

Scrapy creates any class that a setting names. A class in the wrong setting is created but never called. A content
middleware that is closer to the downloader than HttpCompressionMiddleware gets compressed bodies. Neither is visible in
the log, so both are checked at the start of a crawl and by ``scrapy dedupe doctor``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.utils.misc import load_object

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_OWN_ORDER: Final = 543
_DUPEFILTER: Final = "scrapy_dedupe.dupefilters.BloomDupeFilter"
_CONTENT: Final = "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware"
_PIPELINE: Final = "scrapy_dedupe.pipelines.WarcPipeline"
_CACHE: Final = "scrapy_dedupe.httpcache.ArchiveCacheMiddleware"
CACHE_STORAGE: Final = "scrapy_dedupe.httpcache.ArchiveCacheStorage"
_USUAL_PLACES: Final = {
    "scrapy_dedupe.Addon": ("ADDONS", 500),
    _DUPEFILTER: ("DUPEFILTER_CLASS", None),
    _CONTENT: ("DOWNLOADER_MIDDLEWARES", _OWN_ORDER),
    "scrapy_dedupe.downloadermiddlewares.ProvenanceMiddleware": ("DOWNLOADER_MIDDLEWARES", 540),
    "scrapy_dedupe.downloadermiddlewares.ReplayMiddleware": ("DOWNLOADER_MIDDLEWARES", 950),
    _CACHE: ("DOWNLOADER_MIDDLEWARES", 899),
    CACHE_STORAGE: ("HTTPCACHE_STORAGE", None),
    "scrapy_dedupe.spidermiddlewares.ProvenanceSpiderMiddleware": ("SPIDER_MIDDLEWARES", 950),
    _PIPELINE: ("ITEM_PIPELINES", 900),
    "scrapy_dedupe.extensions.PassageExtension": ("EXTENSIONS", 500),
    "scrapy_dedupe.extensions.ReportExtension": ("EXTENSIONS", 500),
    "scrapy_dedupe.extensions.MetricsExtension": ("EXTENSIONS", 500),
    "scrapy_dedupe.extensions.DuplicatesLogExtension": ("EXTENSIONS", 500),
}
PLACES: Final = {path: setting for path, (setting, _) in _USUAL_PLACES.items()}
"""The setting for each class of this package."""

# The public module of a class, by the module that defines it.
_PUBLIC_MODULES: Final = {
    "scrapy_dedupe.addon": "scrapy_dedupe",
    "scrapy_dedupe.live.archive.replay": "scrapy_dedupe.downloadermiddlewares",
    "scrapy_dedupe.live.observers.duplicates_log": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.metrics": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.passages": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.report": "scrapy_dedupe.extensions",
}
LISTS: Final = ("ADDONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES", "EXTENSIONS")
_SINGLE: Final = ("DUPEFILTER_CLASS", "SCHEDULER", "HTTPCACHE_STORAGE")
# Scrapy's defaults.
_COMPRESSION_ORDER: Final = 590
_REDIRECT_ORDER: Final = 600
_CACHE_ORDER: Final = 900


class OrderFault(NamedTuple):
    """A problem with the order of the downloader middlewares. With ``is_refused`` no verdict would be correct."""

    sentence: str
    is_refused: bool


class _Place(NamedTuple):
    component: type
    order: float


def check_places(settings: BaseSettings) -> None:
    """Raise :class:`~scrapy_dedupe.errors.SettingError` if a class of this package is in a wrong setting."""
    faults = misplaced(settings)
    if faults:
        raise SettingError(" ".join(faults))


def misplaced(settings: BaseSettings) -> list[str]:
    """A sentence for each class of this package that is in a setting where Scrapy never calls it."""
    faults = []
    for setting, path in named_components(settings):
        place, order = _USUAL_PLACES.get(path, (setting, None))
        if place != setting:
            example = f'"{path}"' if order is None else f'{{"{path}": {order}}}'
            faults.append(
                f"The class {path} is in the setting {setting}, where it has no effect. Move it to {place} = {example}."
            )
    return faults


def named_components(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    """Each setting with components, with the import path of each component that is not disabled."""
    for setting in LISTS:
        table = settings.get(setting)
        if hasattr(table, "items"):
            for component, order in table.items():
                if order is not None:
                    yield setting, _path(component)
    for setting in _SINGLE:
        if (component := settings.get(setting)) is not None:
            yield setting, _path(component)


def check_order(settings: BaseSettings) -> None:
    """Check the order of the content middleware, and log a warning for each problem that does not stop the crawl.

    Raises :class:`~scrapy_dedupe.errors.SettingError` if the content layer could not read pages.
    """
    for fault in order_faults(settings):
        if fault.is_refused:
            raise SettingError(fault.sentence)
        logger.warning("%s", fault.sentence)


def order_faults(settings: BaseSettings) -> list[OrderFault]:
    """Problems with the order of the content middleware; empty if it is not enabled."""
    orders = _orders(settings)
    own = _place_of(orders, _CONTENT)
    if own is None:
        return []
    faults = []
    compression = _place_of(orders, _path(HttpCompressionMiddleware))
    is_enabled = settings.getbool("COMPRESSION_ENABLED")
    placed = f"ContentDedupeMiddleware has the order {own.order:g} in DOWNLOADER_MIDDLEWARES and"
    if compression is None or not is_enabled:
        remedies = [] if is_enabled else ["COMPRESSION_ENABLED = True"]
        if compression is None:
            remedies.append(_setting(HttpCompressionMiddleware, _COMPRESSION_ORDER))
        sentence = (
            "Scrapy's HttpCompressionMiddleware is disabled, so the content layer and the spider cannot read compressed"
            f" pages. Enable it ({', '.join(remedies)})."
        )
        faults.append(OrderFault(sentence, is_refused=False))
    elif own.order >= compression.order:
        sentence = (
            f"{placed} HttpCompressionMiddleware {compression.order:g}, so pages would still be compressed when"
            f" ContentDedupeMiddleware gets them. {_remedy(own, compression, _COMPRESSION_ORDER)}"
        )
        faults.append(OrderFault(sentence, is_refused=True))
    redirect = _place_of(orders, _path(RedirectMiddleware))
    if redirect is not None and settings.getbool("REDIRECT_ENABLED") and own.order >= redirect.order:
        sentence = (
            f"{placed} RedirectMiddleware {redirect.order:g}, so ContentDedupeMiddleware also gets the redirects, not"
            f" only the pages. {_remedy(own, redirect, _REDIRECT_ORDER)}"
        )
        faults.append(OrderFault(sentence, is_refused=False))
    return faults


def archive_faults(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    """Each setting without effect because the crawl is not archived, and the remedy."""
    # A project that archives its crawls may also replay them.
    pipelines = [path for setting, path in named_components(settings) if setting == "ITEM_PIPELINES"]
    if settings["DEDUPE_REPLAY"] or any(_is_kind_of(path, _PIPELINE) for path in pipelines):
        return
    given = {
        "DEDUPE_WACZ": settings.getbool("DEDUPE_WACZ"),
        "DEDUPE_WARC_UPLOAD_URL": settings["DEDUPE_WARC_UPLOAD_URL"],
        "DEDUPE_WARC_ITEM_FIELD": settings["DEDUPE_WARC_ITEM_FIELD"],
    }
    for name in (name for name, value in given.items() if value):
        yield (
            f"The setting {name} has no effect, since the crawl is not archived.",
            "Turn the archive on (DEDUPE_WARC_ENABLED = True), or remove the setting.",
        )


def is_cache(settings: BaseSettings) -> bool:
    """Whether the archive is the storage of Scrapy's HTTP cache."""
    return settings.getbool("HTTPCACHE_ENABLED") and _path(settings["HTTPCACHE_STORAGE"]) == CACHE_STORAGE


def cache_faults(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    """Each reason why the archive is not, or not well, used as HTTP cache, and the remedy."""
    if settings.getbool("DEDUPE_HTTPCACHE") and not settings.getbool("DEDUPE_WARC_ENABLED", True):
        yield (
            "DEDUPE_HTTPCACHE has no effect, since DEDUPE_WARC_ENABLED is False.",
            "Remove one of the two: a crawl that archives nothing leaves no pages for the cache of the next crawl.",
        )
        return
    if not is_cache(settings):
        if settings.getbool("DEDUPE_HTTPCACHE"):
            name = "HTTPCACHE_STORAGE" if settings.getbool("HTTPCACHE_ENABLED") else "HTTPCACHE_ENABLED"
            yield (
                f"DEDUPE_HTTPCACHE has no effect, since {name} is {settings[name]!r}.",
                f"Remove {name} from the settings.",
            )
        return
    orders = _orders(settings)
    cache, own = _place_of(orders, _path(HttpCacheMiddleware)), _place_of(orders, _CACHE)
    if cache is None:
        yield (
            "Scrapy's HttpCacheMiddleware is disabled, so the archive is not used as HTTP cache.",
            f"Enable it: {_setting(HttpCacheMiddleware, _CACHE_ORDER)}.",
        )
    elif own is None or own.order > cache.order:
        place = f'DOWNLOADER_MIDDLEWARES = {{"{_CACHE}": {cache.order - 1:g}}}'
        yield (
            "Each request blocks the crawl while it is looked up in the archive.",
            f"Place ArchiveCacheMiddleware directly before HttpCacheMiddleware: {place}.",
        )


def rules_faults(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    """The reason why URL rules are not applied, and the remedy."""
    if not settings["DEDUPE_URL_RULES"]:
        return
    given = settings["DUPEFILTER_CLASS"]
    if not _is_kind_of(given, _DUPEFILTER):
        yield (
            f"DEDUPE_URL_RULES has no effect, since DUPEFILTER_CLASS is {_path(given)}.",
            f'Set DUPEFILTER_CLASS = "{_DUPEFILTER}", or remove DEDUPE_URL_RULES.',
        )


def _is_kind_of(component: Any, path: str) -> bool:
    """Whether a component is the class *path* or a subclass; also true if it cannot be loaded, which Scrapy reports."""
    try:
        return any(_path(base) == path for base in load_object(component).__mro__)
    except Exception:  # noqa: BLE001 - code of the user
        return True


def _remedy(own: _Place, other: _Place, usual: int) -> str:
    """The change that puts *own* before *other*, whose default order is *usual*: move one of them, or both."""
    if other.order > _OWN_ORDER:
        return f"Give it an order below {other.order:g}: {_setting(own.component, _OWN_ORDER)}."
    remedy = f"Set {other.component.__name__} back to {usual}: {_setting(other.component, usual)}"
    if own.order < usual:
        return f"{remedy}."
    return f"{remedy}, and ContentDedupeMiddleware to {_OWN_ORDER}: {_setting(own.component, _OWN_ORDER)}."


def _setting(component: type, order: int) -> str:
    return f'DOWNLOADER_MIDDLEWARES = {{"{_path(component)}": {order}}}'


def _orders(settings: BaseSettings) -> dict[type, float]:
    """The enabled downloader middlewares and their orders. Classes that cannot be loaded are left for Scrapy to report."""
    # Scrapy 2.13 only has the older method, which a later release may remove.
    read = getattr(settings, "get_component_priority_dict_with_base", None) or settings.getwithbase
    orders: dict[type, Any] = {}
    for component, order in read("DOWNLOADER_MIDDLEWARES").items():
        try:
            orders[load_object(component)] = order
        except Exception:  # noqa: BLE001, S112 - a module may raise anything
            continue
    return {component: float(order) for component, order in orders.items() if order is not None}


def _place_of(orders: dict[type, float], path: str) -> _Place | None:
    """The place of the class with the import path *path*, or of a subclass; None if there is none."""
    found = [
        _Place(component, order)
        for component, order in orders.items()
        if isinstance(component, type) and any(_path(base) == path for base in component.__mro__)
    ]
    return max(found, key=lambda place: place.order, default=None)


def _path(component: object) -> str:
    """The public import path of *component*."""
    if isinstance(component, str):
        module, _, name = component.rpartition(".")
    else:
        module, name = getattr(component, "__module__", ""), getattr(component, "__qualname__", "")
    return f"{_PUBLIC_MODULES.get(module, module)}.{name}"
