"""Options and output shared by the commands that make manifests from manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError

from .figures import number_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from scrapy_dedupe.tasks.faults import Faults

SHOWN_FAULTS = 20


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """``--force`` and ``--keep-going``."""
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="skip lines that cannot be read, and end with exit code 4",
    )


def refuse_json_with_manifest(opts: argparse.Namespace) -> None:
    """Raise UsageError if both a manifest and a JSON result would go to standard output."""
    if str(opts.output) == "-" and opts.json:
        raise UsageError(
            "With -o - the manifest goes to standard output, so --json needs a file. Name one with -o."
        )


def fault_dicts(faults: Faults) -> list[dict[str, str]]:
    """The stored faults as dictionaries, for a result."""
    return [{"place": fault.place, "reason": fault.reason} for fault in faults.first]


def faults_text(faults: Sequence[dict[str, str]], count: int) -> list[str]:
    """One line for each of the first faults, and the number of further faults."""
    lines = [f"{fault['place']}: {fault['reason']}" for fault in faults[:SHOWN_FAULTS]]
    if count > len(lines):
        lines.append(f"... and {number_text(count - len(lines))} more")
    return lines


def faults_caveat(faults: Sequence[dict[str, str]], count: int) -> str | None:
    """The message for exit code 4, or None."""
    if not count:
        return None
    lines = "1 line was" if count == 1 else f"{number_text(count)} lines were"
    first = faults[0]
    return f"{lines} skipped; the first is {first['place']}: {first['reason']}."
