"""Blocks of console lines: run, and what they show compared with what is printed."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from documentation.blocks import Block
    from documentation.place import Place

_PROMPT = re.compile(r"^([a-z][\w-]*)?\$ (.*)$")
_VARYING = re.compile(
    r"""
    (?P<id> <urn:uuid:[0-9a-f-]{36}> | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b
        | \b (?=[a-f0-9]*\d) [0-9a-f]{8,64}\b | \b\d{14,17}(?:-[0-9a-f]{5,8})?\b )
    | (?P<number> \d[\d.,:]*\d | \d )
    | (?P<any> … | \.\.\. )
    | (?P<space> \s+ )
    """,
    re.VERBOSE,
)
_PATTERNS = {
    "id": r"(?:<urn:uuid:[0-9a-f-]+>|[0-9a-f]+(?:-[0-9a-f]+)*)",
    "number": r"\d[\d.,:]*",
    "any": r".*",
    "space": r"\s+",
}


@dataclass
class Line:
    """A command, the machine it is given on, its place in the block, and the output that is shown below it."""

    command: str
    machine: str | None
    number: int
    shown: list[str] = field(default_factory=list)


def lines_of(text: str) -> list[Line]:
    """The commands of a block."""
    found: list[Line] = []
    goes_on = False
    for number, line in enumerate(text.splitlines()):
        prompt = _PROMPT.match(line)
        if goes_on or (line.startswith("> ") and found and not found[-1].shown):
            found[-1].command += "\n" + line.removeprefix("> ")
        elif prompt:
            found.append(Line(prompt[2], prompt[1], number))
        elif found:
            found[-1].shown.append(line)
        else:
            raise ValueError(f"A console block begins with a prompt, and not with: {line}")
        goes_on = bool(found) and not found[-1].shown and line.endswith("\\")
    for one in found:
        while one.shown and not one.shown[-1].strip():
            one.shown.pop()
    return found


def difference(shown: list[str], printed: str) -> str | None:
    """The first line of *shown* that is not among the *printed* ones where it should be; None if all are."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    wanted = [line.strip() for line in shown if line.strip()]
    patterns = [None if line in {"…", "..."} else re.compile(_pattern(line)) for line in wanted]

    def fits(at: int, number: int) -> int:
        """How many of the patterns from *number* on are found from line *at* on; a gap is where … stands alone."""
        for index in range(number, len(patterns)):
            pattern = patterns[index]
            if pattern is None:
                return max((fits(later, index + 1) for later in range(at, len(lines) + 1)), default=index + 1)
            if at >= len(lines) or not pattern.fullmatch(lines[at]):
                return index
            at += 1
        return len(patterns)

    if not patterns:
        return None
    best = max((fits(start, 0) for start in range(len(lines) + 1)), default=0)
    return None if best == len(patterns) else wanted[best]


def _pattern(line: str) -> str:
    parts, end = [], 0
    for varying in _VARYING.finditer(line):
        parts += [re.escape(line[end : varying.start()]), _PATTERNS[str(varying.lastgroup)]]
        end = varying.end()
    return "".join([*parts, re.escape(line[end:])])


def run(place: Place, block: Block) -> None:
    """Run the lines of *block*; raises AssertionError with the line that fails."""
    lines = lines_of(block.text)
    if block.marked("home") is not None:
        place.go_home()
    for line in lines:
        where = f"{block.page}:{block.line + line.number}: $ {line.command}"
        if any(line.command.startswith(start) for start in place.world.not_run):
            continue
        for start, commands in place.world.before.items():
            if line.command.startswith(start):
                for command in commands:
                    place.prepare(command)
        machine = place.home / line.machine if line.machine else None
        ran = place.run(line.command, machine)
        code = int(block.marked("exit") or 0) if line is lines[-1] else 0
        assert ran.code == code, f"{where}\nended with {ran.code} instead of {code}:\n{ran.output}"
        assert "Traceback (most recent call last)" not in ran.output, f"{where}\n{ran.output}"
        missing = difference(line.shown, ran.output)
        assert missing is None, f"{where}\nshows, and does not print: {missing}\n{ran.output}"
        if machine is not None:
            _hand_over(place, line.machine)


def _hand_over(place: Place, machine: str | None) -> None:
    """What a machine has written beside its folders, the others have as well."""
    for other in place.world.machines:
        if machine is not None and other != machine:
            for file in (place.home / machine).iterdir():
                if file.is_file() and not (place.home / other / file.name).exists():
                    shutil.copy(file, place.home / other)
