from __future__ import annotations

import errno
import gzip
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from listed_archives import WEAK, ListedFile, in_ranges
from programs import run_program
from waiting import wait_until
from webserver import WebServer

from scrapy_dedupe.offline import collisions
from scrapy_dedupe.offline.manifest import LineWriter, ManifestLine, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Call = Any

# The peak is that of this program alone; what getrusage tells begins with that of the process that forked.
PROGRAM = """
import re, sys
from scrapy_dedupe.commands.console import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(code)
"""


def day(number: int) -> str:
    return f"2020-01-{number:02}T00:00:00Z"


def manifest(path: Path, lines: Iterable[ManifestLine], *, columns: int = 6, kind: str = "text") -> str:
    with LineWriter(path, columns=columns, format=kind) as writer:
        for line in lines:
            writer.write(line)
    return str(path)


@pytest.fixture
def archive(tmp_path: Path) -> ListedFile:
    """Under one weak digest the payloads one, two, one, two, six."""
    folder = tmp_path / "crawl"
    folder.mkdir()
    listed = ListedFile(folder / "a.warc.gz", "a.warc.gz")
    for number, payload in enumerate((b"one", b"two", b"one", b"two", b"six"), 1):
        listed.add(payload, f"http://example.org/{number}", day(number))
    return listed


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def extensions(path: Path) -> list[int | None]:
    return [line.extension for line in sorted(read_lines(path), key=lambda line: line.offset)]


def test_the_manifest_gets_its_seventh_column(call: Call, archive: ListedFile, tmp_path: Path) -> None:
    source = manifest(tmp_path / "in", random.Random(1).sample(archive.lines, 5))
    called = call("warccollres", source, "-o", "out", "--root", str(tmp_path / "crawl"))
    assert (called.code, called.err) == (0, "")
    assert called.out == (
        "out: 5 records. 5 of them compared, since they share 1 digest: 1 digest of different payloads, 0 records that"
        " must not replace another.\n"
    )
    assert extensions(Path("out")) == [1, 2, 1, 2, 3]
    first = Path("out").read_text().splitlines()[0]
    assert (
        first == f"a.warc.gz 0 {archive.lines[0].length} http://example.org/1 2020-01-01T00:00:00Z {WEAK} 1"
    )
    assert names(Path()) == ["out"]


def test_proc_adds_copies_that_refer_to_the_original_and_not_to_themselves(
    call: Call, archive: ListedFile, tmp_path: Path
) -> None:
    source = manifest(tmp_path / "in", archive.lines)
    assert call("warccollres", source, "-o", "out", "--proc", "--root", str(tmp_path / "crawl")).code == 0
    found = {line.uri[-1]: line for line in read_lines(Path("out"))}
    assert {uri: (line.extension, line.copy) for uri, line in found.items()} == {
        "1": (1, 1), "2": (2, 1), "3": (1, 2), "4": (2, 2), "5": (3, 1),
    }  # fmt: skip
    assert (found["3"].refers_to_uri, found["3"].refers_to_date) == ("http://example.org/1", day(1))
    assert (found["4"].refers_to_uri, found["4"].refers_to_date) == ("http://example.org/2", day(2))
    assert found["1"].refers_to_uri is None


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_every_format_is_read_and_written(call: Call, archive: ListedFile, tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("duckdb")
    source = manifest(tmp_path / "in", archive.lines, kind=kind)
    called = call("warccollres", source, "-o", "out", "--format", kind, "--root", str(tmp_path / "crawl"))
    assert called.code == 0
    assert extensions(Path("out")) == [1, 2, 1, 2, 3]
    assert (Path("out").read_bytes()[:4] == b"PAR1") == (kind == "parquet")


def test_several_manifests_and_the_work_of_an_earlier_run_are_taken(
    call: Call, archive: ListedFile, tmp_path: Path
) -> None:
    # Numbered part by part, different payloads have one extension. That must not be believed.
    parts = [
        manifest(tmp_path / "1", [line._replace(extension=1) for line in archive.lines[:2]], columns=7),
        manifest(tmp_path / "2", [line._replace(extension=1) for line in archive.lines[2:]], columns=7),
    ]
    called = call(
        "warccollres", *parts, "-o", "out", "--json", "--root", str(tmp_path / "crawl"), "--jobs", "2"
    )
    assert called.code == 0
    assert called.json == {
        "output": "out", "lines": 5, "digests": 1, "compared": 5, "collisions": 1, "alone": 0, "fault_count": 0,
        "faults": [],
    }  # fmt: skip
    assert extensions(Path("out")) == [1, 2, 1, 2, 3]


def test_manifests_go_through_a_pipe(archive: ListedFile, tmp_path: Path) -> None:
    source = manifest(tmp_path / "in", archive.lines)
    with Path(source).open("rb") as stdin:
        done = run_program(
            "scrapy-dedupe", "warccollres", "-", "-o", "-", "--root", "crawl", stdin=stdin, cwd=tmp_path
        )
    (tmp_path / "out").write_text(done.stdout)
    assert extensions(tmp_path / "out") == [1, 2, 1, 2, 3]


def test_an_output_that_is_there_is_kept_unless_it_is_forced(
    call: Call, archive: ListedFile, tmp_path: Path
) -> None:
    source = manifest(tmp_path / "in", archive.lines)
    words = ("warccollres", source, "-o", "out", "--root", str(tmp_path / "crawl"))
    Path("out").write_text("mine")
    called = call(*words)
    assert called.code == 3
    assert "--force" in called.err
    assert Path("out").read_text() == "mine"
    assert call(*words, "--force").code == 0
    assert extensions(Path("out")) == [1, 2, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--jobs", "-1"), "--jobs is -1"),
        (("--jobs", "many"), "invalid int value"),
        (("--format", "xml"), "invalid choice"),
        (("--paths", "map"), "map, line 1: expected a name and a place"),
        (("-o", "-", "--json"), "Name one with -o"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(
    call: Call, archive: ListedFile, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    Path("map").write_text("one\n")
    source = manifest(tmp_path / "in", archive.lines)
    called = call("warccollres", source, "-o", "out", *words)
    assert called.code == 2
    assert reason in called.err
    assert "Traceback" not in called.err
    assert names(Path()) == ["map"]


@pytest.mark.parametrize(
    "words", [("none", "-o", "out"), ("in", "-o", "none/out"), ("in", "-o", "out", "--paths", "no")]
)
def test_a_file_or_folder_that_is_not_there_is_told_in_a_sentence(
    call: Call, archive: ListedFile, words: tuple[str, ...]
) -> None:
    manifest(Path("in"), archive.lines)
    called = call("warccollres", *words)
    assert called.code == 3
    assert "Traceback" not in called.err
    assert names(Path()) == ["in"]


def test_damage_ends_the_work_and_leaves_nothing(call: Call, archive: ListedFile, tmp_path: Path) -> None:
    archive.path.write_bytes(archive.path.read_bytes()[:-9])
    source = manifest(tmp_path / "in", archive.lines)
    called = call("warccollres", source, "-o", "out", "--root", str(tmp_path / "crawl"))
    assert called.code == 4
    assert f"a.warc.gz, offset {archive.lines[4].offset}: the file ends inside a gzip member" in called.err
    assert "Traceback" not in called.err
    assert names(Path()) == []


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_no_line_is_dropped_when_the_work_goes_on(
    call: Call, archive: ListedFile, tmp_path: Path, jobs: str
) -> None:
    lines = list(archive.lines)
    lines[2] = lines[2]._replace(file="gone.warc.gz")
    source = Path(manifest(tmp_path / "in", lines))
    with source.open("a") as file:
        file.write("no line of a manifest\n")
    words = ("warccollres", str(source), "-o", "out", "--keep-going", "--jobs", jobs)
    called = call(*words, "--root", str(tmp_path / "crawl"))
    assert called.code == 4
    assert "2 faults in the input skipped" in called.err
    assert f"{source}, line 6: it has 5 columns" in called.out
    assert f"gone.warc.gz, offset {lines[2].offset}: gone.warc.gz is not below" in called.out
    assert extensions(Path("out")) == [1, 2, 3, 2, 4]


def test_twenty_faults_are_shown_and_more_are_in_the_json(
    call: Call, archive: ListedFile, tmp_path: Path
) -> None:
    lines = [archive.lines[0]._replace(file=f"gone-{number}") for number in range(30)]
    source = manifest(tmp_path / "in", lines)
    called = call("warccollres", source, "-o", "out", "--keep-going")
    assert len(called.out.splitlines()) == 22
    assert called.out.endswith("... and 10 more; see --json.\n")
    called = call("warccollres", source, "-o", "out", "--keep-going", "--json", "--force")
    assert called.code == 4
    assert (called.json["fault_count"], len(called.json["faults"])) == (30, 30)


def test_records_are_compared_where_they_are_on_the_web(
    call: Call, archive: ListedFile, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    source = manifest(tmp_path / "in", archive.lines)
    asked: list[str] = []
    with WebServer() as web:
        web.pages["/old%20crawl/a.warc.gz"] = in_ranges(archive.path.read_bytes(), asked)
        Path("map").write_text(f"a.warc.gz {web.url('/old%20crawl/a.warc.gz')}\n")
        assert call("warccollres", source, "-o", "out", "--paths", "map").code == 0
        web.page("/a.warc.gz", archive.path.read_bytes())
        called = call("warccollres", source, "-o", "more", "--root", web.url("/"), "--keep-going")
    assert extensions(Path("out")) == [1, 2, 1, 2, 3]
    assert len(asked) == 5
    # A server without ranges: nothing was compared, and so nothing is called a copy.
    assert called.code == 4
    assert "does not support HTTP ranges" in called.out
    assert extensions(Path("more")) == [1, 2, 3, 4, 5]


def test_a_full_disk_is_told_and_leaves_nothing(
    call: Call, archive: ListedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = manifest(tmp_path / "in", archive.lines)
    monkeypatch.setattr(collisions, "blake2b", full)
    called = call("warccollres", source, "-o", "out", "--root", str(tmp_path / "crawl"), "--keep-going")
    assert called.code == 3
    assert "No space left on device" in called.err
    assert "Traceback" not in called.err
    assert names(Path()) == []


@pytest.fixture
def large(tmp_path: Path) -> list[ManifestLine]:
    """Three payloads of 100 MB in gzip members, of which the second differs in its last byte."""
    path, size = tmp_path / "large.warc.gz", 100_000_001
    head, zeros = b"HTTP/1.1 200 OK\r\n\r\n", bytes(1_000_000)
    lines = []
    for number, last in enumerate((b"a", b"b", b"a"), 1):
        fields = (
            f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\nWARC-Date: {day(number)}\r\n"
            f"WARC-Target-URI: http://a/\r\nContent-Type: application/http\r\nContent-Length: {len(head) + size}\r\n\r\n"
        )
        offset = path.stat().st_size if path.exists() else 0
        with gzip.open(path, "ab", compresslevel=1) as member:
            member.write(fields.encode() + head)
            for _ in range(100):
                member.write(zeros)
            member.write(last + b"\r\n\r\n")
        lines.append(
            ManifestLine(path.name, offset, path.stat().st_size - offset, "http://a/", day(number), WEAK)
        )
    return lines


def test_payloads_of_100_mb_take_little_memory(large: list[ManifestLine], tmp_path: Path) -> None:
    source = manifest(tmp_path / "in", large)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "warccollres", source, "-o", "out"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert extensions(tmp_path / "out") == [1, 2, 1]
    assert int(done.stdout.splitlines()[-1]) < 140_000  # kB


def test_a_kill_leaves_nothing_under_the_final_name(
    archive: ListedFile, tmp_path: Path, call: Callable[..., Any]
) -> None:
    source = manifest(tmp_path / "in", archive.lines)
    # The second manifest never comes, so the work is under way for as long as the test likes.
    os.mkfifo(tmp_path / "pipe-manifest")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "warccollres", source, "pipe-manifest", "-o", "out"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_until((tmp_path / ".out.work").exists)
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
    assert not (tmp_path / "out").exists()
    source = manifest(tmp_path / "again", archive.lines)
    called = call("warccollres", source, "-o", str(tmp_path / "out"), "--root", str(tmp_path / "crawl"))
    assert called.code == 0
    assert extensions(tmp_path / "out") == [1, 2, 1, 2, 3]
    assert not any(name.startswith(".") for name in names(tmp_path))


@pytest.mark.parametrize("verb", ["warccollres", "warcsumproc"])
def test_a_file_of_the_manifest_is_not_replaced(
    call: Call, archive: ListedFile, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(archive.path.parent)
    sums = manifest(Path("sums"), archive.lines)
    before = archive.path.read_bytes()

    called = call(verb, sums, "-o", "a.warc.gz", "--force")

    assert called.code == 3
    assert "a.warc.gz is one of the files to read" in called.err
    assert archive.path.read_bytes() == before
    assert names(archive.path.parent) == ["a.warc.gz", "sums"]
