"""``verify``: what it says, in text and JSON, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offline.archive_pairs import archive, deduplicated

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
ODD = os.fsdecode(b"b \xff\xe9\xc3\xa4.warc")
"""The name of a file that is no UTF-8."""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    before, after = archive().write(tmp_path / "before"), deduplicated().write(tmp_path / "after")
    # Work in progress is no part of an archive.
    (after / ".dedupe").mkdir()
    (after / ".dedupe" / "x.warc.gz").write_bytes(b"not yet")
    return str(before), str(after)


def test_a_right_rewriting_is_exit_0(call: Callable[..., Any], folders: tuple[str, str]) -> None:
    done = call("verify", *folders, "--seed", "7")
    assert (done.code, done.err) == (0, "")
    assert "12 records in 2 files" in done.out
    assert "2 converted to revisits" in done.out
    assert "2 of 2 replayed byte for byte, with --seed 7." in done.out
    assert "1 led nowhere before either" in done.out
    assert done.out.rstrip().endswith("Nothing is lost.")


def test_json_has_every_count(call: Callable[..., Any], folders: tuple[str, str]) -> None:
    found = call("verify", *folders, "--json", "--sample", "1", "--jobs", "2").json
    assert (found["records"], found["converted"], found["repointed"], found["unchanged"]) == (12, 2, 5, 5)
    assert (found["sample"], found["replayed"], found["findings"], found["faults"]) == (1, 1, [], [])
    assert found["size_bytes"] > 1_000


def test_a_difference_is_exit_4_and_listed(
    call: Callable[..., Any], folders: tuple[str, str], tmp_path: Path
) -> None:
    wrong = deduplicated()
    wrong["copy"].set("WARC-Refers-To-Date", "2020-01-01T00:00:09Z")
    after = wrong.write(tmp_path / "wrong")
    done = call("verify", folders[0], str(after))
    assert done.code == 4
    assert (
        "b.warc, offset 0: WARC-Refers-To-Target-URI and WARC-Refers-To-Date refer to no existing response"
        in done.out
    )
    assert done.err.count("\n") == 1
    assert "2 differences are not allowed" in done.err  # the reference, and the replay
    found = call("verify", folders[0], str(after), "--json").json
    assert {finding["kind"] for finding in found["findings"]} == {"reference", "replay"}
    assert all(finding["before"] and finding["after"] for finding in found["findings"])


def test_two_files_are_compared_with_their_originals_elsewhere(
    call: Callable[..., Any], folders: tuple[str, str]
) -> None:
    pair = [f"{folder}/b.warc" for folder in folders]
    assert call("verify", *pair).code == 4
    assert call("verify", *pair, "--originals", f"{folders[0]}/a.warc.gz").code == 0
    assert call("verify", *pair, "--originals", folders[0]).code == 0


def test_damage_that_both_have_is_exit_4(call: Callable[..., Any], tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        raw = bytearray(one["alone"].to_bytes(is_gzip=True))
        raw[-6] ^= 1
        one["alone"].raw = bytes(raw)
    words = ["verify", str(before.write(tmp_path / "b")), str(after.write(tmp_path / "a"))]
    done = call(*words)
    assert (done.code, done.out) == (4, "")
    assert "a.warc.gz, offset" in done.err
    assert "--keep-going" in done.err
    done = call(*words, "--keep-going")
    assert done.code == 4
    assert "Damaged in both:" in done.out
    assert "1 damaged place was skipped" in done.err


def test_wrong_words_are_told_in_one_sentence(
    call: Callable[..., Any], folders: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for words, code in (
        (("nowhere", folders[1]), 3),
        ((folders[0], f"{folders[1]}/b.warc"), 2),
        ((str(tmp_path / "empty"), folders[1]), 2),
        ((*folders, "--sample", "-1"), 2),
        ((*folders, "--jobs", "-1"), 2),
        ((*folders, "--originals", "nowhere/*.warc"), 2),
        ((*folders, "--originals", str(tmp_path / "empty")), 2),
        ((*folders, "--work", "nowhere"), 3),
    ):
        done = call("verify", *words)
        assert (done.code, done.out) == (code, ""), done.err
        assert done.err.count("\n") == 1, done.err


TWICE = """
import sys
from scrapy_dedupe.commands.console import main
words = ["verify", "before", "after"]
print(main(words), main([*words, "--json"]), file=sys.stderr)
"""


def real_verify(folder: Path, locale: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """The text and the JSON of ``verify``, in a process that begins with this locale."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))
    }
    return subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=folder,
        env={**env, "LC_ALL": locale, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        timeout=240,
        check=False,
    )


def spoilt_folders_with_an_odd_name(folder: Path) -> None:
    before, after = archive(), deduplicated()
    after["copy"].set("WARC-Refers-To-Date", "2020-01-01T00:00:09Z")
    for name, one in (("before", before), ("after", after)):
        where = one.write(folder / name)
        (where / "b.warc").rename(where / ODD)


@pytest.mark.parametrize(
    ("locale", "more"),
    [
        ("C.UTF-8", {}),
        ("C", {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
        ("C.UTF-8", {"PYTHONIOENCODING": "latin-1"}),
    ],
    ids=["UTF-8", "C", "Latin-1"],
)
def test_a_name_that_cannot_be_printed_is_printed_with_escapes(
    tmp_path: Path, locale: str, more: dict[str, str]
) -> None:
    spoilt_folders_with_an_odd_name(tmp_path)
    done = real_verify(tmp_path, locale, **more)
    *sentences, codes = done.stderr.splitlines()
    assert (len(sentences), codes) == (2, b"4 4"), done.stderr
    text, brace, asked = done.stdout.partition(b"{")
    assert rb"after/b \udcff\udce9" in text
    result = json.loads((brace + asked).decode("ascii"))
    # What is a character of the name in one locale is several bytes in another.
    for told in (result["findings"][0]["after"], result["notes"][0]):
        assert os.fsencode(told).startswith(os.fsencode(f"after/{ODD}"))


def test_the_working_folder_may_have_any_name(
    call: Callable[..., Any], folders: tuple[str, str], tmp_path: Path
) -> None:
    work = tmp_path / os.fsdecode(b"\xff")
    work.mkdir()
    done = call("verify", *folders, "--work", str(work), "--jobs", "2")
    assert (done.code, done.err) == (0, "")
    assert list(work.iterdir()) == []
