from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

A, B = f"md5:{'a' * 32}", f"md5:{'b' * 32}"
LINES = [
    f"z.warc.gz 0 10 http://a/ 2012-01-01T00:00:00.5Z {A}",
    f"y.warc.gz 50 20 http://b/ 2012-01-01T00:00:00Z {A}",
    f"y.warc.gz 9 30 http://c/ 2011-01-01T00:00:00Z {B}",
]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "m.txt"
    path.write_text("".join(f"{line} 1\n" for line in LINES))
    return path


def test_the_earliest_capture_is_the_original(call: Callable[..., Called], manifest: Path) -> None:
    done = call("warcsumproc", str(manifest), "-o", "out.txt")
    assert (done.code, done.err) == (0, "")
    assert done.out == "out.txt has 3 records of 2 payloads; 1 are copies, with a stored size of 10 B.\n"
    assert Path("out.txt").read_text().splitlines() == [
        f"{LINES[1]} 1 1 - -",
        f"{LINES[0]} 1 2 http://b/ 2012-01-01T00:00:00Z",
        f"{LINES[2]} 1 1 - -",
    ]


def test_the_order_can_be_that_of_the_files(call: Callable[..., Called], manifest: Path) -> None:
    assert call("warcsumproc", str(manifest), "-o", "out.txt", "--order", "place").code == 0
    offsets = [line.split(" ")[1] for line in Path("out.txt").read_text().splitlines()]
    assert offsets == ["9", "50", "0"]


def test_digests_without_a_comparison_are_said_to_be_trusted(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    (tmp_path / "m").write_text("".join(f"{line}\n" for line in LINES))
    done = call("warcsumproc", str(tmp_path / "m"), "-o", "out.txt")
    assert done.code == 0
    assert "Only digests were compared." in done.out


def test_the_result_is_json(call: Callable[..., Called], manifest: Path) -> None:
    assert call("warcsumproc", str(manifest), "-o", "out.txt", "--json").json == {
        "manifest": "out.txt",
        "lines": 3,
        "clusters": 2,
        "copies": 1,
        "copied_bytes": 10,
        "unresolved": False,
        "fault_count": 0,
        "faults": [],
    }


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_all_formats_say_the_same(form: str, call: Callable[..., Called], manifest: Path) -> None:
    assert call("warcsumproc", str(manifest), "-o", "direct").code == 0
    assert call("warcsumproc", str(manifest), "-o", "other", "--format", form).code == 0
    assert call("warcsumproc", "other", "-o", "back").code == 0
    assert Path("back").read_bytes() == Path("direct").read_bytes()


def test_a_wrong_line_ends_it_without_an_output(call: Callable[..., Called], manifest: Path) -> None:
    with manifest.open("a") as file:
        file.write("nonsense\n")
    done = call("warcsumproc", str(manifest), "-o", "out.txt")
    assert done.code == 4
    assert f"{manifest}, line 4: it has 1 columns" in done.err
    assert not Path("out.txt").exists()


def test_a_wrong_line_is_passed_over_if_that_is_wished(call: Callable[..., Called], manifest: Path) -> None:
    with manifest.open("a") as file:
        file.write("nonsense\n")
    done = call("warcsumproc", str(manifest), "-o", "out.txt", "--keep-going", "--json")
    assert done.code == 4
    assert done.json["lines"] == 3
    assert done.json["faults"][0]["place"] == f"{manifest}, line 4"
    assert "1 line was skipped" in done.err
    assert len(Path("out.txt").read_text().splitlines()) == 3


def test_an_output_that_is_there_is_kept(call: Callable[..., Called], manifest: Path) -> None:
    Path("out.txt").write_text("old")
    done = call("warcsumproc", str(manifest), "-o", "out.txt")
    assert done.code == 3
    assert "--force" in done.err
    assert Path("out.txt").read_text() == "old"
    assert call("warcsumproc", str(manifest), "-o", "out.txt", "--force").code == 0


def test_standard_output_takes_the_lines_alone(manifest: Path) -> None:
    done = run_program("scrapy-dedupe", "warcsumproc", "-", "-o", "-", stdin=manifest.read_bytes())
    assert done.stdout.count("\n") == 3
    assert done.stdout.startswith(LINES[1])


def test_lines_and_json_cannot_share_standard_output(call: Callable[..., Called], manifest: Path) -> None:
    done = call("warcsumproc", str(manifest), "-o", "-", "--json")
    assert (done.code, done.out) == (2, "")
