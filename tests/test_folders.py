"""Folders that cannot be made or written to: the crawl and the doctor say what is wrong, and what to do."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from programs import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from webserver import WebServer

# Others than root are told that they have no permission.
HAS_PROC = os.path.ismount("/proc") and os.geteuid() == 0

PROJECT = """
import scrapy


class One(scrapy.Spider):
    name = "one"
    start_urls = ["data:text/html,<p>one"]

    def parse(self, response):
        pass
"""


@crawl_test
async def test_folders_that_cannot_be_written(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    is_file = f"{tmp_path}/file is a file."
    for name, value, words in (
        ("DEDUPE_WARC_DIR", f"{tmp_path}/file", f"{is_file} Name another folder in DEDUPE_WARC_DIR."),
        ("DEDUPE_WARC_DIR", f"{tmp_path}/file/warcs", f"{is_file} Name another folder in DEDUPE_WARC_DIR."),
        (
            "DEDUPE_WARC_DIR",
            f"{tmp_path}/link",
            f"{tmp_path}/link is a broken link. Name another",
        ),
        ("DEDUPE_STORE_URL", f"sqlite:///{tmp_path}/file/d.db", f"{is_file} Name a file in another folder."),
        ("JOBDIR", f"{tmp_path}/file", f"{is_file} Name another folder in JOBDIR."),
        # Scrapy makes it before it asks a component.
        ("JOBDIR", f"{tmp_path}/file/job", f"{is_file} Name another folder in JOBDIR."),
        *(
            [("DEDUPE_WARC_DIR", "/proc/warcs", "nothing can be created in /proc. Name another")]
            if HAS_PROC
            else []
        ),
    ):
        caplog.clear()
        with pytest.raises(Exception):  # noqa: B017 - Scrapy may put an error of its own in place of ours
            await crawl(LinkSpider, {**settings, name: value}, urls=web.url())
        (told,) = [line for line in caplog.messages if "does not start" in line]
        assert words in told
        assert "permission" not in told
        assert "File exists" not in told
    assert web.paths == []


def project_at(folder: Path, *, data_folder: Path | None = None) -> Path:
    """A project with the add-on, and Scrapy's data folder where it is told."""
    (folder / "first").mkdir(parents=True)
    told = f"[settings]\ndefault = first.settings\n[datadir]\ndefault = {data_folder}\n"
    (folder / "scrapy.cfg").write_text(told if data_folder else told.partition("[datadir]")[0])
    (folder / "first" / "__init__.py").touch()
    (folder / "first" / "spiders.py").write_text(PROJECT)
    (folder / "first" / "settings.py").write_text(
        'SPIDER_MODULES = ["first.spiders"]\nADDONS = {"scrapy_dedupe.Addon": 500}\nTELNETCONSOLE_ENABLED = False\n'
    )
    return folder


CRAWL = ("scrapy", "crawl", "one")
DOCTOR = ("scrapy-dedupe", "doctor")
# Runs one of these where the folder can only be read. A new mount namespace is needed.
READ_ONLY = """
import ctypes, os, subprocess, sys
from scrapy.cmdline import execute
from scrapy_dedupe.commands.console import main
_, folder, name, *words = sys.argv
if ctypes.CDLL(None).unshare(0x20000):
    sys.exit("no namespace")
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
os.chdir(folder)
sys.path.insert(0, "")
execute([name, *words]) if name == "scrapy" else sys.exit(main(words))
"""


def said(folder: Path, words: Sequence[str], **options: Any) -> str:
    done = run_program(*words, cwd=folder, **options)
    return done.stdout + done.stderr


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    project = project_at(tmp_path / "project", data_folder=tmp_path / "file" / "data")
    told = said(project, CRAWL)
    words = f"dedupe.sqlite cannot be opened: {tmp_path}/file is a file. Name a file in another folder."
    assert len(re.findall(f"The crawl does not start. The store .*{re.escape(words)}", told)) == 1
    told = one_line(said(project, DOCTOR))
    assert (
        f"The folder {tmp_path}/file/data/dedupe for the store cannot be created: {tmp_path}/file is a file."
        " -> Name another folder. The setting is DEDUPE_STORE_URL."
    ) in told
    assert "bug of scrapy-dedupe" not in told
    assert "Traceback" not in told
    # Nothing that is not used stands in the way.
    elsewhere = f"DEDUPE_STORE_URL=sqlite:///{tmp_path}/d.db"
    assert "'finish_reason': 'finished'" in said(project, [*CRAWL, "-s", elsewhere])


def test_a_project_that_can_only_be_read(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    mounted = ("python", "-c", READ_ONLY, project)
    if run_program(*mounted, "scrapy-dedupe", "--version").returncode:
        pytest.skip("no file system can be mounted here")
    is_read_only = f"{project} is on a read-only file system."
    settings = project / "first" / "settings.py"
    common = settings.read_text()
    for more, words in (
        ("", "The crawl does not start. The store "),
        (
            f'DEDUPE_STORE_URL = "sqlite:///{tmp_path}/d.db"',
            "The crawl does not start. WARC files cannot be written to warcs: ",
        ),
        ('JOBDIR = "job"', "The crawl does not start. The job folder job (JOBDIR) cannot be used: "),
    ):
        settings.write_text(common + more)
        told = said(tmp_path, (*mounted, *CRAWL))
        assert re.search(f"{re.escape(words)}.*{re.escape(is_read_only)}", told), told
        told = one_line(said(tmp_path, (*mounted, *DOCTOR)))
        assert "read-only file system. The same applies to" in told or "for WARC files cannot be" in told
        assert f"WARC files cannot be written to warcs: {is_read_only} Name another folder" in told
        assert "bug of scrapy-dedupe" not in told
        assert "Traceback" not in told


def test_settings_of_a_module_without_a_project(tmp_path: Path) -> None:
    """As a server that runs spiders has them: Scrapy does not know its data folder then."""
    project_at(tmp_path / "project")
    (tmp_path / "empty").mkdir()
    environment = {"SCRAPY_SETTINGS_MODULE": "first.settings", "PYTHONPATH": str(tmp_path / "project")}
    told = said(tmp_path / "empty", CRAWL, env=environment)
    assert "'finish_reason': 'finished'" in told
    assert "Disabled" not in told
    assert (tmp_path / "empty" / ".scrapy" / "dedupe" / "dedupe.sqlite").exists()
