"""Files that are replaced as a whole: what is no file stays what it is."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from webserver import Page

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.files import whole_file

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_stays_one_and_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    target.parent.mkdir()
    (tmp_path / "link").symlink_to(target)
    assert whole_file.file_at(tmp_path / "link") == target
    whole_file.replace(target, b"one")
    target.chmod(0o640)
    whole_file.replace(whole_file.file_at(tmp_path / "link"), b"two")
    assert (tmp_path / "link").is_symlink()
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"two", 0o640)
    assert names_in(tmp_path / "deep") == ["file"]


@pytest.fixture(params=["folder", "pipe", "device", "link", "circle", "zero"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "there"
    match request.param:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = type(tmp_path)("/dev/null")
        case "link":
            path.symlink_to("/dev/null")
        case "circle":
            path.symlink_to(path)
        case "zero":
            path = tmp_path / "a\0b"
    return path


def test_what_is_no_file_is_refused(no_file: Path, tmp_path: Path) -> None:
    before = names_in(tmp_path)
    with pytest.raises(OSError) as caught:
        whole_file.file_at(no_file)
    assert caught.value.strerror
    assert not no_file.is_file()
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("setting", ["DEDUPE_REPORT", "DEDUPE_METRICS_FILE"])
@crawl_test
async def test_a_crawl_replaces_no_device(
    setting: str, no_file: Path, web: WebServer, settings: dict[str, Any]
) -> None:
    web.pages["/"] = Page(b"<p>x")
    with pytest.raises(SettingError, match=r"cannot be written: .*\. Name another file\.$"):
        await crawl(LinkSpider, {**settings, setting: no_file}, urls=web.url())
    assert web.paths == []


@crawl_test
async def test_the_file_of_metrics_may_be_a_link(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.pages["/"] = Page(b"<p>x")
    (tmp_path / "link.prom").symlink_to(tmp_path / "real.prom")
    await crawl(LinkSpider, {**settings, "DEDUPE_METRICS_FILE": tmp_path / "link.prom"}, urls=web.url())
    assert (tmp_path / "link.prom").is_symlink()
    assert "dedupe_url_seen" in (tmp_path / "real.prom").read_text()


def test_a_file_with_the_longest_name_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    whole_file.replace(whole_file.file_at(path), b"x")
    assert path.read_bytes() == b"x"
