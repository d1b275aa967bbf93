from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "m.txt"
    path.write_text(
        "".join(f"a.warc.gz {n} 10 http://a/ 2012-01-01T00:00:00Z md5:{n // 2:032}\n" for n in range(8))
    )
    return path


def test_parts_stand_beside_the_manifest(call: Callable[..., Called], manifest: Path) -> None:
    done = call("warcsumsplit", str(manifest), "-c", "2")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith(f"{manifest}.1: 4 lines of 2 digests, ")
    parts = [Path(f"{manifest}.{number}").read_text() for number in (1, 2)]
    assert "".join(parts) == manifest.read_text()


@pytest.mark.parametrize(("size", "parts"), [("1K", 1), ("200", 4), ("1", 4), ("1g", 1)])
def test_parts_have_a_size(size: str, parts: int, call: Callable[..., Called], manifest: Path) -> None:
    done = call("warcsumsplit", str(manifest), "-s", size, "-o", "part", "--json")
    assert done.code == 0
    assert [part["file"] for part in done.json["parts"]] == [f"part.{n}" for n in range(1, parts + 1)]


def test_parts_of_a_longer_run_are_refused(call: Callable[..., Called], manifest: Path) -> None:
    assert call("warcsumsplit", str(manifest), "-c", "4").code == 0
    assert call("warcsumsplit", str(manifest), "-c", "2").code == 3
    assert call("warcsumsplit", str(manifest), "-c", "2", "--force").code == 0
    assert not Path(f"{manifest}.3").exists()


@pytest.mark.parametrize(
    "words",
    [[], ["-c", "0"], ["-c", "x"], ["-s", "0"], ["-s", "1.5G"], ["-s", "5X"], ["-c", "2", "-s", "1K"]],
)
def test_a_wrong_option_is_wrong_use(words: list[str], call: Callable[..., Called], manifest: Path) -> None:
    assert call("warcsumsplit", str(manifest), *words).code == 2


def test_several_manifests_need_a_name_for_the_parts(call: Callable[..., Called], manifest: Path) -> None:
    done = call("warcsumsplit", str(manifest), str(manifest), "-c", "2")
    assert done.code == 2
    assert "-o" in done.err


def test_a_wrong_line_ends_it_without_parts(call: Callable[..., Called], manifest: Path) -> None:
    with manifest.open("a") as file:
        file.write("nonsense\n")
    assert call("warcsumsplit", str(manifest), "-c", "2").code == 4
    assert list(manifest.parent.glob("m.txt.*")) == []
    assert call("warcsumsplit", str(manifest), "-c", "2", "--keep-going").code == 4
    assert len(list(manifest.parent.glob("m.txt.*"))) == 2


def test_scrapys_own_command_takes_the_size(manifest: Path) -> None:
    done = run_program("scrapy", "dedupe", "warcsumsplit", manifest, "-s", "200")
    assert done.returncode == 0, done.stderr
    assert len(list(manifest.parent.glob("m.txt.*"))) == 4
