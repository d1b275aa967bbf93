"""What is seen of a long piece of work: bars on a terminal, and nothing of them anywhere else."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from import_files import line, write_wacz
from recorded_crawls import page, record_crawl
from terminals import COLUMNS, Terminal

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.urls.stored_filter import StoredFilter
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OPTIONS = argparse.Namespace(json=False)
FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"
TEXTS = 20


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Terminal]:
    """Runs a verb whose stderr is a terminal; gives the terminal, with the exit code in ``code``."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)

    def seen(*words: object) -> Terminal:
        with Terminal() as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal.stream)
            patch.setattr(logging.getLogger(), "level", logging.WARNING)
            terminal.code = main([str(word) for word in words])
        return terminal

    return seen


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal that `looked_at` makes stderr."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with Terminal() as terminal:
        yield terminal


@contextmanager
def looked_at(terminal: Terminal) -> Iterator[Bars]:
    """Bars on the terminal, which is stderr meanwhile."""
    # pytest puts streams of its own in the place of what a fixture sets.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal.stream)
        with Bars(OPTIONS) as bars:
            yield bars
        assert sys.stderr is terminal.stream


def archive(tmp_path: Path) -> list[object]:
    """A committed crawl of two files; the options that name it."""
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    with open_index(url) as index:
        record_crawl(index, tmp_path, "one", range(20))
    return ["--store", url]


def url_filter(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    with StoredFilter(job, FINGERPRINTER).between_runs(10_000, 1e-6, create=True) as stored:
        stored.add_many(number.to_bytes(20, "big") for number in range(1, 51))
    return job


def passage_index(tmp_path: Path, segments: int = 2) -> Path:
    for number in range(segments):
        with PassageIndex(tmp_path / "passages") as index:
            index.add(f"{number}", " ".join(f"word{word}" for word in range(number, number + 40)))
    return tmp_path / "passages"


def content_store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'texts.sqlite'}"
    with closing(open_store(url)) as store:
        captures = [
            SeenText(bytes([number]) * 16, f"https://example.com/{number}", "first", 0)
            for number in range(TEXTS)
        ]
        store.content.claim(captures, pending=False)
    return url


def import_(tmp_path: Path) -> list[object]:
    path = write_wacz(tmp_path / "a.wacz", [line(1), line(2)])
    return ["import", path, "--store", f"sqlite:///{tmp_path / 'new.sqlite'}"]


def pack(tmp_path: Path) -> list[object]:
    return ["warc", "pack", "one", *archive(tmp_path), "--warc-dir", tmp_path / "one"]


def upload(tmp_path: Path) -> list[object]:
    words = archive(tmp_path)
    (tmp_path / "far").mkdir()
    return ["warc", "upload", tmp_path / "far", tmp_path / "one", *words]


def salvage(tmp_path: Path) -> list[object]:
    with WarcWriter(tmp_path / "cut", "pre", info={"isPartOf": "cut"}) as out:
        captured = page(1)
        response = records.response(captured, digest=captured.payload_digest("sha256"))
        (location,) = out.write([response])
    path = tmp_path / "cut" / location.file
    path.with_name(f"{path.name}.open").write_bytes(path.read_bytes() + b"half a record")
    path.unlink()
    return ["warc", "salvage", tmp_path / "cut"]


def quarrycore(tmp_path: Path) -> list[object]:
    path = tmp_path / "dedup.db"
    with closing(sqlite3.connect(path)) as table:
        table.execute("CREATE TABLE hash_dedup (hash TEXT, url TEXT, timestamp REAL)")
        rows = [(f"{number:064x}", f"https://example.com/{number}", 1.5e9) for number in range(9)]
        table.executemany("INSERT INTO hash_dedup VALUES (?, ?, ?)", rows)
        table.commit()
    return ["content", "import", path, "--store", f"sqlite:///{tmp_path / 'new.sqlite'}"]


def purge_texts(tmp_path: Path) -> list[object]:
    return ["content", "purge", "--all", "--yes", "--store", content_store(tmp_path)]


def export(tmp_path: Path) -> list[object]:
    return ["urls", "export", "--jobdir", url_filter(tmp_path), "-o", tmp_path / "requests.seen"]


def import_urls(tmp_path: Path) -> list[object]:
    assert main(list(map(str, export(tmp_path)))) == 0
    return ["urls", "import", tmp_path / "requests.seen", "--jobdir", tmp_path / "other"]


def open_crawl(tmp_path: Path, store: str | None = None) -> list[object]:
    """An uncommitted crawl, and the options that name it."""
    url = store or f"sqlite:///{tmp_path / 'index.sqlite'}"
    with open_index(url) as index:
        record_crawl(index, tmp_path, "one", range(20), commit=False)
    return ["one", "--store", url]


# Each verb, the title of its bar, and in what it counts.
VERBS: dict[str, tuple[Callable[[Path], list[object]], str, str]] = {
    "import": (import_, "import", "sources/s"),
    "check": (lambda path: ["check", *archive(path)], "check", "crawls/s"),
    "purge": (lambda path: ["purge", "one", *archive(path)], "purge records", "records/s"),
    "cancel": (lambda path: ["cancel", *open_crawl(path)], "cancel records", "records/s"),
    "pack": (pack, "one.wacz", "B/s"),
    "upload": (upload, "upload", "B/s"),
    "salvage": (salvage, "salvage", "files/s"),
    "content import": (quarrycore, "import", "rows/s"),
    "content purge": (purge_texts, "texts", "texts/s"),
    "urls export": (export, "export", "fingerprints/s"),
    "urls import": (import_urls, "import", "B/s"),
    "urls check": (
        lambda path: ["urls", "check", "https://example.com/", "--jobdir", url_filter(path)],
        "check",
        "URLs/s",
    ),
    "passages check": (lambda path: ["passages", "check", "--root", passage_index(path)], "check", "B/s"),
    "passages compact": (
        lambda path: ["passages", "compact", "--root", passage_index(path)],
        "merge posts",
        "posts/s",
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_how_far_it_is_and_leaves_nothing_behind(
    verb: str, seen: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, title, rate = VERBS[verb]
    given = words(tmp_path)
    capsys.readouterr()
    terminal = seen(*given)
    assert terminal.code == 0
    frames = [frame for frame in terminal.frames if frame.startswith(f"{title}: ")]
    shares = [int(found[1]) for frame in frames if (found := re.search(r": +(\d+)%\|", frame))]
    assert shares, "of all of it the total is known"
    assert shares == sorted(shares)
    last = frames[-1]
    # tqdm shows slow rates the other way round.
    rates = f"{rate}|s/{rate.removesuffix('/s')}" if rate == "B/s" else f"{rate}|s/ {rate.removesuffix('/s')}"
    assert re.search(rf"\[\d\d:\d\d<(\d\d:\d\d|\?), .*({rates})\]$", last), "time taken, time left, rate"
    assert len(last) <= COLUMNS
    assert terminal.screen == []
    assert "%|" not in capsys.readouterr().out


def test_what_has_no_total_is_counted(seen: Callable[..., Any], tmp_path: Path) -> None:
    terminal = seen("urls", "stats", "--jobdir", url_filter(tmp_path))
    assert re.fullmatch(r"stats: 0 fingerprints \[00:0\d, .*\]", terminal.frames[0])
    assert terminal.screen == []


@pytest.mark.parametrize("quiet", ["json", "no terminal", "TQDM_DISABLE"])
def test_there_are_no_bars_for_who_does_not_look_on(
    quiet: str,
    seen: Callable[..., Any],
    call: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["urls", "stats", "--jobdir", str(url_filter(tmp_path))]
    if quiet == "no terminal":
        assert call(*words).err == ""
        return
    if quiet == "TQDM_DISABLE":
        monkeypatch.setenv("TQDM_DISABLE", "1")
    assert seen(*words, *(["--json"] if quiet == "json" else [])).written == ""


def test_lines_that_are_written_meanwhile_stand_above_the_bars(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(terminal.stream)])
    with looked_at(terminal) as bars:
        bars.begin("outer", 10, "files")
        bars.tell("told")
        logging.getLogger("anybody").warning("logged")
        *above, outer = terminal.screen
        assert above == ["told", "logged"]
        assert outer.startswith("outer:   0%")
    assert terminal.screen == ["told", "logged"]


def test_parts_of_parts_are_named_and_the_outer_one_goes_on(terminal: Terminal) -> None:
    with looked_at(terminal) as bars:
        with bars.part("crawls", 4, "crawls"):
            bars.advance(1)
            with bars.part("of the second", 1_000_000):
                bars.reach(250_000, 1_000_000)
                time.sleep(0.3)  # a short inner part is not shown
                bars.advance(250_000)
                assert "of the second:  50%" in terminal.screen[1]
                assert "500k/1.00M [" in terminal.screen[1]
            bars.advance(1)
            time.sleep(0.2)
            bars.advance(1)
            (shown,) = terminal.screen
            assert re.match(r"crawls:  75%.* 3/4 \[", shown)
        assert terminal.screen == []
        bars.begin("next", 2, "things")
        assert terminal.screen[0].startswith("next:   0%")


def test_an_error_leaves_nothing_behind(terminal: Terminal) -> None:
    def work() -> None:
        with looked_at(terminal) as bars, bars.part("work", 10), bars.part("inner", 10):
            raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        work()
    assert terminal.screen == []


def test_a_total_may_grow(terminal: Terminal) -> None:
    with looked_at(terminal) as bars, bars.part("work", 10, "things"):
        bars.reach(10, 50)
        time.sleep(0.2)
        bars.reach(25, 50)
        assert re.match(r"work:  50%\|.* 25/50 \[", terminal.screen[0])


def test_a_hostile_title_is_shown_as_one_short_line(terminal: Terminal) -> None:
    with looked_at(terminal) as bars, bars.part("\x1b[31mred\n\ud800" + "x" * 1_000_000, 10):
        (shown,) = terminal.screen
        assert shown.startswith("\ufffd[31mred\ufffd\ufffdxxx")
        assert shown.count("x") < 40
        assert len(shown) <= COLUMNS
    assert "\x1b[31m" not in terminal.written


def test_a_window_that_is_closed_does_not_end_the_work(terminal: Terminal) -> None:
    with looked_at(terminal) as bars:
        with bars.part("work", 10):
            terminal.hang_up()
            bars.advance(5)
            bars.begin("more", 5)
            bars.end()
            bars.tell("told")
        bars.begin("again", 5)


def test_a_stderr_that_is_closed_has_no_bars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert not Bars(OPTIONS).is_shown


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.console import main
Bars.advance = lambda self, count: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_leaves_one_clean_line(tmp_path: Path) -> None:
    words = list(map(str, import_urls(tmp_path)))
    with Terminal() as terminal:
        process = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, *words],
            stderr=terminal.slave,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
            | {"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
    assert process.returncode == -signal.SIGINT
    assert process.stdout == b""
    assert "import:   0%" in terminal.written
    assert "100%" not in terminal.written
    (line,) = terminal.screen
    assert line.startswith("scrapy-dedupe urls import: stopped")
