"""Versions: Python and the required libraries, compared with the requirements of the package."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from scrapy_dedupe import __version__, kernel

from .context import Finding, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import DoctorContext

_NAME = "scrapy-dedupe"
_FOR_DEVELOPERS = ("test", "docs")


def check(context: DoctorContext) -> Iterator[Finding]:
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        yield note(
            f"scrapy-dedupe {__version__} is used from a folder and not installed, so its requirements are unknown.",
            "Install it with pip install scrapy-dedupe, or pip install -e . in the folder.",
        )
        return
    if found.version != __version__:
        yield warning(
            f"pip has installed scrapy-dedupe {found.version}, but version {__version__} is imported.",
            "Install it again.",
        )
    extras = _read(found.requires or [])
    plain = extras.pop("")
    faults = list(filter(None, map(_fault, plain)))
    yield from faults
    if not faults:
        named = ", ".join(f"{name} {version(name)}" for name in ("scrapy", "redis", "selectolax"))
        yield ok(
            f"Python {platform.python_version()}, scrapy-dedupe {__version__}, {named}; all {len(plain)} required"
            " libraries are installed and recent enough."
        )
    yield from _extras(context, extras)
    yield ok(
        "Pages are judged with the compiled kernel."
        if kernel.NAME == "compiled"
        else "Pages are judged with Python code, which is slower than the compiled kernel: see Setup in the documentation."
    )


def _read(requirements: list[str]) -> dict[str, list[Requirement]]:
    """Return the requirements of each extra on this system; "" has those that always apply."""
    found: dict[str, list[Requirement]] = {"": []}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", str(marker))
        name = "" if extra is None else extra[1]
        if name not in _FOR_DEVELOPERS and (marker is None or marker.evaluate({"extra": name})):
            found.setdefault(name, []).append(requirement)
    return found


def _fault(requirement: Requirement) -> Finding | None:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return problem(
            f"The library {requirement.name} is not installed.",
            f'Install it: pip install "{requirement.name}{requirement.specifier}"',
        )
    if not requirement.specifier.contains(found, prereleases=True):
        return problem(
            f"The library {requirement.name} has version {found}, but {requirement.specifier} is required.",
            f'Upgrade it: pip install "{requirement.name}{requirement.specifier}"',
        )
    return None


def _extras(context: DoctorContext, extras: dict[str, list[Requirement]]) -> Iterator[Finding]:
    wanted = _wanted(context)
    absent = []
    for extra, requirements in extras.items():
        fault = next(filter(None, map(_fault, requirements)), None)
        if fault is None:
            continue
        if extra in wanted:
            yield problem(
                f"The setting {wanted[extra]} needs the extra {extra}: {fault.sentence}",
                f'Install it: pip install "scrapy-dedupe[{extra}]"',
            )
        else:
            absent.append(extra)
    if absent:
        yield note(
            f"Extras that are not installed, and not needed by these settings: {', '.join(absent)}.",
            f'If you want {"it" if len(absent) == 1 else "all of them"}: pip install "scrapy-dedupe[{",".join(absent)}]"',
        )
    elif extras:
        yield ok(f"The extras {', '.join(extras)} are installed.")


def _wanted(context: DoctorContext) -> dict[str, str]:
    """Return the extras that the settings need, each with the setting that needs it."""
    settings = context.settings
    if settings is None:
        return {}
    uses = (
        ("wacz", "DEDUPE_WACZ", settings.wacz.enabled),
        ("storage", "DEDUPE_WARC_UPLOAD_URL", settings.warc.upload_url),
        ("report", "DEDUPE_REPORT", settings.report.page),
        ("prometheus", "DEDUPE_METRICS_FILE", settings.metrics.file),
        ("prometheus", "DEDUPE_METRICS_PORT", settings.metrics.port),
        ("redis-scheduler", "SCHEDULER", context.is_queue_shared),
    )
    return {extra: setting for extra, setting, is_used in uses if is_used}
