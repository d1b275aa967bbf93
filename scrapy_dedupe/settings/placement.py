"""Where the components of this package stand among Scrapy's, and where they have to stand.

Scrapy builds whatever class a setting names. One in the wrong setting is built and never asked; a content middleware that
is nearer to the downloader than HttpCompression sees compressed bodies. Neither shows in a log, so both are looked for at
the start of a crawl, and by ``scrapy dedupe doctor``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.utils.misc import load_object

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

PLACES: Final = {
    "scrapy_dedupe.Addon": "ADDONS",
    "scrapy_dedupe.dupefilters.BloomDupeFilter": "DUPEFILTER_CLASS",
    "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": "DOWNLOADER_MIDDLEWARES",
    "scrapy_dedupe.downloadermiddlewares.ProvenanceMiddleware": "DOWNLOADER_MIDDLEWARES",
    "scrapy_dedupe.downloadermiddlewares.ReplayMiddleware": "DOWNLOADER_MIDDLEWARES",
    "scrapy_dedupe.spidermiddlewares.ProvenanceSpiderMiddleware": "SPIDER_MIDDLEWARES",
    "scrapy_dedupe.pipelines.WarcPipeline": "ITEM_PIPELINES",
    "scrapy_dedupe.extensions.PassageExtension": "EXTENSIONS",
    "scrapy_dedupe.extensions.ReportExtension": "EXTENSIONS",
    "scrapy_dedupe.extensions.MetricsExtension": "EXTENSIONS",
    "scrapy_dedupe.extensions.DuplicatesLogExtension": "EXTENSIONS",
}
"""Each class, and the setting that it belongs into."""

_CONTENT: Final = "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware"
# Where users import a class from, by the module that defines it.
_PUBLIC_MODULES: Final = {
    "scrapy_dedupe.addon": "scrapy_dedupe",
    "scrapy_dedupe.live.archive.replay": "scrapy_dedupe.downloadermiddlewares",
    "scrapy_dedupe.live.observers.duplicates_log": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.metrics": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.passages": "scrapy_dedupe.extensions",
    "scrapy_dedupe.live.observers.report": "scrapy_dedupe.extensions",
}
LISTS: Final = ("ADDONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES", "EXTENSIONS")
_SINGLE: Final = ("DUPEFILTER_CLASS", "SCHEDULER")
_OWN_ORDER: Final = 543
_COMPRESSION_ORDER: Final = 590
_REDIRECT_ORDER: Final = 600
_ORDERS: Final = {"ADDONS": 500, "ITEM_PIPELINES": 900, "EXTENSIONS": 500, "SPIDER_MIDDLEWARES": 950}
_MIDDLEWARE_ORDERS: Final = {
    "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": _OWN_ORDER,
    "scrapy_dedupe.downloadermiddlewares.ProvenanceMiddleware": 540,
    "scrapy_dedupe.downloadermiddlewares.ReplayMiddleware": 950,
}


@dataclass(frozen=True, slots=True)
class OrderFault:
    """What is wrong with the order of the downloader middlewares. Some is so wrong that no verdict would be right."""

    sentence: str
    is_refused: bool


def check_places(settings: BaseSettings) -> None:
    """Raise :class:`~scrapy_dedupe.errors.SettingError` if a class of this package stands in a wrong setting."""
    faults = misplaced(settings)
    if faults:
        raise SettingError(" ".join(faults))


def misplaced(settings: BaseSettings) -> list[str]:
    """A sentence for each class of this package that stands in a setting where Scrapy never asks it."""
    faults = []
    for setting, path in named_components(settings):
        place = PLACES.get(path)
        if place is not None and place != setting:
            faults.append(
                f"The class {path} stands in the setting {setting}, where it does nothing of use. Move it to {place}"
                f"{_example(path, place)}."
            )
    return faults


def named_components(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    """Each setting that names components, with the import path of each that is not turned off."""
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
    """Refuse an order of middlewares in which the content layer cannot read pages; warn of one that is of little use.

    Raises :class:`~scrapy_dedupe.errors.SettingError`.
    """
    for fault in order_faults(settings):
        if fault.is_refused:
            raise SettingError(fault.sentence)
        logger.warning("%s", fault.sentence)


def order_faults(settings: BaseSettings) -> list[OrderFault]:
    """What is wrong with where the content middleware stands; nothing if it is not there."""
    orders = _orders(settings)
    own = _place_of(orders, _CONTENT)
    if own is None:
        return []
    faults = []
    compression = _place_of(orders, _path(HttpCompressionMiddleware))
    is_enabled = settings.getbool("COMPRESSION_ENABLED")
    if compression is None or not is_enabled:
        again = [] if is_enabled else ["COMPRESSION_ENABLED = True"]
        if compression is None:
            again.append(_setting(_Place(HttpCompressionMiddleware, 0.0), _COMPRESSION_ORDER))
        faults.append(
            OrderFault(
                "Scrapy's HttpCompressionMiddleware is turned off, so pages that a server sends compressed reach the"
                f" content layer, and the spider, as unreadable bytes. Turn it on again ({', '.join(again)}).",
                is_refused=False,
            )
        )
    elif own.order >= compression.order:
        faults.append(
            OrderFault(
                f"ContentDedupeMiddleware has the order {own.order:g} in DOWNLOADER_MIDDLEWARES and"
                f" HttpCompressionMiddleware {compression.order:g}, so it would see pages while they are still"
                f" compressed. {_remedy(own, compression, _COMPRESSION_ORDER)}",
                is_refused=True,
            )
        )
    redirect = _place_of(orders, _path(RedirectMiddleware))
    if redirect is not None and settings.getbool("REDIRECT_ENABLED") and own.order >= redirect.order:
        faults.append(
            OrderFault(
                f"ContentDedupeMiddleware has the order {own.order:g} in DOWNLOADER_MIDDLEWARES and RedirectMiddleware"
                f" {redirect.order:g}, so it sees redirects that nobody else does."
                f" {_remedy(own, redirect, _REDIRECT_ORDER)}",
                is_refused=False,
            )
        )
    return faults


@dataclass(frozen=True, slots=True)
class _Place:
    component: type
    order: float


def _remedy(own: _Place, other: _Place, usual: int) -> str:
    """What brings *own* before *other*, whose order is *usual* in Scrapy: one of the two goes back, or both."""
    if other.order > _OWN_ORDER:
        return f"Give it an order below {other.order:g}: {_setting(own, _OWN_ORDER)}."
    back = f"Put {other.component.__name__} back to {usual}: {_setting(other, usual)}"
    if own.order < usual:
        return f"{back}."
    return f"{back}, and ContentDedupeMiddleware to {_OWN_ORDER}: {_setting(own, _OWN_ORDER)}."


def _setting(place: _Place, order: int) -> str:
    return f'DOWNLOADER_MIDDLEWARES = {{"{_path(place.component)}": {order}}}'


def _orders(settings: BaseSettings) -> dict[type, float]:
    """The downloader middlewares that are on; names that cannot be loaded are Scrapy's to complain of."""
    # Scrapy 2.13 has the older method alone, which a later release may do without.
    read = getattr(settings, "get_component_priority_dict_with_base", None) or settings.getwithbase
    orders: dict[type, Any] = {}
    for component, order in read("DOWNLOADER_MIDDLEWARES").items():
        try:
            orders[load_object(component)] = order
        except Exception:  # noqa: BLE001, S112 - a module may raise anything
            continue
    return {component: float(order) for component, order in orders.items() if order is not None}


def _place_of(orders: dict[type, float], path: str) -> _Place | None:
    """The class at the import path *path*, or a subclass of it."""
    found = [
        _Place(component, order)
        for component, order in orders.items()
        if isinstance(component, type) and any(_path(base) == path for base in component.__mro__)
    ]
    return max(found, key=lambda place: place.order, default=None)


def _path(component: object) -> str:
    """The import path of *component*, as users write it."""
    if isinstance(component, str):
        module, _, name = component.rpartition(".")
    else:
        module, name = getattr(component, "__module__", ""), getattr(component, "__qualname__", "")
    return f"{_PUBLIC_MODULES.get(module, module)}.{name}"


def _example(path: str, place: str) -> str:
    if place == "DUPEFILTER_CLASS":
        return f' = "{path}"'
    orders = _MIDDLEWARE_ORDERS if place == "DOWNLOADER_MIDDLEWARES" else _ORDERS
    order = orders[path if place == "DOWNLOADER_MIDDLEWARES" else place]
    return f' = {{"{path}": {order}}}'
