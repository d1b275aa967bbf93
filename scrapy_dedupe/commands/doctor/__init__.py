"""``doctor``: looks at all that a crawl would use, and says of each fault what to do about it.

Nothing is changed, and what is tried is taken away again. A crawl that runs is not disturbed: locks are held for
milliseconds, and none of a job or of a file that is being written is taken.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.errors import DedupeError, SettingError, StoreError

from .finding import LEVELS, Finding, Said, problem, told

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores

    from .context import DoctorContext

HELP = "Look at settings, versions, stores, disks and layers, try each of them, and say what to do about what is wrong."

_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, in the order of the sections; how many findings there are of each level."""

    version: str
    spider: str | None
    levels: dict[str, int]
    findings: list[Finding]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spider", metavar="NAME", help="look at the settings of this spider")


def run(place: CommandStores, opts: argparse.Namespace) -> Examination:
    # They load most of the package, which other verbs need not wait for.
    from . import components, disks, outputs, probes, setting_faults, spiders, stores, unfinished, versions
    from .context import DoctorContext, data_folder_kept_away

    sections = {
        "settings": setting_faults.check,
        "spiders": spiders.check,
        "components": components.check,
        "versions": versions.check,
        # What a full disk does to all that comes behind is told once.
        "disks": disks.check,
        "stores": stores.check,
        "left over": unfinished.check,
        "probes": probes.check,
        "outputs": outputs.check,
    }
    findings: list[Finding] = []
    is_disk_full = False
    with data_folder_kept_away():
        patient = DoctorContext(place, opts.spider)
        for section, check in sections.items():
            for said in _checked(check, patient):
                if is_disk_full and said.is_of_full_disk and section != "disks":
                    continue
                is_disk_full |= said.is_of_full_disk and section == "disks"
                # A store that is away would be told by each one that asks it.
                if said.level != "problem" or all(said.sentence != known.sentence for known in findings):
                    findings.append(Finding(section, said.level, said.sentence, said.remedy))
    levels: dict[str, int] = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    return Examination(__version__, opts.spider, levels, findings)


def _checked(check: Callable[[DoctorContext], Iterator[Said]], patient: DoctorContext) -> Iterator[Said]:
    try:
        yield from check(patient)
    except DedupeError as error:
        yield told(error)
    except OSError as error:
        place = "" if error.filename is None else f" ({error.filename})"
        yield problem(
            f"This could not be looked at to its end: {error.strerror or error}{place}.",
            "See to that place and its permissions, and call the doctor again.",
        )
    except Exception as error:  # noqa: BLE001 - the other sections are looked at all the same
        yield problem(
            f"This could not be looked at to its end: unexpected {type(error).__name__}: {error}.",
            "Report it with the versions above; it is a fault of scrapy-dedupe.",
        )


def text(examination: Examination) -> str:
    lines = []
    for section, findings in groupby(examination.findings, key=lambda finding: finding.section):
        lines.append(section.capitalize())
        for finding in findings:
            lines += _wrapped(f"  {finding.level:<8} ", finding.sentence)
            if finding.remedy:
                lines += _wrapped("           -> ", finding.remedy)
    counts = [counted(examination.levels[level], level) for level in LEVELS[:-1]]
    return "\n".join([*lines, "", f"{', '.join(counts)}; {examination.levels['ok']} ok."])


def refusal(examination: Examination) -> DedupeError | None:
    problems = [finding for finding in examination.findings if finding.level == "problem"]
    if not problems:
        return None
    sentence = f"{counted(len(problems), 'problem')} found; each is told above with what to do."
    if any(finding.section in ("settings", "spiders") for finding in problems):
        return SettingError(sentence)
    return StoreError(sentence)


def _wrapped(lead: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
