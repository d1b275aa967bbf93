from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with PassageIndex(tmp_path / "index") as index:
        index.add("a", WORDS)
        index.add("b", f"{WORDS} b")
        index.add("c", WORDS)
    return tmp_path / "index"


@pytest.mark.parametrize("full", [(), ("--full",)])
def test_a_sound_index_is_called_sound(
    call: Callable[..., Called], root: Path, full: tuple[str, ...]
) -> None:
    called = call("passages", "check", "--root", str(root), *full, "--json")
    assert (called.code, called.err) == (0, "")
    result = called.json
    assert (result["problems"], result["segments"], result["documents"], result["texts"]) == ([], 1, 3, 2)
    assert result["posts"] > 0
    assert result["is_full"] is bool(full)
    assert "no problems" in call("passages", "check", "--root", str(root), *full).out


def test_a_changed_byte_is_found_and_told(call: Callable[..., Called], root: Path) -> None:
    (file,) = root.glob("*.segment")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)
    called = call("passages", "check", "--root", str(root))
    assert called.code == 4
    assert file.name in called.out
    assert "The index has 1 problem" in called.err


def test_what_a_stopped_writer_has_left_is_told_and_is_no_problem(
    call: Callable[..., Called], root: Path
) -> None:
    (root / "00000099.segment").write_bytes(b"left")
    called = call("passages", "check", "--root", str(root))
    assert called.code == 0
    assert "was stopped: 00000099.segment." in called.out


def test_what_a_writer_at_work_has_written_is_not_called_left(
    call: Callable[..., Called], root: Path
) -> None:
    with PassageIndex(root) as index, index.writing(atomic=True):
        index.add("x", "text")
        index.flush()
        called = call("passages", "check", "--root", str(root), "--json")
        shown = call("passages", "check", "--root", str(root))
    assert (called.code, len(called.json["orphans"])) == (0, 1)
    assert "Files of a running or stopped writer" in shown.out


def test_a_damaged_manifest_is_refused(call: Callable[..., Called], root: Path) -> None:
    (root / "manifest.json").write_text("{")
    called = call("passages", "check", "--root", str(root))
    assert (called.code, called.err.count("\n")) == (3, 1)
    assert "manifest.json" in called.err


def test_where_there_is_no_index_nothing_is_checked_or_made(call: Callable[..., Called]) -> None:
    called = call("passages", "check", "--root", "nowhere")
    assert called.code == 3
    assert "There is no passage index in nowhere" in called.err
    assert not Path("nowhere").exists()
