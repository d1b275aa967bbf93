"""Synopses of the reference: the verbs and options that they name are those of the command line."""

from __future__ import annotations

import argparse
import functools
import re
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.verbs import add_verbs

if TYPE_CHECKING:
    from documentation.blocks import Block

COMMON = {"-h", "--help", "--json", "--store"}
"""Options that all verbs have; the reference explains them once."""


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scrapy-dedupe")
    add_verbs(parser, "scrapy-dedupe")
    return parser


def _verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers = dict(action._name_parser_map)
            for below in parsers.values():
                below.complete()
            return parsers
    return {}


def options_of(words: list[str]) -> set[str] | None:
    """The options of the verb that *words* begin with; None if there is no such verb."""
    parser, found = _parser(), False
    for word in words:
        below = _verbs_of(parser)
        if word not in below:
            break
        parser, found = below[word], True
    if not found:
        return None
    # A verb that stands for its own verbs, as in "passages VERB", has the options of them all.
    parsers = [parser, *_verbs_of(parser).values()]
    return {option for one in parsers for action in one._actions for option in action.option_strings}


def undocumented(page: str) -> list[str]:
    """The options of all verbs that the section of their verb, in the text of the reference, does not name."""
    sections = re.split(r"^\.\. command:: (\S+)\n", page, flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    missing = []
    for name, verb in _verbs_of(_parser()).items():
        for below, parser in (_verbs_of(verb) or {"": verb}).items():
            for action in parser._actions:
                names = [option for option in action.option_strings if option not in COMMON]
                if names and not any(re.search(rf"{option}(?![\w-])", texts[name]) for option in names):
                    missing.append(f"{name} {below} {names[-1]}")
    return missing


def check(block: Block) -> None:
    """Raise AssertionError for a verb or an option that is none."""
    for synopsis in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        where = f"{block.page}:{block.line}: {synopsis.strip()}"
        called = re.match(r"scrapy(?: |-)dedupe (.*)", synopsis, re.DOTALL)
        assert called, f"{where}\nis no call of scrapy dedupe"
        options = options_of(called[1].split())
        assert options is not None, f"{where}\nnames a verb that there is not"
        named = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", called[1]))
        assert named <= options, f"{where}\nnames options that there are not: {sorted(named - options)}"
