"""Storages: local folders, `memory:`, a real FTP server, and faults of each."""

from __future__ import annotations

import ftplib
import hashlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sampling import sampled
from servers import free_port
from waiting import wait_until

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files.locks import lock
from scrapy_dedupe.warc.storage import Mover, RefusedUpload, Storage

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

NAME = "pre-20260801120000123-00000-host.warc.gz"
BODY = bytes(range(256)) * 1_000


class FaultyFileSystem(LocalFileSystem):
    """A local folder under another protocol, in which a test can make something go wrong."""

    protocol = "faulty"
    put = staticmethod(lambda path1, path2: None)
    flips = False
    fails = 0

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("faulty://"))

    def put_file(self, path1, path2, callback=None, **kwargs):
        if type(self).fails:
            type(self).fails -= 1
            Path(path2).write_bytes(b"half")
            raise ConnectionResetError(104, "Connection reset by peer")
        super().put_file(path1, path2)
        type(self).put(path1, path2)

    def _open(self, path, mode="rb", **kwargs):
        file = super()._open(path, mode, **kwargs)
        if not self.flips:
            return file
        with file:
            data = bytearray(file.read())
        data[len(data) // 2] ^= 1
        Path(path + ".flipped").write_bytes(data)
        return open(path + ".flipped", "rb")  # noqa: PTH123


@pytest.fixture
def faulty(monkeypatch):
    from fsspec.registry import register_implementation

    register_implementation("faulty", FaultyFileSystem, clobber=True)
    for name, value in (("flips", False), ("fails", 0), ("put", staticmethod(lambda path1, path2: None))):
        monkeypatch.setattr(FaultyFileSystem, name, value)
    return FaultyFileSystem


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "local" / NAME
    file.parent.mkdir()
    file.write_bytes(BODY)
    return file


@pytest.fixture
def away(tmp_path):
    folder = tmp_path / "away"
    folder.mkdir()
    return folder


class FtpServer:
    """pyftpdlib in a process of its own; the user is `me`, the password `p@ss`."""

    def __init__(self, folder):
        self.port = free_port()
        words = ["-i", "127.0.0.1", "-p", str(self.port), "-w", "-d", str(folder), "-u", "me", "-P", "p@ss"]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pyftpdlib", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def _answers(self):
        assert self._process.poll() is None, "the FTP server ended"
        try:
            with ftplib.FTP() as ftp:
                ftp.connect("127.0.0.1", self.port, timeout=240)
        except OSError:
            return False
        return True

    @property
    def url(self):
        return f"ftp://me:p%40ss@127.0.0.1:{self.port}"

    def stop(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def ftp(tmp_path):
    pytest.importorskip("pyftpdlib", reason="the FTP server of this test")
    folder = tmp_path / "ftp"
    folder.mkdir()
    server = FtpServer(folder)
    yield server
    server.stop()


@pytest.fixture
def memory():
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield MemoryFileSystem.store
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_file_is_moved_to_a_local_folder(path, away, scheme):
    storage = Storage(f"{scheme}{away}/")
    storage.check()
    assert names(away) == [], "the probe is gone"
    assert storage.move(path) == str(away / NAME)
    assert names(away) == [NAME]
    assert (away / NAME).read_bytes() == BODY
    assert not path.exists()


def test_a_file_is_moved_to_memory(path, memory):
    storage = Storage("memory://bucket/folder")
    storage.check()
    assert storage.move(path) == f"memory://bucket/folder/{NAME}"
    assert {name: file.getvalue() for name, file in memory.items()} == {f"/bucket/folder/{NAME}": BODY}
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 1, 100_000, 9_000_000])
def test_a_file_is_moved_to_a_server(path, ftp, tmp_path, size):
    body = hashlib.shake_256(b"x").digest(size)
    path.write_bytes(body)
    (tmp_path / "ftp" / "in").mkdir()
    storage = Storage(f"{ftp.url}/in")
    storage.check()
    assert storage.move(path) == f"ftp://me@127.0.0.1:{ftp.port}/in/{NAME}", "without its password"
    assert names(tmp_path / "ftp" / "in") == [NAME]
    assert (tmp_path / "ftp" / "in" / NAME).read_bytes() == body
    assert not path.exists()


def test_an_upload_can_be_repeated(path, away):
    storage = Storage(str(away))
    assert storage.upload(path) == storage.upload(path) == str(away / NAME)
    assert path.exists()
    before = (away / NAME).stat()
    assert storage.move(path) == str(away / NAME)
    assert (away / NAME).stat() == before, "it was not sent again"


def test_half_an_upload_that_was_killed_is_sent_anew(path, away):
    (away / f"{NAME}.part").write_bytes(BODY[:1000])
    assert Storage(str(away)).move(path) == str(away / NAME)
    assert names(away) == [NAME]
    assert (away / NAME).read_bytes() == BODY


@pytest.mark.parametrize("other", [b"other", BODY[:-1] + b"x"], ids=["size", "bytes"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_other_content_of_that_name_is_not_overwritten(path, away, memory, other, kind):
    if kind == "memory":
        MemoryFileSystem().pipe_file(f"/b/{NAME}", other)
        url = "memory://b"
    else:
        (away / NAME).write_bytes(other)
        url = str(away)
    with pytest.raises(RefusedUpload, match="already has another file named"):
        Storage(url).move(path)
    assert path.read_bytes() == BODY
    assert (memory[f"/b/{NAME}"].getvalue() if kind == "memory" else (away / NAME).read_bytes()) == other


@pytest.mark.parametrize("kind", ["folder", "link", "server"])
def test_a_file_is_not_moved_to_where_it_is(path, tmp_path, kind):
    if kind == "server":
        pytest.importorskip("pyftpdlib", reason="the FTP server of this test")
        server = FtpServer(path.parent)
        url = server.url
    else:
        (tmp_path / "link").symlink_to(path.parent)
        url = str(path.parent if kind == "folder" else tmp_path / "link")
    try:
        with pytest.raises(RefusedUpload, match="is in the storage"):
            Storage(url).move(path)
    finally:
        if kind == "server":
            server.stop()
    assert names(path.parent) == [NAME]
    assert path.read_bytes() == BODY


def test_a_file_is_kept_if_its_copy_is_gone_again(path, away):
    storage = Storage(str(away))
    storage.upload(path)
    (away / NAME).unlink()
    with pytest.raises(RefusedUpload):
        storage.delete_local(path)
    away.rmdir()
    with pytest.raises(ArchiveError, match="no longer answers: the folder does not exist"):
        storage.delete_local(path)
    assert names(path.parent) == [NAME]
    assert path.read_bytes() == BODY


def test_a_name_that_is_taken_while_the_file_is_sent_is_not_overwritten(path, away, faulty, monkeypatch):
    def take(path1, path2):
        (away / NAME).write_bytes(b"other")

    monkeypatch.setattr(faulty, "put", staticmethod(take))
    with pytest.raises(RefusedUpload, match="has just created a file of this name"):
        Storage(f"faulty://{away}").move(path)
    assert names(away) == [NAME]
    assert (away / NAME).read_bytes() == b"other"
    assert path.read_bytes() == BODY


def test_no_link_replaces_a_name_in_a_local_folder(path, away, monkeypatch):
    storage, real = Storage(str(away)), os.link

    def link(source, target):
        Path(target).write_bytes(b"other")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(RefusedUpload, match="has just created a file of this name"):
        storage.move(path)
    assert names(away) == [NAME]
    assert (away / NAME).read_bytes() == b"other"
    assert path.read_bytes() == BODY


def test_a_folder_without_hard_links_is_used_too(path, away, monkeypatch):
    def link(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert Storage(str(away)).move(path) == str(away / NAME)
    assert names(away) == [NAME]


def test_a_copy_that_reads_back_differently_is_removed_and_the_file_kept(path, away, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "flips", True)
    with pytest.raises(ArchiveError, match="has another SHA-256"):
        Storage(f"faulty://{away}").move(path)
    assert names(away) == [f"{NAME}.part.flipped"]
    assert path.read_bytes() == BODY
    with pytest.raises(ArchiveError, match="has another SHA-256"):
        Storage(f"faulty://{away}").check()


def test_a_copy_that_is_too_short_is_removed_and_the_file_kept(path, away, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "put", staticmethod(lambda path1, path2: os.truncate(path2, 1000)))
    with pytest.raises(ArchiveError, match=f"1000 bytes instead of {len(BODY)}"):
        Storage(f"faulty://{away}").move(path)
    assert names(away) == []
    assert path.read_bytes() == BODY


def test_no_reader_ever_sees_the_final_name_before_the_copy_was_verified(path, away, faulty, monkeypatch):
    seen = []
    monkeypatch.setattr(faulty, "put", staticmethod(lambda path1, path2: seen.append(names(away))))
    Storage(f"faulty://{away}").move(path)
    assert seen == [[f"{NAME}.part"]]


def test_an_upload_that_breaks_leaves_nothing_there(path, away, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "fails", 1)
    storage = Storage(f"faulty://{away}")
    with pytest.raises(ArchiveError, match="Connection reset by peer"):
        storage.move(path)
    assert names(away) == []
    assert storage.move(path) == f"faulty://{away}/{NAME}"


def test_a_file_that_changes_meanwhile_is_kept(path, away, faulty, monkeypatch):
    def change(path1, path2):
        with path.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(faulty, "put", staticmethod(change))
    with pytest.raises(RefusedUpload, match="was changed during"):
        Storage(f"faulty://{away}").move(path)
    assert path.read_bytes() == BODY + b"more"


def test_a_full_disk_leaves_nothing_there(path, away):
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.storage import Storage
storage = Storage(sys.argv[2])
storage.check()
try:
    storage.move(sys.argv[1])
except ArchiveError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(away)], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout, done.stderr
    assert str(path) in done.stdout
    assert names(away) == []
    assert path.read_bytes() == BODY


def can_mount():
    return (
        os.geteuid() == 0
        and subprocess.run(["which", "mount"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="only root mounts a small disk")
def test_a_small_disk_that_fills_leaves_nothing_there(path, away):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(away)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this system lets nobody mount")
    try:
        path.write_bytes(BODY * 8)
        storage = Storage(str(away))
        storage.check()
        with pytest.raises(ArchiveError, match="No space left on device"):
            storage.move(path)
        assert names(away) == []
        assert path.read_bytes() == BODY * 8
    finally:
        subprocess.run(["umount", str(away)], check=True)


@pytest.mark.parametrize("kind", ["local", "ftp"])
def test_a_folder_that_is_not_there_is_refused_and_not_made(path, tmp_path, request, kind):
    if kind == "ftp":
        url = f"{request.getfixturevalue('ftp').url}/missing"
        place = tmp_path / "ftp" / "missing"
    else:
        place = tmp_path / "missing"
        url = str(place)
    storage = Storage(url)
    for call in (storage.check, lambda: storage.move(path)):
        with pytest.raises(ArchiveError, match="the folder does not exist"):
            call()
    assert not place.exists()
    assert path.exists()


def test_no_message_shows_a_password(path, ftp):
    url = ftp.url.replace("p%40ss", "wrong%20one")
    storage = Storage(url)
    for call in (storage.check, lambda: storage.move(path)):
        with pytest.raises(ArchiveError) as caught:
            call()
        assert f"ftp://me:***@127.0.0.1:{ftp.port}" in str(caught.value)
        assert "wrong" not in str(caught.value)
        assert caught.value.__cause__ is None
    assert "wrong" not in storage.shown
    assert "wrong" not in storage.location("x")


def test_a_server_that_went_away_is_asked_anew(path, tmp_path):
    pytest.importorskip("pyftpdlib", reason="the FTP server of this test")
    folder = tmp_path / "ftp"
    folder.mkdir()
    server = FtpServer(folder)
    try:
        storage = Storage(server.url)
        storage.check()
    finally:
        server.stop()
    with pytest.raises(ArchiveError, match="cannot be uploaded"):
        storage.move(path)
    assert path.exists()


def test_a_connection_that_was_cut_is_made_anew(path, ftp, tmp_path):
    storage = Storage(ftp.url)
    storage.check()
    storage._fs.ftp.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ArchiveError, match="cannot be uploaded"):
        storage.move(path)
    storage.move(path)
    assert names(tmp_path / "ftp") == [NAME]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "is empty"),
        ("nothing://x/y", "has no protocol nothing://"),
        pytest.param(
            "https://example.com/x",
            "cannot rename there",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("aiohttp") is None, reason="its driver needs aiohttp"
            ),
        ),
        ("zip://x.zip", "cannot rename there"),
        ("simplecache::memory://x", "not one URL of a folder"),
        ("ftp://h/x?token=secret", "ftp://h/x is not one URL"),
    ],
)
def test_a_url_that_is_no_safe_storage_is_refused(url, sentence):
    with pytest.raises(SettingError, match=sentence) as caught:
        Storage(url)
    assert "secret" not in str(caught.value)


def test_a_driver_that_is_missing_is_named():
    if importlib.util.find_spec("webdav4"):
        pytest.skip("webdav4 is installed")
    with pytest.raises(SettingError, match=r"Install webdav4 .*scrapy-dedupe\[storage\]"):
        Storage("webdav://me:secret@h/x")


def test_fsspec_itself_is_optional(tmp_path):
    code = """
import sys
sys.modules["fsspec"] = None
from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.warc.storage import Storage
try:
    Storage("s3://bucket")
except SettingError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "scrapy-dedupe[storage]"' in done.stdout


@pytest.mark.parametrize("name", ["a.warc.gz.open", "a.warc.gz.part"])
def test_an_unfinished_file_is_not_uploaded(tmp_path, away, name):
    file = tmp_path / name
    file.write_bytes(b"x")
    with pytest.raises(RefusedUpload, match="not finished"):
        Storage(str(away)).move(file)
    with pytest.raises(RefusedUpload, match="No such file"):
        Storage(str(away)).move(tmp_path / "gone.warc.gz")
    with pytest.raises(RefusedUpload, match="is not a file"):
        Storage(str(away)).move(away)


def test_a_large_file_is_moved_in_bounded_memory(tmp_path, away):
    code = """
import resource, sys
from scrapy_dedupe.warc.storage import Storage
storage = Storage(sys.argv[2])
storage.check()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
storage.move(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    large = tmp_path / "large.warc"
    with large.open("wb") as file:
        file.truncate(300_000_000)
    done = subprocess.run(
        [sys.executable, "-c", code, str(large), f"file://{away}"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 30_000, "kilobytes"
    assert not large.exists()
    assert (away / "large.warc").stat().st_size == 300_000_000


KILLED = """
import sys
from scrapy_dedupe.warc.storage import Storage
storage = Storage(sys.argv[2])
storage.check()
print("ready", flush=True)
while True:
    try:
        storage.move(sys.argv[1])
    except Exception as error:
        sys.exit(str(error))
    break
print("done", flush=True)
"""


@pytest.mark.parametrize("delay_s", sampled([0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3], [0.003, 0.02]))
@pytest.mark.parametrize("kind", ["local", "ftp"])
def test_kill_9_leaves_the_file_here_or_there_and_the_move_can_be_repeated(
    tmp_path, away, request, kind, delay_s
):
    body = hashlib.shake_256(b"kill").digest(20_000_000)
    file = tmp_path / NAME
    file.write_bytes(body)
    url, folder = str(away), away
    if kind == "ftp":
        url, folder = request.getfixturevalue("ftp").url, tmp_path / "ftp"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n", process.communicate()
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    final = folder / NAME
    assert file.exists() or final.exists()
    if final.exists():
        assert final.read_bytes() == body, "what has the final name is whole"
    if file.exists():
        assert file.read_bytes() == body
        Storage(url).move(file)
    assert names(folder) == [NAME]
    assert final.read_bytes() == body
    assert not file.exists()


def test_a_file_that_another_program_uploads_is_left_to_it(path, away):
    with path.open("rb") as held:
        assert lock(held.fileno())
        with pytest.raises(RefusedUpload, match="by another program"):
            Storage(str(away)).upload(path)
        assert names(away) == []
    Storage(str(away)).upload(path)
    assert names(away) == [NAME]


# The mover


class Told:
    """What a mover told, and a way to wait for it."""

    def __init__(self):
        self.moved, self.failed, self.event = [], [], threading.Event()

    def on_moved(self, path, location):
        self.moved.append((path, location, path.exists()))
        self.event.set()

    def on_failed(self, path, error):
        self.failed.append((path, str(error)))
        self.event.set()


@pytest.fixture
def told():
    return Told()


def test_files_are_moved_in_order_and_told_before_they_are_deleted(tmp_path, away, told):
    files = []
    for number in range(5):
        file = tmp_path / f"{number}.warc.gz"
        file.write_bytes(BODY)
        files.append(file)
    mover = Mover(Storage(str(away)), told.on_moved, told.on_failed)
    for file in files:
        mover.submit(file)
    assert mover.close() == []
    assert told.moved == [(file, str(away / file.name), True) for file in files]
    assert told.failed == []
    assert not any(file.exists() for file in files)
    assert mover.close() == []
    with pytest.raises(ArchiveError, match="no longer moved"):
        mover.submit(files[0])


def test_a_storage_that_fails_is_tried_again(path, away, told, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "fails", 3)
    mover = Mover(Storage(f"faulty://{away}"), told.on_moved, told.on_failed, pauses_s=(0, 0, 0))
    mover.submit(path)
    assert mover.close() == []
    assert [(moved[0], told.failed) for moved in told.moved] == [(path, [])]


def test_what_fails_again_and_again_stays_local_and_is_told_once(path, away, told, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "fails", 4)
    other = path.with_name("other.warc.gz")
    other.write_bytes(BODY)
    mover = Mover(Storage(f"faulty://{away}"), told.on_moved, told.on_failed, pauses_s=(0, 0, 0))
    mover.submit(path)
    mover.submit(other)
    assert mover.close() == [path]
    assert [failed[0] for failed in told.failed] == [path]
    assert [moved[0] for moved in told.moved] == [other], "the next file has its own chance"
    assert path.exists()


def test_a_storage_that_is_away_costs_the_pauses_once(path, away, told, faulty, monkeypatch):
    monkeypatch.setattr(faulty, "fails", 1000)
    others = [path.with_name(f"{number}.warc.gz") for number in range(3)]
    for other in others:
        other.write_bytes(BODY)
    mover = Mover(Storage(f"faulty://{away}"), told.on_moved, told.on_failed, pauses_s=(0, 0, 0))
    for file in (path, *others):
        mover.submit(file)
    assert mover.close() == [path, *others]
    assert faulty.fails == 1000 - 4 - 3, "four attempts for the first file, one for each after it"


def test_a_name_that_is_taken_is_not_tried_again(path, away, told):
    (away / NAME).write_bytes(b"other")
    mover = Mover(Storage(str(away)), told.on_moved, told.on_failed, pauses_s=(3600,))
    mover.submit(path)
    assert mover.close() == [path]
    assert "already has another file named" in told.failed[0][1]


def test_a_file_whose_new_place_could_not_be_told_is_kept(path, away, told):
    def on_moved(path, location):
        raise OSError(5, "the index is away")

    mover = Mover(Storage(str(away)), on_moved, told.on_failed)
    mover.submit(path)
    assert mover.close() == [path]
    assert path.exists()
    assert "the index is away" in told.failed[0][1]


def test_a_mover_without_files_has_no_thread(away, told):
    before = set(threading.enumerate())
    mover = Mover(Storage(str(away)), told.on_moved, told.on_failed)
    assert mover.close() == []
    assert not set(threading.enumerate()) - before
