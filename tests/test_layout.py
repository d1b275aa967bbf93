"""Rules of the package layout that no linter checks. The import contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import scrapy_dedupe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(scrapy_dedupe.__file__).parent


@functools.cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(sources()[path])


def trees(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules that have one of the words anywhere; parsing all of them would take seconds."""
    for path, source in sources().items():
        if any(word in source for word in words):
            yield path, tree_of(path)


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of what is imported, and of the modules from which it is."""
    found = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in found for alias in node.names}
    return names | {getattr(node, "module", None) or "" for node in found}


def test_the_reactor_is_never_imported_at_module_level() -> None:
    for path, tree in trees("reactor"):
        assert not any("reactor" in name for name in imported(tree.body)), path


def test_settings_are_read_in_one_place() -> None:
    for path, tree in trees("DEDUPE_"):
        if path.parent.name == "settings":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                is_read = node.func.attr.startswith("get")
                assert not (is_read and any(str(word).startswith("DEDUPE_") for word in words)), path


def test_nothing_is_pickled() -> None:
    unsafe = {"pickle", "marshal", "shelve"}
    for path, tree in trees(*unsafe):
        assert not unsafe & imported(ast.walk(tree)), path


def test_a_class_name_is_used_for_one_class() -> None:
    names = Counter(
        name
        for source in sources().values()
        for name in re.findall(r"^\s*class (\w+)[(:]", source, flags=re.MULTILINE)
    )
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []


# These write to files that stay open and grow, and sync them through their own descriptors.
SYNC_THEMSELVES = {
    "urls/journal.py",  # a journal that is appended to and truncated
    "warc/files.py",  # an `.open` WARC file that is appended to
    "warc/salvage.py",  # an `.open` WARC file that is truncated after its last whole record
}
# These only move complete files and folders away, and write nothing.
MOVE_AWAY = {
    "offline/steps.py",  # the manifest and the report of an earlier run
    "tasks/state.py",  # the state folder, before it is removed
    "urls/scrapy_file.py",  # Scrapy's queue after a kill
    "warc/storage.py",  # an uploaded file, before it is deleted
}


def calls_outside_files(names: set[str], arguments: int | None = None) -> set[str]:
    """Modules outside ``files/`` that call a function with one of these names, and this number of arguments."""
    return {
        str(path.relative_to(PACKAGE))
        for path, tree in trees(*(f"{name}(" for name in names))
        if path.parent.name != "files"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        in names
        and (arguments is None or (len(node.args) == arguments and not node.keywords))
    }


def test_files_are_written_safely_by_one_module() -> None:
    assert calls_outside_files({"fsync", "fdatasync"}) == SYNC_THEMSELVES
    # `str.replace` has two arguments, and `datetime.replace` has keywords.
    assert calls_outside_files({"replace"}, arguments=1) == set()
    assert calls_outside_files({"rename"}, arguments=1) == MOVE_AWAY
    assert calls_outside_files({"link"}, arguments=2) == set()
    for path, source in sources().items():
        assert not re.search(r"\bos\.(rename|replace)\b", source), path


def test_files_are_locked_by_one_module() -> None:
    modules = {"fcntl", "msvcrt"}
    having = [path for path, tree in trees(*modules) if modules & imported(ast.walk(tree))]
    assert having == [PACKAGE / "files" / "locks.py"]
    assert calls_outside_files({"flock", "lockf"}) == set()
