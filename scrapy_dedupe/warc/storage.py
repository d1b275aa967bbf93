"""Storage away from the crawl's own disk: any URL that fsspec knows, such as ``s3://bucket/folder``.

A file is written locally first. `Storage.upload` copies it, reads the copy back, and compares size and SHA-256;
`Storage.move` deletes the local file after that, never before. Both can be repeated after a kill at any moment: a copy
that is there with the same bytes counts as done.

What readers of the storage are promised:

- No half file under its final name. Stores that show an object only when it is whole (S3, Google, Azure, OSS) get it
  under its name; all others under ``NAME.part``, which is renamed once it was verified. fsspec does not tell which
  kind a file system is, so the first are listed here, and of the others those are taken that rename by themselves:
  where fsspec renames by copying, half a copy could be seen, and such a storage is refused. (In `memory:` a copy is
  there at once.)
- Nothing is overwritten. A local folder gives the name by a hard link, which cannot; elsewhere the storage is asked
  first whether the name is free, which leaves a moment in which two programs could choose the same one.

A copy in a local folder is synced before it gets its name, so that a power cut cannot take it after the original is
gone. Memory is bounded: files are sent and read in blocks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.warc.files import OPEN_SUFFIX, PART_SUFFIX, lock, sync_folder
from scrapy_dedupe.warc.records import new_record_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ASIDE_SUFFIX: Final = ".moved"

_WHOLE_AT_ONCE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})
# FTP opens a connection for each block; its own default is 64 KiB.
_OPTIONS: Final[dict[str, dict[str, object]]] = {"ftp": {"block_size": 8 << 20}}

_BLOCK: Final = 1 << 20
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):([^/]*)@")
_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class RefusedUpload(ArchiveError):
    """Trying again cannot help: the name is taken by other content, or the local file is not one to upload."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """What two copies of a file have in common: the size in bytes and the SHA-256 in hex."""

    size_bytes: int
    sha256: str


class Storage:
    """The folder at an fsspec URL, or at a local path, for use by one thread at a time.

    Nothing is asked of it before `check` or the first upload. ``shown`` is the URL without its password. Raises
    SettingError if it is no such URL, or if fsspec or the driver of the protocol is not installed.
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
                "The URL of a storage is empty. Name one such as s3://bucket/folder, or a folder."
            )
        if "::" in url or (not self._is_local and ("?" in url or "#" in url)):
            raise SettingError(
                f"The storage {self._without_query()} is not one URL of a folder. Name one such as s3://bucket/folder,"
                " and put options and credentials where the driver of the protocol looks for them."
            )
        self._class = self._driver()
        memory = import_module("fsspec.implementations.memory").MemoryFileSystem
        renames = self._class.mv is not import_module("fsspec.spec").AbstractFileSystem.mv
        self._is_memory = issubclass(self._class, memory)
        self._is_whole_at_once = self._protocol in _WHOLE_AT_ONCE
        if not (renames or self._is_memory or self._is_whole_at_once):
            raise SettingError(
                f"Files cannot be moved to {self.shown}: fsspec writes to {self._protocol}:// in place and cannot rename"
                " there, so that half a file could be taken for a whole one. Use a folder, sftp://, s3://, gs:// or"
                " abfs://, for example."
            )

    def check(self) -> None:
        """Prove that files can be stored: send a small one, read it back, delete it.

        Raises ArchiveError.
        """
        name = f".probe-{new_record_id()[10:-1]}"
        with (
            self._told(
                f"Nothing can be stored in {self.shown}",
                "See to the folder, to the permission to write and delete there, and to the credentials.",
            ),
            tempfile.TemporaryDirectory() as folder,
        ):
            probe = Path(folder) / name
            probe.write_bytes(name.encode())
            self._connect()
            self._send(probe, name, _sum_of_local(probe, _unwatched), _unwatched)
            self._fs.rm_file(self._remote(name))

    def location(self, name: str) -> str:
        """Where a file of that name is found: its path in a local folder, or its URL without a password."""
        if self._is_local:
            return str(self._local_folder() / name)
        url = _PASSWORD.sub(r"\1@", self._url) if self._secrets else self._url
        return f"{url}/{name}"

    def has(self, name: str) -> bool:
        """Whether a file of that name is there. Raises ArchiveError if the storage does not answer."""
        with self._told(f"{self.shown} cannot be looked at", "See to the network and the credentials."):
            self._connect()
            return bool(self._fs.exists(self._remote(name)))

    def is_folder(self, folder: Path) -> bool:
        """Whether the storage is a local folder, namely this one."""
        return self._is_local and self._local_folder().resolve() == folder.resolve()

    def upload(self, path: Path | str, on_read: Callable[[int], None] | None = None) -> str:
        """Copy a finished file, verify the copy, and return where it is; the local file is left alone.

        Raises ArchiveError if the copy could not be made or is not the same; what there is of it is removed if that is
        possible. Raises its subclass `RefusedUpload` if that will not change by trying again. *on_read* is told of the
        bytes that were done: those of the file once when it is hashed, once when it is sent and once when the copy is
        read back.
        """
        path = Path(path)
        with _alone_with(path):
            return self._upload(path, on_read or _unwatched)

    def _upload(self, path: Path, on_read: Callable[[int], None]) -> str:
        before, local = _stat(path), _sum_of_local(path, on_read)
        name = path.name
        try:
            with self._told(
                f"{path} cannot be uploaded to {self.shown}",
                "The local file is kept; see to the storage and upload it again.",
            ):
                self._connect()
                if not self._is_there(name, local, path, on_read):
                    self._send(path, name, local, on_read)
            if _changed(before, _stat(path)):
                raise RefusedUpload(
                    f"{path} was changed while it was uploaded to {self.shown}. It is kept; find out who writes it, and"
                    " delete the copy."
                )
        except ArchiveError:
            self._fs = None  # a connection that failed once may be dead
            raise
        return self.location(name)

    def move(self, path: Path | str) -> str:
        """Upload a finished file, then delete the local one; returns where it is now. Raises as `upload` does."""
        location = self.upload(path)
        self.delete_local(path)
        return location

    def delete_local(self, path: Path | str) -> None:
        """Delete a file that was uploaded, unless it turns out to be the copy itself. Raises ArchiveError.

        A server may well serve the very folder that the file lies in. So the file is renamed first, and deleted if the
        storage still has it.
        """
        path = Path(path)
        aside = path.with_name(f"{path.name}{_ASIDE_SUFFIX}")
        try:
            path.rename(aside)
            is_there = False
            try:
                with self._told(
                    f"{path} was uploaded, but {self.shown} does not answer any more", "It is kept."
                ):
                    self._connect()
                    is_there = self._fs.exists(self._remote(path.name))
            finally:
                if not is_there:
                    aside.rename(path)
            if not is_there:
                raise RefusedUpload(
                    f"{path} is kept: {self.shown} has it no more once it has another name here. Either it lies in the"
                    " storage itself, or the copy was deleted just now. Name another storage, or upload it again."
                )
            aside.unlink()
        except OSError as error:
            raise ArchiveError(
                f"{path} was uploaded, but cannot be deleted: {error.strerror}. Delete it by hand."
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
                f"fsspec knows no protocol {self._protocol}://, which the storage {self.shown} names."
                " Name a folder, or a URL with s3://, gs://, abfs:// or sftp://, for example."
            ) from error
        except Exception as error:  # drivers fail to load in many ways
            raise SettingError(
                f"The driver for {self._protocol}://, which the storage {self.shown} needs, cannot be loaded:"
                f" {_sentence(error)}. fsspec itself comes with"
                ' `pip install "scrapy-dedupe[storage]"`; drivers such as s3fs, gcsfs or paramiko are installed beside'
                " it."
            ) from error

    def _connect(self) -> None:
        if self._fs is None:
            # A fresh one, since fsspec would give the connection that failed before once more.
            options = {**_OPTIONS.get(self._protocol, {}), **self._class._get_kwargs_from_urls(self._url)}
            if not self._is_local:
                options |= {
                    key: unquote(options[key]) for key in ("username", "password") if options.get(key)
                }
            self._fs = self._class(skip_instance_cache=True, **options)
            self._base = self._class._strip_protocol(self._url).rstrip("/")
        self._fs.invalidate_cache()
        has_folders = not (self._is_memory or self._is_whole_at_once)
        if has_folders and not self._fs.isdir(self._base or "/"):
            # It is not made: an archive must not fill the disk below a mount that is away.
            raise FileNotFoundError(errno.ENOENT, "the folder is not there; make it, or mount it")

    def _remote(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _is_there(self, name: str, local: _Sum, path: Path, on_read: Callable[[int], None]) -> bool:
        """Whether the copy was made before. Raises RefusedUpload if the name has other content."""
        remote = self._remote(name)
        if not self._fs.exists(remote):
            return False
        if self._is_local and path.samefile(remote):
            raise RefusedUpload(
                f"{path} lies in the storage {self.shown} itself, so it cannot be moved there. It is kept; name another"
                " storage."
            )
        if self._fs.info(remote)["size"] == local.size_bytes and self._sum_of(remote, on_read) == local:
            return True
        raise RefusedUpload(
            f"{path} cannot be uploaded: {self.shown} has another file of the name {name}. It was not overwritten, and"
            " the local file is kept. Move one of the two away, or use another folder."
        )

    def _send(self, path: Path, name: str, local: _Sum, on_read: Callable[[int], None]) -> None:
        from fsspec.callbacks import Callback

        final = self._remote(name)
        sent_to = final if self._is_whole_at_once else final + PART_SUFFIX
        sent = _Sent(on_read)
        is_sent = False
        try:
            self._fs.put_file(str(path), sent_to, callback=Callback(hooks={"sent": sent}))
            is_sent = True
            # Some drivers do not tell how far they are.
            sent(None, local.size_bytes)
            if self._is_local:
                _sync(sent_to)
            self._fs.invalidate_cache()
            copy = self._sum_of(sent_to, on_read)
            if copy != local:
                what = "another SHA-256"
                if copy.size_bytes != local.size_bytes:
                    what = f"{copy.size_bytes} bytes instead of {local.size_bytes}"
                raise ArchiveError(
                    f"The copy of {path} in {self.shown} was read back and has {what}. It was removed if that was"
                    " possible; the local file is kept. Look at the storage before you trust it."
                )
            if sent_to != final:
                self._rename(sent_to, final, path)
        except Exception:
            # Where an upload that failed shows nothing, something of that name would be somebody else's.
            if is_sent or sent_to != final:
                with contextlib.suppress(Exception):
                    self._fs.rm_file(sent_to)
            raise

    def _rename(self, part: str, final: str, path: Path) -> None:
        taken = RefusedUpload(
            f"{path} cannot be uploaded: {self.shown} has had a file of this name for a moment. The local file is kept;"
            " upload it again, and look who else uploads there."
        )
        if self._is_local:
            try:
                os.link(part, final)
                Path(part).unlink()
                sync_folder(Path(final).parent)
                return
            except FileExistsError:
                raise taken from None
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
        if self._fs.exists(final):
            raise taken
        self._fs.mv(part, final)
        if self._is_local:
            sync_folder(Path(final).parent)

    def _sum_of(self, remote: str, on_read: Callable[[int], None]) -> _Sum:
        with self._fs.open(remote, "rb") as file:
            if self._protocol in ("sftp", "ssh"):
                # As paramiko's own downloads do; otherwise each 32 KiB would take a round trip.
                file.prefetch(self._fs.info(remote)["size"] or None)
            return _sum(iter(lambda: file.read(_BLOCK), b""), on_read)

    def _local_folder(self) -> Path:
        return Path(os.path.abspath(self._class._strip_protocol(self._url)))  # noqa: PTH100 - without resolving links

    def _without_query(self) -> str:
        return re.split(r"[?#]", self.shown)[0]

    @contextlib.contextmanager
    def _told(self, what: str, remedy: str) -> Iterator[None]:
        """Drivers raise errors of many kinds; each becomes one sentence that shows no password."""
        try:
            yield
        except ArchiveError:
            raise
        except Exception as error:  # noqa: BLE001 - each driver has its own
            reason = _sentence(error)
            for secret in self._secrets:
                reason = reason.replace(secret, "***")
            raise ArchiveError(f"{what}: {reason}. {remedy}") from (None if self._secrets else error)


@contextlib.contextmanager
def _alone_with(path: Path) -> Iterator[None]:
    """Hold a lock on a local file, so that no other program sends it to the same place at the same time."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise RefusedUpload(f"{path} cannot be uploaded: {error.strerror}.") from error
    try:
        if not lock(fd):
            raise RefusedUpload(f"{path} is being uploaded by another program, and is left to that one.")
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


def _stat(path: Path) -> os.stat_result:
    if path.name.endswith((OPEN_SUFFIX, PART_SUFFIX)):
        raise RefusedUpload(f"{path} is not finished, so it is not uploaded. Salvage it first.")
    try:
        found = path.stat()
    except OSError as error:
        raise RefusedUpload(f"{path} cannot be uploaded: {error.strerror}.") from error
    if not path.is_file():
        raise RefusedUpload(f"{path} is no file and cannot be uploaded.")
    return found


def _changed(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ino) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ino,
    )


class _Sent:
    """Tells how much of a file was sent, as it goes."""

    def __init__(self, on_read: Callable[[int], None]) -> None:
        self._on_read = on_read
        self._told = 0

    def __call__(self, size: int | None, value: int, **values: Any) -> None:
        """*value* bytes of *size*; the arguments are those of a hook of fsspec."""
        if value > self._told:
            self._on_read(value - self._told)
            self._told = value


def _unwatched(size_bytes: int) -> None:
    pass


def _sum_of_local(path: Path, on_read: Callable[[int], None]) -> _Sum:
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


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
