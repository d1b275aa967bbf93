from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scrapy_dedupe
from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.passages.folder_files import LOCK, WriterLock

if TYPE_CHECKING:
    from collections.abc import Callable

HOLDER = """
import sys
from pathlib import Path
from scrapy_dedupe.passages.folder_files import WriterLock
with WriterLock(Path(sys.argv[1]), "passages index /data"):
    print("held", flush=True)
    sys.stdin.readline()
"""

# Threads of other tests may live yet; Pythons from 3.12 on warn of them.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def start_holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(scrapy_dedupe.__file__).parent.parent)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def test_whoever_is_refused_is_told_who_writes(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        with pytest.raises(StoreUnavailable) as refusal, WriterLock(tmp_path):
            pass
    finally:
        end(process)
    words = f"process {process.pid} on host {socket.gethostname()} since 20"
    assert f"The index {tmp_path} is being written by {words}" in str(refusal.value)
    assert str(refusal.value).endswith("Z (passages index /data). Wait until it has finished.")


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    end(process)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == process.pid
    with WriterLock(tmp_path, "passages delete"):
        holder = json.loads((tmp_path / LOCK).read_text())
    assert holder["pid"] == os.getpid()
    assert holder["command"] == "passages delete"


def test_the_lock_ends_with_the_context_and_the_file_stays(tmp_path: Path) -> None:
    first, second = WriterLock(tmp_path / "new" / "index"), WriterLock(tmp_path / "new" / "index")
    with first:
        assert first.is_held
        with pytest.raises(StoreUnavailable, match=rf"process {os.getpid()} on host"), second:
            pass
        assert not second.is_held
    assert not first.is_held
    with second:
        pass
    assert (first.folder / LOCK).read_bytes() == b""


def test_the_lock_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), WriterLock(tmp_path):
        raise ZeroDivisionError
    with WriterLock(tmp_path):
        pass


def test_a_writer_is_waited_for(tmp_path: Path) -> None:
    first = WriterLock(tmp_path)
    first.__enter__()
    ender = threading.Timer(0.1, first.__exit__, (None, None, None))
    ender.start()
    with WriterLock(tmp_path, timeout_s=240):
        assert not first.is_held
    ender.join()


def test_a_writer_is_not_waited_for_longer_than_was_said(tmp_path: Path) -> None:
    with WriterLock(tmp_path):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable), WriterLock(tmp_path, timeout_s=0.1):
            pass
        assert 0.1 <= time.monotonic() - began < 30


def test_the_same_object_does_not_take_its_lock_twice(tmp_path: Path) -> None:
    with WriterLock(tmp_path) as held:
        with pytest.raises(RuntimeError, match="This object already holds the lock"):
            held.__enter__()
        with pytest.raises(StoreUnavailable), WriterLock(tmp_path):
            pass


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'"x"', b'{"pid": 1}', b"\xff" * 100, b"[" * 4096],
    ids=lambda text: repr(text[:8]),
)
def test_a_holder_that_has_written_no_name_yet_is_another_process(tmp_path: Path, text: bytes) -> None:
    with WriterLock(tmp_path):
        (tmp_path / LOCK).write_bytes(text)
        with (
            pytest.raises(StoreUnavailable, match="is being written by another process\\. Wait"),
            WriterLock(tmp_path),
        ):
            pass


def test_what_a_holder_tells_of_itself_is_shown_short_and_on_one_line(tmp_path: Path) -> None:
    with WriterLock(tmp_path, "passages index\n\x1b[31m" + "x" * 1000):
        with pytest.raises(StoreUnavailable) as refusal, WriterLock(tmp_path):
            pass
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < len(str(tmp_path)) + 400


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "folder" / LOCK).mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / LOCK)
    (tmp_path / "file").write_text("")
    for name, words in (("folder", "is not a file"), ("pipe", "is not a file"), ("file", "is not a folder")):
        with pytest.raises(StoreRefused, match=words), WriterLock(tmp_path / name):
            pass
    with pytest.raises(StoreRefused, match="is not a folder"), WriterLock(tmp_path / "file" / "below"):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody may write")
def test_a_folder_that_cannot_be_made_is_unavailable() -> None:
    folder = Path("/proc/self/passages")
    with pytest.raises(StoreUnavailable, match="cannot be written"), WriterLock(folder):
        pass


@FORKS
def test_a_child_that_has_the_descriptor_does_not_keep_the_lock(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with WriterLock(tmp_path):
        child = os.fork()
        if not child:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
    try:
        with WriterLock(tmp_path) as again:
            assert again.is_held
    finally:
        os.close(read_end)
        os.close(write_end)
        os.waitpid(child, 0)


@FORKS
def test_the_lock_of_a_killed_process_is_free_although_a_child_of_it_lives(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    parent = os.fork()
    if not parent:
        with WriterLock(tmp_path):
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
    try:
        assert os.WTERMSIG(os.waitpid(parent, 0)[1]) == signal.SIGKILL
        # The child closes the file as the first thing that it does.
        with WriterLock(tmp_path, timeout_s=240) as lock:
            assert lock.is_held
    finally:
        os.close(read_end)
        os.close(write_end)


@FORKS
def test_a_child_neither_has_the_lock_of_its_parent_nor_gives_it_back(tmp_path: Path) -> None:
    held = WriterLock(tmp_path)
    with held:
        holder = (tmp_path / LOCK).read_bytes()
        child = os.fork()
        if not child:
            has_it = held.is_held
            held.__exit__(None, None, None)
            os._exit(int(has_it))
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / LOCK).read_bytes() == holder
        with pytest.raises(StoreUnavailable), WriterLock(tmp_path):
            pass


def test_a_lock_on_a_file_that_is_no_longer_there_is_not_waited_for(tmp_path: Path) -> None:
    with WriterLock(tmp_path):
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).touch()
        with WriterLock(tmp_path) as second, pytest.raises(StoreUnavailable), WriterLock(tmp_path):
            assert second.is_held


def test_a_file_that_goes_while_it_is_locked_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(operation)
        real(fd, operation)

    monkeypatch.setattr("scrapy_dedupe.files.locks.fcntl.flock", flock)
    with WriterLock(tmp_path):
        assert len(calls) == 2
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        with pytest.raises(StoreUnavailable), WriterLock(tmp_path):
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.EINVAL])
def test_a_lock_that_cannot_be_had_is_not_taken_for_one_that_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("scrapy_dedupe.files.locks.fcntl.flock", refusing(number))
    with pytest.raises(StoreUnavailable, match=r"cannot be locked: .*lock service"), WriterLock(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nothing_guards_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("scrapy_dedupe.files.locks.fcntl.flock", refusing(number))
    with WriterLock(tmp_path) as first, WriterLock(tmp_path) as second:
        assert first.is_held
        assert second.is_held


def refusing(number: int) -> Callable[[int, int], None]:
    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock
