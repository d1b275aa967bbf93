"""The rules of the house (docs/design): who may import whom, and how long a module may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import scrapy_dedupe

HOUSE = Path(scrapy_dedupe.__file__).parent
MODULES = sorted(path for path in HOUSE.rglob("*.py"))
ROOMS = {path.name for path in HOUSE.iterdir() if path.is_dir() and not path.name.startswith("__")}

# Arrows go down: what each room may use besides errors.py.
ALLOWED = {
    "urls": {"stores", "warc"},
    "content": {"stores", "warc"},
    "crawls": {"stores", "tasks", "warc"},
    "afterwards": {"stores", "tasks", "warc"},
    "passages": {"stores", "tasks", "warc"},
    "reports": {"stores"},
    "tasks": {"warc"},
    "warc": set(),
    "stores": set(),
}


def room_of(path: Path) -> str | None:
    """The folder of a module, or None for the top floor; commands/ belongs to the top floor."""
    parts = path.relative_to(HOUSE).parts
    return parts[0] if len(parts) > 1 and parts[0] != "commands" else None


def imports_of(path: Path) -> set[str]:
    """Full names of all that *path* imports, at whatever level, type checking included."""
    package = ["scrapy_dedupe", *path.relative_to(HOUSE).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_only_the_top_floor_imports_scrapy_or_twisted(path: Path) -> None:
    if room_of(path) is None:
        return
    assert not {name for name in imports_of(path) if name.split(".")[0] in {"scrapy", "twisted"}}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_rooms_use_lower_rooms_alone(path: Path) -> None:
    room = room_of(path)
    if room is None:
        return
    assert room in ALLOWED, f"the room {room} is not in the plan"
    used = {name.split(".")[1] for name in imports_of(path) if name.startswith("scrapy_dedupe.")}
    assert used <= ALLOWED[room] | {room, "errors", "__version__"}


def test_the_reactor_is_never_imported_at_module_level() -> None:
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "reactor" not in ast.unparse(node), path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_a_module_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


def test_settings_are_read_in_one_place() -> None:
    for path in MODULES:
        if path.name == "settings.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                is_read = node.func.attr.startswith("get")
                assert not (is_read and any(str(word).startswith("DEDUPE_") for word in words)), path


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        assert not {"pickle", "marshal", "shelve"} & {name.split(".")[0] for name in imports_of(path)}, path
