"""What an index folder consists of: its manifest, and which documents of its segments are deleted.

An index is a folder of files that are never changed, but for two: ``manifest.json``, which is replaced as a whole, and
``lock`` (`lock`)::

    manifest.json              what the index consists of
    lock                       who writes
    NAME.posts, NAME.blobs     a segment (`segment_layout`)
    NAME.deleted-GENERATION    which documents of the segment NAME are deleted, since that generation
    *.new                      a file that is being written; it gets its name when it is whole and on the disk

A file belongs to the index from the moment at which a manifest names it. Whatever else has such a name was left by a
writer that was killed, or is no longer needed; the next writer removes it.

The manifest is JSON in UTF-8, with an indent of 1 and a newline at its end::

    format       "scrapy-dedupe passages"
    version      1
    generation   a number that grows with every change, by one or more, from 1
    parameters   tokeniser, blotter, has_texts, key_bits: those of `values.Parameters`
    segments     in the order in which they were added, each with the fields of `segment_layout.SegmentEntry`
    deleted      an object: names of segments, and of the file with the deleted documents of each
    checksum     SHA-256 in hex of all the above as JSON with sorted keys, no spaces and ASCII characters alone

A file of deleted documents, all numbers little-endian::

    magic        8 bytes   "sd-gone", a zero
    version      2 bytes   1
    zero         2 bytes
    count        4 bytes
    documents    4 bytes each: numbers of documents within the segment, ascending
    checksum     4 bytes   CRC-32 of all the above

An index is begun with a manifest without segments, so a folder that has segments and no manifest has lost it. As long
as it is at that first generation its parameters bind nobody, and are replaced by those of the next writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import stat
import struct
import zlib
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.errors import StoreRefused

from .folder_files import NEW_SUFFIX, damaged, other_version, read_file, reading, write_file
from .lock import LOCK
from .segment_layout import SegmentEntry, blobs_name, posts_name
from .values import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = "scrapy-dedupe passages"
VERSION = 1
MANIFEST = "manifest.json"

_MOST_MANIFEST_BYTES = 16 << 20
_MOST = 2**63 - 1
_SEGMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_DELETED_SUFFIX = re.compile(r"deleted-[0-9]{1,19}")
# What is removed has a name as `segment_name` gives them, since others may keep their files in the folder too.
_OURS = re.compile(
    rf"[0-9]{{8,19}}(?:-[0-9]{{1,19}})?\.(?:posts|blobs|{_DELETED_SUFFIX.pattern})(?:\.new)?|manifest\.json\.new"
)
_HEAD = struct.Struct("<8sHHI")
_MAGIC = b"sd-gone\0"
_DELETED_VERSION = 1
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index consists of. *deleted* maps the name of a segment to that of the file of its deleted documents."""

    generation: int
    parameters: Parameters
    segments: tuple[SegmentEntry, ...] = ()
    deleted: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_unused(self) -> bool:
        """Whether it is that of an index that never had a document, so that its parameters bind nobody."""
        return self.generation == 1 and not self.segments

    @property
    def files(self) -> frozenset[str]:
        """The names of all files that belong to the index, but for the lock."""
        names = {MANIFEST, *self.deleted.values()}
        for entry in self.segments:
            names.update((posts_name(entry.name), blobs_name(entry.name)))
        return frozenset(names)


def segment_name(generation: int, number: int = 0) -> str:
    """The name of the segment that the manifest of *generation* brings, one of several by *number*.

    >>> segment_name(12), segment_name(12, 1)
    ('00000012', '00000012-1')
    """
    return f"{generation:08d}-{number}" if number else f"{generation:08d}"


def begin(folder: Path, parameters: Parameters) -> Manifest:
    """The manifest of the index in *folder*, which is made if there is none; for the writer, who has the lock.

    An index that never had a document gets the parameters that are asked for. What earlier writers have left is removed.
    Raises as `read_manifest`, `refuse_other_parameters` and `replace_manifest`.
    """
    manifest = read_manifest(folder)
    if manifest is None or (manifest.is_unused and manifest.parameters != parameters):
        manifest = Manifest(1, parameters)
        replace_manifest(folder, manifest)
    refuse_other_parameters(folder, manifest.parameters, parameters)
    remove_orphans(folder, manifest)
    return manifest


def manifest_stamp(folder: Path) -> tuple[object, ...]:
    """Something that is another one after every change of the index in *folder*.

    Raises FileNotFoundError if there is no manifest, StoreUnavailable and StoreRefused as `read_manifest` does.
    """
    path = folder / MANIFEST
    with reading(path):
        found = path.stat()
    # Two replacements in a row may get the same number, time and size; the generation is in the content. What the
    # file says does not tell an index that was removed and made again from the one before.
    return found.st_dev, found.st_ino, found.st_mtime_ns, read_file(path, _MOST_MANIFEST_BYTES)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the index in *folder*; None if there is no index, since the folder is not there or is empty.

    Raises StoreRefused if the folder holds other things, or an index that is damaged or of another version;
    StoreUnavailable if it cannot be read.
    """
    path = folder / MANIFEST
    try:
        data = read_file(path, _MOST_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        _refuse_other_things(folder)
        return None
    try:
        return _manifest_of(json.loads(data), path)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "is not JSON that this program writes") from error


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Make *manifest* the one of the index, as one change that outlives a crash. Raises StoreUnavailable.

    From then on the index consists of what it names, all of which has to be on the disk.
    """
    value = {
        "format": FORMAT,
        "version": VERSION,
        "generation": manifest.generation,
        "parameters": asdict(manifest.parameters),
        "segments": [asdict(entry) for entry in manifest.segments],
        "deleted": dict(manifest.deleted),
    }
    value["checksum"] = _checksum(value)
    write_file(folder / MANIFEST, json.dumps(value, indent=1).encode() + b"\n")


def refuse_other_parameters(folder: Path, has: Parameters, asked: Parameters) -> None:
    """Raise StoreRefused if the index in *folder* was made with other parameters than those asked for."""
    if has == asked:
        return
    words = (
        ("the tokeniser", has.tokeniser, asked.tokeniser),
        ("the blotter", _blotter_words(has), _blotter_words(asked)),
        ("keys of", f"{has.key_bits} bits", f"{asked.key_bits} bits"),
        ("stored texts", "yes" if has.has_texts else "no", "yes" if asked.has_texts else "no"),
    )
    differing = [(what, old, new) for what, old, new in words if old != new]
    old = ", ".join(f"{what} {old}" for what, old, _ in differing)
    new = ", ".join(f"{what} {new}" for what, _, new in differing)
    raise StoreRefused(
        f"The index {folder} was made with {old}; {new} is asked for. Ask for what it has, or make another index with"
        " --root."
    )


def orphans(folder: Path, *manifests: Manifest) -> list[str]:
    """The names of the files in the folder that have names as ours have, and that no manifest names."""
    belonging = frozenset().union(*(manifest.files for manifest in manifests))
    with reading(folder):
        return sorted(name for name in _names(folder) if _OURS.fullmatch(name) and name not in belonging)


def remove_orphans(folder: Path, *manifests: Manifest) -> list[str]:
    """Remove what no manifest names, and return the names. To be called by the writer, who has the lock.

    Of *manifests*, one has to be that on the disk. What cannot be removed is left for the next writer.
    """
    if not manifests:
        raise ValueError("without a manifest nobody knows which files are needed")
    removed = []
    for name in orphans(folder, *manifests):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            removed.append(name)
    return removed


def write_deleted(folder: Path, segment: str, generation: int, documents: NDArray[np.int64]) -> str:
    """Write which documents of a segment are deleted, as numbers within it, and return the name of the file.

    It belongs to the index as soon as the manifest of *generation* names it. Raises StoreUnavailable.
    """
    numbers = np.unique(np.asarray(documents, np.int64))
    if numbers.size and not 0 <= int(numbers[0]) <= int(numbers[-1]) < 2**32:
        raise ValueError(f"{numbers[0]} to {numbers[-1]} are no numbers of documents.")
    data = _HEAD.pack(_MAGIC, _DELETED_VERSION, 0, numbers.size) + numbers.astype("<u4").tobytes()
    name = f"{segment}.deleted-{generation}"
    write_file(folder / name, data + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little"))
    return name


def read_deleted(folder: Path, name: str, documents: int) -> NDArray[np.int64]:
    """Which of the *documents* of a segment the file says are deleted, ascending.

    Raises StoreRefused if it is damaged, FileNotFoundError if it is gone.
    """
    path = folder / name
    frame = _HEAD.size + _CHECKSUM_BYTES
    data = read_file(path, frame + 4 * documents)
    if len(data) < frame:
        raise damaged(path, "is cut")
    magic, version, zero, count = _HEAD.unpack_from(data)
    if magic == _MAGIC and version != _DELETED_VERSION:
        raise other_version(path, version, _DELETED_VERSION)
    body = data[:-_CHECKSUM_BYTES]
    if (
        magic != _MAGIC
        or zero
        or len(data) != frame + 4 * count
        or zlib.crc32(body) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little")
    ):
        raise damaged(path, "is not what was written")
    numbers = np.frombuffer(body, "<u4", offset=_HEAD.size).astype(np.int64)
    if numbers.size and (bool((np.diff(numbers) <= 0).any()) or int(numbers[-1]) >= documents):
        raise damaged(path, f"names documents that the segment does not have, of {documents}")
    return numbers


def refuse_other_files(folder: Path, entry: SegmentEntry) -> None:
    """Raise StoreRefused unless the two files of a segment are files and have the sizes that the manifest tells.

    Raises FileNotFoundError if one is gone.
    """
    sizes = {posts_name(entry.name): entry.posts_size, blobs_name(entry.name): entry.blobs_size}
    for name, size in sizes.items():
        path = folder / name
        with reading(path):
            found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise damaged(path, "is not a file")
        if found.st_size != size:
            raise damaged(path, f"has {found.st_size} bytes and not {size}")


def _refuse_other_things(folder: Path) -> None:
    """Raise StoreRefused if there is something in a folder that has no manifest."""
    try:
        with reading(folder):
            names = _names(folder)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise StoreRefused(
            f"{folder} is not a folder. Name a folder for the passage index with --root."
        ) from error
    # A writer that was killed before its first manifest has left these two at most.
    names = sorted(name for name in names if name not in (LOCK, MANIFEST + NEW_SUFFIX))
    if not names:
        return
    if any(_OURS.fullmatch(name) for name in names):
        raise StoreRefused(
            f"The passage index {folder} has lost its {MANIFEST}. Put it back from a backup, or empty the folder and"
            " index again."
        )
    raise StoreRefused(
        f"The folder {folder} is not a passage index: there is {names[0]!r} in it, and no {MANIFEST}. Name another"
        " folder with --root."
    )


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _manifest_of(value: object, path: Path) -> Manifest:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise StoreRefused(
            f"{path} is not the manifest of a passage index. It was left as it is; name another folder with --root."
        )
    version = value.get("version")
    if version != VERSION and isinstance(version, int):
        raise other_version(path, version, VERSION)
    checksum = value.pop("checksum", None)
    if checksum != _checksum(value):
        raise damaged(path, "does not have the checksum that it tells")
    try:
        if set(value) != {"format", "version", "generation", "parameters", "segments", "deleted"}:
            raise _Wrong("fields")
        manifest = Manifest(
            _number(value["generation"], "generation"),
            _parameters(value["parameters"]),
            tuple(_entry(entry) for entry in _list(value["segments"])),
            dict(_object(value["deleted"])),
        )
        _check_names(manifest)
    except _Wrong as error:
        raise damaged(path, f"has a wrong value in: {error}") from error
    return manifest


class _Wrong(Exception):
    """A value of a manifest that cannot be; the text says which."""


def _parameters(value: object) -> Parameters:
    found = _object(value)
    if set(found) != {item.name for item in fields(Parameters)}:
        raise _Wrong("parameters")
    key_bits = _number(found["key_bits"], "key_bits")
    is_good = (
        isinstance(found["tokeniser"], str)
        and isinstance(found["blotter"], dict)
        and isinstance(found["has_texts"], bool)
        and 1 <= key_bits <= 64
    )
    if not is_good:
        raise _Wrong("parameters")
    return Parameters(found["tokeniser"], found["blotter"], found["has_texts"], key_bits)


def _entry(value: object) -> SegmentEntry:
    found = _object(value)
    items = fields(SegmentEntry)
    if set(found) != {item.name for item in items}:
        raise _Wrong("segments")
    for item in items:
        if item.type == "int":
            _number(found[item.name], f"segments, {item.name}")
        elif not isinstance(found[item.name], str):
            raise _Wrong(f"segments, {item.name}")
    return SegmentEntry(**found)


def _check_names(manifest: Manifest) -> None:
    names = [entry.name for entry in manifest.segments]
    if len(set(names)) < len(names) or not all(map(_SEGMENT_NAME.fullmatch, names)):
        raise _Wrong("segments, name")
    for segment, file in manifest.deleted.items():
        name, _, suffix = file.partition(".") if isinstance(file, str) else ("", "", "")
        if segment not in names or name != segment or not _DELETED_SUFFIX.fullmatch(suffix):
            raise _Wrong("deleted")


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong("fields")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _Wrong("fields")
    return value


def _number(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise _Wrong(name)
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _blotter_words(parameters: Parameters) -> str:
    return json.dumps(parameters.blotter, sort_keys=True)
