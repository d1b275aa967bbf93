"""Multi-WACZ JSON: a list of containers that belong together.

The file is an object with a list ``resources``. Of each resource these keys are read: ``path``, a URL or a path
relative to the folder or URL of the file itself, by default the name; ``name``, by default the last part of the path;
``hash``, a SHA-256 in hex with or without the label ``sha256:``; ``size`` or ``bytes``; and ``crawlId``. A path that
ends in ``.json`` is another multi-WACZ JSON.

The content is not trusted: a file may name only files below its own folder and URLs of storages, unless the reader
allows more. A remote file can never name files of this machine that way. A refused entry does not affect the others.
"""

from __future__ import annotations

import json
import posixpath
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from scrapy_dedupe.errors import DamagedInput, DedupeError
from scrapy_dedupe.warc.remote import is_url, open_in_order, place_file, read_errors, shown, url_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIX = ".json"
MAX_JSON_BYTES = 64 << 20

_MAX_DEPTH = 8
_MAX_MANIFESTS = 1000
# Allowed schemes of URLs in a manifest; other drivers of fsspec can read local files.
_SCHEMES = frozenset(
    {"http", "https", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs"}
    | {"ftp", "sftp", "ssh", "webdav", "webdavs", "hdfs", "webhdfs", "memory"}
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_cut = _SHORT.repr
_SHA256 = re.compile(r"(?:sha-?256:)?([0-9a-f]{64})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a manifest names: ``place`` is an absolute path or a URL, ``hash`` a SHA-256 in bare hex."""

    name: str
    place: str
    hash: str | None = None
    size: int | None = None
    crawl: str | None = None


class _Refused(Exception):
    """Why an entry is skipped: the end of a sentence."""


def is_manifest(place: str) -> bool:
    """Whether a path or URL is treated as a multi-WACZ JSON."""
    return (url_path(place) if is_url(place) else place).lower().endswith(SUFFIX)


def read_manifest(
    place: str, *, allow_outside: bool = False, with_names: bool = True, on_fault: Callable[[str], None]
) -> Iterator[ListedFile]:
    """Yield the files that the multi-WACZ JSON at a path or URL lists, in order; nested manifests are expanded.

    Repeated entries of one file are yielded once, and two files with one name are refused. Without *with_names* the
    names in the manifest are ignored, and each file has the name in its path. *on_fault* is called with a sentence for
    every skipped entry. With *allow_outside* an entry may name any file that can be read.

    Raises ArchiveError if the file cannot be read, DamagedInput if it is not a multi-WACZ JSON, SettingError if a
    package for its URL is missing.
    """
    if not is_url(place):
        place = str(Path(place).absolute())
    return _Reading(allow_outside, with_names, on_fault).listed(place, _resources(place))


class _Reading:
    """One pass over a manifest and the manifests that it lists."""

    def __init__(self, allow_outside: bool, with_names: bool, on_fault: Callable[[str], None]) -> None:
        self._allow_outside = allow_outside
        self._with_names = with_names
        self._on_fault = on_fault
        self._open: list[str] = []  # manifests that are being read, each listed by the one before
        self._read: set[str] = set()
        self._known: dict[str, ListedFile] = {}  # by name, or by place without *with_names*

    def listed(self, place: str, resources: list[object]) -> Iterator[ListedFile]:
        key = _key(place)
        self._open.append(key)
        self._read.add(key)
        for number, resource in enumerate(resources, 1):
            try:
                entry = self._entry(place, number, resource)
                if is_manifest(entry.place):
                    inner = self._inner(entry)
                    if inner is not None:
                        yield from self.listed(entry.place, inner)
                elif self._is_new(entry):
                    yield entry
            except _Refused as refused:
                self._on_fault(f"{shown(place)} names {refused}")
        self._open.pop()

    def _entry(self, manifest: str, number: int, resource: object) -> ListedFile:
        if not isinstance(resource, dict):
            raise _Refused(f"{_cut(resource)} as its resource {number}, which is not an object.")
        name = resource.get("name")
        path = resource.get("path") or name
        if not path:
            raise _Refused(f"no path in its resource {number}. Add it.")
        place = self._place(manifest, path)
        if not name or not self._with_names:
            name = place_file(place).name
        if not isinstance(name, str) or not _is_file_name(name):
            raise _Refused(f"{_cut(path)} with the name {_cut(name)}, which is not a file name.")
        crawl = resource.get("crawlId")
        if crawl is not None and (not isinstance(crawl, str) or not _is_text(crawl)):
            raise _Refused(f"{_cut(path)} with the crawlId {_cut(crawl)}, which is not a valid string.")
        return ListedFile(name, place, _hash(path, resource), _size(path, resource), crawl or None)

    def _place(self, manifest: str, path: object) -> str:
        if not isinstance(path, str) or "\0" in path or not _is_text(path):
            raise _Refused(f"{_cut(path)} as a path, which is not a valid path.")
        is_file_url = path.lower().startswith("file://")
        if is_url(path) and not is_file_url:
            # With "::" fsspec reads one URL through another, and the inner one may be local.
            is_plain = path.partition("://")[0].lower() in _SCHEMES and "::" not in path
            place = path if is_plain or self._allow_outside else None
        elif not is_url(manifest):
            place = _local_place(manifest, path, self._allow_outside)
        elif not is_file_url:
            place = _remote_place(manifest, path, self._allow_outside)
        else:
            place = _path_of_url(path) if self._allow_outside else None
        if place is None:
            raise _Refused(
                f"{_cut(path)}, which is not below its own folder. Put the file there, or pass it by name; import accepts"
                " it with --allow-outside."
            )
        return place

    def _inner(self, entry: ListedFile) -> list[object] | None:
        """The resources of a nested manifest; None if it was already read."""
        what, key = _cut(shown(entry.place)), _key(entry.place)
        if key in self._open:
            raise _Refused(f"{what}, which names itself through this one. Remove one of the two entries.")
        if key in self._read:
            return None
        if len(self._open) > _MAX_DEPTH:
            raise _Refused(f"{what}, which is nested in {len(self._open)} other manifests. Pass it by name.")
        if len(self._read) >= _MAX_MANIFESTS:
            raise _Refused(f"{what}, but {_MAX_MANIFESTS} manifests were read before it. Pass it by name.")
        try:
            return _resources(entry.place)
        except DedupeError as error:
            self._read.add(key)
            raise _Refused(f"{what}, which is skipped: {error}") from error

    def _is_new(self, entry: ListedFile) -> bool:
        known = self._known.setdefault(entry.name if self._with_names else _key(entry.place), entry)
        if known is entry:
            return True
        is_same = _key(known.place) == _key(entry.place)
        if is_same and (None in (known.hash, entry.hash) or known.hash == entry.hash):
            return False
        raise _Refused(
            f"{_cut(shown(entry.place))} with the name {_cut(entry.name)}, which"
            f" {_cut(shown(known.place))} has {'with another hash ' if is_same else ''}too. Give each file its own"
            " name."
        )


def _resources(place: str) -> list[object]:
    where = shown(place)
    with read_errors(place), open_in_order(place_file(place)) as file:
        data = file.read(MAX_JSON_BYTES + 1)
    manifest = json_object(data, lambda why: _no_manifest(where, why))
    if "resources" not in manifest:
        raise _no_manifest(where, "it has none")
    resources = manifest["resources"]
    if not isinstance(resources, list):
        raise _no_manifest(where, f"its resources are {_cut(resources)}")
    if not resources:
        raise DamagedInput(f"{where} names no WACZ file. Name the WACZ files themselves.")
    return resources


def json_object(data: bytes | bytearray, broken: Callable[[str], DamagedInput]) -> dict[str, Any]:
    """The JSON object in a file of a container. Raises *broken* with a reason, also for more than MAX_JSON_BYTES."""
    if len(data) > MAX_JSON_BYTES:
        raise broken(f"it is longer than {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(data)
    except (json.JSONDecodeError, UnicodeError) as error:
        raise broken(f"it is not valid JSON ({error})") from error
    except (ValueError, RecursionError) as error:
        # The messages of these errors explain how to change Python's limits, which is of no help here.
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        raise broken(f"it is JSON that is not supported ({why})") from error
    if not isinstance(value, dict):
        raise broken("it is not a JSON object")
    return value


def bare_sha256(value: object) -> str | None:
    """The SHA-256 in a file of a container, in bare hex; None for any other value."""
    match = _SHA256.fullmatch(value) if isinstance(value, str) else None
    return match[1].lower() if match else None


def _no_manifest(where: str, why: str) -> DamagedInput:
    return DamagedInput(f'{where} is not a multi-WACZ JSON, a list "resources" with a "path" each: {why}.')


def _local_place(manifest: str, path: str, allow_outside: bool) -> str | None:
    folder, is_file_url = Path(manifest).parent.resolve(), path.lower().startswith("file://")
    target = (folder / (_path_of_url(path) if is_file_url else path)).resolve()
    is_below = folder in target.parents and (is_file_url or not _SCHEME.match(path))
    return str(target) if is_below or allow_outside else None


def _remote_place(manifest: str, path: str, allow_outside: bool) -> str | None:
    if path.startswith("//"):
        return None
    scheme, _, rest = manifest.partition("://")
    origin = f"{scheme}://{re.split(r'[/?#]', rest, maxsplit=1)[0]}"
    folder = url_path(manifest).rpartition("/")[0] + "/"
    words = re.split(r"[?#]", path)[0]
    steps = unquote(words).replace("\\", "/").split("/")
    is_absolute = path.startswith("/")
    if ".." not in steps and not _SCHEME.match(path) and (path.startswith(folder) or not is_absolute):
        return origin + (path if is_absolute else folder + path)
    # Steps of a URL are only resolved here.
    target = posixpath.normpath(posixpath.join(folder, words)) + path[len(words) :]
    return origin + target if allow_outside else None


def _path_of_url(url: str) -> str:
    try:
        return str(place_file(url))
    except DedupeError as error:
        raise _Refused(f"{_cut(url)}, which is skipped: {error}") from error


def _key(place: str) -> str:
    return place if is_url(place) else str(Path(place).resolve())


def _hash(path: object, resource: dict[str, object]) -> str | None:
    value = resource.get("hash")
    if value is None or value == "":
        return None
    sha256 = bare_sha256(value)
    if sha256 is None:
        raise _Refused(f"{_cut(path)} with the hash {_cut(value)}, which is not a SHA-256 in hex.")
    return sha256


def _size(path: object, resource: dict[str, object]) -> int | None:
    size = resource.get("size")
    if size is None:
        size = resource.get("bytes")
    if size is None:
        return None
    if type(size) is not int or not 0 <= size < 2**63:
        raise _Refused(f"{_cut(path)} with the size {_cut(size)}, which is not a number of bytes.")
    return size


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and not re.search(r"[/\\\x00-\x1f]", name) and _is_text(name)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True
