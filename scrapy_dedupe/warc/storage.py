"""Remote storage: any URL that fsspec supports, such as ``s3://bucket/folder``, or another local folder.

A file is written locally first. `Storage.upload` copies it, reads the copy back, and compares size and SHA-256;
`Storage.move` then deletes the local file, never earlier. Both can be repeated after a kill at any time: an existing
copy with the same bytes counts as uploaded. `Mover` does this on a thread while a crawl continues.

Guarantees for readers of the storage:

- No partial file ever has its final name. Stores that show an object only when it is complete (S3, Google, Azure, OSS)
  get it under its name; all others get ``NAME.part``, which is renamed after verification. fsspec does not report the
  kind of a file system, so the complete-object stores are listed here. Of the others only those with a real rename are
  accepted: fsspec's default rename copies, so a partial copy could be seen.
- Nothing is overwritten. A local folder gets the name by a hard link, which cannot overwrite. Elsewhere the name is
  checked before the upload; two programs could choose the same name in between.

A copy in a local folder is synced before it is renamed, so that a power failure cannot destroy the copy after the
original was deleted. Memory is bounded: files are sent and read in blocks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import queue
import re
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files.locks import lock
from scrapy_dedupe.files.whole_file import put_in_free_place, sync_file
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX
from scrapy_dedupe.warc.files import PART_SUFFIX
from scrapy_dedupe.warc.records import new_record_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

PAUSES_S: Final = (2.0, 10.0, 30.0)
_ASIDE_SUFFIX: Final = ".moved"

_WHOLE_AT_ONCE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})
# FTP opens a connection for each block, and its default block size is only 64 KiB.
_OPTIONS: Final[dict[str, dict[str, object]]] = {"ftp": {"block_size": 8 << 20}}

_BLOCK: Final = 1 << 20
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):([^/]*)@")


class RefusedUpload(ArchiveError):
    """A retry cannot help: the name is taken by other content, or the local file cannot be uploaded."""


class _Sum(NamedTuple):
    """The size in bytes and the SHA-256 in hex, to compare two copies of a file."""

    size_bytes: int
    sha256: str


class Storage:
    """The folder at an fsspec URL, or at a local path, for use by one thread at a time.

    The storage is not contacted before `check` or the first upload. ``shown`` is the URL without its password. Raises
    SettingError if the URL is invalid, or if fsspec or the driver of the protocol is not installed.
    """

    def __init__(self, url: str) -> None:
        scheme = _SCHEME.match(url)
        self._protocol = scheme[1].lower() if scheme else "file"
        self._is_local = self._protocol in ("file", "local")
        self._url = url if url.strip("/") == "" else url.rstrip("/")
        self._secrets = _secrets_of(url) if scheme and not self._is_local else ()
        self.shown = _PASSWORD.sub(r"\1:***@", self._url) if self._secrets else self._url
        self._fs: Any = None
        self._base = ""
        if not url.strip():
            raise SettingError(
                "The URL of a storage is empty. Use a URL such as s3://bucket/folder, or a folder."
            )
        if "::" in url or (not self._is_local and ("?" in url or "#" in url)):
            shown = re.split(r"[?#]", self.shown)[0]
            raise SettingError(
                f"The storage {shown} is not one URL of a folder. Use a URL such as s3://bucket/folder,"
                " and put options and credentials where the driver of the protocol looks for them."
            )
        self._class = self._driver()
        renames = self._class.mv is not import_module("fsspec.spec").AbstractFileSystem.mv
        self._is_whole_at_once = self._protocol in _WHOLE_AT_ONCE
        if not (renames or self._is_whole_at_once):
            raise SettingError(
                f"Files cannot be moved to {self.shown}: fsspec writes to {self._protocol}:// in place and cannot rename"
                " there, so readers could see a partial file. Use a folder, sftp://, s3://, gs:// or abfs://, for"
                " example."
            )

    def check(self) -> None:
        """Check that files can be stored: send a small file, read it back, delete it.

        Raises ArchiveError.
        """
        name = f".probe-{new_record_id()[10:-1]}"
        with (
            self._driver_errors(
                f"Nothing can be stored in {self.shown}",
                "Check the folder, the permission to write and delete there, and the credentials.",
            ),
            tempfile.TemporaryDirectory() as folder,
        ):
            probe = Path(folder) / name
            probe.write_bytes(name.encode())
            self._connect()
            self._send(probe, name, _sum_of_local(probe))
            self._fs.rm_file(self._remote(name))

    def location(self, name: str) -> str:
        """Where a file of that name is located: its path in a local folder, or its URL without a password."""
        if self._is_local:
            return str(self._local_folder() / name)
        url = _PASSWORD.sub(r"\1@", self._url) if self._secrets else self._url
        return f"{url}/{name}"

    def has(self, name: str) -> bool:
        """Whether a file of that name exists. Raises ArchiveError if the storage does not answer."""
        with self._driver_errors(
            f"{self.shown} cannot be accessed", "Check the network and the credentials."
        ):
            self._connect()
            return bool(self._fs.exists(self._remote(name)))

    def is_folder(self, folder: Path) -> bool:
        """Whether the storage is this local folder."""
        return self._is_local and self._local_folder().resolve() == folder.resolve()

    def upload(self, path: Path | str, on_read: Callable[[int], None] = lambda size_bytes: None) -> str:
        """Copy a finished file, verify the copy, and return its location; the local file is not changed.

        Raises ArchiveError if the copy cannot be made or differs; the copy is then removed if possible. Raises the
        subclass `RefusedUpload` if a retry cannot help. *on_read* is called with numbers of processed bytes; their sum
        is three times the file size: once for hashing, once for sending and once for reading back the copy.
        """
        path = Path(path)
        with _upload_lock(path):
            before, local = _state_of(path), _sum_of_local(path, on_read)
            try:
                with self._driver_errors(
                    f"{path} cannot be uploaded to {self.shown}",
                    "The local file is kept; check the storage and upload the file again.",
                ):
                    self._connect()
                    if not self._is_there(path.name, local, path, on_read):
                        self._send(path, path.name, local, on_read)
                if _state_of(path) != before:
                    raise RefusedUpload(
                        f"{path} was changed during its upload to {self.shown}. It is kept; find out which program"
                        " writes it, and delete the copy."
                    )
            except ArchiveError:
                self._fs = None  # a connection that failed once may be dead
                raise
        return self.location(path.name)

    def move(self, path: Path | str) -> str:
        """Upload a finished file, then delete the local one; return its new location.

        Raises the exceptions of `upload`.
        """
        location = self.upload(path)
        self.delete_local(path)
        return location

    def delete_local(self, path: Path | str) -> None:
        """Delete a file that was uploaded, unless it turns out to be the copy itself. Raises ArchiveError.

        A server may serve the very folder that contains the local file. So the file is renamed first, and deleted only
        if the storage still has it under its name.
        """
        path = Path(path)
        aside = path.with_name(f"{path.name}{_ASIDE_SUFFIX}")
        try:
            path.rename(aside)
            is_there = False
            try:
                with self._driver_errors(
                    f"{path} was uploaded, but {self.shown} no longer answers", "The local file is kept."
                ):
                    self._connect()
                    is_there = self._fs.exists(self._remote(path.name))
            finally:
                if not is_there:
                    aside.rename(path)
            if not is_there:
                raise RefusedUpload(
                    f"{path} is kept: {self.shown} no longer has it after the local file was renamed. Either the file is"
                    " in the storage itself, or the copy was just deleted. Use another storage, or upload it again."
                )
            aside.unlink()
        except OSError as error:
            raise ArchiveError(
                f"{path} was uploaded, but cannot be deleted: {error.strerror}. Delete it manually."
            ) from error

    def _driver(self) -> Any:
        try:
            registry = import_module("fsspec.registry")
        except ImportError as error:
            raise SettingError(
                f"The storage {self.shown} needs the package fsspec, which is not installed. Install it with"
                ' `pip install "scrapy-dedupe[storage]"`.'
            ) from error
        try:
            return registry.get_filesystem_class(self._protocol)
        except ValueError as error:
            raise SettingError(
                f"fsspec has no protocol {self._protocol}://, which the storage {self.shown} uses."
                " Use a folder, or a URL with s3://, gs://, abfs:// or sftp://, for example."
            ) from error
        except Exception as error:  # drivers fail to load in many ways
            raise SettingError(
                f"The driver for {self._protocol}://, which the storage {self.shown} needs, cannot be loaded:"
                f" {_sentence(error)}. fsspec itself comes with"
                ' `pip install "scrapy-dedupe[storage]"`; drivers such as s3fs, gcsfs or paramiko are installed'
                " separately."
            ) from error

    def _connect(self) -> None:
        if self._fs is None:
            # Without the cache: fsspec would return the instance whose connection has failed.
            options = {**_OPTIONS.get(self._protocol, {}), **self._class._get_kwargs_from_urls(self._url)}
            if not self._is_local:
                options |= {
                    key: unquote(options[key]) for key in ("username", "password") if options.get(key)
                }
            self._fs = self._class(skip_instance_cache=True, **options)
            self._base = self._class._strip_protocol(self._url).rstrip("/")
        self._fs.invalidate_cache()
        if not self._is_whole_at_once and not self._fs.isdir(self._base or "/"):
            # The folder is not created: below an unmounted mount point an archive would fill the wrong disk.
            raise FileNotFoundError(errno.ENOENT, "the folder does not exist; create it, or mount it")

    def _remote(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _is_there(self, name: str, local: _Sum, path: Path, on_read: Callable[[int], None]) -> bool:
        """Whether an identical copy already exists. Raises RefusedUpload if the name has other content."""
        remote = self._remote(name)
        if not self._fs.exists(remote):
            return False
        if self._is_local and path.samefile(remote):
            raise RefusedUpload(
                f"{path} is in the storage {self.shown} itself, so it cannot be moved there. It is kept; use another"
                " storage."
            )
        if self._fs.info(remote)["size"] == local.size_bytes and self._sum_of(remote, on_read) == local:
            return True
        raise RefusedUpload(
            f"{path} cannot be uploaded: {self.shown} already has another file named {name}. It was not overwritten, and"
            " the local file is kept. Move one of the two away, or use another folder."
        )

    def _send(
        self, path: Path, name: str, local: _Sum, on_read: Callable[[int], None] = lambda size_bytes: None
    ) -> None:
        from fsspec.callbacks import Callback

        final = self._remote(name)
        sent_to = final if self._is_whole_at_once else final + PART_SUFFIX
        sent = _report_of(on_read)
        is_sent = False
        try:
            self._fs.put_file(str(path), sent_to, callback=Callback(hooks={"sent": sent}))
            is_sent = True
            # Some drivers do not report progress.
            sent(None, local.size_bytes)
            if self._is_local:
                sync_file(Path(sent_to))
            self._fs.invalidate_cache()
            copy = self._sum_of(sent_to, on_read)
            if copy != local:
                what = "another SHA-256"
                if copy.size_bytes != local.size_bytes:
                    what = f"{copy.size_bytes} bytes instead of {local.size_bytes}"
                raise ArchiveError(
                    f"The copy of {path} in {self.shown} has {what}. It was removed if possible; the local file is"
                    " kept. Check the storage before you use it again."
                )
            if sent_to != final:
                self._rename(sent_to, final, path)
        except Exception:
            # A failed upload to a complete-object store leaves nothing, so a file of that name was written by another
            # program.
            if is_sent or sent_to != final:
                with contextlib.suppress(Exception):
                    self._fs.rm_file(sent_to)
            raise

    def _rename(self, part: str, final: str, path: Path) -> None:
        taken = RefusedUpload(
            f"{path} cannot be uploaded: another program has just created a file of this name in {self.shown}. The local"
            " file is kept; upload it again, and find out which other program uploads there."
        )
        if self._is_local:
            try:
                put_in_free_place(Path(part), Path(final))
            except FileExistsError:
                raise taken from None
            return
        if self._fs.exists(final):
            raise taken
        self._fs.mv(part, final)

    def _sum_of(self, remote: str, on_read: Callable[[int], None]) -> _Sum:
        with self._fs.open(remote, "rb") as file:
            if self._protocol in ("sftp", "ssh"):
                # Without prefetching, each 32 KiB would take a round trip; paramiko's own downloads prefetch too.
                file.prefetch(self._fs.info(remote)["size"] or None)
            return _sum(iter(lambda: file.read(_BLOCK), b""), on_read)

    def _local_folder(self) -> Path:
        return Path(os.path.abspath(self._class._strip_protocol(self._url)))  # noqa: PTH100 - without resolving links

    @contextlib.contextmanager
    def _driver_errors(self, what: str, remedy: str) -> Iterator[None]:
        """Turn any driver exception into an ArchiveError with one sentence that shows no password."""
        try:
            yield
        except ArchiveError:
            raise
        except Exception as error:  # noqa: BLE001 - each driver has its own exceptions
            reason = _sentence(error)
            for secret in self._secrets:
                reason = reason.replace(secret, "***")
            raise ArchiveError(f"{what}: {reason}. {remedy}") from (None if self._secrets else error)


class Mover:
    """Moves finished files to *storage* on its own thread, one after another, from the first `submit` until `close`.

    For each file: upload and verify the copy, call ``on_moved(path, location)``, delete the local file. The new location
    is thus recorded before the old file is deleted, and a kill between two of these steps leaves both copies, never none.
    If ``on_moved`` raises, the local file is kept.

    ``on_failed(path, error)`` is called when the file stays local: immediately if a retry cannot help, else after one
    retry for each of the *pauses_s*. Once a file has failed after all retries, the next files get one attempt each until
    one succeeds: a full or unreachable storage costs the pauses only once. Both callbacks run on the thread.
    """

    def __init__(
        self,
        storage: Storage,
        on_moved: Callable[[Path, str], object],
        on_failed: Callable[[Path, Exception], object],
        *,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._storage = storage
        self._on_moved = on_moved
        self._on_failed = on_failed
        self._pauses_s = tuple(pauses_s)
        self._queue: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._local: dict[Path, None] = {}
        self._is_failing = False
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, path: Path | str) -> None:
        """Queue a finished file. Raises ArchiveError after `close`."""
        path = Path(path)
        if self._is_closed:
            raise ArchiveError(f"{path} is kept: files are no longer moved to {self._storage.shown}.")
        self._local[path] = None
        self._queue.put(path)
        if self._thread is None:
            # A daemon thread, so that the process can exit during an upload, which cannot be interrupted.
            self._thread = threading.Thread(target=self._run, name="dedupe-mover", daemon=True)
            self._thread.start()

    def close(self) -> list[Path]:
        """Wait for the queued files; return the files that stay local. Can be called again."""
        self._is_closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        return list(self._local)

    def _run(self) -> None:
        while (path := self._queue.get()) is not None:
            try:
                self._on_moved(path, self._upload(path))
                self._storage.delete_local(path)
                del self._local[path]
            except Exception as error:  # noqa: BLE001 - reported; a bug must not end the thread
                try:
                    self._on_failed(path, error)
                except Exception:
                    logger.exception("%s is kept; the failure of its upload could not be reported.", path)

    def _upload(self, path: Path) -> str:
        pauses_s = iter(() if self._is_failing else self._pauses_s)
        while True:
            try:
                location = self._storage.upload(path)
            except RefusedUpload:
                raise
            except ArchiveError as error:
                pause_s = next(pauses_s, None)
                if pause_s is None:
                    self._is_failing = True
                    raise
                logger.info("%s Retrying in %g seconds.", error, pause_s)
                time.sleep(pause_s)
            else:
                self._is_failing = False
                return location


@contextlib.contextmanager
def _upload_lock(path: Path) -> Iterator[None]:
    """Hold a lock on a local file, so that no other program uploads it at the same time."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise RefusedUpload(f"{path} cannot be uploaded: {error.strerror}.") from error
    try:
        if not lock(fd):
            raise RefusedUpload(f"{path} is being uploaded by another program and was skipped.")
        yield
    finally:
        os.close(fd)


def _secrets_of(url: str) -> tuple[str, ...]:
    found = _PASSWORD.search(url)
    if found is None or not found[2]:
        return ()
    return tuple(dict.fromkeys((found[2], unquote(found[2]))))


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split()).rstrip(".")
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")


def _state_of(path: Path) -> tuple[int, int, int]:
    """Size, time and inode of a finished file, to recognize a change. Raises RefusedUpload for any other file."""
    if path.name.endswith((OPEN_SUFFIX, PART_SUFFIX)):
        raise RefusedUpload(f"{path} is not finished, so it is not uploaded. Salvage it first.")
    try:
        found = path.stat()
    except OSError as error:
        raise RefusedUpload(f"{path} cannot be uploaded: {error.strerror}.") from error
    if not path.is_file():
        raise RefusedUpload(f"{path} is not a file and cannot be uploaded.")
    return found.st_size, found.st_mtime_ns, found.st_ino


def _report_of(on_read: Callable[[int], None]) -> Callable[..., None]:
    """A hook of fsspec, called with *value* of *size* bytes sent, that calls *on_read* with the difference."""
    reported = 0

    def report(size: int | None, value: int, **values: Any) -> None:
        nonlocal reported
        if value > reported:
            on_read(value - reported)
            reported = value

    return report


def _sum_of_local(path: Path, on_read: Callable[[int], None] = lambda size_bytes: None) -> _Sum:
    try:
        with path.open("rb") as file:
            return _sum(iter(lambda: file.read(_BLOCK), b""), on_read)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror}. It was not uploaded.") from error


def _sum(blocks: Iterator[bytes], on_read: Callable[[int], None]) -> _Sum:
    digest, size = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        size += len(block)
        on_read(len(block))
    return _Sum(size, digest.hexdigest())
