"""A disk that is full while an index is written: one sentence, exit 3, the answers of before; and it goes on later."""

from __future__ import annotations

import json
import random
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from offline.calling import Called, call, done
from programs import run_program

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.passages.values import Passage

SHARED = " ".join(f"shared{number}" for number in range(30))


def lines(first: int, count: int, words: int) -> str:
    """Documents that do not compress well, each with a shared passage."""
    made = []
    for number in range(first, first + count):
        rng = random.Random(number)
        text = " ".join(f"{rng.getrandbits(32):x}" for _ in range(words))
        made.append(
            json.dumps({"url": f"https://full{number}.example/", "text": f"{text} {SHARED} {number}"})
        )
    return "\n".join(made) + "\n"


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of so many bytes."""
    folder.mkdir()
    called = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if called.returncode:
        pytest.skip("no file system of its own can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# The system refuses to make any file longer, as a full disk refuses to take any more.
LIMITED = """
import resource, signal, sys
from scrapy_dedupe.commands.console import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[1:]))
"""


def limited(folder: Path, limit_bytes: int, *words: str) -> Called:
    """The command line in a process that cannot write longer files."""
    process = run_program("python", "-c", LIMITED, limit_bytes, *words, cwd=folder)
    return Called(process.returncode, process.stdout, process.stderr)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4_096))


def answers(folder: Path, root: str) -> tuple[Any, list[Passage]]:
    """What is like the shared passage, and all passages."""
    (folder / "asked.txt").write_text(SHARED)
    called = done(folder, "passages", "like", "asked.txt", "--root", root, "--top", "100", "--json")
    with PassageIndex(folder / root, create=False) as index:
        return called.json, list(index.extract())


def assert_refused(called: Called, root: str) -> None:
    assert called.code == 3, called
    assert called.sentences.count("\n") == 1
    assert root in called.err


def prepared(folder: Path, root: str) -> None:
    (folder / "few.jsonl").write_text(lines(0, 6, 300))
    (folder / "many.jsonl").write_text(lines(6, 60, 2_000))
    done(folder, "passages", "index", "few.jsonl", "--root", root)


APPEND = ("passages", "index", "many.jsonl", "--append", "--root")


def test_a_full_disk_is_told_and_the_index_answers_as_before_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "disk", "400k") as disk:
        prepared(tmp_path, "disk/index")
        before = answers(tmp_path, "disk/index")
        names = {path.name for path in (disk / "index").iterdir()}
        assert_refused(call(tmp_path, *APPEND, "disk/index"), "disk/index")
        assert answers(tmp_path, "disk/index") == before
        assert done(tmp_path, "passages", "check", "--full", "--root", "disk/index")
        # What was begun does not take the room that is left.
        assert {path.name for path in (disk / "index").iterdir()} == names
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done(tmp_path, *APPEND, "disk/index")
        (passage, *_) = answers(tmp_path, "disk/index")[1]
        assert passage.documents == 66
        done(tmp_path, "passages", "check", "--full", "--root", "disk/index")


def test_a_disk_without_any_room_still_answers(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "400k") as disk:
        prepared(tmp_path, "disk/index")
        before = answers(tmp_path, "disk/index")
        with pytest.raises(OSError, match="No space left"):
            fill(disk / "filler")
        assert answers(tmp_path, "disk/index") == before
        for words in (
            (*APPEND, "disk/index"),
            ("passages", "delete", "https://full1.example/", "--root", "disk/index"),
            ("passages", "compact", "--root", "disk/index"),
        ):
            called = call(tmp_path, *words)
            if words[1] != "compact" or called.code:  # one segment is already compact
                assert_refused(called, "disk/index")
            assert answers(tmp_path, "disk/index") == before
        (disk / "filler").unlink()
        done(tmp_path, "passages", "delete", "https://full1.example/", "--root", "disk/index")
        assert answers(tmp_path, "disk/index") != before


@pytest.mark.parametrize("limit_bytes", [1, 700, 5_000, 60_000, 200_000])
def test_whatever_file_cannot_grow_the_index_answers_as_before(tmp_path: Path, limit_bytes: int) -> None:
    prepared(tmp_path, "index")
    before = answers(tmp_path, "index")
    assert_refused(limited(tmp_path, limit_bytes, *APPEND, "index"), "index")
    assert answers(tmp_path, "index") == before
    done(tmp_path, "passages", "check", "--full", "--root", "index")
    done(tmp_path, *APPEND, "index")
    done(tmp_path, "passages", "check", "--full", "--root", "index")


def test_a_merge_that_finds_no_room_leaves_the_segments(tmp_path: Path) -> None:
    prepared(tmp_path, "index")
    done(tmp_path, *APPEND, "index")
    before = answers(tmp_path, "index")
    for limit_bytes in (700, 30_000):
        assert_refused(limited(tmp_path, limit_bytes, "passages", "compact", "--root", "index"), "index")
        assert answers(tmp_path, "index") == before
    done(tmp_path, "passages", "compact", "--root", "index")
    assert answers(tmp_path, "index")[0] == before[0]


def test_an_extraction_that_finds_no_room_for_its_notes_says_so(tmp_path: Path) -> None:
    prepared(tmp_path, "index")
    done(tmp_path, *APPEND, "index")
    called = limited(tmp_path, 5_000, "passages", "extract", "--root", "index", "-o", "passages.txt")
    assert called.code == 3
    assert called.sentences.count("\n") == 1
    assert not (tmp_path / "passages.txt").exists()


IN_PROCESS = f"""
import resource, signal, sys
from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.passages import PassageIndex
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
index = PassageIndex("index")
index.add("first", {SHARED!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
try:
    index.flush()
except StoreUnavailable as error:
    print(error)
else:
    sys.exit("nothing was raised")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
index.flush()
print([hit.doc_id for hit in index.like({SHARED!r})])
"""


def test_what_is_pending_is_kept_while_the_disk_is_full_and_written_when_there_is_room(
    tmp_path: Path,
) -> None:
    process = run_program("python", "-c", IN_PROCESS, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    sentence, hits = process.stdout.splitlines()
    assert "index" in sentence
    assert hits == "['first']"


def add_one(path: Path) -> None:
    with PassageIndex(path) as index:
        index.add("first", SHARED)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file") as raised:
        add_one(tmp_path / "file" / "index")
    assert "\n" not in str(raised.value)
