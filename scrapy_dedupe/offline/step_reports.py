"""What all steps in one go are asked, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.tasks.faults import Fault

from .eligibility import Eligibility

if TYPE_CHECKING:
    from pathlib import Path

    from .savings import Savings


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What is asked of all steps; ``work`` is another state folder."""

    algorithm: str = "sha256"
    eligibility: Eligibility = field(default_factory=Eligibility)
    convert_arc: bool = False
    in_place: bool = False
    dry_run: bool = False
    keep_going: bool = False
    force: bool = False
    jobs: int = 1
    sample: int = 100
    work: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """What the result depends on."""
        statuses = self.eligibility.statuses
        return {
            "--hash": self.algorithm,
            "--min-size": self.eligibility.min_size,
            "--status": "all" if statuses is None else sorted(statuses),
            "--convert-arc": self.convert_arc,
            "--in-place": self.in_place,
        }


@dataclass(frozen=True, slots=True)
class Deduped:
    """What was done, or would be (``dry_run``).

    ``records`` have lines in the manifest. ``clusters`` are digests that several of them have, ``collisions``
    those of different payloads. ``converted`` records became revisits and ``repointed`` ones were mended;
    ``left`` counts the copies that stay, by reason. ``savings`` are of a dry run. ``verified`` records were
    read again, ``resolved`` revisits lead to their payload, ``by_digest`` of them only by their digest, since the record that they
    name is not there; ``dangling`` ones led nowhere before either; if there are
    ``findings``, no file has its final name, and ``kept_in`` is where they are. ``paths`` are the resulting files; ``state`` is the folder where
    the manifest and this report are kept.
    """

    output: str
    in_place: bool
    dry_run: bool
    files: int
    arcs: int
    records: int
    clusters: int
    collisions: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings | None = None
    verified: int = 0
    resolved: int = 0
    by_digest: int = 0
    dangling: int = 0
    replayed: int = 0
    findings_count: int = 0
    findings: tuple[str, ...] = ()
    kept_in: str | None = None
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()
    paths: tuple[str, ...] = ()
    state: str | None = None

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are."""
        return self.old_bytes - self.new_bytes

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Deduped:
        """The value that ``dataclasses.asdict`` gave after work that was done."""
        lists = {"findings": tuple(value["findings"]), "paths": tuple(value["paths"])}
        return cls(**value | lists | {"faults": tuple(Fault(**fault) for fault in value["faults"])})
