"""Versions: Python, and every library that is needed, against what the package asks for."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from scrapy_dedupe import __version__

from .finding import Said, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import DoctorContext

_NAME = "scrapy-dedupe"
_FOR_DEVELOPERS = ("test", "docs")


def check(patient: DoctorContext) -> Iterator[Said]:
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        yield note(
            f"scrapy-dedupe {__version__} is used from a folder and not installed, so its requirements are not known.",
            "Install it with pip install scrapy-dedupe, or pip install -e . in the folder.",
        )
        return
    if found.version != __version__:
        yield warning(
            f"pip has installed scrapy-dedupe {found.version}, but version {__version__} is imported.",
            "Install it again.",
        )
    plain, extras = _read(found.requires or [])
    faults = [fault for requirement in plain if (fault := _fault(requirement)) is not None]
    yield from faults
    if not faults:
        named = ", ".join(f"{name} {version(name)}" for name in ("scrapy", "redis", "selectolax"))
        yield ok(
            f"Python {platform.python_version()}, scrapy-dedupe {__version__}, {named}; all {len(plain)} libraries that are"
            " needed are there and new enough."
        )
    yield from _extras(patient, extras)


def _read(requirements: list[str]) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """What is always needed here, and what each extra needs."""
    plain: list[Requirement] = []
    extras: dict[str, list[Requirement]] = {}
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", text)
        if extra is not None:
            if extra[1] not in _FOR_DEVELOPERS and (
                requirement.marker is None or requirement.marker.evaluate({"extra": extra[1]})
            ):
                extras.setdefault(extra[1], []).append(requirement)
        elif requirement.marker is None or requirement.marker.evaluate():
            plain.append(requirement)
    return plain, extras


def _fault(requirement: Requirement) -> Said | None:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return problem(
            f"The library {requirement.name} is not installed.",
            f'Install it: pip install "{requirement.name}{requirement.specifier}"',
        )
    if not requirement.specifier.contains(found, prereleases=True):
        return problem(
            f"The library {requirement.name} is {found}, and {requirement.specifier} is needed.",
            f'Upgrade it: pip install "{requirement.name}{requirement.specifier}"',
        )
    return None


def _extras(patient: DoctorContext, extras: dict[str, list[Requirement]]) -> Iterator[Said]:
    wanted = _wanted(patient)
    absent = []
    for extra, requirements in extras.items():
        faults = [fault for requirement in requirements if (fault := _fault(requirement)) is not None]
        remedy = f'Install it: pip install "scrapy-dedupe[{extra}]"'
        if not faults:
            continue
        if extra in wanted:
            yield problem(
                f"The setting {wanted[extra]} needs the extra {extra}: {faults[0].sentence}", remedy
            )
        else:
            absent.append(extra)
    if absent:
        yield note(
            f"Not installed, and not needed by these settings: {', '.join(absent)}.",
            f'If you want {"it" if len(absent) == 1 else "all of them"}: pip install "scrapy-dedupe[{",".join(absent)}]"',
        )
    elif extras:
        yield ok(f"The extras {', '.join(extras)} are installed.")


def _wanted(patient: DoctorContext) -> dict[str, str]:
    """The extras that the settings need, each with the setting that does."""
    settings = patient.settings
    if settings is None:
        return {}
    wanted = {}
    if settings.wacz.enabled:
        wanted["wacz"] = "DEDUPE_WACZ"
    if settings.warc.upload_url is not None:
        wanted["storage"] = "DEDUPE_WARC_UPLOAD_URL"
    if settings.report.page is not None:
        wanted["report"] = "DEDUPE_REPORT"
    if settings.metrics.port or settings.metrics.file is not None:
        wanted["prometheus"] = "DEDUPE_METRICS_PORT" if settings.metrics.port else "DEDUPE_METRICS_FILE"
    if "scrapy_redis" in str(patient.scrapy_settings.get("SCHEDULER")):
        wanted["redis-scheduler"] = "SCHEDULER"
    return wanted
