"""Programs that a page names and a test cannot run: they check what they are asked for, and do what later lines need."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
import urllib.request
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[3]
OTHER_PACKAGES = {
    "s3fs",
    "gcsfs",
    "adlfs",
    "paramiko",
    "tox",
    "pre-commit",
    "pip",
    "scrapy-redis",
    "fastwarc",
}
"""Packages of others that pages have a reader install."""
PROGRAMS = (
    "scrapy",
    "scrapy-dedupe",
    "python",
    "python3",
    "pip",
    "pytest",
    "tox",
    "pre-commit",
    "dot",
    "curl",
)


def main(name: str, words: list[str]) -> None:
    """Be the program *name*."""
    wrong = {
        "pip": pip, "tox": tox, "pre-commit": pre_commit, "pytest": pytest, "dot": dot, "curl": curl
    }[name](words)  # fmt: skip
    if wrong:
        sys.exit(f"{name}: {wrong}")


def pip(words: list[str]) -> str | None:
    """Install nothing: whether package and extras exist, and the folder is one to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    if not words or words[0] != "install":
        return f"only install is known, not {words}"
    for word in words[1:]:
        if word in {"-e", "--editable", "-U", "--upgrade", "-q"}:
            continue
        asked = re.fullmatch(r"([\w./-]+?)(?:\[([\w,-]+)\])?", word)
        if asked is None:
            return f"not understood: {word}"
        is_own = asked[1] == project["name"] or (asked[1] == "." and Path("pyproject.toml").exists())
        if not is_own and asked[1] not in OTHER_PACKAGES:
            return f"no such package: {word}"
        if asked[2] and (not is_own or not extras.issuperset(asked[2].split(","))):
            return f"no such extra: {word}"
    return None


def tox(words: list[str]) -> str | None:
    """Whether the environments exist."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    named = {word for at, word in enumerate(words) if at and words[at - 1] == "-e"}
    for name in ",".join(named).split(","):
        if name and f"testenv:{name}" not in config and not re.fullmatch(r"py3\d+", name):
            return f"no such environment: {name}"
    return None


def pre_commit(words: list[str]) -> str | None:
    """Whether there is something to install."""
    return None if words == ["install"] and (ROOT / ".pre-commit-config.yaml").exists() else f"wrong: {words}"


def pytest(words: list[str]) -> str | None:
    """The suite does not run itself: whether the paths exist. The options -m and -n take a value."""
    paths = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not word.startswith("-") and before not in ("-m", "-n")
    ]
    missing = [path for path in paths if not (ROOT / path).exists()]
    return f"no such paths: {missing}" if missing else None


def dot(words: list[str]) -> str | None:
    """Whether it is a graph in DOT."""
    text = sys.stdin.read()
    print("<svg/>")
    return (
        None if words == ["-Tsvg"] and re.match(r"(strict )?digraph\b.*\{.*\}\s*$", text, re.DOTALL) else text
    )


def curl(words: list[str]) -> str | None:
    """Print what the site of the world answers."""
    for word in words:
        if not word.startswith("-"):
            url = word if "://" in word else f"http://{word}"
            with urllib.request.urlopen(url, timeout=120) as answer:
                sys.stdout.write(answer.read().decode())
    return None


def venv(folder: str) -> None:
    """A folder with the programs of this very environment."""
    place = Path(folder) / "bin"
    place.mkdir(parents=True, exist_ok=True)
    programs = Path(os.environ["DOCUMENTED_PROGRAMS"])
    for name in PROGRAMS:
        shutil.copy(programs / name, place / name)
    (place / "activate").write_text(f'export PATH="{place.absolute()}:$PATH"\n', encoding="utf-8")
