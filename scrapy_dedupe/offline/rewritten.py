"""What is asked of `rewriting`, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.savings import Savings
from scrapy_dedupe.offline.verifying import DEFAULT_SAMPLE, Verification
from scrapy_dedupe.tasks.faults import Fault


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """What is asked. ``sample`` revisits are replayed from the new files, drawn with ``seed`` if it is given."""

    eligibility: Eligibility = field(default_factory=Eligibility)
    dry_run: bool = False
    in_place: bool = False
    keep_going: bool = False
    jobs: int = 1
    sample: int = DEFAULT_SAMPLE
    seed: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What was done, or would be (``is_dry_run``).

    ``converted`` copies became revisits, ``repointed`` other records have mended references, ``left`` counts the copies
    that stay as they are by reason, a key of `plan.LEFT`. Sizes are those of whole files; of a dry run they are an
    estimate. ``savings`` are of a dry run alone. ``kept_in`` is the folder that stays because verification
    found something; then no file has its final name. ``unlisted`` are files beside those that are written again which
    no manifest names: what refers to the copies from there is not mended.
    """

    output: str
    is_dry_run: bool
    files: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings = field(default_factory=Savings)
    verification: Verification | None = None
    kept_in: str | None = None
    unlisted: tuple[str, ...] = ()
    faults_count: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are."""
        return self.old_bytes - self.new_bytes


def report_of(told: dict[str, Any]) -> Rewritten:
    """The report that was written with `asdict`, when there were no findings."""
    report = dict(told)
    proof: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in report["verification"].items()
    }
    proof["faults"] = tuple(Fault(**fault) for fault in proof["faults"])
    report["verification"] = Verification(**proof)
    report["faults"] = tuple(Fault(**fault) for fault in report["faults"])
    report["savings"] = Savings()
    report["unlisted"] = tuple(report["unlisted"])
    return Rewritten(**report)
