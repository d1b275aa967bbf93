"""Rules of the package layout that no linter checks. The import contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scrapy_dedupe

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(scrapy_dedupe.__file__).parent


@functools.cache
def nodes() -> dict[Path, list[ast.AST]]:
    """All nodes of each module; the first one is the module itself."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Hundreds of megabytes, which would slow down the garbage collection of later tests."""
    yield
    nodes.cache_clear()


def test_the_reactor_is_never_imported_at_module_level() -> None:
    for path, (tree, *_) in nodes().items():
        assert isinstance(tree, ast.Module)
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "")]
                assert not any("reactor" in name for name in names if name), path


def test_settings_are_read_in_one_place() -> None:
    for path, found in nodes().items():
        if path.parent.name == "settings":
            continue
        for node in found:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                is_read = node.func.attr.startswith("get")
                assert not (is_read and any(str(word).startswith("DEDUPE_") for word in words)), path


def test_nothing_is_pickled() -> None:
    for path, found in nodes().items():
        for node in found:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not {"pickle", "marshal", "shelve"} & names, path


def test_a_class_name_is_used_for_one_class() -> None:
    names = Counter(
        node.name for found in nodes().values() for node in found if isinstance(node, ast.ClassDef)
    )
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
        for path, found in nodes().items()
        for node in found
        if path.parent.name != "files"
        and isinstance(node, ast.Call)
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
    for path, found in nodes().items():
        for node in found:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr not in {"rename", "replace"}, path


def test_files_are_locked_by_one_module() -> None:
    for path, found in nodes().items():
        imported = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
        assert not {"fcntl", "msvcrt"} & imported or path == PACKAGE / "files" / "locks.py", path
    assert calls_outside_files({"flock", "lockf"}) == set()
