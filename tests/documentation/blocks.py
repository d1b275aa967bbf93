"""The blocks of code of a page of documentation, reStructuredText or Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTIVE = re.compile(r"^( *)\.\. (?:code-block|code|sourcecode):: *([\w+-]*) *$")
_LITERAL = re.compile(r"^( *)(?!\.\. )\S.*::$|^( *)::$")
_MARK = re.compile(r"^ *(?:\.\. run: (.*?)|<!-- run: (.*?) -->) *$")
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})([\w+-]*)(.*)$")


@dataclass(frozen=True)
class Block:
    """A block of code, where it stands (file, first line), and what is said of it."""

    page: Path
    line: int
    language: str
    text: str
    marks: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    @property
    def caption(self) -> str | None:
        """The file that the block is, if its caption names one."""
        caption = self.options.get("caption", "")
        return caption if re.fullmatch(r"[\w./-]+\.\w+|[\w./-]*Dockerfile", caption) else None

    def marked(self, word: str) -> str | None:
        """What follows *word* in the marks before the block; None without such a mark."""
        for mark in self.marks:
            first, _, rest = mark.partition(" ")
            if first == word:
                return rest
        return None


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in its order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return list(_markdown(page, lines) if page.suffix == ".md" else _restructured(page, lines))


def _markdown(page: Path, lines: list[str]) -> list[Block]:
    found: list[Block] = []
    marks: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if mark := _MARK.match(line):
            marks.append(mark[1] or mark[2])
        elif fence := _FENCE.match(line):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip().startswith(fence[2]))
            text = _unindented(lines[number + 1 : end])
            options = {"caption": title[1]} if (title := re.search(r'title="(.*?)"', fence[4])) else {}
            found.append(Block(page, number + 2, fence[3] or "text", text, tuple(marks), options))
            marks, number = [], end
        elif line.strip():
            marks = []
        number += 1
    return found


def _restructured(page: Path, lines: list[str]) -> list[Block]:
    found: list[Block] = []
    marks: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if mark := _MARK.match(line):
            marks.append(mark[1])
        elif line.lstrip().startswith(">>> "):
            end = next((at for at in range(number, len(lines)) if not lines[at].strip()), len(lines))
            found.append(Block(page, number + 1, "python", _unindented(lines[number:end]), tuple(marks)))
            marks, number = [], end
        elif (start := _DIRECTIVE.match(line)) or (start := _LITERAL.match(line)):
            indent = len(line) - len(line.lstrip())
            end = number + 1
            while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
                end += 1
            first, options = number + 1, {}
            if start.re is _DIRECTIVE:
                while first < end and (option := re.match(r" *:([\w-]+): *(.*)$", lines[first])):
                    options[option[1]] = option[2].strip()
                    first += 1
            language = (start[2] if start.re is _DIRECTIVE else "") or "text"
            text = _unindented(lines[first:end])
            if text:
                at = next(at for at in range(first, end) if lines[at].strip()) + 1
                found.append(Block(page, at, language, text, tuple(marks), options))
            marks, number = [], end - 1
        elif line.strip():
            marks = []
        number += 1
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _unindented(lines: list[str]) -> str:
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines).strip("\n")
