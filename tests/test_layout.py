"""Rules of the package layout that no linter checks. The import contracts are in pyproject.toml."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import scrapy_dedupe

PACKAGE = Path(scrapy_dedupe.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def test_the_reactor_is_never_imported_at_module_level() -> None:
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "reactor" not in ast.unparse(node), path


def test_settings_are_read_in_one_place() -> None:
    for path, tree in TREES.items():
        if path.parent.name == "settings":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                is_read = node.func.attr.startswith("get")
                assert not (is_read and any(str(word).startswith("DEDUPE_") for word in words)), path


def test_nothing_is_pickled() -> None:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not {"pickle", "marshal", "shelve"} & names, path


def test_a_class_name_is_used_for_one_class() -> None:
    names = Counter(
        node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
