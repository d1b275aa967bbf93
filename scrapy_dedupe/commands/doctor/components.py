"""Components: whether a crawl has those of this package, in the right settings and order."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from scrapy.utils.misc import load_object

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.settings.placement import PLACES, misplaced, named_components, order_faults

from .finding import CheckFinding, from_error, note, ok, problem, warning
from .spiders import with_components

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import DoctorContext

_SHOWN: Final = 5
_WORDS = {
    "urls": "the URL filter",
    "content": "the content layer",
    "archive": "the archive",
    "passages": "the passage index",
}


def check(context: DoctorContext) -> Iterator[CheckFinding]:
    has_unloadable = False
    for result in _unloadable(context):
        has_unloadable = True
        yield result
    if isinstance(context.addon_error, DedupeError):
        yield from_error(context.addon_error, "No crawl starts with it.")
    elif context.addon_error is not None and not has_unloadable:
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
            yield ok(f"Crawls have {_listed(words)}, through {way}.")
        yield from _absent(context, layers)
    elif not (has_unloadable or wrong_places or context.faults or context.addon_error):
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


def _unloadable(context: DoctorContext) -> Iterator[CheckFinding]:
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
            f"The name {path!r} in the setting {setting} cannot be loaded ({reason}).",
            f"Write {nearest[0]}.",
        )


def _is_meant_for_package(path: str) -> bool:
    package = path.partition(".")[0].lower().replace("-", "_")
    return bool(get_close_matches(package, ["scrapy_dedupe"], cutoff=0.88))


def _absent(context: DoctorContext, layers: set[str]) -> Iterator[CheckFinding]:
    settings = context.settings
    if settings is None:
        return
    named = dict(named_components(context.given))
    if (
        "urls" not in layers
        and settings.urls.enabled
        and not _is_meant_for_package(named["DUPEFILTER_CLASS"])
    ):
        other = context.scrapy_settings.get("DUPEFILTER_CLASS")
        name = other if isinstance(other, str) else f"{other.__module__}.{other.__qualname__}"
        yield note(
            f"The URL filter is not used: DUPEFILTER_CLASS is {name}.",
            'Remove it from the settings, or set DUPEFILTER_CLASS = "scrapy_dedupe.dupefilters.BloomDupeFilter".',
        )


def _nothing_set(context: DoctorContext) -> CheckFinding:
    if context.is_store_given:
        return note("No crawl with these settings uses this package; only the store was checked.")
    if names := with_components(context):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return note(
            f"Only the settings of some spiders use this package, not those of the project: {', '.join(names[:_SHOWN])}{more}.",
            f"Check each of them: `scrapy dedupe doctor --spider {names[0]}`.",
        )
    return warning(
        "No crawl with these settings uses this package.",
        'Set ADDONS = {"scrapy_dedupe.Addon": 500} in settings.py, and run the doctor in the folder of the project;'
        " --spider NAME checks the settings of one spider.",
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
