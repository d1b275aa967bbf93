"""What both command lines have in common: options, exit codes, sentences."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offline.planted import SITE, Copy, Planting, text
from programs import run_program
from scrapy.commands import ScrapyHelpFormatter
from scrapy.settings import Settings

from scrapy_dedupe import __version__
from scrapy_dedupe.commands import verbs
from scrapy_dedupe.commands.command import Command
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def scrapy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program("scrapy", *words, cwd=folder)


@pytest.fixture
def project(tmp_path: Path, store_url: str) -> Path:
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "settings.py").write_text(f'BOT_NAME = "shop"\nDEDUPE_STORE_URL = "{store_url}"\n')
    return folder


def test_a_missing_store_is_told_and_not_made(call: Callable[..., Any]) -> None:
    called = call("stats")
    assert (called.code, called.out) == (3, "")
    assert called.err.startswith("scrapy-dedupe stats: There is no store sqlite:///")
    assert len(called.err.splitlines()) == 1
    assert not list(Path().rglob("*.sqlite"))


def test_a_server_that_is_away_is_told(call: Callable[..., Any]) -> None:
    called = call("crawls", "--store", "redis://127.0.0.1:1/0")
    assert called.code == 3
    assert called.err.startswith("scrapy-dedupe crawls: The store redis://127.0.0.1:1/0 does not answer")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "unknown",
        "stats --no-such-option",
        "commit",
        "commit a b",
        "cancel a:b",
        "stats --store mysql://here/",
    ],
)
def test_wrong_use_is_exit_2(call: Callable[..., Any], words: str, store_url: str) -> None:
    where = ["--store", store_url] if words.startswith(("commit", "cancel")) else []
    called = call(*words.split(), *where)
    assert (called.code, called.out) == (2, "")
    assert "Traceback" not in called.err
    assert called.err.splitlines()[-1].startswith("scrapy-dedupe")


def test_another_file_under_the_name_is_refused_untouched(call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    path.write_text("These are my notes. " * 100)
    called = call("stats", "--store", f"sqlite:///{path}")
    assert called.code == 3
    assert "is not a valid SQLite database" in called.err
    assert path.read_text() == "These are my notes. " * 100


def test_an_unexpected_error_is_exit_1_with_a_sentence(
    call: Callable[..., Any], store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs.verb_named("stats"), "run", lambda *_: 1 / 0)
    called = call("stats", "--store", store_url)
    assert called.code == 1
    assert called.err.splitlines()[-1].startswith("scrapy-dedupe stats: unexpected ZeroDivisionError.")


def test_version_and_help(call: Callable[..., Any]) -> None:
    assert call("--version").out == f"scrapy-dedupe {__version__}\n"
    text = call("--help").out
    for name, listed in verbs.VERBS.items():
        assert " " in name or re.search(rf"^ +{name}\s", text, flags=re.MULTILINE)
        assert listed.text in " ".join(call(*name.split(), "--help").out.split())


def test_a_project_names_the_store(
    call: Callable[..., Any], project: Path, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "shop.settings")
    monkeypatch.syspath_prepend(str(project))
    called = call("stats", "--json")
    assert called.code == 0
    assert called.json["index"] == store_url


def test_settings_that_cannot_be_loaded_are_told(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "no_such_module.settings")
    called = call("stats")
    assert called.code == 2
    assert "The settings of the project cannot be loaded (ModuleNotFoundError" in called.err
    assert call("stats", "--store", store_url).code == 0


def test_scrapy_takes_the_same_verbs(project: Path, tmp_path: Path, store_url: str) -> None:
    inside = scrapy(project, "dedupe", "crawls")
    assert (inside.returncode, inside.stderr) == (0, "")
    assert inside.stdout.startswith("first   committed")
    outside = scrapy(tmp_path, "dedupe", "stats", "--store", store_url, "--json")
    assert (outside.returncode, outside.stderr) == (0, "")
    before = scrapy(tmp_path, "dedupe", "-s", f"DEDUPE_STORE_URL={store_url}", "crawls")
    behind = scrapy(tmp_path, "dedupe", "crawls", "-s", f"DEDUPE_STORE_URL={store_url}")
    assert before.stdout == behind.stdout == inside.stdout


def test_scrapy_gives_the_same_exit_codes(project: Path, tmp_path: Path) -> None:
    refused = scrapy(project, "dedupe", "cancel", "first")
    assert refused.returncode == 3
    assert refused.stderr.startswith("scrapy dedupe cancel: The crawl first is committed")
    for words in ((), ("unknown",), ("stats", "--no-such-option"), ("stats", "more")):
        wrong = scrapy(tmp_path, "dedupe", *words)
        assert ": error: " in wrong.stderr.splitlines()[-1]
        assert wrong.returncode == 2, words
        assert "Traceback" not in wrong.stderr


def test_scrapy_explains_the_command_and_each_verb(tmp_path: Path) -> None:
    text = scrapy(tmp_path, "dedupe", "--help").stdout
    assert "scrapy dedupe [options] VERB" in text
    assert "List all crawls" in text
    text = scrapy(tmp_path, "dedupe", "crawls", "--help").stdout
    assert "scrapy dedupe crawls" in text
    assert "--store URL" in text
    assert scrapy(tmp_path, "dedupe", "--version").stdout == f"scrapy-dedupe {__version__}\n"


@pytest.mark.parametrize("columns", [60, 70, 80, 110, 120])
def test_no_line_of_the_help_becomes_a_heading(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    command = Command()
    command.settings = Settings()
    parser = argparse.ArgumentParser(formatter_class=ScrapyHelpFormatter)
    command.add_options(parser)
    text = parser.format_help()
    headings = [line for line, under in pairwise(text.splitlines()) if re.fullmatch("[=-]+", under)]
    assert set(headings) <= {"Usage", "Options", "Optional Arguments", "Global Options", "Verbs"}
    assert "Verbs" in headings


def test_the_command_does_not_slow_down_other_scrapy_calls() -> None:
    program = (
        "import sys, scrapy.commands; before = set(sys.modules); import scrapy_dedupe.commands.command;"
        " print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "scrapy_dedupe",
        "scrapy_dedupe.commands",
        "scrapy_dedupe.commands.command",
    ]


def test_the_tools_for_warc_files_do_not_import_scrapy(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for number in range(2):
        fate = Copy("page-0") if number else None
        planting.exchange("a.warc.gz", f"page-{number}", f"{SITE}/page", text("page", 5_000), fate=fate)
    planting.write(tmp_path / "in")
    program = (
        "import sys; sys.modules['scrapy'] = sys.modules['twisted'] = None\n"
        "from scrapy_dedupe.commands.console import main\n"
        "codes = [main(line.split()) for line in sys.stdin]\n"
        "sys.exit(max(codes))"
    )
    verbs = [
        "dedupe in -o out",
        "verify in out",
        "restore out -o back",
        "warcsum in -o sums",
        "warccollres sums -o compared",
        "warcsumproc compared -o numbered",
        "warcrefs numbered -o referred",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="\n".join(verbs),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert "now revisits        1\n" in done.stdout


def test_the_module_of_a_verb_is_imported_when_the_verb_is_called() -> None:
    program = (
        "import sys; from scrapy_dedupe.commands import console, verbs\n"
        "for words in ['--help'], ['urls', 'stats', '--help']:\n"
        "    try: console.main(words)\n"
        "    except SystemExit: print({listed.module for listed in verbs.VERBS.values() if"
        " f'scrapy_dedupe.commands.{listed.module}' in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines() == ["set()", "{'urls.verbs'}"]


@pytest.mark.parametrize(
    "words",
    ["warcsum in -o out", "verify in out", "content curve", "passages check", "dedupe in -o out"],
)
def test_a_verb_without_a_store_refuses_one(call: Callable[..., Any], store_url: str, words: str) -> None:
    called = call(*words.split(), "--store", store_url)
    assert (called.code, called.out) == (2, "")
    assert "--store " in called.err


def test_ids_of_others_do_not_steer_the_terminal(call: Callable[..., Any], store_url: str) -> None:
    crawl = "a\x1b[2J\x9b31m\u202eb\nc"
    store = open_store(store_url)
    store.reports.save(crawl, b"")
    store.close()
    table, refused = call("report", "--store", store_url), call("report", crawl, "--store", store_url)
    assert r"The observations of a\x1b[2J\x9b31m\u202eb" in table.out
    assert r"The report of the crawl a\x1b[2J\x9b31m\u202eb" in refused.err
    assert not set(table.out + table.err + refused.err) & {"\x1b", "\x9b", "\u202e"}
    assert call("report", "--store", store_url, "--json").json["unreadable"] == [crawl]
