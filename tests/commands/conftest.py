"""A store with crawls in it, and a way to call the command line in this process."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from doctored_projects import ADDON
from offline.calling import Called

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Original, SeenText

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A store with one committed and one uncommitted crawl, and two texts."""
    url = f"sqlite:///{tmp_path / 'dedupe.sqlite'}"
    store = open_store(url)
    for crawl, counts in (("first", Counts(10, 4, 2_500, 70_000)), ("second", Counts(3, 1, 200, 9_000))):
        store.index.start(crawl, "stored")
        store.index.add_file(crawl, f"{crawl}.warc.gz")
        entry = Original("ab" * 32, crawl, "20260801120000123", "https://example.com/", 1234)
        store.index.add(crawl, [entry], counts)
    store.index.commit("first", {"finish_reason": "finished"})
    texts = [
        SeenText(bytes(16), "https://example.com/", "first", 0),
        SeenText(bytes([1]) * 16, "https://example.com/b", "first", 0),
    ]
    store.content.claim(texts, pending=False)
    store.close()
    return url


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Called]:
    """Calls ``scrapy-dedupe`` in an empty folder outside of any project."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*words: str) -> Called:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(str(stop.code))
        captured = capsys.readouterr()
        return Called(code, captured.out, captured.err)

    return call


@pytest.fixture
def project(call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Calls the doctor in a project with these settings, and gives what it finds."""
    # A file that is written twice in a second would be read once.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # How long a store takes on a busy machine is no finding.
    for name in ("_SLOW_S", "_SLOW_PING_S"):
        monkeypatch.setattr(f"scrapy_dedupe.commands.doctor.stores.{name}", 3600.0)

    def examine(
        settings: str = ADDON, *words: str, code: int = 0, own: str = "{}", spiders: str = ""
    ) -> list[dict[str, str]]:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = doctored.settings\n")
        package = folder / "doctored"
        (package / "spiders").mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        (package / "spiders" / "__init__.py").write_text(
            f"import scrapy\n{spiders}\n\nclass Own(scrapy.Spider):\n    name = 'own'\n    custom_settings = {own}\n"
        )
        (package / "settings.py").write_text(f'SPIDER_MODULES = ["doctored.spiders"]\n{settings}')
        monkeypatch.syspath_prepend(str(folder))
        for name in [name for name in sys.modules if name.startswith("doctored")]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        # Scrapy puts the name there; it goes again with what it is set to here.
        monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "")
        monkeypatch.delenv("SCRAPY_SETTINGS_MODULE")
        called = call("doctor", "--json", *words)
        assert called.code == code, called.err or called.out
        return called.json["findings"]

    return examine
