"""Blocks of Python: what they are, and how each kind of them is run."""

from __future__ import annotations

import ast
import builtins
import doctest
import json
import re
import shutil
import textwrap
import tomllib
from typing import TYPE_CHECKING, Any

import yaml  # comes with the package wacz
from scrapy.settings import default_settings

from scrapy_dedupe.settings.specs import SPECS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from documentation.blocks import Block
    from documentation.place import Interpreter, Place

LAYERS = {"DUPEFILTER_CLASS", "DOWNLOADER_MIDDLEWARES", "ITEM_PIPELINES"}
OTHER_SETTINGS = {
    "JOBDIR",
    "REDIS_URL",
    "SCHEDULER_PERSIST",
    "SCHEDULER_FLUSH_ON_START",
    "ADDONS",
    "EXTENSIONS",
}
"""Names of settings that Scrapy has no default for, or that belong to scrapy-redis."""

COMPONENTS = {"process_item": "ITEM_PIPELINES", "from_crawler": "EXTENSIONS"}
_TROUBLE = re.compile(r"^.* (?:WARNING|ERROR|CRITICAL): .*$", re.MULTILINE)


def kind_of(block: Block) -> str:
    """What a block of Python is: settings, doctest, methods, component, spider, fragment or script."""
    if stated := block.marked("as"):
        return stated
    if block.text.startswith(">>>"):
        return "doctest"
    tree = ast.parse(block.text)
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if body and all(isinstance(node, ast.Assign) and _is_setting(node) for node in body):
        return "settings"
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    if any("Spider" in ast.unparse(base) for node in classes for base in node.bases):
        return "spider"
    if any(_setting_of(node) for node in classes):
        return "component"
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if functions and all(node.args.args and node.args.args[0].arg == "self" for node in functions):
        return "methods"
    try:
        compile(tree, "<block>", "exec")
    except SyntaxError:  # a yield at the top
        return "fragment"
    return "fragment" if "response" in _free_names(tree) else "script"


def _is_setting(node: ast.Assign) -> bool:
    return all(isinstance(target, ast.Name) and target.id.isupper() for target in node.targets)


def _setting_of(node: ast.ClassDef) -> str | None:
    methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
    return next((setting for method, setting in COMPONENTS.items() if method in methods), None)


def _free_names(tree: ast.AST) -> set[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - stored - set(vars(builtins))


def run(place: Place, block: Block, interpreter: Callable[[], Interpreter]) -> None:
    """Run *block* as what it is; raises AssertionError if something is wrong."""
    kind = kind_of(block)
    if kind == "script":
        script(block, interpreter())
    else:
        {
            "settings": settings, "doctest": doctested, "methods": methods, "component": component,
            "spider": spider, "fragment": fragment,
        }[kind](place, block)  # fmt: skip


def where(block: Block) -> str:
    return f"{block.page}:{block.line}:"


# Settings.


def settings(place: Place, block: Block) -> None:
    """A crawl with these settings ends well, and their names are known."""
    values: dict[str, Any] = {}
    exec(compile(block.text, str(block.page), "exec"), values)
    names = {name for name in values if name.isupper()}
    known = {spec.name for spec in SPECS} | set(vars(default_settings)) | OTHER_SETTINGS
    assert names <= known, f"{where(block)} there is no setting {', '.join(sorted(names - known))}"
    adds_up = place.world.settings_add_up and block.marked("alone") is None
    home = place.home if adds_up else _copy_of_project(place)
    file = home / place.settings.relative_to(place.home)
    add_settings(file, block.text)
    options = []
    for name in names:
        if isinstance(values[name], str) and values[name].startswith("/"):
            # A folder of the whole machine is one of the world.
            folder = place.folder / "machine" / values[name].lstrip("/")
            folder.parent.mkdir(parents=True, exist_ok=True)
            options.append(f"-s {name}={folder}")
    _crawl(place, block, f"scrapy crawl site {' '.join(options)}", home)


def add_settings(file: Path, text: str) -> None:
    """Add to a settings file; classes that are set by hand take the place of the add-on."""
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    if names & LAYERS and "ADDONS" not in names:
        before = re.sub(r"^ADDONS = .*\n", "", before, flags=re.MULTILINE)
    file.write_text(f"{before}\n{text}\n", encoding="utf-8")


def _copy_of_project(place: Place) -> Path:
    number = sum(1 for _ in place.folder.glob("project-*"))
    copy = place.folder / f"project-{number}"
    copy.mkdir()
    shutil.copytree(place.home / "shop", copy / "shop")
    shutil.copy(place.home / "scrapy.cfg", copy)
    return copy


def _crawl(place: Place, block: Block, command: str, folder: Path) -> str:
    ran = place.run(command, folder)
    assert ran.code == 0, f"{where(block)} {command}\n{ran.output}"
    assert "Spider closed (finished)" in ran.output, f"{where(block)} {command}\n{ran.output}"
    trouble = [line for line in _TROUBLE.findall(ran.output) if not place.world.expects(line)]
    assert not trouble, f"{where(block)} {command}\n" + "\n".join(trouble)
    return ran.output


# Code of a project.

_SPIDER_OF_METHODS = """
import documented_calls
import scrapy

documented_calls.keep(__file__)


class DocumentedSpider(documented_calls.PathSpider):
    name = "documented"
    {names} = {names}
"""


def methods(place: Place, block: Block) -> None:
    """Put the methods into a spider; each of them is called in its crawl."""
    names = [
        node.name
        for node in ast.parse(block.text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = "\n    ".join(f"{name} = {name}" for name in names)
    text = block.text + "\n" + _SPIDER_OF_METHODS.replace("{names} = {names}", lines)
    _crawl_calling(place, block, "shop/spiders/documented.py", text, names, "scrapy crawl documented")


def fragment(place: Place, block: Block) -> None:
    """Put the lines into a callback."""
    free = _free_names(ast.parse(block.text))
    code = block.text
    if "link" in free:
        code = 'for link in response.css("a::attr(href)").getall():\n' + textwrap.indent(code, "    ")
    code = "def parse(self, response):\n" + textwrap.indent(code, "    ")
    text = code + "\n" + _SPIDER_OF_METHODS.replace("{names}", "parse")
    _crawl_calling(place, block, "shop/spiders/documented.py", text, ["parse"], "scrapy crawl documented")


def component(place: Place, block: Block) -> None:
    """Set the classes; each of their methods is called in a crawl."""
    text = f"import documented_calls\n\ndocumented_calls.keep(__file__)\n\n{block.text}\n"
    options, names = [], []
    for setting in sorted(set(COMPONENTS.values())):
        found = [
            node
            for node in ast.parse(block.text).body
            if isinstance(node, ast.ClassDef) and _setting_of(node) == setting
        ]
        if found:
            classes = {f"shop.documented.{node.name}": 500 for node in found}
            options.append(f"-s {setting}='{json.dumps(classes)}'")
        names += [child.name for node in found for child in node.body if isinstance(child, ast.FunctionDef)]
    _crawl_calling(place, block, "shop/documented.py", text, names, f"scrapy crawl site {' '.join(options)}")


def _crawl_calling(
    place: Place, block: Block, name: str, text: str, functions: list[str], command: str
) -> None:
    home = _copy_of_project(place)
    (home / name).write_text(text, encoding="utf-8")
    _crawl(place, block, command, home)
    kept = home / "calls.txt"
    called = set(kept.read_text(encoding="utf-8").split()) if kept.exists() else set()
    missing = set(functions) - called
    assert not missing, f"{where(block)} never called in a crawl: {', '.join(sorted(missing))}"


def spider(place: Place, block: Block) -> None:
    """The spider stays in the project, and crawls."""
    found = re.search(r"^    name = [\"']([\w-]+)[\"']", block.text, re.MULTILINE)
    assert found, f"{where(block)} a spider without a name"
    (place.home / f"shop/spiders/{found[1]}.py").write_text(block.text + "\n", encoding="utf-8")
    _crawl(place, block, f"scrapy crawl {found[1]}", place.home)


# Scripts and examples.


def script(block: Block, interpreter: Interpreter) -> None:
    """Execute it; a comment behind a print is what was printed."""
    printed, error = interpreter.run(block.text + "\n", str(block.page), block.line - 1)
    assert error is None, f"{where(block)}\n{error}"
    stated = re.findall(r"^ *print\(.*\n((?:^ *#.*(?:\n|\Z))+)", block.text, re.MULTILINE)
    lines = [line.strip().removeprefix("#").strip() for one in stated for line in one.splitlines()]
    for line in lines:
        assert line in printed, f"{where(block)} printed is not {line} but\n{printed}"


def doctested(place: Place, block: Block) -> None:
    """The examples give what they say. Those of a page share their names."""
    names = place.names
    test = doctest.DocTestParser().get_doctest(
        block.text + "\n", names, block.page.name, str(block.page), block.line - 1
    )
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False).run(
        test, out=told.append, clear_globs=False
    )
    names.update(test.globs)
    assert not told, f"{where(block)}\n{''.join(told)}"


def check_data(block: Block) -> None:
    """JSON, TOML and YAML parse."""
    try:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            yaml.safe_load(block.text)
    except (ValueError, yaml.YAMLError) as error:
        raise AssertionError(f"{where(block)} {error}") from None
